//! Lookup: reads the rows of a batch of keys as of a version, without locks and without waiting.

use std::sync::Arc;

use crate::batch::THREADS_MAX;
use crate::error::{Result, TableError};
use crate::pack::{GROUP, ReadRows};
use crate::set::TableSet;
use crate::storage::grace::Stay;
use crate::storage::images::{GONE, NONE, row_of};
use crate::storage::index::{mix, part_of};
use crate::storage::line::{Line, MOVED, OVERFLOW, WRITING, is_settled};
use crate::storage::prefetch::{prefetch, prefetch_row};
use crate::storage::row_type::RowType;
use crate::storage::sync::spin_loop;
use crate::table::{DIM_MAX, Table};
use crate::table_set::{At, NEWEST};

/// Bytes of the widest row that is not stored as floats.
const STORED_BYTES_MAX: usize = 2 * DIM_MAX + 8;
/// Attempts to read a key before its part's lock is taken.
const READS_MAX: u32 = if cfg!(feature = "model") { 1 } else { 64 };

/// The line and slot of a key's newest image, and the head under which it was read.
#[derive(Clone, Copy)]
struct Seen {
    line: *const Line,
    head: u32,
    id: u32,
    is_settled: bool,
}

/// The result of looking into a line.
enum Look {
    Key(Seen),
    Nothing,
    /// The key may be in a later line.
    Further,
    /// A writer is or was at work in the line: look again.
    Again,
}

/// A group of keys being read.
struct Group {
    hashes: [u64; GROUP],
    /// The first line of each key, then the line that has the key; null if no line has to be rechecked.
    lines: [*const Line; GROUP],
    heads: [u32; GROUP],
    ids: [u32; GROUP],
    /// The keys that are not in their first line.
    further: u64,
    /// The keys that must be read again.
    again: u64,
    /// The keys with images that not every reader sees.
    unsettled: u64,
}

/// A read of one version of a table. Rows that it sees stay until it is dropped. Keep it for one batch only,
/// since retired memory waits for it.
pub struct Reading<'a> {
    table: &'a Table,
    upto: u64,
    _stay: Arc<Stay<'a>>,
}

impl ReadRows for Reading<'_> {
    fn dim(&self) -> usize {
        self.table.settings.dim
    }

    fn read(&self, keys: &[u64], into: &mut [f32]) {
        self.table.read(keys, self.upto, into, self.table.settings.dim);
    }

    fn read_strided(&self, keys: &[u64], into: &mut [f32], stride: usize) {
        self.table.read(keys, self.upto, into, stride);
    }
}

impl TableSet {
    /// Starts to read the same version of all tables, for packing rows.
    pub fn readings(&self, at: At) -> Result<Vec<Reading<'_>>> {
        // All readings share one stay. With one per table, readers of several tables could wait for each
        // other.
        let stay = Arc::new(self.shared().grace.enter());
        let upto = self.shared().upto(at)?;
        let reading = |table| Reading { table, upto, _stay: stay.clone() };
        Ok(self.tables().iter().map(reading).collect())
    }
}

impl Table {
    /// Writes the rows of keys as of a version, one after the other, into `out`.
    pub fn lookup(&self, keys: &[u64], at: At, out: &mut [f32], threads: usize) -> Result<()> {
        let dim = self.settings.dim;
        if out.len() != keys.len() * dim {
            let text = format!("{} floats for {} keys; a row has {dim} floats", out.len(), keys.len());
            return Err(TableError::Argument(text));
        }
        let _stay = self.shared.grace.enter();
        let upto = self.shared.upto(at)?;
        let threads = threads.min(THREADS_MAX);
        let share = keys.len().div_ceil(threads.max(1)).next_multiple_of(GROUP).max(16 * GROUP);
        if threads <= 1 || keys.len() <= share {
            self.read(keys, upto, out, dim);
            return Ok(());
        }
        std::thread::scope(|scope| {
            let mut shares = keys.chunks(share).zip(out.chunks_mut(share * dim));
            let own_share = shares.next();
            for (keys, out) in shares {
                // Covered by the caller's grace period, which ends after these threads.
                scope.spawn(move || self.read(keys, upto, out, dim));
            }
            if let Some((keys, out)) = own_share {
                self.read(keys, upto, out, dim);
            }
        });
        Ok(())
    }

    /// Reads rows, each `stride` floats after the one before. The caller is within a grace period.
    pub(crate) fn read(&self, keys: &[u64], upto: u64, out: &mut [f32], stride: usize) {
        // A length known at compile time gives a loop without a tail.
        match (self.settings.row_type, self.settings.dim) {
            (RowType::F32, 8) => self.read_all::<4>(keys, upto, out, stride),
            (RowType::F32, 16) => self.read_all::<8>(keys, upto, out, stride),
            (RowType::F32, 32) => self.read_all::<16>(keys, upto, out, stride),
            (RowType::F32, 64) => self.read_all::<32>(keys, upto, out, stride),
            _ => self.read_all::<0>(keys, upto, out, stride),
        }
    }

    /// Copies a row out as floats.
    #[inline(always)]
    fn copy<const WORDS: usize>(&self, row: u32, out: &mut [f32]) {
        if WORDS > 0 {
            return self.rows.embedding.read_words::<WORDS>(row, out);
        }
        match self.settings.row_type {
            RowType::F32 => self.rows.embedding.read_floats(row, out),
            row_type => {
                let mut stored = [0; STORED_BYTES_MAX];
                let stored = &mut stored[..row_type.row_bytes(out.len())];
                self.rows.embedding.read_bytes(row, stored);
                row_type.decode(stored, out);
            }
        }
    }

    fn read_all<const WORDS: usize>(&self, keys: &[u64], upto: u64, out: &mut [f32], stride: usize) {
        for (keys, out) in keys.chunks(GROUP).zip(out.chunks_mut(GROUP * stride)) {
            self.read_group::<WORDS>(keys, upto, out, stride);
        }
    }

    #[inline(always)]
    fn read_group<const WORDS: usize>(&self, keys: &[u64], upto: u64, out: &mut [f32], stride: usize) {
        let dim = if WORDS == 0 { self.settings.dim } else { 2 * WORDS };
        let mut group = Group {
            hashes: [0; GROUP],
            lines: [std::ptr::null(); GROUP],
            heads: [0; GROUP],
            ids: [NONE; GROUP],
            further: 0,
            again: 0,
            unsettled: 0,
        };
        for (at, &key) in keys.iter().enumerate() {
            let hash = mix(key);
            group.hashes[at] = hash;
            if let Some(lines) = self.index.lines(part_of(hash)) {
                let line = lines.first(hash);
                prefetch(line);
                group.lines[at] = line;
            }
        }
        for (at, &key) in keys.iter().enumerate() {
            if !group.lines[at].is_null() {
                let look = Self::look(group.lines[at], key);
                self.note::<WORDS>(&mut group, at, look, upto);
            }
            // The destination is prefetched too, since the rows are written faster than it would arrive by
            // itself.
            prefetch_row(out[at * stride..].as_ptr(), dim);
        }
        if group.further != 0 {
            self.go_further::<WORDS>(&mut group, keys, upto);
        }
        if group.unsettled != 0 {
            self.go_back::<WORDS>(&mut group, upto);
        }
        for (at, (&key, row)) in keys.iter().zip(out.chunks_mut(stride)).enumerate() {
            let (id, row) = (group.ids[at], &mut row[..dim]);
            if id == NONE || id & GONE != 0 {
                self.settings.initial.fill(key, row);
            } else {
                self.copy::<WORDS>(id, row);
            }
            let line = group.lines[at];
            // SAFETY: lines stay for a grace period after they were replaced, and this is within one.
            if !line.is_null() && !unsafe { &*line }.is_still(group.heads[at]) {
                group.again |= 1 << at;
            }
        }
        while group.again != 0 {
            let at = group.again.trailing_zeros() as usize;
            group.again &= group.again - 1;
            self.read_again(keys[at], group.hashes[at], upto, &mut out[at * stride..][..dim]);
        }
    }

    #[inline(always)]
    fn bring_near<const WORDS: usize>(&self, row: u32) {
        let floats = if WORDS > 0 { 2 * WORDS } else { self.rows.embedding.row_bytes() / 4 };
        prefetch_row(self.rows.embedding.address(row).cast(), floats);
    }

    /// Records the result of a look and prefetches what it leads to.
    #[inline(always)]
    fn note<const WORDS: usize>(&self, group: &mut Group, index: usize, look: Look, upto: u64) {
        match look {
            Look::Key(seen) => {
                let row = row_of(seen.id);
                let images = &self.images[part_of(group.hashes[index])];
                if seen.is_settled || upto == NEWEST || images.are_seen(upto) {
                    self.bring_near::<WORDS>(row);
                } else {
                    group.unsettled |= 1 << index;
                    prefetch(images.address(row));
                }
                (group.lines[index], group.heads[index], group.ids[index]) = (seen.line, seen.head, seen.id);
            }
            Look::Nothing => group.lines[index] = std::ptr::null(),
            Look::Further => {
                // Nearly always the next line in memory; after the last line comes the first, which is not
                // prefetched.
                prefetch(group.lines[index].wrapping_add(1));
                group.further |= 1 << index;
            }
            Look::Again => {
                group.lines[index] = std::ptr::null();
                group.again |= 1 << index;
            }
        }
    }

    /// Looks for a key in a line.
    #[inline(always)]
    fn look(address: *const Line, key: u64) -> Look {
        // SAFETY: lines stay for a grace period after they were replaced, and the caller is within one.
        let line = unsafe { &*address };
        let head = line.head();
        if head & (MOVED | WRITING) != 0 {
            return Look::Again;
        }
        match line.find(head, key) {
            Some(slot) => {
                Look::Key(Seen { line: address, head, id: line.id(slot), is_settled: is_settled(head, slot) })
            }
            None if head & OVERFLOW == 0 => Look::Nothing,
            None => Look::Further,
        }
    }

    /// Looks for the keys of a group that are not in their first line.
    #[inline(never)]
    fn go_further<const WORDS: usize>(&self, group: &mut Group, keys: &[u64], upto: u64) {
        let mut remaining = group.further;
        while remaining != 0 {
            let index = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            let look = self.look_on(group.lines[index], group.hashes[index], keys[index]);
            self.note::<WORDS>(group, index, look, upto);
        }
    }

    /// Looks for a key in the lines after `first`.
    fn look_on(&self, first: *const Line, hash: u64, key: u64) -> Look {
        let Some(lines) = self.index.lines(part_of(hash)).filter(|lines| lines.contains(first)) else {
            return Look::Again;
        };
        let mut at = first;
        loop {
            at = lines.after(at);
            if at == first {
                // Removed keys may have left every line marked as overflowing.
                return Look::Nothing;
            }
            match Self::look(at, key) {
                Look::Further => {}
                look => return look,
            }
        }
    }

    /// Goes from the newest images of a group back to those that the reader sees.
    #[inline(never)]
    fn go_back<const WORDS: usize>(&self, group: &mut Group, upto: u64) {
        let mut remaining = group.unsettled;
        while remaining != 0 {
            let index = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            let id = self.images[part_of(group.hashes[index])].seen(group.ids[index], upto);
            group.ids[index] = id;
            self.bring_near::<WORDS>(row_of(id));
        }
    }

    /// Reads one key until the read is consistent; after the last attempt under the part's lock, where
    /// nothing changes.
    #[cold]
    fn read_again(&self, key: u64, hash: u64, upto: u64, out: &mut [f32]) {
        for _ in 0..READS_MAX {
            if self.read_one(key, hash, upto, out) {
                return;
            }
            spin_loop();
        }
        let _held = self.lock(part_of(hash));
        assert!(self.read_one(key, hash, upto, out), "nothing changes under the lock");
    }

    /// Reads one key. Returns whether the read was consistent.
    fn read_one(&self, key: u64, hash: u64, upto: u64, out: &mut [f32]) -> bool {
        let part = part_of(hash);
        let look = match self.index.lines(part).map(|lines| lines.first(hash)) {
            None => Look::Nothing,
            Some(first) => match Self::look(first, key) {
                Look::Further => self.look_on(first, hash, key),
                look => look,
            },
        };
        let (line, id) = match look {
            Look::Again | Look::Further => return false,
            Look::Nothing => (None, NONE),
            Look::Key(seen) if seen.is_settled => (Some((seen.line, seen.head)), seen.id),
            Look::Key(seen) => (Some((seen.line, seen.head)), self.images[part].seen(seen.id, upto)),
        };
        if id == NONE || id & GONE != 0 {
            self.settings.initial.fill(key, out);
        } else {
            self.copy::<0>(id, out);
        }
        // SAFETY: lines stay for a grace period after they were replaced, and the caller is within one.
        line.is_none_or(|(line, head)| unsafe { &*line }.is_still(head))
    }
}
