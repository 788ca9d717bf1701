//! Bytes of saves: little-endian numbers and columns, after a magic and version, before a CRC32C.

use streamlearn_wire::checksum::crc32c;

use crate::error::{Error, Result};

/// A number type that columns hold.
pub(crate) trait Number: Copy {
    fn put(self, out: &mut Vec<u8>);
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
        }
    )*};
}

numbers!(u8, u16, i32, u32, i64, u64, f32);

/// Writes bytes.
pub(crate) struct Writer {
    out: Vec<u8>,
}

impl Writer {
    pub fn new(magic: &[u8; 4], version: u16) -> Self {
        let mut out = magic.to_vec();
        version.put(&mut out);
        Self { out }
    }

    pub fn u64(&mut self, value: u64) {
        value.put(&mut self.out);
    }

    pub fn i64(&mut self, value: i64) {
        value.put(&mut self.out);
    }

    pub fn bytes(&mut self, value: &[u8]) {
        self.u64(value.len() as u64);
        self.out.extend_from_slice(value);
    }

    pub fn column<T: Number>(&mut self, values: &[T]) {
        self.u64(values.len() as u64);
        self.out.reserve(size_of_val(values));
        for &value in values {
            value.put(&mut self.out);
        }
    }

    /// The written bytes and their checksum.
    pub fn finish(mut self) -> Vec<u8> {
        let sum = crc32c(0, &self.out);
        sum.put(&mut self.out);
        self.out
    }
}

/// Reads what `Writer` wrote and rejects anything else.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

fn broken<T>(text: String) -> Result<T> {
    Err(Error::Bytes(text))
}

impl<'a> Reader<'a> {
    /// Checks the frame of bytes of one of some versions; returns that version too.
    pub fn new(bytes: &'a [u8], magic: &[u8; 4], versions: &[u16]) -> Result<(Self, u16)> {
        let Some((body, sum)) = bytes.split_last_chunk::<4>() else {
            return broken(format!("{} bytes are too short", bytes.len()));
        };
        let (computed, stated) = (crc32c(0, body), u32::from_le_bytes(*sum));
        if computed != stated {
            return broken(format!("the checksum is {stated:08x}, but the bytes have {computed:08x}"));
        }
        let mut reader = Self { rest: body };
        let head = reader.take(4)?;
        if head != magic {
            return broken(format!("the first bytes are {head:02x?}, expected {magic:02x?}"));
        }
        let found_version = u16::get(reader.take(2)?);
        if !versions.contains(&found_version) {
            return broken(format!("the format version is {found_version}, expected one of {versions:?}"));
        }
        Ok((reader, found_version))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((taken, remaining)) => {
                self.rest = remaining;
                Ok(taken)
            }
            None => broken(format!("the input ends {} bytes early", length - self.rest.len())),
        }
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.take(8).map(u64::get)
    }

    pub fn i64(&mut self) -> Result<i64> {
        self.take(8).map(i64::get)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.u64()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    pub fn column<T: Number>(&mut self) -> Result<Vec<T>> {
        let length = self.u64()?;
        let bytes = usize::try_from(length).ok().and_then(|length| length.checked_mul(size_of::<T>()));
        let taken = self.take(bytes.unwrap_or(usize::MAX))?;
        Ok(taken.chunks_exact(size_of::<T>()).map(T::get).collect())
    }

    /// Checks that no bytes are left.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            broken(format!("{} extra bytes at the end", self.rest.len()))
        }
    }
}
