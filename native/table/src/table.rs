//! The table: batches of keys to rows, and new rows for keys. What a row learns is not decided here.

use std::io;

use crate::grace::{Grace, Waiting};
use crate::initial::Initial;
use crate::line::{Line, MOVED, OVERFLOW, WRITING};
use crate::part::{Inner, Lines, OldLines, PARTS, Part, mix, part_of};
use crate::rows::Rows;

/// Keys looked up together, so that the memory of all of them is on its way before the first is needed.
const GROUP: usize = 64;
/// Reads of one key before its part's lock is taken.
const READS_MAX: u32 = 64;

/// What a table is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableSettings {
    /// Floats of an embedding.
    pub dim: usize,
    /// Floats of optimizer state a row has.
    pub state: usize,
    /// Rows of keys that were never stored.
    pub initial: Initial,
    /// The most rows, images included.
    pub rows_max: usize,
}

/// What a table holds, and the memory that takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Keys that are stored.
    pub keys: usize,
    /// Bytes of rows handed to parts.
    pub rows_bytes: usize,
    /// Bytes of the index.
    pub index_bytes: usize,
    /// Outgrown indexes that a reader may still look at.
    pub waiting: usize,
}

/// Keys and their rows.
pub struct Table {
    /// What it is made of.
    pub settings: TableSettings,
    rows: Rows,
    parts: Box<[Part]>,
    grace: Grace,
    waiting: Waiting<OldLines>,
}

/// Where a key's newest row was found.
#[derive(Clone, Copy)]
enum Seen<'a> {
    Row { line: &'a Line, head: u32, row: u32 },
    Nothing { line: Option<(&'a Line, u32)> },
    Again,
}

impl Table {
    /// An empty table.
    pub fn new(settings: TableSettings) -> io::Result<Self> {
        Ok(Self {
            settings,
            rows: Rows::new(settings.dim + settings.state, settings.rows_max)?,
            parts: (0..PARTS).map(|_| Part::default()).collect(),
            grace: Grace::default(),
            waiting: Waiting::default(),
        })
    }

    /// Rows of keys; a key that was never stored has its initial row, and stores nothing.
    pub fn lookup(&self, keys: &[u64], out: &mut [f32]) {
        let dim = self.settings.dim;
        assert_eq!(out.len(), keys.len() * dim, "out holds a row of {dim} for every key");
        let _stay = self.grace.enter();
        for (keys, out) in keys.chunks(GROUP).zip(out.chunks_mut(GROUP * dim)) {
            self.lookup_group(keys, out);
        }
    }

    fn lookup_group(&self, keys: &[u64], out: &mut [f32]) {
        let mut places: [(Option<Lines<'_>>, usize); GROUP] = [(None, 0); GROUP];
        let mut seen = [Seen::Again; GROUP];
        for (place, &key) in places.iter_mut().zip(keys) {
            let hash = mix(key);
            if let Some(lines) = self.parts[part_of(hash)].lines() {
                let at = lines.first(hash);
                prefetch(std::ptr::from_ref(lines.line(at)).cast());
                *place = (Some(lines), at);
            }
        }
        for ((seen, &(lines, at)), &key) in seen.iter_mut().zip(&places).zip(keys) {
            *seen = self.see(lines, at, key);
            if let Seen::Row { row, .. } = *seen {
                prefetch(self.rows.address(row));
            }
        }
        for ((&seen, &key), row_out) in seen.iter().zip(keys).zip(out.chunks_mut(self.settings.dim)) {
            if !self.copy(seen, key, row_out) {
                self.lookup_again(key, row_out);
            }
        }
    }

    /// Look for a key in an index.
    #[inline(always)]
    fn see<'a>(&self, lines: Option<Lines<'a>>, mut at: usize, key: u64) -> Seen<'a> {
        let Some(lines) = lines else { return Seen::Nothing { line: None } };
        loop {
            let line = lines.line(at);
            let head = line.head();
            if head & (MOVED | WRITING) != 0 {
                return Seen::Again;
            }
            if let Some(row) = line.find(head, key) {
                return Seen::Row { line, head, row };
            }
            if head & OVERFLOW == 0 {
                return Seen::Nothing { line: Some((line, head)) };
            }
            at = lines.after(at);
        }
    }

    /// Copy what was seen, and say whether it was whole.
    #[inline(always)]
    fn copy(&self, seen: Seen<'_>, key: u64, out: &mut [f32]) -> bool {
        match seen {
            Seen::Row { line, head, row } => {
                self.rows.read(row, out);
                line.is_still(head)
            }
            Seen::Nothing { line } => {
                self.settings.initial.fill(key, out);
                line.is_none_or(|(line, head)| line.is_still(head))
            }
            Seen::Again => false,
        }
    }

    /// Read one key until it comes out whole; at the bound with the part's lock, under which nothing changes.
    #[cold]
    fn lookup_again(&self, key: u64, out: &mut [f32]) {
        let hash = mix(key);
        let part = &self.parts[part_of(hash)];
        for _ in 0..READS_MAX {
            let lines = part.lines();
            let at = lines.map_or(0, |lines| lines.first(hash));
            if self.copy(self.see(lines, at, key), key, out) {
                return;
            }
            std::hint::spin_loop();
        }
        let _held = part.lock();
        let lines = part.lines();
        let at = lines.map_or(0, |lines| lines.first(hash));
        let whole = self.copy(self.see(lines, at, key), key, out);
        assert!(whole, "nothing changes under the lock");
    }

    /// Set rows of keys, as they are, for tables that are brought in.
    pub fn insert(&self, keys: &[u64], rows: &[f32]) -> io::Result<()> {
        let width = self.settings.dim + self.settings.state;
        assert_eq!(rows.len(), keys.len() * width, "rows holds {width} floats for every key");
        let members = ByPart::new(keys);
        for number in 0..PARTS {
            for group in members.of(number).chunks(GROUP) {
                self.insert_group(number, group, keys, rows)?;
            }
        }
        Ok(())
    }

    /// Set rows of some keys of one part, under its lock.
    fn insert_group(&self, number: usize, group: &[u32], keys: &[u64], rows: &[f32]) -> io::Result<()> {
        let (part, width) = (&self.parts[number], self.settings.dim + self.settings.state);
        let mut inner = part.lock();
        drop(self.waiting.take(&self.grace));
        if let Some(lines) = part.lines() {
            for &member in group {
                prefetch(std::ptr::from_ref(lines.line(lines.first(mix(keys[member as usize])))).cast());
            }
        }
        for &member in group {
            self.set_row(part, &mut inner, keys[member as usize], &rows[member as usize * width..][..width])?;
        }
        Ok(())
    }

    /// Set the row of one key, under the lock of its part.
    fn set_row(&self, part: &Part, inner: &mut Inner, key: u64, floats: &[f32]) -> io::Result<()> {
        let hash = mix(key);
        if let Some((at, row)) = part.find(hash, key) {
            let lines = part.lines().expect("the key is in it");
            let writing = lines.line(at).write();
            self.rows.write(row, floats);
            drop(writing);
            return Ok(());
        }
        let row = inner.take_row(|| self.rows.take_chunk());
        let row =
            row.ok_or_else(|| io::Error::other(format!("all {} rows are taken", self.settings.rows_max)))?;
        // Before its key leads to it: nobody may see a row that was not yet written.
        self.rows.write(row, floats);
        if let Some(old) = part.insert(inner, hash, key, row)? {
            self.waiting.put(&self.grace, old);
        }
        Ok(())
    }

    /// What it holds, and the memory that takes.
    pub fn size(&self) -> TableSize {
        let mut size =
            TableSize { rows_bytes: self.rows.taken() * self.rows.row_bytes(), ..TableSize::default() };
        for part in &self.parts {
            size.keys += part.lock().keys();
            size.index_bytes += part.index_bytes();
        }
        size.waiting = self.waiting.len();
        size
    }
}

#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Members of a batch by their part: one counting sort, so that a part is locked once for all of its own.
struct ByPart {
    members: Vec<u32>,
    bounds: Vec<u32>,
}

impl ByPart {
    fn new(keys: &[u64]) -> Self {
        let mut bounds = vec![0u32; PARTS + 1];
        let parts: Vec<u16> = keys.iter().map(|&key| part_of(mix(key)) as u16).collect();
        parts.iter().for_each(|&part| bounds[part as usize + 1] += 1);
        for part in 0..PARTS {
            bounds[part + 1] += bounds[part];
        }
        let (mut next, mut members) = (bounds.clone(), vec![0; keys.len()]);
        for (member, &part) in parts.iter().enumerate() {
            members[next[part as usize] as usize] = member as u32;
            next[part as usize] += 1;
        }
        Self { members, bounds }
    }

    /// Members of one part, in the order they were given.
    fn of(&self, part: usize) -> &[u32] {
        &self.members[self.bounds[part] as usize..self.bounds[part + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows_max: usize) -> Table {
        let initial = Initial { seed: 3, range: 0.1 };
        Table::new(TableSettings { dim: 3, state: 0, initial, rows_max }).unwrap()
    }

    #[test]
    fn rows_are_what_was_set_and_initial_where_nothing_was() {
        let table = table(1 << 20);
        let keys: Vec<u64> = (0..50_000).map(|key| key * 3).collect();
        let rows: Vec<f32> = (0..keys.len() * 3).map(|at| at as f32).collect();
        table.insert(&keys, &rows).unwrap();
        let mut out = vec![0.0; rows.len()];
        table.lookup(&keys, &mut out);
        assert_eq!(out, rows);
        let (mut found, mut initial) = ([0.0; 3], [0.0; 3]);
        table.lookup(&[1], &mut found);
        table.settings.initial.fill(1, &mut initial);
        assert_eq!(found, initial);
        assert_eq!(table.size().keys, keys.len());
    }

    #[test]
    fn readers_see_whole_rows_while_a_writer_writes_and_grows() {
        let table = table(1 << 20);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut out, mut seen) = (vec![0.0; 300], 0);
                while !done.load(std::sync::atomic::Ordering::Relaxed) || seen == 0 {
                    let keys: Vec<u64> = (0..100).map(|key| key * 17).collect();
                    table.lookup(&keys, &mut out);
                    for (key, row) in keys.iter().zip(out.chunks(3)) {
                        let mut initial = [0.0; 3];
                        table.settings.initial.fill(*key, &mut initial);
                        assert!(
                            row == initial || (row[0] >= 1.0 && row.iter().all(|&one| one == row[0])),
                            "{row:?}"
                        );
                    }
                    seen += 1;
                }
                seen
            });
            for round in 1..40 {
                let keys: Vec<u64> = (0..round * 500).collect();
                let rows: Vec<f32> = keys.iter().flat_map(|_| [round as f32; 3]).collect();
                table.insert(&keys, &rows).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    }
}
