//! The atomics and locks that readers and writers share: those of the standard library or, in a model check,
//! those of the checker, which tries thread orders and the values that each load may see.

#[cfg(not(all(test, feature = "model")))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(all(test, feature = "model"))]
pub use crate::model::cells::{AtomicU32, AtomicU64, fence, is_given, is_taken};
#[cfg(all(test, feature = "model"))]
pub use loom::{
    hint::spin_loop,
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

/// Declares memory as new; a model check forgets its earlier content.
#[cfg(not(all(test, feature = "model")))]
#[inline(always)]
pub fn is_taken(_begin: *const u8, _bytes: usize) {}

/// Declares that memory must not be accessed any more; a model check fails on an access.
#[cfg(not(all(test, feature = "model")))]
#[inline(always)]
pub fn is_given(_begin: *const u8, _bytes: usize) {}
