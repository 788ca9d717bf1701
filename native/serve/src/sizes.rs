//! Sizes: counts of request and TensorBatch sizes, for choosing ladders.

use serde_json::{Value, json};

use streamlearn_scheduler::{Plan, Scheduler, Shapes};

/// Larger requests count as this many candidates.
const REQUEST_MAX: usize = 65_536;

/// Counts by size, up to a maximum size.
#[derive(Debug)]
struct Counts {
    counts: Vec<u64>,
}

impl Counts {
    fn upto(size_max: usize) -> Self {
        Self { counts: vec![0; size_max + 1] }
    }

    fn add(&mut self, size: usize) {
        let last = self.counts.len() - 1;
        self.counts[size.min(last)] += 1;
    }

    /// The observed sizes with their counts.
    fn page(&self) -> Value {
        let observed = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        observed.map(|(size, count)| json!([size, count])).collect()
    }
}

/// The rows a graph was run with, and their padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rows {
    /// All rows.
    pub run: u64,
    /// Padding rows.
    pub padding: u64,
}

impl Rows {
    fn add(&mut self, bucket: usize, used: usize) {
        self.run += bucket as u64;
        self.padding += (bucket - used) as u64;
    }
}

/// Counters since the node started. Counting a request or TensorBatch takes one or two additions.
#[derive(Debug)]
pub struct Sizes {
    lengths: Vec<usize>,
    /// TensorBatches, by the index of their length.
    users: Vec<Counts>,
    candidates: Vec<Counts>,
    /// Requests: their candidates, and the lengths of their histories.
    requests: Counts,
    histories: Counts,
    user: Rows,
    score: Rows,
}

impl Sizes {
    /// Creates empty counters.
    pub fn new(shapes: &Shapes) -> Self {
        let lengths = shapes.lengths.sizes().to_vec();
        let counters = |top: usize| lengths.iter().map(|_| Counts::upto(top)).collect();
        Self {
            users: counters(shapes.users.top()),
            candidates: counters(shapes.candidates.top()),
            requests: Counts::upto(REQUEST_MAX),
            histories: Counts::upto(shapes.lengths.top()),
            user: Rows::default(),
            score: Rows::default(),
            lengths,
        }
    }

    /// Counts an admitted request.
    pub fn admitted(&mut self, candidates: usize, history: usize) {
        self.requests.add(candidates);
        self.histories.add(history);
    }

    /// Counts a TensorBatch.
    pub fn merged(&mut self, plan: &Plan) {
        let at = self.lengths.partition_point(|length| *length < plan.length);
        let (users, candidates) = (plan.pieces.len(), plan.candidates());
        self.users[at].add(users);
        self.candidates[at].add(candidates);
        self.user.add(plan.users_bucket, users);
        self.score.add(plan.candidates_bucket, candidates);
    }

    /// Returns the rows of the user graph and of the score graph.
    pub fn rows(&self) -> (Rows, Rows) {
        (self.user, self.score)
    }

    /// Returns the counters as JSON, with the ladders and the costs of their buckets.
    pub fn page(&self, scheduler: &Scheduler) -> Value {
        let (shapes, costs) = (scheduler.shapes(), scheduler.costs());
        let indices = |count: usize| 0..count;
        let of_lengths = |buckets: usize, us: &dyn Fn(usize, usize) -> f64| -> Value {
            let of = |length| indices(buckets).map(|bucket| us(bucket, length)).collect::<Vec<f64>>();
            indices(self.lengths.len()).map(of).collect()
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
            "formed": indices(self.lengths.len()).map(formed).collect::<Value>(),
            "requests": { "candidates": self.requests.page(), "histories": self.histories.page() },
            "user_rows": rows(self.user),
            "score_rows": rows(self.score),
        })
    }
}
