//! What the scheduler is bound by, and the shapes it may fill. They know nothing of what waits.

use crate::ladder::Ladder;

/// How many priorities there are; what is beyond the last is taken as the last. 0 is served first.
pub const PRIORITIES: usize = 4;

/// How many sequence lengths there may be: each doubles the executables.
pub const LENGTHS_MAX: usize = 2;

/// Bounds of what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many lanes there are, at least one.
    pub lanes: usize,
    /// How many requests may wait, at least one; what comes beyond them is refused, or sheds a request of lower priority.
    pub requests_max: usize,
    /// How many candidates may wait, as many as one request may have at least; beyond them it is the same.
    pub candidates_max: usize,
    /// This share of both is kept free for requests of priority 0, in percent.
    pub reserved_percent: u8,
    /// The longest a request may wait, whatever its own deadline allows, in microseconds, at least one.
    pub wait_us_max: u64,
    /// How long before its deadline a request should be done by prediction to be admitted, in microseconds: room for
    /// executions that take longer than predicted, and for the way back of the answer.
    pub slack_us: u64,
    /// Under pressure, which is where a request would wait for more than half of its time or be refused, it is cut down to
    /// its first so many candidates; its caller is told how many are left. Off by default: scores would be missing.
    pub degraded_candidates: Option<usize>,
}

/// The shapes that executables exist for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// Buckets of users; the last is `users_max`, how many a TensorBatch holds at most.
    pub users: Ladder,
    /// Buckets of candidates.
    pub candidates: Ladder,
    /// Sequence lengths, `LENGTHS_MAX` at most; `[1]` for a model that has no sequences.
    pub lengths: Ladder,
}

impl Limits {
    /// How many of a bound are open to a priority.
    pub(super) fn open_to(&self, priority: usize, most: usize) -> usize {
        if priority == 0 { most } else { most - most * usize::from(self.reserved_percent.min(100)) / 100 }
    }
}

/// Which queue a request waits in: requests of different versions or lengths are never in one TensorBatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// What makes its scores.
    pub version: u64,
    /// Its sequence length, as a place in the ladder of lengths.
    pub length: usize,
}
