//! Cursor: a position in the bytes of one record. Knows Avro's primitive encodings and nothing of schemas.

use super::errors::{DecodeStop, Step};
use super::varint::{self, VarintError};

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[cold]
    pub(super) fn fault(&self, reason: String) -> Box<DecodeStop> {
        Box::new(DecodeStop::Fault { reason, at: self.at, path: Vec::new() })
    }

    #[cold]
    fn varint_fault(&self, error: VarintError) -> Box<DecodeStop> {
        self.fault(match error {
            VarintError::Truncated => "truncated inside an integer".to_owned(),
            VarintError::TooLong => "an integer of more than 64 bits".to_owned(),
        })
    }

    #[inline(always)]
    pub(super) fn long(&mut self) -> Step<i64> {
        match varint::read(&self.bytes[self.at..]) {
            Ok((value, length)) => {
                self.at += length;
                Ok(value)
            }
            Err(error) => Err(self.varint_fault(error)),
        }
    }

    #[inline(always)]
    pub(super) fn int(&mut self) -> Step<i32> {
        let value = self.long()?;
        i32::try_from(value).map_err(|_| self.fault(format!("{value} is not a 32-bit integer")))
    }

    #[inline(always)]
    pub(super) fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        if length > self.left() {
            return Err(self.fault(format!("truncated: {length} bytes needed, {} left", self.left())));
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    #[inline(always)]
    pub(super) fn float(&mut self) -> Step<f32> {
        self.array().map(f32::from_le_bytes)
    }

    #[inline(always)]
    pub(super) fn double(&mut self) -> Step<f64> {
        self.array().map(f64::from_le_bytes)
    }

    #[inline(always)]
    pub(super) fn boolean(&mut self) -> Step<u8> {
        let [byte] = self.array()?;
        if byte > 1 {
            return Err(self.fault(format!("a boolean of {byte}")));
        }
        Ok(byte)
    }

    /// Reads a length-prefixed string or byte string.
    #[inline(always)]
    pub(super) fn text(&mut self) -> Step<&'a [u8]> {
        let length = self.long()?;
        match usize::try_from(length) {
            Ok(length) => self.take(length),
            Err(_) => Err(self.fault(format!("a length of {length}"))),
        }
    }

    /// Reads an index below `count`: a union's branch or an enum's symbol.
    #[inline(always)]
    pub(super) fn index(&mut self, count: usize, noun: &str) -> Step<usize> {
        let index = self.long()?;
        match usize::try_from(index) {
            Ok(index) if index < count => Ok(index),
            _ => Err(self.fault(format!("{noun} {index} of {count}"))),
        }
    }

    /// The next block of an array or map, or None at its end. An item has at least `item_bytes_min` bytes.
    #[inline(always)]
    pub(super) fn block(&mut self, item_bytes_min: usize) -> Step<Option<AvroBlock>> {
        let count = self.long()?;
        if count == 0 {
            return Ok(None);
        }
        let (items, end) = if count > 0 { (count, None) } else { self.sized_block(count)? };
        let bytes_min = (items as u64).saturating_mul(item_bytes_min as u64);
        if bytes_min > self.left() as u64 {
            return Err(self.fault(format!("a block of {items} items in {} bytes", self.left())));
        }
        Ok(Some(AvroBlock { items: items as u64, end }))
    }

    #[cold]
    fn sized_block(&mut self, count: i64) -> Step<(i64, Option<usize>)> {
        let length = self.long()?;
        let items = count.checked_neg().ok_or_else(|| self.fault(format!("a block of {count} items")))?;
        match usize::try_from(length) {
            Ok(length) if length <= self.left() => Ok((items, Some(self.at + length))),
            _ => Err(self.fault(format!("a block of {length} bytes, {} left", self.left()))),
        }
    }

    /// Checks that a block that stated its size in bytes has exactly that size.
    #[inline(always)]
    pub(super) fn end_block(&self, block: &AvroBlock) -> Step {
        match block.end {
            Some(end) if end != self.at => Err(self.fault(format!("a block should end at byte {end}"))),
            _ => Ok(()),
        }
    }
}

pub(super) struct AvroBlock {
    pub(super) items: u64,
    end: Option<usize>,
}
