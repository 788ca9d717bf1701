//! Rows: the columns addressed by a row id (embedding, optimizer state, use), in memory that never moves.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::storage::memory::{HUGE_BYTES, Pages, Reserved};
use crate::storage::near::copy_words;
use crate::storage::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard};

/// Row ids are below this; the bit above says that a key is gone.
pub const ROWS_MAX: usize = 1 << 31;
/// One row of so many is kept for keys that go.
const SPARE_SHARE: usize = 16;
/// Rows a part takes from the table at once, and gives back.
pub const CHUNK_ROWS: u32 = 16;

/// A column of rows of whole words, read by anyone and written by the holder of a part's lock. Columns may share
/// memory, each with its own words of every row.
pub struct Column {
    memory: Arc<Reserved>,
    stride: usize,
    begin: usize,
    words: usize,
}

impl Column {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.words * 8
    }

    #[inline(always)]
    fn row(&self, row: u32) -> &[AtomicU64] {
        let at = row as usize * self.stride + self.begin;
        debug_assert!((at + self.words) * 8 <= self.memory.bytes());
        // SAFETY: the row is inside the memory, on 8 bytes for it is whole words, and only ever read as atomics.
        unsafe {
            let begin = self.memory.begin().cast::<AtomicU64>().add(at);
            std::slice::from_raw_parts(begin, self.words)
        }
    }

    /// Where a row is, to prefetch it; it may be one that lies behind the last.
    #[inline(always)]
    pub fn address(&self, row: u32) -> *const u8 {
        self.memory.begin().wrapping_add((row as usize * self.stride + self.begin) * 8)
    }

    /// Copy a row of so many words out; torn while a writer is at work, which the line's head tells.
    #[inline(always)]
    pub fn read_words<const WORDS: usize>(&self, row: u32, into: &mut [f32]) {
        copy_words::<WORDS>(self.row(row).try_into().expect("rows are so wide"), into);
    }

    /// Copy a row of floats out; torn while a writer is at work, which the line's head tells.
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
        if let ([last], Some(word)) = (pairs.into_remainder(), words.last()) {
            *last = f32::from_bits(word.load(Ordering::Relaxed) as u32);
        }
    }

    /// Write a row of floats; an odd one is padded with zero.
    #[inline(always)]
    pub fn write_floats(&self, row: u32, floats: &[f32]) {
        for (pair, word) in floats.chunks(2).zip(self.row(row)) {
            let second = pair.get(1).copied().unwrap_or(0.0);
            word.store(u64::from(pair[0].to_bits()) | u64::from(second.to_bits()) << 32, Ordering::Relaxed);
        }
    }

    /// Copy a row of bytes out.
    #[inline(always)]
    pub fn read_bytes(&self, row: u32, into: &mut [u8]) {
        for (bytes, word) in into.chunks_mut(8).zip(self.row(row)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..bytes.len()]);
        }
    }

    /// Write a row of bytes, padded with zeros.
    #[inline(always)]
    pub fn write_bytes(&self, row: u32, bytes: &[u8]) {
        for (bytes, word) in bytes.chunks(8).zip(self.row(row)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
    }

    /// The row that a free row leads to. Free rows are linked through their own memory.
    pub fn link(&self, row: u32) -> u32 {
        self.row(row)[0].load(Ordering::Relaxed) as u32
    }

    /// Link a free row to the next.
    pub fn set_link(&self, row: u32, next: u32) {
        self.row(row)[0].store(u64::from(next), Ordering::Relaxed);
    }

    fn populate(&self, rows: Range<u32>) {
        // A boundary is crossed once a huge page; what lies a whole one ahead is touched then, off nobody's way.
        let (begin, end) = (rows.start as usize * self.stride * 8, rows.end as usize * self.stride * 8);
        if begin / HUGE_BYTES != end / HUGE_BYTES {
            let ahead = end.next_multiple_of(HUGE_BYTES);
            if ahead + HUGE_BYTES <= self.memory.bytes() {
                self.memory.populate(ahead, HUGE_BYTES);
            }
        }
    }

    /// Bytes of some rows' words, and this column's share of what was touched ahead.
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

/// The rows of one table. Row 0 is never used: it stands for no row.
pub struct Rows {
    /// What readers read.
    pub embedding: Column,
    /// What the optimizer keeps; of no width where nothing learns.
    pub state: Column,
    /// When rows were used; and where the state is one float, that too, for it would make rows straddle lines.
    sides: Arc<Reserved>,
    side_bytes: usize,
    places: Mutex<Places>,
    rows_max: u32,
    all_max: u32,
}

/// Rows that are no part's.
struct Places {
    /// The first that was never taken.
    next: u32,
    /// Rows that parts gave back: the first of each chain of a chunk's length.
    chains: Vec<u32>,
}

/// Rows a part takes from the table at once, all of one length.
pub enum Taken {
    /// Never used before, one after the other.
    Chunk(Range<u32>),
    /// Used before: the first, which leads to the next.
    Chain(u32),
}

/// When a row was last used, and how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Table time of the last use, in ticks, of which 24 bits are kept.
    pub tick: u32,
    /// How often it was used; stays at 255.
    pub count: u8,
}

impl Use {
    /// Ticks are counted round.
    pub const TICKS: u32 = 1 << 24;

    /// Whether it was put there and never used since: it has no age.
    pub fn is_never(self) -> bool {
        self.tick == 0 && self.count == 0
    }

    /// Ticks from the last use to `now`; none where that lies ahead, which is what half a round or more means.
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
    /// Reserve room for rows of these widths, and for some more that only keys that go may take.
    pub fn new(embedding_bytes: usize, state_floats: usize, rows_max: usize) -> io::Result<Self> {
        let rows_max = rows_max.clamp(2 * CHUNK_ROWS as usize, ROWS_MAX - ROWS_MAX / SPARE_SHARE);
        let all_max = rows_max + (rows_max / SPARE_SHARE).next_multiple_of(CHUNK_ROWS as usize);
        let (embedding, state) = (embedding_bytes.div_ceil(8).max(1), state_floats.div_ceil(2));
        let is_aside = state_floats == 1;
        // What is touched together lies together: a page that is not near costs more than its lines.
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

    /// Rows no one else has; None when the table is full. A spare share is for keys that go: of a full table nothing
    /// could leave, for who sees an older version must find that it was there.
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

    /// Take back chains of a chunk's length each, so that any part may have them.
    pub fn give(&self, chains: &mut Vec<u32>) {
        self.places().chains.append(chains);
    }

    /// Rows that were ever taken, and those of them that are in parts.
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
        // SAFETY: the last half word of a row's side is inside the memory, and only ever accessed as an atomic; where
        // the other half is a state, who writes that writes this after it.
        unsafe { &*self.sides.begin().add((row as usize + 1) * self.side_bytes - 4).cast::<AtomicU32>() }
    }

    /// Where a row's use is, to prefetch it.
    #[inline(always)]
    pub fn use_address(&self, row: u32) -> *const u8 {
        std::ptr::from_ref(self.use_word(row)).cast()
    }

    /// When and how often a row was used.
    #[inline(always)]
    pub fn get_use(&self, row: u32) -> Use {
        let word = self.use_word(row).load(Ordering::Relaxed);
        Use { tick: word >> 8, count: word as u8 }
    }

    /// Say when and how often a row was used.
    #[inline(always)]
    pub fn set_use(&self, row: u32, used: Use) {
        self.use_word(row).store(used.tick << 8 | u32::from(used.count), Ordering::Relaxed);
    }

    /// Bytes of the columns that were touched: embedding, state, use.
    pub fn bytes(&self) -> [usize; 3] {
        let [taken, _] = self.taken();
        [
            self.embedding.touched_bytes(taken),
            self.state.touched_bytes(taken),
            (taken * 4).next_multiple_of(4096),
        ]
    }
}
