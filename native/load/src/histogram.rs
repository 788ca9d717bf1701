//! A histogram of durations in fixed memory: bucket widths grow with the value, so that the error stays below
//! 1 %.

/// Smaller values have buckets of their own.
const EXACT: u64 = 128;
/// The number of buckets per doubling above.
const HALF: usize = 64;
/// The largest distinguished value, in nanoseconds: 73 minutes.
const LONGEST: u64 = (1 << 42) - 1;
const BUCKETS: usize = EXACT as usize + 35 * HALF;

/// Counts of durations in nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u32]>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), count: 0, sum: 0, max: 0 }
    }
}

fn bucket(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - HALF.ilog2();
    EXACT as usize + (shift as usize - 1) * HALF + (value >> shift) as usize - HALF
}

/// Returns the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    if bucket < EXACT as usize {
        return bucket as u64;
    }
    let beyond = bucket - EXACT as usize;
    let shift = beyond / HALF + 1;
    (((beyond % HALF + HALF) as u64) << shift) + (1 << (shift - 1))
}

impl Histogram {
    /// Counts a duration; longer ones than 73 minutes count as that.
    pub fn add(&mut self, value_ns: u64) {
        let value = value_ns.min(LONGEST);
        let count = &mut self.counts[bucket(value)];
        *count = count.saturating_add(1);
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the exact maximum.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the exact mean; `None` without durations.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Returns the quantile; `None` without durations.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut passed = 0;
        let bucket = self.counts.iter().position(|&count| {
            passed += u64::from(count);
            passed >= rank
        });
        // The maximum is exact, and bounds the values of its bucket.
        Some(bucket.map_or(self.max, |bucket| {
            if rank == self.count { self.max } else { middle(bucket).min(self.max) }
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut previous = 0;
        for value in (0..100_000).chain((0..42).map(|bit| 1 << bit)).chain([LONGEST]) {
            let value_bucket = bucket(value);
            if value == previous + 1 {
                assert!(value_bucket - bucket(previous) <= 1);
            }
            assert!(middle(value_bucket).abs_diff(value) * 100 <= value, "{value}");
            previous = value;
        }
        assert_eq!(bucket(LONGEST), BUCKETS - 1);
    }

    #[test]
    fn an_empty_one_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(Histogram::default().mean(), None);
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_values_but_for_a_hundredth(
            // All magnitudes are equally likely.
            values in prop::collection::vec((0u32..41, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1)), 1..300),
            share in 0.0..=1.0f64,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&value| histogram.add(value));
            let mut sorted = values.clone();
            sorted.sort_unstable();
            for share in [share, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
                let (exact, estimate) = (sorted[rank - 1], histogram.quantile(share).unwrap());
                prop_assert!(estimate.abs_diff(exact) * 100 <= exact, "{estimate} for {exact}");
            }
            prop_assert_eq!(histogram.quantile(1.0), sorted.last().copied());
            prop_assert_eq!(histogram.max(), *sorted.last().unwrap());
            prop_assert_eq!(histogram.count(), sorted.len() as u64);
            let mean = sorted.iter().map(|&value| value as f64).sum::<f64>() / sorted.len() as f64;
            prop_assert!((histogram.mean().unwrap() - mean).abs() <= mean * 1e-9);
        }
    }
}
