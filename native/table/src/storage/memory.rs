//! Memory that is reserved once and taken as it is first written, so that what lies in it never moves.

use std::io;
use std::ptr::{self, NonNull};

use crate::storage::sync::{is_given, is_taken};

/// The most address space one reservation may take.
pub const RESERVED_BYTES_MAX: usize = 1 << 44;
/// A huge page: what large reservations are aligned to.
pub const HUGE_BYTES: usize = 1 << 21;

/// Whether pages are asked to be huge: a random access then costs one entry of the TLB and not a walk, but the
/// first byte of each takes the whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// All of them.
    Huge,
    /// All but the first two megabytes, which is all that a small user touches.
    HugeLater,
    /// None.
    Small,
}

/// Zeroed memory at one address for its whole life; pages cost nothing until they are touched.
pub struct Reserved {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; what is done with it is its users' to synchronise.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// Reserve `bytes`, beginning on a huge page where there is at least one.
    pub fn new(bytes: usize, pages: Pages) -> io::Result<Self> {
        if bytes > RESERVED_BYTES_MAX {
            let text = format!("{bytes} bytes are more than the {RESERVED_BYTES_MAX} one column may reserve");
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
        // SAFETY: a new anonymous mapping touches no memory there is.
        let found = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, read_write, private, -1, 0) };
        if found == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = NonNull::new(found.cast::<u8>()).expect("mmap gives no null pointer without MAP_FIXED");
        let skipped = if bytes < HUGE_BYTES { 0 } else { mapped.align_offset(HUGE_BYTES) };
        // SAFETY: at most a huge page is skipped, and one more than asked for was mapped.
        let begin = unsafe { mapped.add(skipped) };
        let small_bytes = match pages {
            Pages::Huge => 0,
            Pages::HugeLater => HUGE_BYTES.min(bytes),
            Pages::Small => bytes,
        };
        if small_bytes < bytes {
            // SAFETY: the range was just mapped; the advice changes speed alone, so its failure is no matter.
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

    /// Where it begins: on a page at least.
    #[inline(always)]
    pub fn begin(&self) -> *mut u8 {
        self.begin.as_ptr()
    }

    /// How many bytes are reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Touch the pages of a range now, so that a burst of inserts does not fault on each.
    pub fn populate(&self, at: usize, bytes: usize) {
        assert!(at + bytes <= self.bytes);
        const MADV_POPULATE_WRITE: libc::c_int = 23;
        // SAFETY: the range is inside the mapping; older kernels refuse the advice, and pages then fault later.
        unsafe { libc::madvise(self.begin.as_ptr().add(at).cast(), bytes, MADV_POPULATE_WRITE) };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 {
            is_given(self.begin(), self.bytes);
            // SAFETY: the mapping is ours and nothing refers to it any more.
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
        // SAFETY: both places are inside the mapping.
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
