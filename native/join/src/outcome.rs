//! What was done to an item: by which code, when, and how much it weighs.

use std::cmp::Ordering;

/// One action, apart from whom it was done to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Done {
    pub code: u8,
    pub time: i64,
    /// Finite, and not below 0.
    pub weight: f32,
}

/// Whether a number can be a weight.
pub(crate) fn is_weight(weight: f32) -> bool {
    weight.is_finite() && weight >= 0.0
}

impl Done {
    /// Of several of one code the least counts: the earliest, and of several at one time the heaviest, so that the
    /// order of arrival does not show.
    pub fn order(&self, other: &Self) -> Ordering {
        self.time.cmp(&other.time).then(other.weight.total_cmp(&self.weight))
    }

    /// Time and code.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.time << 8 | i64::from(self.code))
    }
}

/// A time and a code in one number: times need 53 bits, codes 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp(i64);

impl Stamp {
    #[inline]
    pub fn time(self) -> i64 {
        self.0 >> 8
    }

    #[inline]
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    #[inline]
    pub fn with_weight(self, weight: f32) -> Done {
        Done { code: self.code(), time: self.time(), weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TIME_MAX_MS;

    #[test]
    fn a_stamp_gives_back_what_it_was_made_of() {
        for time in [1 - TIME_MAX_MS, -1, 0, 1, TIME_MAX_MS - 1] {
            for code in [0, 1, 255] {
                let done = Done { code, time, weight: 0.5 };
                assert_eq!(done.stamp().with_weight(0.5), done);
            }
        }
    }

    #[test]
    fn the_earliest_counts_and_of_one_time_the_heaviest() {
        let done = |time, weight| Done { code: 1, time, weight };
        assert_eq!(done(1, 1.0).order(&done(2, 9.0)), Ordering::Less);
        assert_eq!(done(2, 3.0).order(&done(2, 1.0)), Ordering::Less);
        assert_eq!(done(2, 1.0).order(&done(2, 1.0)), Ordering::Equal);
    }
}
