//! Positions: where the row of each key is. Pages of it are shared between versions.

use std::sync::Arc;

/// The position of a key that has no row.
pub const NOWHERE: u32 = u32::MAX;
const PAGE_BITS: u32 = 12;

/// The positions of keys, in pages by the first bits of the mixed key.
#[derive(Debug, Clone)]
pub struct Positions {
    /// Entries in order: the low half of the mixed key, then the position. The key itself is in the block.
    pages: Vec<Arc<[u64]>>,
}

/// A new position of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// The mixed key.
    pub mixed: u64,
    /// The position before, or `NOWHERE`.
    pub from: u32,
    /// The position after, or `NOWHERE`.
    pub to: u32,
}

/// Mixes a key, such that similar keys are on different pages. No two keys give the same.
#[inline]
pub fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let key = (key ^ key >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    key ^ key >> 32
}

fn page_of(mixed: u64) -> usize {
    (mixed >> (64 - PAGE_BITS)) as usize
}

fn entry(mixed: u64, position: u32) -> u64 {
    mixed << 32 | u64::from(position)
}

impl Default for Positions {
    fn default() -> Self {
        Self { pages: vec![Arc::default(); 1 << PAGE_BITS] }
    }
}

impl Positions {
    /// The position of a mixed key. `is_it` says whether the row at a position has the key.
    pub fn find(&self, mixed: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let page = &self.pages[page_of(mixed)];
        let begin = page.partition_point(|&other| other < entry(mixed, 0));
        let same = page[begin..].iter().take_while(|&&other| (other ^ entry(mixed, 0)) >> 32 == 0);
        same.map(|&other| other as u32).find(|&position| is_it(position))
    }

    /// Moves keys. Only the pages of these keys are copied.
    pub fn apply(&mut self, mut moves: Vec<Move>) {
        moves.sort_unstable();
        for same_page in moves.chunk_by(|one, other| page_of(one.mixed) == page_of(other.mixed)) {
            let page = &mut self.pages[page_of(same_page[0].mixed)];
            let entries = |position: fn(&Move) -> u32| {
                let known = same_page.iter().filter(move |one| position(one) != NOWHERE);
                known.map(move |one| entry(one.mixed, position(one)))
            };
            let mut gone: Vec<u64> = entries(|one| one.from).collect();
            gone.sort_unstable();
            let kept = page.iter().copied().filter(|other| gone.binary_search(other).is_err());
            let mut new: Vec<u64> = kept.chain(entries(|one| one.to)).collect();
            new.sort(); // two sorted runs, which this sort merges
            *page = new.into();
        }
    }

    /// The bytes of its pages.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| size_of_val(page) + size_of_val(&**page) + 16).sum()
    }
}
