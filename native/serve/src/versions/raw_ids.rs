//! RawIds: the id of each item as callers know it, by key. A new version shares the pages that it does not change.

use std::sync::Arc;

use serde::Serialize;

pub(super) const PAGE_BITS: u32 = 12;

/// The id of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RawId<'a> {
    /// An integer.
    Int(i64),
    /// A text.
    Text(&'a str),
}

/// The ids of a version's items, in pages by the first bits of the key, which is a hash.
#[derive(Debug, Clone)]
pub struct RawIds {
    is_text: bool,
    pages: Vec<Arc<Page>>,
}

/// The ids of some keys, in the order of the keys.
#[derive(Debug, Default)]
struct Page {
    keys: Vec<u64>,
    /// The ids, if they are integers.
    ints: Vec<i64>,
    /// If they are texts, these one after another.
    text: String,
    /// The end of each text.
    ends: Vec<u32>,
}

/// A key with its new id; without one if it is removed.
type Change<'a> = (u64, Option<RawId<'a>>);

impl RawIds {
    /// No ids.
    pub fn new(is_text: bool) -> Self {
        Self { is_text, pages: vec![Arc::default(); 1 << PAGE_BITS] }
    }

    /// Whether ids are texts.
    pub fn is_text(&self) -> bool {
        self.is_text
    }

    /// The number of ids.
    pub fn len(&self) -> usize {
        self.pages.iter().map(|page| page.keys.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory of this version, those that it shares with other versions included.
    pub fn bytes(&self) -> usize {
        let of_page = |page: &Arc<Page>| {
            size_of::<Page>()
                + 16 * page.keys.len().max(page.ints.len())
                + page.text.len()
                + 4 * page.ends.len()
        };
        self.pages.iter().map(of_page).sum()
    }

    /// The id of a key.
    pub fn get(&self, key: u64) -> Option<RawId<'_>> {
        let page = &self.pages[page_of(key)];
        page.keys.binary_search(&key).ok().map(|at| page.id(at))
    }

    /// The ids of the next version: these with new ones, and without those of removed keys.
    ///
    /// # Errors
    /// If a key is given twice, or ids have the wrong type or too many bytes.
    pub fn apply<'a>(
        &self,
        new: impl Iterator<Item = (u64, RawId<'a>)>,
        removed: &[u64],
    ) -> Result<Self, String> {
        let differs = |(key, id): &(u64, RawId<'_>)| self.get(*key) != Some(*id);
        let mut changes: Vec<Change<'a>> = new.filter(differs).map(|(key, id)| (key, Some(id))).collect();
        if changes.iter().any(|(_, id)| matches!(id, Some(RawId::Text(_))) != self.is_text) {
            return Err(format!("the ids are not {}", if self.is_text { "texts" } else { "integers" }));
        }
        changes.extend(removed.iter().map(|&key| (key, None)));
        sort(&mut changes)?;
        let mut next = self.clone();
        for same_page in changes.chunk_by(|one, other| page_of(one.0) == page_of(other.0)) {
            let page = &mut next.pages[page_of(same_page[0].0)];
            *page = Arc::new(page.changed(same_page)?);
        }
        Ok(next)
    }
}

/// Puts changes of pages into the order of their keys, of which each may be there once.
pub(super) fn sort<T>(changes: &mut [(u64, Option<T>)]) -> Result<(), String> {
    changes.sort_unstable_by_key(|change| change.0);
    match changes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(twice) => Err(format!("key {} is given twice", twice[0].0)),
        None => Ok(()),
    }
}

/// The page of a key.
pub(super) fn page_of(key: u64) -> usize {
    (key >> (64 - PAGE_BITS)) as usize
}

impl Page {
    fn id(&self, at: usize) -> RawId<'_> {
        if let Some(&int) = self.ints.get(at) {
            return RawId::Int(int);
        }
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        RawId::Text(&self.text[begin as usize..self.ends[at] as usize])
    }

    /// This page with changes, which are in the order of their keys.
    fn changed(&self, changes: &[Change<'_>]) -> Result<Self, String> {
        let (mut page, mut changes) = (Self::default(), changes.iter().peekable());
        for (at, &key) in self.keys.iter().enumerate() {
            while let Some(&(new, id)) = changes.next_if(|change| change.0 < key) {
                page.push(new, id)?;
            }
            match changes.next_if(|change| change.0 == key) {
                Some(&(_, id)) => page.push(key, id)?,
                None => page.push(key, Some(self.id(at)))?,
            }
        }
        changes.try_for_each(|&(new, id)| page.push(new, id))?;
        Ok(page)
    }

    fn push(&mut self, key: u64, id: Option<RawId<'_>>) -> Result<(), String> {
        match id {
            None => return Ok(()),
            Some(RawId::Int(int)) => self.ints.push(int),
            Some(RawId::Text(text)) => {
                self.text.push_str(text);
                self.ends.push(u32::try_from(self.text.len()).map_err(|_| "ids have more than 4 GiB")?);
            }
        }
        self.keys.push(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn text_of(id: RawId<'_>) -> String {
        match id {
            RawId::Int(int) => int.to_string(),
            RawId::Text(text) => text.to_owned(),
        }
    }

    proptest! {
        #[test]
        fn a_version_has_the_ids_of_all_changes_and_its_forerunner_keeps_its_own(
            steps in prop::collection::vec(
                (prop::collection::btree_map(0..40_u64, 0..9_i64, 0..20), prop::collection::btree_set(0..40_u64, 0..9)),
                1..6,
            ),
            is_text: bool,
        ) {
            // Some keys share a page.
            let key = |number: u64| (number % 7) << 60 | number;
            let (mut ids, mut truth) = (RawIds::new(is_text), BTreeMap::new());
            for (new, removed) in steps {
                let (before, before_truth) = (ids.clone(), truth.clone());
                let texts: Vec<(u64, i64, String)> = new
                    .into_iter()
                    .filter(|(number, _)| !removed.contains(number))
                    .map(|(number, id)| (key(number), id, "é".repeat(id as usize)))
                    .collect();
                let new = texts.iter().map(|(key, int, text)| {
                    (*key, if is_text { RawId::Text(text) } else { RawId::Int(*int) })
                });
                let removed: Vec<u64> = removed.into_iter().map(key).collect();
                ids = ids.apply(new.clone(), &removed).unwrap();
                removed.iter().for_each(|key| { truth.remove(key); });
                truth.extend(new.map(|(key, id)| (key, text_of(id))));
                for (ids, truth) in [(&ids, &truth), (&before, &before_truth)] {
                    prop_assert_eq!(ids.len(), truth.len());
                    for number in 0..40 {
                        prop_assert_eq!(ids.get(key(number)).map(text_of), truth.get(&key(number)).cloned());
                    }
                }
            }
        }
    }

    #[test]
    fn pages_without_changes_are_shared_and_wrong_ids_are_refused() {
        let ids = RawIds::new(false)
            .apply([(1, RawId::Int(7)), (1 << 60, RawId::Int(8))].into_iter(), &[])
            .unwrap();
        let next = ids.apply([(1, RawId::Int(7)), (1 << 60, RawId::Int(9))].into_iter(), &[]).unwrap();
        assert!(Arc::ptr_eq(&ids.pages[0], &next.pages[0]), "the id of its key is the same");
        assert_eq!((ids.get(1 << 60), next.get(1 << 60)), (Some(RawId::Int(8)), Some(RawId::Int(9))));
        assert!(ids.apply([(2, RawId::Text("a"))].into_iter(), &[]).unwrap_err().contains("not integers"));
        assert!(ids.apply([(2, RawId::Int(1))].into_iter(), &[2]).unwrap_err().contains("twice"));
        assert!(next.bytes() > RawIds::new(false).bytes());
    }
}
