//! What was fetched: distinct rows of several tables, to be packed from.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use streamlearn_table::{ByPart, ReadRows};

use super::cut::{Cut, Met};
use super::driver::{Work, drive};
use super::pull::{Asking, check_lengths};
use super::{ClientCore, PullAt};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::frame::Kind;
use crate::message::SliceHead;

/// Rows of keys of several tables: what is wanted i is at i.
pub struct Fetched {
    tables: Vec<FetchedRows>,
}

/// Rows of some keys of one table.
pub struct FetchedRows {
    dim: usize,
    rows: Vec<f32>,
    keys: Vec<u64>,
    /// One more than a key's number; 0 for none. A power of two of them, at most half of them taken.
    numbers: Vec<u32>,
    /// Nobody can make up keys that all fall on one place.
    seeds: (u64, u64),
    missing: AtomicU64,
}

impl Fetched {
    /// The rows of what was wanted.
    pub fn tables(&self) -> &[FetchedRows] {
        &self.tables
    }

    /// The same, as whoever packs wants them.
    pub fn readers(&self) -> Vec<&dyn ReadRows> {
        self.tables.iter().map(|rows| rows as &dyn ReadRows).collect()
    }

    /// Keys that were read and had not been fetched: their rows were NaN throughout.
    pub fn missing(&self) -> u64 {
        self.tables.iter().map(|rows| rows.missing.load(Ordering::Relaxed)).sum()
    }
}

impl FetchedRows {
    fn new(dim: usize, keys: Vec<u64>) -> Self {
        let chance = RandomState::new();
        let mut fetched = Self {
            dim,
            rows: vec![0.0; keys.len() * dim],
            numbers: vec![0; (2 * keys.len()).next_power_of_two().max(2)],
            keys,
            seeds: (chance.hash_one(0), chance.hash_one(1) | 1),
            missing: AtomicU64::new(0),
        };
        for number in 0..fetched.keys.len() {
            let mut at = fetched.first(fetched.keys[number]);
            while fetched.numbers[at] != 0 {
                at = (at + 1) & (fetched.numbers.len() - 1);
            }
            fetched.numbers[at] = number as u32 + 1;
        }
        fetched
    }

    /// The keys, each once.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Their rows, one after another.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    #[inline(always)]
    fn first(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seeds.0) * u128::from(self.seeds.1);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.numbers.len() - 1)
    }

    /// The row of a key, if it was fetched.
    #[inline(always)]
    pub fn row(&self, key: u64) -> Option<&[f32]> {
        let mut at = self.first(key);
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
                // What is broken must look broken, and is counted for whoever asks.
                self.missing.fetch_add(1, Ordering::Relaxed);
                out.fill(f32::NAN);
            }
        }
    }
}

/// One table's keys on their way.
struct Part {
    asking: Asking,
    bounds: Vec<usize>,
    /// The first key of each shard that is not asked for yet.
    next: Vec<usize>,
}

struct Fetching {
    parts: Vec<Part>,
    tables: Vec<FetchedRows>,
    block_keys: usize,
    /// What is wanted, and its first key, of each block.
    blocks: Vec<(usize, usize)>,
}

/// Fetch rows of keys of several tables.
pub fn fetch(
    core: &ClientCore,
    wanted: &[(u16, &[u64])],
    (at, epoch, deadline): (PullAt, Epoch, Instant),
) -> Result<Fetched> {
    let _place = core.enter(deadline)?;
    let (bounds, block_keys) = (&core.plan().bounds, core.pull_keys_max());
    let mut fetching = Fetching { parts: Vec::new(), tables: Vec::new(), block_keys, blocks: Vec::new() };
    for &(table, keys) in wanted {
        let asking = Asking::new(core, table, (at, epoch))?;
        check_lengths(keys, keys.len() * asking.dim, asking.dim)?;
        let (distinct, bounds) = distinct(keys, bounds);
        fetching.tables.push(FetchedRows::new(asking.dim, distinct));
        fetching.parts.push(Part { asking, next: bounds.clone(), bounds });
    }
    drive(core, (Kind::Pull, epoch), deadline, &mut fetching)?;
    Ok(Fetched { tables: fetching.tables })
}

/// Distinct keys shard by shard, and where each one's begin and all end.
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

impl Work for Fetching {
    fn next(&mut self, shard: usize, _block: usize) -> Option<Result<(Vec<u8>, usize)>> {
        let is_left = |part: &Part| part.next[shard] < part.bounds[shard + 1];
        let wanted = self.parts.iter().position(is_left)?;
        let part = &mut self.parts[wanted];
        let first = part.next[shard];
        let end = part.bounds[shard + 1].min(first + self.block_keys);
        part.next[shard] = end;
        self.blocks.push((wanted, first));
        Some(Ok((part.asking.frame(&self.tables[wanted].keys[first..end]), end - first)))
    }

    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String> {
        let (wanted, first) = self.blocks[block];
        self.parts[wanted].asking.check(head)?;
        let dim = self.parts[wanted].asking.dim;
        let numbers =
            head.encoding.numbers(rows, head.count as usize * dim).ok_or("rows of another length")?;
        let first = (first + head.first as usize) * dim;
        self.tables[wanted].rows[first..][..numbers.len()].copy_from_slice(&numbers);
        Ok(())
    }

    fn done(&mut self, _block: usize, _payload: &[u8]) -> std::result::Result<(), String> {
        Err("an answer without rows".to_owned())
    }
}
