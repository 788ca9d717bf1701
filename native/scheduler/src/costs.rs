//! Costs: the measured duration of an execution of each bucket. Knows no requests and no time of day.

use super::allowance::UnitCosts;
use super::limits::Shapes;

/// How far an execution moves the cost of its own bucket, and of the others.
const OWN_WEIGHT: f64 = 1.0 / 8.0;
const OTHER_WEIGHT: f64 = 1.0 / 128.0;
/// The maximum factor by which an execution counts as slower or faster than predicted: a single stall must
/// not change costs much.
const SURPRISE_MAX: f64 = 4.0;

/// The duration of an execution, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// The user graph.
    pub user_us: f64,
    /// The score graph.
    pub score_us: f64,
}

/// The predicted duration of every executable: warm-up's measurement times the slowdown since.
#[derive(Debug, Clone)]
pub struct Costs {
    user: Graph,
    score: Graph,
}

impl Costs {
    /// Creates costs from warm-up's measurements: microseconds of each (bucket, sequence length) of both
    /// graphs.
    ///
    /// # Panics
    /// If one is not a number above 0.
    pub fn measured(
        shapes: &Shapes,
        user_us: impl Fn(usize, usize) -> f64,
        score_us: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let lengths = shapes.lengths.sizes();
        let user = Graph::measured(shapes.users.sizes(), lengths, user_us);
        Self { user, score: Graph::measured(shapes.candidates.sizes(), lengths, score_us) }
    }

    /// Returns the cost of the user graph; buckets and lengths are indices in their ladders.
    pub fn user_us(&self, bucket: usize, length: usize) -> f64 {
        self.user.us(bucket, length)
    }

    /// Returns the cost of the score graph.
    pub fn score_us(&self, bucket: usize, length: usize) -> f64 {
        self.score.us(bucket, length)
    }

    /// Returns the cost of a TensorBatch.
    pub fn us(&self, users: usize, candidates: usize, length: usize) -> f64 {
        self.user.us(users, length) + self.score.us(candidates, length)
    }

    /// Returns the lowest cost of a candidate over the buckets, and of a user.
    pub(super) fn rates(&self, length: usize) -> (f64, f64) {
        (self.score.rates[length], self.user.rates[length])
    }

    /// Returns what a request takes of TensorBatches that are filled with requests like it.
    pub(super) fn units(&self, length: usize) -> UnitCosts {
        let ((user, request_us), (score, candidate_us)) = (self.user.line(length), self.score.line(length));
        let (users_max, candidates_max) = (self.user.top(), self.score.top());
        UnitCosts {
            request_us,
            candidate_us,
            shared_us: (user + score) / candidates_max,
            shared_from: candidates_max / users_max,
        }
    }

    /// Learns from an execution. The executed bucket learns most. The others follow slowly, because a
    /// slowdown usually affects all of them, and because a bucket that once looked expensive would not be
    /// chosen and so never corrected.
    pub(super) fn learn(&mut self, users: usize, candidates: usize, length: usize, took: Took) {
        self.user.learn(users, length, took.user_us);
        self.score.learn(candidates, length, took.score_us);
    }
}

/// The executables of one graph.
#[derive(Debug, Clone)]
struct Graph {
    sizes: Vec<usize>,
    /// Warm-up's microseconds and the current slowdown factors, bucket by bucket within each length.
    warm_us: Vec<f64>,
    slower: Vec<f64>,
    /// The lowest cost of a unit over the buckets, by length.
    rates: Vec<f64>,
}

impl Graph {
    fn measured(sizes: &[usize], lengths: &[usize], us: impl Fn(usize, usize) -> f64) -> Self {
        let warm_us: Vec<f64> =
            lengths.iter().flat_map(|length| sizes.iter().map(|size| us(*size, *length))).collect();
        assert!(
            warm_us.iter().all(|us| us.is_finite() && *us > 0.0),
            "costs must be numbers above 0: {warm_us:?}"
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

    /// The most units of an execution.
    fn top(&self) -> f64 {
        self.sizes.last().map_or(1.0, |size| *size as f64)
    }

    /// Returns what an execution costs in any case, and each unit in addition.
    fn line(&self, length: usize) -> (f64, f64) {
        let last = self.sizes.len() - 1;
        let (first_us, top_us) = (self.us(0, length), self.us(last, length));
        let first = self.sizes[0] as f64;
        let unit_us = ((top_us - first_us) / (self.top() - first).max(1.0)).max(0.0);
        ((first_us - unit_us * first).max(0.0), unit_us)
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
        assert!((costs.score_us(0, 1) / 26.0 - 2.0).abs() < 0.01, "in the end all buckets are as slow");
        assert!((costs.user_us(1, 1) - 4.0).abs() < 1e-9, "the other graph is unaffected");
    }

    #[test]
    fn one_stall_is_not_what_things_cost() {
        let mut costs = costs();
        costs.learn(0, 0, 0, Took { user_us: 1.0, score_us: 1e9 });
        assert!(costs.score_us(0, 0) < 18.0 * 1.5);
    }

    #[test]
    fn what_a_tensor_batch_costs_in_any_case_is_shared_by_what_fills_it() {
        let units = costs().units(0);
        assert!((units.us(20) - (1.0 + 20.0 + 8.0)).abs() < 1e-9, "it fills one alone");
        assert!((units.us(10) - (1.0 + 10.0 + 4.0)).abs() < 1e-9, "two fill one");
        assert!((units.us(1) - (1.0 + 1.0 + 2.0)).abs() < 1e-9, "more than four do not fit");
    }

    #[test]
    fn a_candidate_costs_least_where_it_costs_least() {
        let (candidate_us, user_us) = costs().rates(0);
        assert!((candidate_us - 28.0 / 20.0).abs() < 1e-9 && (user_us - 1.0).abs() < 1e-9);
    }
}
