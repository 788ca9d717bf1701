//! CachedStates: the states of users and items, read from their store, and those of items from memory for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use streamlearn_features::{Definition, Read, read_states};

use crate::features::state_cache::{Cached, StateCache};
use crate::features::state_source::{StateGroup, StateKey, StateSource};

/// The definitions of both sides, the user's first.
pub type Definitions<'a> = [Option<&'a Definition>; 2];

/// Reads states.
pub struct CachedStates {
    /// Where they come from.
    pub source: StateSource,
    cache: StateCache,
    /// Items whose states were in memory, and those whose states were read.
    pub items: [AtomicU64; 2],
    /// States that could not be read as such.
    pub bad: AtomicU64,
}

impl CachedStates {
    /// `bytes` and `age` bound what is kept of items.
    pub fn new(source: StateSource, definitions: Definitions<'_>, bytes: usize, age: Duration) -> Self {
        let memory = definitions[1].map_or(0, Definition::memory_max);
        let cache = StateCache::new(bytes, memory, age);
        Self { source, cache, items: Default::default(), bad: AtomicU64::new(0) }
    }

    /// Sets where the states of a side are: 0 is the user's.
    pub fn set_group(&self, side: usize, name: String, partitions: u64) {
        if self.source.set_group(side, StateGroup { name, partitions }) && side == 1 {
            self.cache.clear();
        }
    }

    /// The states of users and of items, by their keys; `None` without an answer. `is_full`: a wait without an answer
    /// counts as a failure of the store.
    pub async fn read(
        &self,
        definitions: Definitions<'_>,
        [users, items]: [&[u64]; 2],
        wait: Duration,
        is_full: bool,
    ) -> Option<[Vec<Cached>; 2]> {
        let mut cached = self.cache.get(items);
        let absent: Vec<usize> = (0..items.len()).filter(|&at| cached[at].is_none()).collect();
        self.items[0].fetch_add((items.len() - absent.len()) as u64, Ordering::Relaxed);
        self.items[1].fetch_add(absent.len() as u64, Ordering::Relaxed);
        let mut keys: Vec<StateKey> = users.iter().map(|&key| (0, key)).collect();
        keys.extend(absent.iter().map(|&at| (1, items[at])));
        let found = if keys.is_empty() { Vec::new() } else { self.source.read(&keys, wait, is_full).await? };
        let found: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
        let (of_users, of_items) = found.split_at(users.len());
        let states = self.decode(definitions[1], of_items);
        self.cache.put(absent.iter().map(|&at| items[at]).zip(states.iter().cloned()));
        for (at, state) in absent.into_iter().zip(states) {
            cached[at] = Some(state);
        }
        let items = cached.into_iter().map(Option::unwrap_or_default).collect();
        Some([self.decode(definitions[0], of_users), items])
    }

    /// Stored states as such; `None` for those that are missing, or cannot be read.
    pub fn decode(&self, definition: Option<&Definition>, stored: &[Option<&[u8]>]) -> Vec<Cached> {
        let Some(definition) = definition else { return Vec::new() };
        let (states, outcomes) = read_states(definition, stored);
        let decoded = states.into_iter().zip(outcomes).map(|(state, outcome)| match outcome {
            Read::Known => Some(Arc::new(state)),
            Read::Missing => None,
            Read::Damaged | Read::Other => {
                self.bad.fetch_add(1, Ordering::Relaxed);
                None
            }
        });
        decoded.collect()
    }
}
