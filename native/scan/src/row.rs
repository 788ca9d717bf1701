//! Row: the vector of an item as int8 values and a scale.

use crate::error::{Result, ScanError};

/// The maximum number of values of a vector. It is a multiple of 4.
pub const DIM_MAX: usize = 512;
/// The largest magnitude of a value, so that no score overflows.
pub const VALUE_MAX: f32 = 1e15;
/// A row whose largest magnitude is smaller counts as zero.
pub const VALUE_MIN: f32 = 1e-15;

/// The vector of an item. Its values are `values * scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The values, from -127 to 127.
    pub values: Vec<i8>,
    /// The factor of the values.
    pub scale: f32,
}

/// Encodes a vector and returns the scale. The result has the same bytes on any processor: it is
/// `round(vector / scale)`, halves to even, with a scale of the largest magnitude divided by 127.
///
/// # Errors
/// If a value is not finite or above `VALUE_MAX`.
///
/// # Panics
/// If the slices have different lengths.
pub fn encode(vector: &[f32], values: &mut [i8]) -> Result<f32> {
    assert_eq!(vector.len(), values.len(), "a value for each number");
    let largest = largest(vector).ok_or(ScanError::Value { vector: 0 })?;
    if largest < VALUE_MIN {
        values.fill(0);
        return Ok(0.0);
    }
    let scale = largest / 127.0;
    for (value, number) in values.iter_mut().zip(vector) {
        *value = rounded(number / scale);
    }
    Ok(scale)
}

/// The largest magnitude of some values, or none if a value is not finite or above `VALUE_MAX`.
pub fn largest(vector: &[f32]) -> Option<f32> {
    // Comparisons with NaN are false.
    vector
        .iter()
        .all(|value| value.abs() <= VALUE_MAX)
        .then(|| vector.iter().fold(0.0, |max, value| value.abs().max(max)))
}

/// The nearest integer of a number in -127.5..127.5, halves to even. Adding and subtracting 1.5 * 2^23 leaves no
/// fraction, and needs no instruction that some processors lack.
pub fn rounded(number: f32) -> i8 {
    const NO_FRACTION: f32 = 12_582_912.0;
    ((number + NO_FRACTION) - NO_FRACTION) as i8
}

/// Checks the number of values of vectors.
pub fn check_dim(dim: usize) -> Result<()> {
    if dim == 0 || !dim.is_multiple_of(4) || dim > DIM_MAX {
        let text = format!("a vector has {dim} values; it may have 4 to {DIM_MAX}, a multiple of 4");
        return Err(ScanError::Argument(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_decoded_value_is_within_half_a_scale(vector in prop::collection::vec(-1e3..1e3_f32, 1..40)) {
            let mut values = vec![0; vector.len()];
            let scale = encode(&vector, &mut values).unwrap();
            for (&value, number) in values.iter().zip(&vector) {
                prop_assert!((f32::from(value) * scale - number).abs() <= scale * 0.50001);
                prop_assert_eq!(f32::from(value), (number / scale).round_ties_even());
            }
            prop_assert!(values.iter().any(|value| value.abs() == 127));
        }
    }

    #[test]
    fn values_that_are_not_numbers_are_refused_and_tiny_ones_are_zero() {
        let mut values = [1; 4];
        for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY, 2e15] {
            assert_eq!(encode(&[0.0, bad, 1.0, 2.0], &mut values), Err(ScanError::Value { vector: 0 }));
        }
        assert_eq!(encode(&[1e-16, -1e-40, 0.0, -0.0], &mut values), Ok(0.0));
        assert_eq!(values, [0; 4]);
        assert_eq!(encode(&[1e-15, -1e-15, 0.0, 0.0], &mut values).map(|_| values), Ok([127, -127, 0, 0]));
    }
}
