//! What the tables of one set share: the versions, and the readers of them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Result, TableError};
use crate::locked_part::Open;
use crate::storage::grace::Grace;
use crate::storage::sync::{AtomicU64, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::versions::{Retired, Versions};

/// Which version a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// What was written last, committed or not.
    Newest,
    /// The version that is active when the call begins.
    Active,
    /// A version that is held by a pin; its birth.
    Pinned(u64),
}

/// Who writes into the version that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Whoever learns, puts or takes away.
    Anyone,
    /// Who makes a version as it was made elsewhere: while one is being staged, nobody else may write into it.
    Stager,
}

/// Born no later than this is everything there is.
pub const NEWEST: u64 = u64::MAX;

/// What the tables of one set share.
#[derive(Default)]
pub struct Shared {
    /// The versions.
    pub versions: Versions,
    /// The readers.
    pub grace: Grace,
    /// Held by every call that writes, so that no version is sealed in the middle of one.
    gate: RwLock<()>,
    is_written: AtomicBool,
    is_staging: AtomicBool,
    /// Held by exports while they read, so that nothing is discarded under them.
    exporting: RwLock<()>,
    discards: AtomicU64,
    /// Versions whose images go once their readers have passed.
    pub retiring: Mutex<VecDeque<(u64, Retired)>>,
}

impl Shared {
    /// Let no version be sealed meanwhile.
    pub fn keep_open(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().expect("no holder panics")
    }

    /// Whether anything was written into the version that is open.
    pub fn is_written(&self) -> bool {
        self.is_written.load(Ordering::SeqCst)
    }

    /// Say that a version is being staged, or is not any more. To be told while nobody writes.
    pub fn set_staging(&self, is_staging: bool) {
        self.is_staging.store(is_staging, Ordering::SeqCst);
    }

    /// Check that the version that is open is not someone's who stages one. To be asked while that cannot change.
    pub fn check_not_staging(&self) -> Result<()> {
        if self.is_staging.load(Ordering::SeqCst) {
            return Err(TableError::Busy("a version is being staged".to_owned()));
        }
        Ok(())
    }

    /// Begin to write into the version that is open.
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

    /// Wait until nobody writes, and let nobody begin: a version ends here.
    pub fn end_version(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().expect("no holder panics")
    }

    /// Nothing is written into the version that is open now.
    pub fn begin_version(&self) {
        self.is_written.store(false, Ordering::SeqCst);
    }

    /// What a version that was given up had written is written into the version that is open.
    pub fn reopen_version(&self) {
        self.is_written.store(true, Ordering::SeqCst);
    }

    /// Begin to read for an export.
    pub fn export(&self) -> RwLockReadGuard<'_, ()> {
        self.exporting.read().expect("no holder panics")
    }

    /// How often something was discarded: exports of before are over.
    pub fn discards(&self) -> u64 {
        self.discards.load(Ordering::SeqCst)
    }

    /// End all exports.
    pub fn stop_exports(&self) -> RwLockWriteGuard<'_, ()> {
        self.discards.fetch_add(1, Ordering::SeqCst);
        self.exporting.write().expect("no holder panics")
    }

    /// The last birth a reader sees. To be asked within the reader's grace.
    #[inline(always)]
    pub fn upto(&self, at: At) -> Result<u64> {
        match at {
            At::Newest => Ok(NEWEST),
            At::Pinned(birth) => Ok(birth),
            At::Active => match self.versions.active() {
                0 => Err(TableError::Version("no version is active yet".to_owned())),
                birth => Ok(birth),
            },
        }
    }
}
