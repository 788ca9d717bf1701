//! One part of a table: the index of the keys whose hash begins with its number, and the lock of whoever changes it.
//!
//! Readers take no lock. The index grows alone, a part at a time, so that no reader and no other part waits for it.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::line::{Line, MOVED, OCCUPIED, OVERFLOW, SLOTS, WRITING};
use crate::memory::Reserved;

/// Parts of a table, for ever.
pub const PARTS: usize = 1024;
const PART_BITS: u32 = PARTS.trailing_zeros();
const LINE_BYTES: usize = size_of::<Line>();
const LINES_MIN: usize = 8;
/// An address of a line fits in so many bits, for lines lie on 64 bytes and addresses have 48 bits.
const COUNT_BITS: u32 = 22;
/// The most lines of a part: about 18 billion keys a table.
pub const LINES_MAX: usize = (1 << COUNT_BITS) - 1;

/// A key's place: any 64 bits are a key, so they are mixed before their bits mean anything.
#[inline(always)]
pub fn mix(key: u64) -> u64 {
    let mut hash = key ^ (key >> 33);
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The part of a mixed key.
#[inline(always)]
pub fn part_of(hash: u64) -> usize {
    (hash >> (64 - PART_BITS)) as usize
}

/// An index: lines in the order of their keys' hashes, so that growing it is one pass through memory.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    begin: *const Line,
    count: usize,
    part: PhantomData<&'a Part>,
}

impl<'a> Lines<'a> {
    /// Where a key is looked for first; there is at least one line.
    #[inline(always)]
    pub fn first(&self, hash: u64) -> usize {
        ((u128::from(hash << PART_BITS) * self.count as u128) >> 64) as usize
    }

    /// A line.
    #[inline(always)]
    pub fn line(&self, at: usize) -> &'a Line {
        debug_assert!(at < self.count);
        // SAFETY: the index has `count` lines, and stays until a grace after it was replaced.
        unsafe { &*self.begin.add(at) }
    }

    /// The line after one; the last is followed by the first.
    #[inline(always)]
    pub fn after(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }
}

/// A part.
#[repr(align(64))]
pub struct Part {
    /// Address and count of the lines in one word, so that readers never see one without the other.
    lines: AtomicU64,
    inner: Mutex<Inner>,
}

/// What only the holder of a part's lock sees.
pub struct Inner {
    memory: Option<Reserved>,
    keys: usize,
    keys_max: usize,
    chunk: Range<u32>,
}

/// An index that was replaced; drop it after its readers' grace.
pub type OldLines = Reserved;

impl Default for Part {
    fn default() -> Self {
        let inner = Inner { memory: None, keys: 0, keys_max: 0, chunk: 0..0 };
        Self { lines: AtomicU64::new(0), inner: Mutex::new(inner) }
    }
}

impl Part {
    /// The index as it is now; None while the part has no keys.
    #[inline(always)]
    pub fn lines(&self) -> Option<Lines<'_>> {
        let word = self.lines.load(Ordering::Acquire);
        let begin = ((word >> COUNT_BITS) << 6) as *const Line;
        (word != 0).then_some(Lines { begin, count: (word & LINES_MAX as u64) as usize, part: PhantomData })
    }

    /// Take the lock: one writer a part.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }

    /// The line and the row of a key, while holding the lock.
    pub fn find(&self, hash: u64, key: u64) -> Option<(usize, u32)> {
        let lines = self.lines()?;
        let mut at = lines.first(hash);
        loop {
            let line = lines.line(at);
            let head = line.head();
            if let Some(row) = line.find(head, key) {
                return Some((at, row));
            }
            if head & OVERFLOW == 0 {
                return None;
            }
            at = lines.after(at);
        }
    }

    /// Put a key there is not, with its row; grows first when the index is full. Gives the index it replaced.
    pub fn insert(&self, inner: &mut Inner, hash: u64, key: u64, row: u32) -> io::Result<Option<OldLines>> {
        let replaced = if inner.keys == inner.keys_max { self.grow(inner)? } else { None };
        let lines = self.lines().expect("growing made lines");
        inner.keys += 1;
        put(&lines, hash, key, row);
        Ok(replaced)
    }

    fn grow(&self, inner: &mut Inner) -> io::Result<Option<OldLines>> {
        let old = self.lines();
        let now = old.map_or(0, |lines| lines.count);
        // An eighth at a time keeps lines full; the pass is sequential on both sides, so it stays short.
        let count = (now + now / 8 + 1).max(LINES_MIN);
        if count > LINES_MAX {
            return Err(io::Error::other(format!("a part of {count} lines: the table is full")));
        }
        self.rebuild(inner, old, count)
    }

    fn rebuild(
        &self,
        inner: &mut Inner,
        old: Option<Lines<'_>>,
        count: usize,
    ) -> io::Result<Option<OldLines>> {
        let memory = Reserved::new(count * LINE_BYTES)?;
        let fresh = Lines { begin: memory.begin().cast(), count, part: PhantomData };
        for line in old.iter().flat_map(|lines| (0..lines.count).map(|at| lines.line(at))) {
            let head = line.head();
            for slot in (0..SLOTS).filter(|slot| head & OCCUPIED & (1 << slot) != 0) {
                let key = line.key(slot);
                put(&fresh, mix(key), key, line.row(slot));
            }
        }
        let address = memory.begin() as u64;
        debug_assert!(address % 64 == 0 && address >> 48 == 0);
        self.lines.store(((address >> 6) << COUNT_BITS) | count as u64, Ordering::Release);
        // Only now may anything change: whoever still reads the old lines finds them moved and looks again.
        for line in old.iter().flat_map(|lines| (0..lines.count).map(|at| lines.line(at))) {
            line.write().set_moved();
        }
        // Lines fill unevenly; part of them overflows long before all are full.
        inner.keys_max = count * SLOTS * 17 / 20;
        Ok(inner.memory.replace(memory))
    }

    /// Bytes of the index.
    pub fn index_bytes(&self) -> usize {
        self.lines().map_or(0, |lines| lines.count * LINE_BYTES)
    }
}

impl Inner {
    /// A row nobody uses; `more` gives a chunk of the table's when the part has none left.
    pub fn take_row(&mut self, more: impl FnOnce() -> Option<Range<u32>>) -> Option<u32> {
        if self.chunk.is_empty() {
            self.chunk = more()?;
        }
        self.chunk.next()
    }

    /// Keys there are.
    pub fn keys(&self) -> usize {
        self.keys
    }
}

/// Put a key into the first line from its own on that has a free slot.
fn put(lines: &Lines<'_>, hash: u64, key: u64, row: u32) {
    let mut at = lines.first(hash);
    loop {
        let line = lines.line(at);
        let head = line.head();
        debug_assert!(head & (WRITING | MOVED) == 0);
        let free = !head & OCCUPIED;
        if free != 0 {
            line.write().put(free.trailing_zeros() as usize, key, row);
            return;
        }
        if head & OVERFLOW == 0 {
            line.write().set_overflow();
        }
        at = lines.after(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_finds_what_was_put_and_nothing_else_while_it_grows() {
        let part = Part::default();
        let mut inner = part.lock();
        for key in 0..20_000u64 {
            assert_eq!(part.find(mix(key), key), None);
            part.insert(&mut inner, mix(key), key, key as u32 + 1).unwrap();
        }
        assert_eq!(inner.keys(), 20_000);
        for key in 0..20_000u64 {
            assert_eq!(part.find(mix(key), key).map(|(_, row)| row), Some(key as u32 + 1));
        }
        assert_eq!(part.find(mix(20_000), 20_000), None);
    }

    #[test]
    fn every_64_bits_are_a_key() {
        let part = Part::default();
        let mut inner = part.lock();
        for (row, key) in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63].into_iter().enumerate() {
            part.insert(&mut inner, mix(key), key, row as u32).unwrap();
        }
        for (row, key) in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63].into_iter().enumerate() {
            assert_eq!(part.find(mix(key), key).unwrap().1, row as u32);
        }
    }
}
