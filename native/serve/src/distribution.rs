//! A distribution: counts of values in buckets of doubling width. Knows nothing of the values' meaning.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of buckets; the last one is unbounded.
const BUCKETS: usize = 20;

/// Live counters.
#[derive(Debug)]
pub struct Distribution {
    least: u64,
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

/// A snapshot of a distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distributed {
    /// The upper bound of each bucket but the last, and the cumulative count.
    pub upto: Vec<(u64, u64)>,
    /// The number of values.
    pub count: u64,
    /// The sum of the values.
    pub sum: u64,
}

impl Distribution {
    /// Creates an empty distribution whose first bucket ends at `least`.
    pub fn new(least: u64) -> Self {
        assert!(least > 0, "the first bucket must end above 0");
        Self { least, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn add(&self, value: u64) {
        let bucket = value.div_ceil(self.least).max(1).next_power_of_two().trailing_zeros() as usize;
        self.counts[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Returns a snapshot.
    pub fn read(&self) -> Distributed {
        let mut count = 0;
        let mut upto = Vec::with_capacity(BUCKETS);
        for (at, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            upto.push((self.least << at, count));
        }
        upto.pop();
        Distributed { upto, count, sum: self.sum.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_bucket_that_ends_at_or_above_them() {
        let sizes = Distribution::new(10);
        for value in [0, 10, 11, 20, 21, u64::MAX / 2] {
            sizes.add(value);
        }
        let read = sizes.read();
        assert_eq!(&read.upto[..3], [(10, 2), (20, 4), (40, 5)]);
        assert_eq!((read.upto.len(), read.upto.last().unwrap().1), (BUCKETS - 1, 5));
        assert_eq!((read.count, read.sum), (6, 62 + u64::MAX / 2));
    }
}
