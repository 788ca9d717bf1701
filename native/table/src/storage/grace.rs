//! Grace periods: memory that a reader may still access is not reused before every reader has left.
//!
//! A reader holds one word for the duration of a batch call. A writer stamps the memory it retires and reuses
//! it once no reader is left that entered before the stamp. Readers never wait, and never delay each other.

use std::sync::atomic::Ordering;

use crate::storage::sync::{AtomicU64, fence, yield_now};

/// Maximum concurrent readers; one more waits for a place.
pub const READERS_MAX: usize = if cfg!(feature = "model") { 3 } else { 256 };
const IDLE: u64 = u64::MAX;

#[repr(align(64))]
struct GracePlace(AtomicU64);

/// The state that readers and writers of one table share.
pub struct Grace {
    now: AtomicU64,
    places: Box<[GracePlace]>,
}

/// A reader's stay, which ends when it is dropped.
pub struct Stay<'a>(&'a AtomicU64);

impl Default for Grace {
    fn default() -> Self {
        Self {
            now: AtomicU64::new(1),
            places: (0..READERS_MAX).map(|_| GracePlace(AtomicU64::new(IDLE))).collect(),
        }
    }
}

impl Grace {
    /// Starts a read: memory that is reachable now is not reused until the stay ends.
    pub fn enter(&self) -> Stay<'_> {
        loop {
            for GracePlace(place) in &self.places {
                let now = self.now.load(Ordering::Relaxed);
                if place.load(Ordering::Relaxed) == IDLE
                    && place.compare_exchange(IDLE, now, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                {
                    // The word must be visible before anything is read: a writer that misses it must have
                    // unlinked the memory it retires before this reader's first access.
                    fence(Ordering::SeqCst);
                    return Stay(place);
                }
            }
            yield_now();
        }
    }

    /// The stamp of memory that was just unlinked.
    pub fn stamp(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// No reader can still see memory stamped below this.
    pub fn passed(&self) -> u64 {
        // Loaded before the places: memory stamped meanwhile may be visible to a reader that entered
        // meanwhile.
        let now = self.now.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let oldest = self.places.iter().map(|GracePlace(place)| place.load(Ordering::SeqCst)).min();
        oldest.unwrap_or(IDLE).min(now)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.store(IDLE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_passed_while_an_earlier_reader_stays() {
        let grace = Grace::default();
        let early = grace.enter();
        let first = grace.stamp();
        let late = grace.enter();
        assert!(grace.passed() <= first);
        drop(early);
        assert!(grace.passed() > first);
        let second = grace.stamp();
        assert!(grace.passed() <= second);
        drop(late);
        assert!(grace.passed() > second);
    }
}
