//! A plan: how long and when requests are sent, and when an answer counts.

use std::time::Duration;

use super::arrivals::Arrivals;

/// The maximum duration of a run in seconds; each second has counters of its own.
pub const SECONDS_MAX: u32 = 3600;

/// The plan of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// When requests are sent.
    pub pace: Pace,
    /// The duration of the measured part, in seconds.
    pub seconds: u32,
    /// The duration of the unmeasured warm-up before it.
    pub warmup: Duration,
    /// The deadline per request, sent to the node; without one, every answer counts.
    pub deadline: Option<Duration>,
    /// How long to wait for an answer without a deadline.
    pub answer_wait_max: Duration,
    /// The maximum number of open requests; a request due beyond it fails.
    pub outstanding_max: usize,
    /// Whether the tally keeps the answer to each request.
    pub keeps_answers: bool,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// On a schedule, independent of answers.
    Open(Arrivals),
    /// When the caller's previous request was answered.
    Closed {
        /// The number of callers.
        callers: usize,
        /// The seed for picking messages.
        seed: u64,
    },
}

impl Plan {
    /// Checks the plan.
    ///
    /// # Errors
    /// A text that names the invalid value.
    pub fn check(&self) -> Result<(), String> {
        match self.pace {
            Pace::Open(arrivals) => arrivals.check()?,
            Pace::Closed { callers: 0, .. } => return Err("0 callers, expected at least 1".into()),
            Pace::Closed { .. } => {}
        }
        if !(1..=SECONDS_MAX).contains(&self.seconds) {
            return Err(format!("{} seconds, expected 1 to {SECONDS_MAX}", self.seconds));
        }
        if self.outstanding_max == 0 {
            return Err("outstanding_max is 0, expected at least 1".into());
        }
        if self.deadline.unwrap_or(self.answer_wait_max).is_zero() {
            return Err("the wait for an answer is 0 ms, expected at least 1".into());
        }
        Ok(())
    }
}
