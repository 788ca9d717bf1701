//! The table: its settings and components. Reading, writing and retiring images have files of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Result, TableError};
use crate::locked_part::{Held, Open, PartSize, PartUse};
use crate::optimizer::Rule;
use crate::rows::{CHUNK_ROWS, ROWS_MAX, Rows, Use};
use crate::sketch::SketchSettings;
use crate::storage::images::Images;
use crate::storage::index::{Index, PARTS};
use crate::storage::initial::Initial;
use crate::storage::row_type::RowType;
use crate::storage::sync::{Mutex, MutexGuard};
use crate::table_set::Shared;

/// The maximum dim.
pub const DIM_MAX: usize = 4096;

/// Maximum unused rows of a part: those of its current chunk, and free ones.
const KEPT_ROWS: usize = 2 * CHUNK_ROWS as usize;

/// The settings of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableSettings {
    /// Floats of an embedding.
    pub dim: usize,
    /// The storage type of rows; only F32 rows can learn.
    pub row_type: RowType,
    /// The learning rule; without it rows only serve.
    pub rule: Option<Rule>,
    /// The settings for counting keys without a row; without it every key gets a row at once.
    pub admission: Option<SketchSettings>,
    /// The rows of keys that were never stored.
    pub initial: Initial,
    /// Table time is kept in ticks of this length; it wraps around after 2^24 ticks.
    pub tick_ms: i64,
    /// Maximum rows, including images.
    pub rows_max: usize,
}

/// Keys and their rows, by version.
pub struct Table {
    /// The settings.
    pub settings: TableSettings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rows: Rows,
    pub(crate) index: Index,
    pub(crate) images: Box<[Images]>,
    parts: Box<[Mutex<PartUse>]>,
    /// Keys in the newest version, as of the last release of each part's lock.
    pub(crate) keys: AtomicUsize,
    /// The part that expiry inspects next.
    pub(crate) next_part: AtomicUsize,
}

/// The contents of a table and its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableSize {
    /// The sum over its parts.
    pub parts: PartSize,
    /// Rows in use, including those of older images.
    pub rows: usize,
    /// Bytes of embeddings.
    pub embedding_bytes: usize,
    /// Bytes of optimizer state.
    pub state_bytes: usize,
    /// Bytes of last use and count.
    pub use_bytes: usize,
    /// Bytes of the index.
    pub index_bytes: usize,
    /// Bytes of the image records, without their rows.
    pub images_bytes: usize,
}

impl TableSize {
    /// The total bytes.
    pub fn bytes(&self) -> usize {
        let columns = self.embedding_bytes + self.state_bytes + self.use_bytes;
        let parts = self.parts.touched_bytes + self.parts.sketch_bytes;
        columns + self.index_bytes + self.images_bytes + parts
    }
}

impl TableSettings {
    /// Floats of optimizer state per row.
    pub fn state(&self) -> usize {
        self.rule.map_or(0, |rule| rule.state_floats(self.dim))
    }

    fn check(&self) -> std::result::Result<(), String> {
        if !(1..=DIM_MAX).contains(&self.dim) {
            return Err(format!("dim is {}, but must be 1 to {DIM_MAX}", self.dim));
        }
        if !(1..=ROWS_MAX).contains(&self.rows_max) {
            return Err(format!("rows_max is {}, but must be 1 to {ROWS_MAX}", self.rows_max));
        }
        if self.tick_ms < 1 {
            return Err(format!("tick_ms is {}, but must be at least 1", self.tick_ms));
        }
        if self.rule.is_some() && self.row_type != RowType::F32 {
            return Err(format!("rows of {:?} cannot learn; only F32 rows can", self.row_type));
        }
        self.rule.map_or(Ok(()), |rule| rule.check())?;
        self.admission.map_or(Ok(()), |admission| admission.check())
    }
}

impl Table {
    /// Makes an empty table.
    pub fn new(settings: TableSettings, shared: Arc<Shared>) -> Result<Self> {
        settings.check().map_err(TableError::Argument)?;
        // Parts take rows in chunks and keep some free ones.
        let rows_max = (settings.rows_max + PARTS * KEPT_ROWS).min(ROWS_MAX);
        let row_bytes = settings.row_type.row_bytes(settings.dim);
        Ok(Self {
            settings,
            shared,
            rows: Rows::new(row_bytes, settings.state(), rows_max)?,
            index: Index::default(),
            images: (0..PARTS).map(|_| Images::default()).collect(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            next_part: AtomicUsize::new(0),
        })
    }

    /// Locks a part for writing.
    #[inline(always)]
    pub(crate) fn hold(&self, part: usize, open: Open) -> Held<'_> {
        Held::take(self, &self.parts[part], part, open.passed)
    }

    /// Locks a part to remove images.
    pub(crate) fn hold_to_retire(&self, part: usize) -> Held<'_> {
        Held::take(self, &self.parts[part], part, self.shared.grace.passed())
    }

    /// Locks a part, so that nothing in it changes.
    pub(crate) fn lock(&self, part: usize) -> MutexGuard<'_, PartUse> {
        self.parts[part].lock().expect("no holder panics")
    }

    /// Keys in the newest version, without the changes of calls in progress.
    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Table time in ticks, as kept with a row.
    #[inline(always)]
    pub(crate) fn tick(&self, now_ms: i64) -> u32 {
        now_ms.div_euclid(self.settings.tick_ms).rem_euclid(i64::from(Use::TICKS)) as u32
    }

    /// The contents and their memory.
    pub fn size(&self) -> TableSize {
        let _stay = self.shared.grace.enter();
        let [embedding_bytes, state_bytes, use_bytes] = self.rows.bytes();
        let mut size = TableSize {
            embedding_bytes,
            state_bytes,
            use_bytes,
            index_bytes: self.index.bytes(),
            images_bytes: self.images.iter().map(Images::bytes).sum(),
            ..TableSize::default()
        };
        for part in &self.parts {
            size.parts += part.lock().expect("no holder panics").size();
        }
        // Other threads may take chunks meanwhile; the number is only approximate then.
        let [_, in_parts] = self.rows.taken();
        size.rows = in_parts.saturating_sub(size.parts.free_rows + size.parts.waiting_rows);
        size
    }
}

impl std::ops::AddAssign for PartSize {
    fn add_assign(&mut self, other: Self) {
        self.keys += other.keys;
        self.gone += other.gone;
        self.slots += other.slots;
        self.overflows += other.overflows;
        self.images += other.images;
        self.free_rows += other.free_rows;
        self.waiting_rows += other.waiting_rows;
        self.touched_bytes += other.touched_bytes;
        self.sketch_bytes += other.sketch_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::put::{Again, Embeddings, Rows as PutRows};
    use crate::set::TableSet;
    use crate::storage::grace::READERS_MAX;
    use crate::storage::index::{mix, part_of};
    use crate::table_set::At;

    fn set(rows_max: usize) -> TableSet {
        let initial = Initial { seed: 1, range: 0.5 };
        let (rule, admission) = (None, None);
        let settings =
            TableSettings { dim: 2, row_type: RowType::F32, rule, admission, initial, tick_ms: 1, rows_max };
        TableSet::new(&[settings]).unwrap()
    }

    fn put(table: &Table, keys: &[u64]) -> Result<()> {
        let rows = vec![1.0; 2 * keys.len()];
        let rows = PutRows { embeddings: Embeddings::Floats(&rows), state: None, uses: None };
        table.put(keys, rows, Again::Replaces, 1)
    }

    #[test]
    fn every_row_of_a_table_can_be_taken() {
        let set = set(1);
        let keys = (0..).filter(|&key| part_of(mix(key)) == 0).take(1 + PARTS * KEPT_ROWS);
        let full = put(&set.tables()[0], &keys.collect::<Vec<u64>>());
        assert!(matches!(full, Err(TableError::Full { .. })), "{full:?}");
        // One chunk contains row 0.
        assert_eq!(set.tables()[0].size().parts.keys, PARTS * KEPT_ROWS - CHUNK_ROWS as usize);
    }

    #[test]
    fn rows_of_a_write_that_failed_half_way_are_for_every_part_again() {
        let set = set(40 * PARTS);
        let table = &set.tables()[0];
        let all: Vec<u64> = (0..40 * PARTS as u64).collect();
        put(table, &all).unwrap();
        set.seal(1).unwrap();
        set.commit(1).unwrap();
        for round in 0..3 {
            // Twice as many as fit: the first parts take all rows.
            assert!(matches!(put(table, &all), Err(TableError::Full { .. })));
            set.discard(1).unwrap();
            let few: Vec<u64> = (0..20 * PARTS as u64).map(|key| (key + 1) << 32 | round).collect();
            put(table, &few).unwrap();
            set.discard(1).unwrap();
            assert_eq!(table.size().rows, all.len());
        }
    }

    #[test]
    fn a_call_of_many_threads_takes_one_readers_place() {
        let set = set(1 << 14);
        let table = &set.tables()[0];
        let others: Vec<_> = (1..READERS_MAX).map(|_| set.readings(At::Newest).unwrap()).collect();
        let (keys, mut rows) = ((0..4096).collect::<Vec<u64>>(), vec![0.0; 2 * 4096]);
        table.lookup(&keys, At::Newest, &mut rows, 4).unwrap();
        drop(others);
    }

    #[test]
    fn a_key_that_is_not_there_has_its_initial_row_where_every_line_overflowed() {
        let set = set(1 << 14);
        let table = &set.tables()[0];
        let keys: Vec<u64> = (0..).filter(|&key| part_of(mix(key)) == 0).take(21).collect();
        put(table, &keys[..20]).unwrap();
        let lines = table.index.lines(0).unwrap();
        lines.all_overflow();
        let (mut row, mut initial) = ([0.0; 2], [0.0; 2]);
        table.lookup(&keys[20..], At::Newest, &mut row, 1).unwrap();
        table.settings.initial.fill(keys[20], &mut initial);
        assert_eq!(row, initial);
    }
}
