//! Expiry: removes idle and rare keys; a hand goes around each part, a little at every call.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::locked_part::Open;
use crate::rows::Use;
use crate::storage::images::GONE;
use crate::storage::index::{PARTS, mix};
use crate::table::Table;
use crate::table_set::Writer;

/// Approximate number of keys inspected under one lock of a part.
const TOGETHER: usize = 512;

/// The conditions for removal. A key that was put and never used has no age: it leaves only if there are too
/// many keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Remove keys that were not used for this long.
    pub idle_ms: Option<i64>,
    /// Remove keys that were used less often than this and not within `rare_idle_ms`.
    pub count_min: u8,
    /// See `count_min`.
    pub rare_idle_ms: i64,
    /// While a table has more keys than this, remove those that the hand passes and that were unused the
    /// longest.
    pub keys_max: Option<usize>,
}

/// The result of an expiry call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// The number of inspected keys.
    pub scanned: usize,
    /// The number of keys removed as idle.
    pub idle: usize,
    /// The number of keys removed as rare.
    pub rare: usize,
    /// The number of keys removed because there were too many.
    pub over: usize,
}

/// The reason why a key leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Idle,
    Rare,
    Over,
}

impl Expiry {
    /// Whether a key leaves regardless of the number of keys.
    fn why(&self, used: Use, now: u32, tick_ms: i64) -> Option<Why> {
        if used.is_never() {
            return None;
        }
        let age_ms = i64::from(used.age(now)).saturating_mul(tick_ms);
        if self.idle_ms.is_some_and(|idle_ms| age_ms > idle_ms) {
            return Some(Why::Idle);
        }
        (used.count < self.count_min && age_ms > self.rare_idle_ms).then_some(Why::Rare)
    }
}

impl Table {
    /// Inspects about `budget_keys` keys from where the last call ended, and removes those that expire.
    pub fn expire(&self, expiry: &Expiry, now_ms: i64, budget_keys: usize) -> Result<Expired> {
        let mut expired = Expired::default();
        let mut part = self.next_part.load(Ordering::Relaxed) % PARTS;
        let mut rounds = 0;
        while expired.scanned < budget_keys && rounds <= PARTS {
            let (_gate, open) = self.shared.write(Writer::Anyone)?;
            if self.expire_some(expiry, open, (part, now_ms), &mut expired)? {
                part = (part + 1) % PARTS;
                rounds += 1;
            }
        }
        self.next_part.store(part, Ordering::Relaxed);
        Ok(expired)
    }

    /// Advances the hand of a part by some lines. Returns whether it completed a round.
    fn expire_some(
        &self,
        expiry: &Expiry,
        open: Open,
        (part, now_ms): (usize, i64),
        expired: &mut Expired,
    ) -> Result<bool> {
        let mut locked = self.hold(part, open);
        let Some(lines) = self.index.lines(part) else { return Ok(true) };
        locked.count_keys();
        // The hand is a position among the mixed keys, and its steps depend on the keys alone: a restored
        // table has other lines and must expire the same keys.
        let windows = locked.part.size().keys.div_ceil(TOGETHER).max(1) as u128;
        let begin = u128::from(locked.part.hand);
        let end = (begin + (1u128 << 64).div_ceil(windows)).min(1 << 64);
        let now = self.tick(now_ms);
        let mut leaving = Vec::new();
        let mut passed: Vec<(u64, u32)> = Vec::new();
        for (key, id) in lines.between(begin, end).filter(|&(_, id)| id & GONE == 0) {
            expired.scanned += 1;
            let used = self.rows.get_use(id);
            match expiry.why(used, now, self.settings.tick_ms) {
                Some(why) => leaving.push((key, why)),
                // Never used keys leave before all used ones.
                None if used.is_never() => passed.push((key, u32::MAX)),
                None => passed.push((key, used.age(now) << 8 | u32::from(255 - used.count))),
            }
        }
        if let Some(keys_max) = expiry.keys_max {
            let over = (self.keys() - leaving.len()).saturating_sub(keys_max);
            leaving.extend(oldest(passed, over).into_iter().map(|key| (key, Why::Over)));
        }
        for (key, why) in leaving {
            let target = locked.target(open, mix(key), key);
            locked.remove(open, key, target)?;
            match why {
                Why::Idle => expired.idle += 1,
                Why::Rare => expired.rare += 1,
                Why::Over => expired.over += 1,
            }
        }
        let is_round = end == 1 << 64;
        locked.part.hand = if is_round { 0 } else { end as u64 };
        Ok(is_round)
    }

    /// The positions of the hands: the next part of the table, and the hand of each part.
    pub fn hands(&self, parts: Range<usize>) -> (usize, Vec<u64>) {
        let hands = parts.map(|part| self.lock(part).hand).collect();
        (self.next_part.load(Ordering::Relaxed), hands)
    }

    /// Restores the positions of the hands.
    pub fn set_hands(&self, parts: Range<usize>, next_part: usize, hands: &[u64]) {
        for (part, &hand) in parts.zip(hands) {
            self.lock(part).hand = hand;
        }
        self.next_part.store(next_part % PARTS, Ordering::Relaxed);
    }
}

/// The passed keys that leave when there are too many: those unused the longest, the least used first among
/// them. At most a quarter, since the rest of the part may have older ones.
fn oldest(mut passed: Vec<(u64, u32)>, over: usize) -> Vec<u64> {
    let count = over.min(passed.len().div_ceil(4));
    passed.sort_unstable_by_key(|&(key, age)| (std::cmp::Reverse(age), key));
    passed.into_iter().take(count).map(|(key, _)| key).collect()
}
