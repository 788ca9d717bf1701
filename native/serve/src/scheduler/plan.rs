//! A plan: what one lane executes as one TensorBatch. It knows no queue.

use super::tickets::Ticket;

/// One TensorBatch: which candidates of which requests, in which buckets, by which version.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Counts up from 0.
    pub id: u64,
    /// The one version that makes all its scores.
    pub version: u64,
    /// The bucket of the user graph: for how many users.
    pub users_bucket: usize,
    /// The bucket of the score graph: for how many candidates.
    pub candidates_bucket: usize,
    /// The sequence length of both.
    pub length: usize,
    /// Its candidates; each piece is of another request and takes one place among the users.
    pub pieces: Vec<Piece>,
    /// What it should take, in microseconds.
    pub cost_us: f64,
    /// Whether it was executed before, with others, and that failed.
    pub is_again: bool,
    /// Places of the buckets and of the length in their ladders.
    pub(super) places: Places,
}

/// Candidates of one request, those from `from` up to and without `upto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The request.
    pub ticket: Ticket,
    /// The first candidate.
    pub from: usize,
    /// The first that is not of this piece.
    pub upto: usize,
}

/// Work that nobody waits for, of one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// The version that makes its scores.
    pub version: u64,
    /// How many candidates it has.
    pub candidates: usize,
    /// How long its longest sequence is.
    pub length: usize,
}

/// Places in the ladders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub users: usize,
    pub candidates: usize,
    pub length: usize,
}

impl Plan {
    /// How many candidates it holds; the rest of its bucket is padding.
    pub fn candidates(&self) -> usize {
        self.pieces.iter().map(|piece| piece.upto - piece.from).sum()
    }
}

/// What a lane that is free hears.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Next {
    /// What to execute; none where nothing waits.
    pub plan: Option<Plan>,
    /// Requests that will have no answer because their deadline has passed or cannot be met any more.
    pub late: Vec<Ticket>,
}
