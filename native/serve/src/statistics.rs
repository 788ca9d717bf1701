//! Statistics: counts and durations of each version's requests. Knows no request.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::{Span, Statistics};

/// The number of versions with statistics; the oldest are dropped.
const VERSIONS_MAX: usize = 64;

/// Statistics by version.
#[derive(Debug, Default)]
pub struct Figures {
    versions: BTreeMap<u64, Statistics>,
}

impl Figures {
    /// Counts an answered request.
    pub fn answered(&mut self, version: u64, duration: Duration) {
        let statistics = self.of(version);
        add(&mut statistics.answered, duration);
        statistics.last_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    }

    /// Counts a request that was refused after admission.
    pub fn refused(&mut self, version: u64, duration: Duration) {
        add(&mut self.of(version).refused, duration);
    }

    /// Counts a request's wait for a lane.
    pub fn waited(&mut self, version: u64, duration: Duration) {
        add(&mut self.of(version).waiting, duration);
    }

    /// Counts an executed TensorBatch.
    pub fn executed(&mut self, version: u64, candidates: usize, gathering: Duration, executing: Duration) {
        let statistics = self.of(version);
        statistics.batches += 1;
        statistics.candidates += candidates as u64;
        add(&mut statistics.gathering, gathering);
        add(&mut statistics.executing, executing);
    }

    /// Returns the statistics of all versions.
    pub fn all(&self) -> Vec<Statistics> {
        self.versions.values().copied().collect()
    }

    fn of(&mut self, version: u64) -> &mut Statistics {
        if self.versions.len() >= VERSIONS_MAX && !self.versions.contains_key(&version) {
            self.versions.pop_first();
        }
        self.versions.entry(version).or_insert(Statistics { version, ..Statistics::default() })
    }
}

fn add(span: &mut Span, duration: Duration) {
    span.count += 1;
    span.ns += duration.as_nanos() as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_few_versions_are_kept_and_the_oldest_go() {
        let mut figures = Figures::default();
        for version in 0..=VERSIONS_MAX as u64 {
            figures.answered(version, Duration::from_nanos(7));
            figures.executed(version, 36, Duration::from_nanos(1), Duration::from_nanos(2));
        }
        let all = figures.all();
        assert_eq!(all.len(), VERSIONS_MAX);
        assert_eq!((all[0].version, all[0].candidates, all[0].batches), (1, 36, 1));
        assert_eq!(all[0].answered, Span { count: 1, ns: 7 });
    }
}
