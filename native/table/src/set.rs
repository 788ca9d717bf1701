//! A set of tables under one count of versions: sealing, committing, activating, dropping and retiring them all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::THREADS_MAX;
use crate::error::{Result, TableError};
use crate::pace::Pace;
use crate::storage::index::PARTS;
use crate::storage::retire;
use crate::storage::sync::yield_now;
use crate::table::{Table, TableSettings};
use crate::table_set::{At, Shared};

/// Tables of one model.
pub struct TableSet {
    tables: Vec<Table>,
    shared: Arc<Shared>,
}

/// A version that is held: it is not retired until this is dropped.
pub struct Pin {
    shared: Arc<Shared>,
    birth: u64,
}

impl Pin {
    /// What a reader says to see this version.
    pub fn at(&self) -> At {
        At::Pinned(self.birth)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared.versions.unpin(self.birth);
    }
}

impl TableSet {
    /// Empty tables.
    pub fn new(settings: &[TableSettings]) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let tables = settings.iter().map(|&settings| Table::new(settings, shared.clone()));
        Ok(Self { tables: tables.collect::<Result<_>>()?, shared })
    }

    /// The tables, as they were given.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// What the tables share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Close the version that is open; what is written from here on belongs to the next.
    pub fn seal(&self, version: u64) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        if self.shared.versions.seal(version)? {
            self.shared.begin_version();
        }
        Ok(())
    }

    /// Keep the sealed version. What versions that were given up left behind goes with the next `sweep`.
    pub fn commit(&self, version: u64) -> Result<()> {
        let mut retiring = self.shared.retiring.lock().expect("no holder panics");
        let part = self.shared.versions.commit(version)?;
        retiring.extend(part.map(|retired| (self.shared.grace.stamp(), retired)));
        Ok(())
    }

    /// Give up the sealed version: what it wrote belongs to the open one again. What the one that was given up before
    /// it left behind goes with the next `sweep`.
    pub fn abandon(&self, version: u64) -> Result<()> {
        let mut retiring = self.shared.retiring.lock().expect("no holder panics");
        let _gate = self.shared.end_version();
        let part = self.shared.versions.abandon(version)?;
        retiring.extend(part.map(|retired| (self.shared.grace.stamp(), retired)));
        self.shared.reopen_version();
        Ok(())
    }

    /// Make readers follow a retained version.
    pub fn activate(&self, version: u64) -> Result<()> {
        self.shared.versions.activate(version)
    }

    /// Hold a version, retained or sealed.
    pub fn pin(&self, version: u64) -> Result<Pin> {
        let birth = self.shared.versions.pin(version)?;
        Ok(Pin { shared: self.shared.clone(), birth })
    }

    /// Drop everything that is not committed.
    pub fn discard(&self, threads: usize) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        self.drop_uncommitted(threads)
    }

    /// Begin to stage a version made elsewhere: it follows the newest one, and until it is staged or dropped nobody
    /// else writes, seals or discards.
    pub fn begin_staging(&self, parent: Option<u64>) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        self.check_parent(parent)?;
        self.shared.set_staging(true);
        Ok(())
    }

    /// Keep what was staged, under its number. On an error it is still being staged.
    pub fn end_staging(&self, version: u64) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.versions.seal(version)?;
        self.shared.begin_version();
        self.shared.set_staging(false);
        self.commit(version)
    }

    /// Drop what was staged so far.
    pub fn drop_staging(&self, threads: usize) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.set_staging(false);
        self.drop_uncommitted(threads)
    }

    fn drop_uncommitted(&self, threads: usize) -> Result<()> {
        let dropped = self.shared.versions.discard()?;
        let _ended = self.shared.stop_exports();
        self.shared.begin_version();
        self.each_part(threads, |table, part| {
            retire::discard(&mut table.hold_to_retire(part), dropped);
        });
        Ok(())
    }

    /// Let go of a retained version. Its images go when the readers of before have passed, which is waited for
    /// no longer than `wait_ms_max`; what is left then goes with the next. Gives how many versions are left.
    pub fn retire(&self, version: u64, wait_ms_max: u64, threads: usize) -> Result<usize> {
        {
            let mut retiring = self.shared.retiring.lock().expect("no holder panics");
            let retired = self.shared.versions.retire(version)?;
            retiring.push_back((self.shared.grace.stamp(), retired));
        }
        self.sweep(wait_ms_max, threads)
    }

    /// Let go of images of retired versions whose readers have passed.
    pub fn sweep(&self, wait_ms_max: u64, threads: usize) -> Result<usize> {
        let deadline = Instant::now() + Duration::from_millis(wait_ms_max);
        let mut retiring = self.shared.retiring.lock().expect("no holder panics");
        while let Some(&(stamp, retired)) = retiring.front() {
            if self.shared.grace.passed() <= stamp {
                if Instant::now() >= deadline {
                    break;
                }
                yield_now();
                continue;
            }
            self.each_part(threads, |table, part| {
                // A part at a time, so that a version that is to be sealed, and all who write, wait for no more.
                let _gate = self.shared.keep_open();
                retire::retire(&mut table.hold_to_retire(part), retired);
            });
            retiring.pop_front();
        }
        Ok(retiring.len())
    }

    /// Versions that were retired and whose images a reader may still see.
    pub fn retiring(&self) -> usize {
        self.shared.retiring.lock().expect("no holder panics").len()
    }

    /// Committed versions, oldest first.
    pub fn retained(&self) -> Vec<u64> {
        self.shared.versions.retained()
    }

    /// The version that is sealed and not committed.
    pub fn sealed(&self) -> Option<u64> {
        self.shared.versions.sealed()
    }

    /// The version readers follow.
    pub fn active(&self) -> Option<u64> {
        self.shared.versions.active_version()
    }

    /// Check that a version made elsewhere can be staged: it follows the newest one, and nothing else is under way.
    pub fn check_parent(&self, parent: Option<u64>) -> Result<()> {
        if let Some(sealed) = self.sealed() {
            return Err(TableError::Busy(format!("version {sealed} is sealed and not committed")));
        }
        if self.shared.is_written() {
            let text =
                "the version that is open was written to: seal and commit it, or discard it".to_owned();
            return Err(TableError::Busy(text));
        }
        let newest = self.retained().last().copied();
        if newest == parent {
            return Ok(());
        }
        let name = |version: Option<u64>| version.map_or("none".to_owned(), |version| version.to_string());
        let text = format!("the parent is version {}, the newest is {}", name(parent), name(newest));
        Err(TableError::Version(text))
    }

    fn each_part(&self, threads: usize, work: impl Fn(&Table, usize) + Sync) {
        let threads = threads.clamp(1, THREADS_MAX);
        let run = |thread: usize| {
            let mut pace = Pace::begin();
            for table in &self.tables {
                for part in PARTS * thread / threads..PARTS * (thread + 1) / threads {
                    work(table, part);
                    pace.rest();
                }
            }
        };
        std::thread::scope(|scope| {
            let run = &run;
            for thread in 1..threads {
                scope.spawn(move || run(thread));
            }
            run(0);
        });
    }
}
