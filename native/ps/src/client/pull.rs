//! Pulling: rows from the shards to every place that wants them.

use std::time::Instant;

use streamlearn_table::{ByPart, prefetch_all};

use super::cut::{Cut, Met};
use super::driver::{Work, drive};
use super::{ClientCore, PullAt};
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, HEADER_BYTES, Kind};
use crate::message::{PULL_HEAD_BYTES, PullAsk, SliceHead};
use crate::numbers::Encoding;

/// Places are brought near so many rows before they are written.
const AHEAD: usize = 12;

/// What the pulls of one table ask for.
pub struct Asking {
    pub epoch: Epoch,
    pub table: u16,
    pub encoding: Encoding,
    pub at: PullAt,
    pub dim: usize,
}

impl Asking {
    /// What is asked of a table in an epoch.
    pub fn new(core: &ClientCore, table: u16, (at, epoch): (PullAt, Epoch)) -> Result<Self> {
        Ok(Self { epoch, table, encoding: core.settings.encoding, at, dim: core.dim(table)? })
    }

    /// The frame that asks for rows of keys.
    pub fn frame(&self, keys: &[u64]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + 40 + 8 * keys.len());
        frame::begin(&mut frame);
        let version = match self.at {
            PullAt::Newest => None,
            PullAt::Version(version) => Some(version),
        };
        let (epoch, table, encoding) = (self.epoch, self.table, self.encoding);
        PullAsk { epoch, table, encoding, version, keys: keys.into() }.append(&mut frame);
        frame::finish(&mut frame, Kind::Pull, 0, 0);
        frame
    }

    /// Whether rows are those that were asked for.
    pub fn check(&self, head: SliceHead) -> std::result::Result<(), String> {
        if (head.dim as usize, head.encoding) == (self.dim, self.encoding) {
            return Ok(());
        }
        Err(format!("rows of {} {:?}, expected {} {:?}", head.dim, head.encoding, self.dim, self.encoding))
    }
}

struct Pulling<'a> {
    asking: Asking,
    /// Of each shard.
    cuts: Vec<Cut<'a>>,
    met: Met,
    block_keys: usize,
    /// The first key of each shard that is not asked for yet.
    next: Vec<usize>,
    /// The shard and the first key of each block.
    blocks: Vec<(usize, usize)>,
    out: &'a mut [f32],
}

/// Pull rows of keys of one table.
pub fn pull(
    core: &ClientCore,
    (table, keys): (u16, &[u64]),
    (at, epoch, deadline): (PullAt, Epoch, Instant),
    is_distinct: bool,
    out: &mut [f32],
) -> Result<()> {
    let asking = Asking::new(core, table, (at, epoch))?;
    check_lengths(keys, out.len(), asking.dim)?;
    let _place = core.enter(deadline)?;
    let by_part = ByPart::new(keys);
    let cut = |parts: &[usize]| Cut::new(by_part.of(parts[0]..parts[1]), is_distinct);
    let cuts: Vec<Cut<'_>> = core.plan().bounds.windows(2).map(cut).collect();
    let (next, block_keys, what) = (vec![0; cuts.len()], core.pull_keys_max(), (Kind::Pull, asking.epoch));
    let (met, blocks) = (Met::default(), Vec::new());
    drive(core, what, deadline, &mut Pulling { asking, cuts, met, block_keys, next, blocks, out })
}

impl ClientCore {
    /// Keys of a block that is pulled, at most.
    pub(super) fn pull_keys_max(&self) -> usize {
        let keys_max = self.plan().frame_bytes_max.saturating_sub(PULL_HEAD_BYTES) / 8;
        self.settings.limits.pull_block_keys.min(keys_max).max(1)
    }
}

/// A row for each key, and no more keys than places have numbers.
pub fn check_lengths(keys: &[u64], floats: usize, dim: usize) -> Result<()> {
    if floats == keys.len() * dim && keys.len() < u32::MAX as usize {
        return Ok(());
    }
    let text = format!("{floats} floats for {} keys: a row is {dim} floats", keys.len());
    Err(PsError::new(Trouble::Settings, text))
}

impl Work for Pulling<'_> {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        let (first, cut) = (self.next[shard], &mut self.cuts[shard]);
        cut.find(first + self.block_keys, &mut self.met);
        let keys = &cut.keys[first..cut.keys.len().min(first + self.block_keys)];
        if keys.is_empty() {
            return None;
        }
        self.next[shard] += keys.len();
        self.blocks.push((shard, first));
        Some(Ok((self.asking.frame(keys), keys.len())))
    }

    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String> {
        self.asking.check(head)?;
        let (shard, first) = self.blocks[block];
        let (first, dim) = ((shard, first + head.first as usize), self.asking.dim);
        let numbers =
            head.encoding.numbers(rows, head.count as usize * dim).ok_or("rows of another length")?;
        // A length known when compiled is a copy without a call.
        match dim {
            8 => self.spread::<8>(first, &numbers),
            16 => self.spread::<16>(first, &numbers),
            32 => self.spread::<32>(first, &numbers),
            64 => self.spread::<64>(first, &numbers),
            _ => self.spread::<0>(first, &numbers),
        }
        Ok(())
    }

    fn done(&mut self, _block: usize, _payload: &[u8]) -> std::result::Result<(), String> {
        Err("an answer without rows".to_owned())
    }
}

impl Pulling<'_> {
    /// Copy rows to every place that wants them.
    fn spread<const DIM: usize>(&mut self, (shard, first): (usize, usize), rows: &[f32]) {
        let dim = if DIM == 0 { self.asking.dim } else { DIM };
        let (cut, out) = (&self.cuts[shard], &mut *self.out);
        let last = cut.keys.len() - 1;
        for (at, row) in rows.chunks_exact(dim).enumerate() {
            let ahead = cut.place((first + at + AHEAD).min(last));
            prefetch_all(&out[ahead * dim..][..dim]);
            cut.each_place(first + at, |place| out[place * dim..][..dim].copy_from_slice(row));
        }
    }
}
