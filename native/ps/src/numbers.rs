//! Numbers on the wire: the encoding of rows and gradients, and views of keys and floats as bytes.

use std::borrow::Cow;

use streamlearn_table::RowType;

/// The encoding of rows and gradients on the wire. Blocks of numbers are padded with zeros to 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// Four bytes a number, exact.
    F32 = 0,
    /// Two bytes a number: IEEE binary16, rounded to nearest even; finite numbers beyond ±65504 become ±65504.
    F16 = 1,
}

impl Encoding {
    /// Returns the encoding with a wire number, if it is known.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::F32, Self::F16].into_iter().find(|&encoding| encoding as u8 == number)
    }

    fn row_type(self) -> RowType {
        match self {
            Self::F32 => RowType::F32,
            Self::F16 => RowType::F16,
        }
    }

    /// Returns the bytes of `numbers` numbers, padding included.
    pub fn bytes(self, numbers: usize) -> usize {
        self.row_type().row_bytes(numbers)
    }

    /// Returns the bytes of one number.
    pub fn number_bytes(self) -> usize {
        self.row_type().number_bytes()
    }

    /// Appends numbers and padding.
    pub fn append(self, numbers: &[f32], into: &mut Vec<u8>) {
        let begin = into.len();
        into.resize(begin + self.bytes(numbers.len()), 0);
        self.write(numbers, &mut into[begin..]);
    }

    /// Writes numbers and padding.
    pub fn write(self, numbers: &[f32], into: &mut [u8]) {
        match self {
            Self::F32 => {
                let (content, padding) = into.split_at_mut(numbers.len() * 4);
                content.copy_from_slice(bytes_of(numbers));
                padding.fill(0);
            }
            Self::F16 => self.row_type().encode(numbers, into),
        }
    }

    /// Decodes `count` numbers; `None` if the length of the block does not match.
    pub fn numbers(self, bytes: &[u8], count: usize) -> Option<Cow<'_, [f32]>> {
        if bytes.len() != self.bytes(count) {
            return None;
        }
        Some(match self {
            Self::F32 => floats(&bytes[..count * 4]),
            Self::F16 => {
                let mut numbers = vec![0.0; count];
                self.row_type().decode(bytes, &mut numbers);
                Cow::Owned(numbers)
            }
        })
    }
}

/// Views numbers as bytes.
pub fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: a plain number has no padding, and all of its bytes may be read.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Views numbers as mutable bytes.
pub fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: a plain number has no padding, and every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// A number for which every bit pattern is valid. Sealed: this module is private.
pub trait Plain: Copy {
    /// Decodes little-endian bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($name:ty),*) => { $(impl Plain for $name {
        fn from_bytes(bytes: &[u8]) -> Self {
            Self::from_le_bytes(bytes.try_into().expect("the slice has the number's size"))
        }
    })* };
}
plain!(u32, u64, f32);

/// Views bytes as numbers; copies them if they are not aligned.
pub fn numbers_of<T: Plain>(bytes: &[u8]) -> Cow<'_, [T]> {
    // SAFETY: every bit pattern is a valid plain number.
    let (before, numbers, after) = unsafe { bytes.align_to::<T>() };
    if before.is_empty() && after.is_empty() {
        return Cow::Borrowed(numbers);
    }
    Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect())
}

/// Views bytes as floats.
pub fn floats(bytes: &[u8]) -> Cow<'_, [f32]> {
    numbers_of(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_numbers_wherever_they_lie() {
        let bytes: Vec<u8> = (0..80).collect();
        for begin in 0..8 {
            let keys = numbers_of::<u64>(&bytes[begin..begin + 64]);
            let expected: Vec<u64> =
                (0..8).map(|at| u64::from_bytes(&bytes[begin + at * 8..][..8])).collect();
            assert_eq!(keys[..], expected);
        }
        let mut numbers = [1.5f32, -2.0];
        assert_eq!(bytes_of(&numbers), [0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0]);
        bytes_of_mut(&mut numbers)[7] = 0x40;
        assert_eq!(numbers, [1.5, 2.0]);
    }

    #[test]
    fn every_half_goes_both_ways_and_between_two_the_even_one_is_taken() {
        for half in 0..0x7bffu16 {
            let bytes = [half.to_le_bytes(), (half + 1).to_le_bytes(), [0; 2], [0; 2]].concat();
            let numbers = Encoding::F16.numbers(&bytes, 2).unwrap().into_owned();
            let mut encoded = Vec::new();
            Encoding::F16.append(&numbers, &mut encoded);
            assert_eq!(encoded, bytes);
            let middle = ((f64::from(numbers[0]) + f64::from(numbers[1])) / 2.0) as f32;
            let even = if half % 2 == 0 { half } else { half + 1 };
            let mut rounded = Vec::new();
            Encoding::F16.append(&[middle, -middle], &mut rounded);
            let expected = [even.to_le_bytes(), (even | 0x8000).to_le_bytes(), [0; 2], [0; 2]].concat();
            assert_eq!(rounded, expected);
        }
    }

    #[test]
    fn blocks_are_padded_and_of_no_other_length() {
        for (encoding, bytes) in [(Encoding::F32, 16), (Encoding::F16, 8)] {
            let mut block = vec![9];
            encoding.append(&[1.0, 2.0, -3.0], &mut block);
            assert_eq!((block.len(), encoding.bytes(3)), (1 + bytes, bytes));
            assert_eq!(encoding.numbers(&block[1..], 3).unwrap()[..], [1.0, 2.0, -3.0]);
            assert!(encoding.numbers(&block, 3).is_none() && encoding.numbers(&block[1..], 5).is_none());
        }
        assert_eq!(Encoding::from_number(2), None);
    }
}
