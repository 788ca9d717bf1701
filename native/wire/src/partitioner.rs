//! The partitioner: murmur2, as Kafka clients use it by default to choose a key's partition.

use crate::offsets::{OffsetsError, check_offsets};

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;

/// Murmur2 of a key, with Kafka's seed.
pub fn murmur2(key: &[u8]) -> u32 {
    let mut value = SEED ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mixed = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(MULTIPLIER);
        value = value.wrapping_mul(MULTIPLIER) ^ (mixed ^ (mixed >> 24)).wrapping_mul(MULTIPLIER);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        let last = tail.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte));
        value = (value ^ last).wrapping_mul(MULTIPLIER);
    }
    value = (value ^ (value >> 13)).wrapping_mul(MULTIPLIER);
    value ^ (value >> 15)
}

/// The partition of one key.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// The partition of each key laid end to end in `data`.
pub fn partitions_of<O: Copy + Into<i64>>(
    offsets: &[O],
    data: &[u8],
    partitions: u32,
) -> Result<Vec<i32>, OffsetsError> {
    check_offsets(offsets, data.len())?;
    let key = |pair: &[O]| &data[pair[0].into() as usize..pair[1].into() as usize];
    Ok(offsets.windows(2).map(|pair| partition_of(key(pair), partitions) as i32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_is_that_of_the_java_client() {
        // The vectors of Kafka's own UtilsTest.
        let known: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key) as i32, hash, "{key:?}");
        }
    }

    #[test]
    fn keys_are_cut_by_their_offsets() {
        let partitions = partitions_of(&[0i32, 2, 8], b"21foobar", 7).unwrap();
        let expected: Vec<i32> =
            [&b"21"[..], b"foobar"].iter().map(|key| (murmur2(key) & 0x7fff_ffff) as i32 % 7).collect();
        assert_eq!(partitions, expected);
        assert!(partitions_of(&[0i32, 9], b"21foobar", 7).is_err());
    }
}
