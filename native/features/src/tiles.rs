//! Tiles: a count or a sum over a sliding window, kept by thirty-seconds of the window.

/// The number of tiles of a window.
pub const TILES: usize = 32;
/// A number counts as at most this much; sums of up to 140,000 such numbers are exact.
pub const NUMBER_MAX: f32 = 1e9;
/// The steps of a number in a sum: whole numbers add up to the same in any order.
const STEPS: f64 = 65_536.0;

/// The newest tiles of one window. What is older than `TILES` before the newest one is forgotten.
///
/// The same set of numbers gives the same tiles, in whatever order it is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// The number of the newest tile, counted from the beginning of time; `i64::MIN` before the first.
    pub newest: i64,
    /// The tile with number n is at n modulo `TILES`.
    pub amounts: [i64; TILES],
}

impl Default for Tiles {
    fn default() -> Self {
        Self { newest: i64::MIN, amounts: [0; TILES] }
    }
}

impl Tiles {
    /// Adds an amount to a tile.
    pub fn add(&mut self, tile: i64, amount: i64) {
        if self.newest == i64::MIN {
            self.newest = tile;
        }
        if tile > self.newest {
            let passed = tile.saturating_sub(self.newest).min(TILES as i64);
            for forgotten in 0..passed {
                self.amounts[place(tile - forgotten)] = 0;
            }
            self.newest = tile;
        }
        if self.holds(tile) {
            let own = &mut self.amounts[place(tile)];
            *own = own.saturating_add(amount);
        }
    }

    /// The sum of the tiles of a window that ends with `last`.
    pub fn total(&self, last: i64) -> i64 {
        if self.newest == i64::MIN {
            return 0;
        }
        let span = TILES as i64 - 1;
        let (first, last) = (last.max(self.newest).saturating_sub(span), last.min(self.newest));
        if first > last {
            return 0;
        }
        // The tiles stand one after the other, around the end of the array.
        let (begin, end) = (place(first), place(last) + 1);
        let parts = if begin < end { [begin..end, 0..0] } else { [begin..TILES, 0..end] };
        let amounts = parts.into_iter().flat_map(|part| &self.amounts[part]);
        let most = amounts.clone().fold(0, |most, &amount| most | (amount ^ (amount >> 63)));
        if most < i64::MAX / TILES as i64 {
            return amounts.sum();
        }
        // Newest first: the order counts where amounts are as large as they can be.
        amounts.rev().fold(0, |total: i64, &amount| total.saturating_add(amount))
    }

    /// The tiles that are not zero, newest first, with their amounts.
    pub fn known(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        let count = if self.newest == i64::MIN { 0 } else { TILES as i64 };
        (0..count)
            .filter_map(|back| self.newest.checked_sub(back))
            .map(|tile| (tile, self.amounts[place(tile)]))
            .filter(|&(_, amount)| amount != 0)
    }

    fn holds(&self, tile: i64) -> bool {
        self.newest.saturating_sub(tile) < TILES as i64
    }
}

/// Where a tile is.
pub(crate) fn place(tile: i64) -> usize {
    tile.rem_euclid(TILES as i64) as usize
}

/// The amount of a number in a sum. What is not finite counts as nothing.
pub(crate) fn amount_of(number: f32) -> i64 {
    if number.is_finite() {
        (f64::from(number.clamp(-NUMBER_MAX, NUMBER_MAX)) * STEPS).round() as i64
    } else {
        0
    }
}

/// The number of an amount.
pub(crate) fn number_of(amount: i64) -> f64 {
    amount as f64 / STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_that_comes_again_after_a_whole_window_begins_at_zero() {
        let mut tiles = Tiles::default();
        tiles.add(3, 5);
        tiles.add(3 + TILES as i64, 1);
        assert_eq!(tiles.total(3 + TILES as i64), 1);
        tiles.add(3, 7);
        assert_eq!(tiles.total(3 + TILES as i64), 1);
        assert_eq!(tiles.total(3), 0);
    }

    #[test]
    fn times_at_the_ends_of_time_do_not_overflow() {
        for times in [[i64::MIN + 1, i64::MAX], [i64::MAX, i64::MIN + 1]] {
            let mut tiles = Tiles::default();
            times.iter().for_each(|&tile| tiles.add(tile, i64::MAX));
            assert_eq!(tiles.total(i64::MAX), i64::MAX);
            assert_eq!(tiles.total(i64::MIN), 0);
        }
    }

    #[test]
    fn numbers_that_are_not_finite_add_nothing_and_large_ones_add_the_largest() {
        assert_eq!([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(amount_of), [0; 3]);
        assert_eq!(number_of(amount_of(f32::MAX)), f64::from(NUMBER_MAX));
        assert_eq!(number_of(amount_of(-2.5)), -2.5);
    }
}
