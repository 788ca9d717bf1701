//! Rows: the columns addressed by row id (embedding, optimizer state, use), in memory that never moves.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::storage::memory::{HUGE_BYTES, Pages, Reserved};
use crate::storage::near::copy_words;
use crate::storage::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard};

/// Row ids are below this; the bit above marks a removed key.
pub const ROWS_MAX: usize = 1 << 31;
/// One of this many rows is reserved for removed keys.
const SPARE_SHARE: usize = 16;
/// Rows that a part takes from the table, or returns, at once.
pub const CHUNK_ROWS: u32 = 16;

/// A column of rows of whole words, read by anyone and written by the holder of a part's lock. Columns may
/// share memory, each with its own words of every row.
pub struct Column {
    memory: Arc<Reserved>,
    stride: usize,
    begin: usize,
    words: usize,
}

impl Column {
    /// The bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.words * 8
    }

    #[inline(always)]
    fn row(&self, row: u32) -> &[AtomicU64] {
        let at = row as usize * self.stride + self.begin;
        debug_assert!((at + self.words) * 8 <= self.memory.bytes());
        // SAFETY: the row is inside the memory, aligned to 8 bytes as it consists of whole words, and only
        // accessed as atomics.
        unsafe {
            let begin = self.memory.begin().cast::<AtomicU64>().add(at);
            std::slice::from_raw_parts(begin, self.words)
        }
    }

    /// The address of a row, for prefetching; the row may lie after the last.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.memory.begin().wrapping_add((row as usize * self.stride + self.begin) * 8)
    }

    /// Copies out a row of `WORDS` words. The copy is torn if a writer is at work, which the line's head
    /// shows.
    #[inline(always)]
    pub fn read_words<const WORDS: usize>(&self, row: u32, into: &mut [f32]) {
        copy_words::<WORDS>(self.row(row).try_into().expect("rows are so wide"), into);
    }

    /// Copies out a row of floats. The copy is torn if a writer is at work, which the line's head shows.
    #[inline(always)]
    pub fn read_floats(&self, row: u32, into: &mut [f32]) {
        let words = self.row(row);
        debug_assert!(into.len() <= 2 * words.len());
        let mut pairs = into.chunks_exact_mut(2);
        for (pair, word) in (&mut pairs).zip(words) {
            let bits = word.load(Ordering::Relaxed);
            pair[0] = f32::from_bits(bits as u32);
            pair[1] = f32::from_bits((bits >> 32) as u32);
        }
        if let ([tail], Some(word)) = (pairs.into_remainder(), words.last()) {
            *tail = f32::from_bits(word.load(Ordering::Relaxed) as u32);
        }
    }

    /// Writes a row of floats; an odd one is padded with zero.
    #[inline(always)]
    pub fn write_floats(&self, row: u32, floats: &[f32]) {
        for (pair, word) in floats.chunks(2).zip(self.row(row)) {
            let second = pair.get(1).copied().unwrap_or(0.0);
            word.store(u64::from(pair[0].to_bits()) | u64::from(second.to_bits()) << 32, Ordering::Relaxed);
        }
    }

    /// Copies out a row of bytes.
    #[inline(always)]
    pub fn read_bytes(&self, row: u32, into: &mut [u8]) {
        for (bytes, word) in into.chunks_mut(8).zip(self.row(row)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..bytes.len()]);
        }
    }

    /// Writes a row of bytes, padded with zeros.
    #[inline(always)]
    pub fn write_bytes(&self, row: u32, bytes: &[u8]) {
        for (bytes, word) in bytes.chunks(8).zip(self.row(row)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }

    /// The next row of a free row. Free rows are linked through their own memory.
    pub fn link(&self, row: u32) -> u32 {
        self.row(row)[0].load(Ordering::Relaxed) as u32
    }

    /// Links a free row to the next one.
    pub fn set_link(&self, row: u32, next: u32) {
        self.row(row)[0].store(u64::from(next), Ordering::Relaxed);
    }

    fn populate(&self, rows: Range<u32>) {
        // A boundary is crossed once per huge page. The whole huge page after it is touched then, where no
        // one waits for it.
        let (begin, end) = (rows.start as usize * self.stride * 8, rows.end as usize * self.stride * 8);
        if begin / HUGE_BYTES != end / HUGE_BYTES {
            let ahead = end.next_multiple_of(HUGE_BYTES);
            if ahead + HUGE_BYTES <= self.memory.bytes() {
                self.memory.populate(ahead, HUGE_BYTES);
            }
        }
    }

    /// The bytes of some rows' words, and this column's share of the memory touched ahead.
    fn touched_bytes(&self, rows: usize) -> usize {
        let bytes = rows * self.stride * 8;
        let touched = if bytes < HUGE_BYTES {
            bytes
        } else {
            (bytes.next_multiple_of(HUGE_BYTES) + HUGE_BYTES).min(self.memory.bytes())
        };
        touched / self.stride * self.words
    }
}

/// The rows of one table. Row 0 is never used; it means no row.
pub struct Rows {
    /// The embeddings, which readers read.
    pub embedding: Column,
    /// The optimizer state; of width 0 if the table does not learn.
    pub state: Column,
    /// The use of each row. State of a single float is here too, since it would make rows straddle cache
    /// lines.
    sides: Arc<Reserved>,
    side_bytes: usize,
    places: Mutex<Places>,
    rows_max: u32,
    all_max: u32,
}

/// Rows that belong to no part.
struct Places {
    /// The first row that was never taken.
    next: u32,
    /// Rows that parts returned: the first of each chain of `CHUNK_ROWS` rows.
    chains: Vec<u32>,
}

/// Rows that a part takes from the table at once; always `CHUNK_ROWS`.
pub enum Taken {
    /// Consecutive rows that were never used.
    Chunk(Range<u32>),
    /// Used rows: the first one, which links to the others.
    Chain(u32),
}

/// The time of a row's last use, and its number of uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Table time of the last use in ticks, 24 bits.
    pub tick: u32,
    /// The number of uses; stops at 255.
    pub count: u8,
}

impl Use {
    /// Ticks wrap around at this.
    pub const TICKS: u32 = 1 << 24;

    /// Whether the row was put and never used: it has no age.
    pub fn is_never(self) -> bool {
        self.tick == 0 && self.count == 0
    }

    /// Ticks from the last use to `now`; 0 if the use lies ahead, which half a round or more means.
    pub fn age(self, now: u32) -> u32 {
        let age = now.wrapping_sub(self.tick) % Self::TICKS;
        if age < Self::TICKS / 2 { age } else { 0 }
    }
}

impl Places {
    fn in_parts(&self) -> u32 {
        self.next - self.chains.len() as u32 * CHUNK_ROWS
    }
}

impl Rows {
    /// Reserves memory for rows of these widths, and for some more that only removed keys may take.
    pub fn new(embedding_bytes: usize, state_floats: usize, rows_max: usize) -> io::Result<Self> {
        let rows_max = rows_max.clamp(2 * CHUNK_ROWS as usize, ROWS_MAX - ROWS_MAX / SPARE_SHARE);
        let all_max = rows_max + (rows_max / SPARE_SHARE).next_multiple_of(CHUNK_ROWS as usize);
        let (embedding, state) = (embedding_bytes.div_ceil(8).max(1), state_floats.div_ceil(2));
        let is_aside = state_floats == 1;
        // Memory that is touched together lies together: a TLB miss costs more than the row's cache lines.
        let stride = if is_aside { embedding } else { embedding + state };
        let side_bytes = if is_aside { 8 } else { 4 };
        let reserve = |row_bytes: usize| Reserved::new(all_max * row_bytes, Pages::HugeLater).map(Arc::new);
        let (memory, sides) = (reserve(stride * 8)?, reserve(side_bytes)?);
        let column = |begin, words| Column { memory: memory.clone(), stride, begin, words };
        Ok(Self {
            embedding: column(0, embedding),
            state: match is_aside {
                true => Column { memory: sides.clone(), stride: 1, begin: 0, words: 1 },
                false => column(embedding, state),
            },
            sides,
            side_bytes,
            places: Mutex::new(Places { next: CHUNK_ROWS, chains: Vec::new() }),
            rows_max: rows_max as u32,
            all_max: all_max as u32,
        })
    }

    /// Takes rows for a part; None if the table is full. A spare share is for removed keys. Otherwise no key
    /// could leave a full table, since readers of older versions must still find it.
    pub fn take(&self, is_for_gone: bool) -> Option<Taken> {
        let rows_max = if is_for_gone { self.all_max } else { self.rows_max };
        let mut places = self.places();
        if places.in_parts() > rows_max - CHUNK_ROWS {
            return None;
        }
        if let Some(chain) = places.chains.pop() {
            return Some(Taken::Chain(chain));
        }
        let chunk = places.next..places.next + CHUNK_ROWS;
        places.next = chunk.end;
        drop(places);
        self.embedding.populate(chunk.clone());
        Some(Taken::Chunk(chunk))
    }

    /// Returns chains of `CHUNK_ROWS` rows each, for any part.
    pub fn give(&self, chains: &mut Vec<u32>) {
        self.places().chains.append(chains);
    }

    /// The number of rows ever taken, and of those now in parts.
    pub fn taken(&self) -> [usize; 2] {
        let places = self.places();
        [places.next, places.in_parts()].map(|end| (end - CHUNK_ROWS) as usize)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().expect("no holder panics")
    }

    #[inline(always)]
    fn use_word(&self, row: u32) -> &AtomicU32 {
        debug_assert!(row < self.all_max);
        // SAFETY: the last half word of a row's side is inside the memory and only accessed as an atomic. If
        // the other half is state, its writer writes this half after it.
        unsafe { &*self.sides.begin().add((row as usize + 1) * self.side_bytes - 4).cast::<AtomicU32>() }
    }

    /// The address of a row's use, for prefetching.
    #[inline(always)]
    pub fn use_address(&self, row: u32) -> *const u8 {
        std::ptr::from_ref(self.use_word(row)).cast()
    }

    /// The use of a row.
    #[inline(always)]
    pub fn get_use(&self, row: u32) -> Use {
        let word = self.use_word(row).load(Ordering::Relaxed);
        Use { tick: word >> 8, count: word as u8 }
    }

    /// Sets the use of a row.
    #[inline(always)]
    pub fn set_use(&self, row: u32, used: Use) {
        self.use_word(row).store(used.tick << 8 | u32::from(used.count), Ordering::Relaxed);
    }

    /// Touched bytes of the columns: embedding, state, use.
    pub fn bytes(&self) -> [usize; 3] {
        let [taken, _] = self.taken();
        [
            self.embedding.touched_bytes(taken),
            self.state.touched_bytes(taken),
            (taken * 4).next_multiple_of(4096),
        ]
    }
}
