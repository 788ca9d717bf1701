//! The join of one lot: what it holds, and what is handed in.

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

/// A watermark before any time, and one after any deadline.
pub(crate) const NEVER: i64 = -(1 << 55);
const EVER: i64 = 1 << 55;

/// Values laid end to end, and the n + 1 places that cut them.
#[derive(Debug, Clone, Copy)]
pub struct Spans<'a> {
    /// All values.
    pub data: &'a [u8],
    /// Where each begins; the last is the length of all.
    pub at: &'a [i64],
}

impl<'a> Spans<'a> {
    /// One value.
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

/// Where events came from; each slice has a value for each event.
#[derive(Debug, Clone, Copy)]
pub struct Origins<'a> {
    /// Partitions.
    pub partitions: &'a [i32],
    /// Offsets of records.
    pub offsets: &'a [i64],
    /// Of impressions the index of the first item in the record, of actions their own.
    pub indexes: &'a [i32],
}

impl Origins<'_> {
    fn check(&self, rows: usize) -> Result<()> {
        let lengths = [self.partitions.len(), self.offsets.len(), self.indexes.len()];
        if lengths != [rows; 3] {
            return refuse(format!("partitions, offsets, indexes: {lengths:?} values, expected {rows}"));
        }
        let negative = |index: &i32| *index < 0;
        match self.indexes.iter().find(|index| negative(index)) {
            Some(index) => refuse(format!("an index in its record is {index}")),
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
    /// Where they came from.
    pub origins: Origins<'a>,
    /// The items of all, end to end.
    pub items: &'a [u64],
    /// Where each impression's items begin.
    pub items_at: &'a [i64],
    /// Each one's bytes. One without bytes is read back by its origin when they are needed.
    pub payloads: Spans<'a>,
}

/// Actions as columns.
#[derive(Debug, Clone, Copy)]
pub struct Actions<'a> {
    /// Request ids.
    pub ids: Spans<'a>,
    /// Event times.
    pub times: &'a [i64],
    /// Where they came from.
    pub origins: Origins<'a>,
    /// What was acted on.
    pub items: &'a [u64],
    /// What was done.
    pub codes: &'a [u8],
    /// How much the positives they make weigh.
    pub weights: &'a [f32],
}

fn check_times(times: &[i64]) -> Result<()> {
    match times.iter().find(|&&time| !is_time(time)) {
        Some(time) => refuse(format!("an event time is {time} ms, beyond {TIME_MAX_MS}")),
        None => Ok(()),
    }
}

impl Impressions<'_> {
    /// How many there are.
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
                return refuse(format!("{items} items from index {first} on: indexes are int32"));
            }
        }
        check_times(self.times)
    }
}

impl Actions<'_> {
    /// How many there are.
    pub fn rows(&self) -> usize {
        self.times.len()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let rows = self.rows();
        self.ids.check("request ids", rows)?;
        self.origins.check(rows)?;
        let lengths = [self.items.len(), self.codes.len(), self.weights.len()];
        if lengths != [rows; 3] {
            return refuse(format!("items, codes and weights: {lengths:?} values, expected {rows}"));
        }
        if let Some(weight) = self.weights.iter().find(|&&weight| !is_weight(weight)) {
            return refuse(format!("a weight is {weight}: finite, and not below 0"));
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

/// Impressions by slices of event time, and which slices are in which state.
#[derive(Debug)]
pub(crate) struct Slices {
    pub shelf: Shelf<Slice>,
    /// Those that are not past the watermark yet, and so keep room.
    pub filling: BTreeSet<i64>,
    /// Those that keep payloads.
    pub with_payload: BTreeSet<i64>,
    pub bytes: u64,
    pub pending: usize,
    pub spares: Spares,
}

/// Memory that is used again for every event.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub hashes: Vec<u64>,
    pub same: Vec<At>,
    pub dead: Vec<bool>,
    pub due: Vec<u32>,
}

impl JoinCore {
    /// A join of nothing.
    ///
    /// # Errors
    /// The settings contradict each other.
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

    /// Add impressions, all or none.
    ///
    /// # Errors
    /// The columns contradict each other, or more would be held than may be.
    pub fn add_impressions(&mut self, given: &Impressions<'_>) -> Result<()> {
        given.check()?;
        let rows = given.rows() as u64;
        let values = given.ids.data.len() + given.payloads.data.len() + 12 * given.items.len();
        self.claim(values as u64 + 64 * rows)?;
        self.hash(given.ids, given.times.len());
        for row in 0..given.rows() {
            self.prefetch(row);
            self.add_impression(self.scratch.hashes[row], given, row);
        }
        Ok(())
    }

    /// Add actions, all or none.
    ///
    /// # Errors
    /// The columns contradict each other, or more would be held than may be.
    pub fn add_actions(&mut self, given: &Actions<'_>) -> Result<()> {
        given.check()?;
        self.claim(given.ids.data.len() as u64 + 80 * given.rows() as u64)?;
        self.hash(given.ids, given.times.len());
        for row in 0..given.rows() {
            self.prefetch(row);
            self.prefetch_held(row);
            self.add_action(self.scratch.hashes[row], given, row);
        }
        Ok(())
    }

    /// Refuse what would not fit. Columns keep room to grow by a quarter, which may go beyond the bound.
    fn claim(&mut self, wanted: u64) -> Result<()> {
        let (held, max) = (self.bytes(), self.rules.settings.pending_bytes_max);
        if wanted > 0 && held + wanted > max {
            self.out.counters.refusals += 1;
            return Err(Error::Full { held, wanted, max });
        }
        Ok(())
    }

    /// No event before this time is to come: make the rows that are due.
    pub fn advance(&mut self, watermark_ms: i64) {
        let watermark = watermark_ms.clamp(NEVER, EVER);
        if watermark > self.watermark {
            self.advance_to(watermark);
        }
    }

    /// Take at most so many rows, and as many letters, out.
    pub fn take(&mut self, rows_max: usize) -> Taken {
        let taken = self.take_out(rows_max);
        self.release();
        taken
    }

    /// The watermark; None before the first.
    pub fn watermark_ms(&self) -> Option<i64> {
        (self.watermark > NEVER).then_some(self.watermark)
    }

    /// Impressions that are held.
    pub fn pending(&self) -> usize {
        self.slices.pending
    }

    /// Actions that wait for their impression.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Rows that wait to be taken.
    pub fn ready(&self) -> usize {
        self.out.rows.len()
    }

    /// The least time that a row that waits to be taken was settled at.
    pub fn ready_from_ms(&self) -> Option<i64> {
        self.out.rows.iter().map(|row| row.settle_time).min()
    }

    /// Letters that wait to be taken.
    pub fn letters(&self) -> usize {
        self.out.letters.len()
    }

    /// Bytes that are held, room that is kept included.
    pub fn bytes(&self) -> u64 {
        let corrections = self.corrections.capacity() * size_of::<Correction>();
        let slices = self.slices.bytes + self.slices.spares.bytes();
        let held = self.index.bytes() + self.waiting.bytes() + self.closed.bytes() + self.out.bytes();
        slices + held + corrections as u64
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.rules.settings
    }
}
