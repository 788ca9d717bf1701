//! Pulling: rows from the shards into every position that wants them.

use std::time::Instant;

use streamlearn_table::{ByPart, prefetch_all};

use super::cut::Cut;
use super::driver::{Work, drive};
use super::{ClientCore, PullAt};
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, HEADER_BYTES, Kind};
use crate::merge::Met;
use crate::message::{PULL_HEAD_BYTES, PullAsk, SliceHead};
use crate::numbers::Encoding;

/// How many rows ahead positions are prefetched before they are written.
const AHEAD: usize = 12;

/// The common fields of all pulls of one table.
pub struct TablePull {
    pub epoch: Epoch,
    pub table: u16,
    pub encoding: Encoding,
    pub at: PullAt,
    pub dim: usize,
}

impl TablePull {
    /// Describes the pulls of a table in an epoch.
    pub fn new(core: &ClientCore, table: u16, (at, epoch): (PullAt, Epoch)) -> Result<Self> {
        Ok(Self { epoch, table, encoding: core.settings.encoding, at, dim: core.dim(table)? })
    }

    /// Returns the frame that requests the rows of `keys`.
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

    /// Checks that a slice has the requested dim and encoding.
    pub fn check(&self, head: SliceHead) -> std::result::Result<(), String> {
        if (head.dim as usize, head.encoding) == (self.dim, self.encoding) {
            return Ok(());
        }
        Err(format!("rows of {} {:?}, expected {} {:?}", head.dim, head.encoding, self.dim, self.encoding))
    }
}

struct PullWork<'a> {
    table_pull: TablePull,
    /// One of each shard.
    cuts: Vec<Cut<'a>>,
    met: Met,
    block_keys: usize,
    /// The next key to request of each shard.
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
    let table_pull = TablePull::new(core, table, (at, epoch))?;
    check_lengths(keys, out.len(), table_pull.dim)?;
    let _slot = core.enter(deadline)?;
    let by_part = ByPart::new(keys);
    let cut = |parts: &[usize]| Cut::new(by_part.of(parts[0]..parts[1]), is_distinct);
    let cuts: Vec<Cut<'_>> = core.plan().bounds.windows(2).map(cut).collect();
    let (next, block_keys, kind_and_epoch) =
        (vec![0; cuts.len()], core.pull_keys_max(), (Kind::Pull, table_pull.epoch));
    let (met, blocks) = (Met::default(), Vec::new());
    drive(
        core,
        kind_and_epoch,
        deadline,
        &mut PullWork { table_pull, cuts, met, block_keys, next, blocks, out },
    )
}

impl ClientCore {
    /// The maximum number of keys in a pulled block.
    pub(super) fn pull_keys_max(&self) -> usize {
        let keys_max = self.plan().frame_bytes_max.saturating_sub(PULL_HEAD_BYTES) / 8;
        self.settings.limits.pull_block_keys.min(keys_max).max(1)
    }
}

/// Checks that there is one row for each key, and that key positions fit into a u32.
pub fn check_lengths(keys: &[u64], floats: usize, dim: usize) -> Result<()> {
    if floats == keys.len() * dim && keys.len() < u32::MAX as usize {
        return Ok(());
    }
    let text = format!("{floats} floats for {} keys: a row is {dim} floats", keys.len());
    Err(PsError::new(Trouble::Settings, text))
}

impl Work for PullWork<'_> {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        let (first, cut) = (self.next[shard], &mut self.cuts[shard]);
        cut.find(first + self.block_keys, &mut self.met);
        let keys = &cut.keys[first..cut.keys.len().min(first + self.block_keys)];
        if keys.is_empty() {
            return None;
        }
        self.next[shard] += keys.len();
        self.blocks.push((shard, first));
        Some(Ok((self.table_pull.frame(keys), keys.len())))
    }

    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String> {
        self.table_pull.check(head)?;
        let (shard, first) = self.blocks[block];
        let (first, dim) = ((shard, first + head.first as usize), self.table_pull.dim);
        let numbers =
            head.encoding.numbers(rows, head.count as usize * dim).ok_or("rows of another length")?;
        // With a compile-time length the copy is inlined.
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
        Err("the answer has no rows".to_owned())
    }
}

impl PullWork<'_> {
    /// Copies rows to every position that wants them.
    fn spread<const DIM: usize>(&mut self, (shard, first): (usize, usize), rows: &[f32]) {
        let dim = if DIM == 0 { self.table_pull.dim } else { DIM };
        let (cut, out) = (&self.cuts[shard], &mut *self.out);
        let last = cut.keys.len() - 1;
        for (at, row) in rows.chunks_exact(dim).enumerate() {
            let ahead = cut.place((first + at + AHEAD).min(last));
            prefetch_all(&out[ahead * dim..][..dim]);
            cut.each_place(first + at, |place| out[place * dim..][..dim].copy_from_slice(row));
        }
    }
}
