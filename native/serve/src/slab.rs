//! Slabs: memory that TensorBatches are packed into, each tensor on a boundary that XLA reads from.
//!
//! A slab goes back to its pool when the last who holds a tensor of it lets go: a graph that was not compiled may give
//! back what it was given, so memory that was handed over is not written again before.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// What tensors are aligned to: XLA crashes on memory that is not.
pub const ALIGN_BYTES: usize = 64;
const ALIGN_FLOATS: usize = ALIGN_BYTES / 4;

/// Slabs of one size, some of them in use.
#[derive(Debug)]
pub struct Pool {
    floats: usize,
    idle_max: usize,
    idle: Mutex<Vec<Memory>>,
}

/// Memory of one TensorBatch; what is in it is written once, by who took it.
#[derive(Debug)]
pub struct Slab {
    memory: Option<Memory>,
    pool: Arc<Pool>,
}

/// Zeroed at first, aligned, freed with it.
#[derive(Debug)]
struct Memory {
    at: NonNull<f32>,
    floats: usize,
}

// SAFETY: it owns its memory, which nobody else knows of; who writes it has it mutably.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(floats: usize) -> Self {
        let layout = Self::layout(floats);
        // SAFETY: the layout is of at least one float.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at.cast::<f32>()) else { handle_alloc_error(layout) };
        Self { at, floats }
    }

    fn layout(floats: usize) -> Layout {
        Layout::from_size_align(floats.max(1) * 4, ALIGN_BYTES)
            .expect("sizes are checked when a pool is made")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this layout, and is freed once.
        unsafe { dealloc(self.at.as_ptr().cast(), Self::layout(self.floats)) };
    }
}

impl Pool {
    /// A pool of slabs.
    ///
    /// `floats` is how many each has room for; of those that come back, `idle_max` are kept.
    pub fn new(floats: usize, idle_max: usize) -> Arc<Self> {
        assert!(floats < usize::MAX / 16, "a slab of {floats} floats");
        Arc::new(Self { floats, idle_max, idle: Mutex::default() })
    }

    /// A slab that nobody else has.
    pub fn take(self: &Arc<Self>) -> Slab {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Slab { memory: Some(idle.unwrap_or_else(|| Memory::new(self.floats))), pool: self.clone() }
    }

    /// How many wait to be taken.
    pub fn idle(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Slab {
    /// All of it.
    pub fn floats(&self) -> &[f32] {
        let memory = self.memory();
        // SAFETY: it is that long, initialised, and nobody writes while it is shared.
        unsafe { std::slice::from_raw_parts(memory.at.as_ptr(), memory.floats) }
    }

    /// All of it, for writing.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        let memory = self.memory();
        // SAFETY: it is that long, initialised, and this is the one who has it.
        unsafe { std::slice::from_raw_parts_mut(memory.at.as_ptr(), memory.floats) }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only dropping takes it")
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.pool.idle_max {
            idle.push(memory);
        }
    }
}

/// The place that so many floats take, so that what follows them is aligned.
pub const fn aligned(floats: usize) -> usize {
    floats.next_multiple_of(ALIGN_FLOATS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_aligned_and_goes_back_when_it_is_let_go() {
        let pool = Pool::new(100, 1);
        let (one, two) = (pool.take(), pool.take());
        let place = one.floats().as_ptr();
        assert_eq!(place as usize % ALIGN_BYTES, 0);
        assert_eq!(one.floats().len(), 100);
        assert_eq!(pool.idle(), 0);
        drop(one);
        drop(two);
        assert_eq!(pool.idle(), 1, "no more than are kept");
        assert_eq!(pool.take().floats().as_ptr(), place);
    }

    #[test]
    fn places_are_whole_lines() {
        assert_eq!([aligned(0), aligned(1), aligned(16), aligned(17)], [0, 16, 16, 32]);
    }
}
