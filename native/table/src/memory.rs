//! Memory that is reserved once and taken as it is first written, so that what lies in it never moves.

use std::io;
use std::ptr::{self, NonNull};

/// The most address space one column may reserve.
pub const RESERVED_BYTES_MAX: usize = 1 << 44;

/// Zeroed memory at one address for its whole life; pages cost nothing until they are touched.
pub struct Reserved {
    begin: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; what is done with it is its users' to synchronise.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// Reserve `bytes`, asking for huge pages: a random row then costs one entry of the TLB, not a walk.
    pub fn new(bytes: usize) -> io::Result<Self> {
        assert!(bytes <= RESERVED_BYTES_MAX, "{bytes} bytes are more than one column may reserve");
        if bytes == 0 {
            return Ok(Self { begin: NonNull::<u64>::dangling().cast(), bytes });
        }
        let (read_write, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping touches no memory there is.
        let found = unsafe { libc::mmap(ptr::null_mut(), bytes, read_write, private, -1, 0) };
        if found == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range was just mapped; the advice changes speed alone, so its failure is no matter.
        unsafe { libc::madvise(found, bytes, libc::MADV_HUGEPAGE) };
        let begin = NonNull::new(found.cast()).expect("mmap gives no null pointer without MAP_FIXED");
        Ok(Self { begin, bytes })
    }

    /// Where it begins; 64-byte aligned, for a mapping begins on a page.
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
            // SAFETY: the mapping is ours and nothing refers to it any more.
            unsafe { libc::munmap(self.begin.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_zero_and_stays_where_it_is() {
        let memory = Reserved::new(1 << 36).unwrap();
        // SAFETY: both places are inside the mapping.
        unsafe {
            *memory.begin().add(1 << 35) = 7;
            assert_eq!((*memory.begin().add(1 << 35), *memory.begin().add(5)), (7, 0));
        }
        assert_eq!(memory.begin() as usize % 64, 0);
    }
}
