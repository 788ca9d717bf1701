//! Outcome: one action on an item, with code, time, weight and number.

use std::cmp::Ordering;

/// One action, without its request and item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Done {
    pub code: u8,
    pub time: i64,
    /// Finite and not negative.
    pub weight: f32,
    /// Finite.
    pub number: Option<f32>,
}

/// An action's number in a column, where NaN stands for none.
pub(crate) fn number_of(column: f32) -> Option<f32> {
    (!column.is_nan()).then_some(column)
}

/// Whether a number is a valid weight.
pub(crate) fn is_weight(weight: f32) -> bool {
    weight.is_finite() && weight >= 0.0
}

impl Done {
    /// The order in which actions of one code count: the earliest first, and among those of one time the
    /// heaviest, so that the order of arrival has no effect.
    pub fn order(&self, other: &Self) -> Ordering {
        self.time.cmp(&other.time).then(other.weight.total_cmp(&self.weight))
    }

    /// Whether it is the same action again, of a producer that sent it twice.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        (self.code, self.time, self.number) == (other.code, other.time, other.number)
    }

    /// The time and code as one number.
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
    pub fn with(self, weight: f32, number: Option<f32>) -> Done {
        Done { code: self.code(), time: self.time(), weight, number }
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
                let done = Done { code, time, weight: 0.5, number: Some(2.5) };
                assert_eq!(done.stamp().with(0.5, Some(2.5)), done);
            }
        }
    }

    #[test]
    fn the_earliest_counts_and_of_one_time_the_heaviest() {
        let done = |time, weight| Done { code: 1, time, weight, number: None };
        assert_eq!(done(1, 1.0).order(&done(2, 9.0)), Ordering::Less);
        assert_eq!(done(2, 3.0).order(&done(2, 1.0)), Ordering::Less);
        assert_eq!(done(2, 1.0).order(&done(2, 1.0)), Ordering::Equal);
    }
}
