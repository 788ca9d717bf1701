//! Layout: which blocks make up each cell, and where the rows of a new version go. It decides, and moves no row.
//!
//! The rows of a cell are dense: only its last block may have room. Rows that arrive fill the holes of rows that leave,
//! or are appended; the cell's last rows fill holes that remain.

use crate::block::BLOCK_ROWS;

/// The blocks of all cells.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The cells. Without an order by cells, there is one.
    pub cells: Vec<Cell>,
    /// Blocks of no cell.
    free: Vec<u32>,
    /// The number of blocks, with the free ones.
    blocks: u32,
}

/// The blocks of a cell.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// The ids of its blocks, in order.
    pub ids: Vec<u32>,
    /// The number of its rows.
    pub rows: usize,
}

/// How the rows of a cell change places.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Positions of the rows that arrive.
    pub places: Vec<u32>,
    /// Rows that are copied afterwards: to a position, from a position.
    pub copies: Vec<(u32, u32)>,
    /// Blocks that the cell no longer has then.
    pub freed: Vec<u32>,
}

impl Cell {
    /// The position of a row of the cell.
    fn position(&self, at: usize) -> u32 {
        self.ids[at / BLOCK_ROWS] * BLOCK_ROWS as u32 + (at % BLOCK_ROWS) as u32
    }

    /// The cell's blocks, each with a bit for each of its rows.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (u32, u64)> {
        self.ids.iter().enumerate().map(|(place, &id)| {
            let rows = (self.rows - place * BLOCK_ROWS).min(BLOCK_ROWS);
            (id, u64::MAX >> (BLOCK_ROWS - rows))
        })
    }
}

impl Layout {
    /// Cells without rows.
    pub fn new(cells: usize) -> Self {
        Self { cells: vec![Cell::default(); cells], free: Vec::new(), blocks: 0 }
    }

    /// The number of rows of all cells.
    pub fn rows(&self) -> usize {
        self.cells.iter().map(|cell| cell.rows).sum()
    }

    /// Lets rows leave a cell, whose indices in the cell ascend, and others arrive.
    pub fn change(&mut self, cell: usize, holes: &[usize], arrivals: usize) -> Steps {
        let (before, filled) = (self.cells[cell].rows, holes.len().min(arrivals));
        let (after, left) = (before + arrivals - holes.len(), &holes[filled..]);
        while self.cells[cell].ids.len() * BLOCK_ROWS < after {
            let id = self.free.pop().unwrap_or(self.blocks);
            self.blocks += u32::from(id == self.blocks);
            self.cells[cell].ids.push(id);
        }
        let cell = &mut self.cells[cell];
        let appended = before..before + arrivals - filled;
        let last = (after..before).filter(|at| left.binary_search(at).is_err());
        let places = holes[..filled].iter().copied().chain(appended).map(|at| cell.position(at)).collect();
        let copies =
            left.iter().zip(last).map(|(&to, from)| (cell.position(to), cell.position(from))).collect();
        let freed: Vec<u32> = cell.ids.drain(after.div_ceil(BLOCK_ROWS)..).collect();
        cell.rows = after;
        self.free.extend(&freed);
        Steps { places, copies, freed }
    }
}
