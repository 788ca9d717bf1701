//! The epoch of a shard's tables or of a request: a training run and its recovery count.

use std::fmt;

/// An epoch; a later one fences all earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// The trainer's fencing number.
    pub run: u64,
    /// The number of recoveries in that run.
    pub recovery: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.run, self.recovery)
    }
}

/// Formats an optional epoch.
pub(crate) fn name(epoch: Option<Epoch>) -> String {
    epoch.map_or("none".to_owned(), |epoch| epoch.to_string())
}
