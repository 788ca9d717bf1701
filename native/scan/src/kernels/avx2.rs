//! The kernels for 256-bit registers, with and without VNNI: four users by 16 rows are 8 registers of sums.

use std::arch::x86_64::*;

use super::Hit;
use crate::block::{Block, Line, TILE_ROWS, TILES};
use crate::query::Query;

/// Rows of a register of sums.
const ROWS: usize = 8;

/// Scores the rows of a block. `maddubs` adds two products in 16 bits: the magnitudes of rows and the users' values with
/// the rows' signs give at most 128 * 127 * 2, which fits.
#[target_feature(enable = "avx2")]
pub fn scan<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    let mut fours = [&users[0].fours[..block.groups()]; N];
    for (fours, user) in fours.iter_mut().zip(users) {
        *fours = &user.fours[..block.groups()];
    }
    let (offset, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    for tile in 0..TILES {
        let mut sums = [[_mm256_setzero_si256(); 2]; N];
        for (group, line) in block.tile(tile).iter().enumerate() {
            let [low, high] = load(line);
            let (low, high) = (_mm256_xor_si256(low, offset), _mm256_xor_si256(high, offset));
            let (low_size, high_size) = (_mm256_abs_epi8(low), _mm256_abs_epi8(high));
            for (sums, fours) in sums.iter_mut().zip(fours) {
                let four = _mm256_set1_epi32(fours[group]);
                let low = _mm256_maddubs_epi16(low_size, _mm256_sign_epi8(four, low));
                let high = _mm256_maddubs_epi16(high_size, _mm256_sign_epi8(four, high));
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(low, ones));
                sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(high, ones));
            }
        }
        for ((sums, floor), hit) in sums.iter().zip(floors).zip(hits.iter_mut()) {
            report(block, tile, sums, *floor, hit);
        }
    }
}

/// Scores the rows of a block, with VNNI.
#[target_feature(enable = "avx2,avxvnni")]
pub fn scan_vnni<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    let mut fours = [&users[0].fours[..block.groups()]; N];
    for (fours, user) in fours.iter_mut().zip(users) {
        *fours = &user.fours[..block.groups()];
    }
    for tile in 0..TILES {
        let mut sums = [[_mm256_setzero_si256(); 2]; N];
        for (sums, user) in sums.iter_mut().zip(users) {
            *sums = [_mm256_set1_epi32(user.start); 2];
        }
        for (group, line) in block.tile(tile).iter().enumerate() {
            let halves = load(line);
            for (sums, fours) in sums.iter_mut().zip(fours) {
                let four = _mm256_set1_epi32(fours[group]);
                for (sum, half) in sums.iter_mut().zip(halves) {
                    *sum = _mm256_dpbusd_avx_epi32(*sum, half, four);
                }
            }
        }
        for ((sums, floor), hit) in sums.iter().zip(floors).zip(hits.iter_mut()) {
            report(block, tile, sums, *floor, hit);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(line: &Line) -> [__m256i; 2] {
    let half = line.0.as_ptr().cast::<__m256i>();
    // SAFETY: a line is two halves of 32 bytes, aligned to 64.
    unsafe { [_mm256_load_si256(half), _mm256_load_si256(half.add(1))] }
}

#[inline]
#[target_feature(enable = "avx2")]
fn report(block: &Block, tile: usize, sums: &[__m256i; 2], floor: f32, hit: &mut Hit) {
    if tile == 0 {
        hit.mask = 0;
    }
    for (half, sum) in sums.iter().enumerate() {
        let first = tile * TILE_ROWS + half * ROWS;
        // SAFETY: 8 scales from the first on are within the 64.
        let scales = unsafe { _mm256_loadu_ps(block.scales[first..][..ROWS].as_ptr()) };
        let scores = _mm256_mul_ps(_mm256_cvtepi32_ps(*sum), scales);
        let mask = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(scores, _mm256_set1_ps(floor)));
        if mask != 0 {
            hit.mask |= (mask as u64) << first;
            // SAFETY: there is room for 8 scores.
            unsafe { _mm256_storeu_ps(hit.scores[first..][..ROWS].as_mut_ptr(), scores) };
        }
    }
}
