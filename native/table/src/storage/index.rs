//! The index: for each part, the lines that lead from keys to their newest images.
//!
//! Readers take no lock. Each part's lines grow on their own, so that no reader and no other part waits.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::storage::line::{Line, OCCUPIED, OVERFLOW, SLOTS, Writing, is_settled};
use crate::storage::sheets::{Block, PHASES, Sheets, Size};
use crate::storage::sync::{AtomicU64, Mutex};

/// The number of parts of a table; it never changes.
pub const PARTS: usize = if cfg!(feature = "model") { 2 } else { 1024 };
const PART_BITS: u32 = PARTS.trailing_zeros();
/// Bits of the count in a word. Line addresses are multiples of 64 below 2^48, so 42 bits are enough for
/// them.
const COUNT_BITS: u32 = 22;
/// Maximum lines of a part: about 18 billion keys per table.
const LINES_MAX: usize = (1 << COUNT_BITS) - 1;
/// The fill of a part's slots at which it grows, in thousandths.
const FULL_PER_MILLE: usize = 870;

/// Mixes a key. Any 64 bits may be a key, so its bits must be mixed before they select a position.
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

/// The part of an unmixed key, for callers that send keys to the owner of their part.
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

/// The position of a key.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    /// Its line.
    pub line: &'a Line,
    /// Its slot in the line.
    pub slot: usize,
    /// The id of its newest image.
    pub id: u32,
    /// Whether that image is the only one and every reader sees it.
    pub is_settled: bool,
}

impl<'a> Lines<'a> {
    /// The line where the search for a key starts; there is at least one line.
    #[inline(always)]
    pub fn first(&self, hash: u64) -> *const Line {
        let number = ((u128::from(hash << PART_BITS) * self.count as u128) >> 64) as usize;
        // SAFETY: `number` is below `count`, since it is a fraction of it.
        unsafe { self.begin.add(number) }
    }

    /// The line at an address of this index.
    #[inline(always)]
    pub fn line(&self, address: *const Line) -> &'a Line {
        debug_assert!(self.contains(address));
        // SAFETY: the address came from `first` or `after`, and lines stay for a grace period after they were
        // replaced.
        unsafe { &*address }
    }

    /// The next line; the first line follows the last.
    #[inline(always)]
    pub fn after(&self, address: *const Line) -> *const Line {
        let next = address.wrapping_add(1);
        if next == self.begin.wrapping_add(self.count) { self.begin } else { next }
    }

    /// A line by its number.
    pub fn nth(&self, number: usize) -> &'a Line {
        assert!(number < self.count);
        self.line(self.begin.wrapping_add(number))
    }

    /// Marks all lines as overflowed.
    #[cfg(test)]
    pub fn all_overflow(&self) {
        self.iter().for_each(|line| line.write().set_overflow());
    }

    /// Whether a line belongs to this index.
    #[inline(always)]
    pub fn contains(&self, address: *const Line) -> bool {
        (self.begin..self.begin.wrapping_add(self.count)).contains(&address)
    }

    /// The keys whose position in the part, of 2^64, is from `begin` to before `end`, with their newest
    /// images.
    pub fn between(self, begin: u128, end: u128) -> impl Iterator<Item = (u64, u32)> {
        let number = |place: u128| ((place * self.count as u128) >> 64) as usize;
        let (first, last) = (number(begin), number(end.max(1) - 1));
        // Keys whose own line was full are in later lines, and the lines up to there are marked as
        // overflowed.
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

    /// All keys, in an order whose every prefix is spread over the part. Keys inserted in hash order into
    /// fewer lines would crowd the first lines, and each insert would probe past all of them.
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

/// The lines of all parts of a table. Changing a part requires its lock.
pub struct Index {
    /// Address and count of a part's lines in one word, so that readers always see both together.
    words: Box<[AtomicU64]>,
    sheets: Mutex<Sheets>,
}

/// The state of a part's lines that only the holder of its lock knows.
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
    /// A part's current lines; None while it has no keys.
    #[inline(always)]
    pub fn lines(&self, part: usize) -> Option<Lines<'_>> {
        let word = self.words[part].load(Ordering::Acquire);
        let begin = ((word >> COUNT_BITS) << 6) as *const Line;
        (word != 0).then_some(Lines { begin, count: (word & LINES_MAX as u64) as usize, index: PhantomData })
    }

    /// The position of a key, for the holder of its part's lock.
    #[inline(always)]
    pub fn find(&self, part: usize, hash: u64, key: u64) -> Option<Found<'_>> {
        let lines = self.lines(part)?;
        let first = lines.first(hash);
        let mut address = first;
        loop {
            let line = lines.line(address);
            let head = line.head();
            if let Some(slot) = line.find(head, key) {
                let position = Found { line, slot, id: line.id(slot), is_settled: is_settled(head, slot) };
                return Some(position);
            }
            address = lines.after(address);
            // Removed keys may have left every line marked as overflowed.
            if head & OVERFLOW == 0 || address == first {
                return None;
            }
        }
    }

    /// Inserts a missing key; `make_room` must have been called before.
    pub fn put(
        &self,
        part: usize,
        state: &mut IndexUse,
        (hash, key): (u64, u64),
        (id, is_settled): (u32, bool),
    ) {
        let lines = self.lines(part).expect("there is room, so there are lines");
        state.keys += 1;
        state.overflows += put(&lines, (hash, key), (id, is_settled), Line::write);
    }

    /// Makes room for one more key; full lines grow. Returns the lines that were replaced.
    pub fn make_room(&self, part: usize, state: &mut IndexUse) -> io::Result<Option<Block>> {
        let size = match &state.block {
            None => Size::smallest(part * PHASES / PARTS),
            Some(block) if state.keys >= state.keys_max => block.size.larger(),
            // Lines stay marked as overflowed after their keys leave, so churn would lengthen every probe.
            Some(block)
                if state.removed >= state.keys_max / 4 && state.overflows >= block.size.lines() * 3 / 5 =>
            {
                block.size
            }
            Some(_) => return Ok(None),
        };
        if size.lines() > LINES_MAX {
            return Err(io::Error::other(format!("the table is full: a part has {} lines", size.lines())));
        }
        self.rebuild(part, state, size)
    }

    fn rebuild(&self, part: usize, state: &mut IndexUse, size: Size) -> io::Result<Option<Block>> {
        let block = self.sheets.lock().expect("no holder panics").take(size)?;
        block.clear();
        let fresh = Lines { begin: block.begin.cast(), count: size.lines(), index: PhantomData };
        let old = self.lines(part);
        (state.overflows, state.removed) = (0, 0);
        for line in old.into_iter().flat_map(Lines::iter) {
            let head = line.head();
            for slot in (0..SLOTS).filter(|slot| head & OCCUPIED & (1 << slot) != 0) {
                let key = line.key(slot);
                let image = (line.id(slot), is_settled(head, slot));
                state.overflows += put(&fresh, (mix(key), key), image, Line::begin);
            }
        }
        let address = block.begin as u64;
        debug_assert!(address.is_multiple_of(64) && address >> 48 == 0);
        self.words[part].store(((address >> 6) << COUNT_BITS) | fresh.count as u64, Ordering::Release);
        // Changes may start only now: readers of the old lines find them moved and look again.
        for line in old.into_iter().flat_map(Lines::iter) {
            line.write().set_moved();
        }
        state.keys_max = size.lines() * SLOTS * FULL_PER_MILLE / 1000;
        Ok(state.block.replace(block))
    }

    /// Empties a part. Returns its former lines.
    pub fn clear(&self, part: usize, state: &mut IndexUse) -> Option<Block> {
        let old = self.lines(part);
        self.words[part].store(0, Ordering::Release);
        for line in old.into_iter().flat_map(Lines::iter) {
            line.write().set_moved();
        }
        std::mem::take(state).block
    }

    /// Releases lines that no reader can still see.
    pub fn give(&self, block: Block) {
        // The memory is freed after the lock is released.
        let emptied = self.sheets.lock().expect("no holder panics").give(block);
        drop(emptied);
    }

    /// Bytes of all lines, including those that wait for readers to pass.
    pub fn bytes(&self) -> usize {
        self.sheets.lock().expect("no holder panics").bytes()
    }
}

impl IndexUse {
    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Counts a key that was removed from its line.
    pub fn count_removed(&mut self) {
        self.keys -= 1;
        self.removed += 1;
    }

    /// The number of overflowed lines.
    pub fn overflows(&self) -> usize {
        self.overflows
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.size.lines() * SLOTS)
    }
}

/// A step that visits each of `count` places once and spreads evenly wherever it stops, near the golden
/// section.
fn stride(count: usize) -> usize {
    let gcd = |mut left: usize, mut right: usize| {
        while right != 0 {
            (left, right) = (right, left % right);
        }
        left
    };
    let near = (count * 618 / 1000).max(1);
    (near..).find(|&step| gcd(step, count) == 1).expect("there is a step coprime to the count")
}

/// Inserts a key into the first line with a free slot, starting at its own. Returns the number of lines newly
/// marked as overflowed.
#[inline(always)]
fn put<'a>(
    lines: &Lines<'a>,
    (hash, key): (u64, u64),
    (id, is_settled): (u32, bool),
    write: impl Fn(&'a Line) -> Writing<'a>,
) -> usize {
    let (mut address, mut overflows) = (lines.first(hash), 0);
    loop {
        let line = lines.line(address);
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
        address = lines.after(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(index: &Index, key: u64) -> Option<u32> {
        index.find(0, mix(key), key).map(|entry| entry.id)
    }

    fn put_one(index: &Index, state: &mut IndexUse, key: u64, id: u32) {
        if let Some(old) = index.make_room(0, state).unwrap() {
            index.give(old);
        }
        index.put(0, state, (mix(key), key), (id, true));
    }

    #[test]
    fn a_part_finds_what_was_put_and_nothing_else_while_it_grows() {
        let (index, mut state) = (Index::default(), IndexUse::default());
        for key in 0..20_000u64 {
            assert_eq!(id_of(&index, key), None);
            put_one(&index, &mut state, key, key as u32 + 1);
        }
        assert_eq!(state.keys(), 20_000);
        for key in 0..20_000u64 {
            assert_eq!(id_of(&index, key), Some(key as u32 + 1));
        }
        assert_eq!(id_of(&index, 20_000), None);
    }

    #[test]
    fn keys_that_are_given_out_do_not_crowd_lines_that_grow() {
        let (full, mut state) = (Index::default(), IndexUse::default());
        (0..20_000).for_each(|key| put_one(&full, &mut state, key, 1));
        let keys: Vec<u64> = full.lines(0).unwrap().keys_spread().collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..20_000));
        let (index, mut state) = (Index::default(), IndexUse::default());
        let mut probes = 0;
        for &key in &keys {
            put_one(&index, &mut state, key, 1);
            let lines = index.lines(0).unwrap();
            let mut address = lines.first(mix(key));
            while lines.line(address).find(lines.line(address).head(), key).is_none() {
                (address, probes) = (lines.after(address), probes + 1);
            }
        }
        // In hash order it would be hundreds.
        assert!(probes < 4 * keys.len(), "keys were found {} lines away", probes / keys.len());
    }

    #[test]
    fn every_64_bits_are_a_key() {
        let (index, mut state) = (Index::default(), IndexUse::default());
        let keys = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63];
        for (id, key) in keys.into_iter().enumerate() {
            put_one(&index, &mut state, key, id as u32);
        }
        for (id, key) in keys.into_iter().enumerate() {
            assert_eq!(id_of(&index, key), Some(id as u32));
        }
    }

    #[test]
    fn under_churn_probes_stay_short_and_the_lines_do_not_grow() {
        let (index, mut state) = (Index::default(), IndexUse::default());
        let mut slots_max = 0;
        for key in 0..400_000u64 {
            put_one(&index, &mut state, key, 1);
            if key >= 5_000 {
                let gone = key - 5_000;
                let entry = index.find(0, mix(gone), gone).unwrap();
                entry.line.write().remove(entry.slot);
                state.count_removed();
            }
            if key == 10_000 {
                slots_max = state.slots();
            }
        }
        assert_eq!((state.keys(), state.slots()), (5_000, slots_max));
        let lines = index.lines(0).unwrap();
        let overflows = lines.iter().filter(|line| line.head() & OVERFLOW != 0).count();
        assert!(overflows <= lines.count * 7 / 10, "{overflows} of {} lines overflow", lines.count);
    }

    #[test]
    fn a_key_that_is_not_there_is_looked_for_once_round_where_every_line_overflowed() {
        let (index, mut state) = (Index::default(), IndexUse::default());
        let mut rounds = 0;
        // As many keys as the smallest lines hold; the oldest leaves when a new one comes.
        for key in 0..200_000u64 {
            assert_eq!(id_of(&index, key), None);
            put_one(&index, &mut state, key, 1);
            if let Some(gone) = key.checked_sub(33) {
                let entry = index.find(0, mix(gone), gone).unwrap();
                entry.line.write().remove(entry.slot);
                state.count_removed();
            }
            let lines = index.lines(0).unwrap();
            rounds += usize::from(lines.iter().all(|line| line.head() & OVERFLOW != 0));
        }
        assert!(rounds > 0, "no line was ever the last that did not overflow");
    }
}
