//! The kernels for 128-bit registers of ARM, with and without instructions for dot products.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Hit;
use crate::block::{BLOCK_ROWS, Block, Line, TILE_ROWS, TILES};
use crate::query::Query;

/// Rows of a register of sums, and of 16 bytes of a line.
const ROWS: usize = 4;
/// Registers of a line.
const QUARTERS: usize = TILE_ROWS / ROWS;

/// Scores the rows of a block: a product of two values fits in 16 bits, and pairs of them are added up in 32.
#[target_feature(enable = "neon")]
pub fn scan<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    let fours = users.map(|user| &user.fours[..block.groups()]);
    hits.iter_mut().for_each(|hit| hit.mask = 0);
    for first in (0..BLOCK_ROWS).step_by(ROWS) {
        let mut sums = [[vdupq_n_s32(0); 2]; N];
        for (group, line) in block.tile(first / TILE_ROWS).iter().enumerate() {
            let rows = load(line, first % TILE_ROWS / ROWS);
            for (sums, fours) in sums.iter_mut().zip(fours) {
                let four = vreinterpret_s8_s32(vdup_n_s32(fours[group]));
                sums[0] = vpadalq_s16(sums[0], vmull_s8(vget_low_s8(rows), four));
                sums[1] = vpadalq_s16(sums[1], vmull_s8(vget_high_s8(rows), four));
            }
        }
        for ((sums, floor), hit) in sums.iter().zip(floors).zip(hits.iter_mut()) {
            report(block, first, vpaddq_s32(sums[0], sums[1]), *floor, hit);
        }
    }
}

/// Scores the rows of a block, with dot products.
#[target_feature(enable = "neon,dotprod")]
pub fn scan_dot<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    let fours = users.map(|user| &user.fours[..block.groups()]);
    hits.iter_mut().for_each(|hit| hit.mask = 0);
    for tile in 0..TILES {
        let mut sums = [[vdupq_n_s32(0); QUARTERS]; N];
        for (group, line) in block.tile(tile).iter().enumerate() {
            let rows = [load(line, 0), load(line, 1), load(line, 2), load(line, 3)];
            for (sums, fours) in sums.iter_mut().zip(fours) {
                let four = vreinterpretq_s8_s32(vdupq_n_s32(fours[group]));
                for (sum, rows) in sums.iter_mut().zip(rows) {
                    *sum = dot(*sum, rows, four);
                }
            }
        }
        for ((sums, floor), hit) in sums.iter().zip(floors).zip(hits.iter_mut()) {
            for (quarter, sum) in sums.iter().enumerate() {
                report(block, tile * TILE_ROWS + quarter * ROWS, *sum, *floor, hit);
            }
        }
    }
}

/// Adds to each sum the products of four bytes. Stable Rust has no function for this instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sum: int32x4_t, rows: int8x16_t, four: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes registers alone, and the caller has seen that the processor has it.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {rows:v}.16b, {four:v}.16b",
            sum = inout(vreg) sum, rows = in(vreg) rows, four = in(vreg) four,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Returns the signed values of four rows of a line.
#[inline]
#[target_feature(enable = "neon")]
fn load(line: &Line, quarter: usize) -> int8x16_t {
    // SAFETY: a line has 64 bytes, and the slice is checked to hold 16.
    let bytes = unsafe { vld1q_u8(line.0[quarter * 16..][..16].as_ptr()) };
    vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)))
}

#[inline]
#[target_feature(enable = "neon")]
fn report(block: &Block, first: usize, sum: int32x4_t, floor: f32, hit: &mut Hit) {
    // SAFETY: the slice is checked to hold 4 scales.
    let scales = unsafe { vld1q_f32(block.scales[first..][..ROWS].as_ptr()) };
    let scores = vmulq_f32(vcvtq_f32_s32(sum), scales);
    let reach = vcgeq_f32(scores, vdupq_n_f32(floor));
    // SAFETY: four bits are read from an array of four.
    let bits = vandq_u32(reach, unsafe { vld1q_u32([1, 2, 4, 8].as_ptr()) });
    let mask = vaddvq_u32(bits);
    if mask != 0 {
        hit.mask |= u64::from(mask) << first;
        // SAFETY: the slice is checked to have room for 4 scores.
        unsafe { vst1q_f32(hit.scores[first..][..ROWS].as_mut_ptr(), scores) };
    }
}
