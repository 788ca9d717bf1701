//! A region: memory backed by an anonymous file, shared with the processes that receive the file.
//!
//! It is freed when the last process closes it, however that process ends. Processes that open it can only
//! read.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

/// A mapping of the whole region.
#[derive(Debug)]
pub struct Region {
    at: NonNull<c_void>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: it owns its mapping; its users synchronise access to the memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a zeroed region, for writing.
    pub fn create(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name is NUL-terminated; the file is closed on exec unless it is passed on.
        let descriptor = unsafe { libc::memfd_create(c"streamlearn-slabs".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nothing else uses it.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let length =
            libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the file is this function's own.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps a region of another process, for reading; the caller keeps its file.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let file = file.try_clone_to_owned()?;
        // SAFETY: all-zero bits are a valid state.
        let mut state: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the file is open, and the state is writable.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut state) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes =
            usize::try_from(state.st_size).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Self::map(file, bytes, libc::PROT_READ)
    }

    fn map(file: OwnedFd, bytes: usize, protection: i32) -> io::Result<Self> {
        // SAFETY: a new mapping changes no existing memory.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(address).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { at, bytes, file })
    }

    /// Returns its start, which is page-aligned.
    pub fn begin(&self) -> NonNull<f32> {
        self.at.cast()
    }

    /// Returns its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the file to pass to another process.
    pub fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsRef<[f32]> for Region {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: it is that long, and mapped as long as this lives; a writer signals readers when
        // a part is complete, and they read it only then.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.bytes / 4) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_one_writes_the_other_reads() {
        let writer = Region::create(8192).unwrap();
        let reader = Region::open(writer.file.as_fd()).unwrap();
        assert_eq!(reader.bytes(), 8192);
        // SAFETY: the position is inside, and nothing reads it now.
        unsafe { *writer.begin().as_ptr().add(2000) = 7.0 };
        assert_eq!((reader.as_ref()[2000], reader.as_ref()[1999]), (7.0, 0.0));
    }
}
