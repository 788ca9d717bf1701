//! The cut: a call's distinct keys of one shard, ordered by part, and the positions that want each key's row.

use streamlearn_table::Member;

use crate::merge::{Met, block_end};

const NONE: u32 = u32::MAX;

/// The distinct keys of one shard in the order of their parts. Keys are found on demand, so that the shard
/// can work on the first ones while the client looks for the others.
pub struct Cut<'a> {
    /// The keys found so far.
    pub keys: Vec<u64>,
    /// For each key, the first position that wants its row and the index of the next one in `repeats`.
    places: Vec<(u32, u32)>,
    repeats: Vec<(u32, u32)>,
    rest: &'a [Member],
    is_distinct: bool,
}

impl<'a> Cut<'a> {
    /// Creates a cut of a shard's members. With `is_distinct` it does not look for repeats.
    pub fn new(members: &'a [Member], is_distinct: bool) -> Self {
        let keys = Vec::with_capacity(members.len());
        let (places, repeats) = (Vec::with_capacity(members.len()), Vec::new());
        Self { keys, places, repeats, rest: members, is_distinct }
    }

    /// Finds keys until there are `count`, or no more.
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

    /// Returns the first position that wants a key's row.
    #[inline(always)]
    pub fn place(&self, number: usize) -> usize {
        self.places[number].0 as usize
    }

    /// Calls `work` with each position that wants a key's row.
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
    use streamlearn_table::{ByPart, PARTS, mix, part_of_hash};

    use super::*;

    proptest! {
        #[test]
        fn each_place_is_wanted_once_by_the_key_it_has(
            keys in prop::collection::vec(0u64..600, 0..2000), split in 1usize..1024, spread in any::<u64>(), step in 1usize..300,
        ) {
            let keys: Vec<u64> = keys.into_iter().map(|key| key ^ spread).collect();
            let (by_part, mut met, mut wanted) = (ByPart::new(&keys), Met::default(), BTreeMap::new());
            let mut found_keys = Vec::new();
            for parts in [0..split, split..PARTS] {
                let mut cut = Cut::new(by_part.of(parts.clone()), false);
                for count in (0..).step_by(step) {
                    let (before, members_left) = (cut.keys.clone(), cut.rest.len());
                    cut.find(count, &mut met);
                    prop_assert!(cut.keys.starts_with(&before) && (cut.keys.len() >= count || cut.rest.is_empty()));
                    if members_left == 0 {
                        break;
                    }
                }
                prop_assert!(cut.keys.iter().all(|&key| parts.contains(&part_of_hash(mix(key)))));
                for (number, &key) in cut.keys.iter().enumerate() {
                    cut.each_place(number, |place| assert_eq!(wanted.insert(place, key), None));
                    prop_assert_eq!(keys[cut.place(number)], key);
                }
                found_keys.extend(cut.keys);
            }
            prop_assert!(wanted.into_iter().eq(keys.iter().copied().enumerate()));
            let distinct: BTreeSet<u64> = keys.iter().copied().collect();
            prop_assert!(found_keys.len() == distinct.len() && found_keys.iter().copied().collect::<BTreeSet<_>>() == distinct);

            let by_part = ByPart::new(&found_keys);
            let (mut searched, mut promised) = (Cut::new(by_part.of(0..PARTS), false), Cut::new(by_part.of(0..PARTS), true));
            searched.find(usize::MAX, &mut met);
            promised.find(usize::MAX, &mut met);
            prop_assert!(searched.keys == promised.keys && searched.places == promised.places);
        }
    }
}
