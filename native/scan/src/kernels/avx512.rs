//! The kernel for AVX-512 with VNNI: four users by 64 rows are 16 registers of sums.

use std::arch::x86_64::*;

use super::Hit;
use crate::block::{Block, TILE_ROWS, TILES};
use crate::query::Query;

/// Scores the rows of a block.
#[target_feature(enable = "avx512f,avx512vnni")]
pub fn scan<const N: usize>(block: &Block, users: [&Query; N], floors: &[f32; N], hits: &mut [Hit; N]) {
    let groups = block.groups();
    let tiles = [block.tile(0), block.tile(1), block.tile(2), block.tile(3)];
    let mut fours = [&users[0].fours[..groups]; N];
    for (fours, user) in fours.iter_mut().zip(users) {
        *fours = &user.fours[..groups];
    }
    let mut sums = [[_mm512_setzero_si512(); TILES]; N];
    for (sums, user) in sums.iter_mut().zip(users) {
        *sums = [_mm512_set1_epi32(user.start); TILES];
    }
    for group in 0..groups {
        let mut lines = [_mm512_setzero_si512(); TILES];
        for (line, tile) in lines.iter_mut().zip(tiles) {
            // SAFETY: a line has 64 bytes, aligned to 64.
            *line = unsafe { _mm512_load_si512(tile[group].0.as_ptr().cast()) };
        }
        for (sums, fours) in sums.iter_mut().zip(fours) {
            let four = _mm512_set1_epi32(fours[group]);
            for (sum, line) in sums.iter_mut().zip(lines) {
                *sum = _mm512_dpbusd_epi32(*sum, line, four);
            }
        }
    }
    for ((sums, floor), hit) in sums.iter().zip(floors).zip(hits) {
        report(block, sums, *floor, hit);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn report(block: &Block, sums: &[__m512i; TILES], floor: f32, hit: &mut Hit) {
    let mut scores = [_mm512_setzero_ps(); TILES];
    let mut mask = 0;
    for (tile, (score, sum)) in scores.iter_mut().zip(sums).enumerate() {
        // SAFETY: 16 scales from the first of each tile on are within the 64.
        let scales = unsafe { _mm512_loadu_ps(block.scales[tile * TILE_ROWS..][..TILE_ROWS].as_ptr()) };
        *score = _mm512_mul_ps(_mm512_cvtepi32_ps(*sum), scales);
        let reach = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(*score, _mm512_set1_ps(floor));
        mask |= u64::from(reach) << (tile * TILE_ROWS);
    }
    hit.mask = mask;
    if mask != 0 {
        for (score, hits) in scores.iter().zip(hit.scores.as_chunks_mut::<TILE_ROWS>().0) {
            // SAFETY: there is room for 16 scores.
            unsafe { _mm512_storeu_ps(hits.as_mut_ptr(), *score) };
        }
    }
}
