//! Candidates: the rows that may be among a user's best, given what was scanned so far.
//!
//! A candidate is known by a lower bound of its exact score. The floor is at most the k-th highest exact score, so a row
//! whose upper bound is below the floor is not among the best. If bounds cannot part the candidates, their exact scores
//! do. So memory is bounded, and the result exact, whatever the vectors are.

use crate::block::BLOCK_ROWS;
use crate::blocks::Blocks;
use crate::kernels::Hit;
use crate::query::Query;

/// Candidates that are prefetched ahead of their exact scores.
const AHEAD: usize = 8;

/// The candidates of one user.
#[derive(Debug)]
pub struct Candidates {
    k: usize,
    /// Rows with an upper bound below it are not among the best; in units of the query.
    pub floor: f32,
    /// Lower bound, highest first, and position.
    rough: Vec<u64>,
    /// Exact score, highest first, and key; the best k.
    settled: Vec<u128>,
}

/// A number whose order is that of scores, highest first.
fn rank(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { !bits ^ 1 << 31 } else { bits }
}

fn score_of(rank: u32) -> f32 {
    f32::from_bits(if rank >> 31 == 0 { !rank ^ 1 << 31 } else { rank })
}

impl Candidates {
    /// No candidates of the best `k`, at least one.
    pub fn new(k: usize) -> Self {
        Self { k, floor: f32::NEG_INFINITY, rough: Vec::new(), settled: Vec::new() }
    }

    fn room(&self) -> usize {
        3 * self.k + 4 * BLOCK_ROWS
    }

    /// Adds rows of a block.
    pub fn add(&mut self, hit: &Hit, mut mask: u64, id: u32, blocks: &Blocks, query: &Query) {
        let error = query.error(blocks.norms[id as usize]);
        while mask != 0 {
            let slot = mask.trailing_zeros();
            mask &= mask - 1;
            let low = hit.scores[slot as usize] - error;
            self.rough.push(u64::from(rank(low)) << 32 | u64::from(id * BLOCK_ROWS as u32 + slot));
        }
        if self.rough.len() + BLOCK_ROWS > self.room() {
            self.narrow(blocks, query);
        }
    }

    /// Raises the floor and drops candidates below it.
    fn narrow(&mut self, blocks: &Blocks, query: &Query) {
        let (_, &mut worst, _) = self.rough.select_nth_unstable(self.k - 1);
        self.floor = self.floor.max(score_of((worst >> 32) as u32));
        let (floor, mut at) = (self.floor, 0);
        self.rough.retain(|&candidate| {
            at += 1;
            let norm = blocks.norms[candidate as u32 as usize / BLOCK_ROWS];
            at <= self.k || score_of((candidate >> 32) as u32) + 2.0 * query.error(norm) >= floor
        });
        if self.rough.len() > self.room() / 2 + self.k / 2 {
            self.settle(blocks, query);
        }
    }

    /// Computes the exact scores of all candidates and keeps the best.
    fn settle(&mut self, blocks: &Blocks, query: &Query) {
        for at in 0..self.rough.len() {
            if let Some(&candidate) = self.rough.get(at + 2 * AHEAD) {
                let (block, slot) = blocks.at(candidate as u32);
                block.prefetch_row_head(slot);
            }
            if let Some(&candidate) = self.rough.get(at + AHEAD) {
                let (block, slot) = blocks.at(candidate as u32);
                block.prefetch_row(slot);
            }
            let (block, slot) = blocks.at(self.rough[at] as u32);
            let score = block.score(slot, &query.numbers);
            self.settled.push(u128::from(rank(score)) << 64 | u128::from(block.keys[slot]));
        }
        self.rough.clear();
        if self.settled.len() >= self.k {
            let (_, &mut worst, _) = self.settled.select_nth_unstable(self.k - 1);
            self.settled.truncate(self.k);
            self.floor = self.floor.max(score_of((worst >> 64) as u32) / query.unit);
        }
    }

    /// Takes over the candidates of other rows.
    pub fn join(&mut self, other: Self) {
        self.floor = self.floor.max(other.floor);
        self.rough.extend(other.rough);
        self.settled.extend(other.settled);
    }

    /// The best, in order: keys and exact scores.
    pub fn best(mut self, blocks: &Blocks, query: &Query) -> impl Iterator<Item = (u64, f32)> {
        if self.rough.len() > self.k {
            self.narrow(blocks, query);
        }
        self.settle(blocks, query);
        self.settled.sort_unstable();
        self.settled.into_iter().map(|candidate| (candidate as u64, score_of((candidate >> 64) as u32)))
    }
}
