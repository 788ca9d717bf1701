//! Fetched rows: the distinct rows of several tables, for packing.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use streamlearn_table::{ByPart, ReadRows};

use super::cut::Cut;
use super::driver::{Work, drive};
use super::pull::{TablePull, check_lengths};
use super::{ClientCore, PullAt};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::frame::Kind;
use crate::merge::Met;
use crate::message::SliceHead;

/// Rows of keys of several tables, in the order of the request.
pub struct Fetched {
    tables: Vec<FetchedRows>,
}

/// Fetched rows of one table.
pub struct FetchedRows {
    dim: usize,
    rows: Vec<f32>,
    keys: Vec<u64>,
    /// A hash table of keys' numbers plus one; 0 marks a free entry. Its size is a power of two, at most half
    /// full.
    numbers: Vec<u32>,
    /// Random, so that callers cannot choose keys that all collide.
    seeds: (u64, u64),
    missing: AtomicU64,
}

impl Fetched {
    /// Returns the rows of each requested table.
    pub fn tables(&self) -> &[FetchedRows] {
        &self.tables
    }

    /// Returns the tables as row readers, for packing.
    pub fn readers(&self) -> Vec<&dyn ReadRows> {
        self.tables.iter().map(|rows| rows as &dyn ReadRows).collect()
    }

    /// Returns how often a key was read that was not fetched; such rows are filled with NaN.
    pub fn missing(&self) -> u64 {
        self.tables.iter().map(|rows| rows.missing.load(Ordering::Relaxed)).sum()
    }
}

impl FetchedRows {
    fn new(dim: usize, keys: Vec<u64>) -> Self {
        let random_state = RandomState::new();
        let mut fetched = Self {
            dim,
            rows: vec![0.0; keys.len() * dim],
            numbers: vec![0; (2 * keys.len()).next_power_of_two().max(2)],
            keys,
            seeds: (random_state.hash_one(0), random_state.hash_one(1) | 1),
            missing: AtomicU64::new(0),
        };
        for number in 0..fetched.keys.len() {
            let mut at = fetched.home_slot(fetched.keys[number]);
            while fetched.numbers[at] != 0 {
                at = (at + 1) & (fetched.numbers.len() - 1);
            }
            fetched.numbers[at] = number as u32 + 1;
        }
        fetched
    }

    /// Returns the keys, without repeats.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Returns the rows of `keys`, one after another.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    #[inline(always)]
    fn home_slot(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seeds.0) * u128::from(self.seeds.1);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.numbers.len() - 1)
    }

    /// Returns the row of a key, if it was fetched.
    #[inline(always)]
    pub fn row(&self, key: u64) -> Option<&[f32]> {
        let mut at = self.home_slot(key);
        loop {
            let number = self.numbers[at].checked_sub(1)? as usize;
            if self.keys[number] == key {
                return Some(&self.rows[number * self.dim..][..self.dim]);
            }
            at = (at + 1) & (self.numbers.len() - 1);
        }
    }
}

impl ReadRows for FetchedRows {
    fn dim(&self) -> usize {
        self.dim
    }

    fn read(&self, keys: &[u64], into: &mut [f32]) {
        self.read_strided(keys, into, self.dim);
    }

    fn read_strided(&self, keys: &[u64], into: &mut [f32], stride: usize) {
        for (&key, out) in keys.iter().zip(into.chunks_mut(stride)) {
            let out = &mut out[..self.dim];
            if let Some(row) = self.row(key) {
                out.copy_from_slice(row);
            } else {
                // NaN makes the error visible in the output; the counter makes it visible in metrics.
                self.missing.fetch_add(1, Ordering::Relaxed);
                out.fill(f32::NAN);
            }
        }
    }
}

/// The progress of one table's fetch.
struct Part {
    table_pull: TablePull,
    bounds: Vec<usize>,
    /// The next key to request of each shard.
    next: Vec<usize>,
}

struct FetchWork {
    parts: Vec<Part>,
    tables: Vec<FetchedRows>,
    block_keys: usize,
    /// The table index and the first key of each block.
    blocks: Vec<(usize, usize)>,
}

/// Fetches rows of keys of several tables.
pub fn fetch(
    core: &ClientCore,
    wanted: &[(u16, &[u64])],
    (at, epoch, deadline): (PullAt, Epoch, Instant),
) -> Result<Fetched> {
    let _slot = core.enter(deadline)?;
    let (bounds, block_keys) = (&core.plan().bounds, core.pull_keys_max());
    let mut fetch_work = FetchWork { parts: Vec::new(), tables: Vec::new(), block_keys, blocks: Vec::new() };
    for &(table, keys) in wanted {
        let table_pull = TablePull::new(core, table, (at, epoch))?;
        check_lengths(keys, keys.len() * table_pull.dim, table_pull.dim)?;
        let (distinct, bounds) = distinct(keys, bounds);
        fetch_work.tables.push(FetchedRows::new(table_pull.dim, distinct));
        fetch_work.parts.push(Part { table_pull, next: bounds.clone(), bounds });
    }
    drive(core, (Kind::Pull, epoch), deadline, &mut fetch_work)?;
    Ok(Fetched { tables: fetch_work.tables })
}

/// Returns the distinct keys ordered by shard, and the bounds of each shard's keys.
fn distinct(keys: &[u64], parts: &[usize]) -> (Vec<u64>, Vec<usize>) {
    let (by_part, mut met) = (ByPart::new(keys), Met::default());
    let (mut distinct, mut bounds) = (Vec::with_capacity(keys.len()), vec![0]);
    for shard in parts.windows(2) {
        let mut cut = Cut::new(by_part.of(shard[0]..shard[1]), false);
        cut.find(usize::MAX, &mut met);
        distinct.extend(cut.keys);
        bounds.push(distinct.len());
    }
    (distinct, bounds)
}

impl Work for FetchWork {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        let has_keys_left = |part: &Part| part.next[shard] < part.bounds[shard + 1];
        let table_index = self.parts.iter().position(has_keys_left)?;
        let part = &mut self.parts[table_index];
        let first = part.next[shard];
        let end = part.bounds[shard + 1].min(first + self.block_keys);
        part.next[shard] = end;
        self.blocks.push((table_index, first));
        Some(Ok((part.table_pull.frame(&self.tables[table_index].keys[first..end]), end - first)))
    }

    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String> {
        let (table_index, first) = self.blocks[block];
        self.parts[table_index].table_pull.check(head)?;
        let dim = self.parts[table_index].table_pull.dim;
        let numbers =
            head.encoding.numbers(rows, head.count as usize * dim).ok_or("rows of another length")?;
        let first = (first + head.first as usize) * dim;
        self.tables[table_index].rows[first..][..numbers.len()].copy_from_slice(&numbers);
        Ok(())
    }

    fn done(&mut self, _block: usize, _payload: &[u8]) -> std::result::Result<(), String> {
        Err("the answer has no rows".to_owned())
    }
}
