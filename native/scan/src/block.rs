//! Block: 64 rows in the layout of the kernels.
//!
//! Values are bytes of `value + 128`, because the kernels multiply unsigned by signed bytes. A line holds four values
//! of each of 16 rows. A tile is the lines of 16 rows, so a row is in `dim / 4` lines one after the other.

use crate::kernels::prefetch;

/// Rows of a block.
pub const BLOCK_ROWS: usize = 64;
/// Rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Tiles of a block.
pub const TILES: usize = BLOCK_ROWS / TILE_ROWS;
/// Partial sums of an exact score.
const LANES: usize = 16;

/// A cache line of values.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// A block of rows.
#[derive(Debug, Clone)]
pub struct Block {
    /// The cell that it belongs to.
    pub cell: u32,
    /// Its index in the cell.
    pub place: u32,
    lines: Box<[Line]>,
    /// The factor of each row.
    pub scales: [f32; BLOCK_ROWS],
    /// The key of each row.
    pub keys: [u64; BLOCK_ROWS],
}

impl Block {
    /// A block without rows.
    pub fn new(dim: usize, cell: u32, place: u32) -> Self {
        let lines = vec![Line([128; 64]); TILES * dim / 4].into();
        Self { cell, place, lines, scales: [0.0; BLOCK_ROWS], keys: [0; BLOCK_ROWS] }
    }

    /// Lines of a tile.
    #[inline(always)]
    pub fn groups(&self) -> usize {
        self.lines.len() / TILES
    }

    /// The lines of a tile.
    #[inline(always)]
    pub fn tile(&self, tile: usize) -> &[Line] {
        let groups = self.groups();
        &self.lines[tile * groups..][..groups]
    }

    /// Prefetches all but the values and keys.
    #[inline(always)]
    pub fn prefetch_head(&self) {
        prefetch(&self.lines);
        self.scales.iter().step_by(64 / size_of::<f32>()).for_each(prefetch);
    }

    /// Prefetches a share of the values. All at once would keep the processor from its other loads.
    #[inline(always)]
    pub fn prefetch_values(&self, share: usize, shares: usize) {
        let lines = self.lines.len();
        self.lines[lines * share / shares..lines * (share + 1) / shares].iter().for_each(prefetch);
    }

    /// Prefetches what all rows have in common, and the scale and key of one.
    #[inline(always)]
    pub fn prefetch_row_head(&self, slot: usize) {
        prefetch(&self.lines);
        prefetch(&self.scales[slot]);
        prefetch(&self.keys[slot]);
    }

    /// Prefetches the values of a row.
    #[inline(always)]
    pub fn prefetch_row(&self, slot: usize) {
        self.tile(slot / TILE_ROWS).iter().for_each(prefetch);
    }

    /// Writes a row.
    pub fn put(&mut self, slot: usize, key: u64, values: &[i8], scale: f32) {
        let (groups, within) = (self.groups(), slot % TILE_ROWS * 4);
        let lines = &mut self.lines[slot / TILE_ROWS * groups..][..groups];
        for (line, four) in lines.iter_mut().zip(values.chunks_exact(4)) {
            for (byte, value) in line.0[within..within + 4].iter_mut().zip(four) {
                *byte = *value as u8 ^ 128;
            }
        }
        self.keys[slot] = key;
        self.scales[slot] = scale;
    }

    /// Reads the values of a row.
    pub fn read(&self, slot: usize, values: &mut [i8]) {
        let within = slot % TILE_ROWS * 4;
        for (line, four) in self.tile(slot / TILE_ROWS).iter().zip(values.chunks_exact_mut(4)) {
            for (value, byte) in four.iter_mut().zip(&line.0[within..within + 4]) {
                *value = (byte ^ 128) as i8;
            }
        }
    }

    /// No less than the length of any row's vector, those of former rows included.
    pub fn norm(&self) -> f32 {
        let mut largest = 0.0_f32;
        for tile in 0..TILES {
            let mut squares = [0_i32; TILE_ROWS];
            for line in self.tile(tile) {
                for (square, four) in squares.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    *square += four
                        .map(|byte| (i32::from(byte) - 128) * (i32::from(byte) - 128))
                        .iter()
                        .sum::<i32>();
                }
            }
            for (square, scale) in squares.iter().zip(&self.scales[tile * TILE_ROWS..]) {
                largest = largest.max((*square as f32).sqrt() * scale);
            }
        }
        largest * 1.000_001
    }

    /// The exact score of a row: its scale times the inner product in float32. Value `d` is summed in lane `d % 16`,
    /// and lanes are summed as a tree, so every processor gives the same bits.
    pub fn score(&self, slot: usize, user: &[f32]) -> f32 {
        let within = slot % TILE_ROWS * 4;
        let mut lanes = [0.0_f32; LANES];
        for (lines, numbers) in self.tile(slot / TILE_ROWS).chunks(LANES / 4).zip(user.chunks(LANES)) {
            let mut values = [0_i32; LANES];
            for (line, four) in lines.iter().zip(values.as_chunks_mut::<4>().0) {
                for (value, byte) in four.iter_mut().zip(&line.0[within..within + 4]) {
                    *value = i32::from(*byte) - 128;
                }
            }
            if let Ok(numbers) = <&[f32; LANES]>::try_from(numbers) {
                for ((lane, value), number) in lanes.iter_mut().zip(values).zip(numbers) {
                    *lane += value as f32 * number;
                }
            } else {
                for ((lane, value), number) in lanes.iter_mut().zip(values).zip(numbers) {
                    *lane += value as f32 * number;
                }
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        // The sum of a zero of any sign and 0 is 0, so that equal scores have equal bits.
        lanes[0] * self.scales[slot] + 0.0
    }
}
