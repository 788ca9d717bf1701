//! Closed requests: a hash of each request whose windows are over, so that an action on one is late and not
//! an orphan.

use std::collections::VecDeque;

/// Maximum bytes of hashes, also limited to 1 / SHARE of the join's memory bound.
const BYTES_MAX: u64 = 2 << 20;
const SHARE: u64 = 16;
/// The number of sorted runs of hashes; the oldest run is dropped first.
const RUNS: u64 = 32;

/// The most recently closed requests.
#[derive(Debug)]
pub(crate) struct Closed {
    runs: VecDeque<Box<[u64]>>,
    newest: Vec<u64>,
    is_sorted: bool,
    run_max: usize,
}

impl Closed {
    pub fn new(pending_bytes_max: u64) -> Self {
        let run_max = (BYTES_MAX.min(pending_bytes_max / SHARE) / (RUNS * size_of::<u64>() as u64)).max(1);
        Self { runs: VecDeque::new(), newest: Vec::new(), is_sorted: true, run_max: run_max as usize }
    }

    pub fn bytes(&self) -> u64 {
        ((self.runs.len() * self.run_max + self.newest.capacity()) * size_of::<u64>()) as u64
    }

    pub fn add(&mut self, hash: u64) {
        if self.newest.len() == self.run_max {
            self.sort();
            self.runs.push_back(std::mem::take(&mut self.newest).into_boxed_slice());
            if self.runs.len() as u64 == RUNS {
                self.runs.pop_front();
            }
        }
        self.newest.push(hash);
        self.is_sorted = false;
    }

    pub fn has(&mut self, hash: u64) -> bool {
        self.sort();
        let contains = |run: &[u64]| run.binary_search(&hash).is_ok();
        contains(&self.newest) || self.runs.iter().rev().any(|run| contains(run))
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.newest.sort_unstable();
            self.is_sorted = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_known_and_the_oldest_give_way_within_the_bound() {
        let mut closed = Closed::new(1 << 20);
        let bytes_max = (1 << 20) / SHARE;
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for number in 0..100_000 {
            closed.add(hash(number));
            assert!(closed.has(hash(number)));
            assert!(closed.bytes() <= bytes_max + bytes_max / RUNS);
        }
        assert!((100_000 - 7_900..100_000).all(|number| closed.has(hash(number))));
        assert!(!closed.has(hash(0)) && !closed.has(hash(100_000)));
    }
}
