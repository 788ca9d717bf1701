//! A batch of keys: sorts them by part and prefetches the memory they need.

use std::ops::Range;

use crate::locked_part::Open;
use crate::storage::images::row_of;
use crate::storage::index::{PARTS, mix, part_of};
use crate::storage::prefetch::{prefetch, prefetch_row};
use crate::table::Table;

/// Maximum threads of one call, whatever it requests.
pub const THREADS_MAX: usize = 128;

/// A member of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Member {
    /// The mixed key.
    pub key: u64,
    /// The key, mixed.
    pub hash: u64,
    /// Its index in the batch.
    pub at: u32,
}

/// Members of a batch by part. One counting sort, so that a call locks each part once.
pub struct ByPart {
    members: Vec<Member>,
    bounds: Vec<u32>,
}

impl ByPart {
    /// Sorts the keys; members of a part keep their order.
    pub fn new(keys: &[u64]) -> Self {
        let mut bounds = vec![0u32; PARTS + 1];
        for &key in keys {
            bounds[part_of(mix(key)) + 1] += 1;
        }
        for part in 0..PARTS {
            bounds[part + 1] += bounds[part];
        }
        let (mut next, mut members) = (bounds.clone(), vec![Member::default(); keys.len()]);
        for (at, &key) in keys.iter().enumerate() {
            let hash = mix(key);
            let place = &mut next[part_of(hash)];
            members[*place as usize] = Member { key, hash, at: at as u32 };
            *place += 1;
        }
        Self { members, bounds }
    }

    /// The members of some parts.
    pub fn of(&self, parts: Range<usize>) -> &[Member] {
        &self.members[self.bounds[parts.start] as usize..self.bounds[parts.end] as usize]
    }

    /// Splits the parts into at most `count` ranges with about equal numbers of members. Trailing empty parts
    /// are left out.
    pub fn split(&self, count: usize) -> Vec<Range<usize>> {
        let count = count.clamp(1, THREADS_MAX);
        let share = self.members.len().div_ceil(count).max(1);
        let mut ranges = Vec::with_capacity(count);
        let mut begin = 0;
        for part in 0..PARTS {
            let members = self.bounds[part + 1] - self.bounds[begin];
            if members as usize >= share {
                ranges.push(begin..part + 1);
                begin = part + 1;
            }
        }
        if self.bounds[begin] < self.bounds[PARTS] {
            ranges.push(begin..PARTS);
        }
        ranges
    }
}

impl Table {
    /// Prefetches the first line of each member's key.
    #[inline(always)]
    pub(crate) fn prefetch_lines(&self, members: &[Member]) {
        for member in members {
            if let Some(lines) = self.index.lines(part_of(member.hash)) {
                prefetch(lines.first(member.hash));
            }
        }
    }

    /// Prefetches the row of a member's key. This read is only a hint. The caller is within a grace period.
    #[inline(always)]
    pub(crate) fn prefetch_row(&self, member: &Member, open: Open, is_learning: bool) {
        let part = part_of(member.hash);
        let Some(lines) = self.index.lines(part) else { return };
        let line = lines.line(lines.first(member.hash));
        let head = line.head();
        let Some(slot) = line.find(head, member.key) else { return };
        let row = row_of(line.id(slot));
        if !crate::storage::line::is_settled(head, slot) {
            prefetch(self.images[part].address(row));
        } else if open.is_versioned && !is_learning {
            // A copy will replace this row.
            return;
        }
        prefetch_row(self.rows.embedding.address(row).cast(), self.rows.embedding.row_bytes() / 4);
        if is_learning {
            prefetch_row(self.rows.state.address(row).cast(), self.rows.state.row_bytes() / 4);
            prefetch(self.rows.use_address(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_split_among_no_more_than_are_asked_for() {
        for (keys, count) in [(0, 1), (1, 1), (1, 4), (1000, 1), (1000, 2), (1000, 3), (5000, 16)] {
            let keys: Vec<u64> = (0..keys).collect();
            let members = ByPart::new(&keys);
            let ranges = members.split(count);
            let shared: usize = ranges.iter().map(|range| members.of(range.clone()).len()).sum();
            assert!(ranges.len() <= count && shared == keys.len(), "{} keys: {ranges:?}", keys.len());
        }
    }
}
