//! StateCache: the states of items that were read lately. Bounded in memory and in age.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamlearn_features::State;

/// A state that was read; `None` if the store had none, or one that cannot be read.
pub type Cached = Option<Arc<State>>;

/// About the memory of an entry beside its state.
const ENTRY_BYTES: usize = 64;

/// Two generations: when the younger one is full it becomes the older one, whose entries that nobody asks for are
/// dropped with the next change.
#[derive(Debug)]
pub struct StateCache {
    age_max: Duration,
    entries_max: usize,
    generations: Mutex<[HashMap<u64, (Instant, Cached)>; 2]>,
}

impl StateCache {
    /// Creates an empty cache for states that take at most `state_memory`.
    pub fn new(bytes_max: usize, state_memory: usize, age_max: Duration) -> Self {
        let entries_max = (bytes_max / 2 / (state_memory + ENTRY_BYTES)).max(1);
        Self { age_max, entries_max, generations: Mutex::default() }
    }

    /// Returns the states of keys; the outer `None` is one to be read.
    pub fn get(&self, keys: &[u64]) -> Vec<Option<Cached>> {
        let (mut generations, now) = (self.lock(), Instant::now());
        let mut states = Vec::with_capacity(keys.len());
        for key in keys {
            let is_fresh = |read: &Instant| now.duration_since(*read) < self.age_max;
            if let Some((read, cached)) = generations[0].get(key) {
                states.push(is_fresh(read).then(|| cached.clone()));
                continue;
            }
            let older = generations[1].remove(key).filter(|(read, _)| is_fresh(read));
            states.push(older.as_ref().map(|(_, cached)| cached.clone()));
            if let Some((read, cached)) = older {
                self.put_one(&mut generations, *key, read, cached);
            }
        }
        states
    }

    /// Adds states that were read.
    pub fn put(&self, states: impl Iterator<Item = (u64, Cached)>) {
        let (mut generations, now) = (self.lock(), Instant::now());
        for (key, state) in states {
            self.put_one(&mut generations, key, now, state);
        }
    }

    /// Drops everything.
    pub fn clear(&self) {
        *self.lock() = Default::default();
    }

    fn put_one(
        &self,
        generations: &mut [HashMap<u64, (Instant, Cached)>; 2],
        key: u64,
        read: Instant,
        cached: Cached,
    ) {
        if generations[0].len() >= self.entries_max {
            generations[1] = std::mem::take(&mut generations[0]);
        }
        generations[0].insert(key, (read, cached));
    }

    fn lock(&self) -> MutexGuard<'_, [HashMap<u64, (Instant, Cached)>; 2]> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_asked_for_lately_and_no_more_than_its_bound() {
        let cache = StateCache::new(2 * 4 * ENTRY_BYTES, 0, Duration::from_secs(60));
        for key in 0..100 {
            cache.put([(key, None)].into_iter());
            assert_eq!(cache.get(&[0]), [Some(None)], "0 is asked for all the time");
        }
        let held: usize = cache.lock().iter().map(HashMap::len).sum();
        assert!(held <= 8, "{held}");
        assert_eq!(cache.get(&[50, 99]), [None, Some(None)]);
        cache.clear();
        assert_eq!(cache.get(&[99]), [None]);
    }

    #[test]
    fn what_was_read_too_long_ago_is_read_again() {
        let cache = StateCache::new(1 << 20, 100, Duration::ZERO);
        cache.put([(7, None)].into_iter());
        assert_eq!(cache.get(&[7]), [None]);
    }
}
