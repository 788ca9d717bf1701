//! ListSource: answers requests for items with lists that were found ahead of them, where that is allowed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::answer::{Answer, Cut};
use crate::features::state_source::{StateGroup, StateSource};
use crate::front::Front;
use crate::request::{ItemWishes, Request, Values};
use crate::versions::VersionName;
use crate::versions::candidate_list::{Unusable, decide};
use crate::versions::item_index::{FoundItems, ItemIndex};

/// Requests of this priority refresh lists, so they are always searched for.
pub const REFRESH: u8 = u8::MAX;
/// The outcomes of looking for a list, as `counts` has them.
pub const OUTCOMES: [&str; 6] = ["answered", "missing", "stale", "damaged", "short", "away"];

/// The version that answers, and those whose lists may stand in for its search.
#[derive(Debug, Clone, Default)]
pub struct UsableVersions {
    /// The version that answers.
    pub answering: VersionName,
    /// Those of lists.
    pub of_lists: Vec<VersionName>,
}

/// The lists in a store, and which of them may be answered.
pub struct ListSource {
    store: StateSource,
    wait: Duration,
    items_max: usize,
    /// The place of the slot that names users, among the columns of users.
    user: usize,
    usable: Mutex<Arc<UsableVersions>>,
    /// Whether it is known where lists are.
    is_found: AtomicBool,
    counts: [AtomicU64; OUTCOMES.len()],
}

impl ListSource {
    /// A request waits for its list no longer than `wait`. Lists have at most `items_max` items; the user is the key in
    /// the column `user`.
    pub fn new(store: StateSource, wait: Duration, items_max: usize, user: usize) -> Self {
        let (is_found, counts) = (AtomicBool::new(false), Default::default());
        Self { store, wait, items_max, user, usable: Mutex::default(), is_found, counts }
    }

    /// Sets where lists are in the store.
    pub fn set_group(&self, group: StateGroup) {
        self.store.set_group(0, group);
        self.is_found.store(true, Ordering::Relaxed);
    }

    /// Sets the versions whose lists may be answered, for as long as the same version answers.
    pub fn allow(&self, usable: UsableVersions) {
        *self.usable.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(usable);
    }

    /// How often each of `OUTCOMES` came.
    pub fn counts(&self) -> [u64; OUTCOMES.len()] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// The error that ended the last connection to the store; empty while there is one.
    pub fn error(&self) -> String {
        self.store.error()
    }

    /// Returns the list of a request's user as its answer; `None` if the front has to search.
    pub async fn answer(&self, front: &Front, request: &Request) -> Option<Answer> {
        let wishes = request.items.as_deref().filter(|_| request.wishes.priority != REFRESH)?;
        let (version, index) = front.items_for(request)?;
        let Some(Values::Keys(keys)) = request.user.get(self.user) else { return None };
        let key = *keys.first()?;
        let found = self.found(key, version, (request, wishes), &index).await;
        // The version may have been taken back while the store was read.
        let is_active = || front.items_for(request).is_some_and(|(now, _)| now == version);
        match found.and_then(|found| is_active().then_some(found).ok_or("stale")) {
            Ok(found) => {
                self.count("answered");
                let (scores, cut, found) = (Vec::new(), Cut::default(), Some(Box::new(found)));
                Some(Answer {
                    version: version.number,
                    scores,
                    cut,
                    found,
                    computed: None,
                    filled: None,
                    order: None,
                    arm: None,
                })
            }
            Err(outcome) => {
                self.count(outcome);
                None
            }
        }
    }

    /// Returns the items of a user's list, or the outcome.
    async fn found(
        &self,
        key: u64,
        version: VersionName,
        (request, wishes): (&Request, &ItemWishes),
        index: &Arc<ItemIndex>,
    ) -> Result<FoundItems, &'static str> {
        self.usable_for(version)?;
        if !self.is_found.load(Ordering::Relaxed) {
            return Err("missing");
        }
        let deadline_us = request.wishes.deadline_us;
        let wait = deadline_us.map_or(self.wait, |us| self.wait.min(Duration::from_micros(us / 2)));
        let read = self.store.read(&[(0, key)], wait, wait == self.wait).await;
        let bytes = read.ok_or("away")?.pop().flatten().ok_or("missing")?;
        let usable = self.usable_for(version)?;
        let found = decide(&bytes, (key, self.items_max), &usable.of_lists, wishes, index);
        found.map_err(|reason| match reason {
            Unusable::Damaged => "damaged",
            Unusable::Stale => "stale",
            Unusable::Short => "short",
        })
    }

    /// The versions whose lists may be answered now, if `version` answers. Until those before it are known there are none.
    fn usable_for(&self, version: VersionName) -> Result<Arc<UsableVersions>, &'static str> {
        let usable = self.usable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (usable.answering == version).then_some(usable).ok_or("stale")
    }

    fn count(&self, outcome: &str) {
        let at = OUTCOMES.iter().position(|name| *name == outcome);
        at.map(|at| self.counts[at].fetch_add(1, Ordering::Relaxed));
    }
}
