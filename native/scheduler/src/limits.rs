//! The bounds of the scheduler, and its shapes. Knows nothing of waiting requests.

use super::allowance::AllowanceLimits;
use crate::ladder::Ladder;

/// The number of priorities; larger ones count as the last. 0 is served first.
pub const PRIORITIES: usize = 4;

/// The maximum number of sequence lengths: each one adds another set of executables.
pub const LENGTHS_MAX: usize = 2;

/// Bounds of waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of lanes, at least one.
    pub lanes: usize,
    /// The maximum number of waiting requests, at least one; beyond it, requests are refused or shed others
    /// of lower priority.
    pub requests_max: usize,
    /// The maximum number of waiting candidates, at least those of the largest request; beyond it as above.
    pub candidates_max: usize,
    /// The percentage of both that is reserved for priority 0.
    pub reserved_percent: u8,
    /// The maximum wait of a request in microseconds, whatever its deadline; at least one.
    pub wait_us_max: u64,
    /// How long before its deadline a request must be done by prediction at least, in microseconds; it grows while
    /// answers are late.
    pub slack_us: u64,
    /// What may be cut of a request on a pressed node; the reply states it. Off by default, because scores are
    /// missing.
    pub allowance: Option<AllowanceLimits>,
    /// Whether lasting overload refuses the same cohorts of users.
    pub by_cohort: bool,
}

/// The shapes that have executables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// Buckets of users; the last one is `users_max`, the maximum in a TensorBatch.
    pub users: Ladder,
    /// Buckets of candidates.
    pub candidates: Ladder,
    /// Sequence lengths, at most `LENGTHS_MAX`; `[1]` for a model without sequences.
    pub lengths: Ladder,
}

impl Limits {
    /// Returns the part of a bound that a priority may use.
    pub(super) fn open_to(&self, priority: usize, most: usize) -> usize {
        if priority == 0 { most } else { most - most * usize::from(self.reserved_percent.min(100)) / 100 }
    }
}

/// The key of a queue: a TensorBatch never mixes versions or lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// The version.
    pub version: u64,
    /// The index of the sequence length in its ladder.
    pub length: usize,
}
