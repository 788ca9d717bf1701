//! A ladder: the bucket sizes that have executables, chosen from observed sizes. Knows neither users nor
//! candidates.

use std::fmt;

/// Counts by size: (size, count).
pub type Histogram = [(usize, u64)];

/// Ascending bucket sizes; sizes beyond the last are split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    sizes: Vec<usize>,
}

/// Observed sizes and execution costs of one sequence length; each length has executables of its own.
pub struct Demand<'a> {
    /// The counts by size.
    pub histogram: &'a Histogram,
    /// The cost of an execution of a bucket; it must not decrease with the size.
    pub cost: &'a dyn Fn(usize) -> f64,
}

/// Invalid ladder sizes: empty, not ascending, or with a zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoLadder(Vec<usize>);

impl fmt::Display for NoLadder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bucket sizes must ascend from above 0: {:?}", self.0)
    }
}

impl std::error::Error for NoLadder {}

/// Constraints on the choice of a ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The last bucket.
    pub top: usize,
    /// The maximum number of buckets, at least 1: each one is compiled and kept.
    pub buckets_max: usize,
    /// Buckets except the last are multiples of this; 1 allows every size.
    pub multiple: usize,
}

impl Ladder {
    /// Creates a ladder of these sizes.
    ///
    /// # Errors
    /// `NoLadder` if the sizes are empty, do not ascend, or contain a zero.
    pub fn new(sizes: Vec<usize>) -> Result<Self, NoLadder> {
        let ascends = sizes.windows(2).all(|pair| pair[0] < pair[1]);
        if sizes.first().is_some_and(|first| *first > 0) && ascends {
            Ok(Self { sizes })
        } else {
            Err(NoLadder(sizes))
        }
    }

    /// Returns the ladder with the least expected cost of the histogram, with each size padded to its bucket,
    /// by exact dynamic programming; among equal costs the one with the fewest buckets.
    ///
    /// `cost` is the cost of an execution of a bucket, modelled or measured. It must not decrease
    /// with the size; otherwise a bucket between two observed sizes could cost less than both.
    ///
    /// # Panics
    /// If the top, the maximum number of buckets or the multiple is zero, or if a cost decreases
    /// with the size or is not a number.
    pub fn choose(histogram: &Histogram, choice: Choice, cost: impl Fn(usize) -> f64) -> Self {
        let ladders = Self::choices(&[Demand { histogram, cost: &cost }], choice);
        ladders.into_iter().next_back().expect("there is always a ladder of one bucket")
    }

    /// Returns the best ladder of one bucket, of at most two, and so on, over all demands together; the list
    /// ends early if each observed size has a bucket.
    ///
    /// # Panics
    /// As `choose`, or if there is no demand.
    pub fn choices(demands: &[Demand<'_>], choice: Choice) -> Vec<Self> {
        assert!(
            choice.top > 0 && choice.buckets_max > 0 && choice.multiple > 0,
            "a choice contains no zero: {choice:?}"
        );
        assert!(!demands.is_empty(), "a choice needs a demand");
        let counts: Vec<Vec<f64>> = demands.iter().map(|demand| rounded(demand.histogram, choice)).collect();
        let is_candidate =
            |size: &usize| *size == choice.top || counts.iter().any(|counts| counts[*size] > 0.0);
        let sizes: Vec<usize> = (1..=choice.top).filter(is_candidate).collect();
        let priced = demands.iter().zip(&counts).map(|(demand, counts)| {
            let costs: Vec<f64> = sizes.iter().map(|size| (demand.cost)(*size)).collect();
            assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]), "a larger bucket must not cost less");
            Priced::new(sizes.iter().map(|size| counts[*size]), costs)
        });
        let priced: Vec<Priced> = priced.collect();
        let range =
            |from: usize, last: usize| priced.iter().map(|demand| demand.cost(from, last)).sum::<f64>();
        let ladders = cheapest(sizes.len(), range, choice.buckets_max).into_iter();
        ladders.map(|indices| Self { sizes: indices.into_iter().map(|at| sizes[at]).collect() }).collect()
    }

    /// The sizes, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The last and largest size.
    pub fn top(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Returns the index of the smallest bucket that holds the size; `None` beyond the top.
    pub fn holds(&self, size: usize) -> Option<usize> {
        let at = self.sizes.partition_point(|bucket| *bucket < size);
        (at < self.sizes.len()).then_some(at)
    }

    /// Returns the cost of a demand if each size runs alone, split at the top.
    pub fn cost(&self, demand: &Demand<'_>) -> f64 {
        let each = |&(size, count): &(usize, u64)| {
            let remainder = size % self.top();
            let last = self
                .holds(remainder)
                .filter(|_| remainder > 0)
                .map_or(0.0, |at| (demand.cost)(self.sizes[at]));
            let tops = size / self.top();
            let tops = if tops > 0 { tops as f64 * (demand.cost)(self.top()) } else { 0.0 };
            (tops + last) * count as f64
        };
        demand.histogram.iter().map(each).sum()
    }

    /// Returns the share of padding in the computed rows, if each size runs alone, split at the top.
    pub fn waste(&self, histogram: &Histogram) -> f64 {
        let (mut requested, mut padded) = (0.0, 0.0);
        for &(size, count) in histogram {
            let (tops, remainder) = (size / self.top(), size % self.top());
            let last = if remainder == 0 {
                0
            } else {
                self.holds(remainder).map_or(self.top(), |at| self.sizes[at])
            };
            requested += size as f64 * count as f64;
            padded += (tops * self.top() + last) as f64 * count as f64;
        }
        if padded > 0.0 { 1.0 - requested / padded } else { 0.0 }
    }
}

/// The counts by size after rounding: sizes beyond the top are split, remainders are rounded up. Index 0
/// counts the empty remainders and is not a bucket.
fn rounded(histogram: &Histogram, choice: Choice) -> Vec<f64> {
    let mut counts = vec![0.0; choice.top + 1];
    for &(size, count) in histogram {
        let remainder = size % choice.top;
        let rounded_size = remainder.next_multiple_of(choice.multiple).min(choice.top);
        counts[choice.top] += (size / choice.top) as f64 * count as f64;
        counts[rounded_size] += count as f64;
    }
    counts
}

/// One demand over the candidate sizes.
struct Priced {
    /// The number of requests below each index.
    below: Vec<f64>,
    costs: Vec<f64>,
}

impl Priced {
    fn new(counts: impl Iterator<Item = f64>, costs: Vec<f64>) -> Self {
        let mut below = vec![0.0];
        for count in counts {
            below.push(below[below.len() - 1] + count);
        }
        Self { below, costs }
    }

    /// The cost of the sizes from one index to `last`, padded to `last`.
    fn cost(&self, from: usize, last: usize) -> f64 {
        (self.below[last + 1] - self.below[from]) * self.costs[last]
    }
}

/// The cheapest ladders of one bucket, of at most two, and so on, as indices of sizes; each contains the last
/// one.
///
/// `least[last]` is the cost of all sizes up to `last` if `last` is a bucket: the minimum, over the
/// previous bucket, of the cost up to it plus the padded cost of the sizes between. Each round
/// allows one more bucket.
fn cheapest(sizes: usize, range: impl Fn(usize, usize) -> f64, buckets_max: usize) -> Vec<Vec<usize>> {
    let end = sizes - 1;
    let mut least: Vec<f64> = (0..=end).map(|last| range(0, last)).collect();
    let mut before: Vec<Vec<Option<usize>>> = vec![vec![None; end + 1]]; // by round: the previous bucket
    for _ in 1..buckets_max.min(end + 1) {
        let mut next = least.clone();
        let mut from = vec![None; end + 1];
        for last in 1..=end {
            for (previous, cost) in least.iter().enumerate().take(last) {
                let sum = cost + range(previous + 1, last);
                if sum < next[last] {
                    (next[last], from[last]) = (sum, Some(previous));
                }
            }
        }
        least = next;
        before.push(from);
    }
    (1..=before.len()).map(|rounds| ladder_of(&before[..rounds], end)).collect()
}

fn ladder_of(before: &[Vec<Option<usize>>], end: usize) -> Vec<usize> {
    let (mut places, mut last) = (vec![end], end);
    for from in before.iter().rev() {
        // A round in which another bucket did not pay keeps the index.
        if let Some(previous) = from[last] {
            places.push(previous);
            last = previous;
        }
    }
    places.reverse();
    places
}
