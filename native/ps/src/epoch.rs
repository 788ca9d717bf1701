//! The epoch: which run of training, and which recovery of it, a shard's tables and a caller's frames belong to.

use std::fmt;

/// A later one fences all earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// The trainer's fencing number.
    pub run: u64,
    /// How often that run recovered.
    pub recovery: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.run, self.recovery)
    }
}

/// An epoch there may be, as texts name it.
pub(crate) fn name(epoch: Option<Epoch>) -> String {
    epoch.map_or("none".to_owned(), |epoch| epoch.to_string())
}
