//! Slabs: memory that TensorBatches are packed into, each tensor on a boundary that XLA reads from.
//!
//! A slab goes back to its pool when the last who holds a tensor of it lets go: a graph that was not compiled may give
//! back what it was given, so memory that was handed over is not written again before.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::region::Region;

/// What tensors are aligned to: XLA crashes on memory that is not.
pub const ALIGN_BYTES: usize = 64;
const ALIGN_FLOATS: usize = ALIGN_BYTES / 4;

/// Slabs of one size, some of them in use.
#[derive(Debug)]
pub struct Pool {
    floats: usize,
    idle_max: usize,
    idle: Mutex<Vec<Memory>>,
    region: Option<Arc<Region>>,
}

/// Memory of one TensorBatch; what is in it is written once, by who took it.
#[derive(Debug)]
pub struct Slab {
    memory: Option<Memory>,
    pool: Arc<Pool>,
}

/// Zeroed at first, aligned, freed with it unless it is part of a region.
#[derive(Debug)]
struct Memory {
    at: NonNull<f32>,
    floats: usize,
    region: Option<Arc<Region>>,
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
        Self { at, floats, region: None }
    }

    /// A part of a region, which nobody else has.
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
            // SAFETY: it was allocated by this layout, and is freed once.
            unsafe { dealloc(self.at.as_ptr().cast(), Self::layout(self.floats)) };
        }
    }
}

impl Pool {
    /// A pool of slabs.
    ///
    /// `floats` is how many each has room for; of those that come back, `idle_max` are kept.
    pub fn new(floats: usize, idle_max: usize) -> Arc<Self> {
        assert!(floats < usize::MAX / 16, "a slab of {floats} floats");
        Arc::new(Self { floats, idle_max, idle: Mutex::default(), region: None })
    }

    /// A pool whose slabs other processes read: so many of them, and memory of one more slab at the region's end.
    ///
    /// Who takes more than there are gets one that nobody else reads.
    pub fn shared(floats: usize, count: usize) -> io::Result<Arc<Self>> {
        let place = aligned(floats.max(1));
        let bytes = place.checked_mul(4 * (count + 1)).ok_or(io::ErrorKind::OutOfMemory)?;
        let region = Arc::new(Region::create(bytes)?);
        let idle = (0..count).map(|slab| Memory::part(&region, slab * place, floats)).collect();
        Ok(Arc::new(Self { floats, idle_max: count, idle: Mutex::new(idle), region: Some(region) }))
    }

    /// What its slabs are parts of, where other processes read them; and where the memory after the last begins.
    pub fn region(&self) -> Option<(&Region, usize)> {
        let region = self.region.as_deref()?;
        Some((region, region.bytes() - 4 * aligned(self.floats.max(1))))
    }

    /// A slab that nobody else has.
    pub fn take(self: &Arc<Self>) -> Slab {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Slab { memory: Some(idle.unwrap_or_else(|| Memory::new(self.floats))), pool: self.clone() }
    }

    /// How many floats a slab has room for.
    pub fn floats(&self) -> usize {
        self.floats
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

    /// Where in its pool's region it begins, in bytes; None where it is no part of one.
    pub fn place(&self) -> Option<usize> {
        let memory = self.memory();
        let region = memory.region.as_ref()?;
        Some(memory.at.as_ptr() as usize - region.begin().as_ptr() as usize)
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only dropping takes it")
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // A shared pool takes back what is its own, and nothing else.
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
    fn slabs_of_a_region_lie_apart_in_it_and_one_too_many_is_nobody_elses() {
        let pool = Pool::shared(100, 2).unwrap();
        let (region, rest) = pool.region().unwrap();
        assert_eq!((region.bytes(), rest), (3 * 448, 2 * 448));
        let mut slabs = [pool.take(), pool.take()];
        let mut places = slabs.each_ref().map(|slab| slab.place().unwrap());
        slabs.iter_mut().for_each(|slab| slab.floats_mut()[99] = 5.0);
        places.sort_unstable();
        assert_eq!(places, [0, 448]);
        assert_eq!((region.as_ref()[99], region.as_ref()[112 + 99]), (5.0, 5.0));
        let third = pool.take();
        assert_eq!((third.place(), third.floats().len()), (None, 100));
        drop(third);
        assert_eq!(pool.idle(), 0, "it does not come among them");
        drop(slabs);
        assert_eq!(pool.idle(), 2);
    }

    #[test]
    fn places_are_whole_lines() {
        assert_eq!([aligned(0), aligned(1), aligned(16), aligned(17)], [0, 16, 16, 32]);
    }
}
