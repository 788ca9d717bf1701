//! Decoding: records in, columns out. A bad record leaves nothing in the columns.

use super::columns::{Column, Columns};
use super::cursor::{AvroBlock, Cursor};
use super::errors::{DecodeStop, OffsetsOverflow, Step};
use super::plan::Plan;
use super::resolve::{Read, ReadField};
use super::skip::skip;

/// Limits of a batch and of each of its records.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of items in any one array of a record, and of zero-byte items in all its arrays
    /// together.
    pub items_max: u64,
    /// The largest offset of a column: int32's maximum, except in tests.
    pub offsets_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { items_max: 1_000_000, offsets_max: i32::MAX as usize }
    }
}

/// A record that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its index in the input.
    pub index: usize,
    /// The error and where in the record it is.
    pub reason: String,
}

/// The result of decoding a batch.
#[derive(Debug)]
pub struct Decoded {
    /// One array for each column of the plan, in the plan's order.
    pub columns: Vec<Column>,
    /// The input index of each row.
    pub rows: Vec<i64>,
    /// The records that could not be decoded.
    pub failures: Vec<Failure>,
}

/// Decodes a batch, record by record.
#[derive(Debug)]
pub struct Decoder<'a> {
    plan: &'a Plan,
    limits: Limits,
    columns: Columns,
    rows: Vec<i64>,
    failures: Vec<Failure>,
    bytes_read: usize,
    bytes_to_come: usize,
    is_measured: bool,
}

/// After this many records, or this share of all bytes, the decoder estimates the final size of the columns from the
/// bytes read.
const MEASURED_RECORDS: usize = 64;
const MEASURED_SHARE: usize = 16;

impl<'a> Decoder<'a> {
    /// Starts an empty batch.
    pub fn new(plan: &'a Plan, limits: Limits) -> Self {
        let columns = Columns::new(&plan.layout);
        Self {
            plan,
            limits,
            columns,
            rows: Vec::new(),
            failures: Vec::new(),
            bytes_read: 0,
            bytes_to_come: 0,
            is_measured: false,
        }
    }

    /// States the total bytes of the batch's records, so that columns are reserved once, by the size of the
    /// first records.
    pub fn expecting(self, bytes: usize) -> Self {
        Self { bytes_to_come: bytes, ..self }
    }

    /// Decodes one record, which becomes a row or a failure.
    pub fn push(&mut self, index: usize, record: &[u8]) -> Result<(), OffsetsOverflow> {
        let Self { plan, limits, columns, .. } = self;
        let mut reading = Reading { plan, columns, items_left: limits.items_max, limits };
        let mut cursor = Cursor::new(record);
        let outcome = reading.read(&plan.read, &mut cursor).and_then(|()| match cursor.left() {
            0 => Ok(()),
            left => Err(cursor.fault(format!("{left} bytes after the record's end"))),
        });
        match outcome {
            Ok(()) => {
                self.rows.push(index as i64);
                self.bytes_read += record.len();
                let is_share = self.bytes_read * MEASURED_SHARE >= self.bytes_to_come;
                if !self.is_measured
                    && self.bytes_read > 0
                    && (self.rows.len() >= MEASURED_RECORDS || is_share)
                {
                    self.is_measured = true;
                    let left = self.bytes_to_come.saturating_sub(self.bytes_read);
                    self.columns.reserve(left as f64 / self.bytes_read as f64);
                }
                Ok(())
            }
            Err(stop) => self.stop(index, *stop),
        }
    }

    /// Adds a failure for a record that was rejected before decoding.
    pub fn fail(&mut self, index: usize, reason: String) {
        self.failures.push(Failure { index, reason });
    }

    /// Ends the batch.
    pub fn finish(self) -> Decoded {
        let columns = self.columns.into_vec(&self.plan.layout);
        Decoded { columns, rows: self.rows, failures: self.failures }
    }

    #[cold]
    fn stop(&mut self, index: usize, stop: DecodeStop) -> Result<(), OffsetsOverflow> {
        let plan = self.plan;
        plan.shape.truncate(self.rows.len(), &plan.layout, &mut self.columns);
        match stop {
            DecodeStop::Fault { reason, at, mut path } => {
                path.reverse();
                let place = if path.is_empty() { String::new() } else { format!("{}: ", path.join(".")) };
                self.fail(index, format!("{place}{reason} (at byte {at})"));
                Ok(())
            }
            DecodeStop::Overflow { offsets_column } => {
                let column = plan.layout.name(offsets_column).to_owned();
                Err(OffsetsOverflow { column, offsets_max: self.limits.offsets_max })
            }
        }
    }
}

struct Reading<'a> {
    plan: &'a Plan,
    columns: &'a mut Columns,
    limits: &'a Limits,
    items_left: u64,
}

impl Reading<'_> {
    fn read(&mut self, read: &Read, cursor: &mut Cursor<'_>) -> Step {
        match read {
            Read::Null => {}
            Read::Skip(id) => skip(&self.plan.writer, *id, cursor, 0)?,
            Read::Boolean(slot) => self.columns.u8s[*slot].push(cursor.boolean()?),
            Read::Int(slot) => self.columns.i32s[*slot].push(cursor.int()?),
            Read::IntToLong(slot) => self.columns.i64s[*slot].push(i64::from(cursor.int()?)),
            Read::IntToFloat(slot) => self.columns.f32s[*slot].push(cursor.int()? as f32),
            Read::IntToDouble(slot) => self.columns.f64s[*slot].push(f64::from(cursor.int()?)),
            Read::Long(slot) => self.columns.i64s[*slot].push(cursor.long()?),
            Read::LongToFloat(slot) => self.columns.f32s[*slot].push(cursor.long()? as f32),
            Read::LongToDouble(slot) => self.columns.f64s[*slot].push(cursor.long()? as f64),
            Read::Float(slot) => self.columns.f32s[*slot].push(cursor.float()?),
            Read::FloatToDouble(slot) => self.columns.f64s[*slot].push(f64::from(cursor.float()?)),
            Read::Double(slot) => self.columns.f64s[*slot].push(cursor.double()?),
            Read::Text { column, data, offsets, utf8 } => {
                let text = cursor.text()?;
                if *utf8 && std::str::from_utf8(text).is_err() {
                    return Err(cursor.fault(format!("{} bytes that are not UTF-8", text.len())));
                }
                self.columns.u8s[*data].extend_from_slice(text);
                self.push_offset(*offsets, text.len() as u64, *column)?;
            }
            Read::Enum { slot, symbols } => {
                let symbol = &symbols[cursor.index(symbols.len(), "symbol")?];
                let Some(place) = symbol.place else {
                    return Err(cursor.fault(format!("the reader has no symbol '{}'", symbol.name)));
                };
                self.columns.i32s[*slot].push(place);
            }
            Read::Record(fields) => self.record(fields, cursor)?,
            Read::Array { column, offsets, item_bytes_min, item } => {
                let items = self.array(item, *item_bytes_min, cursor)?;
                self.push_offset(*offsets, items, *column)?;
            }
            Read::Union(branches) => {
                let branch = cursor.index(branches.len(), "union branch")?;
                self.read(&branches[branch], cursor)?;
            }
            Read::Present { validity, inner } => {
                self.columns.u8s[*validity].push(1);
                self.read(inner, cursor)?;
            }
            Read::Absent(zeros) => zeros.iter().for_each(|zero| self.columns.push_zero(*zero)),
            Read::Default { bytes, read } => self.read(read, &mut Cursor::new(bytes))?,
            Read::Refuse(reason) => return Err(cursor.fault(reason.clone())),
        }
        Ok(())
    }

    #[inline(always)]
    fn record(&mut self, fields: &[ReadField], cursor: &mut Cursor<'_>) -> Step {
        for field in fields {
            // Most fields of events are these, which need no call.
            let step = match &field.read {
                Read::Long(slot) => cursor.long().map(|value| self.columns.i64s[*slot].push(value)),
                Read::Float(slot) => cursor.float().map(|value| self.columns.f32s[*slot].push(value)),
                read => self.read(read, cursor),
            };
            step.map_err(|stop| stop.inside(&field.name))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn push_offset(&mut self, slot: usize, added: u64, column: usize) -> Step {
        let offsets = &mut self.columns.i32s[slot];
        let end = offsets[offsets.len() - 1] as u64 + added;
        if end > self.limits.offsets_max as u64 {
            return Err(Box::new(DecodeStop::Overflow { offsets_column: column }));
        }
        offsets.push(end as i32);
        Ok(())
    }

    fn array(&mut self, item: &Read, item_bytes_min: usize, cursor: &mut Cursor<'_>) -> Step<u64> {
        let mut items = 0;
        while let Some(block) = cursor.block(item_bytes_min)? {
            // Items are bounded in number too: filled-in defaults can make an item much larger than its
            // bytes.
            if items + block.items > self.limits.items_max {
                return Err(cursor.fault(format!("more than {} items", self.limits.items_max)));
            }
            if item_bytes_min == 0 {
                if block.items > self.items_left {
                    return Err(cursor.fault(format!("more than {} empty items", self.limits.items_max)));
                }
                self.items_left -= block.items;
            }
            self.items(item, &block, cursor)?;
            cursor.end_block(&block)?;
            items += block.items;
        }
        Ok(items)
    }

    #[inline(always)]
    fn items(&mut self, item: &Read, block: &AvroBlock, cursor: &mut Cursor<'_>) -> Step {
        match item {
            // Lists of numbers are most of an event's bytes, so they go straight into the one column.
            Read::Long(slot) => {
                let column = &mut self.columns.i64s[*slot];
                for _ in 0..block.items {
                    column.push(cursor.long()?);
                }
            }
            Read::Float(slot) => {
                let bytes = cursor.take((block.items as usize).saturating_mul(4))?;
                let values = bytes
                    .chunks_exact(4)
                    .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]));
                self.columns.f32s[*slot].extend(values);
            }
            item => {
                for _ in 0..block.items {
                    self.read(item, cursor)?;
                }
            }
        }
        Ok(())
    }
}
