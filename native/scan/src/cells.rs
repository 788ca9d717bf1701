//! Cells: directions that divide rows into groups of similar ones, so that a search may look into a few groups only.
//!
//! The centroids are vectors of length 1, and rows of blocks of their own. The cell of a row is the result of an exact
//! search among them, as are the cells that are nearest to a user.

use crate::blocks::Blocks;
use crate::changes::Changes;
use crate::error::{Result, ScanError};
use crate::row::{Row, encode};
use crate::search::{Search, Top};

/// The maximum number of cells.
pub const CELLS_MAX: usize = 1 << 14;
/// Rows whose cells are searched at once.
const ROWS_AT_ONCE: usize = 4096;

/// The centroids of cells.
#[derive(Debug, Clone)]
pub struct Cells {
    centroids: Blocks,
}

/// How centroids are trained.
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// The number of cells.
    pub cells: usize,
    /// How often rows are assigned and centroids moved.
    pub rounds: usize,
    /// The same seed and vectors give the same centroids.
    pub seed: u64,
}

impl Cells {
    /// Cells with these centroids, whose values and scales are those of rows.
    ///
    /// # Errors
    /// If there are no centroids or too many, or they are not valid rows.
    pub fn new(dim: usize, values: &[i8], scales: &[f32]) -> Result<Self> {
        if scales.is_empty() || scales.len() > CELLS_MAX {
            return Err(ScanError::Argument(format!(
                "{} cells; there may be 1 to {CELLS_MAX}",
                scales.len()
            )));
        }
        let keys: Vec<u64> = (0..scales.len() as u64).collect();
        let changes = Changes { keys: &keys, values, scales, removed: &[] };
        Ok(Self { centroids: Blocks::new(dim)?.apply(&changes)? })
    }

    /// Trains centroids on a sample of rows' vectors by spherical k-means. The result has the same bytes on any
    /// processor.
    ///
    /// # Errors
    /// If the sample is smaller than the number of cells, or a value is not valid.
    pub fn train(dim: usize, sample: &[f32], training: &Training) -> Result<Self> {
        crate::row::check_dim(dim)?;
        let (rows, count) = (sample.len() / dim, training.cells);
        if !sample.len().is_multiple_of(dim) || rows < count {
            let text = format!("{} values for {count} cells; a vector has {dim} values", sample.len());
            return Err(ScanError::Argument(text));
        }
        let mut chance = Chance(training.seed);
        let mut order: Vec<usize> = (0..rows).collect();
        for at in 0..count {
            order.swap(at, at + chance.below(rows - at));
        }
        let vector = |row: usize| &sample[row * dim..][..dim];
        let mut means: Vec<f32> = order[..count].iter().flat_map(|&row| vector(row)).copied().collect();
        let mut cells = Self::of_means(dim, &means)?;
        for _ in 0..training.rounds {
            let homes = cells.homes_of(sample)?;
            let mut sizes = vec![0_usize; count];
            means.fill(0.0);
            for (row, &home) in homes.iter().enumerate() {
                sizes[home as usize] += 1;
                let sums = &mut means[home as usize * dim..][..dim];
                sums.iter_mut().zip(vector(row)).for_each(|(sum, value)| *sum += value);
            }
            for (mean, _) in means.chunks_exact_mut(dim).zip(&sizes).filter(|(_, size)| **size == 0) {
                mean.copy_from_slice(vector(chance.below(rows)));
            }
            cells = Self::of_means(dim, &means)?;
        }
        Ok(cells)
    }

    /// Cells whose centroids have the directions of vectors.
    fn of_means(dim: usize, means: &[f32]) -> Result<Self> {
        let (mut values, mut scales) = (vec![0; means.len()], Vec::with_capacity(means.len() / dim));
        for (mean, values) in means.chunks_exact(dim).zip(values.chunks_exact_mut(dim)) {
            let scale = encode(mean, values)?;
            let squares: i32 = values.iter().map(|&value| i32::from(value) * i32::from(value)).sum();
            scales.push(if scale == 0.0 { 0.0 } else { 1.0 / (squares as f32).sqrt() });
        }
        Self::new(dim, &values, &scales)
    }

    /// The number of values of a vector.
    pub fn dim(&self) -> usize {
        self.centroids.dim()
    }

    /// The number of cells.
    pub fn count(&self) -> usize {
        self.centroids.len()
    }

    /// The centroid of a cell.
    pub fn centroid(&self, cell: u32) -> Option<Row> {
        self.centroids.get(cell.into())
    }

    /// The cells of rows.
    pub(crate) fn homes(&self, values: &[i8], scales: &[f32]) -> Result<Vec<u32>> {
        let (dim, mut homes) = (self.dim(), Vec::with_capacity(scales.len()));
        for (values, scales) in values.chunks(ROWS_AT_ONCE * dim).zip(scales.chunks(ROWS_AT_ONCE)) {
            // The scale does not matter to the direction.
            let vectors = values
                .chunks_exact(dim)
                .zip(scales)
                .flat_map(|(row, _)| row.iter().map(|&value| value.into()));
            homes.extend(self.homes_of(&vectors.collect::<Vec<f32>>())?);
        }
        Ok(homes)
    }

    /// The cells of vectors.
    fn homes_of(&self, vectors: &[f32]) -> Result<Vec<u32>> {
        let mut homes = Vec::with_capacity(vectors.len() / self.dim());
        for vectors in vectors.chunks(ROWS_AT_ONCE * self.dim()) {
            homes.extend(self.nearest(vectors, 1)?.keys.iter().map(|&cell| cell as u32));
        }
        Ok(homes)
    }

    /// The cells that are nearest to each vector.
    pub(crate) fn nearest(&self, vectors: &[f32], count: usize) -> Result<Top> {
        self.centroids.search(vectors, &Search::new(count))
    }
}

/// Random numbers from a seed: SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ mixed >> 31) * bound as u128) >> 64) as usize
    }
}
