//! Retries: pieces whose TensorBatch failed with others in it. Each is executed once more, alone, so that a
//! bad request does not harm others. Knows no cost and no lane.

use super::limits::Key;
use super::plan::Piece;
use super::tickets::Ticket;

/// A piece that waits to be executed alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alone {
    pub key: Key,
    pub priority: usize,
    pub deadline_us: u64,
    pub order: u64,
    pub piece: Piece,
}

impl Alone {
    pub fn candidates(&self) -> usize {
        self.piece.upto - self.piece.from
    }

    /// The serving order: the smallest is served first.
    pub fn turn(&self) -> (usize, u64, u64) {
        (self.priority, self.deadline_us, self.order)
    }
}

/// All retries. There are never more than the pieces that lanes were executing, so a linear search is enough.
#[derive(Debug, Default)]
pub(super) struct Again {
    waiting: Vec<Alone>,
}

impl Again {
    pub fn push(&mut self, alone: Alone) {
        self.waiting.push(alone);
    }

    /// Returns the retry to serve first.
    pub fn head(&self) -> Option<&Alone> {
        self.waiting.iter().min_by_key(|alone| (alone.turn(), alone.piece.from))
    }

    pub fn take_head(&mut self) -> Option<Alone> {
        let head = self.head()?.piece;
        let at = self.waiting.iter().position(|alone| alone.piece == head)?;
        Some(self.waiting.swap_remove(at))
    }

    /// Removes the retries of a request.
    pub fn remove(&mut self, ticket: Ticket) -> Vec<Alone> {
        let is_of = |alone: &Alone| alone.piece.ticket == ticket;
        let found: Vec<Alone> = self.waiting.iter().copied().filter(is_of).collect();
        if !found.is_empty() {
            self.waiting.retain(|alone| !is_of(alone));
        }
        found
    }

    /// Returns the retry of the lowest priority, and among these of the latest deadline.
    pub fn last(&self) -> Option<&Alone> {
        self.waiting.iter().max_by_key(|alone| alone.turn())
    }

    /// Returns the requests whose deadline has passed.
    pub fn expired(&self, now_us: u64) -> impl Iterator<Item = Ticket> {
        self.waiting.iter().filter(move |alone| alone.deadline_us <= now_us).map(|alone| alone.piece.ticket)
    }

    pub fn deadline_us(&self) -> Option<u64> {
        self.waiting.iter().map(|alone| alone.deadline_us).min()
    }
}
