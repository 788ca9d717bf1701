//! Rows: floats addressed by a row id, in memory that never moves.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Reserved;

/// Row ids are below this.
pub const ROWS_MAX: usize = 1 << 31;
/// Rows a part takes from the table at once.
pub const CHUNK_ROWS: u32 = 16;
const POPULATED_BYTES: usize = 1 << 21;

/// The rows of one table. Row 0 is never used: it stands for no row.
pub struct Rows {
    stride: usize,
    floats: Reserved,
    next: AtomicU32,
    rows_max: u32,
}

impl Rows {
    /// Reserve room for rows of `stride` floats each (the embedding, then the optimizer's state).
    pub fn new(stride: usize, rows_max: usize) -> io::Result<Self> {
        assert!((1..=ROWS_MAX).contains(&rows_max), "rows_max is {rows_max}");
        // Even strides keep every row on 8 bytes, so that it can be copied in words.
        let stride = stride.next_multiple_of(2);
        Ok(Self {
            stride,
            floats: Reserved::new(rows_max * stride * 4)?,
            next: AtomicU32::new(CHUNK_ROWS),
            rows_max: rows_max as u32,
        })
    }

    /// A chunk of rows no one else has; None when the table is full.
    pub fn take_chunk(&self) -> Option<std::ops::Range<u32>> {
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next <= self.rows_max - CHUNK_ROWS).then_some(next + CHUNK_ROWS)
        });
        let begin = taken.ok()?;
        let at = begin as usize * self.stride * 4;
        let bytes = CHUNK_ROWS as usize * self.stride * 4;
        if at / POPULATED_BYTES != (at + bytes) / POPULATED_BYTES {
            let ahead = (at + bytes).next_multiple_of(POPULATED_BYTES);
            if ahead + POPULATED_BYTES <= self.floats.bytes() {
                self.floats.populate(ahead, POPULATED_BYTES);
            }
        }
        Some(begin..begin + CHUNK_ROWS)
    }

    /// Rows handed out in chunks so far.
    pub fn taken(&self) -> usize {
        self.next.load(Ordering::Relaxed) as usize
    }

    /// Bytes of a row, padding included.
    pub fn row_bytes(&self) -> usize {
        self.stride * 4
    }

    #[inline(always)]
    fn words(&self, row: u32) -> &[AtomicU64] {
        debug_assert!((row as usize) < self.rows_max as usize);
        // SAFETY: the row is inside the column, 8-byte aligned by its even stride, and only ever accessed as atomics.
        unsafe {
            let begin = self.floats.begin().add(row as usize * self.stride * 4).cast::<AtomicU64>();
            std::slice::from_raw_parts(begin, self.stride / 2)
        }
    }

    /// Where a row's floats are, to prefetch them.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.words(row).as_ptr().cast()
    }

    /// Copy the first floats of a row; torn while a writer is at work, which the line's head tells.
    #[inline(always)]
    pub fn read(&self, row: u32, into: &mut [f32]) {
        let (words, whole) = (self.words(row), into.len() / 2);
        let mut pairs = into.chunks_exact_mut(2);
        for (pair, word) in (&mut pairs).zip(words) {
            let bits = word.load(Ordering::Relaxed);
            pair[0] = f32::from_bits(bits as u32);
            pair[1] = f32::from_bits((bits >> 32) as u32);
        }
        if let [last] = pairs.into_remainder() {
            *last = f32::from_bits(words[whole].load(Ordering::Relaxed) as u32);
        }
    }

    /// Write the first floats of a row; an odd one is padded with zero.
    #[inline(always)]
    pub fn write(&self, row: u32, floats: &[f32]) {
        for (pair, word) in floats.chunks(2).zip(self.words(row)) {
            let second = pair.get(1).copied().unwrap_or(0.0);
            word.store(u64::from(pair[0].to_bits()) | u64::from(second.to_bits()) << 32, Ordering::Relaxed);
        }
    }
}
