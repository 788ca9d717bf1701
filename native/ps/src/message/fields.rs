//! Fields: numbers and bytes read one after another, never beyond the end.

use crate::epoch::Epoch;
use crate::refusal::{Code, Refusal};

/// What is left of a payload.
pub struct Fields<'a> {
    name: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// All of a payload, as errors call it.
    pub fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self { name, bytes, at: 0 }
    }

    /// The next bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let left = self.bytes.len() - self.at;
        if count > left {
            let text =
                format!("{} of {} bytes: byte {} wants {count} more", self.name, self.bytes.len(), self.at);
            return Err(Refusal::new(Code::BadRequest, text));
        }
        let taken = &self.bytes[self.at..][..count];
        self.at += count;
        Ok(taken)
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Refusal> {
        Ok(self.take(COUNT)?.try_into().expect("as many as were asked for"))
    }

    pub fn u8(&mut self) -> Result<u8, Refusal> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Refusal> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Result<u128, Refusal> {
        self.array().map(u128::from_le_bytes)
    }

    pub fn f32(&mut self) -> Result<f32, Refusal> {
        self.array().map(f32::from_le_bytes)
    }

    pub fn bytes32(&mut self) -> Result<[u8; 32], Refusal> {
        self.array()
    }

    /// Bytes behind their count of 16 bits.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], Refusal> {
        let count = self.u16()?;
        self.take(count.into())
    }

    /// An epoch of 12 bytes.
    pub fn epoch(&mut self) -> Result<Epoch, Refusal> {
        Ok(Epoch { run: self.u64()?, recovery: self.u32()? })
    }

    /// An epoch there may be: 16 bytes.
    pub fn optional_epoch(&mut self) -> Result<Option<Epoch>, Refusal> {
        let (epoch, is_there) = (self.epoch()?, self.u32()?);
        match (is_there, epoch) {
            (1, epoch) => Ok(Some(epoch)),
            (0, Epoch { run: 0, recovery: 0 }) => Ok(None),
            _ => Err(self.bad(format!("an epoch {epoch} that says {is_there} of whether it is one"))),
        }
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Refusal> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(self.bad(format!("{} of {} bytes were decoded", self.at, self.bytes.len())))
    }

    /// A refusal of this payload.
    pub fn bad(&self, text: String) -> Refusal {
        Refusal::new(Code::BadRequest, format!("{}: {text}", self.name))
    }
}

/// Append an epoch there may be.
pub fn append_epoch(into: &mut Vec<u8>, epoch: Option<Epoch>) {
    let said = epoch.unwrap_or(Epoch { run: 0, recovery: 0 });
    into.extend_from_slice(&said.run.to_le_bytes());
    into.extend_from_slice(&said.recovery.to_le_bytes());
    into.extend_from_slice(&u32::from(epoch.is_some()).to_le_bytes());
}
