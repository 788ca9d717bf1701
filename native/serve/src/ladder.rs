//! A ladder: the sizes that executables exist for, chosen from what comes. It knows neither users nor candidates.

use std::fmt;

/// How often each size came: (size, how often).
pub type Histogram = [(usize, u64)];

/// Bucket sizes, ascending; what is larger than the last is cut into pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    sizes: Vec<usize>,
}

/// Sizes that came, and what executions for them cost: one for each sequence length, whose executables differ.
pub struct Demand<'a> {
    /// How often each size came.
    pub histogram: &'a Histogram,
    /// What one execution of a bucket costs; it must not fall with the size.
    pub cost: &'a dyn Fn(usize) -> f64,
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
        let ladders = Self::choices(&[Demand { histogram, cost: &cost }], choice);
        ladders.into_iter().next_back().expect("a ladder of one bucket is always one")
    }

    /// The best ladder of one bucket, of two at most, and so on, as `choose` finds them, for all demands together; fewer
    /// than the most where a bucket for each size that came is less.
    ///
    /// # Panics
    /// As `choose` does, or where there is no demand.
    pub fn choices(demands: &[Demand<'_>], choice: Choice) -> Vec<Self> {
        assert!(
            choice.top > 0 && choice.buckets_max > 0 && choice.multiple > 0,
            "of a choice nothing is zero: {choice:?}"
        );
        assert!(!demands.is_empty(), "a ladder is chosen for something");
        let counts: Vec<Vec<f64>> = demands.iter().map(|one| rounded(one.histogram, choice)).collect();
        let comes = |size: &usize| *size == choice.top || counts.iter().any(|counts| counts[*size] > 0.0);
        let sizes: Vec<usize> = (1..=choice.top).filter(comes).collect();
        let priced = demands.iter().zip(&counts).map(|(one, counts)| {
            let costs: Vec<f64> = sizes.iter().map(|size| (one.cost)(*size)).collect();
            assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]), "a larger bucket must not cost less");
            Priced::new(sizes.iter().map(|size| counts[*size]), costs)
        });
        let priced: Vec<Priced> = priced.collect();
        let range = |from: usize, last: usize| priced.iter().map(|one| one.cost(from, last)).sum::<f64>();
        let chosen = cheapest(sizes.len(), range, choice.buckets_max).into_iter();
        chosen.map(|places| Self { sizes: places.into_iter().map(|at| sizes[at]).collect() }).collect()
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

    /// What all sizes of a histogram cost, each running alone, cut at the top.
    pub fn cost(&self, demand: &Demand<'_>) -> f64 {
        let each = |&(size, count): &(usize, u64)| {
            let rest = size % self.top();
            let last = self.holds(rest).filter(|_| rest > 0).map_or(0.0, |at| (demand.cost)(self.sizes[at]));
            let tops = size / self.top();
            let tops = if tops > 0 { tops as f64 * (demand.cost)(self.top()) } else { 0.0 };
            (tops + last) * count as f64
        };
        demand.histogram.iter().map(each).sum()
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

/// How often each size comes, by size, as the choice sees it: pieces beyond the top cut off, rounded up. Place 0, where
/// nothing is left over, is no bucket.
fn rounded(histogram: &Histogram, choice: Choice) -> Vec<f64> {
    let mut counts = vec![0.0; choice.top + 1];
    for &(size, count) in histogram {
        let rest = size % choice.top;
        let up = rest.next_multiple_of(choice.multiple).min(choice.top);
        counts[choice.top] += (size / choice.top) as f64 * count as f64;
        counts[up] += count as f64;
    }
    counts
}

/// One demand over the sizes that may be buckets.
struct Priced {
    /// How many are smaller than a place.
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

    /// What all from a place to `last` cost, padded to that.
    fn cost(&self, from: usize, last: usize) -> f64 {
        (self.below[last + 1] - self.below[from]) * self.costs[last]
    }
}

/// The cheapest ladders of one bucket, of two at most, and so on: places among so many sizes, the last of them in each.
///
/// `least[last]` is what all up to `last` cost if that is a bucket: the least, over the bucket before it, of what all up to
/// there cost and of those between, padded. Each round allows a bucket more.
fn cheapest(sizes: usize, range: impl Fn(usize, usize) -> f64, buckets_max: usize) -> Vec<Vec<usize>> {
    let end = sizes - 1;
    let mut least: Vec<f64> = (0..=end).map(|last| range(0, last)).collect();
    let mut before: Vec<Vec<Option<usize>>> = vec![vec![None; end + 1]]; // round by round: the bucket before
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
        // A round in which a bucket more did not pay leaves the place as it was.
        if let Some(previous) = from[last] {
            places.push(previous);
            last = previous;
        }
    }
    places.reverse();
    places
}
