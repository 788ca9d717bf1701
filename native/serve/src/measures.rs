//! Measures: how long requests waited, what was merged, and why requests were refused, as counts that only grow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::distribution::{Distributed, Distribution};

/// What the first bucket of times goes up to, in microseconds.
const TIME_US_LEAST: u64 = 10;

/// What a front did since it was made.
#[derive(Debug)]
pub struct Measures {
    waits: Distribution,
    requests: Distribution,
    candidates: Distribution,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    tried_again: AtomicU64,
}

impl Default for Measures {
    fn default() -> Self {
        Self {
            waits: Distribution::new(TIME_US_LEAST),
            requests: Distribution::new(1),
            candidates: Distribution::new(1),
            refused: Mutex::default(),
            tried_again: AtomicU64::new(0),
        }
    }
}

impl Measures {
    /// A request waited so long for a lane.
    pub(crate) fn waited(&self, wait: Duration) {
        self.waits.add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    }

    /// A TensorBatch has pieces of so many requests, and so many candidates.
    pub(crate) fn merged(&self, requests: usize, candidates: usize) {
        self.requests.add(requests as u64);
        self.candidates.add(candidates as u64);
    }

    /// A request was refused.
    pub(crate) fn refused(&self, why: &'static str) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(why).or_default() += 1;
    }

    /// So many requests are tried once more, each alone.
    pub(crate) fn tried_again(&self, requests: u64) {
        self.tried_again.fetch_add(requests, Ordering::Relaxed);
    }

    /// How long requests waited for a lane, in microseconds.
    pub fn waits(&self) -> Distributed {
        self.waits.read()
    }

    /// Of how many requests TensorBatches were.
    pub fn requests(&self) -> Distributed {
        self.requests.read()
    }

    /// How many candidates TensorBatches had.
    pub fn candidates(&self) -> Distributed {
        self.candidates.read()
    }

    /// How many requests were refused, by why.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many requests were tried once more alone.
    pub fn again(&self) -> u64 {
        self.tried_again.load(Ordering::Relaxed)
    }
}
