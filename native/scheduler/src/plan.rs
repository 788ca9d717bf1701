//! A plan: the TensorBatch that one lane executes. Knows no queue.

use super::tickets::Ticket;

/// A TensorBatch: its candidates, its buckets and its version.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// A number that counts up from 0.
    pub id: u64,
    /// The version that scores all of it.
    pub version: u64,
    /// The bucket of the user graph, in users.
    pub users_bucket: usize,
    /// The bucket of the score graph, in candidates.
    pub candidates_bucket: usize,
    /// The sequence length of both graphs.
    pub length: usize,
    /// Its pieces, each of another request; each takes a row of the user graph.
    pub pieces: Vec<Piece>,
    /// The predicted duration, in microseconds.
    pub cost_us: f64,
    /// Whether it is a retry, alone, after a failure with others.
    pub is_again: bool,
    /// The indices of the buckets and of the length in their ladders.
    pub(super) places: Places,
}

/// A range of candidates of one request, from `from` to before `upto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The request.
    pub ticket: Ticket,
    /// The first candidate.
    pub from: usize,
    /// The end of the range.
    pub upto: usize,
}

/// Background work for one user, which no caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// The version that scores it.
    pub version: u64,
    /// The number of candidates.
    pub candidates: usize,
    /// The length of its longest sequence.
    pub length: usize,
}

/// Indices in the ladders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub users: usize,
    pub candidates: usize,
    pub length: usize,
}

impl Plan {
    /// Returns the number of candidates; the rest of the bucket is padding.
    pub fn candidates(&self) -> usize {
        self.pieces.iter().map(|piece| piece.upto - piece.from).sum()
    }
}

/// The result of a free lane's request for work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Next {
    /// The plan to execute; `None` if nothing waits.
    pub plan: Option<Plan>,
    /// Requests without an answer, because their deadline has passed or cannot be met.
    pub late: Vec<Ticket>,
}
