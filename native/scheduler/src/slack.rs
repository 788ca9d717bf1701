//! Slack: how long before its deadline a request must be done by prediction. Knows no queue and no clock.
//!
//! A caller's clock begins before the node reads the request, and the node's predictions may be wrong. Both show only
//! when requests are late, so the margin follows the share of late ones.

/// How fast the margin grows: with a fifth of the requests late, by 10 ms in half a second.
const GROW: f64 = 0.1;
/// The share of late requests from which on it grows.
const LATE_SHARE: f64 = 0.01;
/// The time after which a third of it is left without late requests.
const FORGET_US: f64 = 10e6;
/// The time over which requests are counted, in microseconds. After a longer pause the counts begin at zero.
const SPAN_US: u64 = 10_000;
const SPAN_US_MAX: u64 = 50_000;
/// The margin is at most this share of a request's time, and only requests that have more time are counted: a deadline
/// that no node could keep says nothing.
const SHARE_MAX: f64 = 0.5;
const US_MAX: f64 = 50_000.0;

/// The margin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slack {
    least_us: f64,
    us: f64,
    since_us: u64,
    /// Requests that ended since then, and late ones among them.
    ended: u32,
    late: u32,
}

impl Slack {
    pub fn new(least_us: u64) -> Self {
        Self { least_us: least_us as f64, us: least_us as f64, since_us: 0, ended: 0, late: 0 }
    }

    /// Returns the margin of a request that has time enough, as it is now: it is forgotten without requests too.
    pub fn us_at(&self, now_us: u64) -> f64 {
        let passed_us = now_us.saturating_sub(self.since_us) as f64;
        self.least_us + (self.us - self.least_us) * (-passed_us / FORGET_US).exp()
    }

    /// Returns the margin of a request that has so much time.
    pub fn us_of(&self, time_us: f64) -> f64 {
        self.us.min(time_us * SHARE_MAX).max(self.least_us)
    }

    /// Whether a caller that hangs up with so much of its time left saw the deadline pass by its own clock.
    pub fn is_late(time_us: f64, left_us: f64) -> bool {
        left_us < (time_us * SHARE_MAX).min(US_MAX)
    }

    /// Learns from the end of a request that was admitted with so much time.
    pub fn learn(&mut self, now_us: u64, time_us: f64, is_late: bool) {
        if self.us <= time_us * SHARE_MAX {
            (self.ended, self.late) = (self.ended + 1, self.late + u32::from(is_late));
        }
        let span_us = now_us.saturating_sub(self.since_us);
        if span_us < SPAN_US {
            return;
        }
        self.us = self.us_at(now_us);
        if span_us <= SPAN_US_MAX {
            let share = f64::from(self.late) / f64::from(self.ended.max(1));
            let next_us = self.us + GROW * span_us as f64 * (share - LATE_SHARE);
            self.us = next_us.clamp(self.least_us, US_MAX.max(self.least_us));
        }
        (self.since_us, self.ended, self.late) = (now_us, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME_US: f64 = 50_000.0;

    #[test]
    fn the_margin_grows_until_about_one_answer_in_a_hundred_is_late() {
        let (mut slack, mut now_us, mut late) = (Slack::new(2_000), 0, 0);
        for at in 0..100_000_u32 {
            // Answers take 8 to 10 ms more than the node sees.
            let unseen_us =
                8_000.0 + f64::from(at.wrapping_mul(2_654_435_761) >> 12) / f64::from(1 << 20) * 2_000.0;
            let is_late = unseen_us > slack.us_of(TIME_US);
            late += u32::from(is_late && at >= 50_000);
            now_us += 200;
            slack.learn(now_us, TIME_US, is_late);
        }
        assert!((400..=1_000).contains(&late), "{late} of 50,000");
        assert!((9_000.0..11_000.0).contains(&slack.us_of(TIME_US)), "{slack:?}");
        slack.learn(now_us + 3_600_000_000, TIME_US, false);
        assert!((slack.us_of(TIME_US) - 2_000.0).abs() < 1e-9, "it is the least again after an idle hour");
    }

    #[test]
    fn a_lane_that_hung_is_forgotten_soon() {
        let mut slack = Slack::new(2_000);
        for at in 0..2_000 {
            slack.learn(1_000 * at, 1e6, true);
        }
        assert!((40_000.0..=US_MAX).contains(&slack.us_of(1e6)), "{slack:?}");
        for at in 2_000..32_000 {
            slack.learn(1_000 * at, 1e6, false);
        }
        assert!(slack.us_of(1e6) < 5_000.0, "{slack:?}");
    }

    #[test]
    fn only_callers_that_hang_up_near_their_deadline_are_late() {
        assert!(Slack::is_late(TIME_US, 8_000.0) && Slack::is_late(30e6, 40_000.0));
        assert!(!Slack::is_late(TIME_US, 26_000.0) && !Slack::is_late(30e6, 10e6));
    }

    #[test]
    fn a_deadline_that_no_node_could_keep_costs_others_at_most_half_of_it() {
        let mut slack = Slack::new(2_000);
        for at in 0..10_000 {
            slack.learn(200 * at, 6_000.0, true);
        }
        assert!(slack.us_of(TIME_US) <= 3_000.0 + GROW * SPAN_US_MAX as f64, "{slack:?}");
    }

    proptest! {
        #[test]
        fn the_margin_is_within_its_bounds(
            ends in prop::collection::vec((0_u64..100_000, 1_f64..1e6, any::<bool>()), 0..200),
            time_us in 1_f64..1e6,
        ) {
            let (mut slack, mut now_us) = (Slack::new(2_000), 0);
            for (after_us, time_us, is_late) in ends {
                now_us += after_us;
                slack.learn(now_us, time_us, is_late);
            }
            prop_assert!((2_000.0..=US_MAX).contains(&slack.us), "{slack:?}");
            prop_assert!(slack.us_of(time_us) <= (time_us * SHARE_MAX).max(2_000.0));
        }
    }
}
