//! ItemIndex: the items of one version, ready to be searched: their vectors and their ids. It never changes.

use std::sync::Arc;

use streamlearn_scan::{Blocks, Excluded, Search};

use crate::request::ItemWishes;
use crate::versions::raw_ids::RawIds;

/// The items of a version.
#[derive(Debug)]
pub struct ItemIndex {
    /// Their vectors.
    pub blocks: Arc<Blocks>,
    /// Their ids.
    pub ids: Arc<RawIds>,
    /// The event time up to which the version has learned; `None` before the first sample.
    pub as_of_ms: Option<i64>,
}

/// The items that were found for a request, best first.
#[derive(Debug, Clone)]
pub struct FoundItems {
    /// Their keys.
    pub keys: Vec<u64>,
    /// Their scores.
    pub scores: Vec<f32>,
    /// The items among which they were found.
    pub index: Arc<ItemIndex>,
}

impl PartialEq for FoundItems {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys && self.scores == other.scores && Arc::ptr_eq(&self.index, &other.index)
    }
}

impl ItemIndex {
    /// Finds items for users, whose vectors are one after the other; users without wishes get none. Returns the number
    /// of scanned vectors too.
    ///
    /// # Errors
    /// If a value of a vector is not finite.
    pub fn find(
        self: &Arc<Self>,
        vectors: &[f32],
        wishes: &[Option<&ItemWishes>],
    ) -> Result<(Vec<Option<FoundItems>>, u64), String> {
        let (mut found, mut scanned) = (vec![None; wishes.len()], 0);
        let wanted = || wishes.iter().enumerate().filter_map(|(user, wishes)| Some((user, (*wishes)?)));
        // Users who may get all items are served by one scan.
        let together: Vec<_> = wanted().filter(|(_, wishes)| wishes.allow.is_none()).collect();
        let apart: Vec<_> = wanted().filter(|(_, wishes)| wishes.allow.is_some()).collect();
        let groups = [&together[..]].into_iter().chain(apart.chunks(1));
        for group in groups.filter(|group| !group.is_empty()) {
            scanned += self.find_together(vectors, group, &mut found)?;
        }
        Ok((found, scanned))
    }

    fn find_together(
        self: &Arc<Self>,
        vectors: &[f32],
        group: &[(usize, &ItemWishes)],
        found: &mut [Option<FoundItems>],
    ) -> Result<u64, String> {
        let dim = self.blocks.dim();
        let (mut users, mut keys, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (user, wishes) in group {
            users.extend_from_slice(&vectors[user * dim..][..dim]);
            keys.extend_from_slice(&wishes.exclude);
            ends.push(keys.len());
        }
        let k = group.iter().map(|(_, wishes)| wishes.k).max().unwrap_or(0);
        let mut search = Search::new(k);
        search.excluded = Excluded { keys: &keys, ends: &ends };
        search.allowed = group[0].1.allow.as_deref();
        let top =
            self.blocks.search(&users, &search).map_err(|error| format!("cannot search items: {error}"))?;
        for (at, (user, wishes)) in group.iter().enumerate() {
            let (keys, scores) = top.of(at);
            let count = keys.len().min(wishes.k);
            let (keys, scores) = (keys[..count].to_vec(), scores[..count].to_vec());
            found[*user] = Some(FoundItems { keys, scores, index: self.clone() });
        }
        Ok(top.scanned)
    }
}
