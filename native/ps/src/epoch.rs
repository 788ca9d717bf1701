//! The epoch of a shard's tables or of a request: a training run and its recovery count.

use std::fmt;

use crate::refusal::{Code, Refusal};

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

impl Epoch {
    /// Refuses a request of any other epoch than this one, the shard's.
    pub(crate) fn admit(self, request: Self) -> Result<(), Refusal> {
        if self == request { Ok(()) } else { Err(stale(request, Some(self))) }
    }
}

/// The refusal of a request of another epoch than the shard's.
pub(crate) fn stale(request: Epoch, shard: Option<Epoch>) -> Refusal {
    Refusal::new(
        Code::StaleEpoch,
        format!("the request belongs to epoch {request}, the shard is at {}", name(shard)),
    )
}

/// Formats an optional epoch.
pub(crate) fn name(epoch: Option<Epoch>) -> String {
    epoch.map_or("none".to_owned(), |epoch| epoch.to_string())
}
