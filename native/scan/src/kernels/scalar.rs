//! The kernel in plain Rust, which the others must equal.

use super::Hit;
use crate::block::{Block, TILE_ROWS, TILES};
use crate::query::Query;

/// Scores the rows of a block.
pub fn scan<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    for ((user, floor), hit) in users.iter().zip(floors).zip(hits) {
        hit.mask = 0;
        for tile in 0..TILES {
            let mut sums = [user.start; TILE_ROWS];
            for (line, four) in block.tile(tile).iter().zip(&user.fours) {
                let four = four.to_le_bytes().map(|value| i32::from(value as i8));
                for (sum, bytes) in sums.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    let products = [0, 1, 2, 3].map(|at| i32::from(bytes[at]) * four[at]);
                    *sum += products[0] + products[1] + products[2] + products[3];
                }
            }
            for (slot, sum) in (tile * TILE_ROWS..).zip(sums) {
                hit.scores[slot] = sum as f32 * block.scales[slot];
                hit.mask |= u64::from(hit.scores[slot] >= *floor) << slot;
            }
        }
    }
}
