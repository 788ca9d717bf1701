//! A locked part: finds a key's newest image, replaces it, and retires what is no longer needed.
//!
//! Versions rest on one rule: an image is changed in place only if it was born in the open version. Otherwise
//! a copy replaces it and keeps a link to it. This module does not know what rows learn.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::{Result, TableError};
use crate::rows::{CHUNK_ROWS, Taken, Use};
use crate::sketch::Sketch;
use crate::storage::images::{GONE, Image, ImagesUse, NONE, OldPlaces, row_of};
use crate::storage::index::{Found, IndexUse, mix};
use crate::storage::prefetch::{prefetch, prefetch_row};
use crate::storage::sheets::Block;
use crate::storage::sync::{Mutex, MutexGuard};
use crate::table::Table;

/// How many rows ahead unused rows are prefetched.
const AHEAD_ROWS: u32 = 4;
/// How many rows ahead freed rows are prefetched before they are linked.
const AHEAD_FREED: usize = 16;

/// Memory that is reused once every reader has passed.
enum LetGo {
    Rows(Vec<u32>),
    Lines(Block),
    Places(#[expect(dead_code, reason = "held until dropped")] OldPlaces),
}

/// The keys with an image born in one version.
#[derive(Default)]
pub struct Touched {
    /// The birth of these images.
    pub birth: u64,
    /// The keys, each once.
    pub keys: Vec<u64>,
}

/// The state that only the holder of a part's lock sees.
#[derive(Default)]
pub struct PartUse {
    /// The state of the lines.
    pub index: IndexUse,
    /// The state of the images.
    pub images: ImagesUse,
    /// Touched keys by birth, oldest first.
    pub touched: Vec<Touched>,
    /// The counts of keys without a row.
    pub sketch: Option<Box<Sketch>>,
    /// The position of the expiry hand, of 2^64 for a whole round.
    pub hand: u64,
    gone: usize,
    /// The number of keys at the last report to the table.
    keys_told: usize,
    chunk: Range<u32>,
    free: u32,
    free_rows: usize,
    waiting: VecDeque<(u64, LetGo)>,
}

/// A locked part, until it is dropped.
pub struct Held<'a> {
    table: &'a Table,
    number: usize,
    /// The state that the lock guards.
    pub part: MutexGuard<'a, PartUse>,
    freed: Vec<u32>,
    replaced: Vec<LetGo>,
}

/// The effect of a write on a key's newest image.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// The key is not present.
    Vacant,
    /// No one else sees the image: it is changed in place.
    Own(Found<'a>),
    /// A version or a reader sees the image: a copy replaces it.
    Shared(Found<'a>),
}

impl Target<'_> {
    /// The row with the key's current value; None if it has none.
    pub fn row(&self) -> Option<u32> {
        match self {
            Self::Own(entry) | Self::Shared(entry) if entry.id & GONE == 0 => Some(entry.id),
            _ => None,
        }
    }

    /// Whether the key was already written in the open version.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// An embedding in stored form.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// Floats, for tables of floats.
    Floats(&'a [f32]),
    /// Bytes, for all other tables.
    Bytes(&'a [u8]),
}

/// The content to write to a row.
pub struct Cell<'a> {
    /// The embedding.
    pub embedding: Values<'a>,
    /// The optimizer's state.
    pub state: &'a [f32],
    /// The time and count of use.
    pub used: Use,
}

/// The context of a write call, fixed at its start, since no version is sealed while a call writes.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// The birth of the images that it writes.
    pub birth: u64,
    /// Whether older images must be kept for a version or an export.
    pub is_versioned: bool,
    /// No reader can still see memory stamped before this.
    pub passed: u64,
}

impl<'a> Held<'a> {
    /// Locks a part.
    pub fn take(table: &'a Table, part: &'a Mutex<PartUse>, number: usize, passed: u64) -> Self {
        let part = part.lock().expect("no holder panics");
        let mut locked = Self { table, number, part, freed: Vec::new(), replaced: Vec::new() };
        locked.collect(passed);
        locked
    }

    /// Reuses the memory that no reader can still see.
    fn collect(&mut self, passed: u64) {
        while self.part.waiting.front().is_some_and(|&(stamp, _)| stamp < passed) {
            match self.part.waiting.pop_front() {
                Some((_, LetGo::Rows(rows))) => self.collect_rows(&rows),
                Some((_, LetGo::Lines(block))) => self.table.index.give(block),
                Some((_, LetGo::Places(_))) | None => {}
            }
        }
    }

    /// Keeps a few rows and returns the others to the table for any part; otherwise a write that failed
    /// halfway would leave its rows to only a few parts.
    fn collect_rows(&mut self, rows: &[u32]) {
        let embedding = &self.table.rows.embedding;
        for (index, &row) in rows.iter().enumerate() {
            if let Some(&ahead) = rows.get(index + AHEAD_FREED) {
                prefetch(embedding.address(ahead));
            }
            embedding.set_link(row, self.part.free);
            self.part.free = row;
        }
        self.part.free_rows += rows.len();
        let mut chains = Vec::new();
        while self.part.free_rows > CHUNK_ROWS as usize {
            let first = self.part.free;
            let last = (1..CHUNK_ROWS).fold(first, |row, _| embedding.link(row));
            self.part.free = embedding.link(last);
            self.part.free_rows -= CHUNK_ROWS as usize;
            embedding.set_link(last, NONE);
            chains.push(first);
        }
        if !chains.is_empty() {
            self.table.rows.give(&mut chains);
        }
    }

    fn take_row(&mut self, is_for_gone: bool) -> Result<u32> {
        if self.part.free == NONE && self.part.chunk.is_empty() {
            let rows = self.table.rows.take(is_for_gone);
            match rows.ok_or(TableError::Full { rows_max: self.table.settings.rows_max })? {
                Taken::Chunk(chunk) => self.part.chunk = chunk,
                Taken::Chain(first) => {
                    (self.part.free, self.part.free_rows) = (first, CHUNK_ROWS as usize);
                }
            }
        }
        if self.part.free != NONE {
            let row = self.part.free;
            self.part.free = self.table.rows.embedding.link(row);
            self.part.free_rows -= 1;
            // The next free row links to the one after it, so it is needed as soon as it is taken.
            self.bring_near(self.part.free);
            return Ok(row);
        }
        let row = self.part.chunk.next().expect("chunks are not empty");
        prefetch(self.table.rows.embedding.address(row + AHEAD_ROWS));
        Ok(row)
    }

    /// Prefetches all the memory that is written when a row is taken.
    #[inline(always)]
    fn bring_near(&self, row: u32) {
        if row != NONE {
            let (embedding, state) = (&self.table.rows.embedding, &self.table.rows.state);
            prefetch_row(embedding.address(row).cast(), embedding.row_bytes() / 4);
            prefetch_row(state.address(row).cast(), state.row_bytes() / 4);
            prefetch(self.table.rows.use_address(row));
            prefetch(self.images().address(row));
        }
    }

    /// The effect of a write to a key.
    #[inline(always)]
    pub fn target(&self, open: Open, hash: u64, key: u64) -> Target<'a> {
        let Some(entry) = self.table.index.find(self.number, hash, key) else { return Target::Vacant };
        let is_own = match entry.is_settled {
            true => !open.is_versioned,
            false => self.image(entry.id).is_some_and(|image| image.birth == open.birth),
        };
        if is_own { Target::Own(entry) } else { Target::Shared(entry) }
    }

    #[inline(always)]
    fn images(&self) -> &'a crate::storage::images::Images {
        &self.table.images[self.number]
    }

    #[inline(always)]
    fn fill(&self, row: u32, cell: &Cell<'_>) {
        match cell.embedding {
            Values::Floats(floats) => self.table.rows.embedding.write_floats(row, floats),
            Values::Bytes(bytes) => self.table.rows.embedding.write_bytes(row, bytes),
        }
        self.table.rows.state.write_floats(row, cell.state);
        self.table.rows.set_use(row, cell.used);
    }

    /// Writes a key's content.
    #[inline(always)]
    pub fn write(
        &mut self,
        open: Open,
        (hash, key): (u64, u64),
        target: Target<'_>,
        cell: &Cell<'_>,
    ) -> Result<()> {
        match target {
            Target::Vacant => {
                // All steps that may fail come first, so that a failure leaves nothing half done.
                self.make_room()?;
                let row = self.take_row(false)?;
                // The row is filled before its key leads to it, so that no reader sees an unwritten row.
                self.fill(row, cell);
                if open.is_versioned {
                    self.enter(row, Image::first(open.birth));
                    self.touch(open.birth, key);
                }
                let image = (row, !open.is_versioned);
                self.table.index.put(self.number, &mut self.part.index, (hash, key), image);
                Ok(())
            }
            Target::Own(entry) if entry.id & GONE == 0 => {
                let writing = entry.line.write();
                self.fill(entry.id, cell);
                drop(writing);
                Ok(())
            }
            Target::Own(entry) => {
                // A reader may still read the row that it found before the key was removed.
                let mut writing = entry.line.write();
                self.fill(row_of(entry.id), cell);
                writing.set(entry.slot, row_of(entry.id), false);
                drop(writing);
                self.part.gone -= 1;
                Ok(())
            }
            Target::Shared(entry) => {
                let row = self.take_row(false)?;
                self.fill(row, cell);
                self.replace(open, key, &entry, row);
                self.part.gone -= usize::from(entry.id & GONE != 0);
                Ok(())
            }
        }
    }

    /// Removes a key. Returns whether it was present.
    pub fn remove(&mut self, open: Open, key: u64, target: Target<'_>) -> Result<bool> {
        match target {
            Target::Vacant => return Ok(false),
            Target::Own(entry) | Target::Shared(entry) if entry.id & GONE != 0 => return Ok(false),
            Target::Own(entry) if !open.is_versioned => {
                entry.line.write().remove(entry.slot);
                self.count_removed();
                self.free(entry.id);
                return Ok(true);
            }
            Target::Own(entry) => entry.line.write().set(entry.slot, entry.id | GONE, false),
            Target::Shared(entry) => {
                // A row only for its id. It is free again once every reader sees that the key is gone.
                let row = self.take_row(true)?;
                self.replace(open, key, &entry, row | GONE);
            }
        }
        self.part.gone += 1;
        Ok(true)
    }

    /// Records a missing key as gone, so that this version can state nothing else about it.
    pub fn bury(&mut self, open: Open, (hash, key): (u64, u64), target: Target<'_>) -> Result<()> {
        if !open.is_versioned {
            let text = format!("cannot remove key {key} in the first version: none comes before it");
            return Err(TableError::Version(text));
        }
        if let Target::Shared(entry) = target {
            let row = self.take_row(true)?;
            self.replace(open, key, &entry, row | GONE);
            return Ok(());
        }
        self.make_room()?;
        let row = self.take_row(true)?;
        self.enter(row, Image::first(open.birth));
        self.touch(open.birth, key);
        self.table.index.put(self.number, &mut self.part.index, (hash, key), (row | GONE, false));
        self.part.gone += 1;
        Ok(())
    }

    /// Replaces an image that a version or a reader sees.
    fn replace(&mut self, open: Open, key: u64, entry: &Found<'_>, id: u32) {
        let image = Image { birth: open.birth, older: entry.id, older_is_entered: !entry.is_settled };
        self.enter(row_of(id), image);
        entry.line.write().set(entry.slot, id, false);
        self.touch(open.birth, key);
    }

    /// Makes room for images that are about to be created, in one step.
    pub fn reserve_images(&mut self, birth: u64, count: usize) {
        let replaced = self.images().reserve(&mut self.part.images, count);
        self.replaced.extend(replaced.map(LetGo::Places));
        let keys = &mut self.touched(birth).keys;
        keys.reserve_exact(count);
    }

    /// Prefetches a key's first line.
    #[inline(always)]
    pub fn bring_line_near(&self, key: u64) {
        if let Some(lines) = self.table.index.lines(self.number) {
            prefetch(lines.first(mix(key)));
        }
    }

    fn enter(&mut self, row: u32, image: Image) {
        self.images().expect(image.birth);
        let replaced = self.images().insert(&mut self.part.images, row, image);
        self.replaced.extend(replaced.map(LetGo::Places));
    }

    fn make_room(&mut self) -> Result<()> {
        let replaced = self.table.index.make_room(self.number, &mut self.part.index)?;
        self.replaced.extend(replaced.map(LetGo::Lines));
        Ok(())
    }

    fn touch(&mut self, birth: u64, key: u64) {
        let keys = &mut self.touched(birth).keys;
        if keys.len() == keys.capacity() {
            // Grows by a quarter: doubling would waste as much memory again.
            keys.reserve_exact((keys.len() / 4).max(8));
        }
        keys.push(key);
    }

    /// The line and slot of a key.
    pub fn find(&self, hash: u64, key: u64) -> Option<Found<'a>> {
        self.table.index.find(self.number, hash, key)
    }

    /// The record of an image; None if every reader sees it.
    #[inline(always)]
    pub fn image(&self, id: u32) -> Option<Image> {
        if id == NONE { None } else { self.images().get(row_of(id)) }
    }

    /// Changes the record of an image.
    pub fn set_image(&self, id: u32, image: Image) {
        self.images().set(row_of(id), image);
    }

    /// Declares that nothing in the part was born after `birth`.
    pub fn set_latest(&self, birth: u64) {
        self.images().expect(birth);
    }

    /// Drops an image's record: every reader sees the image, or none does.
    pub fn forget(&mut self, id: u32) {
        self.images().remove(&mut self.part.images, row_of(id));
    }

    /// Frees a row that nothing links to any more.
    pub fn free(&mut self, id: u32) {
        self.freed.push(row_of(id));
    }

    /// The keys with an image born in one version; the list is created if needed.
    pub fn touched(&mut self, birth: u64) -> &mut Touched {
        let touched = &mut self.part.touched;
        let index = touched.partition_point(|entry| entry.birth < birth);
        if touched.get(index).is_none_or(|entry| entry.birth != birth) {
            touched.insert(index, Touched { birth, keys: Vec::new() });
        }
        &mut touched[index]
    }

    /// Reports to the table how many keys came and went since the last report.
    pub fn count_keys(&mut self) {
        let keys = self.part.index.keys() - self.part.gone;
        if keys != self.part.keys_told {
            // The wrapping difference also handles a decrease.
            self.table.keys.fetch_add(keys.wrapping_sub(self.part.keys_told), Ordering::Relaxed);
            self.part.keys_told = keys;
        }
    }

    /// Removes everything in the part.
    pub fn clear(&mut self) {
        let lines = self.table.index.lines(self.number);
        let newest: Vec<u32> = lines.iter().flat_map(|lines| lines.ids()).collect();
        // First the lines are marked as moved, so that a reader who saw removed memory reads again.
        let replaced = self.table.index.clear(self.number, &mut self.part.index);
        self.replaced.extend(replaced.map(LetGo::Lines));
        for mut id in newest {
            while id != NONE {
                let image = self.image(id);
                if image.is_some() {
                    self.forget(id);
                }
                self.free(id);
                id = image.map_or(NONE, |image| image.older);
            }
        }
        self.part.touched.clear();
        self.part.gone = 0;
    }

    /// Updates the number of keys that are present as gone.
    pub fn count_gone(&mut self, before: bool, after: bool) {
        self.part.gone = self.part.gone + usize::from(after) - usize::from(before);
    }

    /// Counts a key that was removed from its line.
    pub fn count_removed(&mut self) {
        self.part.index.count_removed();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.count_keys();
        let replaced = self.images().release(&mut self.part.images);
        self.replaced.extend(replaced.map(LetGo::Places));
        if !self.freed.is_empty() {
            self.replaced.push(LetGo::Rows(std::mem::take(&mut self.freed)));
        }
        if !self.replaced.is_empty() {
            let stamp = self.table.shared.grace.stamp();
            self.part.waiting.extend(self.replaced.drain(..).map(|let_go| (stamp, let_go)));
        }
    }
}

/// The contents of a part in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSize {
    /// Keys that are present in the newest version.
    pub keys: usize,
    /// Keys that are gone in the newest version but still present in an older one.
    pub gone: usize,
    /// Slots for keys, five per line.
    pub slots: usize,
    /// Lines with keys that overflowed into later lines, where a search must continue.
    pub overflows: usize,
    /// Images that not every reader sees.
    pub images: usize,
    /// Rows that are free, or taken and not used yet.
    pub free_rows: usize,
    /// Rows that wait until readers have left.
    pub waiting_rows: usize,
    /// Bytes of the lists of touched keys.
    pub touched_bytes: usize,
    /// Bytes of the sketch of keys that wait for admission.
    pub sketch_bytes: usize,
}

impl PartUse {
    /// The contents of the part in numbers.
    pub fn size(&self) -> PartSize {
        let waiting = self.waiting.iter().map(|(_, let_go)| match let_go {
            LetGo::Rows(rows) => rows.len(),
            _ => 0,
        });
        PartSize {
            keys: self.index.keys() - self.gone,
            gone: self.gone,
            slots: self.index.slots(),
            overflows: self.index.overflows(),
            images: self.images.len(),
            free_rows: self.free_rows + self.chunk.len(),
            waiting_rows: waiting.sum(),
            sketch_bytes: self.sketch.as_ref().map_or(0, |sketch| sketch.counters_bytes()),
            touched_bytes: self.touched.iter().map(|entry| entry.keys.capacity() * 8).sum(),
        }
    }
}
