//! A plan: how long requests are sent, when, and within what an answer counts.

use std::time::Duration;

use super::arrivals::Arrivals;

/// The longest run, in seconds; figures are kept of each.
pub const SECONDS_MAX: u32 = 3600;

/// What a run is to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// When a request is sent.
    pub pace: Pace,
    /// How long requests are sent that count, in seconds.
    pub seconds: u32,
    /// How long requests are sent before, which do not count.
    pub warmup: Duration,
    /// Within how long an answer is of use; the node is told of it. Without one every answer is of use.
    pub deadline: Option<Duration>,
    /// How long an answer is waited for where there is no deadline.
    pub answer_wait_max: Duration,
    /// How many requests may be without an answer; one that is due beyond that fails.
    pub outstanding_max: usize,
}

/// When a request is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// When it is due, whatever was answered.
    Open(Arrivals),
    /// When the same caller's request before it was answered.
    Closed {
        /// How many callers there are.
        callers: usize,
        /// What picks their messages.
        seed: u64,
    },
}

impl Plan {
    /// What is wrong with it.
    ///
    /// # Errors
    /// The text names what cannot be, with its value.
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
            return Err("an answer is waited for 0 ms, expected at least 1".into());
        }
        Ok(())
    }
}
