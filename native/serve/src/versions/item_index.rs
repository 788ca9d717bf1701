//! ItemIndex: the items of one version, ready to be searched: their vectors and their ids. It never changes.

use std::collections::HashSet;
use std::sync::Arc;

use streamlearn_scan::{Blocks, Excluded, Search, Top};

use crate::request::{ItemWishes, Request};
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
    /// How many cells are searched for a user, if the vectors are in cells.
    pub probes: Option<usize>,
    /// As that of its `VersionName`.
    pub identity: u64,
}

/// The items that were found for a request, best first.
#[derive(Debug, Clone)]
pub struct FoundItems {
    /// Their keys.
    pub keys: Vec<u64>,
    /// Their scores.
    pub scores: Vec<f32>,
    /// How many cells were searched; `None` if all vectors were.
    pub probed: Option<usize>,
    /// The items among which they were found.
    pub index: Arc<ItemIndex>,
    /// The list that they come from, if they were found ahead of the request.
    pub origin: Option<ListOrigin>,
}

/// What found the items of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListOrigin {
    /// The number of the version.
    pub version: u64,
    /// The event time up to which it had learned; -1 before the first sample.
    pub as_of_ms: i64,
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
        let (together, apart): (Vec<_>, Vec<_>) = wanted().partition(|(_, wishes)| wishes.allow.is_none());
        if !together.is_empty() {
            scanned += self.find_together(vectors, &together, self.probes, &mut found)?;
        }
        for group in apart.chunks(1) {
            scanned += self.find_together(vectors, group, None, &mut found)?;
        }
        let lacks = |&(user, wishes): &(usize, &ItemWishes)| {
            let is_short = |found: &FoundItems| found.keys.len() < wishes.k.min(self.blocks.len());
            found[user].as_ref().is_some_and(|found| found.probed.is_some() && is_short(found))
        };
        let lacking: Vec<_> = together.into_iter().filter(lacks).collect();
        if !lacking.is_empty() {
            scanned += self.find_together(vectors, &lacking, None, &mut found)?;
        }
        Ok((found, scanned))
    }

    fn find_together(
        self: &Arc<Self>,
        vectors: &[f32],
        group: &[(usize, &ItemWishes)],
        probes: Option<usize>,
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
        let excluded = Excluded { keys: &keys, ends: &ends };
        let allowed = group[0].1.allow.as_deref();
        let top = self.search(&users, &Search { excluded, allowed, probes, ..Search::new(k) })?;
        for (at, (user, wishes)) in group.iter().enumerate() {
            let (keys, scores) = top.of(at);
            let count = keys.len().min(wishes.k);
            let (keys, scores) = (keys[..count].to_vec(), scores[..count].to_vec());
            found[*user] =
                Some(FoundItems { keys, scores, probed: probes, index: self.clone(), origin: None });
        }
        Ok(top.scanned)
    }

    fn search(&self, users: &[f32], search: &Search<'_>) -> Result<Top, String> {
        self.blocks.search(users, search).map_err(|error| format!("cannot search items: {error}"))
    }
}

/// A request that some cells were searched for, and will be once more with all vectors.
#[derive(Debug)]
pub struct Sampled {
    /// The request.
    pub request: Arc<Request>,
    /// The vector of its user.
    pub vector: Vec<f32>,
    /// What was found.
    pub found: FoundItems,
}

impl Sampled {
    /// Searches all vectors. Returns how many of the items had been found, and how many had not.
    ///
    /// # Errors
    /// If the vectors cannot be searched.
    pub fn recall(&self) -> Result<(u64, u64), String> {
        let Some(wishes) = &self.request.items else { return Ok((0, 0)) };
        let ends = [wishes.exclude.len()];
        let excluded = Excluded { keys: &wishes.exclude, ends: &ends };
        let search = Search { excluded, ..Search::new(self.found.keys.len()) };
        let (top, known) = (self.found.index.search(&self.vector, &search)?, &self.found.keys);
        let known: HashSet<u64> = known.iter().copied().collect();
        let found = top.keys.iter().filter(|key| known.contains(key)).count() as u64;
        Ok((found, top.keys.len() as u64 - found))
    }
}
