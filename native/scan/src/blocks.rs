//! Blocks: one version of a library. A new version shares the blocks that it does not change.

use std::sync::Arc;

use crate::block::{BLOCK_ROWS, Block};
use crate::cells::{Cells, Training};
use crate::changes::Changes;
use crate::error::Result;
use crate::layout::Layout;
use crate::plan::{Plan, Turnover};
use crate::positions::{Move, Positions, mix};
use crate::row::{DIM_MAX, Row, check_dim};

/// The maximum number of rows.
pub const ROWS_MAX: usize = 1 << 26;
/// Rows on which each cell is trained.
const ROWS_A_CELL: usize = 32;

/// A version of a library. To clone it copies pointers.
#[derive(Debug, Clone)]
pub struct Blocks {
    dim: usize,
    blocks: Vec<Arc<Block>>,
    /// For each block, no less than the length of any of its vectors.
    pub(crate) norms: Vec<f32>,
    pub(crate) layout: Layout,
    positions: Positions,
    cells: Option<Arc<Cells>>,
}

impl Blocks {
    /// A library without rows, whose vectors have `dim` values.
    ///
    /// # Errors
    /// If `dim` is not a multiple of 4, from 4 to `DIM_MAX`.
    pub fn new(dim: usize) -> Result<Self> {
        check_dim(dim)?;
        Ok(Self::of(dim, None))
    }

    /// A library without rows, whose rows will be in the blocks of their cells.
    pub fn with_cells(cells: Arc<Cells>) -> Self {
        Self::of(cells.dim(), Some(cells))
    }

    /// The same rows in cells that are trained on some of them. Which rows these are depends on the keys alone, so the
    /// same rows give the same cells.
    ///
    /// # Errors
    /// As those of `Cells::train`.
    pub fn in_cells(&self, training: &Training) -> Result<Self> {
        let (mut rows, dim) = (Vec::with_capacity(self.len()), self.dim);
        for (id, mask) in self.layout.cells.iter().flat_map(|cell| cell.blocks()) {
            let slots = (0..BLOCK_ROWS).filter(|slot| mask >> slot & 1 == 1);
            rows.extend(slots.map(|slot| (mix(self.block(id).keys[slot]), id, slot)));
        }
        let count = rows.len().min(training.cells.saturating_mul(ROWS_A_CELL));
        if count < rows.len() {
            rows.select_nth_unstable(count);
        }
        rows[..count].sort_unstable();
        let (mut keys, mut scales) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        let mut values = vec![0; rows.len() * dim];
        for (&(_, id, slot), values) in rows.iter().zip(values.chunks_exact_mut(dim)) {
            let block = self.block(id);
            block.read(slot, values);
            keys.push(block.keys[slot]);
            scales.push(block.scales[slot]);
        }
        let number = |(at, &value): (usize, &i8)| f32::from(value) * scales[at / dim];
        let sample: Vec<f32> = values[..count * dim].iter().enumerate().map(number).collect();
        let cells = Arc::new(Cells::train(dim, &sample, training)?);
        Self::with_cells(cells).apply(&Changes {
            keys: &keys,
            values: &values,
            scales: &scales,
            removed: &[],
        })
    }

    fn of(dim: usize, cells: Option<Arc<Cells>>) -> Self {
        let layout = Layout::new(cells.as_ref().map_or(1, |cells| cells.count()));
        Self { dim, blocks: Vec::new(), norms: Vec::new(), layout, positions: Positions::default(), cells }
    }

    /// The number of values of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.layout.rows()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cells, if rows are in the blocks of their cells.
    pub fn cells(&self) -> Option<&Cells> {
        self.cells.as_deref()
    }

    /// The bytes of memory of this version, including those that it shares with other versions.
    pub fn bytes(&self) -> usize {
        let block = size_of::<Block>() + self.dim * BLOCK_ROWS + size_of::<Arc<Block>>() + size_of::<f32>();
        self.blocks.len() * block + self.positions.bytes()
    }

    /// The row of a key.
    pub fn get(&self, key: u64) -> Option<Row> {
        let (block, slot) = self.at(self.find(mix(key), key)?);
        let mut values = vec![0; self.dim];
        block.read(slot, &mut values);
        Some(Row { values, scale: block.scales[slot] })
    }

    /// The position of a key, which is given mixed too.
    pub(crate) fn find(&self, mixed: u64, key: u64) -> Option<u32> {
        self.positions.find(mixed, |position| {
            let (block, slot) = self.at(position);
            block.keys[slot] == key
        })
    }

    /// The block of a position, and the index of the row in it.
    #[inline(always)]
    pub(crate) fn at(&self, position: u32) -> (&Block, usize) {
        (&self.blocks[position as usize / BLOCK_ROWS], position as usize % BLOCK_ROWS)
    }

    /// A block.
    #[inline(always)]
    pub(crate) fn block(&self, id: u32) -> &Block {
        &self.blocks[id as usize]
    }

    /// The next version, which has the changes. This version stays as it is.
    ///
    /// # Errors
    /// If arrays do not fit each other, a scale is negative, not finite or too large, a key is given twice, or there
    /// would be too many rows.
    pub fn apply(&self, changes: &Changes<'_>) -> Result<Self> {
        changes.check(self.dim)?;
        let homes = match &self.cells {
            Some(cells) => cells.homes(changes.values)?,
            None => vec![0; changes.keys.len()],
        };
        let Plan { writes, mut cells, removed: mut moves } = Plan::new(self, changes, &homes)?;
        let (mut new, dim) = (self.clone(), self.dim);
        let changed = |_: &Self, at: u32, values: &mut [i8]| {
            let at = at as usize;
            values.copy_from_slice(&changes.values[at * dim..][..dim]);
            (changes.keys[at], changes.scales[at])
        };
        new.put(writes, changed);
        for (cell, turnover) in cells.iter_mut().enumerate() {
            if !turnover.holes.is_empty() || !turnover.arrivals.is_empty() {
                new.turn_over(cell, turnover, changed, &mut moves);
            }
        }
        new.positions.apply(moves);
        Ok(new)
    }

    /// Lets rows of a cell leave and others arrive.
    fn turn_over(
        &mut self,
        cell: usize,
        turnover: &Turnover,
        changed: impl Fn(&Self, u32, &mut [i8]) -> (u64, f32),
        moves: &mut Vec<Move>,
    ) {
        let Turnover { holes, arrivals } = turnover;
        let known = self.layout.cells[cell].ids.len();
        let steps = self.layout.change(cell, holes, arrivals.len());
        for (place, &id) in self.layout.cells[cell].ids.iter().enumerate().skip(known) {
            let block = Arc::new(Block::new(self.dim, cell as u32, place as u32));
            if id as usize == self.blocks.len() {
                self.blocks.push(block);
                self.norms.push(0.0);
            } else {
                self.blocks[id as usize] = block;
            }
        }
        let places = arrivals.iter().zip(&steps.places);
        moves.extend(places.clone().map(|(row, &to)| Move { mixed: row.mixed, from: row.from, to }));
        self.put(places.map(|(row, &to)| (to, row.at)).collect(), changed);
        moves.extend(steps.copies.iter().map(|&(to, from)| {
            let (block, slot) = self.at(from);
            Move { mixed: mix(block.keys[slot]), from, to }
        }));
        self.put(steps.copies, |new, from, values| {
            let (block, slot) = new.at(from);
            block.read(slot, values);
            (block.keys[slot], block.scales[slot])
        });
        let nothing = Arc::new(Block::new(0, 0, 0));
        for id in steps.freed {
            self.blocks[id as usize] = nothing.clone();
            self.norms[id as usize] = 0.0;
        }
    }

    /// Writes rows, each to a position from what `read` gives for it: values, key and scale. Only the blocks of these
    /// positions are copied.
    fn put(&mut self, mut rows: Vec<(u32, u32)>, read: impl Fn(&Self, u32, &mut [i8]) -> (u64, f32)) {
        let mut values = [0; DIM_MAX];
        let values = &mut values[..self.dim];
        rows.sort_unstable();
        for of_block in
            rows.chunk_by(|one, other| one.0 as usize / BLOCK_ROWS == other.0 as usize / BLOCK_ROWS)
        {
            let id = of_block[0].0 as usize / BLOCK_ROWS;
            for &(to, from) in of_block {
                let (key, scale) = read(self, from, values);
                let block = Arc::make_mut(&mut self.blocks[id]);
                block.put(to as usize % BLOCK_ROWS, key, values, scale);
            }
            self.norms[id] = self.blocks[id].norm();
        }
    }
}
