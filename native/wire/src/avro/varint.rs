//! Varints: Avro's zigzag integers of 1 to 10 bytes.

/// Maximum bytes of a 64-bit varint.
pub const BYTES_MAX: usize = 10;

/// The bytes do not start with a varint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarintError {
    /// The bytes end before the varint does.
    Truncated,
    /// The varint has more than 64 bits.
    TooLong,
}

#[inline(always)]
fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// The integer at the start of `bytes`, and its length in bytes.
#[inline(always)]
pub fn read(bytes: &[u8]) -> Result<(i64, usize), VarintError> {
    if let Some(&first) = bytes.first()
        && first < 0x80
    {
        return Ok((unzigzag(u64::from(first)), 1));
    }
    let Some(chunk) = bytes.first_chunk::<8>() else {
        return read_bytewise(bytes);
    };
    let word = u64::from_le_bytes(*chunk);
    let stops = !word & 0x8080_8080_8080_8080;
    if stops == 0 {
        return read_bytewise(bytes);
    }
    let bits = stops.trailing_zeros() + 1;
    let sevens = word & (u64::MAX >> (64 - bits)) & 0x7F7F_7F7F_7F7F_7F7F;
    // Close the gaps left by the continuation bits: 7s to 14s, 14s to 28s, 28s to 56.
    let pairs = (sevens & 0x007F_007F_007F_007F) | ((sevens & 0x7F00_7F00_7F00_7F00) >> 1);
    let quads = (pairs & 0x0000_3FFF_0000_3FFF) | ((pairs & 0x3FFF_0000_3FFF_0000) >> 2);
    let value = (quads & 0x0FFF_FFFF) | ((quads & 0x0FFF_FFFF_0000_0000) >> 4);
    Ok((unzigzag(value), (bits / 8) as usize))
}

#[inline(never)]
fn read_bytewise(bytes: &[u8]) -> Result<(i64, usize), VarintError> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(BYTES_MAX).enumerate() {
        if index == BYTES_MAX - 1 && byte > 1 {
            return Err(VarintError::TooLong);
        }
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte < 0x80 {
            return Ok((unzigzag(value), index + 1));
        }
    }
    Err(VarintError::Truncated)
}

/// Appends `value`.
#[inline(always)]
pub fn write(out: &mut Vec<u8>, value: i64) {
    let mut remaining = ((value << 1) ^ (value >> 63)) as u64;
    if remaining < 0x80 {
        out.push(remaining as u8);
        return;
    }
    let mut bytes = [0; BYTES_MAX];
    let mut length = 0;
    while remaining >= 0x80 {
        bytes[length] = (remaining as u8) | 0x80;
        remaining >>= 7;
        length += 1;
    }
    bytes[length] = remaining as u8;
    out.extend_from_slice(&bytes[..=length]);
}

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, VarintError, read, read_bytewise, write};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_integer_comes_back(value: i64, shift in 0u32..64, tail: Vec<u8>) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            write(&mut bytes, value);
            let length = bytes.len();
            bytes.extend(tail);
            prop_assert_eq!(read(&bytes), Ok((value, length)));
            prop_assert_eq!(read(&bytes[..length]), Ok((value, length)));
            for cut in 0..length {
                prop_assert_eq!(read(&bytes[..cut]), Err(VarintError::Truncated));
            }
        }

        #[test]
        fn the_fast_way_reads_what_the_slow_way_reads(bytes: Vec<u8>) {
            prop_assert_eq!(read(&bytes), read_bytewise(&bytes));
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        let mut bytes = [0xFF; BYTES_MAX + 2];
        assert_eq!(read(&bytes), Err(VarintError::TooLong));
        bytes[BYTES_MAX - 1] = 2;
        assert_eq!(read(&bytes), Err(VarintError::TooLong));
        bytes[BYTES_MAX - 1] = 1;
        assert_eq!(read(&bytes), Ok((i64::MIN, BYTES_MAX)));
    }
}
