//! Pull: a request for the rows of keys, and slices of those rows.

use std::borrow::Cow;

use super::fields::Fields;
use crate::epoch::Epoch;
use crate::numbers::{Encoding, bytes_of, numbers_of};
use crate::refusal::Refusal;

/// Bytes before the keys.
pub(crate) const PULL_HEAD_BYTES: usize = 32;
/// Bytes before the rows of a slice.
pub(crate) const SLICE_HEAD_BYTES: usize = 16;

/// A request for rows of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct PullAsk<'a> {
    /// The client's epoch.
    pub epoch: Epoch,
    /// The table's number.
    pub table: u16,
    /// The encoding of the reply's rows.
    pub encoding: Encoding,
    /// The version to read; `None` means the latest writes.
    pub version: Option<u64>,
    /// The keys.
    pub keys: Cow<'a, [u64]>,
}

/// The head of a reply's slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceHead {
    /// The index of the slice's first key in the request.
    pub first: u32,
    /// The number of rows.
    pub count: u32,
    /// The floats in a row.
    pub dim: u32,
    /// The rows' encoding.
    pub encoding: Encoding,
}

impl<'a> PullAsk<'a> {
    /// Appends the encoded payload.
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

    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a pull", payload);
        let (epoch, table, encoding) = (fields.epoch()?, fields.u16()?, fields.u8()?);
        let (has_version, version, count) = (fields.u8()?, fields.u64()?, fields.u64()?);
        let keys = fields.rest();
        let encoding = encoding_of(&fields, encoding)?;
        let version = match (has_version, version) {
            (0, 0) => None,
            (1, version) => Some(version),
            (has_version, version) => {
                return Err(fields
                    .bad(format!("version {version} has the presence flag {has_version}, expected 0 or 1")));
            }
        };
        if count.checked_mul(8) != Some(keys.len() as u64) {
            return Err(fields.bad(format!("{count} keys do not fit {} bytes", keys.len())));
        }
        Ok(Self { epoch, table, encoding, version, keys: numbers_of(keys) })
    }
}

pub(super) fn encoding_of(fields: &Fields<'_>, number: u8) -> Result<Encoding, Refusal> {
    Encoding::from_number(number).ok_or_else(|| fields.bad(format!("unknown encoding {number}")))
}

impl SliceHead {
    /// Encodes the head.
    pub fn to_bytes(&self) -> [u8; SLICE_HEAD_BYTES] {
        let mut bytes = [0; SLICE_HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.dim.to_le_bytes());
        bytes[12] = self.encoding as u8;
        bytes
    }

    /// Decodes the head of a slice, and returns it with the bytes of the rows.
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), Refusal> {
        let mut fields = Fields::new("a slice of rows", payload);
        let (first, count, dim, encoding) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let number =
            u8::try_from(encoding).map_err(|_| fields.bad(format!("unknown encoding {encoding}")))?;
        let (encoding, rows) = (encoding_of(&fields, number)?, fields.rest());
        let number_count =
            (count as usize).checked_mul(dim as usize).filter(|numbers| *numbers <= rows.len());
        if number_count.is_none_or(|numbers| encoding.bytes(numbers) != rows.len()) {
            return Err(
                fields.bad(format!("{count} rows of {dim} {encoding:?} do not fit {} bytes", rows.len()))
            );
        }
        Ok((Self { first, count, dim, encoding }, rows))
    }
}
