//! Keys: the uint64 id of one value of one slot.

use xxhash_rust::xxh3::xxh3_64;

/// The seed of every key of a slot: XXH3-64 of the slot's name.
pub fn slot_salt(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}
