//! Reduce: a slice's part of a dense vector, and the sum over all slices of a step.

use std::borrow::Cow;

use super::fields::Fields;
use crate::epoch::Epoch;
use crate::numbers::{bytes_of, floats};
use crate::refusal::Refusal;

/// Bytes before the values.
pub(crate) const REDUCE_HEAD_BYTES: usize = 48;
const NO_SLICE: u16 = u16::MAX;
const NOT_FINITE: u16 = 1;
const NO_SUMS: u16 = 2;

/// The fields before the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceHead {
    /// The client's epoch.
    pub epoch: Epoch,
    /// The step.
    pub step: u64,
    /// The slice that is given; `None` only asks for the sum.
    pub slice: Option<u16>,
    /// The number of slices of the step.
    pub slices: u16,
    /// Whether the slice's numbers are finite; if they are not, it has no values.
    pub is_finite: bool,
    /// Whether the answer shall have the sums.
    pub wants_sums: bool,
    /// Where the shard's range of the dense vector begins.
    pub first: u32,
    /// The length of this range.
    pub count: u32,
    /// How long the answer may wait for other slices.
    pub wait_ms: u32,
    /// A hash of the weights before the step; only with a slice.
    pub digest: u64,
}

/// A slice's values, or a question for the sums.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceAsk<'a> {
    /// The fields before the values.
    pub head: ReduceHead,
    /// The values of a finite slice.
    pub values: Cow<'a, [f32]>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceReply<'a> {
    /// Whether the step has all slices.
    pub is_complete: bool,
    /// Whether all slices so far are finite.
    pub is_finite: bool,
    /// The sums, if they are complete, finite and wanted.
    pub sums: Cow<'a, [f32]>,
}

impl ReduceHead {
    /// Appends the encoded head.
    pub(crate) fn append(&self, payload: &mut Vec<u8>) {
        let flags = if self.is_finite { 0 } else { NOT_FINITE } | if self.wants_sums { 0 } else { NO_SUMS };
        payload.extend_from_slice(&self.epoch.run.to_le_bytes());
        payload.extend_from_slice(&self.epoch.recovery.to_le_bytes());
        payload.extend_from_slice(&self.step.to_le_bytes());
        for number in [self.slice.unwrap_or(NO_SLICE), self.slices, flags, 0] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.first, self.count, self.wait_ms] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(&self.digest.to_le_bytes());
    }

    /// Whether the request has values.
    pub(crate) fn has_values(&self) -> bool {
        self.slice.is_some() && self.is_finite
    }
}

impl<'a> ReduceAsk<'a> {
    /// Appends the encoded payload.
    pub fn append(&self, payload: &mut Vec<u8>) {
        payload.reserve(REDUCE_HEAD_BYTES + 4 * self.values.len());
        self.head.append(payload);
        payload.extend_from_slice(bytes_of(&self.values));
    }

    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a reduce", payload);
        let (epoch, step, slice, slices) = (fields.epoch()?, fields.u64()?, fields.u16()?, fields.u16()?);
        let (flags, zero, first, count) = (fields.u16()?, fields.u16()?, fields.u32()?, fields.u32()?);
        let (wait_ms, digest, values) = (fields.u32()?, fields.u64()?, fields.rest());
        if flags & !(NOT_FINITE | NO_SUMS) != 0 || zero != 0 {
            return Err(
                fields.bad(format!("unknown flags {flags:#06x} or a nonzero reserved field {zero:#06x}"))
            );
        }
        if first.checked_add(count).is_none() {
            return Err(fields.bad(format!("the range {first}..+{count} ends beyond {}", u32::MAX)));
        }
        let slice = Some(slice).filter(|&slice| slice != NO_SLICE);
        let (is_finite, wants_sums) = (flags & NOT_FINITE == 0, flags & NO_SUMS == 0);
        let head =
            ReduceHead { epoch, step, slice, slices, is_finite, wants_sums, first, count, wait_ms, digest };
        let expected_bytes = if head.has_values() { 4 * count as usize } else { 0 };
        if values.len() != expected_bytes {
            return Err(fields.bad(format!("{} bytes of values, expected {expected_bytes}", values.len())));
        }
        Ok(Self { head, values: floats(values) })
    }
}

impl<'a> ReduceReply<'a> {
    /// Appends the encoded payload.
    pub fn append(&self, payload: &mut Vec<u8>) {
        payload.reserve(8 + 4 * self.sums.len());
        payload.extend_from_slice(&u16::from(self.is_complete).to_le_bytes());
        payload.extend_from_slice(&u16::from(self.is_finite).to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        payload.extend_from_slice(bytes_of(&self.sums));
    }

    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a reduce's reply", payload);
        let (complete, finite, zero) = (fields.u16()?, fields.u16()?, fields.u32()?);
        let sums = fields.rest();
        let is_complete_and_finite = (complete, finite) == (1, 1);
        if complete > 1 || finite > 1 || zero != 0 || !sums.len().is_multiple_of(4) {
            let bytes = sums.len();
            return Err(fields.bad(format!("flags {complete}, {finite}, {zero} and {bytes} bytes of sums")));
        }
        if !sums.is_empty() && !is_complete_and_finite {
            return Err(fields.bad(format!("{} bytes of sums that are not complete", sums.len())));
        }
        Ok(Self { is_complete: complete == 1, is_finite: finite == 1, sums: floats(sums) })
    }
}
