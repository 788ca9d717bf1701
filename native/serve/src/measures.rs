//! Measures: counters of waits, merges and refusals.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::distribution::{Distributed, Distribution};

/// The upper bound of the first bucket of durations, in microseconds.
const TIME_US_LEAST: u64 = 10;
/// Of so many requests that some cells were searched for, one is sampled.
const SAMPLED_EVERY: u64 = 256;

/// The counters of a front since its creation.
#[derive(Debug)]
pub struct Measures {
    waits: Distribution,
    requests: Distribution,
    candidates: Distribution,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    tried_again: AtomicU64,
    left_arm: AtomicU64,
    searches: Distribution,
    found: AtomicU64,
    scanned: AtomicU64,
    probed: AtomicU64,
    /// Items of samples that were found, and that were not.
    recalled: [AtomicU64; 2],
    filled: [AtomicU64; 2],
}

impl Default for Measures {
    fn default() -> Self {
        Self {
            waits: Distribution::new(TIME_US_LEAST),
            requests: Distribution::new(1),
            candidates: Distribution::new(1),
            refused: Mutex::default(),
            tried_again: AtomicU64::new(0),
            left_arm: AtomicU64::new(0),
            searches: Distribution::new(TIME_US_LEAST),
            found: AtomicU64::new(0),
            scanned: AtomicU64::new(0),
            probed: AtomicU64::new(0),
            recalled: Default::default(),
            filled: Default::default(),
        }
    }
}

impl Measures {
    /// Counts a request's wait for a lane.
    pub(crate) fn waited(&self, wait: Duration) {
        self.waits.add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts a TensorBatch with its numbers of requests and candidates.
    pub(crate) fn merged(&self, requests: usize, candidates: usize) {
        self.requests.add(requests as u64);
        self.candidates.add(candidates as u64);
    }

    /// Counts a refusal.
    pub(crate) fn refused(&self, reason: &'static str) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// Counts requests that are retried alone.
    pub(crate) fn tried_again(&self, requests: u64) {
        self.tried_again.fetch_add(requests, Ordering::Relaxed);
    }

    /// Counts a request whose arm has a version that cannot answer.
    pub(crate) fn answered_without_arm(&self) {
        self.left_arm.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a search for items: the requests that it served, the vectors that it scanned, and its time.
    pub(crate) fn searched(&self, requests: u64, vectors: u64, took: Duration) {
        self.searches.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.found.fetch_add(requests, Ordering::Relaxed);
        self.scanned.fetch_add(vectors, Ordering::Relaxed);
    }

    /// Counts requests that some cells were searched for. Returns whether one of them is to be sampled.
    pub(crate) fn probed(&self, requests: u64) -> bool {
        let before = self.probed.fetch_add(requests, Ordering::Relaxed);
        before.div_ceil(SAMPLED_EVERY) != (before + requests).div_ceil(SAMPLED_EVERY)
    }

    /// Counts the items of a sample.
    pub(crate) fn recalled(&self, found: u64, missed: u64) {
        self.recalled[0].fetch_add(found, Ordering::Relaxed);
        self.recalled[1].fetch_add(missed, Ordering::Relaxed);
    }

    /// Returns how many items of samples were found, and how many were not.
    pub fn recall(&self) -> (u64, u64) {
        let [found, missed] = &self.recalled;
        (found.load(Ordering::Relaxed), missed.load(Ordering::Relaxed))
    }

    /// Counts candidates whose columns were left out: those in the library, and others.
    pub(crate) fn filled(&self, known: usize, unknown: usize) {
        self.filled[0].fetch_add(known as u64, Ordering::Relaxed);
        self.filled[1].fetch_add(unknown as u64, Ordering::Relaxed);
    }

    /// Returns how many candidates with columns left out were in the library, and how many were not.
    pub fn candidates_filled(&self) -> (u64, u64) {
        (self.filled[0].load(Ordering::Relaxed), self.filled[1].load(Ordering::Relaxed))
    }

    /// Returns how long searches for items took, in microseconds.
    pub fn searches(&self) -> Distributed {
        self.searches.read()
    }

    /// Returns for how many requests items were found, and how many vectors were scanned.
    pub fn found(&self) -> (u64, u64) {
        (self.found.load(Ordering::Relaxed), self.scanned.load(Ordering::Relaxed))
    }

    /// Returns how long requests waited for a lane, in microseconds.
    pub fn waits(&self) -> Distributed {
        self.waits.read()
    }

    /// Returns how many requests TensorBatches merged.
    pub fn requests(&self) -> Distributed {
        self.requests.read()
    }

    /// Returns how many candidates TensorBatches had.
    pub fn candidates(&self) -> Distributed {
        self.candidates.read()
    }

    /// Returns the number of refusals by reason.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns how many requests were retried alone.
    pub fn again(&self) -> u64 {
        self.tried_again.load(Ordering::Relaxed)
    }

    /// Returns how many requests were answered for no arm, because the version of theirs could not answer.
    pub fn without_arm(&self) -> u64 {
        self.left_arm.load(Ordering::Relaxed)
    }
}
