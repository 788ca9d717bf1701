//! Slabs: buffers for packed TensorBatches, with tensors aligned as XLA requires.
//!
//! A slab returns to its pool when its last tensor is released: an uncompiled graph may return its input, so
//! memory that was handed over must not be overwritten earlier.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::region::Region;

/// The alignment of tensors: XLA crashes on unaligned memory.
pub const ALIGN_BYTES: usize = 64;
const ALIGN_FLOATS: usize = ALIGN_BYTES / 4;

/// A pool of equally sized slabs.
#[derive(Debug)]
pub struct Pool {
    floats: usize,
    idle_max: usize,
    idle: Mutex<Vec<Memory>>,
    region: Option<Arc<Region>>,
}

/// The memory of one TensorBatch; written once, by the task that took it.
#[derive(Debug)]
pub struct Slab {
    memory: Option<Memory>,
    pool: Arc<Pool>,
}

/// Zeroed, aligned memory; freed on drop unless it is part of a region.
#[derive(Debug)]
struct Memory {
    at: NonNull<f32>,
    floats: usize,
    region: Option<Arc<Region>>,
}

// SAFETY: it owns its memory, which nothing else refers to; writing requires a mutable reference.
unsafe impl Send for Memory {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(floats: usize) -> Self {
        let layout = Self::layout(floats);
        // SAFETY: the layout holds at least one float.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at.cast::<f32>()) else { handle_alloc_error(layout) };
        Self { at, floats, region: None }
    }

    /// A part of a region, used by nothing else.
    fn part(region: &Arc<Region>, at_floats: usize, floats: usize) -> Self {
        assert!((at_floats + floats) * 4 <= region.bytes(), "a slab beyond its region");
        // SAFETY: it is inside the region.
        let at = unsafe { region.begin().add(at_floats) };
        Self { at, floats, region: Some(region.clone()) }
    }

    fn layout(floats: usize) -> Layout {
        Layout::from_size_align(floats.max(1) * 4, ALIGN_BYTES)
            .expect("sizes are checked when a pool is made")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.region.is_none() {
            // SAFETY: it was allocated with this layout, and is freed once.
            unsafe { dealloc(self.at.as_ptr().cast(), Self::layout(self.floats)) };
        }
    }
}

impl Pool {
    /// Creates a pool of slabs for `floats` floats each; at most `idle_max` unused slabs are kept.
    pub fn new(floats: usize, idle_max: usize) -> Arc<Self> {
        assert!(floats < usize::MAX / 16, "a slab of {floats} floats");
        Arc::new(Self { floats, idle_max, idle: Mutex::default(), region: None })
    }

    /// Creates a pool of `count` slabs that other processes can read. The region ends with the memory of one
    /// extra slab.
    ///
    /// When all are in use, `take` returns a private slab.
    pub fn shared(floats: usize, count: usize) -> io::Result<Arc<Self>> {
        let stride = aligned(floats.max(1));
        let bytes = stride.checked_mul(4 * (count + 1)).ok_or(io::ErrorKind::OutOfMemory)?;
        let region = Arc::new(Region::create(bytes)?);
        let idle = (0..count).map(|slab| Memory::part(&region, slab * stride, floats)).collect();
        Ok(Arc::new(Self { floats, idle_max: count, idle: Mutex::new(idle), region: Some(region) }))
    }

    /// Returns the region of a shared pool, and the offset of the memory after its last slab.
    pub fn region(&self) -> Option<(&Region, usize)> {
        let region = self.region.as_deref()?;
        Some((region, region.bytes() - 4 * aligned(self.floats.max(1))))
    }

    /// Takes an unused slab.
    pub fn take(self: &Arc<Self>) -> Slab {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Slab { memory: Some(idle.unwrap_or_else(|| Memory::new(self.floats))), pool: self.clone() }
    }

    /// Returns the capacity of a slab in floats.
    pub fn floats(&self) -> usize {
        self.floats
    }

    /// Returns the number of unused slabs.
    pub fn idle(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Slab {
    /// Returns the whole slab.
    pub fn floats(&self) -> &[f32] {
        let memory = self.memory();
        // SAFETY: it is that long, initialised, and not written while it is shared.
        unsafe { std::slice::from_raw_parts(memory.at.as_ptr(), memory.floats) }
    }

    /// Returns the whole slab for writing.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        let memory = self.memory();
        // SAFETY: it is that long, initialised, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(memory.at.as_ptr(), memory.floats) }
    }

    /// Returns its offset in the pool's region, in bytes; `None` if it is not part of a region.
    pub fn place(&self) -> Option<usize> {
        let memory = self.memory();
        let region = memory.region.as_ref()?;
        Some(memory.at.as_ptr() as usize - region.begin().as_ptr() as usize)
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only drop takes it")
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // A shared pool only takes back its own slabs.
        if idle.len() < self.pool.idle_max && memory.region.is_some() == self.pool.region.is_some() {
            idle.push(memory);
        }
    }
}

impl AsRef<[f32]> for Slab {
    fn as_ref(&self) -> &[f32] {
        self.floats()
    }
}

/// Rounds a number of floats up, so that what follows is aligned.
pub const fn aligned(floats: usize) -> usize {
    floats.next_multiple_of(ALIGN_FLOATS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_aligned_and_goes_back_when_it_is_let_go() {
        let pool = Pool::new(100, 1);
        let (first, second) = (pool.take(), pool.take());
        let address = first.floats().as_ptr();
        assert_eq!(address as usize % ALIGN_BYTES, 0);
        assert_eq!(first.floats().len(), 100);
        assert_eq!(pool.idle(), 0);
        drop(first);
        drop(second);
        assert_eq!(pool.idle(), 1, "at most idle_max slabs are kept");
        assert_eq!(pool.take().floats().as_ptr(), address);
    }

    #[test]
    fn slabs_of_a_region_lie_apart_in_it_and_one_too_many_is_nobody_elses() {
        let pool = Pool::shared(100, 2).unwrap();
        let (region, extra_offset) = pool.region().unwrap();
        assert_eq!((region.bytes(), extra_offset), (3 * 448, 2 * 448));
        let mut slabs = [pool.take(), pool.take()];
        let mut places = slabs.each_ref().map(|slab| slab.place().unwrap());
        slabs.iter_mut().for_each(|slab| slab.floats_mut()[99] = 5.0);
        places.sort_unstable();
        assert_eq!(places, [0, 448]);
        assert_eq!((region.as_ref()[99], region.as_ref()[112 + 99]), (5.0, 5.0));
        let third = pool.take();
        assert_eq!((third.place(), third.floats().len()), (None, 100));
        drop(third);
        assert_eq!(pool.idle(), 0, "a private slab does not join the pool");
        drop(slabs);
        assert_eq!(pool.idle(), 2);
    }

    #[test]
    fn places_are_whole_lines() {
        assert_eq!([aligned(0), aligned(1), aligned(16), aligned(17)], [0, 16, 16, 32]);
    }
}
