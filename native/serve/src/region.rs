//! A region: memory in a file without a name, which processes that were handed the file have together.
//!
//! It ends with the last process that has it, however that ends. Who opened it only reads.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

/// A mapping of all of it.
#[derive(Debug)]
pub struct Region {
    at: NonNull<c_void>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: it owns its mapping, and what is done with the memory is its users' to synchronise.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A new one of zeros, for writing.
    pub fn create(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name is text that ends; the file is closed on exec unless a process is handed it.
        let found = unsafe { libc::memfd_create(c"streamlearn-slabs".as_ptr(), libc::MFD_CLOEXEC) };
        if found < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else knows it.
        let file = unsafe { OwnedFd::from_raw_fd(found) };
        let length =
            libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: a file of our own.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file, bytes, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// One that another process made, for reading; the file is its maker's to close.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let file = file.try_clone_to_owned()?;
        // SAFETY: all bits zero are a state of a file.
        let mut state: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the file is open, and the state is ours to write.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut state) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes =
            usize::try_from(state.st_size).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Self::map(file, bytes, libc::PROT_READ)
    }

    fn map(file: OwnedFd, bytes: usize, protection: i32) -> io::Result<Self> {
        // SAFETY: a new mapping touches no memory there is.
        let found =
            unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if found == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(found).expect("mmap gives no null pointer without MAP_FIXED");
        Ok(Self { at, bytes, file })
    }

    /// Where it begins: on a page.
    pub fn begin(&self) -> NonNull<f32> {
        self.at.cast()
    }

    /// How large it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What another process is handed.
    pub fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsRef<[f32]> for Region {
    fn as_ref(&self) -> &[f32] {
        // SAFETY: it is that long, and mapped as long as this lives; whoever writes a part of it tells others when it
        // is done, and they look no earlier.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.bytes / 4) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_one_writes_the_other_reads() {
        let ours = Region::create(8192).unwrap();
        let theirs = Region::open(ours.file.as_fd()).unwrap();
        assert_eq!(theirs.bytes(), 8192);
        // SAFETY: the place is inside, and nobody reads it now.
        unsafe { *ours.begin().as_ptr().add(2000) = 7.0 };
        assert_eq!((theirs.as_ref()[2000], theirs.as_ref()[1999]), (7.0, 0.0));
    }
}
