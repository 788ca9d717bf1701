//! The cut: a call's keys of one shard by part, each once, and the places that want its row.

use streamlearn_table::{Member, part_of_hash};

/// Members among which repeats are looked for at a time, at least: whole parts, so that a key is met once.
const BLOCK: usize = 256;
const NONE: u32 = u32::MAX;

/// Distinct keys of one shard in the order of their parts, found as far as they are asked for: so a shard is at work on
/// the first while the others are looked for.
pub struct Cut<'a> {
    /// The keys that were found.
    pub keys: Vec<u64>,
    /// For each key the place that wants its row, and where in `repeats` the next such place is.
    places: Vec<(u32, u32)>,
    repeats: Vec<(u32, u32)>,
    rest: &'a [Member],
    is_distinct: bool,
}

/// The number of a key among those of a block that were met, by hash. One table for all blocks.
#[derive(Default)]
pub struct Met {
    /// One more than the number; 0 for none.
    numbers: Vec<u32>,
}

impl Met {
    /// Forget all, and make room for so many keys.
    pub fn begin(&mut self, keys: usize) {
        self.numbers.clear();
        self.numbers.resize((2 * keys).next_power_of_two(), 0);
    }

    /// The number of a key that was met, or this one from here on. `key_of` says the key of a number.
    #[inline(always)]
    pub fn meet(&mut self, member: &Member, number: usize, key_of: impl Fn(usize) -> u64) -> usize {
        let mask = self.numbers.len() - 1;
        let mut at = member.hash as usize & mask;
        loop {
            let met = self.numbers[at];
            if met == 0 {
                self.numbers[at] = number as u32 + 1;
                return number;
            }
            if key_of(met as usize - 1) == member.key {
                return met as usize - 1;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Where a block of whole parts ends.
pub fn block_end(members: &[Member]) -> usize {
    if members.len() <= BLOCK {
        return members.len();
    }
    let part = part_of_hash(members[BLOCK - 1].hash);
    BLOCK + members[BLOCK..].partition_point(|member| part_of_hash(member.hash) == part)
}

impl<'a> Cut<'a> {
    /// Of a shard's members, none of which was looked at; nothing looks for repeats where there are none.
    pub fn new(members: &'a [Member], is_distinct: bool) -> Self {
        let keys = Vec::with_capacity(members.len());
        let (places, repeats) = (Vec::with_capacity(members.len()), Vec::new());
        Self { keys, places, repeats, rest: members, is_distinct }
    }

    /// Find keys until there are so many, or no more.
    pub fn find(&mut self, count: usize, met: &mut Met) {
        while self.keys.len() < count && !self.rest.is_empty() {
            let block;
            (block, self.rest) = self.rest.split_at(block_end(self.rest));
            if self.is_distinct {
                self.keys.extend(block.iter().map(|member| member.key));
                self.places.extend(block.iter().map(|member| (member.at, NONE)));
            } else {
                self.meet(block, met);
            }
        }
    }

    fn meet(&mut self, block: &[Member], met: &mut Met) {
        met.begin(block.len());
        let first = self.keys.len();
        for member in block {
            let keys = &self.keys;
            let number = met.meet(member, keys.len() - first, |number| keys[first + number]) + first;
            if number == keys.len() {
                self.keys.push(member.key);
                self.places.push((member.at, NONE));
            } else {
                let place = &mut self.places[number];
                let repeat = self.repeats.len() as u32;
                self.repeats.push((member.at, place.1));
                place.1 = repeat;
            }
        }
    }

    /// The place that wants a key's row first.
    #[inline(always)]
    pub fn place(&self, number: usize) -> usize {
        self.places[number].0 as usize
    }

    /// Do something with each place that wants the row of a key.
    #[inline(always)]
    pub fn each_place(&self, number: usize, mut work: impl FnMut(usize)) {
        let (place, mut next) = self.places[number];
        work(place as usize);
        while next != NONE {
            let (place, after) = self.repeats[next as usize];
            work(place as usize);
            next = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use streamlearn_table::{ByPart, PARTS, mix};

    use super::*;

    proptest! {
        #[test]
        fn each_place_is_wanted_once_by_the_key_it_has(
            keys in prop::collection::vec(0u64..600, 0..2000), split in 1usize..1024, spread in any::<u64>(), step in 1usize..300,
        ) {
            let keys: Vec<u64> = keys.into_iter().map(|key| key ^ spread).collect();
            let (by_part, mut met, mut wanted) = (ByPart::new(&keys), Met::default(), BTreeMap::new());
            let mut found = Vec::new();
            for parts in [0..split, split..PARTS] {
                let mut cut = Cut::new(by_part.of(parts.clone()), false);
                for count in (0..).step_by(step) {
                    let (before, left) = (cut.keys.clone(), cut.rest.len());
                    cut.find(count, &mut met);
                    prop_assert!(cut.keys.starts_with(&before) && (cut.keys.len() >= count || cut.rest.is_empty()));
                    if left == 0 {
                        break;
                    }
                }
                prop_assert!(cut.keys.iter().all(|&key| parts.contains(&part_of_hash(mix(key)))));
                for (number, &key) in cut.keys.iter().enumerate() {
                    cut.each_place(number, |place| assert_eq!(wanted.insert(place, key), None));
                    prop_assert_eq!(keys[cut.place(number)], key);
                }
                found.extend(cut.keys);
            }
            prop_assert!(wanted.into_iter().eq(keys.iter().copied().enumerate()));
            let distinct: BTreeSet<u64> = keys.iter().copied().collect();
            prop_assert!(found.len() == distinct.len() && found.iter().copied().collect::<BTreeSet<_>>() == distinct);

            let by_part = ByPart::new(&found);
            let (mut looked, mut told) = (Cut::new(by_part.of(0..PARTS), false), Cut::new(by_part.of(0..PARTS), true));
            looked.find(usize::MAX, &mut met);
            told.find(usize::MAX, &mut met);
            prop_assert!(looked.keys == told.keys && looked.places == told.places);
        }
    }
}
