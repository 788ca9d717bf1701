//! A line of the index: five keys, their rows, and a head that shows readers whether their reads were
//! consistent.
//!
//! A line is 64 bytes, so that a probe touches one cache line. The head is a sequence lock. A writer marks
//! it, changes the line, a row it leads to or an image behind one, and increments it. A reader that finds the
//! head changed reads again.

use std::sync::atomic::Ordering;

use crate::storage::sync::{AtomicU32, AtomicU64, fence};

use crate::storage::near::find_word;

/// Keys per line.
pub const SLOTS: usize = 5;

/// The bits of slots that hold a key.
pub const OCCUPIED: u32 = 0b1_1111;
/// The first of five bits for keys with images that not every reader sees.
const UNSETTLED_AT: u32 = 5;
/// A key that belongs here may be in a later line.
pub const OVERFLOW: u32 = 1 << 10;
/// The part has a newer index.
pub const MOVED: u32 = 1 << 11;
/// A writer is at work; the higher bits count writes.
pub const WRITING: u32 = 1 << 12;

/// Five keys and the ids of their newest images.
#[repr(C, align(64))]
pub struct Line {
    head: AtomicU32,
    ids: [AtomicU32; SLOTS],
    keys: [AtomicU64; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// Whether the key in a slot has a single image that every reader sees.
#[inline(always)]
pub fn is_settled(head: u32, slot: usize) -> bool {
    head & (1 << (UNSETTLED_AT + slot as u32)) == 0
}

impl Line {
    /// The head, loaded before anything else of the line.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Whether nothing changed since `head` was read, so that everything read in between is consistent.
    #[inline(always)]
    pub fn is_still(&self, head: u32) -> bool {
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed) == head
    }

    /// The slot of a key, according to a head that was read before.
    #[inline(always)]
    pub fn find(&self, head: u32, key: u64) -> Option<usize> {
        let matches = find_word(&self.keys, key) & head & OCCUPIED;
        (matches != 0).then_some(matches.trailing_zeros() as usize)
    }

    /// The key in an occupied slot.
    pub fn key(&self, slot: usize) -> u64 {
        self.keys[slot].load(Ordering::Relaxed)
    }

    /// The newest image in an occupied slot.
    #[inline(always)]
    pub fn id(&self, slot: usize) -> u32 {
        // SAFETY: slots are below SLOTS, as `find` returns them; a checked access would cost a branch per
        // key.
        debug_assert!(slot < SLOTS);
        self.ids[slot].load(Ordering::Relaxed)
    }

    /// Starts to write a line that no reader knows yet.
    #[inline(always)]
    pub fn begin(&self) -> Writing<'_> {
        Writing { line: self, head: self.head.load(Ordering::Relaxed) }
    }

    /// Starts to write; only the holder of the part's lock may.
    #[inline(always)]
    pub fn write(&self) -> Writing<'_> {
        let head = self.head.load(Ordering::Relaxed);
        debug_assert!(head & WRITING == 0, "one writer per part");
        self.head.store(head | WRITING, Ordering::Relaxed);
        // Later writes must not be visible under the old head.
        fence(Ordering::Release);
        Writing { line: self, head }
    }
}

/// A line being written; readers wait or read again until it is dropped.
pub struct Writing<'a> {
    line: &'a Line,
    head: u32,
}

impl Writing<'_> {
    /// Puts a key into a free slot.
    pub fn put(&mut self, slot: usize, key: u64, id: u32, is_settled: bool) {
        self.line.keys[slot].store(key, Ordering::Relaxed);
        self.head |= 1 << slot;
        self.set(slot, id, is_settled);
    }

    /// Sets the newest image of a key.
    pub fn set(&mut self, slot: usize, id: u32, is_settled: bool) {
        self.line.ids[slot].store(id, Ordering::Relaxed);
        let unsettled = 1 << (UNSETTLED_AT + slot as u32);
        self.head = if is_settled { self.head & !unsettled } else { self.head | unsettled };
    }

    /// Removes a key from its slot.
    pub fn remove(&mut self, slot: usize) {
        self.head &= !(1 << slot | 1 << (UNSETTLED_AT + slot as u32));
    }

    /// Records that a key of this line is in a later one.
    pub fn set_overflow(&mut self) {
        self.head |= OVERFLOW;
    }

    /// Records that the part has a newer index.
    pub fn set_moved(&mut self) {
        self.head |= MOVED;
    }
}

impl Drop for Writing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.line.head.store(self.head.wrapping_add(2 * WRITING), Ordering::Release);
    }
}
