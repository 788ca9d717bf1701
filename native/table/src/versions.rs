//! The versions of a set of tables: which are retained, which one readers follow, and the births of their
//! images.
//!
//! This module decides and counts, but knows no rows. A birth is an increasing number. The version open for
//! writing has one, and an image is visible to every version with the same or a later birth.

use std::sync::atomic::Ordering;

use crate::error::{Result, TableError};
use crate::storage::sync::{AtomicU64, Mutex, MutexGuard};

/// A version's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its number.
    pub version: u64,
    /// The birth of its writes.
    pub birth: u64,
    pins: usize,
    exports: usize,
}

/// A version held by an export: it is not retired, but it may be discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The birth of its writes.
    pub birth: u64,
}

/// A retired version, with its neighbours at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retired {
    /// Its birth.
    pub birth: u64,
    /// Whether an older version is still retained.
    pub has_older: bool,
    /// The birth of the next newer version.
    pub newer: u64,
}

/// The result of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// Images born later are removed; earlier ones stay.
    After(u64),
    /// No version is committed, so everything is removed.
    Everything,
}

#[derive(Default)]
struct State {
    /// Committed and retained versions, oldest first.
    retained: Vec<Known>,
    sealed: Option<Known>,
    /// The last version that was sealed and abandoned since the newest commit; it includes the writes of
    /// earlier ones.
    abandoned: Option<Known>,
}

/// The versions of one set.
pub struct Versions {
    open: AtomicU64,
    /// The birth of the active version; 0, before any birth, if there is none.
    active: AtomicU64,
    state: Mutex<State>,
}

impl Default for Versions {
    fn default() -> Self {
        Self { open: AtomicU64::new(1), active: AtomicU64::new(0), state: Mutex::default() }
    }
}

fn names(versions: &[Known]) -> String {
    let names: Vec<String> = versions.iter().map(|known| known.version.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Versions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The birth of current writes.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Whether writes must preserve earlier images.
    pub fn is_versioned(&self) -> bool {
        let state = self.state();
        state.sealed.is_some() || !state.retained.is_empty() || state.abandoned.is_some()
    }

    /// The birth of the version that readers follow.
    #[inline(always)]
    pub fn active(&self) -> u64 {
        self.active.load(Ordering::Acquire)
    }

    /// Seals the open version under a number. Returns false if that was done already.
    pub fn seal(&self, version: u64) -> Result<bool> {
        let mut state = self.state();
        if let Some(sealed) = state.sealed {
            if sealed.version == version {
                return Ok(false);
            }
            let text = format!(
                "version {} is sealed but not committed; version {version} must wait",
                sealed.version
            );
            return Err(TableError::Busy(text));
        }
        if let Some(last) = state.retained.last().filter(|last| last.version >= version) {
            let text =
                format!("version {version} cannot follow {}; version numbers must increase", last.version);
            return Err(TableError::Version(text));
        }
        let birth = self.open.fetch_add(1, Ordering::AcqRel);
        state.sealed = Some(Known { version, birth, pins: 0, exports: 0 });
        Ok(true)
    }

    /// Commits the sealed version. Committing the newest one again changes nothing. Returns the abandoned
    /// versions that are now part of it.
    pub fn commit(&self, version: u64) -> Result<Option<Retired>> {
        let mut state = self.state();
        match state.sealed {
            Some(sealed) if sealed.version == version => {
                state.sealed = None;
                let has_older = !state.retained.is_empty();
                state.retained.push(sealed);
                let merged = state.abandoned.take();
                Ok(merged.map(|known| Retired { birth: known.birth, has_older, newer: sealed.birth }))
            }
            None if state.retained.last().is_some_and(|last| last.version == version) => Ok(None),
            Some(sealed) => {
                let text = format!("version {version} is not the sealed one, which is {}", sealed.version);
                Err(TableError::Version(text))
            }
            None => Err(TableError::Version(format!("version {version} is not sealed; no version is"))),
        }
    }

    /// Abandons the sealed version: its writes belong to the open version again, and the next sealed version
    /// includes them. Abandoning it again changes nothing. Returns the version abandoned before it, which is
    /// now part of it.
    pub fn abandon(&self, version: u64) -> Result<Option<Retired>> {
        let mut state = self.state();
        match state.sealed {
            Some(sealed) if sealed.version == version && sealed.pins + sealed.exports > 0 => {
                let (pins, exports) = (sealed.pins, sealed.exports);
                let text = format!("version {version} is held by {pins} readers and {exports} exports");
                Err(TableError::Busy(text))
            }
            Some(sealed) if sealed.version == version => {
                state.sealed = None;
                let (has_older, merged) = (!state.retained.is_empty(), state.abandoned.replace(sealed));
                Ok(merged.map(|known| Retired { birth: known.birth, has_older, newer: sealed.birth }))
            }
            None if state.abandoned.is_some_and(|known| known.version == version) => Ok(None),
            _ => Err(TableError::Version(format!("version {version} is not the sealed one"))),
        }
    }

    /// Discards everything that is not committed.
    pub fn discard(&self) -> Result<Dropped> {
        let mut state = self.state();
        if let Some(sealed) = state.sealed.filter(|sealed| sealed.pins > 0) {
            let text = format!("version {} is pinned by {} readers", sealed.version, sealed.pins);
            return Err(TableError::Busy(text));
        }
        state.sealed = None;
        state.abandoned = None;
        // A new birth, so that later writes are not confused with discarded ones.
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(state.retained.last().map_or(Dropped::Everything, |last| Dropped::After(last.birth)))
    }

    /// Makes readers follow a retained version, older or newer.
    pub fn activate(&self, version: u64) -> Result<()> {
        let state = self.state();
        let known = state.find(version)?;
        self.active.store(known.birth, Ordering::SeqCst);
        Ok(())
    }

    /// Retires a retained version. The newest, the active and pinned versions cannot be retired.
    pub fn retire(&self, version: u64) -> Result<Retired> {
        let mut state = self.state();
        let known = *state.find(version)?;
        let index = state.retained.iter().position(|other| other.birth == known.birth);
        let Some(index) = index.filter(|index| index + 1 < state.retained.len()) else {
            let text = format!("version {version} is the newest, which the next version builds on");
            return Err(TableError::Version(text));
        };
        if self.active() == known.birth {
            return Err(TableError::Version(format!(
                "version {version} is active; activate another version first"
            )));
        }
        if known.pins + known.exports > 0 {
            let text =
                format!("version {version} is held by {} readers and {} exports", known.pins, known.exports);
            return Err(TableError::Busy(text));
        }
        state.retained.remove(index);
        let newer = state.retained[index].birth;
        Ok(Retired { birth: known.birth, has_older: index > 0, newer })
    }

    /// Pins a version, so that it is not retired; returns its birth.
    pub fn pin(&self, version: u64) -> Result<u64> {
        let mut state = self.state();
        let known = state.find_mut(version)?;
        known.pins += 1;
        Ok(known.birth)
    }

    /// Releases a pinned version.
    pub fn unpin(&self, birth: u64) {
        let mut state = self.state();
        let State { retained, sealed, .. } = &mut *state;
        let known = retained.iter_mut().chain(sealed).find(|known| known.birth == birth);
        known.expect("pinned versions are kept").pins -= 1;
    }

    /// Holds a version for an export.
    pub fn hold_for_export(&self, version: u64) -> Result<Held> {
        let mut state = self.state();
        let known = state.find_mut(version)?;
        known.exports += 1;
        Ok(Held { birth: known.birth })
    }

    /// Releases a version held for an export; it may have been discarded.
    pub fn let_go(&self, export: Held) {
        let mut state = self.state();
        let State { retained, sealed, .. } = &mut *state;
        if let Some(known) = retained.iter_mut().chain(sealed).find(|known| known.birth == export.birth) {
            known.exports -= 1;
        }
    }

    /// Committed versions, oldest first.
    pub fn retained(&self) -> Vec<u64> {
        self.state().retained.iter().map(|known| known.version).collect()
    }

    /// The version that is sealed and not committed.
    pub fn sealed(&self) -> Option<u64> {
        self.state().sealed.map(|sealed| sealed.version)
    }

    /// The version that readers follow.
    pub fn active_version(&self) -> Option<u64> {
        let (state, active) = (self.state(), self.active());
        state.retained.iter().find(|known| known.birth == active).map(|known| known.version)
    }
}

impl State {
    fn find(&self, version: u64) -> Result<&Known> {
        let known = self.retained.iter().find(|known| known.version == version);
        known.ok_or_else(|| self.unknown(version))
    }

    fn find_mut(&mut self, version: u64) -> Result<&mut Known> {
        let unknown = self.unknown(version);
        let candidates = self.retained.iter_mut().chain(&mut self.sealed);
        candidates.into_iter().find(|known| known.version == version).ok_or(unknown)
    }

    fn unknown(&self, version: u64) -> TableError {
        let retained = names(&self.retained);
        TableError::Version(format!("version {version} is not retained; retained are: {retained}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(numbers: &[u64]) -> Versions {
        let versions = Versions::default();
        for &number in numbers {
            versions.seal(number).unwrap();
            versions.commit(number).unwrap();
        }
        versions
    }

    #[test]
    fn one_version_is_sealed_at_a_time_and_sealing_again_changes_nothing() {
        let versions = kept(&[3]);
        versions.seal(5).unwrap();
        versions.seal(5).unwrap();
        assert!(matches!(versions.seal(6), Err(TableError::Busy(_))));
        assert!(matches!(versions.commit(6), Err(TableError::Version(_))));
        versions.commit(5).unwrap();
        versions.commit(5).unwrap();
        assert_eq!((versions.retained(), versions.sealed()), (vec![3, 5], None));
        assert!(versions.seal(5).is_err());
    }

    #[test]
    fn versions_in_use_are_not_retired() {
        let versions = kept(&[1, 2, 3]);
        versions.activate(1).unwrap();
        assert!(versions.retire(1).unwrap_err().to_string().contains("active"));
        assert!(versions.retire(3).unwrap_err().to_string().contains("newest"));
        let pinned = versions.pin(2).unwrap();
        assert!(matches!(versions.retire(2), Err(TableError::Busy(_))));
        versions.unpin(pinned);
        let (first, second) = (1, 2);
        assert_eq!(versions.retire(2).unwrap(), Retired { birth: second, has_older: true, newer: 3 });
        versions.activate(3).unwrap();
        assert_eq!(versions.retire(1).unwrap(), Retired { birth: first, has_older: false, newer: 3 });
        assert!(versions.activate(1).unwrap_err().to_string().contains("retained are: 3"));
    }

    #[test]
    fn a_version_that_is_given_up_is_part_of_the_next() {
        let versions = kept(&[1]);
        versions.seal(2).unwrap();
        let pinned = versions.pin(2).unwrap();
        assert!(matches!(versions.abandon(2), Err(TableError::Busy(_))));
        versions.unpin(pinned);
        assert_eq!(versions.abandon(2).unwrap(), None);
        assert_eq!(versions.abandon(2).unwrap(), None);
        assert!(versions.abandon(3).is_err() && versions.commit(2).is_err() && versions.pin(2).is_err());
        versions.seal(3).unwrap();
        assert!(versions.abandon(2).is_err());
        assert_eq!(versions.abandon(3).unwrap(), Some(Retired { birth: 2, has_older: true, newer: 3 }));
        versions.seal(4).unwrap();
        assert_eq!(versions.commit(4).unwrap(), Some(Retired { birth: 3, has_older: true, newer: 4 }));
        assert_eq!((versions.commit(4).unwrap(), versions.retained()), (None, vec![1, 4]));
    }

    #[test]
    fn what_is_not_committed_can_be_dropped() {
        let versions = Versions::default();
        assert_eq!(versions.discard().unwrap(), Dropped::Everything);
        versions.seal(1).unwrap();
        versions.commit(1).unwrap();
        versions.seal(2).unwrap();
        let open = versions.open();
        assert_eq!(versions.discard().unwrap(), Dropped::After(2));
        assert!(versions.open() > open && versions.sealed().is_none());
        versions.seal(2).unwrap();
    }
}
