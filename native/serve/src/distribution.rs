//! A distribution: how often something was how large, in buckets that double. It knows not what is measured.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets, the last of which has no end.
const BUCKETS: usize = 20;

/// What was counted so far.
#[derive(Debug)]
pub struct Distribution {
    least: u64,
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

/// A distribution as it was at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distributed {
    /// Up to which value each bucket but the last goes, and how much is in it and those before it.
    pub upto: Vec<(u64, u64)>,
    /// How much was counted.
    pub count: u64,
    /// The sum of it.
    pub sum: u64,
}

impl Distribution {
    /// An empty one; its first bucket goes up to `least`.
    pub fn new(least: u64) -> Self {
        assert!(least > 0, "buckets that double begin above 0");
        Self { least, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Count a value.
    pub fn add(&self, value: u64) {
        let bucket = value.div_ceil(self.least).max(1).next_power_of_two().trailing_zeros() as usize;
        self.counts[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn read(&self) -> Distributed {
        let mut count = 0;
        let mut upto = Vec::with_capacity(BUCKETS);
        for (at, one) in self.counts.iter().enumerate() {
            count += one.load(Ordering::Relaxed);
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
