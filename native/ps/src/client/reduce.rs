//! Reducing: a slice's dense vector to the shards, a range to each, and the sums back.

use std::ops::Range;
use std::time::Duration;

use super::ClientCore;
use super::driver::{Work, drive};
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, Kind};
use crate::message::{REDUCE_HEAD_BYTES, ReduceHead, ReduceReply, SliceHead, check_slice};
use crate::numbers::bytes_of;

/// The longest wait of one request, in milliseconds.
const WAIT_MS_MAX: u64 = 10_000;

/// The arguments of a reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceOf {
    /// The step.
    pub step: u64,
    /// The slice that is given; `None` only asks.
    pub slice: Option<u16>,
    /// The number of slices of the step.
    pub slices: u16,
    /// A hash of the weights before the step; of use only with a slice.
    pub digest: u64,
    /// Whether the slice's values are finite. If they are not, they are not sent, and the step has no sum.
    pub is_finite: bool,
    /// How long to wait for other slices; at most 10 s, and half of the time after which a silent shard counts as lost.
    pub wait: Duration,
}

struct ReduceWork<'a> {
    head: ReduceHead,
    values: &'a [f32],
    out: Option<&'a mut [f32]>,
    /// The length of the dense vector.
    length: usize,
    /// The shard of each block.
    shards: Vec<usize>,
    shard_count: usize,
    is_complete: bool,
    is_finite: bool,
}

/// Give a slice, or ask for the sum.
pub fn reduce(
    core: &ClientCore,
    reduce: &ReduceOf,
    values: &[f32],
    out: Option<&mut [f32]>,
) -> Result<Option<bool>> {
    let (epoch, length) = (core.epoch()?, out.as_ref().map_or(values.len(), |out| out.len()));
    let head = head_of(core, epoch, reduce, out.is_some());
    check(core, &head, values.len(), length)?;
    let deadline = core.deadline();
    let _slot = core.enter(deadline)?;
    let (shards, shard_count) = (Vec::new(), core.links.len());
    let mut work =
        ReduceWork { head, values, out, length, shards, shard_count, is_complete: true, is_finite: true };
    drive(core, (Kind::Reduce, epoch), deadline, &mut work)?;
    Ok(work.is_complete.then_some(work.is_finite))
}

fn head_of(core: &ClientCore, epoch: Epoch, reduce: &ReduceOf, wants_sums: bool) -> ReduceHead {
    let (limits, ReduceOf { step, slice, slices, digest, is_finite, wait }) =
        (&core.settings.limits, *reduce);
    let wait_ms_max = WAIT_MS_MAX.min(limits.reply_wait_ms_max / 2).min(limits.retry_wait_ms_max / 2);
    let wait_ms = wait.as_millis().min(wait_ms_max.into()) as u32;
    ReduceHead { epoch, step, slice, slices, is_finite, wants_sums, first: 0, count: 0, wait_ms, digest }
}

fn check(core: &ClientCore, head: &ReduceHead, values: usize, length: usize) -> Result<()> {
    let refused = |text: String| Err(PsError::new(Trouble::Settings, text));
    if let Err(refusal) = check_slice(head.slice.unwrap_or(0), head.slices) {
        return refused(refusal.text);
    }
    if head.slice.is_none() && !head.wants_sums {
        return refused("a reduce without a slice and without a place for the sums".to_owned());
    }
    if head.has_values() && values != length {
        return refused(format!("{values} values for a sum of {length}"));
    }
    let bytes_max = core.plan().frame_bytes_max.min(core.settings.limits.frame_bytes_max as usize);
    // An answer is shorter than a request.
    let bytes = REDUCE_HEAD_BYTES + 4 * length.div_ceil(core.links.len());
    if bytes > bytes_max || u32::try_from(length).is_err() {
        return refused(format!(
            "a dense vector of {length}: a shard's range has {bytes} bytes, at most {bytes_max}"
        ));
    }
    Ok(())
}

impl ReduceWork<'_> {
    /// The range of the dense vector that a shard sums.
    fn range(&self, shard: usize) -> Range<usize> {
        self.length * shard / self.shard_count..self.length * (shard + 1) / self.shard_count
    }
}

impl Work for ReduceWork<'_> {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        if self.shards.contains(&shard) {
            return None;
        }
        self.shards.push(shard);
        let range = self.range(shard);
        let head = ReduceHead { first: range.start as u32, count: range.len() as u32, ..self.head };
        let values = if head.has_values() { &self.values[range] } else { &[] };
        let mut frame = Vec::with_capacity(
            frame::HEADER_BYTES + REDUCE_HEAD_BYTES + 4 * values.len() + frame::CHECK_BYTES,
        );
        frame::begin(&mut frame);
        head.append(&mut frame);
        frame.extend_from_slice(bytes_of(values));
        frame::finish(&mut frame, Kind::Reduce, 0, 0);
        Some(Ok((frame, 0)))
    }

    fn land(&mut self, _block: usize, _head: SliceHead, _rows: &[u8]) -> std::result::Result<(), String> {
        Err("a reduce was answered with rows".to_owned())
    }

    fn done(&mut self, block: usize, payload: &[u8]) -> std::result::Result<(), String> {
        let reply = ReduceReply::decode(payload).map_err(|refusal| refusal.to_string())?;
        self.is_complete &= reply.is_complete;
        self.is_finite &= reply.is_finite;
        let range = self.range(self.shards[block]);
        let Some(out) = self.out.as_deref_mut().filter(|_| reply.is_complete && reply.is_finite) else {
            return Ok(());
        };
        if reply.sums.len() != range.len() {
            return Err(format!("{} sums of a range of {}", reply.sums.len(), range.len()));
        }
        out[range].copy_from_slice(&reply.sums);
        Ok(())
    }
}
