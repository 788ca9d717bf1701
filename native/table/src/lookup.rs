//! Reading: a batch of keys to their rows as of a version, without a lock and without waiting.

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
/// Reads of one key before its part's lock is taken.
const READS_MAX: u32 = if cfg!(model) { 1 } else { 64 };

/// Where a key's newest image was found, and the head under which.
#[derive(Clone, Copy)]
struct Seen {
    line: *const Line,
    head: u32,
    id: u32,
    is_settled: bool,
}

/// What a look at a line found.
enum Look {
    Key(Seen),
    Nothing,
    /// It may be in a line further on.
    Further,
    /// A writer is at work here, or was: look again.
    Again,
}

/// A group of keys on their way; what is not written is not read.
struct Group {
    hashes: [u64; GROUP],
    /// The line to look at first, then the one a key was found in; null where there is nothing to hold on to.
    lines: [*const Line; GROUP],
    heads: [u32; GROUP],
    ids: [u32; GROUP],
    /// Which keys are not in their first line.
    further: u64,
    /// Which keys are to be looked for again.
    again: u64,
    /// Which keys have images that not every reader sees.
    unsettled: u64,
}

/// A version of a table being read: what it sees stays until this is dropped. One batch long, for what is let go
/// of meanwhile waits for it.
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
    /// Begin to read a version, the same one of all tables, for whoever packs rows.
    pub fn readings(&self, at: At) -> Result<Vec<Reading<'_>>> {
        // One place for them all: were each table to want its own, readers of several might wait for each other.
        let stay = Arc::new(self.shared().grace.enter());
        let upto = self.shared().upto(at)?;
        let reading = |table| Reading { table, upto, _stay: stay.clone() };
        Ok(self.tables().iter().map(reading).collect())
    }
}

impl Table {
    /// Rows of keys as of a version, one after the other into `out`.
    pub fn lookup(&self, keys: &[u64], at: At, out: &mut [f32], threads: usize) -> Result<()> {
        let dim = self.settings.dim;
        if out.len() != keys.len() * dim {
            let text = format!("{} floats for {} keys: a row is {dim} floats", out.len(), keys.len());
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
            let own = shares.next();
            for (keys, out) in shares {
                // Within the caller's grace, which ends after them.
                scope.spawn(move || self.read(keys, upto, out, dim));
            }
            if let Some((keys, out)) = own {
                self.read(keys, upto, out, dim);
            }
        });
        Ok(())
    }

    /// Rows of keys, each `stride` floats after the one before. Within a grace.
    pub(crate) fn read(&self, keys: &[u64], upto: u64, out: &mut [f32], stride: usize) {
        // A length known when compiled is a loop without a tail.
        match (self.settings.row_type, self.settings.dim) {
            (RowType::F32, 8) => self.read_all::<4>(keys, upto, out, stride),
            (RowType::F32, 16) => self.read_all::<8>(keys, upto, out, stride),
            (RowType::F32, 32) => self.read_all::<16>(keys, upto, out, stride),
            (RowType::F32, 64) => self.read_all::<32>(keys, upto, out, stride),
            _ => self.read_all::<0>(keys, upto, out, stride),
        }
    }

    /// Copy a row out as floats.
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
            // The rows' places are asked for too: they are written faster than they would come by themselves.
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
            // SAFETY: lines stay until a grace after they were replaced, and this is within one.
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

    /// Note what a look found, and bring near what comes of it.
    #[inline(always)]
    fn note<const WORDS: usize>(&self, group: &mut Group, at: usize, look: Look, upto: u64) {
        match look {
            Look::Key(seen) => {
                let row = row_of(seen.id);
                let images = &self.images[part_of(group.hashes[at])];
                if seen.is_settled || upto == NEWEST || images.are_seen(upto) {
                    self.bring_near::<WORDS>(row);
                } else {
                    group.unsettled |= 1 << at;
                    prefetch(images.address(row));
                }
                (group.lines[at], group.heads[at], group.ids[at]) = (seen.line, seen.head, seen.id);
            }
            Look::Nothing => group.lines[at] = std::ptr::null(),
            Look::Further => {
                // Nearly always the next in memory; after the last comes the first, which is then not near.
                prefetch(group.lines[at].wrapping_add(1));
                group.further |= 1 << at;
            }
            Look::Again => {
                group.lines[at] = std::ptr::null();
                group.again |= 1 << at;
            }
        }
    }

    /// Look at a line for a key.
    #[inline(always)]
    fn look(at: *const Line, key: u64) -> Look {
        // SAFETY: lines stay until a grace after they were replaced, and the caller is within one.
        let line = unsafe { &*at };
        let head = line.head();
        if head & (MOVED | WRITING) != 0 {
            return Look::Again;
        }
        match line.find(head, key) {
            Some(slot) => {
                Look::Key(Seen { line: at, head, id: line.id(slot), is_settled: is_settled(head, slot) })
            }
            None if head & OVERFLOW == 0 => Look::Nothing,
            None => Look::Further,
        }
    }

    /// Look for those keys of a group that are not in their first line.
    #[inline(never)]
    fn go_further<const WORDS: usize>(&self, group: &mut Group, keys: &[u64], upto: u64) {
        let mut left = group.further;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let look = self.look_on(group.lines[at], group.hashes[at], keys[at]);
            self.note::<WORDS>(group, at, look, upto);
        }
    }

    /// Look for a key in the lines after one.
    fn look_on(&self, first: *const Line, hash: u64, key: u64) -> Look {
        let Some(lines) = self.index.lines(part_of(hash)).filter(|lines| lines.contains(first)) else {
            return Look::Again;
        };
        let mut at = first;
        loop {
            at = lines.after(at);
            if at == first {
                // Keys that left may have left every line overflowing.
                return Look::Nothing;
            }
            match Self::look(at, key) {
                Look::Further => {}
                found => return found,
            }
        }
    }

    /// From the newest images of a group to those that the reader sees.
    #[inline(never)]
    fn go_back<const WORDS: usize>(&self, group: &mut Group, upto: u64) {
        let mut left = group.unsettled;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let id = self.images[part_of(group.hashes[at])].seen(group.ids[at], upto);
            group.ids[at] = id;
            self.bring_near::<WORDS>(row_of(id));
        }
    }

    /// Read one key until it comes out whole; at the bound with the part's lock, under which nothing changes.
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

    /// Read one key. Gives whether it came out whole.
    fn read_one(&self, key: u64, hash: u64, upto: u64, out: &mut [f32]) -> bool {
        let part = part_of(hash);
        let look = match self.index.lines(part).map(|lines| lines.first(hash)) {
            None => Look::Nothing,
            Some(first) => match Self::look(first, key) {
                Look::Further => self.look_on(first, hash, key),
                found => found,
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
        // SAFETY: lines stay until a grace after they were replaced, and the caller is within one.
        line.is_none_or(|(line, head)| unsafe { &*line }.is_still(head))
    }
}
