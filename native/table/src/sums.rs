//! Sums: the gradients of one table, summed by key. Keeps distinct keys in order of first occurrence, each
//! with a sum and a count.

use std::hash::{BuildHasher, RandomState};

use crate::pack::GROUP;
use crate::storage::prefetch::{LINE_FLOATS, prefetch, prefetch_row};

/// Initial entries of an index.
const ENTRIES_MIN: usize = 1024;

/// Key occurrences that are added together: the position of each one's gradient and its factor or divisor.
pub(crate) struct Occurrences {
    keys: [u64; GROUP],
    places: [usize; GROUP],
    factors: [f32; GROUP],
    count: usize,
}

/// The scaling of a gradient before it is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// No scaling.
    Not,
    /// Multiply by the factor.
    Times,
    /// Divide by the factor.
    Over,
}

impl Default for Occurrences {
    fn default() -> Self {
        Self { keys: [0; GROUP], places: [0; GROUP], factors: [0.0; GROUP], count: 0 }
    }
}

impl Occurrences {
    /// Adds an occurrence; returns whether the group is full.
    #[inline(always)]
    pub fn push(&mut self, key: u64, place: usize, factor: f32) -> bool {
        let index = self.count;
        (self.keys[index], self.places[index], self.factors[index]) = (key, place, factor);
        self.count += 1;
        self.count == GROUP
    }
}

/// An entry of the index; it is empty if its epoch is over.
#[derive(Clone, Copy, Default)]
struct Entry {
    key: u64,
    number: u32,
    epoch: u32,
}

/// Distinct keys of one table and their sums.
pub(crate) struct Sums {
    dim: usize,
    /// A power of two entries, at most half of them in use.
    entries: Vec<Entry>,
    epoch: u32,
    seeds: (u64, u64),
    pub keys: Vec<u64>,
    pub rows: Vec<f32>,
    pub counts: Vec<u32>,
}

impl Sums {
    pub fn new(dim: usize) -> Self {
        // Random seeds, so that no one can craft keys that all collide. The result does not depend on them.
        let chance = RandomState::new();
        let seeds = (chance.hash_one(0), chance.hash_one(1) | 1);
        let (keys, rows, counts) = (Vec::new(), Vec::new(), Vec::new());
        Self { dim, entries: vec![Entry::default(); ENTRIES_MIN], epoch: 1, seeds, keys, rows, counts }
    }

    /// Drops all sums and keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.rows.clear();
        self.counts.clear();
        if self.epoch == u32::MAX {
            self.entries.fill(Entry::default());
            self.epoch = 0;
        }
        self.epoch += 1;
    }

    /// Adds the gradients of the occurrences in order, and clears the occurrences.
    pub fn add(&mut self, occurrences: &mut Occurrences, gradients: &[f32], scale: Scale) {
        let (count, dim) = (std::mem::take(&mut occurrences.count), self.dim);
        self.make_room();
        let (mut firsts, mut numbers) = ([0; GROUP], [0u32; GROUP]);
        for (first, &key) in firsts.iter_mut().zip(&occurrences.keys[..count]) {
            *first = self.first(key);
            prefetch(&raw const self.entries[*first]);
        }
        if dim > LINE_FLOATS {
            // Gradients of one line each arrive fast enough without prefetching.
            for &place in &occurrences.places[..count] {
                prefetch_row(gradients.as_ptr().wrapping_add(place), dim);
            }
        }
        for ((number, &first), &key) in numbers.iter_mut().zip(&firsts).zip(&occurrences.keys[..count]) {
            *number = self.number_of(key, first);
            prefetch_row(self.rows.as_ptr().wrapping_add(*number as usize * dim), dim);
            self.counts[*number as usize] = self.counts[*number as usize].saturating_add(1);
        }
        self.rows.resize(self.keys.len() * dim, 0.0);
        for at in 0..count {
            let sum = &mut self.rows[numbers[at] as usize * dim..][..dim];
            let gradient = &gradients[occurrences.places[at]..][..dim];
            let factor = occurrences.factors[at];
            match scale {
                Scale::Not => add(sum, gradient, |number| number),
                Scale::Times => add(sum, gradient, |number| number * factor),
                Scale::Over => add(sum, gradient, |number| number / factor),
            }
        }
    }

    /// Grows until half of the index stays empty after a group of new keys.
    fn make_room(&mut self) {
        if (self.keys.len() + GROUP) * 2 <= self.entries.len() {
            return;
        }
        self.entries = vec![Entry::default(); self.entries.len() * 2];
        for number in 0..self.keys.len() {
            let key = self.keys[number];
            let mut at = self.first(key);
            while self.entries[at].epoch == self.epoch {
                at = (at + 1) & (self.entries.len() - 1);
            }
            self.entries[at] = Entry { key, number: number as u32, epoch: self.epoch };
        }
    }

    /// The index where the search for a key starts.
    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seeds.0) * u128::from(self.seeds.1);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.entries.len() - 1)
    }

    /// The number of a key, a new one if it has none. Terminates, since half of the index is empty.
    #[inline(always)]
    fn number_of(&mut self, key: u64, mut at: usize) -> u32 {
        loop {
            let entry = &mut self.entries[at];
            if entry.epoch != self.epoch {
                let number = self.keys.len() as u32;
                *entry = Entry { key, number, epoch: self.epoch };
                self.keys.push(key);
                self.counts.push(0);
                return number;
            }
            if entry.key == key {
                return entry.number;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.keys.capacity() * size_of::<u64>()
            + self.rows.capacity() * size_of::<f32>()
            + self.counts.capacity() * size_of::<u32>()
    }
}

#[inline(always)]
fn add(sum: &mut [f32], gradient: &[f32], scaled: impl Fn(f32) -> f32) {
    for (sum, &number) in sum.iter_mut().zip(gradient) {
        *sum += scaled(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_ones(sums: &mut Sums, keys: impl Iterator<Item = u64>) {
        let mut occurrences = Occurrences::default();
        for key in keys {
            if occurrences.push(key, 0, 0.0) {
                sums.add(&mut occurrences, &[1.0], Scale::Not);
            }
        }
        sums.add(&mut occurrences, &[1.0], Scale::Not);
    }

    #[test]
    fn what_comes_out_does_not_depend_on_chance() {
        let (mut first_sums, mut second_sums) = (Sums::new(1), Sums::new(1));
        assert_ne!(first_sums.seeds, second_sums.seeds);
        for sums in [&mut first_sums, &mut second_sums] {
            add_ones(sums, (0..20_000).map(|at| at * at % 7_001));
        }
        assert_eq!(
            (first_sums.keys, first_sums.rows, first_sums.counts),
            (second_sums.keys, second_sums.rows, second_sums.counts)
        );
    }

    #[test]
    fn nothing_of_a_step_is_left_when_epochs_begin_again() {
        let mut sums = Sums::new(1);
        add_ones(&mut sums, 0..300);
        assert_eq!(sums.epoch, 1);
        sums.clear();
        sums.epoch = u32::MAX;
        add_ones(&mut sums, 300..310);
        sums.clear();
        assert_eq!(sums.epoch, 1);
        add_ones(&mut sums, (0..310).rev());
        assert!(sums.keys.iter().copied().eq((0..310).rev()));
        assert_eq!((sums.rows, sums.counts), (vec![1.0; 310], vec![1; 310]));
    }

    #[test]
    fn counts_stop_at_the_largest() {
        let mut sums = Sums::new(1);
        add_ones(&mut sums, std::iter::once(5));
        sums.counts[0] = u32::MAX - 1;
        add_ones(&mut sums, [5, 5, 5].into_iter());
        assert_eq!(sums.counts, [u32::MAX]);
    }
}
