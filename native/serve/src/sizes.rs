//! Sizes: how large requests were, and the TensorBatches that were formed of them, for ladders to be chosen from.

use serde_json::{Value, json};

use crate::scheduler::{Plan, Scheduler, Shapes};

/// Requests of more candidates are counted as of so many.
const REQUEST_MAX: usize = 65_536;

/// How often each size came, at most so many sizes.
#[derive(Debug)]
struct Counts {
    counts: Vec<u64>,
}

impl Counts {
    fn upto(most: usize) -> Self {
        Self { counts: vec![0; most + 1] }
    }

    fn add(&mut self, size: usize) {
        let last = self.counts.len() - 1;
        self.counts[size.min(last)] += 1;
    }

    /// The sizes that came, each with how often.
    fn page(&self) -> Value {
        let came = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        came.map(|(size, count)| json!([size, count])).collect()
    }
}

/// Rows that a graph was run with, and how many of them were padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rows {
    /// All of them.
    pub run: u64,
    /// Those that were nobody's.
    pub padding: u64,
}

impl Rows {
    fn add(&mut self, bucket: usize, held: usize) {
        self.run += bucket as u64;
        self.padding += (bucket - held) as u64;
    }
}

/// What came since the node started. A TensorBatch or a request counts with an addition or two.
#[derive(Debug)]
pub struct Sizes {
    lengths: Vec<usize>,
    /// Of TensorBatches, by the place of their length.
    users: Vec<Counts>,
    candidates: Vec<Counts>,
    /// Of requests: their candidates, and how long their histories were.
    requests: Counts,
    histories: Counts,
    user: Rows,
    score: Rows,
}

impl Sizes {
    /// Nothing came yet.
    pub fn new(shapes: &Shapes) -> Self {
        let lengths = shapes.lengths.sizes().to_vec();
        let of = |top: usize| lengths.iter().map(|_| Counts::upto(top)).collect();
        Self {
            users: of(shapes.users.top()),
            candidates: of(shapes.candidates.top()),
            requests: Counts::upto(REQUEST_MAX),
            histories: Counts::upto(shapes.lengths.top()),
            user: Rows::default(),
            score: Rows::default(),
            lengths,
        }
    }

    /// A request was let in.
    pub fn asked(&mut self, candidates: usize, history: usize) {
        self.requests.add(candidates);
        self.histories.add(history);
    }

    /// A TensorBatch was formed.
    pub fn formed(&mut self, plan: &Plan) {
        let at = self.lengths.partition_point(|length| *length < plan.length);
        let (users, candidates) = (plan.pieces.len(), plan.candidates());
        self.users[at].add(users);
        self.candidates[at].add(candidates);
        self.user.add(plan.users_bucket, users);
        self.score.add(plan.candidates_bucket, candidates);
    }

    /// Rows of the user graph and of the score graph.
    pub fn rows(&self) -> (Rows, Rows) {
        (self.user, self.score)
    }

    /// All of it, with the ladders there are and what their buckets cost.
    pub fn page(&self, scheduler: &Scheduler) -> Value {
        let (shapes, costs) = (scheduler.shapes(), scheduler.costs());
        let places = |count: usize| 0..count;
        let of_lengths = |buckets: usize, us: &dyn Fn(usize, usize) -> f64| -> Value {
            let of = |length| places(buckets).map(|bucket| us(bucket, length)).collect::<Vec<f64>>();
            places(self.lengths.len()).map(of).collect()
        };
        let (users, candidates) = (shapes.users.sizes(), shapes.candidates.sizes());
        let rows = |rows: Rows| json!({ "run": rows.run, "padding": rows.padding });
        let formed = |at: usize| {
            let (users, candidates) = (self.users[at].page(), self.candidates[at].page());
            json!({ "length": self.lengths[at], "users": users, "candidates": candidates })
        };
        json!({
            "users_buckets": users,
            "candidates_buckets": candidates,
            "lengths": self.lengths,
            "user_us": of_lengths(users.len(), &|bucket, length| costs.user_us(bucket, length)),
            "score_us": of_lengths(candidates.len(), &|bucket, length| costs.score_us(bucket, length)),
            "formed": places(self.lengths.len()).map(formed).collect::<Value>(),
            "requests": { "candidates": self.requests.page(), "histories": self.histories.page() },
            "user_rows": rows(self.user),
            "score_rows": rows(self.score),
        })
    }
}
