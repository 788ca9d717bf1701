//! An offer: a request as the scheduler sees it, and the outcome of its admission. Knows nothing of the
//! features.

use std::fmt;

use super::allowance::Worth;
use super::tickets::Ticket;

/// A request that is offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offer<'a> {
    /// The version that must score it.
    pub version: u64,
    /// The number of candidates, at least one.
    pub candidates: usize,
    /// The length of its longest sequence.
    pub length: usize,
    /// The deadline.
    pub deadline_us: u64,
    /// 0 is served first.
    pub priority: u8,
    /// Its user's cohort, below `COHORTS`.
    pub cohort: u8,
    /// What it is worth, beside others.
    pub worth: Worth<'a>,
}

/// An admitted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Identifies the request from now on.
    pub ticket: Ticket,
    /// How many candidates, from the first on, will be scored: all, unless the request was cut.
    pub candidates: usize,
    /// How many of the newest values of its histories will be read, if they were cut.
    pub length: Option<usize>,
    /// Requests of lower priority that were shed for it; they get no answer.
    pub shed: Vec<Ticket>,
}

/// A refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub reason: Reason,
    /// When it may help to try again, in microseconds; 0 if it will not.
    pub retry_us: u64,
}

/// The reason of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The deadline has already passed.
    Expired,
    /// The sequence is longer than any executable supports.
    Length,
    /// The bound of waiting requests is reached.
    Requests,
    /// The bound of waiting candidates is reached.
    Candidates,
    /// It would not be done by its deadline, or another request of its priority would not.
    Backlog,
    /// Its user is of a cohort that overload closes.
    Cohort,
    /// Its time is worth more to others.
    Price,
    /// No lane is present.
    Lanes,
}

impl Refused {
    pub(super) fn never(reason: Reason) -> Self {
        Self { reason, retry_us: 0 }
    }

    pub(super) fn after(reason: Reason, retry_us: f64) -> Self {
        Self { reason, retry_us: (retry_us as u64).max(1) }
    }

    /// Returns the retry hint in milliseconds, rounded up.
    pub fn retry_ms(&self) -> u64 {
        self.retry_us.div_ceil(1000)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self.reason {
            Reason::Expired => "the deadline has passed",
            Reason::Length => "the sequence is longer than any executable supports",
            Reason::Requests => "the limit of waiting requests is reached",
            Reason::Candidates => "the limit of waiting candidates is reached",
            Reason::Backlog => "the request cannot be answered by its deadline",
            Reason::Cohort => "the node is overloaded, and serves other users for now",
            Reason::Price => "the node is pressed, and other requests are worth more",
            Reason::Lanes => "no lane is present",
        };
        formatter.write_str(said)
    }
}
