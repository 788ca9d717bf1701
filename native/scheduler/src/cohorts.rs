//! Cohorts: while overload lasts, the same users are served and the same are refused, instead of each user now
//! and then. Knows no queue and no clock.
//!
//! Users fall into cohorts by a hash. Of each priority some cohorts are open. Their share falls to what can be
//! served while requests of open cohorts are still refused, and rises slowly when they are not.

use super::limits::PRIORITIES;

/// The number of cohorts.
pub const COHORTS: u8 = 128;

/// How often the share of open cohorts is decided on, and from how many requests at least.
const WINDOW_US: u64 = 250_000;
const REQUESTS_MIN: u32 = 16;
/// Overload is a larger share of refused requests than this, in several windows one after the other.
const REFUSED_SHARE: f64 = 0.02;
const WINDOWS_MIN: u32 = 4;
/// How fast closed cohorts are opened again: by this factor a window.
const RISE: f64 = 1.02;

/// The open cohorts of each priority.
#[derive(Debug, Default)]
pub(super) struct Cohorts([OpenCohorts; PRIORITIES]);

/// The cohorts of one priority.
#[derive(Debug)]
struct OpenCohorts {
    /// The share of cohorts that are open.
    share: f64,
    began_us: u64,
    offered: u32,
    refused: u32,
    /// Windows of overload one after the other.
    windows: u32,
}

impl Default for OpenCohorts {
    fn default() -> Self {
        Self { share: 1.0, began_us: 0, offered: 0, refused: 0, windows: 0 }
    }
}

impl Cohorts {
    /// Returns whether a cohort is open. If not, returns how long it may take until more are.
    pub fn check(&self, priority: usize, cohort: u8) -> Result<(), f64> {
        let place = (f64::from(cohort.min(COHORTS - 1)) + 0.5) / f64::from(COHORTS);
        let share = self.0[priority].share;
        // The first cohort is always open: without its requests nobody would learn that overload has ended.
        if cohort == 0 || place < share { Ok(()) } else { Err((place / share).log(RISE) * WINDOW_US as f64) }
    }

    /// Counts the outcome of a request of an open cohort.
    pub fn count(&mut self, now_us: u64, priority: usize, is_refused: bool) {
        let open = &mut self.0[priority];
        open.offered += 1;
        open.refused += u32::from(is_refused);
        if now_us.saturating_sub(open.began_us) < WINDOW_US || open.offered < REQUESTS_MIN {
            return;
        }
        let refused = f64::from(open.refused) / f64::from(open.offered);
        open.windows = if refused > REFUSED_SHARE { open.windows + 1 } else { 0 };
        if open.windows >= WINDOWS_MIN {
            open.share = (open.share * (1.0 - refused)).max(1.0 / f64::from(COHORTS));
        } else if open.windows == 0 {
            open.share = (open.share * RISE).min(1.0);
        }
        (open.began_us, open.offered, open.refused) = (now_us, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers requests of all cohorts for some windows to a node that serves at most a number of them in each.
    /// Returns how many cohorts are open then.
    fn offered(cohorts: &mut Cohorts, begin: u64, windows: u64, served_max: u32) -> usize {
        for window in begin..begin + windows {
            let mut served = 0;
            for at in 0..256_u64 {
                if cohorts.check(1, (at / 2) as u8).is_ok() {
                    served += 1;
                    cohorts.count(window * WINDOW_US + at * 900, 1, served > served_max);
                }
            }
        }
        (0..COHORTS).filter(|cohort| cohorts.check(1, *cohort).is_ok()).count()
    }

    #[test]
    fn overload_closes_as_many_as_cannot_be_served_and_its_end_opens_all() {
        let mut cohorts = Cohorts::default();
        assert_eq!(offered(&mut cohorts, 0, 40, 256), 128);
        assert_eq!(offered(&mut cohorts, 40, 2, 128), 128, "a burst closes none");
        let open = offered(&mut cohorts, 42, 60, 128);
        assert!((58..=68).contains(&open), "{open} of 128 are open at twice the load");
        let open = offered(&mut cohorts, 102, 60, 64);
        assert!((28..=36).contains(&open), "{open} of 128 are open at four times the load");
        assert_eq!(offered(&mut cohorts, 162, 120, 256), 128);
    }

    #[test]
    fn open_cohorts_are_the_first_and_other_priorities_are_open() {
        let mut cohorts = Cohorts::default();
        offered(&mut cohorts, 0, 60, 100);
        let is_open: Vec<bool> = (0..COHORTS).map(|cohort| cohorts.check(1, cohort).is_ok()).collect();
        assert!(is_open.is_sorted_by(|a, b| a >= b) && is_open[0] && !is_open[127]);
        assert!((0..COHORTS).all(|cohort| cohorts.check(0, cohort).is_ok()));
        let (near, far) = (cohorts.check(1, 70).unwrap_err(), cohorts.check(1, 127).unwrap_err());
        assert!(0.0 < near && near < far && far < 60e6, "{near} and {far} us");
        assert!(offered(&mut cohorts, 60, 60, 0) == 1, "one stays open");
    }
}
