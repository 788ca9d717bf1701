//! Arrivals: the recent work of each priority, which predicts how much urgent work will overtake a request.
//! Knows no request.

use super::limits::PRIORITIES;

/// Urgent work is never predicted to take all lanes, because the prediction is rough.
const SHARE_MAX: f64 = 0.95;

/// The admitted work by priority; older work weighs less.
#[derive(Debug)]
pub(super) struct ArrivalRate {
    /// The time after which work weighs 1/e as much.
    span_us: f64,
    at_us: u64,
    work_us: [f64; PRIORITIES],
}

impl ArrivalRate {
    pub fn new(span_us: u64) -> Self {
        Self { span_us: span_us as f64, at_us: 0, work_us: [0.0; PRIORITIES] }
    }

    pub fn add(&mut self, now_us: u64, priority: usize, work_us: f64) {
        let faded = self.faded(now_us);
        self.work_us.iter_mut().for_each(|sum| *sum *= faded);
        self.at_us = self.at_us.max(now_us);
        self.work_us[priority] += work_us;
    }

    /// Returns the share of the lanes that is left after more urgent work.
    pub fn left_by_better(&self, now_us: u64, priority: usize, lanes: usize) -> f64 {
        let work_us: f64 = self.work_us[..priority].iter().sum();
        let lanes_busy = work_us * self.faded(now_us) / self.span_us;
        1.0 - (lanes_busy / lanes.max(1) as f64).min(SHARE_MAX)
    }

    fn faded(&self, now_us: u64) -> f64 {
        (-(now_us.saturating_sub(self.at_us) as f64) / self.span_us).exp()
    }
}
