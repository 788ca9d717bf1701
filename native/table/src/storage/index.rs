//! The index: for each part, the lines that lead from its keys to their newest images.
//!
//! Readers take no lock. A part's lines grow alone, so that no reader and no other part waits for it.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::storage::line::{Line, OCCUPIED, OVERFLOW, SLOTS, Writing, is_settled};
use crate::storage::sheets::{Block, PHASES, Sheets, Size};
use crate::storage::sync::{AtomicU64, Mutex};

/// Parts of a table, for ever.
pub const PARTS: usize = if cfg!(model) { 2 } else { 1024 };
const PART_BITS: u32 = PARTS.trailing_zeros();
/// An address of a line fits in so many bits, for lines lie on 64 bytes and addresses have 48 bits.
const COUNT_BITS: u32 = 22;
/// The most lines of a part: about 18 billion keys a table.
const LINES_MAX: usize = (1 << COUNT_BITS) - 1;
/// How full a part's slots are when it grows, in thousandths.
const FULL_PER_MILLE: usize = 870;

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

/// The part of a key as it is, for those who send keys to whoever owns their part.
#[must_use]
pub fn part_of_key(key: u64) -> usize {
    part_of(mix(key))
}

/// The lines of a part, in the order of their keys' hashes, so that growing is one pass through memory.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    begin: *const Line,
    count: usize,
    index: PhantomData<&'a Index>,
}

/// Where a key was found.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    /// Its line.
    pub line: &'a Line,
    /// Its slot there.
    pub slot: usize,
    /// The id of its newest image.
    pub id: u32,
    /// Whether that is its only image, seen by every reader.
    pub is_settled: bool,
}

impl<'a> Lines<'a> {
    /// Where a key is looked for first; there is at least one line.
    #[inline(always)]
    pub fn first(&self, hash: u64) -> *const Line {
        let at = ((u128::from(hash << PART_BITS) * self.count as u128) >> 64) as usize;
        // SAFETY: `at` is below `count`, for it is a fraction of it.
        unsafe { self.begin.add(at) }
    }

    /// A line of this index.
    #[inline(always)]
    pub fn line(&self, at: *const Line) -> &'a Line {
        debug_assert!(self.contains(at));
        // SAFETY: it came from `first` or `after`, and lines stay until a grace after they were replaced.
        unsafe { &*at }
    }

    /// The line after one; the last is followed by the first.
    #[inline(always)]
    pub fn after(&self, at: *const Line) -> *const Line {
        let next = at.wrapping_add(1);
        if next == self.begin.wrapping_add(self.count) { self.begin } else { next }
    }

    /// A line by its number.
    pub fn nth(&self, number: usize) -> &'a Line {
        assert!(number < self.count);
        self.line(self.begin.wrapping_add(number))
    }

    /// Say of all lines that they overflowed.
    #[cfg(test)]
    pub fn all_overflow(&self) {
        self.iter().for_each(|line| line.write().set_overflow());
    }

    /// Whether a line is one of these.
    #[inline(always)]
    pub fn contains(&self, at: *const Line) -> bool {
        (self.begin..self.begin.wrapping_add(self.count)).contains(&at)
    }

    /// Keys whose place in the part, of 2^64, is from `begin` up to `end`, and their newest images.
    pub fn between(self, begin: u128, end: u128) -> impl Iterator<Item = (u64, u32)> {
        let number = |place: u128| ((place * self.count as u128) >> 64) as usize;
        let (first, last) = (number(begin), number(end.max(1) - 1));
        // Those that found their own line full are further on, and the lines up to there say so.
        let goes_on = move |&(at, number): &(usize, usize)| {
            at <= last - first || self.nth((number + self.count - 1) % self.count).head() & OVERFLOW != 0
        };
        let lines = (0..self.count).map(move |at| (at, (first + at) % self.count)).take_while(goes_on);
        let keys = lines.flat_map(move |(_, number)| {
            let line = self.nth(number);
            (0..SLOTS)
                .filter(|slot| line.head() & (1 << slot) != 0)
                .map(|slot| (line.key(slot), line.id(slot)))
        });
        keys.filter(move |&(key, _)| (begin..end).contains(&u128::from(mix(key) << PART_BITS)))
    }

    /// All keys, such that any first ones of them are from all over the part: put into fewer lines in the order of
    /// their hashes, they would crowd the first of those, and each would be looked for past all before it.
    pub fn keys_spread(&self) -> impl Iterator<Item = u64> {
        let step = stride(self.count);
        let slots = |line: &'a Line| (0..SLOTS).filter(|slot| line.head() & (1 << slot) != 0);
        (0..self.count)
            .map(move |at| self.nth((at as u64 * step as u64 % self.count as u64) as usize))
            .flat_map(move |line| slots(line).map(|slot| line.key(slot)))
    }

    /// The newest images of all keys.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        let slots = |line: &'a Line| (0..SLOTS).filter(|slot| line.head() & (1 << slot) != 0);
        self.iter().flat_map(move |line| slots(line).map(|slot| line.id(slot)))
    }

    fn iter(self) -> impl Iterator<Item = &'a Line> {
        (0..self.count).map(move |number| self.nth(number))
    }
}

/// The lines of all parts of a table. Who changes a part's holds that part's lock.
pub struct Index {
    /// Address and count of a part's lines in one word, so that readers never see one without the other.
    words: Box<[AtomicU64]>,
    sheets: Mutex<Sheets>,
}

/// What only the holder of a part's lock knows of its lines.
#[derive(Default)]
pub struct IndexUse {
    block: Option<Block>,
    keys: usize,
    keys_max: usize,
    overflows: usize,
    removed: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self { words: (0..PARTS).map(|_| AtomicU64::new(0)).collect(), sheets: Mutex::default() }
    }
}

impl Index {
    /// A part's lines as they are now; None while it has no keys.
    #[inline(always)]
    pub fn lines(&self, part: usize) -> Option<Lines<'_>> {
        let word = self.words[part].load(Ordering::Acquire);
        let begin = ((word >> COUNT_BITS) << 6) as *const Line;
        (word != 0).then_some(Lines { begin, count: (word & LINES_MAX as u64) as usize, index: PhantomData })
    }

    /// Where a key is, for the holder of its part's lock.
    #[inline(always)]
    pub fn find(&self, part: usize, hash: u64, key: u64) -> Option<Found<'_>> {
        let lines = self.lines(part)?;
        let first = lines.first(hash);
        let mut at = first;
        loop {
            let line = lines.line(at);
            let head = line.head();
            if let Some(slot) = line.find(head, key) {
                let found = Found { line, slot, id: line.id(slot), is_settled: is_settled(head, slot) };
                return Some(found);
            }
            at = lines.after(at);
            // Keys that left may have left every line overflowing.
            if head & OVERFLOW == 0 || at == first {
                return None;
            }
        }
    }

    /// Put in a key there is not, where room was made.
    pub fn put(
        &self,
        part: usize,
        held: &mut IndexUse,
        (hash, key): (u64, u64),
        (id, is_settled): (u32, bool),
    ) {
        let lines = self.lines(part).expect("there is room, so there are lines");
        held.keys += 1;
        held.overflows += put(&lines, (hash, key), (id, is_settled), Line::write);
    }

    /// Make room for one more key: lines that are full grow. Gives the lines it replaced.
    pub fn make_room(&self, part: usize, held: &mut IndexUse) -> io::Result<Option<Block>> {
        let size = match &held.block {
            None => Size::smallest(part * PHASES / PARTS),
            Some(block) if held.keys >= held.keys_max => block.size.larger(),
            // Lines that overflowed stay so when their keys leave: under churn every probe would grow long.
            Some(block)
                if held.removed >= held.keys_max / 4 && held.overflows >= block.size.lines() * 3 / 5 =>
            {
                block.size
            }
            Some(_) => return Ok(None),
        };
        if size.lines() > LINES_MAX {
            return Err(io::Error::other(format!("a part of {} lines: the table is full", size.lines())));
        }
        self.rebuild(part, held, size)
    }

    fn rebuild(&self, part: usize, held: &mut IndexUse, size: Size) -> io::Result<Option<Block>> {
        let block = self.sheets.lock().expect("no holder panics").take(size)?;
        block.clear();
        let fresh = Lines { begin: block.begin.cast(), count: size.lines(), index: PhantomData };
        let old = self.lines(part);
        (held.overflows, held.removed) = (0, 0);
        for line in old.into_iter().flat_map(Lines::iter) {
            let head = line.head();
            for slot in (0..SLOTS).filter(|slot| head & OCCUPIED & (1 << slot) != 0) {
                let key = line.key(slot);
                let image = (line.id(slot), is_settled(head, slot));
                held.overflows += put(&fresh, (mix(key), key), image, Line::begin);
            }
        }
        let address = block.begin as u64;
        debug_assert!(address % 64 == 0 && address >> 48 == 0);
        self.words[part].store(((address >> 6) << COUNT_BITS) | fresh.count as u64, Ordering::Release);
        // Only now may anything change: whoever still reads the old lines finds them moved and looks again.
        for line in old.into_iter().flat_map(Lines::iter) {
            line.write().set_moved();
        }
        held.keys_max = size.lines() * SLOTS * FULL_PER_MILLE / 1000;
        Ok(held.block.replace(block))
    }

    /// Empty a part. Gives the lines it had.
    pub fn clear(&self, part: usize, held: &mut IndexUse) -> Option<Block> {
        let old = self.lines(part);
        self.words[part].store(0, Ordering::Release);
        for line in old.into_iter().flat_map(Lines::iter) {
            line.write().set_moved();
        }
        std::mem::take(held).block
    }

    /// Give back lines that no reader looks at any more.
    pub fn give(&self, block: Block) {
        // Memory goes when the others need not wait for it any more.
        let emptied = self.sheets.lock().expect("no holder panics").give(block);
        drop(emptied);
    }

    /// Bytes of all lines, those that wait for readers to pass among them.
    pub fn bytes(&self) -> usize {
        self.sheets.lock().expect("no holder panics").bytes()
    }
}

impl IndexUse {
    /// Keys there are.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Count a key that was taken out of its line.
    pub fn count_removed(&mut self) {
        self.keys -= 1;
        self.removed += 1;
    }

    /// Lines that overflow.
    pub fn overflows(&self) -> usize {
        self.overflows
    }

    /// Slots there are.
    pub fn slots(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.size.lines() * SLOTS)
    }
}

/// A step through so many places that comes to each once, and spreads evenly wherever it stops: near their golden
/// section.
fn stride(count: usize) -> usize {
    let gcd = |mut one: usize, mut other: usize| {
        while other != 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let near = (count * 618 / 1000).max(1);
    (near..).find(|&step| gcd(step, count) == 1).expect("the next after a multiple has no divisor in common")
}

/// Put a key into the first line from its own on that has a free slot. Gives how many lines began to overflow.
#[inline(always)]
fn put<'a>(
    lines: &Lines<'a>,
    (hash, key): (u64, u64),
    (id, is_settled): (u32, bool),
    write: impl Fn(&'a Line) -> Writing<'a>,
) -> usize {
    let (mut at, mut overflows) = (lines.first(hash), 0);
    loop {
        let line = lines.line(at);
        let head = line.head();
        let free = !head & OCCUPIED;
        if free != 0 {
            write(line).put(free.trailing_zeros() as usize, key, id, is_settled);
            return overflows;
        }
        if head & OVERFLOW == 0 {
            write(line).set_overflow();
            overflows += 1;
        }
        at = lines.after(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(index: &Index, key: u64) -> Option<u32> {
        index.find(0, mix(key), key).map(|found| found.id)
    }

    fn put_one(index: &Index, held: &mut IndexUse, key: u64, id: u32) {
        if let Some(old) = index.make_room(0, held).unwrap() {
            index.give(old);
        }
        index.put(0, held, (mix(key), key), (id, true));
    }

    #[test]
    fn a_part_finds_what_was_put_and_nothing_else_while_it_grows() {
        let (index, mut held) = (Index::default(), IndexUse::default());
        for key in 0..20_000u64 {
            assert_eq!(id_of(&index, key), None);
            put_one(&index, &mut held, key, key as u32 + 1);
        }
        assert_eq!(held.keys(), 20_000);
        for key in 0..20_000u64 {
            assert_eq!(id_of(&index, key), Some(key as u32 + 1));
        }
        assert_eq!(id_of(&index, 20_000), None);
    }

    #[test]
    fn keys_that_are_given_out_do_not_crowd_lines_that_grow() {
        let (full, mut held) = (Index::default(), IndexUse::default());
        (0..20_000).for_each(|key| put_one(&full, &mut held, key, 1));
        let keys: Vec<u64> = full.lines(0).unwrap().keys_spread().collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..20_000));
        let (index, mut held) = (Index::default(), IndexUse::default());
        let mut looks = 0;
        for &key in &keys {
            put_one(&index, &mut held, key, 1);
            let lines = index.lines(0).unwrap();
            let mut at = lines.first(mix(key));
            while lines.line(at).find(lines.line(at).head(), key).is_none() {
                (at, looks) = (lines.after(at), looks + 1);
            }
        }
        // In the order of hashes it is hundreds.
        assert!(looks < 4 * keys.len(), "keys were found {} lines away", looks / keys.len());
    }

    #[test]
    fn every_64_bits_are_a_key() {
        let (index, mut held) = (Index::default(), IndexUse::default());
        let keys = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63];
        for (id, key) in keys.into_iter().enumerate() {
            put_one(&index, &mut held, key, id as u32);
        }
        for (id, key) in keys.into_iter().enumerate() {
            assert_eq!(id_of(&index, key), Some(id as u32));
        }
    }

    #[test]
    fn under_churn_probes_stay_short_and_the_lines_do_not_grow() {
        let (index, mut held) = (Index::default(), IndexUse::default());
        let mut slots_max = 0;
        for key in 0..400_000u64 {
            put_one(&index, &mut held, key, 1);
            if key >= 5_000 {
                let gone = key - 5_000;
                let found = index.find(0, mix(gone), gone).unwrap();
                found.line.write().remove(found.slot);
                held.count_removed();
            }
            if key == 10_000 {
                slots_max = held.slots();
            }
        }
        assert_eq!((held.keys(), held.slots()), (5_000, slots_max));
        let lines = index.lines(0).unwrap();
        let overflows = lines.iter().filter(|line| line.head() & OVERFLOW != 0).count();
        assert!(overflows <= lines.count * 7 / 10, "{overflows} of {} lines overflow", lines.count);
    }

    #[test]
    fn a_key_that_is_not_there_is_looked_for_once_round_where_every_line_overflowed() {
        let (index, mut held) = (Index::default(), IndexUse::default());
        let mut rounds = 0;
        // As many keys as the smallest lines hold, of which the oldest leaves when one comes.
        for key in 0..200_000u64 {
            assert_eq!(id_of(&index, key), None);
            put_one(&index, &mut held, key, 1);
            if let Some(gone) = key.checked_sub(33) {
                let found = index.find(0, mix(gone), gone).unwrap();
                found.line.write().remove(found.slot);
                held.count_removed();
            }
            let lines = index.lines(0).unwrap();
            rounds += usize::from(lines.iter().all(|line| line.head() & OVERFLOW != 0));
        }
        assert!(rounds > 0, "no line was ever the last that did not overflow");
    }
}
