//! Pull: keys whose rows are wanted, and slices of those rows.

use std::borrow::Cow;

use super::fields::Fields;
use crate::epoch::Epoch;
use crate::numbers::{Encoding, bytes_of, numbers_of};
use crate::refusal::Refusal;

/// Bytes before the keys.
pub(crate) const PULL_HEAD_BYTES: usize = 32;
/// Bytes before the rows of a slice.
pub(crate) const SLICE_HEAD_BYTES: usize = 16;

/// Keys of one table whose rows are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct PullAsk<'a> {
    /// The epoch of who asks.
    pub epoch: Epoch,
    /// The table's number.
    pub table: u16,
    /// How rows are to be encoded.
    pub encoding: Encoding,
    /// The version to read; none means what was written last.
    pub version: Option<u64>,
    /// The keys.
    pub keys: Cow<'a, [u64]>,
}

/// What a slice of a reply begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceHead {
    /// The number of its first key in the request.
    pub first: u32,
    /// How many keys it has rows of.
    pub count: u32,
    /// Floats of a row.
    pub dim: u32,
    /// How they are encoded.
    pub encoding: Encoding,
}

impl<'a> PullAsk<'a> {
    /// Append the payload.
    pub fn append(&self, payload: &mut Vec<u8>) {
        payload.reserve(PULL_HEAD_BYTES + 8 * self.keys.len());
        payload.extend_from_slice(&self.epoch.run.to_le_bytes());
        payload.extend_from_slice(&self.epoch.recovery.to_le_bytes());
        payload.extend_from_slice(&self.table.to_le_bytes());
        payload.extend_from_slice(&[self.encoding as u8, self.version.is_some().into()]);
        payload.extend_from_slice(&self.version.unwrap_or(0).to_le_bytes());
        payload.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        payload.extend_from_slice(bytes_of(&self.keys));
    }

    /// What a payload says.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a pull", payload);
        let (epoch, table, encoding) = (fields.epoch()?, fields.u16()?, fields.u8()?);
        let (is_at, version, count) = (fields.u8()?, fields.u64()?, fields.u64()?);
        let keys = fields.rest();
        let encoding = encoding_of(&fields, encoding)?;
        let version = match (is_at, version) {
            (0, 0) => None,
            (1, version) => Some(version),
            (is_at, version) => return Err(fields.bad(format!("a version of kind {is_at}: {version}"))),
        };
        if count.checked_mul(8) != Some(keys.len() as u64) {
            return Err(fields.bad(format!("{count} keys in {} bytes", keys.len())));
        }
        Ok(Self { epoch, table, encoding, version, keys: numbers_of(keys) })
    }
}

pub(super) fn encoding_of(fields: &Fields<'_>, number: u8) -> Result<Encoding, Refusal> {
    Encoding::from_number(number).ok_or_else(|| fields.bad(format!("unknown encoding {number}")))
}

impl SliceHead {
    /// The bytes.
    pub fn to_bytes(&self) -> [u8; SLICE_HEAD_BYTES] {
        let mut bytes = [0; SLICE_HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.dim.to_le_bytes());
        bytes[12] = self.encoding as u8;
        bytes
    }

    /// The head of a slice and the block of its rows.
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), Refusal> {
        let mut fields = Fields::new("a slice of rows", payload);
        let (first, count, dim, encoding) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let number =
            u8::try_from(encoding).map_err(|_| fields.bad(format!("unknown encoding {encoding}")))?;
        let (encoding, rows) = (encoding_of(&fields, number)?, fields.rest());
        let wanted = (count as usize).checked_mul(dim as usize).filter(|numbers| *numbers <= rows.len());
        if wanted.is_none_or(|numbers| encoding.bytes(numbers) != rows.len()) {
            return Err(fields.bad(format!("{count} rows of {dim} {encoding:?} in {} bytes", rows.len())));
        }
        Ok((Self { first, count, dim, encoding }, rows))
    }
}
