//! A ladder: the sizes that executables exist for, chosen from what comes. It knows neither users nor candidates.

use std::fmt;

/// How often each size came: (size, how often).
pub type Histogram = [(usize, u64)];

/// Bucket sizes, ascending; what is larger than the last is cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    sizes: Vec<usize>,
}

/// Sizes that are no ladder: none, not ascending, or with a zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoLadder(Vec<usize>);

impl fmt::Display for NoLadder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bucket sizes must be above 0 and ascend, and are {:?}", self.0)
    }
}

impl std::error::Error for NoLadder {}

/// What the choice of a ladder is bound by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The last bucket.
    pub top: usize,
    /// How many buckets there may be, at least one: each is compiled, and kept.
    pub buckets_max: usize,
    /// Buckets are multiples of this, the last aside; 1 leaves every size open.
    pub multiple: usize,
}

impl Ladder {
    /// A ladder of these sizes.
    ///
    /// # Errors
    /// `NoLadder` where they are none, do not ascend, or have a zero.
    pub fn new(sizes: Vec<usize>) -> Result<Self, NoLadder> {
        let ascends = sizes.windows(2).all(|pair| pair[0] < pair[1]);
        if sizes.first().is_some_and(|first| *first > 0) && ascends {
            Ok(Self { sizes })
        } else {
            Err(NoLadder(sizes))
        }
    }

    /// The ladder with the least expected cost of what the histogram holds, each size padded to its bucket, by exact
    /// dynamic programming; of those that cost the same the one with the fewest buckets.
    ///
    /// `cost` is what one execution of a bucket costs, as a fixed part and one for each unit, or as it was measured; it
    /// must not fall with the size, or a bucket between two sizes that come could cost less than both.
    ///
    /// # Panics
    /// When the top, the most buckets or the multiple is zero, or a cost falls with the size or is no number.
    pub fn choose(histogram: &Histogram, choice: Choice, cost: impl Fn(usize) -> f64) -> Self {
        assert!(
            choice.top > 0 && choice.buckets_max > 0 && choice.multiple > 0,
            "of a choice nothing is zero: {choice:?}"
        );
        let counted = rounded(histogram, choice);
        let costs: Vec<f64> = counted.iter().map(|(size, _)| cost(*size)).collect();
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]), "a larger bucket must not cost less");
        Self { sizes: cheapest(&counted, &costs, choice.buckets_max) }
    }

    /// The sizes, ascending.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The last and largest.
    pub fn top(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Which bucket, by its place in the ladder, holds so many; none beyond the top.
    pub fn holds(&self, size: usize) -> Option<usize> {
        let at = self.sizes.partition_point(|bucket| *bucket < size);
        (at < self.sizes.len()).then_some(at)
    }

    /// Which share of what would be computed is padding, where each size of the histogram runs alone, cut at the top.
    pub fn waste(&self, histogram: &Histogram) -> f64 {
        let (mut asked, mut padded) = (0.0, 0.0);
        for &(size, count) in histogram {
            let (tops, rest) = (size / self.top(), size % self.top());
            let last = if rest == 0 { 0 } else { self.holds(rest).map_or(self.top(), |at| self.sizes[at]) };
            asked += size as f64 * count as f64;
            padded += (tops * self.top() + last) as f64 * count as f64;
        }
        if padded > 0.0 { 1.0 - asked / padded } else { 0.0 }
    }
}

/// The histogram as the choice sees it: pieces beyond the top cut off, rounded up, each size once, ascending, and the top
/// with them, which is there whether it comes or not.
fn rounded(histogram: &Histogram, choice: Choice) -> Vec<(usize, f64)> {
    let mut counts = vec![0.0; choice.top + 1];
    for &(size, count) in histogram {
        let rest = size % choice.top;
        let up = rest.next_multiple_of(choice.multiple).min(choice.top);
        counts[choice.top] += (size / choice.top) as f64 * count as f64;
        counts[up] += count as f64; // where nothing is left over this is place 0, which is no bucket
    }
    let comes = |(size, count): &(usize, f64)| *size == choice.top || (*size > 0 && *count > 0.0);
    counts.into_iter().enumerate().filter(comes).collect()
}

/// The cheapest ladder of so many buckets at most, its last the last of these sizes.
///
/// `least[last]` is what all up to `last` cost if that is a bucket: the least, over the bucket before it, of what all up to
/// there cost and of those between, padded. Each round allows a bucket more.
fn cheapest(counted: &[(usize, f64)], costs: &[f64], buckets_max: usize) -> Vec<usize> {
    let mut below = vec![0.0; counted.len() + 1]; // how many are smaller than a place
    for (at, (_, count)) in counted.iter().enumerate() {
        below[at + 1] = below[at] + count;
    }
    let end = counted.len() - 1;
    let mut least: Vec<f64> = (0..=end).map(|last| below[last + 1] * costs[last]).collect();
    let mut before: Vec<Vec<Option<usize>>> = vec![vec![None; end + 1]]; // round by round: the bucket before
    for _ in 1..buckets_max.min(end + 1) {
        let mut next = least.clone();
        let mut from = vec![None; end + 1];
        for last in 1..=end {
            for previous in 0..last {
                let sum = least[previous] + (below[last + 1] - below[previous + 1]) * costs[last];
                if sum < next[last] {
                    (next[last], from[last]) = (sum, Some(previous));
                }
            }
        }
        least = next;
        before.push(from);
    }
    let mut sizes = vec![counted[end].0];
    let mut last = end;
    for from in before.iter().rev() {
        // A round in which a bucket more did not pay leaves the place as it was.
        if let Some(previous) = from[last] {
            sizes.push(counted[previous].0);
            last = previous;
        }
    }
    sizes.reverse();
    sizes
}
