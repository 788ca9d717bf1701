//! Sampling by hash: which requests serving logs. Serving, the join and producers make the same choice, and a
//! replay makes it again, so the hash never changes. docs/internals/join.md specifies it.

use crate::keys::{key_of_bytes, slot_salt};

/// The threshold below which a share of all hashes lies; None for all of them.
pub fn share_threshold(share: f64) -> Option<u64> {
    // 2^64 is exact as a float, and any smaller product fits u64.
    (share < 1.0).then(|| (share.max(0.0) * 18_446_744_073_709_551_616.0) as u64)
}

/// Whether serving logs a request, given the logged share.
pub fn is_logged(request_id: &[u8], share: f64) -> bool {
    share_threshold(share)
        .is_none_or(|below| key_of_bytes(request_id, slot_salt("streamlearn.logged")) < below)
}
