//! What readers and writers share is made of these: the standard library's atomics and locks, or, in a model check,
//! those of the model checker, which tries the orders in which threads may come and what each load may then see.

#[cfg(not(all(test, model)))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(all(test, model))]
pub use crate::model::cells::{AtomicU32, AtomicU64, fence, is_given, is_taken};
#[cfg(all(test, model))]
pub use loom::{
    hint::spin_loop,
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

/// Say that memory is new to those who take it; a model check forgets what was there before.
#[cfg(not(all(test, model)))]
#[inline(always)]
pub fn is_taken(_begin: *const u8, _bytes: usize) {}

/// Say that nobody may look at memory from here on; a model check fails when someone does.
#[cfg(not(all(test, model)))]
#[inline(always)]
pub fn is_given(_begin: *const u8, _bytes: usize) {}
