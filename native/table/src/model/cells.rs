//! Atomics that the model checker sees, in mapped memory that is not initialised by constructors.
//!
//! Each occupies its own memory, as the standard library's atomics do, so that lines and rows keep their
//! layout. During a check, operations go to a cell of the checker, found by address. Before `begin` and after
//! `end` only one thread runs, and operations use the memory itself.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

type Checked = loom::sync::atomic::AtomicUsize;

/// A cell of the checker. It holds the difference to the value that the memory had at first access.
#[derive(Clone)]
struct ModelCell {
    checked: Rc<Checked>,
    first: usize,
}

#[derive(Default)]
struct Cells {
    is_begun: bool,
    /// Created before any thread, so that every thread sees their initial values.
    unused: Vec<Rc<Checked>>,
    used: HashMap<usize, ModelCell>,
    given: Vec<Range<usize>>,
}

thread_local! {
    // The checker runs all its threads on one OS thread.
    static CELLS: RefCell<Cells> = RefCell::default();
}

/// Forgets the memory of the previous check.
pub fn reset() {
    CELLS.take();
}

/// Starts checking, with at most this many words.
pub fn begin(words: usize) {
    let unused = (0..words).map(|_| Rc::new(Checked::new(0))).collect();
    CELLS.with_borrow_mut(|cells| (cells.is_begun, cells.unused) = (true, unused));
}

/// Ends checking: only one thread is left.
pub fn end() {
    CELLS.with_borrow_mut(|cells| cells.is_begun = false);
}

/// See `sync`.
pub fn is_taken(begin: *const u8, bytes: usize) {
    let range = begin as usize..begin as usize + bytes;
    CELLS.with_borrow_mut(|cells| {
        cells.given.retain(|given| given.end <= range.start || range.end <= given.start);
        cells.used.retain(|address, _| !range.contains(address));
    });
}

/// See `sync`.
pub fn is_given(begin: *const u8, bytes: usize) {
    CELLS.with_borrow_mut(|cells| cells.given.push(begin as usize..begin as usize + bytes));
}

/// The cell of a word; None while nothing is checked.
fn cell(address: usize, now: impl FnOnce() -> usize) -> Option<ModelCell> {
    CELLS.with_borrow_mut(|cells| {
        if !cells.is_begun {
            return None;
        }
        let is_given = cells.given.iter().any(|given| given.contains(&address));
        assert!(!is_given, "released memory is accessed");
        let Cells { used, unused, .. } = cells;
        let fresh = || ModelCell { checked: unused.pop().expect("enough words"), first: now() };
        Some(used.entry(address).or_insert_with(fresh).clone())
    })
}

impl ModelCell {
    fn plus(&self, word: usize) -> usize {
        self.first.wrapping_add(word)
    }

    fn minus(&self, word: usize) -> usize {
        word.wrapping_sub(self.first)
    }
}

/// A fence of the checker.
pub fn fence(ordering: Ordering) {
    if CELLS.with_borrow(|cells| cells.is_begun) {
        loom::sync::atomic::fence(ordering);
    }
}

macro_rules! atomic {
    ($(#[$doc:meta])* $name:ident $(<$of:ident>)?, $number:ty, $to:expr, $from:expr) => {
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name $(<$of>)? (std::sync::atomic::$name $(<$of>)?);

        #[allow(dead_code, reason = "each atomic is used for some of these")]
        impl $(<$of>)? $name $(<$of>)? {
            pub const fn new(value: $number) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            fn cell(&self) -> Option<ModelCell> {
                cell(std::ptr::from_ref(self).addr(), || $from(self.0.load(Relaxed)))
            }

            pub fn load(&self, ordering: Ordering) -> $number {
                match self.cell() {
                    Some(cell) => $to(cell.plus(cell.checked.load(ordering))),
                    None => self.0.load(Relaxed),
                }
            }

            pub fn store(&self, value: $number, ordering: Ordering) {
                if let Some(cell) = self.cell() {
                    cell.checked.store(cell.minus($from(value)), ordering);
                }
                self.0.store(value, Relaxed);
            }

            pub fn swap(&self, value: $number, ordering: Ordering) -> $number {
                let previous = self.cell().map(|cell| {
                    $to(cell.plus(cell.checked.swap(cell.minus($from(value)), ordering)))
                });
                let stored = self.0.swap(value, Relaxed);
                previous.unwrap_or(stored)
            }

            pub fn compare_exchange(
                &self,
                old: $number,
                new: $number,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$number, $number> {
                let Some(cell) = self.cell() else {
                    return self.0.compare_exchange(old, new, Relaxed, Relaxed);
                };
                let (from, to) = (cell.minus($from(old)), cell.minus($from(new)));
                let result = cell.checked.compare_exchange(from, to, success, failure);
                if result.is_ok() {
                    self.0.store(new, Relaxed);
                }
                result.map(|word| $to(cell.plus(word))).map_err(|word| $to(cell.plus(word)))
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut next: impl FnMut($number) -> Option<$number>,
            ) -> Result<$number, $number> {
                let mut current = self.load(failure);
                while let Some(new) = next(current) {
                    match self.compare_exchange(current, new, success, failure) {
                        Ok(old) => return Ok(old),
                        Err(actual) => current = actual,
                    }
                }
                Err(current)
            }

            pub fn get_mut(&mut self) -> &mut $number {
                self.0.get_mut()
            }
        }
    };
}

atomic!(
    /// A word of 32 bits.
    AtomicU32, u32, |word: usize| word as u32, |value: u32| value as usize
);
atomic!(
    /// A word of 64 bits.
    AtomicU64, u64, |word: usize| word as u64, |value: u64| value as usize
);
impl AtomicU64 {
    pub fn fetch_add(&self, count: u64, ordering: Ordering) -> u64 {
        let previous =
            self.cell().map(|cell| cell.plus(cell.checked.fetch_add(count as usize, ordering)) as u64);
        let stored = self.0.fetch_add(count, Relaxed);
        previous.unwrap_or(stored)
    }
}

impl Default for AtomicU64 {
    fn default() -> Self {
        Self::new(0)
    }
}
