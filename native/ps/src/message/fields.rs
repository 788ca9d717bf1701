//! Fields: reads numbers and bytes from a payload in order, never beyond its end.

use crate::epoch::Epoch;
use crate::refusal::{Code, Refusal};

/// The unread rest of a payload.
pub struct Fields<'a> {
    name: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Starts at the beginning of a payload; errors use `name`.
    pub fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self { name, bytes, at: 0 }
    }

    /// Takes the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let remaining = self.bytes.len() - self.at;
        if count > remaining {
            let text =
                format!("{} of {} bytes: byte {} needs {count} more", self.name, self.bytes.len(), self.at);
            return Err(Refusal::new(Code::BadRequest, text));
        }
        let bytes = &self.bytes[self.at..][..count];
        self.at += count;
        Ok(bytes)
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Refusal> {
        Ok(self.take(COUNT)?.try_into().expect("take returns COUNT bytes"))
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

    /// Takes bytes that follow their 16-bit count.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], Refusal> {
        let count = self.u16()?;
        self.take(count.into())
    }

    /// Takes an epoch, 12 bytes.
    pub fn epoch(&mut self) -> Result<Epoch, Refusal> {
        Ok(Epoch { run: self.u64()?, recovery: self.u32()? })
    }

    /// Takes an optional epoch, 16 bytes.
    pub fn optional_epoch(&mut self) -> Result<Option<Epoch>, Refusal> {
        let (epoch, presence) = (self.epoch()?, self.u32()?);
        match (presence, epoch) {
            (1, epoch) => Ok(Some(epoch)),
            (0, Epoch { run: 0, recovery: 0 }) => Ok(None),
            _ => Err(self.bad(format!("epoch {epoch} has the presence flag {presence}, expected 0 or 1"))),
        }
    }

    /// Takes all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Fails if bytes remain.
    pub fn end(&self) -> Result<(), Refusal> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(self.bad(format!("{} of {} bytes were decoded", self.at, self.bytes.len())))
    }

    /// Returns a refusal that names this payload.
    pub fn bad(&self, text: String) -> Refusal {
        Refusal::new(Code::BadRequest, format!("{}: {text}", self.name))
    }
}

/// Appends an optional epoch.
pub fn append_epoch(into: &mut Vec<u8>, epoch: Option<Epoch>) {
    let encoded = epoch.unwrap_or(Epoch { run: 0, recovery: 0 });
    into.extend_from_slice(&encoded.run.to_le_bytes());
    into.extend_from_slice(&encoded.recovery.to_le_bytes());
    into.extend_from_slice(&u32::from(epoch.is_some()).to_le_bytes());
}
