//! Memory that is reserved once and committed on first write, so that its content never moves.

use std::io;
use std::ptr::{self, NonNull};

use crate::storage::sync::{is_given, is_taken};

/// Maximum address space of one reservation.
pub const RESERVED_BYTES_MAX: usize = 1 << 44;
/// Bytes of a huge page; large reservations are aligned to it.
pub const HUGE_BYTES: usize = 1 << 21;

/// The use of huge pages. A random access then costs one TLB entry instead of a page walk, but the first byte
/// of each page commits the whole page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages throughout.
    Huge,
    /// Huge pages after the first two megabytes, which are all that small users touch.
    HugeLater,
    /// No huge pages.
    Small,
}

/// Zeroed memory at a fixed address; pages cost nothing until they are touched.
pub struct Reserved {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; its users synchronise their accesses.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// Reserves `bytes`, aligned to a huge page if they fill at least one.
    pub fn new(bytes: usize, pages: Pages) -> io::Result<Self> {
        if bytes > RESERVED_BYTES_MAX {
            let text = format!("a column of {bytes} bytes exceeds the limit of {RESERVED_BYTES_MAX}");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
        if bytes == 0 {
            let none = NonNull::<u64>::dangling().cast();
            return Ok(Self { mapped: none, mapped_bytes: 0, begin: none, bytes });
        }
        let mapped_bytes = if bytes < HUGE_BYTES { bytes } else { bytes + HUGE_BYTES };
        let (read_write, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping touches no existing memory.
        let address = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, read_write, private, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped =
            NonNull::new(address.cast::<u8>()).expect("mmap returns no null pointer without MAP_FIXED");
        let skipped = if bytes < HUGE_BYTES { 0 } else { mapped.align_offset(HUGE_BYTES) };
        // SAFETY: at most one huge page is skipped, and one more was mapped.
        let begin = unsafe { mapped.add(skipped) };
        let small_bytes = match pages {
            Pages::Huge => 0,
            Pages::HugeLater => HUGE_BYTES.min(bytes),
            Pages::Small => bytes,
        };
        if small_bytes < bytes {
            // SAFETY: the range was just mapped; the advice affects only speed, so a failure does not matter.
            unsafe {
                libc::madvise(
                    begin.add(small_bytes).as_ptr().cast(),
                    bytes - small_bytes,
                    libc::MADV_HUGEPAGE,
                )
            };
        }
        is_taken(begin.as_ptr(), bytes);
        Ok(Self { mapped, mapped_bytes, begin, bytes })
    }

    /// The start address, aligned to a page at least.
    #[inline(always)]
    pub fn begin(&self) -> *mut u8 {
        self.begin.as_ptr()
    }

    /// The number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Touches the pages of a range, so that a burst of inserts does not fault on each.
    pub fn populate(&self, at: usize, bytes: usize) {
        assert!(at + bytes <= self.bytes);
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        // SAFETY: the range is inside the mapping; older kernels reject the advice, and pages then fault
        // later.
        unsafe { libc::madvise(self.begin.as_ptr().add(at).cast(), bytes, MADV_POPULATE_WRITE) };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 {
            is_given(self.begin(), self.bytes);
            // SAFETY: this object owns the mapping, and nothing refers to it any more.
            unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_zero_and_stays_where_it_is() {
        let memory = Reserved::new(1 << 36, Pages::HugeLater).unwrap();
        // SAFETY: both positions are inside the mapping.
        unsafe {
            *memory.begin().add(1 << 35) = 7;
            assert_eq!((*memory.begin().add(1 << 35), *memory.begin().add(5)), (7, 0));
        }
        assert_eq!(memory.begin() as usize % HUGE_BYTES, 0);
    }

    #[test]
    fn more_than_a_column_may_take_is_refused() {
        assert!(Reserved::new(RESERVED_BYTES_MAX + 1, Pages::Small).is_err());
    }
}
