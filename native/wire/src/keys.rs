//! Keys: the uint64 id of one value of one slot.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::offsets::{OffsetsError, check_offsets};

/// The seed of every key of a slot: XXH3-64 of the slot's name.
pub fn slot_salt(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// XXH3's own constants for inputs of 4 to 8 bytes: two words of its secret, combined, and its multiplier.
const SECRET_FLIP: u64 = 0x1CAD_21F7_2C81_017C ^ 0xDB97_9083_E96D_D4DE;
const MULTIPLIER: u64 = 0x9FB2_1C65_1E98_DF25;
const INVERSE_MULTIPLIER: u64 = inverse(MULTIPLIER);

/// The number whose product with an odd one is 1: each step doubles the bits that are right.
const fn inverse(odd: u64) -> u64 {
    let (mut inverse, mut step) = (odd, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// Computes XXH3-64 of 8 bytes inline: it has no branch and no lookup, so it runs at memory speed.
#[inline(always)]
fn mix_int(value: u64, flip: u64) -> u64 {
    let keyed = value.rotate_left(32) ^ flip;
    let spread = (keyed ^ keyed.rotate_left(49) ^ keyed.rotate_left(24)).wrapping_mul(MULTIPLIER);
    let folded = (spread ^ ((spread >> 35) + 8)).wrapping_mul(MULTIPLIER);
    folded ^ (folded >> 28)
}

#[inline(always)]
fn int_flip(salt: u64) -> u64 {
    SECRET_FLIP.wrapping_sub(salt ^ (u64::from((salt as u32).swap_bytes()) << 32))
}

/// The key of one integer.
pub fn key_of_int(value: i64, salt: u64) -> u64 {
    mix_int(value as u64, int_flip(salt))
}

/// The integer of a key: each step of `mix_int` can be undone, so no two integers have one key.
pub fn int_of_key(key: u64, salt: u64) -> i64 {
    let inverse = INVERSE_MULTIPLIER;
    let folded = (key ^ (key >> 28) ^ (key >> 56)).wrapping_mul(inverse);
    // The first 29 bits are right already, and the others follow from them.
    let spread = folded ^ ((folded >> 35) + 8);
    let mut keyed = spread.wrapping_mul(inverse);
    // With rotations as a ring, (1 + a + b)^64 is 1, so that the inverse is (1 + a + b)^63: six squarings.
    let (mut first, mut second) = (49_u32, 24_u32);
    for _ in 0..6 {
        keyed ^= keyed.rotate_left(first) ^ keyed.rotate_left(second);
        (first, second) = (2 * first % 64, 2 * second % 64);
    }
    (keyed ^ int_flip(salt)).rotate_left(32) as i64
}

/// The key of one string's UTF-8 bytes.
pub fn key_of_bytes(value: &[u8], salt: u64) -> u64 {
    xxh3_64_with_seed(value, salt)
}

/// The key of a pair of keys, in this order.
#[inline]
pub fn key_of_pair(first: u64, second: u64, salt: u64) -> u64 {
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&first.to_le_bytes());
    pair[8..].copy_from_slice(&second.to_le_bytes());
    xxh3_64_with_seed(&pair, salt)
}

/// How often a key is in a list.
#[inline]
pub fn occurrences(key: u64, list: &[u64]) -> f32 {
    list.iter().filter(|&&other| other == key).count() as f32
}

/// The keys of integers, each hashed as 8 little-endian bytes; `keys` is as long as `values`.
pub fn hash_ints(values: &[i64], salt: u64, keys: &mut [u64]) {
    assert_eq!(values.len(), keys.len());
    let flip = int_flip(salt);
    for (key, &value) in keys.iter_mut().zip(values) {
        *key = mix_int(value as u64, flip);
    }
}

/// The keys of strings laid end to end in `data`; `keys` has one entry less than `offsets`.
pub fn hash_strings<O: Copy + Into<i64>>(
    offsets: &[O],
    data: &[u8],
    salt: u64,
    keys: &mut [u64],
) -> Result<(), OffsetsError> {
    check_offsets(offsets, data.len())?;
    assert_eq!(offsets.len() - 1, keys.len());
    for (key, pair) in keys.iter_mut().zip(offsets.windows(2)) {
        let (start, end): (i64, i64) = (pair[0].into(), pair[1].into());
        *key = xxh3_64_with_seed(&data[start as usize..end as usize], salt);
    }
    Ok(())
}
