//! Plan: which rows of a version are written where they are, which leave their cells, and which arrive.

use crate::block::BLOCK_ROWS;
use crate::blocks::{Blocks, ROWS_MAX};
use crate::changes::Changes;
use crate::error::{Result, ScanError};
use crate::positions::{Move, NOWHERE};

/// A plan.
#[derive(Debug)]
pub struct Plan {
    /// Rows that keep their place: position, index among the changes.
    pub writes: Vec<(u32, u32)>,
    /// The turnover of each cell.
    pub cells: Vec<Turnover>,
    /// Keys without a row from now on.
    pub removed: Vec<Move>,
}

/// Rows that leave a cell, and rows that arrive in it.
#[derive(Debug, Clone, Default)]
pub struct Turnover {
    /// The indices of rows that leave, in ascending order.
    pub holes: Vec<usize>,
    /// Rows that arrive.
    pub arrivals: Vec<Arrival>,
}

/// A row that arrives in a cell.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Its index among the changes.
    pub at: u32,
    /// Its mixed key.
    pub mixed: u64,
    /// Its position before, or `NOWHERE`.
    pub from: u32,
}

impl Plan {
    /// Plans changes; `homes` are the cells of rows that are new or differ.
    pub fn new(blocks: &Blocks, changes: &Changes<'_>, homes: &[u32]) -> Result<Self> {
        let cells = vec![Turnover::default(); blocks.layout.cells.len()];
        let (mut plan, mut rows) = (Self { writes: Vec::new(), cells, removed: Vec::new() }, blocks.len());
        for change in changes.in_order()? {
            let (mixed, at) = (change.mixed, change.at);
            let (from, home) = (blocks.find(mixed, changes.key(at)), homes.get(at as usize));
            let cell = from.map(|from| blocks.at(from).0.cell);
            if home.is_some() && cell == home.copied() {
                plan.writes.extend(from.map(|from| (from, at)));
                continue;
            }
            if let Some(from) = from {
                let (block, slot) = blocks.at(from);
                plan.cells[block.cell as usize].holes.push(block.place as usize * BLOCK_ROWS + slot);
                rows -= 1;
            }
            let from = from.unwrap_or(NOWHERE);
            if let Some(&home) = home {
                plan.cells[home as usize].arrivals.push(Arrival { at, mixed, from });
                rows += 1;
            } else if from != NOWHERE {
                plan.removed.push(Move { mixed, from, to: NOWHERE });
            }
        }
        plan.cells.iter_mut().for_each(|turnover| turnover.holes.sort_unstable());
        if rows > ROWS_MAX { Err(ScanError::Full { rows_max: ROWS_MAX }) } else { Ok(plan) }
    }
}
