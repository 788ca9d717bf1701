//! The sampling hashes of the join: which negatives are kept. docs/internals/join.md specifies
//! them; they never change, so that a replay makes the same choices.

use streamlearn_wire::keys::{key_of_bytes, slot_salt};

pub use streamlearn_wire::logged_share::{is_logged, share_threshold};

/// The seed of the hash that finds a request in memory. It differs from that of lots, since a lot has only
/// part of those hashes.
pub(crate) fn place_salt() -> u64 {
    slot_salt("streamlearn.join")
}

/// Identity of a shown item: partition and offset of the record, index of the item in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub partition: i32,
    pub offset: i64,
    pub item: u32,
}

/// Whether a label with this salt keeps the negative of an identity.
pub fn is_kept(partition: i32, offset: i64, item: u32, salt: u64, below: Option<u64>) -> bool {
    let Some(below) = below else { return true };
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&partition.to_le_bytes());
    bytes[4..12].copy_from_slice(&offset.to_le_bytes());
    bytes[12..].copy_from_slice(&item.to_le_bytes());
    key_of_bytes(&bytes, salt) < below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_negatives_is_kept_and_always_the_same() {
        let below = share_threshold(0.3);
        let kept = |salt| (0..100_000).filter(|&item| is_kept(1, 77, item, salt, below)).count();
        assert!((29_000..31_000).contains(&kept(5)), "{}", kept(5));
        assert_eq!(kept(5), kept(5));
        assert!((0..100).any(|item| is_kept(1, 77, item, 5, below) != is_kept(1, 77, item, 6, below)));
    }

    #[test]
    fn the_whole_is_kept_whole_and_nothing_is_nothing() {
        assert_eq!(share_threshold(1.0), None);
        assert_eq!(share_threshold(0.5), Some(1 << 63));
        assert!(!is_kept(0, 0, 0, 1, share_threshold(0.0)));
        assert!((0..100u8).all(|byte| is_logged(&[byte], 1.0)));
    }

    #[test]
    fn the_hash_of_an_identity_is_xxh3_of_its_16_bytes() {
        // Pinned because a change would select other negatives on replay.
        let bytes = [1, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0];
        let hash = key_of_bytes(&bytes, 5);
        assert!(is_kept(1, 77, 9, 5, Some(hash + 1)) && !is_kept(1, 77, 9, 5, Some(hash)));
    }
}
