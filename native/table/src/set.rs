//! A set of tables with common versions: seals, commits, activates, discards and retires versions of all
//! tables.

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

/// The tables of one model.
pub struct TableSet {
    tables: Vec<Table>,
    shared: Arc<Shared>,
}

/// A held version: it is not retired until the pin is dropped.
pub struct Pin {
    shared: Arc<Shared>,
    birth: u64,
}

impl Pin {
    /// The `At` with which a reader sees this version.
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
    /// Makes empty tables.
    pub fn new(settings: &[TableSettings]) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let tables = settings.iter().map(|&settings| Table::new(settings, shared.clone()));
        Ok(Self { tables: tables.collect::<Result<_>>()?, shared })
    }

    /// The tables, in the order given.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The state that the tables share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Closes the open version. Later writes belong to the next version.
    pub fn seal(&self, version: u64) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        if self.shared.versions.seal(version)? {
            self.shared.begin_version();
        }
        Ok(())
    }

    /// Commits the sealed version. The images of abandoned versions are removed by the next `sweep`.
    pub fn commit(&self, version: u64) -> Result<()> {
        let mut retiring = self.shared.retiring.lock().expect("no holder panics");
        let merged = self.shared.versions.commit(version)?;
        retiring.extend(merged.map(|retired| (self.shared.grace.stamp(), retired)));
        Ok(())
    }

    /// Abandons the sealed version: its writes belong to the open version again. The images of the version
    /// that was abandoned before it are removed by the next `sweep`.
    pub fn abandon(&self, version: u64) -> Result<()> {
        let mut retiring = self.shared.retiring.lock().expect("no holder panics");
        let _gate = self.shared.end_version();
        let merged = self.shared.versions.abandon(version)?;
        retiring.extend(merged.map(|retired| (self.shared.grace.stamp(), retired)));
        self.shared.reopen_version();
        Ok(())
    }

    /// Makes readers follow a retained version.
    pub fn activate(&self, version: u64) -> Result<()> {
        self.shared.versions.activate(version)
    }

    /// Pins a version that is retained or sealed.
    pub fn pin(&self, version: u64) -> Result<Pin> {
        let birth = self.shared.versions.pin(version)?;
        Ok(Pin { shared: self.shared.clone(), birth })
    }

    /// Discards everything that is not committed.
    pub fn discard(&self, threads: usize) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        self.drop_uncommitted(threads)
    }

    /// Starts to stage a version made elsewhere. It follows the newest one. Until it is staged or dropped, no
    /// other call may write, seal or discard.
    pub fn begin_staging(&self, parent: Option<u64>) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.check_not_staging()?;
        self.check_parent(parent)?;
        self.shared.set_staging(true);
        Ok(())
    }

    /// Commits the staged version under its number. On an error it is still being staged.
    pub fn end_staging(&self, version: u64) -> Result<()> {
        let _gate = self.shared.end_version();
        self.shared.versions.seal(version)?;
        self.shared.begin_version();
        self.shared.set_staging(false);
        self.commit(version)
    }

    /// Drops the rows staged so far.
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

    /// Retires a retained version. Its images are removed once the earlier readers have passed. Waits at most
    /// `wait_ms_max`; images that remain are removed by the next `retire` or `sweep`. Returns the number of
    /// versions that still have images.
    pub fn retire(&self, version: u64, wait_ms_max: u64, threads: usize) -> Result<usize> {
        {
            let mut retiring = self.shared.retiring.lock().expect("no holder panics");
            let retired = self.shared.versions.retire(version)?;
            retiring.push_back((self.shared.grace.stamp(), retired));
        }
        self.sweep(wait_ms_max, threads)
    }

    /// Removes the images of retired versions whose readers have passed.
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
                // One part at a time, so that seals and writers wait for one part only.
                let _gate = self.shared.keep_open();
                retire::retire(&mut table.hold_to_retire(part), retired);
            });
            retiring.pop_front();
        }
        Ok(retiring.len())
    }

    /// The number of retired versions with images that a reader may still see.
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

    /// The version that readers follow.
    pub fn active(&self) -> Option<u64> {
        self.shared.versions.active_version()
    }

    /// Checks that a version made elsewhere can be staged: it follows the newest one, and no other write is
    /// in progress.
    pub fn check_parent(&self, parent: Option<u64>) -> Result<()> {
        if let Some(sealed) = self.sealed() {
            return Err(TableError::Busy(format!("version {sealed} is sealed but not committed")));
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
