//! The state that the tables of a set share: the versions and the readers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Result, TableError};
use crate::locked_part::Open;
use crate::storage::grace::Grace;
use crate::storage::sync::{AtomicU64, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::versions::{Retired, Versions};

/// The version that a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The latest writes, committed or not.
    Newest,
    /// The version that is active when the call starts.
    Active,
    /// A pinned version, by its birth.
    Pinned(u64),
}

/// The kind of writer into the open version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Any call that learns, puts or removes.
    Anyone,
    /// A stager, which rebuilds a version from elsewhere. While it stages, no one else may write.
    Stager,
}

/// A birth that no image exceeds.
pub const NEWEST: u64 = u64::MAX;

/// The state that the tables of a set share.
#[derive(Default)]
pub struct Shared {
    /// The versions.
    pub versions: Versions,
    /// The readers.
    pub grace: Grace,
    /// Held by every call that writes, so that no version is sealed during one.
    gate: RwLock<()>,
    is_written: AtomicBool,
    is_staging: AtomicBool,
    /// Held by exports while they read, so that nothing is discarded meanwhile.
    exporting: RwLock<()>,
    discards: AtomicU64,
    /// Versions whose images are removed once their readers have passed.
    pub retiring: Mutex<VecDeque<(u64, Retired)>>,
}

impl Shared {
    /// Prevents versions from being sealed.
    pub fn keep_open(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().expect("no holder panics")
    }

    /// Whether anything was written into the open version.
    pub fn is_written(&self) -> bool {
        self.is_written.load(Ordering::SeqCst)
    }

    /// Sets whether a version is being staged. Call it while no one writes.
    pub fn set_staging(&self, is_staging: bool) {
        self.is_staging.store(is_staging, Ordering::SeqCst);
    }

    /// Checks that no version is being staged. Call it while this cannot change.
    pub fn check_not_staging(&self) -> Result<()> {
        if self.is_staging.load(Ordering::SeqCst) {
            return Err(TableError::Busy("a version is being staged".to_owned()));
        }
        Ok(())
    }

    /// Starts to write into the open version.
    pub fn write(&self, writer: Writer) -> Result<(RwLockReadGuard<'_, ()>, Open)> {
        let gate = self.keep_open();
        if writer == Writer::Anyone {
            self.check_not_staging()?;
        }
        self.is_written.store(true, Ordering::SeqCst);
        let open = Open {
            birth: self.versions.open(),
            is_versioned: self.versions.is_versioned(),
            passed: self.grace.passed(),
        };
        Ok((gate, open))
    }

    /// Waits until no one writes and blocks new writers, to end a version.
    pub fn end_version(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().expect("no holder panics")
    }

    /// Records that nothing is written into the open version yet.
    pub fn begin_version(&self) {
        self.is_written.store(false, Ordering::SeqCst);
    }

    /// Records that the writes of an abandoned version belong to the open version.
    pub fn reopen_version(&self) {
        self.is_written.store(true, Ordering::SeqCst);
    }

    /// Starts a read of an export.
    pub fn export(&self) -> RwLockReadGuard<'_, ()> {
        self.exporting.read().expect("no holder panics")
    }

    /// The number of discards; earlier exports are invalid.
    pub fn discards(&self) -> u64 {
        self.discards.load(Ordering::SeqCst)
    }

    /// Ends all exports.
    pub fn stop_exports(&self) -> RwLockWriteGuard<'_, ()> {
        self.discards.fetch_add(1, Ordering::SeqCst);
        self.exporting.write().expect("no holder panics")
    }

    /// The latest birth that a reader sees. Call it within the reader's grace period.
    #[inline(always)]
    pub fn upto(&self, at: At) -> Result<u64> {
        match at {
            At::Newest => Ok(NEWEST),
            At::Pinned(birth) => Ok(birth),
            At::Active => match self.versions.active() {
                0 => Err(TableError::Version("no version is active".to_owned())),
                birth => Ok(birth),
            },
        }
    }
}
