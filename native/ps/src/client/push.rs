//! Pushing: gradients to the shards, summed by key. Each block keeps its own sequence number for good.

use std::borrow::Cow;

use streamlearn_table::{Admit, ByPart, Member, PARTS, Pushed};

use super::ClientCore;
use super::driver::{Work, drive};
use super::pull::check_lengths;
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, HEADER_BYTES, Kind};
use crate::merge::{Addends, Met, Summed, block_end, runs};
use crate::message::{
    Columns, PART_HEAD_BYTES, PUSH_HEAD_BYTES, PartAsk, PartHead, PushAsk, PushReply, SliceHead, check_slice,
};
use crate::numbers::{Encoding, bytes_of};

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

/// The slice of a step to which a push belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartOf {
    /// The step.
    pub step: u64,
    /// The slice, from 0.
    pub slice: u16,
    /// The number of slices of the step.
    pub slices: u16,
    /// Whether the slice's numbers are finite. If they are not, its keys are not sent, and the shards do not
    /// apply the step.
    pub is_finite: bool,
    /// Whether others may give the slice, too; the shards ignore what they have already. The steps follow each
    /// other by one.
    pub may_repeat: bool,
    /// Whether the shards apply the slice when it comes, and not when the step has all slices.
    pub at_once: bool,
}

/// The summed gradients of one shard that are not pushed yet.
#[derive(Default)]
struct Unpushed {
    summed: Summed,
    /// The first key not pushed yet.
    begin: usize,
    /// The number of blocks that were pushed.
    blocks: usize,
}

struct PushWork<'a> {
    core: &'a ClientCore,
    push: &'a PushOf<'a>,
    part: Option<PartOf>,
    epoch: Epoch,
    dim: usize,
    /// Members of each shard that are not summed yet.
    members_left: Vec<&'a [Member]>,
    met: Met,
    unpushed: Vec<Unpushed>,
    /// The maximum number of keys in a block.
    keys_max: usize,
    pushed: Pushed,
}

/// Push gradients of keys of one table, as a whole or as a part of a step.
pub fn push(core: &ClientCore, push: &PushOf<'_>, part: Option<PartOf>) -> Result<Pushed> {
    let (dim, epoch) = (core.dim(push.table)?, core.epoch()?);
    check(push, dim)?;
    if let Some(PartOf { slice, slices, .. }) = part {
        check_slice(slice, slices).map_err(|refusal| PsError::new(Trouble::Settings, refusal.text))?;
    }
    let nothing = PushOf { keys: &[], gradients: &[], counts: None, admit: &[], ..*push };
    let push = if part.is_none_or(|part| part.is_finite) { push } else { &nothing };
    let deadline = core.deadline();
    let _slot = core.enter(deadline)?;
    let by_part = ByPart::new(push.keys);
    let members_left: Vec<_> =
        core.plan().bounds.windows(2).map(|parts| by_part.of(parts[0]..parts[1])).collect();
    debug_assert_eq!(
        members_left.iter().map(|members| members.len()).sum::<usize>(),
        by_part.of(0..PARTS).len()
    );
    let unpushed = members_left.iter().map(|_| Unpushed::default()).collect();
    let (met, keys_max, pushed) = (Met::default(), core.push_keys_max(dim)?, Pushed::default());
    let kind = if part.is_some() { Kind::PushPart } else { Kind::Push };
    let mut push_work =
        PushWork { core, push, part, epoch, dim, members_left, met, unpushed, keys_max, pushed };
    let result = drive(core, (kind, epoch), deadline, &mut push_work);
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
        let keys_max = bytes_max.saturating_sub(PART_HEAD_BYTES + PUSH_HEAD_BYTES + 16) / key_bytes;
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
        if self.unpushed[shard].left() < self.keys_max {
            self.unpushed[shard].drop_pushed(self.dim);
        }
        while self.unpushed[shard].left() < self.keys_max && !self.members_left[shard].is_empty() {
            let (members, rest) = self.members_left[shard].split_at(block_end(self.members_left[shard]));
            self.members_left[shard] = rest;
            let (addends, summed) =
                (Given { push: self.push, dim: self.dim }, &mut self.unpushed[shard].summed);
            summed.add(&addends, self.dim, members, &mut self.met);
        }
        let unpushed = &self.unpushed[shard];
        // A part has a block even without keys: the shard counts which slices it has.
        if unpushed.left() == 0 && (self.part.is_none() || unpushed.blocks > 0) {
            return None;
        }
        let head = self.part.map(|part| self.head(shard, part)).transpose();
        Some(head.and_then(|head| {
            let sequence = self.core.take_sequence(shard, self.epoch)?;
            Ok((self.frame(shard, head, sequence), 0))
        }))
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

impl Unpushed {
    fn left(&self) -> usize {
        self.summed.keys.len() - self.begin
    }

    fn drop_pushed(&mut self, dim: usize) {
        self.summed.drop_first(std::mem::take(&mut self.begin), dim);
    }
}

/// The columns of a push.
struct Given<'a> {
    push: &'a PushOf<'a>,
    dim: usize,
}

impl Addends for Given<'_> {
    fn gradient(&self, at: usize) -> &[f32] {
        &self.push.gradients[at * self.dim..][..self.dim]
    }

    fn counts(&self) -> Option<&[u32]> {
        self.push.counts
    }

    fn admit(&self) -> &[Admit] {
        self.push.admit
    }
}

impl PushWork<'_> {
    /// The head of a shard's next block of a part.
    fn head(&self, shard: usize, part: PartOf) -> Result<PartHead> {
        let (unpushed, PartOf { step, slice, slices, .. }) = (&self.unpushed[shard], part);
        let block = u16::try_from(unpushed.blocks).map_err(|_| {
            let text = format!("a slice has more than {} blocks: raise push_block_keys", unpushed.blocks);
            PsError::new(Trouble::Settings, text)
        })?;
        // Members that are left have at least one further key.
        let is_last = self.members_left[shard].is_empty() && unpushed.left() <= self.keys_max;
        let PartOf { is_finite, may_repeat, at_once, .. } = part;
        Ok(PartHead { step, slice, slices, block, is_last, is_finite, may_repeat, at_once })
    }

    /// Builds the frame of a shard's next block.
    fn frame(&mut self, shard: usize, head: Option<PartHead>, sequence: u64) -> Vec<u8> {
        let (unpushed, encoding) = (&mut self.unpushed[shard], self.core.settings.encoding);
        let begin = unpushed.begin;
        let block = begin..unpushed.summed.keys.len().min(begin + self.keys_max);
        unpushed.begin = block.end;
        unpushed.blocks += 1;
        let summed = &unpushed.summed;
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
        let head_bytes = HEADER_BYTES + PART_HEAD_BYTES + PUSH_HEAD_BYTES;
        let mut frame = Vec::with_capacity(head_bytes + 24 * keys.len() + gradients.len() + 16);
        frame::begin(&mut frame);
        let columns = Columns {
            keys: keys.into(),
            admit: runs(summed.thresholds.get(block).unwrap_or_default()).into(),
            counts: counts.iter().any(|&count| count != 1).then(|| counts.into()),
            gradients,
        };
        let PushOf { table, now_ms, rate_scale, .. } = *self.push;
        let push = PushAsk { epoch: self.epoch, table, encoding, sequence, now_ms, rate_scale, columns };
        let kind = match head {
            None => {
                push.append(&mut frame);
                Kind::Push
            }
            Some(head) => {
                PartAsk { head, push }.append(&mut frame);
                Kind::PushPart
            }
        };
        frame::finish(&mut frame, kind, 0, 0);
        frame
    }
}
