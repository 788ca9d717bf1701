//! A pool: buffers of a size that are used again, and no more of them than are worth keeping.

use std::sync::Mutex;

/// Buffers that wait to be used again.
pub struct Pool<T> {
    waiting: Mutex<Vec<Vec<T>>>,
    buffers_max: usize,
    capacity_max: usize,
}

impl<T> Pool<T> {
    /// At most so many, none larger than `capacity_max`.
    pub fn new(buffers_max: usize, capacity_max: usize) -> Self {
        Self { waiting: Mutex::default(), buffers_max, capacity_max }
    }

    /// A buffer, with whatever was in it.
    pub fn take(&self) -> Vec<T> {
        self.waiting.lock().expect("no holder panics").pop().unwrap_or_default()
    }

    /// Give one back.
    pub fn give(&self, buffer: Vec<T>) {
        let mut waiting = self.waiting.lock().expect("no holder panics");
        if waiting.len() < self.buffers_max && (1..=self.capacity_max).contains(&buffer.capacity()) {
            waiting.push(buffer);
        }
    }
}
