//! A part held by its lock: what a key's newest image is, how another takes its place, and what is let go of.
//!
//! One rule makes versions: an image is changed where it is only if it was born in the version that is open; else
//! a copy takes its place, and keeps the way back to it. It does not know what rows learn.

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

/// Rows are brought near so many before they are taken.
const AHEAD_ROWS: u32 = 4;
/// Rows are brought near so many before they are linked to be taken again.
const AHEAD_FREED: usize = 16;

/// What is used again once every reader has passed.
enum LetGo {
    Rows(Vec<u32>),
    Lines(Block),
    Places(#[expect(dead_code, reason = "held until dropped")] OldPlaces),
}

/// Keys with an image born in one version.
#[derive(Default)]
pub struct Touched {
    /// The birth of the images.
    pub birth: u64,
    /// Each key once.
    pub keys: Vec<u64>,
}

/// What only the holder of a part's lock sees.
#[derive(Default)]
pub struct PartUse {
    /// Of the lines.
    pub index: IndexUse,
    /// Of the images.
    pub images: ImagesUse,
    /// By birth, oldest first.
    pub touched: Vec<Touched>,
    /// How often keys without a row were seen.
    pub sketch: Option<Box<Sketch>>,
    /// Where expiry goes on: a share of the way round, of 2^64.
    pub hand: u64,
    gone: usize,
    /// Keys there were when the table was last told.
    keys_told: usize,
    chunk: Range<u32>,
    free: u32,
    free_rows: usize,
    waiting: VecDeque<(u64, LetGo)>,
}

/// The part, until it is dropped.
pub struct Held<'a> {
    table: &'a Table,
    number: usize,
    /// What its lock guards.
    pub part: MutexGuard<'a, PartUse>,
    freed: Vec<u32>,
    replaced: Vec<LetGo>,
}

/// What a write does to a key's newest image.
#[derive(Clone, Copy)]
pub enum Target<'a> {
    /// The key is not there.
    Vacant,
    /// The image is nobody else's yet: it is changed where it is.
    Own(Found<'a>),
    /// Someone sees the image: a copy takes its place.
    Shared(Found<'a>),
}

impl Target<'_> {
    /// The row that holds what the key has now; None where it has nothing.
    pub fn row(&self) -> Option<u32> {
        match self {
            Self::Own(found) | Self::Shared(found) if found.id & GONE == 0 => Some(found.id),
            _ => None,
        }
    }

    /// Whether the key was already written in the version that is open.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// An embedding as it is stored.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// Of a table of floats.
    Floats(&'a [f32]),
    /// Of any other.
    Bytes(&'a [u8]),
}

/// What a row is to hold.
pub struct Cell<'a> {
    /// The embedding.
    pub embedding: Values<'a>,
    /// The optimizer's state.
    pub state: &'a [f32],
    /// When and how often it was used.
    pub used: Use,
}

/// What a call writes into: fixed at its beginning, for no version is sealed while a call writes.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// The birth of what it writes.
    pub birth: u64,
    /// Whether there is anyone older images must be kept for.
    pub is_versioned: bool,
    /// What was stamped before this is seen by no reader any more.
    pub passed: u64,
}

impl<'a> Held<'a> {
    /// Take a part's lock.
    pub fn take(table: &'a Table, part: &'a Mutex<PartUse>, number: usize, passed: u64) -> Self {
        let part = part.lock().expect("no holder panics");
        let mut held = Self { table, number, part, freed: Vec::new(), replaced: Vec::new() };
        held.collect(passed);
        held
    }

    /// Use again what no reader sees any more.
    fn collect(&mut self, passed: u64) {
        while self.part.waiting.front().is_some_and(|&(stamp, _)| stamp < passed) {
            match self.part.waiting.pop_front() {
                Some((_, LetGo::Rows(rows))) => self.collect_rows(&rows),
                Some((_, LetGo::Lines(block))) => self.table.index.give(block),
                Some((_, LetGo::Places(_))) | None => {}
            }
        }
    }

    /// Keep a few rows; the others are for any part, or those of a write that failed half way would be lost to all
    /// parts but a few.
    fn collect_rows(&mut self, rows: &[u32]) {
        let embedding = &self.table.rows.embedding;
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&ahead) = rows.get(at + AHEAD_FREED) {
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
            let taken = self.table.rows.take(is_for_gone);
            match taken.ok_or(TableError::Full { rows_max: self.table.settings.rows_max })? {
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
            // The next one leads to the one after it, so that it is needed as soon as it is taken.
            self.bring_near(self.part.free);
            return Ok(row);
        }
        let row = self.part.chunk.next().expect("chunks are not empty");
        prefetch(self.table.rows.embedding.address(row + AHEAD_ROWS));
        Ok(row)
    }

    /// Bring near all that is written of a row when it is taken.
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

    /// What a write to a key does.
    #[inline(always)]
    pub fn target(&self, open: Open, hash: u64, key: u64) -> Target<'a> {
        let Some(found) = self.table.index.find(self.number, hash, key) else { return Target::Vacant };
        let is_own = match found.is_settled {
            true => !open.is_versioned,
            false => self.image(found.id).is_some_and(|image| image.birth == open.birth),
        };
        if is_own { Target::Own(found) } else { Target::Shared(found) }
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

    /// Give a key what a row is to hold.
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
                // All that may fail comes first, so that nothing is half done when it does.
                self.make_room()?;
                let row = self.take_row(false)?;
                // Before its key leads to it: nobody may see a row that was not yet written.
                self.fill(row, cell);
                if open.is_versioned {
                    self.enter(row, Image::first(open.birth));
                    self.touch(open.birth, key);
                }
                let image = (row, !open.is_versioned);
                self.table.index.put(self.number, &mut self.part.index, (hash, key), image);
                Ok(())
            }
            Target::Own(found) if found.id & GONE == 0 => {
                let writing = found.line.write();
                self.fill(found.id, cell);
                drop(writing);
                Ok(())
            }
            Target::Own(found) => {
                // A reader may still be at the row that it found before the key was gone.
                let mut writing = found.line.write();
                self.fill(row_of(found.id), cell);
                writing.set(found.slot, row_of(found.id), false);
                drop(writing);
                self.part.gone -= 1;
                Ok(())
            }
            Target::Shared(found) => {
                let row = self.take_row(false)?;
                self.fill(row, cell);
                self.replace(open, key, &found, row);
                self.part.gone -= usize::from(found.id & GONE != 0);
                Ok(())
            }
        }
    }

    /// Take a key away. Gives whether it was there.
    pub fn remove(&mut self, open: Open, key: u64, target: Target<'_>) -> Result<bool> {
        match target {
            Target::Vacant => return Ok(false),
            Target::Own(found) | Target::Shared(found) if found.id & GONE != 0 => return Ok(false),
            Target::Own(found) if !open.is_versioned => {
                found.line.write().remove(found.slot);
                self.count_removed();
                self.free(found.id);
                return Ok(true);
            }
            Target::Own(found) => found.line.write().set(found.slot, found.id | GONE, false),
            Target::Shared(found) => {
                // A row for the id alone: it is free again when every reader sees that the key is gone.
                let row = self.take_row(true)?;
                self.replace(open, key, &found, row | GONE);
            }
        }
        self.part.gone += 1;
        Ok(true)
    }

    /// Say of a key that is not there that it is gone, so that nothing else can be said of it in this version.
    pub fn bury(&mut self, open: Open, (hash, key): (u64, u64), target: Target<'_>) -> Result<()> {
        if !open.is_versioned {
            let text = format!("key {key} is taken away in a first version, which has nothing before it");
            return Err(TableError::Version(text));
        }
        if let Target::Shared(found) = target {
            let row = self.take_row(true)?;
            self.replace(open, key, &found, row | GONE);
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

    /// Put another image in the place of one that someone sees.
    fn replace(&mut self, open: Open, key: u64, found: &Found<'_>, id: u32) {
        let image = Image { birth: open.birth, older: found.id, older_is_entered: !found.is_settled };
        self.enter(row_of(id), image);
        found.line.write().set(found.slot, id, false);
        self.touch(open.birth, key);
    }

    /// Make room for images that are about to be born, once and not step by step.
    pub fn reserve_images(&mut self, birth: u64, count: usize) {
        let replaced = self.images().reserve(&mut self.part.images, count);
        self.replaced.extend(replaced.map(LetGo::Places));
        let keys = &mut self.touched(birth).keys;
        keys.reserve_exact(count);
    }

    /// Bring near where a key is looked for.
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
            // By a quarter: doubling would keep as much again for nothing.
            keys.reserve_exact((keys.len() / 4).max(8));
        }
        keys.push(key);
    }

    /// Where a key is.
    pub fn find(&self, hash: u64, key: u64) -> Option<Found<'a>> {
        self.table.index.find(self.number, hash, key)
    }

    /// What is known of an image; None when every reader sees it.
    #[inline(always)]
    pub fn image(&self, id: u32) -> Option<Image> {
        if id == NONE { None } else { self.images().get(row_of(id)) }
    }

    /// Change what is known of an image.
    pub fn set_image(&self, id: u32, image: Image) {
        self.images().set(row_of(id), image);
    }

    /// Say that nothing in the part was born after this.
    pub fn set_latest(&self, birth: u64) {
        self.images().expect(birth);
    }

    /// Take an image out of the images: every reader sees it, or nobody.
    pub fn forget(&mut self, id: u32) {
        self.images().remove(&mut self.part.images, row_of(id));
    }

    /// Let go of a row that nothing leads to any more.
    pub fn free(&mut self, id: u32) {
        self.freed.push(row_of(id));
    }

    /// Keys with an image born in one version; the list is made where it is missing.
    pub fn touched(&mut self, birth: u64) -> &mut Touched {
        let touched = &mut self.part.touched;
        let at = touched.partition_point(|one| one.birth < birth);
        if touched.get(at).is_none_or(|one| one.birth != birth) {
            touched.insert(at, Touched { birth, keys: Vec::new() });
        }
        &mut touched[at]
    }

    /// Tell the table how many keys came and went since it was last told.
    pub fn count_keys(&mut self) {
        let keys = self.part.index.keys() - self.part.gone;
        if keys != self.part.keys_told {
            // Wraps round where keys went, and so comes out right.
            self.table.keys.fetch_add(keys.wrapping_sub(self.part.keys_told), Ordering::Relaxed);
            self.part.keys_told = keys;
        }
    }

    /// Let go of everything in the part.
    pub fn clear(&mut self) {
        let lines = self.table.index.lines(self.number);
        let newest: Vec<u32> = lines.iter().flat_map(|lines| lines.ids()).collect();
        // First the lines are said to have moved: a reader who saw some of what goes now reads again.
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

    /// Change how many keys are there as gone.
    pub fn count_gone(&mut self, before: bool, after: bool) {
        self.part.gone = self.part.gone + usize::from(after) - usize::from(before);
    }

    /// Count a key that was taken out of its line.
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

/// What a part holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSize {
    /// Keys that are there in the newest version.
    pub keys: usize,
    /// Keys that are gone in it, and still there for an older one.
    pub gone: usize,
    /// Slots for keys, five a line.
    pub slots: usize,
    /// Lines whose keys may be further on, so that a search does not end with them.
    pub overflows: usize,
    /// Images that not every reader sees.
    pub images: usize,
    /// Rows that are free, or taken and not used yet.
    pub free_rows: usize,
    /// Rows that wait for readers to pass.
    pub waiting_rows: usize,
    /// Bytes of the lists of touched keys.
    pub touched_bytes: usize,
    /// Bytes of the sketches of keys that wait to be admitted.
    pub sketch_bytes: usize,
}

impl PartUse {
    /// What the part holds.
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
            touched_bytes: self.touched.iter().map(|one| one.keys.capacity() * 8).sum(),
        }
    }
}
