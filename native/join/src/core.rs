//! The join of one lot: its state and its input.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::closed_requests::Closed;
use crate::counters::Counters;
use crate::emit::Correction;
use crate::error::{Error, Result, refuse};
use crate::index::{At, Index};
use crate::joined_columns::Taken;
use crate::outcome::is_weight;
use crate::output::Output;
use crate::settings::{Rules, Settings, TIME_MAX_MS, is_time};
use crate::shelf::Shelf;
use crate::slice::Slice;
use crate::spares::Spares;
use crate::waiting_actions::Waiting;

/// A watermark before any time, and a watermark after any deadline.
pub(crate) const NEVER: i64 = -(1 << 55);
const EVER: i64 = 1 << 55;

/// Values laid end to end, and the n + 1 offsets that cut them.
#[derive(Debug, Clone, Copy)]
pub struct Spans<'a> {
    /// All values.
    pub data: &'a [u8],
    /// The start of each value; the last entry is the total length.
    pub at: &'a [i64],
}

impl<'a> Spans<'a> {
    /// The value of a row.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> &'a [u8] {
        &self.data[self.at[row] as usize..self.at[row + 1] as usize]
    }

    pub(crate) fn check(&self, name: &str, rows: usize) -> Result<()> {
        check_offsets(name, self.at, self.data.len(), rows)
    }
}

pub(crate) fn check_offsets(name: &str, at: &[i64], length: usize, rows: usize) -> Result<()> {
    if at.len() != rows + 1 {
        return refuse(format!(
            "{name}: {} offsets for {rows} events, expected one more than events",
            at.len()
        ));
    }
    match streamlearn_wire::offsets::check_offsets(at, length) {
        Ok(()) => Ok(()),
        Err(error) => refuse(format!("{name}: {error}")),
    }
}

/// The origins of events: each column has a value for each event.
#[derive(Debug, Clone, Copy)]
pub struct Origins<'a> {
    /// Partitions.
    pub partitions: &'a [i32],
    /// Offsets of the records.
    pub offsets: &'a [i64],
    /// For an impression the index of its first item in the record, for an action its own index.
    pub indexes: &'a [i32],
}

impl Origins<'_> {
    fn check(&self, rows: usize) -> Result<()> {
        let lengths = [self.partitions.len(), self.offsets.len(), self.indexes.len()];
        if lengths != [rows; 3] {
            return refuse(format!("partitions, offsets, indexes: {lengths:?} values, expected {rows}"));
        }
        let is_negative = |index: &i32| *index < 0;
        match self.indexes.iter().find(|index| is_negative(index)) {
            Some(index) => refuse(format!("an index in the record is {index}; it must not be negative")),
            None => Ok(()),
        }
    }
}

/// Impressions as columns.
#[derive(Debug, Clone, Copy)]
pub struct Impressions<'a> {
    /// Request ids.
    pub ids: Spans<'a>,
    /// Event times.
    pub times: &'a [i64],
    /// Their origins.
    pub origins: Origins<'a>,
    /// The items of all impressions, end to end.
    pub items: &'a [u64],
    /// The start of each impression's items.
    pub items_at: &'a [i64],
    /// The bytes of each impression. An impression without bytes is read back from its origin when they are
    /// needed.
    pub payloads: Spans<'a>,
}

/// Actions as columns.
#[derive(Debug, Clone, Copy)]
pub struct Actions<'a> {
    /// Request ids.
    pub ids: Spans<'a>,
    /// Event times.
    pub times: &'a [i64],
    /// Their origins.
    pub origins: Origins<'a>,
    /// The items that were acted on.
    pub items: &'a [u64],
    /// The action codes.
    pub codes: &'a [u8],
    /// The weights of the positives that the actions make.
    pub weights: &'a [f32],
    /// Their numbers; NaN for an action without one.
    pub numbers: &'a [f32],
}

fn check_times(times: &[i64]) -> Result<()> {
    match times.iter().find(|&&time| !is_time(time)) {
        Some(time) => refuse(format!("an event time is {time} ms, out of the range of {TIME_MAX_MS} ms")),
        None => Ok(()),
    }
}

impl Impressions<'_> {
    /// The number of impressions.
    pub fn rows(&self) -> usize {
        self.times.len()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let rows = self.rows();
        self.ids.check("request ids", rows)?;
        self.payloads.check("payloads", rows)?;
        check_offsets("items", self.items_at, self.items.len(), rows)?;
        self.origins.check(rows)?;
        for row in 0..rows {
            let items = self.items_at[row + 1] - self.items_at[row];
            if i64::from(self.origins.indexes[row]) + items > i64::from(i32::MAX) {
                let first = self.origins.indexes[row];
                return refuse(format!("{items} items from index {first} exceed int32 indexes"));
            }
        }
        check_times(self.times)
    }
}

impl Actions<'_> {
    /// The number of actions.
    pub fn rows(&self) -> usize {
        self.times.len()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let rows = self.rows();
        self.ids.check("request ids", rows)?;
        self.origins.check(rows)?;
        let lengths = [self.items.len(), self.codes.len(), self.weights.len(), self.numbers.len()];
        if lengths != [rows; 4] {
            return refuse(format!("items, codes, weights and numbers: {lengths:?} values, expected {rows}"));
        }
        if let Some(weight) = self.weights.iter().find(|&&weight| !is_weight(weight)) {
            return refuse(format!("a weight is {weight}; it must be finite and not negative"));
        }
        if let Some(number) = self.numbers.iter().find(|number| number.is_infinite()) {
            return refuse(format!("an action's number is {number}; it must be finite"));
        }
        check_times(self.times)
    }
}

/// The join of one lot.
#[derive(Debug)]
pub struct JoinCore {
    pub(crate) rules: Rules,
    pub(crate) watermark: i64,
    pub(crate) index: Index,
    pub(crate) slices: Slices,
    pub(crate) waiting: Waiting,
    pub(crate) closed: Closed,
    pub(crate) corrections: BinaryHeap<Reverse<Correction>>,
    pub(crate) out: Output,
    pub(crate) scratch: Scratch,
}

/// Impressions by slices of event time, and sets of slices by state.
#[derive(Debug)]
pub(crate) struct Slices {
    pub shelf: Shelf<Slice>,
    /// Slices that the watermark has not passed, so they keep spare capacity.
    pub filling: BTreeSet<i64>,
    /// Slices that keep payloads.
    pub with_payload: BTreeSet<i64>,
    pub bytes: u64,
    pub pending: usize,
    pub spares: Spares,
}

/// Memory that is reused for every event.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub hashes: Vec<u64>,
    pub same: Vec<At>,
    pub dead: Vec<bool>,
    pub due: Vec<u32>,
}

impl JoinCore {
    /// Makes an empty join.
    ///
    /// # Errors
    /// If the settings contradict each other.
    pub fn new(settings: Settings) -> Result<Self> {
        let rules = Rules::new(settings)?;
        Ok(Self {
            watermark: NEVER,
            index: Index::new(),
            slices: Slices {
                shelf: Shelf::new(),
                filling: BTreeSet::new(),
                with_payload: BTreeSet::new(),
                bytes: 0,
                pending: 0,
                spares: Spares::default(),
            },
            waiting: Waiting::new(rules.settings.slice_ms),
            closed: Closed::new(rules.settings.pending_bytes_max),
            corrections: BinaryHeap::new(),
            out: Output::default(),
            scratch: Scratch::default(),
            rules,
        })
    }

    /// Adds all given impressions, or none.
    ///
    /// # Errors
    /// If the columns contradict each other, or if the memory bound would be exceeded.
    pub fn add_impressions(&mut self, impressions: &Impressions<'_>) -> Result<()> {
        impressions.check()?;
        let rows = impressions.rows() as u64;
        let values =
            impressions.ids.data.len() + impressions.payloads.data.len() + 12 * impressions.items.len();
        self.claim(values as u64 + 64 * rows)?;
        self.hash(impressions.ids, impressions.times.len());
        for row in 0..impressions.rows() {
            self.prefetch(row);
            self.add_impression(self.scratch.hashes[row], impressions, row);
        }
        Ok(())
    }

    /// Adds all given actions, or none.
    ///
    /// # Errors
    /// If the columns contradict each other, or if the memory bound would be exceeded.
    pub fn add_actions(&mut self, actions: &Actions<'_>) -> Result<()> {
        actions.check()?;
        self.claim(actions.ids.data.len() as u64 + 80 * actions.rows() as u64)?;
        self.hash(actions.ids, actions.times.len());
        for row in 0..actions.rows() {
            self.prefetch(row);
            self.prefetch_held(row);
            self.add_action(self.scratch.hashes[row], actions, row);
        }
        Ok(())
    }

    /// Fails if `wanted` more bytes do not fit. Columns keep a quarter of spare capacity, which may exceed
    /// the bound.
    fn claim(&mut self, wanted: u64) -> Result<()> {
        let (held, max) = (self.bytes(), self.rules.settings.pending_bytes_max);
        if wanted > 0 && held + wanted > max {
            self.out.counters.refusals += 1;
            return Err(Error::Full { held, wanted, max });
        }
        Ok(())
    }

    /// Advances the watermark: no earlier event is expected, so the due rows are made.
    pub fn advance(&mut self, watermark_ms: i64) {
        let watermark = watermark_ms.clamp(NEVER, EVER);
        if watermark > self.watermark {
            self.advance_to(watermark);
        }
    }

    /// Takes out at most `rows_max` rows, and as many interactions and letters.
    pub fn take(&mut self, rows_max: usize) -> Taken {
        let taken = self.take_out(rows_max);
        self.release();
        taken
    }

    /// The watermark; None before the first one.
    pub fn watermark_ms(&self) -> Option<i64> {
        (self.watermark > NEVER).then_some(self.watermark)
    }

    /// The number of pending impressions.
    pub fn pending(&self) -> usize {
        self.slices.pending
    }

    /// The number of actions that wait for their impression.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The number of rows and interactions that are ready to be taken.
    pub fn ready(&self) -> usize {
        self.out.rows.len() + self.out.interactions.len()
    }

    /// The least settle time of the rows that are ready to be taken.
    pub fn ready_from_ms(&self) -> Option<i64> {
        self.out.rows.iter().map(|row| row.settle_time).min()
    }

    /// The number of letters that are ready to be taken.
    pub fn letters(&self) -> usize {
        self.out.letters.len()
    }

    /// Bytes in use, including spare capacity.
    pub fn bytes(&self) -> u64 {
        let corrections = self.corrections.capacity() * size_of::<Correction>();
        let slices = self.slices.bytes + self.slices.spares.bytes();
        let tables = self.index.bytes() + self.waiting.bytes() + self.closed.bytes() + self.out.bytes();
        slices + tables + corrections as u64
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.rules.settings
    }
}
