//! Index: maps a request's hash to its entries. It stores no keys, so the caller compares them.

use crate::prefetch::prefetch;

/// The position of an entry: a slice and the place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub slice: u32,
    pub place: u32,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    tag: u32,
    at: At,
}

const EMPTY: Slot = Slot { tag: 0, at: At { slice: u32::MAX, place: u32::MAX } };

/// The bits of a hash that choose its segment. Segments grow one by one, so that no event waits for the whole
/// index to grow.
const SEGMENT_BITS: u32 = 6;
/// The initial slots of a segment.
const SLOTS_MIN: usize = 16;

#[derive(Debug, Default)]
struct Segment {
    slots: Vec<Slot>,
    filled: usize,
}

impl Segment {
    /// The preferred slot of a tag. It rises with the tag, for any number of slots.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        if place + 1 == self.slots.len() { 0 } else { place + 1 }
    }

    #[inline]
    fn is_empty_at(&self, place: usize) -> bool {
        self.slots[place].at.slice == EMPTY.at.slice
    }

    fn put(&mut self, slot: Slot) {
        let mut place = self.home(slot.tag);
        while !self.is_empty_at(place) {
            place = self.next(place);
        }
        self.slots[place] = slot;
        self.filled += 1;
    }

    fn resize(&mut self, slots: usize) {
        let mut fresh = Vec::new();
        fresh.reserve_exact(slots);
        fresh.resize(slots, EMPTY);
        let old = std::mem::replace(&mut self.slots, fresh);
        self.filled = 0;
        for slot in old.into_iter().filter(|slot| slot.at.slice != EMPTY.at.slice) {
            self.put(slot);
        }
    }

    /// Removes a slot and moves the following ones that would no longer be found.
    fn clear(&mut self, mut hole: usize) {
        let mut place = self.next(hole);
        while !self.is_empty_at(place) {
            let home = self.home(self.slots[place].tag);
            // A slot stays if its home lies after the hole, with wrap-around.
            let stays =
                if hole < place { hole < home && home <= place } else { hole < home || home <= place };
            if !stays {
                self.slots[hole] = self.slots[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.slots[hole] = EMPTY;
        self.filled -= 1;
    }
}

/// Maps hashes to positions.
#[derive(Debug)]
pub(crate) struct Index {
    segments: Vec<Segment>,
    slots: usize,
    filled: usize,
}

impl Index {
    pub fn new() -> Self {
        let segments = (0..1 << SEGMENT_BITS).map(|_| Segment::default()).collect();
        Self { segments, slots: 0, filled: 0 }
    }

    pub fn len(&self) -> usize {
        self.filled
    }

    pub fn bytes(&self) -> u64 {
        (self.slots * size_of::<Slot>()) as u64
    }

    #[inline]
    fn parts(hash: u64) -> (usize, u32) {
        ((hash >> (64 - SEGMENT_BITS)) as usize, hash as u32)
    }

    /// Prefetches the memory that a lookup of the hash reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (segment, tag) = Self::parts(hash);
        let segment = &self.segments[segment];
        if !segment.slots.is_empty() {
            let address = segment.slots.as_ptr().wrapping_add(segment.home(tag));
            prefetch(address);
            prefetch(address.wrapping_add(64 / size_of::<Slot>()));
        }
    }

    /// Calls `visit` for every entry that may belong to the hash, in arbitrary order.
    #[inline]
    pub fn each(&self, hash: u64, mut visit: impl FnMut(At)) {
        let (segment, tag) = Self::parts(hash);
        let segment = &self.segments[segment];
        if segment.filled == 0 {
            return;
        }
        let mut place = segment.home(tag);
        while !segment.is_empty_at(place) {
            if segment.slots[place].tag == tag {
                visit(segment.slots[place].at);
            }
            place = segment.next(place);
        }
    }

    pub fn insert(&mut self, hash: u64, at: At) {
        let (segment, tag) = Self::parts(hash);
        let segment = &mut self.segments[segment];
        let before = segment.slots.len();
        if (segment.filled + 1) * 4 > before * 3 {
            segment.resize((before + before / 4).max(SLOTS_MIN));
            self.slots += segment.slots.len() - before;
        }
        segment.put(Slot { tag, at });
        self.filled += 1;
    }

    /// Removes one entry; returns false if it was not present.
    pub fn remove(&mut self, hash: u64, at: At) -> bool {
        let (segment, tag) = Self::parts(hash);
        let segment = &mut self.segments[segment];
        if segment.filled == 0 {
            return false;
        }
        let mut place = segment.home(tag);
        while !segment.is_empty_at(place) {
            if segment.slots[place].at == at {
                segment.clear(place);
                self.filled -= 1;
                let before = segment.slots.len();
                if before > SLOTS_MIN && segment.filled * 4 < before {
                    segment.resize((before / 2).max(SLOTS_MIN));
                    self.slots -= before - segment.slots.len();
                }
                return true;
            }
            place = segment.next(place);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_finds_what_a_set_of_pairs_finds(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u32..6), 0..600)) {
            let (mut index, mut oracle) = (Index::new(), BTreeSet::new());
            // Few hashes that share segments and tags, adjacent and at both ends of a segment.
            let hash = |key: u64| (key % 2) << 63 | (key.wrapping_mul(0x0666_6666) & 0xffff_ffff);
            for (adds, key, place) in steps {
                let at = At { slice: key as u32, place };
                if adds {
                    if oracle.insert((key, place)) {
                        index.insert(hash(key), at);
                    }
                } else {
                    assert_eq!(index.remove(hash(key), at), oracle.remove(&(key, place)));
                }
                assert_eq!(index.len(), oracle.len());
            }
            for key in 0..40 {
                let mut places = Vec::new();
                index.each(hash(key), |at| if at.slice == key as u32 { places.push(at.place) });
                places.sort_unstable();
                let expected: Vec<u32> = oracle.range((key, 0)..(key + 1, 0)).map(|&(_, place)| place).collect();
                assert_eq!(places, expected);
            }
        }
    }
}
