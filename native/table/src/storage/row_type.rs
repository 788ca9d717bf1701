//! Row types: how a row is stored for serving, unchanged, in half the bytes or in a quarter. Knows no
//! optimizer and no state.
//!
//! Conversions are the same on every machine: only exact operations, and rounding to nearest, ties to even.
//!
//! * **f32**: the bits unchanged.
//! * **f16**: IEEE binary16. A finite number beyond ±65504 becomes ±65504, so that one large weight does not
//!   make every score infinite. Infinities stay, and NaN becomes `0x7e00`, so that a broken row is
//!   recognisable.
//! * **i8**: whole numbers `q` in -127..=127 and one f32 scale per row; a number is `q * scale`. The scale is
//!   `max|x| / 127` rounded up to 17 significant bits (down where `127 * scale` would be infinite), so that
//!   `q * scale` is exact for every q; `q = x / scale`, rounded. A row whose scale would be below 2^-126
//!   becomes zeros with scale 0. A row with a number that is not finite becomes zeros with scale NaN, which
//!   reads as NaN throughout.
//!
//! A row of these types that is read and stored again has the same bytes.
//!
//! Stored rows are padded with zeros to a multiple of 8 bytes, since tables copy rows in words: numbers
//! (little-endian), then padding; for i8 the scale, then numbers, then padding. In wire format (columns of
//! version files) there is no padding, and the scales of i8 are a column of their own.

/// The largest finite binary16.
const F16_MAX: f32 = 65_504.0;
/// The bits of the smallest normal binary16, 2^-14, as an f32.
const F16_NORMAL: u32 = 0x3880_0000;
/// The smallest binary16, 2^-24.
const F16_LAST: f32 = f32::from_bits(0x3380_0000);
const F16_NAN: u16 = 0x7e00;
/// The bits of a scale that are always zero: its product with 7 more bits then fits the 24 bits of an f32.
const SCALE_LOW: u32 = 0x7f;
/// The largest such scale whose product with 127 is finite.
const SCALE_MAX: u32 = 0x7c01_0200;
const INFINITE: u32 = f32::INFINITY.to_bits();

/// The form of stored rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowType {
    /// Four bytes per number, exact.
    F32,
    /// Two bytes per number, 11 significant bits.
    F16,
    /// One byte per number and one scale per row.
    I8,
}

impl RowType {
    /// Bytes of one number, stored and in wire format.
    pub fn number_bytes(&self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }

    /// Whether rows have a scale, which is a column of its own in wire format.
    pub fn has_scale(&self) -> bool {
        *self == Self::I8
    }

    /// Bytes of a stored row of `dim` numbers, including padding.
    pub fn row_bytes(&self, dim: usize) -> usize {
        (self.begin() + dim * self.number_bytes()).next_multiple_of(8)
    }

    /// The offset of the numbers in a stored row.
    fn begin(&self) -> usize {
        if self.has_scale() { 4 } else { 0 }
    }

    /// Stores a row.
    ///
    /// # Panics
    /// If `into` is not [`Self::row_bytes`] long.
    pub fn encode(&self, row: &[f32], into: &mut [u8]) {
        assert_eq!(into.len(), self.row_bytes(row.len()), "bytes of a stored row of {} numbers", row.len());
        let (head, tail) = into.split_at_mut(self.begin());
        let (numbers, padding) = tail.split_at_mut(row.len() * self.number_bytes());
        padding.fill(0);
        match self {
            Self::F32 => {
                numbers
                    .chunks_exact_mut(4)
                    .zip(row)
                    .for_each(|(to, number)| to.copy_from_slice(&number.to_le_bytes()));
            }
            Self::F16 => numbers
                .chunks_exact_mut(2)
                .zip(row)
                .for_each(|(to, number)| to.copy_from_slice(&to_f16(*number).to_le_bytes())),
            Self::I8 => {
                let scale = scale_of(row);
                head.copy_from_slice(&scale.to_le_bytes());
                if scale > 0.0 {
                    numbers.iter_mut().zip(row).for_each(|(to, number)| *to = to_i8(number / scale));
                } else {
                    numbers.fill(0);
                }
            }
        }
    }

    /// Reads a stored row, as long as `into`. Any bytes form a valid row.
    ///
    /// # Panics
    /// If `stored` is not [`Self::row_bytes`] long.
    // If it were inlined, vectorisation would depend on the caller.
    #[inline(never)]
    pub fn decode(&self, stored: &[u8], into: &mut [f32]) {
        assert_eq!(
            stored.len(),
            self.row_bytes(into.len()),
            "bytes of a stored row of {} numbers",
            into.len()
        );
        // A length known at compile time gives a loop without a tail.
        match into.len() {
            8 => self.read(stored, &mut into[..8]),
            16 => self.read(stored, &mut into[..16]),
            _ => self.read(stored, into),
        }
    }

    #[inline(always)]
    fn read(&self, stored: &[u8], into: &mut [f32]) {
        match self {
            Self::F32 => {
                for (to, from) in into.iter_mut().zip(stored.chunks_exact(4)) {
                    *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
            Self::F16 => read_f16(stored, into),
            Self::I8 => {
                let scale = f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
                for (to, from) in into.iter_mut().zip(&stored[4..]) {
                    *to = f32::from(*from as i8) * scale;
                }
            }
        }
    }

    /// Copies a stored row's numbers to a wire column, and returns the scale if rows have one.
    ///
    /// # Panics
    /// If the lengths do not belong to one row.
    pub fn to_wire(&self, stored: &[u8], numbers: &mut [u8]) -> Option<f32> {
        self.check_wire(numbers, stored);
        let (head, tail) = stored.split_at(self.begin());
        numbers.copy_from_slice(&tail[..numbers.len()]);
        head.try_into().ok().map(f32::from_le_bytes)
    }

    /// Stores a row from wire columns.
    ///
    /// # Panics
    /// If the lengths do not belong to one row, or if `scale` does not match the type.
    pub fn from_wire(&self, numbers: &[u8], scale: Option<f32>, into: &mut [u8]) {
        self.check_wire(numbers, into);
        assert_eq!(scale.is_some(), self.has_scale(), "a scale for rows of {self:?}");
        let (head, tail) = into.split_at_mut(self.begin());
        if let Some(scale) = scale {
            head.copy_from_slice(&scale.to_le_bytes());
        }
        let (to, padding) = tail.split_at_mut(numbers.len());
        to.copy_from_slice(numbers);
        padding.fill(0);
    }

    fn check_wire(&self, numbers: &[u8], stored: &[u8]) {
        let dim = numbers.len() / self.number_bytes();
        assert_eq!(numbers.len(), dim * self.number_bytes(), "bytes of whole numbers");
        assert_eq!(stored.len(), self.row_bytes(dim), "bytes of a stored row of {dim} numbers");
    }
}

/// Without branches, so that the conversion of a row vectorises.
#[inline(always)]
fn to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & !(1 << 31));
    let finite = magnitude.min(F16_MAX.to_bits());
    // Below the smallest normal number: next to 0.5, the last bit of an f32 is 2^-24, as that of a small
    // binary16.
    let small = (f32::from_bits(finite) + 0.5).to_bits() - 0.5f32.to_bits();
    let normal = ((finite + 0x0fff + (finite >> 13 & 1)) >> 13).wrapping_sub(112 << 10);
    let half = if finite < F16_NORMAL { small } else { normal };
    let half = if magnitude == INFINITE { 0x7c00 } else { half };
    if magnitude > INFINITE { F16_NAN } else { (sign | half) as u16 }
}

#[inline(always)]
fn from_f16(half: u16) -> f32 {
    let (sign, magnitude) = ((u32::from(half) & 0x8000) << 16, u32::from(half) & 0x7fff);
    // Uses integers instead of denormal floats, which are slow and which some threads flush to zero.
    let small = (magnitude as i32 as f32 * F16_LAST).to_bits();
    let normal = (magnitude << 13) + (112 << 23);
    // A signalling NaN becomes a quiet one, as in hardware.
    let quiet = if magnitude > 0x7c00 { 1 << 22 } else { 0 };
    let special = magnitude << 13 | INFINITE | quiet;
    let finite = if magnitude < 0x0400 { small } else { normal };
    f32::from_bits(sign | if magnitude < 0x7c00 { finite } else { special })
}

#[inline(always)]
fn read_f16(stored: &[u8], into: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the processor supports the instructions.
        let read = unsafe { read_f16_eights(stored, into) };
        return read_f16_each(&stored[2 * read..], &mut into[read..]);
    }
    read_f16_each(stored, into);
}

#[inline(always)]
fn read_f16_each(stored: &[u8], into: &mut [f32]) {
    for (to, from) in into.iter_mut().zip(stored.chunks_exact(2)) {
        *to = from_f16(u16::from_le_bytes([from[0], from[1]]));
    }
}

/// The same bits as [`read_f16_each`] in a quarter of the time, for a multiple of eight numbers; returns how
/// many were read.
///
/// # Safety
/// The processor must support F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "f16c")]
unsafe fn read_f16_eights(stored: &[u8], into: &mut [f32]) -> usize {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    let count = into.len() / 8 * 8;
    for (to, from) in into.chunks_exact_mut(8).zip(stored.chunks_exact(16)) {
        // SAFETY: `from` is 16 bytes and `to` is 8 floats, and neither needs to be aligned.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))) };
    }
    count
}

/// The scale of a row of i8: no number of the row divided by it rounds beyond 127.
#[inline(always)]
fn scale_of(row: &[f32]) -> f32 {
    // As bits, magnitudes sort like their numbers, with infinity and then NaN above all.
    let magnitude_max =
        row.iter().map(|number| (number.to_bits() & !(1 << 31)) as i32).max().unwrap_or(0) as u32;
    if magnitude_max >= INFINITE {
        return f32::NAN;
    }
    let scale = f32::from_bits(magnitude_max) / 127.0;
    let bits = ((scale.to_bits() + SCALE_LOW) & !SCALE_LOW).min(SCALE_MAX);
    if scale < f32::MIN_POSITIVE { 0.0 } else { f32::from_bits(bits) }
}

#[inline(always)]
fn to_i8(number: f32) -> u8 {
    // Next to 1.5 * 2^23, the last bit of an f32 is 1: the addition rounds, ties to even.
    const ROUNDING: f32 = 12_582_912.0;
    ((number + ROUNDING).to_bits() as i32 - ROUNDING.to_bits() as i32) as i8 as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [RowType; 3] = [RowType::F32, RowType::F16, RowType::I8];

    fn encoded(row_type: RowType, row: &[f32]) -> Vec<u8> {
        // Filled with a nonzero value, since every byte must be written, padding too.
        let mut stored = vec![0xa5; row_type.row_bytes(row.len())];
        row_type.encode(row, &mut stored);
        stored
    }

    fn decoded(row_type: RowType, stored: &[u8], dim: usize) -> Vec<f32> {
        let mut row = vec![7.0; dim];
        row_type.decode(stored, &mut row);
        row
    }

    fn again(row_type: RowType, row: &[f32]) -> Vec<f32> {
        decoded(row_type, &encoded(row_type, row), row.len())
    }

    /// The number that IEEE 754 defines for a binary16.
    fn half_number(half: u16) -> f64 {
        let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        };
        if half >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// The nearest finite binary16, of two the even one, found by trying neighbours.
    fn nearest_half(number: f32) -> u16 {
        let (magnitude, sign) = (f64::from(number.abs()), u16::from(number.is_sign_negative()) << 15);
        let (mut below, mut above) = (0u16, 0x7bff);
        while below + 1 < above {
            let middle = (below + above) / 2;
            *(if half_number(middle) < magnitude { &mut below } else { &mut above }) = middle;
        }
        let [far, near] = [above, below].map(|half| (half_number(half) - magnitude).abs());
        let is_below = near < far || (near == far && below % 2 == 0);
        sign | if is_below { below } else { above }
    }

    #[test]
    fn every_half_is_the_number_it_is_and_comes_back() {
        for half in 0..=u16::MAX {
            let number = from_f16(half);
            let expected = half_number(half);
            if expected.is_nan() {
                assert!(number.is_nan());
                assert_eq!(to_f16(number), F16_NAN);
            } else {
                assert_eq!(f64::from(number).to_bits(), expected.to_bits(), "{half:#06x}");
                assert_eq!(to_f16(number), half);
            }
        }
    }

    #[test]
    fn every_half_reads_the_same_with_hardware_and_without() {
        let stored: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let mut expected = vec![0.0; 1 << 16];
        read_f16_each(&stored, &mut expected);
        assert_eq!(bits(decoded(RowType::F16, &stored, 1 << 16)), bits(expected.clone()));
        for dim in 1..40 {
            let row = decoded(RowType::F16, &stored[..RowType::F16.row_bytes(dim)], dim);
            assert_eq!(bits(row), bits(expected[..dim].to_vec()));
        }
    }

    #[test]
    fn halves_round_to_nearest_even_between_all_neighbours() {
        for half in 0..0x7bffu16 {
            let [low, high] = [half, half + 1].map(half_number);
            let middle = ((low + high) / 2.0) as f32;
            assert_eq!(f64::from(middle), (low + high) / 2.0, "a middle is exact");
            let even = if half % 2 == 0 { half } else { half + 1 };
            assert_eq!(to_f16(middle), even);
            assert_eq!(to_f16(f32::from_bits(middle.to_bits() + 1)), half + 1);
            assert_eq!(to_f16(f32::from_bits(middle.to_bits() - 1)), half);
            assert_eq!(to_f16(-middle), even | 0x8000);
        }
    }

    #[test]
    fn large_halves_saturate_and_broken_ones_look_broken() {
        for large in [65_504.0, 65_519.9, 65_520.0, 1e10, f32::MAX] {
            assert_eq!(again(RowType::F16, &[large, -large]), [F16_MAX, -F16_MAX]);
        }
        let broken = again(RowType::F16, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN]);
        assert_eq!(broken[..2], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(broken[2].is_nan() && broken[3].is_nan());
        assert_eq!(to_f16(-0.0), 0x8000);
    }

    #[test]
    fn a_row_with_a_number_that_is_not_finite_is_nan_in_i8() {
        for broken in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let stored = encoded(RowType::I8, &[1.0, broken, -3.0]);
            assert_eq!(stored[..8], [0, 0, 0xc0, 0x7f, 0, 0, 0, 0]);
            assert!(decoded(RowType::I8, &stored, 3).iter().all(|number| number.is_nan()));
        }
    }

    #[test]
    fn i8_rows_reach_from_nothing_to_the_largest_float() {
        assert_eq!(encoded(RowType::I8, &[0.0, -0.0, 0.0]), [0; 8]);
        assert_eq!(encoded(RowType::I8, &[f32::from_bits(1), -1e-36]), [0; 8], "too small for a scale");
        let row = [f32::MAX, -f32::MAX, 1.0];
        let row_read = again(RowType::I8, &row);
        assert!(row_read.iter().all(|number| number.is_finite()), "{row_read:?}");
        assert!(
            (row_read[0] / f32::MAX - 1.0).abs() < 1e-4 && row_read[1] == -row_read[0] && row_read[2] == 0.0
        );
        assert_eq!(encoded(RowType::I8, &row_read), encoded(RowType::I8, &row));
        assert!((f32::from_bits(SCALE_MAX) * 127.0).is_finite());
        assert_eq!(f32::from_bits(SCALE_MAX + SCALE_LOW + 1) * 127.0, f32::INFINITY);
        let least = f32::MIN_POSITIVE * 127.0;
        assert_eq!(again(RowType::I8, &[least, least / 127.0]), [least, least / 127.0]);
    }

    #[test]
    fn every_product_with_a_scale_is_exact() {
        for magnitude in (0..10_000u32).map(|step| f32::from_bits(1f32.to_bits() + 839 * step)) {
            let (scale, stored) = (scale_of(&[0.5, -magnitude]), encoded(RowType::I8, &[0.5, -magnitude]));
            assert_eq!(f64::from(scale * 127.0), f64::from(scale) * 127.0, "{magnitude}");
            assert!(scale * 127.0 >= magnitude && stored[5] as i8 == -127, "{magnitude}");
            assert_eq!(encoded(RowType::I8, &decoded(RowType::I8, &stored, 2)), stored, "{magnitude}");
        }
    }

    #[test]
    fn stored_rows_have_these_bytes() {
        let row = [1.0, -2.0, 127.0];
        assert_eq!(
            encoded(RowType::F32, &row),
            [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0xfe, 0x42, 0, 0, 0, 0]
        );
        assert_eq!(encoded(RowType::F16, &row), [0, 0x3c, 0, 0xc0, 0xf0, 0x57, 0, 0]);
        assert_eq!(encoded(RowType::I8, &row), [0, 0, 0x80, 0x3f, 1, 0xfe, 127, 0]);
        assert_eq!(encoded(RowType::I8, &[127.0, 0.5, 1.5, -2.5])[4..], [127, 0, 2, 0xfe], "ties to even");
        let bytes = |dim| ALL.map(|row_type| row_type.row_bytes(dim));
        assert_eq!([bytes(1), bytes(16), bytes(21)], [[8, 8, 8], [64, 32, 24], [88, 48, 32]]);
    }

    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let bits = prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..70);
        let alike = (prop::collection::vec(-1.0f32..1.0, 1..70), -40i32..40)
            .prop_map(|(row, power)| row.iter().map(|number| number * 2f32.powi(power)).collect::<Vec<_>>());
        prop_oneof![bits, alike]
    }

    proptest! {
        #[test]
        fn f32_rows_are_as_they_were(row in rows()) {
            let bits = |row: &[f32]| row.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&again(RowType::F32, &row)), bits(&row));
        }

        #[test]
        fn f16_numbers_are_the_nearest_there_are(row in prop::collection::vec(-1e5f32..1e5, 1..20), power in -40i32..1) {
            for number in row {
                let number = number * 2f32.powi(power);
                prop_assert_eq!(to_f16(number), nearest_half(number), "{}", number);
            }
        }

        #[test]
        fn i8_numbers_are_within_half_a_scale(row in prop::collection::vec(-1.0f32..1.0, 1..70), power in -100i32..100) {
            let row: Vec<f32> = row.iter().map(|number| number * 2f32.powi(power)).collect();
            let stored = encoded(RowType::I8, &row);
            let scale = f64::from(f32::from_le_bytes(stored[..4].try_into().unwrap()));
            let magnitude_max = f64::from(row.iter().fold(0.0f32, |magnitude_max, number| magnitude_max.max(number.abs())));
            prop_assert!((scale * 127.0 / magnitude_max - 1.0).abs() < 1e-4 || magnitude_max == 0.0);
            for (stored_number, number) in decoded(RowType::I8, &stored, row.len()).iter().zip(&row) {
                prop_assert!((f64::from(*stored_number) - f64::from(*number)).abs() <= scale * 0.500_001);
            }
        }

        #[test]
        fn a_row_read_and_stored_again_is_the_same_bytes(row in rows()) {
            for row_type in ALL {
                let stored = encoded(row_type, &row);
                prop_assert_eq!(&encoded(row_type, &decoded(row_type, &stored, row.len())), &stored);
            }
        }

        #[test]
        fn a_row_takes_the_wire_and_comes_back(row in rows()) {
            for row_type in ALL {
                let stored = encoded(row_type, &row);
                let mut numbers = vec![0; row.len() * row_type.number_bytes()];
                let scale = row_type.to_wire(&stored, &mut numbers);
                prop_assert_eq!(scale.is_some(), row_type.has_scale());
                let mut back = vec![0xa5; stored.len()];
                row_type.from_wire(&numbers, scale, &mut back);
                prop_assert_eq!(back, stored);
            }
        }

        #[test]
        fn any_bytes_are_some_row(bytes in prop::collection::vec(any::<u8>(), 300), dim in 1usize..70) {
            for row_type in ALL {
                let row = decoded(row_type, &bytes[..row_type.row_bytes(dim)], dim);
                // The decoded row can be stored, and is unchanged from then on.
                let stored = encoded(row_type, &row);
                prop_assert_eq!(&encoded(row_type, &decoded(row_type, &stored, dim)), &stored);
            }
        }
    }
}
