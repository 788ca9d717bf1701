//! Statistics: what was answered by each version, and how long it took. They know no request.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::{Span, Statistics};

/// Versions whose figures are kept; beyond them the oldest are forgotten.
const VERSIONS_MAX: usize = 64;

/// Figures by version.
#[derive(Debug, Default)]
pub struct Figures {
    versions: BTreeMap<u64, Statistics>,
}

impl Figures {
    /// A request was answered.
    pub fn answered(&mut self, version: u64, took: Duration) {
        let one = self.of(version);
        add(&mut one.answered, took);
        one.last_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    }

    /// A request was refused after it was let in.
    pub fn refused(&mut self, version: u64, took: Duration) {
        add(&mut self.of(version).refused, took);
    }

    /// A request waited so long for a lane.
    pub fn waited(&mut self, version: u64, took: Duration) {
        add(&mut self.of(version).waiting, took);
    }

    /// A TensorBatch was gathered and executed.
    pub fn executed(&mut self, version: u64, candidates: usize, gathering: Duration, executing: Duration) {
        let one = self.of(version);
        one.batches += 1;
        one.candidates += candidates as u64;
        add(&mut one.gathering, gathering);
        add(&mut one.executing, executing);
    }

    /// All of them, by version.
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

fn add(span: &mut Span, took: Duration) {
    span.count += 1;
    span.ns += took.as_nanos() as u64;
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
