//! A pool of reusable buffers, bounded in number and size.

use std::sync::Mutex;

/// The unused buffers.
pub struct Pool<T> {
    waiting: Mutex<Vec<Vec<T>>>,
    buffers_max: usize,
    capacity_max: usize,
}

impl<T> Pool<T> {
    /// Creates a pool of at most `buffers_max` buffers with at most `capacity_max` elements each.
    pub fn new(buffers_max: usize, capacity_max: usize) -> Self {
        Self { waiting: Mutex::default(), buffers_max, capacity_max }
    }

    /// Takes a buffer; its old content remains.
    pub fn take(&self) -> Vec<T> {
        self.waiting.lock().expect("no holder panics").pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub fn give(&self, buffer: Vec<T>) {
        let mut waiting = self.waiting.lock().expect("no holder panics");
        if waiting.len() < self.buffers_max && (1..=self.capacity_max).contains(&buffer.capacity()) {
            waiting.push(buffer);
        }
    }
}
