//! Query: the vector of a user, quantised to int8, and how far its approximate scores are from the exact ones.
//!
//! Let `q` be the user's vector, `s * u` the quantised one, and `r` the values of a row with scale `c`. The exact score
//! is `c * (q . r)`; the approximate one is `c * (u . r)`, in units of `s`. They differ by `c * ((q - s u) . r)`, which
//! is at most `|q - s u| * c * |r|` (Cauchy and Schwarz), and by the rounding of float32.

use crate::block::LANES;
use crate::error::{Result, ScanError};
use crate::row::{VALUE_MIN, largest, rounded};

/// More than the rounding of float32, relative to `|q| * c * |r|`: a lane has at most `DIM_MAX / 16` sums, the tree of
/// lanes four, and products, thresholds and bounds a few; each errs by 2^-24 at most, so by 2.7e-6 in all.
const ROUNDING: f64 = 1e-5;
/// More than the rounding of numbers that are too small for float32.
const UNDERFLOW: f32 = 1e-27;

/// A quantised user vector.
#[derive(Debug)]
pub struct Query {
    /// The vector, and zeros up to a multiple of `LANES`.
    pub numbers: Vec<f32>,
    /// The quantised vector, four values in each word.
    pub fours: Vec<i32>,
    /// The first value of each sum. Rows store `value + 128`, and this subtracts what the 128 adds.
    pub start: i32,
    /// The unit of approximate scores: `s`.
    pub unit: f32,
    /// The bound of errors in units of `s`, divided by `c * |r|`.
    error: f32,
}

impl Query {
    /// Quantises a vector; none if a value is not finite or too large.
    pub fn new(numbers: &[f32]) -> Option<Self> {
        let largest = largest(numbers)?;
        // A tiny vector is quantised to zeros, and all of it is error.
        let (unit, factor) = if largest < VALUE_MIN { (1.0, 0.0) } else { (largest / 127.0, 1.0) };
        let values: Vec<i8> = numbers.iter().map(|number| rounded(number / unit * factor)).collect();
        let length =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let exact = numbers.iter().map(|&number| f64::from(number));
        let errors =
            exact.clone().zip(&values).map(|(number, &value)| number - f64::from(unit) * f64::from(value));
        let error = (length(&mut { errors }) + ROUNDING * length(&mut { exact })) / f64::from(unit);
        Some(Self {
            fours: values
                .as_chunks::<4>()
                .0
                .iter()
                .map(|four| i32::from_le_bytes(four.map(|value| value as u8)))
                .collect(),
            start: values.iter().map(|&value| -128 * i32::from(value)).sum(),
            numbers: numbers.chunks(LANES).flat_map(padded).collect(),
            unit,
            error: error as f32 * 1.000_001 + 1e-36,
        })
    }

    /// Quantises vectors, whose indices begin with `first`.
    pub fn all(vectors: &[f32], dim: usize, first: usize) -> Result<Vec<Self>> {
        let queries = (first..).zip(vectors.chunks_exact(dim));
        queries.map(|(vector, numbers)| Self::new(numbers).ok_or(ScanError::Value { vector })).collect()
    }

    /// The bound of errors of rows whose vectors are not longer than `norm`.
    #[inline(always)]
    pub fn error(&self, norm: f32) -> f32 {
        self.error * norm + UNDERFLOW
    }
}

fn padded(numbers: &[f32]) -> [f32; LANES] {
    std::array::from_fn(|at| numbers.get(at).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::Block;
    use crate::kernels::{Hit, Kernel};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn exact_scores_are_within_the_bound(
            numbers in prop::collection::vec(-127.0..127.0_f32, 512),
            values in prop::collection::vec(any::<i8>(), 512),
            (dim, is_whole) in ((1..129_usize).prop_map(|groups| groups * 4), any::<bool>()),
            magnitude in -44..13_i32,
            scale in -30..14_i32,
        ) {
            let (magnitude, scale) = (10_f32.powi(magnitude), 10_f32.powi(scale));
            // Whole numbers of units leave no error but that of rounding.
            let number = |number: &f32| if is_whole { number.round() } else { *number } * magnitude;
            let user: Vec<f32> = numbers[..dim].iter().map(number).collect();
            let (query, mut block) = (Query::new(&user).unwrap(), Block::new(dim, 0, 0));
            block.put(9, 1, &values[..dim], scale);
            let mut hits = [Hit::NONE];
            Kernel::best().scan(&block, [&query], &[f32::NEG_INFINITY], &mut hits);
            let exact = f64::from(block.score(9, &query.numbers)) / f64::from(query.unit);
            let away = (exact - f64::from(hits[0].scores[9])).abs();
            prop_assert!(away <= f64::from(query.error(block.norm())), "{away}");
        }
    }
}
