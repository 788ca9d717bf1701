//! Pushing: gradients to the shards, summed by key. Each block keeps its own sequence number for good.

use std::borrow::Cow;

use streamlearn_table::{Admit, ByPart, Member, PARTS, Pushed, prefetch_all};

use super::ClientCore;
use super::cut::{Met, block_end};
use super::driver::{Work, drive};
use super::pull::check_lengths;
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, HEADER_BYTES, Kind};
use crate::message::{Columns, PUSH_HEAD_BYTES, PushAsk, PushReply, SliceHead};
use crate::numbers::{Encoding, bytes_of};

/// How many members ahead gradients are prefetched before they are summed.
const AHEAD: usize = 16;

/// The arguments of a push.
#[derive(Debug, Clone, Copy)]
pub struct PushOf<'a> {
    /// The table's number.
    pub table: u16,
    /// Keys; a key may repeat.
    pub keys: &'a [u64],
    /// One gradient row for each key.
    pub gradients: &'a [f32],
    /// How often each key was seen; `None` means once.
    pub counts: Option<&'a [u32]>,
    /// Admission thresholds by runs of the keys in order: a key gets a row once it was seen that often. Keys
    /// after the last run are admitted at once.
    pub admit: &'a [Admit],
    /// Table time, in milliseconds.
    pub now_ms: i64,
    /// Multiplies the optimizer's learning rate.
    pub rate_scale: f32,
}

/// The summed gradients of one shard that are not pushed yet; the buffers are reused.
#[derive(Default)]
struct Summed {
    keys: Vec<u64>,
    counts: Vec<u32>,
    thresholds: Vec<u32>,
    sums: Vec<f32>,
    /// The first key not pushed yet.
    begin: usize,
}

struct PushWork<'a> {
    core: &'a ClientCore,
    push: &'a PushOf<'a>,
    epoch: Epoch,
    dim: usize,
    /// Members of each shard that are not summed yet.
    members_left: Vec<&'a [Member]>,
    met: Met,
    summed: Vec<Summed>,
    /// The maximum number of keys in a block.
    keys_max: usize,
    pushed: Pushed,
}

/// Push gradients of keys of one table.
pub fn push(core: &ClientCore, push: &PushOf<'_>) -> Result<Pushed> {
    let (dim, epoch) = (core.dim(push.table)?, core.epoch()?);
    check(push, dim)?;
    let deadline = core.deadline();
    let _slot = core.enter(deadline)?;
    let by_part = ByPart::new(push.keys);
    let members_left: Vec<_> =
        core.plan().bounds.windows(2).map(|parts| by_part.of(parts[0]..parts[1])).collect();
    debug_assert_eq!(
        members_left.iter().map(|members| members.len()).sum::<usize>(),
        by_part.of(0..PARTS).len()
    );
    let summed = members_left.iter().map(|_| Summed::default()).collect();
    let (met, keys_max, pushed) = (Met::default(), core.push_keys_max(dim)?, Pushed::default());
    let mut push_work = PushWork { core, push, epoch, dim, members_left, met, summed, keys_max, pushed };
    let result = drive(core, (Kind::Push, epoch), deadline, &mut push_work);
    if let Err(error) = &result {
        core.note_unsure(epoch, error);
    }
    result.map(|()| push_work.pushed)
}

fn check(push: &PushOf<'_>, dim: usize) -> Result<()> {
    check_lengths(push.keys, push.gradients.len(), dim)?;
    let keys = push.keys.len();
    if let Some(counts) = push.counts.filter(|counts| counts.len() != keys) {
        return Err(PsError::new(Trouble::Settings, format!("{} counts for {keys} keys", counts.len())));
    }
    if !push.admit.is_sorted_by_key(|run| run.end) || push.admit.last().is_some_and(|run| run.end > keys) {
        let text = format!("the admission runs do not end in ascending order within {keys} keys");
        return Err(PsError::new(Trouble::Settings, text));
    }
    Ok(())
}

impl ClientCore {
    /// The maximum number of keys in a pushed block.
    fn push_keys_max(&self, dim: usize) -> Result<usize> {
        // Each key takes itself, an admission run, a count and a gradient. The frame adds padding of the
        // columns.
        let key_bytes = 8 + 8 + 4 + self.settings.encoding.number_bytes() * dim;
        let bytes_max = self.plan().frame_bytes_max;
        let keys_max = bytes_max.saturating_sub(PUSH_HEAD_BYTES + 16) / key_bytes;
        if keys_max == 0 {
            let text =
                format!("a gradient of {dim} does not fit into the {bytes_max} bytes that shards accept");
            return Err(PsError::new(Trouble::Settings, text));
        }
        Ok(self.settings.limits.push_block_keys.min(keys_max))
    }

    /// Takes the next sequence number of a shard; it belongs to one block for good.
    fn take_sequence(&self, shard: usize, epoch: Epoch) -> Result<u64> {
        let mut term = self.term();
        if term.epoch != Some(epoch) {
            drop(term);
            return Err(self.stale(Some(epoch)));
        }
        if let Some(text) = &term.unsure {
            let text = format!("pushes are blocked in epoch {epoch}, because a push failed: {text}");
            return Err(PsError::new(Trouble::Unsure, text));
        }
        term.sequences[shard] += 1;
        Ok(term.sequences[shard] - 1)
    }

    /// Blocks further pushes of the epoch: the failed push may have been applied in part.
    fn note_unsure(&self, epoch: Epoch, error: &PsError) {
        let mut term = self.term();
        if term.epoch == Some(epoch) && term.unsure.is_none() {
            term.unsure = Some(error.to_string());
        }
    }
}

impl Work for PushWork<'_> {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        if self.summed[shard].left() < self.keys_max {
            self.summed[shard].drop_pushed(self.dim);
        }
        while self.summed[shard].left() < self.keys_max && !self.members_left[shard].is_empty() {
            let (members, rest) = self.members_left[shard].split_at(block_end(self.members_left[shard]));
            self.members_left[shard] = rest;
            self.sum(shard, members);
        }
        if self.summed[shard].left() == 0 {
            return None;
        }
        Some(self.core.take_sequence(shard, self.epoch).map(|sequence| (self.frame(shard, sequence), 0)))
    }

    fn land(&mut self, _block: usize, _head: SliceHead, _rows: &[u8]) -> std::result::Result<(), String> {
        Err("a push was answered with rows".to_owned())
    }

    fn done(&mut self, _block: usize, payload: &[u8]) -> std::result::Result<(), String> {
        let PushReply(pushed) = PushReply::decode(payload).map_err(|refusal| refusal.to_string())?;
        self.pushed.learned += pushed.learned;
        self.pushed.created += pushed.created;
        self.pushed.waiting += pushed.waiting;
        Ok(())
    }
}

impl Summed {
    fn left(&self) -> usize {
        self.keys.len() - self.begin
    }

    fn drop_pushed(&mut self, dim: usize) {
        let begin = std::mem::take(&mut self.begin);
        self.keys.drain(..begin);
        self.counts.drain(..begin);
        self.thresholds.drain(..begin.min(self.thresholds.len()));
        self.sums.drain(..begin * dim);
    }
}

/// Groups adjacent keys of equal thresholds into runs.
fn runs(thresholds: &[u32]) -> Vec<Admit> {
    let mut end = 0;
    let run = |same: &[u32]| {
        end += same.len();
        Admit { end, threshold: same[0] }
    };
    thresholds.chunk_by(u32::eq).map(run).collect()
}

impl<'a> PushWork<'a> {
    fn gradient(&self, member: &Member) -> &'a [f32] {
        &self.push.gradients[member.at as usize * self.dim..][..self.dim]
    }

    /// Sums the gradients of whole parts as a table does: in the given order, starting with the first.
    fn sum(&mut self, shard: usize, members: &[Member]) {
        match self.dim {
            8 => self.sum_of::<8>(shard, members),
            16 => self.sum_of::<16>(shard, members),
            32 => self.sum_of::<32>(shard, members),
            64 => self.sum_of::<64>(shard, members),
            _ => self.sum_of::<0>(shard, members),
        }
    }

    fn sum_of<const DIM: usize>(&mut self, shard: usize, members: &[Member]) {
        let dim = if DIM == 0 { self.dim } else { DIM };
        self.met.begin(members.len());
        let first = self.summed[shard].keys.len();
        for (at, member) in members.iter().enumerate() {
            if let Some(ahead) = members.get(at + AHEAD) {
                prefetch_all(self.gradient(ahead));
            }
            let (gradient, push) = (self.gradient(member), self.push);
            let count = push.counts.map_or(1, |counts| counts[member.at as usize]);
            let (summed, gradient) = (&mut self.summed[shard], &gradient[..dim]);
            let keys = &summed.keys;
            let number = first + self.met.meet(member, keys.len() - first, |number| keys[first + number]);
            if number == summed.keys.len() {
                summed.keys.push(member.key);
                summed.counts.push(count);
                summed.sums.extend_from_slice(gradient);
                if !push.admit.is_empty() {
                    let run = push.admit.partition_point(|run| run.end <= member.at as usize);
                    summed.thresholds.push(push.admit.get(run).map_or(1, |run| run.threshold.max(1)));
                }
            } else {
                summed.counts[number] = summed.counts[number].saturating_add(count);
                let sum = &mut summed.sums[number * dim..][..dim];
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// Builds the frame of a shard's next block.
    fn frame(&mut self, shard: usize, sequence: u64) -> Vec<u8> {
        let (summed, encoding) = (&mut self.summed[shard], self.core.settings.encoding);
        let block = summed.begin..summed.keys.len().min(summed.begin + self.keys_max);
        summed.begin = block.end;
        let (keys, counts) = (&summed.keys[block.clone()], &summed.counts[block.clone()]);
        let sums = &summed.sums[block.start * self.dim..block.end * self.dim];
        let gradients = match encoding {
            Encoding::F32 if sums.len() % 2 == 0 => Cow::Borrowed(bytes_of(sums)),
            _ => {
                let mut bytes = Vec::new();
                encoding.append(sums, &mut bytes);
                Cow::Owned(bytes)
            }
        };
        let mut frame =
            Vec::with_capacity(HEADER_BYTES + PUSH_HEAD_BYTES + 24 * keys.len() + gradients.len() + 16);
        frame::begin(&mut frame);
        let columns = Columns {
            keys: keys.into(),
            admit: runs(summed.thresholds.get(block).unwrap_or_default()).into(),
            counts: counts.iter().any(|&count| count != 1).then(|| counts.into()),
            gradients,
        };
        let PushOf { table, now_ms, rate_scale, .. } = *self.push;
        PushAsk { epoch: self.epoch, table, encoding, sequence, now_ms, rate_scale, columns }
            .append(&mut frame);
        frame::finish(&mut frame, Kind::Push, 0, 0);
        frame
    }
}
