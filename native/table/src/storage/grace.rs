//! Grace: nothing that a reader may still look at is used again before every reader has passed.
//!
//! A reader holds one word for the length of a batch call; a writer stamps what it lets go of, and takes it back
//! once no reader is left that came before the stamp. Readers never wait, and never make each other wait.

use std::sync::atomic::Ordering;

use crate::storage::sync::{AtomicU64, fence, yield_now};

/// The most readers at once; one more waits for a place.
pub const READERS_MAX: usize = if cfg!(model) { 3 } else { 256 };
const IDLE: u64 = u64::MAX;

#[repr(align(64))]
struct GracePlace(AtomicU64);

/// What readers and writers of one table agree on.
pub struct Grace {
    now: AtomicU64,
    places: Box<[GracePlace]>,
}

/// A reader's stay; leaving is dropping it.
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
    /// Begin reading: what is reachable now stays what it is until the stay ends.
    pub fn enter(&self) -> Stay<'_> {
        loop {
            for GracePlace(place) in &self.places {
                let now = self.now.load(Ordering::Relaxed);
                if place.load(Ordering::Relaxed) == IDLE
                    && place.compare_exchange(IDLE, now, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                {
                    // The word must be seen before anything is read: a writer that misses it must have unlinked
                    // what it lets go of before our first look.
                    fence(Ordering::SeqCst);
                    return Stay(place);
                }
            }
            yield_now();
        }
    }

    /// The stamp of something just unlinked.
    pub fn stamp(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.now.fetch_add(1, Ordering::SeqCst)
    }

    /// Everything stamped below this is seen by no reader any more.
    pub fn passed(&self) -> u64 {
        // Before the places are looked at: what is stamped meanwhile may be seen by a reader that came meanwhile.
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
