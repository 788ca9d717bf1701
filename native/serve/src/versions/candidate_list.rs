//! CandidateList: the items that were found for a user ahead of requests, as a store keeps them. Whoever writes the
//! store may be anyone: a list is read with bounds, and checked before it is used.

use std::collections::HashSet;
use std::sync::Arc;

use streamlearn_wire::checksum::crc32c;

use crate::request::ItemWishes;
use crate::versions::VersionName;
use crate::versions::item_index::{FoundItems, ItemIndex, ListOrigin};

const MAGIC: [u8; 4] = *b"SLL1";
/// Before the items: magic, number of items, user, version, identity, two times. After them: CRC32C.
const HEAD_BYTES: usize = 48;
const CRC_BYTES: usize = 4;
/// A key and a score.
const ITEM_BYTES: usize = 10;

/// Returns the size of a list of so many items.
pub const fn list_bytes(items: usize) -> usize {
    HEAD_BYTES + ITEM_BYTES * items + CRC_BYTES
}

/// The items of one user.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateList {
    /// The key of the user.
    pub user: u64,
    /// The version that found them.
    pub version: VersionName,
    /// The event time up to which that version had learned; -1 before the first sample.
    pub as_of_ms: i64,
    /// When they were found.
    pub made_ms: i64,
    /// The keys of the items, best first, each once.
    pub keys: Vec<u64>,
    /// Their scores, with the precision of float16.
    pub scores: Vec<f32>,
}

/// The reason why a list is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Its bytes are not a list, or not of this user.
    Damaged,
    /// Its version may not be answered.
    Stale,
    /// It has too few items, or cannot have those that are allowed.
    Short,
}

impl CandidateList {
    /// Reads a list with at most `items_max` items; `None` if the bytes are something else.
    pub fn read(bytes: &[u8], items_max: usize) -> Option<Self> {
        let body_bytes = bytes.len().checked_sub(CRC_BYTES).filter(|&body| body >= HEAD_BYTES)?;
        let (body, crc) = bytes.split_at(body_bytes);
        let (head, items) = body.split_at(HEAD_BYTES);
        let count = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
        if head[..4] != MAGIC || count > items_max || bytes.len() != list_bytes(count) {
            return None;
        }
        if crc != crc32c(0, body).to_le_bytes() {
            return None;
        }
        let word = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (keys, scores) = items.split_at(8 * count);
        let keys: Vec<u64> = keys.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let scores: Vec<f32> =
            scores.as_chunks().0.iter().map(|&half| of_half(u16::from_le_bytes(half))).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        let is_each_once = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        let is_ranked =
            scores.windows(2).all(|pair| pair[0] >= pair[1]) && scores.iter().all(|score| score.is_finite());
        (is_each_once && is_ranked).then_some(Self {
            user: word(8)?,
            version: VersionName { number: word(16)?, identity: word(24)? },
            as_of_ms: word(32)? as i64,
            made_ms: word(40)? as i64,
            keys,
            scores,
        })
    }
}

/// Decides whether a stored list is what a request gets, instead of a search of `index`.
///
/// `usable` are the versions whose lists may be answered now. Items that the index does not have, or that the request
/// excludes, are left out. As many as the request asks for must be left.
///
/// # Errors
/// The reason why it is not.
pub fn decide(
    bytes: &[u8],
    (user, items_max): (u64, usize),
    usable: &[VersionName],
    wishes: &ItemWishes,
    index: &Arc<ItemIndex>,
) -> Result<FoundItems, Unusable> {
    let list = CandidateList::read(bytes, items_max).filter(|list| list.user == user);
    let list = list.ok_or(Unusable::Damaged)?;
    if !usable.contains(&list.version) {
        return Err(Unusable::Stale);
    }
    if wishes.allow.is_some() {
        return Err(Unusable::Short);
    }
    // The list is short, and the request may exclude millions.
    let mut left: HashSet<u64> = list.keys.iter().copied().collect();
    for key in &wishes.exclude {
        left.remove(key);
    }
    let is_kept = |key: &u64| left.contains(key) && index.ids.get(*key).is_some();
    let kept = list.keys.iter().copied().zip(list.scores.iter().copied()).filter(|(key, _)| is_kept(key));
    let (keys, scores): (Vec<u64>, Vec<f32>) = kept.take(wishes.k).unzip();
    if keys.len() < wishes.k {
        return Err(Unusable::Short);
    }
    let origin = ListOrigin { version: list.version.number, as_of_ms: list.as_of_ms };
    Ok(FoundItems { keys, scores, index: index.clone(), probed: None, origin: Some(origin) })
}

/// Returns the value of a float16.
fn of_half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use streamlearn_scan::Blocks;

    use super::*;
    use crate::versions::raw_ids::{RawId, RawIds};

    const MAX: usize = 50;

    fn name(number: u64) -> VersionName {
        VersionName { number, identity: 7 * number }
    }

    fn index(keys: &[u64]) -> Arc<ItemIndex> {
        let ids =
            RawIds::new(false).apply(keys.iter().map(|&key| (key, RawId::Int(key as i64))), &[]).unwrap();
        let blocks = Arc::new(Blocks::new(8).unwrap());
        Arc::new(ItemIndex { blocks, ids: Arc::new(ids), as_of_ms: Some(3), probes: None, identity: 0 })
    }

    /// As the Python side writes it.
    fn written(user: u64, version: VersionName, keys: &[u64], halves: &[u16]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((keys.len() as u32).to_le_bytes());
        for word in [user, version.number, version.identity, 5, 6] {
            bytes.extend(word.to_le_bytes());
        }
        keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
        halves.iter().for_each(|half| bytes.extend(half.to_le_bytes()));
        let crc = crc32c(0, &bytes).to_le_bytes();
        bytes.extend(crc);
        bytes
    }

    fn ranked(keys: &[u64]) -> Vec<u8> {
        let halves: Vec<u16> = (0..keys.len() as u16).rev().map(|rank| 0x3c00 + rank).collect();
        written(9, name(4), keys, &halves)
    }

    #[test]
    fn halves_have_their_values() {
        let values = [0x0000, 0x0001, 0x3c00, 0xc000, 0x7bff, 0x3555].map(of_half);
        assert_eq!(values, [0.0, 2f32.powi(-24), 1.0, -2.0, 65504.0, 0.333_251_95]);
        assert!(of_half(0x7c00).is_infinite() && of_half(0x7e00).is_nan());
    }

    #[test]
    fn a_list_is_answered_without_items_that_are_excluded_or_gone() {
        let (bytes, index) = (ranked(&[5, 3, 8, 1, 2]), index(&[1, 2, 3, 8]));
        let wishes = ItemWishes { k: 3, exclude: vec![8], ..ItemWishes::default() };
        let found = decide(&bytes, (9, MAX), &[name(6), name(4)], &wishes, &index).unwrap();
        let origin = ListOrigin { version: 4, as_of_ms: 5 };
        assert_eq!((found.keys, found.origin), (vec![3, 1, 2], Some(origin)));
        let list = CandidateList::read(&bytes, MAX).unwrap();
        assert_eq!((list.version, list.as_of_ms, list.made_ms), (name(4), 5, 6));
        let more = ItemWishes { k: 4, ..wishes.clone() };
        assert_eq!(decide(&bytes, (9, MAX), &[name(4)], &more, &index), Err(Unusable::Short));
        let few = ItemWishes { k: 1, allow: Some(vec![1]), ..ItemWishes::default() };
        assert_eq!(decide(&bytes, (9, MAX), &[name(4)], &few, &index), Err(Unusable::Short));
    }

    #[test]
    fn only_lists_of_usable_versions_are_answered() {
        let (bytes, index) = (ranked(&[1]), index(&[1]));
        let wishes = ItemWishes { k: 1, ..ItemWishes::default() };
        let of = |usable: &[VersionName]| decide(&bytes, (9, MAX), usable, &wishes, &index).map(|_| ());
        assert_eq!(of(&[name(4)]), Ok(()));
        assert_eq!(of(&[]), Err(Unusable::Stale));
        // A version of the same number that another run wrote is another one.
        assert_eq!(of(&[VersionName { number: 4, identity: 1 }, name(5)]), Err(Unusable::Stale));
    }

    #[test]
    fn what_is_no_list_of_the_user_is_damaged() {
        let (good, index) = (ranked(&[1, 2]), index(&[1, 2]));
        let wishes = ItemWishes { k: 1, ..ItemWishes::default() };
        let of = |bytes: &[u8], user| decide(bytes, (user, MAX), &[name(4)], &wishes, &index).map(|_| ());
        assert_eq!(of(&good, 9), Ok(()));
        assert_eq!(of(&good, 8), Err(Unusable::Damaged));
        let many: Vec<u64> = (0..=MAX as u64).collect();
        for bytes in [
            Vec::new(),
            ranked(&many),
            ranked(&[1, 1]),
            written(9, name(4), &[1, 2], &[0x3c00, 0x3c01]),
            written(9, name(4), &[1], &[0x7e00]),
            written(9, name(4), &[1], &[0x7c00]),
            written(9, name(4), &[1, 2], &[0x3c00]),
        ] {
            assert_eq!(of(&bytes, 9), Err(Unusable::Damaged), "{bytes:?}");
        }
        for at in 0..good.len() {
            let mut wrong = good.clone();
            wrong[at] ^= 1;
            assert_eq!(of(&wrong, 9), Err(Unusable::Damaged), "byte {at}");
            assert_eq!(of(&good[..at], 9), Err(Unusable::Damaged), "the first {at} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0u32..20,
            has_crc in any::<bool>(),
        ) {
            if has_crc && bytes.len() >= HEAD_BYTES {
                bytes.resize(list_bytes(count as usize) - CRC_BYTES, 0);
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&count.to_le_bytes());
                let crc = crc32c(0, &bytes).to_le_bytes();
                bytes.extend(crc);
            }
            if let Some(list) = CandidateList::read(&bytes, 10) {
                prop_assert!(list.keys.len() <= 10 && list.keys.len() == list.scores.len());
                prop_assert!(list.scores.iter().all(|score| score.is_finite()));
            }
        }
    }
}
