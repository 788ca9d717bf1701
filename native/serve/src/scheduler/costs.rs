//! Costs: how long an execution of each bucket takes, as measured. They know no requests and no time of day.

use super::limits::Shapes;

/// How far one execution moves the cost of its own bucket, and that of the others.
const OWN_WEIGHT: f64 = 1.0 / 8.0;
const OTHER_WEIGHT: f64 = 1.0 / 128.0;
/// An execution counts as at most so many times slower or faster than predicted: one stall is not what things cost.
const SURPRISE_MAX: f64 = 4.0;

/// What an execution took, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// The user graph.
    pub user_us: f64,
    /// The score graph.
    pub score_us: f64,
}

/// Predicted microseconds of every executable: what warm-up measured, times how much slower they became since.
#[derive(Debug, Clone)]
pub struct Costs {
    user: Graph,
    score: Graph,
}

impl Costs {
    /// What warm-up measured: microseconds of each (bucket, sequence length) of both graphs.
    ///
    /// # Panics
    /// When one is not a number above 0.
    pub fn measured(
        shapes: &Shapes,
        user_us: impl Fn(usize, usize) -> f64,
        score_us: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let lengths = shapes.lengths.sizes();
        let user = Graph::measured(shapes.users.sizes(), lengths, user_us);
        Self { user, score: Graph::measured(shapes.candidates.sizes(), lengths, score_us) }
    }

    /// What the user graph costs; buckets and lengths are places in their ladders.
    pub fn user_us(&self, bucket: usize, length: usize) -> f64 {
        self.user.us(bucket, length)
    }

    /// What the score graph costs.
    pub fn score_us(&self, bucket: usize, length: usize) -> f64 {
        self.score.us(bucket, length)
    }

    /// What a TensorBatch costs.
    pub fn us(&self, users: usize, candidates: usize, length: usize) -> f64 {
        self.user.us(users, length) + self.score.us(candidates, length)
    }

    /// What a candidate costs at least, in the bucket where it costs least, and what its user adds.
    pub(super) fn rates(&self, length: usize) -> (f64, f64) {
        (self.score.rates[length], self.user.rates[length])
    }

    /// Learn from an execution. The bucket that ran learns most; the others follow slowly, because what slows one
    /// down mostly slows all, and because a bucket that once looked dear would not be chosen and so never corrected.
    pub(super) fn learn(&mut self, users: usize, candidates: usize, length: usize, took: Took) {
        self.user.learn(users, length, took.user_us);
        self.score.learn(candidates, length, took.score_us);
    }
}

/// The executables of one graph.
#[derive(Debug, Clone)]
struct Graph {
    sizes: Vec<usize>,
    /// Warm-up's microseconds, and how many times of that they take now; bucket by bucket within each length.
    warm_us: Vec<f64>,
    slower: Vec<f64>,
    /// The least that a unit costs in any bucket, by length.
    rates: Vec<f64>,
}

impl Graph {
    fn measured(sizes: &[usize], lengths: &[usize], us: impl Fn(usize, usize) -> f64) -> Self {
        let warm_us: Vec<f64> =
            lengths.iter().flat_map(|length| sizes.iter().map(|size| us(*size, *length))).collect();
        assert!(
            warm_us.iter().all(|us| us.is_finite() && *us > 0.0),
            "costs are numbers above 0: {warm_us:?}"
        );
        let slower = vec![1.0; warm_us.len()];
        let mut graph = Self { sizes: sizes.to_vec(), warm_us, slower, rates: vec![0.0; lengths.len()] };
        (0..lengths.len()).for_each(|length| graph.rate(length));
        graph
    }

    fn us(&self, bucket: usize, length: usize) -> f64 {
        let at = length * self.sizes.len() + bucket;
        self.warm_us[at] * self.slower[at]
    }

    fn learn(&mut self, bucket: usize, length: usize, took_us: f64) {
        let at = length * self.sizes.len() + bucket;
        let now = self.slower[at];
        let ratio = (took_us / self.warm_us[at]).clamp(now / SURPRISE_MAX, now * SURPRISE_MAX);
        for slower in &mut self.slower {
            *slower += OTHER_WEIGHT * (ratio - *slower);
        }
        self.slower[at] = now + OWN_WEIGHT * (ratio - now);
        (0..self.rates.len()).for_each(|length| self.rate(length));
    }

    fn rate(&mut self, length: usize) {
        let units =
            self.sizes.iter().enumerate().map(|(bucket, size)| self.us(bucket, length) / *size as f64);
        self.rates[length] = units.fold(f64::INFINITY, f64::min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Ladder;

    fn costs() -> Costs {
        let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
        let shapes =
            Shapes { users: ladder(&[1, 4]), candidates: ladder(&[10, 20]), lengths: ladder(&[8, 16]) };
        Costs::measured(&shapes, |users, _| users as f64, |candidates, length| (candidates + length) as f64)
    }

    #[test]
    fn a_bucket_comes_to_cost_what_it_takes_and_the_others_follow_slowly() {
        let mut costs = costs();
        (0..16).for_each(|_| costs.learn(0, 1, 0, Took { user_us: 1.0, score_us: 56.0 }));
        let (own, other) = (costs.score_us(1, 0) / 28.0, costs.score_us(0, 1) / 26.0);
        assert!((1.8..2.0).contains(&own), "{own} times as much");
        assert!((1.05..1.2).contains(&other), "{other} times as much");
        (0..1000).for_each(|_| costs.learn(0, 1, 0, Took { user_us: 1.0, score_us: 56.0 }));
        assert!((costs.score_us(0, 1) / 26.0 - 2.0).abs() < 0.01, "at last all are taken to be as slow");
        assert!((costs.user_us(1, 1) - 4.0).abs() < 1e-9, "but not the other graph");
    }

    #[test]
    fn one_stall_is_not_what_things_cost() {
        let mut costs = costs();
        costs.learn(0, 0, 0, Took { user_us: 1.0, score_us: 1e9 });
        assert!(costs.score_us(0, 0) < 18.0 * 1.5);
    }

    #[test]
    fn a_candidate_costs_least_where_it_costs_least() {
        let (candidate_us, user_us) = costs().rates(0);
        assert!((candidate_us - 28.0 / 20.0).abs() < 1e-9 && (user_us - 1.0).abs() < 1e-9);
    }
}
