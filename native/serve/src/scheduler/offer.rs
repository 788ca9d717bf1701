//! An offer: what a request asks of the scheduler, and whether it is admitted. It knows nothing of the features.

use std::fmt;

use super::tickets::Ticket;

/// A request that asks to be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Which version must make its scores.
    pub version: u64,
    /// How many candidates it has, at least one.
    pub candidates: usize,
    /// How long its longest sequence is.
    pub length: usize,
    /// By when its caller wants the answer.
    pub deadline_us: u64,
    /// 0 is served first.
    pub priority: u8,
}

/// A request that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Names it from now on.
    pub ticket: Ticket,
    /// How many of its candidates, from the first on, will have scores: all, unless it was cut down.
    pub candidates: usize,
    /// Requests of lower priority that made room for it and will have no answer.
    pub shed: Vec<Ticket>,
}

/// A request that was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// After how long it may be worth to ask again, in microseconds; 0 where it is not.
    pub retry_us: u64,
}

/// Why a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its deadline has passed already.
    Expired,
    /// Its sequence is longer than any executable takes.
    Length,
    /// As many requests wait as may.
    Requests,
    /// As many candidates wait as may.
    Candidates,
    /// With what waits and runs before it, it would not be done by its deadline, or another of its priority would not.
    Backlog,
    /// No lane is there to execute anything.
    Lanes,
}

impl Refused {
    pub(super) fn never(reason: Reason) -> Self {
        Self { reason, retry_us: 0 }
    }

    pub(super) fn after(reason: Reason, retry_us: f64) -> Self {
        Self { reason, retry_us: (retry_us as u64).max(1) }
    }

    /// The hint in milliseconds, rounded up.
    pub fn retry_ms(&self) -> u64 {
        self.retry_us.div_ceil(1000)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self.reason {
            Reason::Expired => "its deadline has passed",
            Reason::Length => "its sequence is longer than any executable takes",
            Reason::Requests => "as many requests wait as may",
            Reason::Candidates => "as many candidates wait as may",
            Reason::Backlog => "it could not be answered by its deadline",
            Reason::Lanes => "no lane is there to execute anything",
        };
        formatter.write_str(said)
    }
}
