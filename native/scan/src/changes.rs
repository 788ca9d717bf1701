//! Changes: rows that are new or differ, and keys that are removed, from one version to the next.

use crate::error::{Result, ScanError};
use crate::positions::mix;

/// Changes of a library. A key occurs once at most, in `keys` or in `removed`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes<'a> {
    /// Keys of rows that are new or differ, in any order.
    pub keys: &'a [u64],
    /// Their values, row after row.
    pub values: &'a [i8],
    /// The factor of each row's values.
    pub scales: &'a [f32],
    /// Keys of removed rows, in any order. Those without a row change nothing.
    pub removed: &'a [u64],
}

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The mixed key.
    pub mixed: u64,
    /// The index of the key among `keys`, then `removed`.
    pub at: u32,
}

impl Changes<'_> {
    /// Checks the arrays' lengths and scales.
    pub fn check(&self, dim: usize) -> Result<()> {
        let rows = self.keys.len();
        if self.scales.len() != rows || rows.checked_mul(dim) != Some(self.values.len()) {
            let (values, scales) = (self.values.len(), self.scales.len());
            let text = format!("{rows} keys, {scales} scales and {values} values; a row has {dim} values");
            return Err(ScanError::Argument(text));
        }
        let is_scale = |scale: &f32| (0.0..=crate::row::VALUE_MAX).contains(scale);
        self.scales
            .iter()
            .position(|scale| !is_scale(scale))
            .map_or(Ok(()), |vector| Err(ScanError::Value { vector }))
    }

    /// The changes in the order of mixed keys.
    pub fn in_order(&self) -> Result<Vec<Change>> {
        let keys = self.keys.iter().chain(self.removed).enumerate();
        let mut order: Vec<Change> =
            keys.map(|(at, &key)| Change { mixed: mix(key), at: at as u32 }).collect();
        order.sort_unstable();
        let twice = order.windows(2).find(|pair| pair[0].mixed == pair[1].mixed);
        twice.map_or(Ok(order.clone()), |pair| Err(ScanError::Twice { key: self.key(pair[0].at) }))
    }

    /// The key of a change.
    pub fn key(&self, at: u32) -> u64 {
        let at = at as usize;
        self.keys.get(at).copied().unwrap_or_else(|| self.removed[at - self.keys.len()])
    }
}
