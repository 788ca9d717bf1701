//! A tensor of a request: a shape, a datatype and the encoded elements. Knows no column.

use std::fmt;

use serde_json::value::RawValue;

use super::elements;
use super::fields::{Field, Fields, Torn, varint};
use super::keys::Keys;

/// The supported element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    /// 32-bit integers.
    Int32,
    /// 64-bit integers.
    Int64,
    /// Unsigned 32-bit integers.
    Uint32,
    /// Unsigned 64-bit integers.
    Uint64,
    /// 32-bit floats.
    Fp32,
    /// 64-bit floats.
    Fp64,
    /// Texts.
    Bytes,
}

impl Datatype {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Int32, "INT32"),
        (Self::Int64, "INT64"),
        (Self::Uint32, "UINT32"),
        (Self::Uint64, "UINT64"),
        (Self::Fp32, "FP32"),
        (Self::Fp64, "FP64"),
        (Self::Bytes, "BYTES"),
    ];

    /// Returns the datatype with a name, if it is supported.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(datatype, _)| *datatype)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(datatype, _)| *datatype == self).map_or("", |(_, name)| name)
    }

    /// Whether elements are integers.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64 | Self::Uint32 | Self::Uint64)
    }

    /// Whether elements are floats.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Fp32 | Self::Fp64)
    }
}

/// Dimensions; those after the second are only counted, because no input has more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    dims: [u64; 2],
    rank: usize,
}

impl Shape {
    /// Adds a dimension; it must not be negative.
    pub fn push(&mut self, dim: i64) -> Result<(), String> {
        let dim = u64::try_from(dim).map_err(|_| format!("a dimension of its shape is {dim}"))?;
        if let Some(slot) = self.dims.get_mut(self.rank) {
            *slot = dim;
        }
        self.rank += 1;
        Ok(())
    }

    /// Returns the dimensions, if there are at most two.
    pub fn dims(&self) -> Option<&[u64]> {
        self.dims.get(..self.rank)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dims() {
            Some(dims) => write!(f, "{dims:?}"),
            None => write!(f, "[{}, {}, ... {} dimensions]", self.dims[0], self.dims[1], self.rank),
        }
    }
}

/// A tensor's encoded elements.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// Concatenated little-endian values; each text follows its length.
    Raw(&'a [u8]),
    /// A message with a field for each type.
    Typed(&'a [u8]),
    /// JSON.
    Json(&'a RawValue),
}

/// A tensor.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its elements' type.
    pub datatype: Datatype,
    /// Its shape.
    pub shape: Shape,
    /// Its elements.
    pub elements: Elements<'a>,
}

fn fits(values: usize, values_max: usize) -> Result<(), String> {
    if values > values_max {
        return Err(format!("{values} values, expected at most {values_max}"));
    }
    Ok(())
}

impl Tensor<'_> {
    /// Returns the number of elements in the shape, at most `values_max`.
    pub fn count(&self, values_max: usize) -> Result<usize, String> {
        let dims = self.shape.dims().unwrap_or_default();
        let count = dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        fits(count, values_max)
            .map_err(|_| format!("shape {} has more than {values_max} values", self.shape))?;
        Ok(count)
    }

    /// Returns the keys of its elements, which must be `count` integers.
    pub fn int_keys(&self, count: usize, salt: u64, hashing: &Keys) -> Result<Vec<u64>, String> {
        let mut keys = self.room(count)?;
        elements::each_int(self, count, |value| keys.push(hashing.of_int(value, salt)))?;
        Ok(keys)
    }

    /// Returns the keys of its elements, which must be `count` texts.
    pub fn text_keys(&self, count: usize, salt: u64, hashing: &Keys) -> Result<Vec<u64>, String> {
        let mut keys = self.room(count)?;
        elements::each_text(self, count, |text| keys.push(hashing.of_text(text, salt)))?;
        Ok(keys)
    }

    /// Returns its elements, which must be `count` numbers that are finite as float32.
    pub fn floats(&self, count: usize) -> Result<Vec<f32>, String> {
        let mut floats = self.room(count)?;
        elements::each_float(self, count, |value| floats.push(value))?;
        Ok(floats)
    }

    /// Returns the offsets of each candidate's values and the end of the last; the elements are `count`
    /// lengths.
    pub fn offsets(&self, count: usize, values: usize) -> Result<Vec<i32>, String> {
        let (mut offsets, mut bad_length) =
            (Vec::with_capacity(self.room::<i32>(count)?.capacity() + 1), None);
        let mut end = 0usize;
        offsets.push(0);
        elements::each_int(self, count, |length| match usize::try_from(length) {
            Ok(length) if length <= values - end => {
                end += length;
                // At most `values`, which fits an offset.
                offsets.push(end as i32);
            }
            _ => bad_length = bad_length.or(Some(length)),
        })?;
        if let Some(length) = bad_length {
            return Err(format!("one of its lengths is {length}, for {values} values in all"));
        }
        if end != values {
            return Err(format!("the sum of its lengths is {end}, for {values} values"));
        }
        Ok(offsets)
    }

    /// Allocates for `count` elements, but for no more than the bytes can hold.
    fn room<T>(&self, count: usize) -> Result<Vec<T>, String> {
        let elements_max = match (self.elements, self.datatype) {
            (Elements::Raw(bytes), Datatype::Int64 | Datatype::Uint64 | Datatype::Fp64) => bytes.len() / 8,
            (Elements::Raw(bytes), _) => bytes.len() / 4,
            (Elements::Typed(bytes), _) => bytes.len(),
            (Elements::Json(text), _) => text.get().len(),
        };
        Ok(Vec::with_capacity(count.min(elements_max)))
    }
}

/// A tensor's message, with its contents not decoded.
pub struct Head<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its datatype, as written.
    pub datatype: &'a str,
    /// Its shape.
    pub shape: Shape,
    /// Its contents, if they are in the message itself.
    pub contents: Option<&'a [u8]>,
    /// The name of a parameter, if there is one.
    pub parameter: Option<&'a str>,
}

/// Why a tensor's message is refused.
pub enum BadHead {
    /// The bytes are not a valid message.
    Torn,
    /// The content is invalid.
    Wrong(String),
}

impl From<Torn> for BadHead {
    fn from(_: Torn) -> Self {
        Self::Torn
    }
}

/// The start of a caller's text, as errors quote it: at most 80 characters.
pub fn cut(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

/// Decodes a text in a message.
pub fn text(bytes: &[u8]) -> Result<&str, Torn> {
    std::str::from_utf8(bytes).map_err(|_| Torn)
}

impl<'a> Head<'a> {
    /// Decodes a tensor's message.
    pub fn read(bytes: &'a [u8]) -> Result<Self, BadHead> {
        let mut head =
            Self { name: "", datatype: "", shape: Shape::default(), contents: None, parameter: None };
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(name)) => head.name = text(name)?,
                (2, Field::Bytes(datatype)) => head.datatype = text(datatype)?,
                (3, Field::Varint(dim)) => head.dim(dim)?,
                (3, Field::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        let (dim, rest) = varint(packed)?;
                        head.dim(dim)?;
                        packed = rest;
                    }
                }
                (4, Field::Bytes(entry)) => head.parameter = Some(entry_name(entry)?),
                (5, Field::Bytes(_)) if head.contents.is_some() => {
                    return Err(BadHead::Wrong(format!("input {:?} has contents twice", cut(head.name))));
                }
                (5, Field::Bytes(contents)) => head.contents = Some(contents),
                (1..=5, _) => return Err(BadHead::Torn),
                _ => {}
            }
        }
        Ok(head)
    }

    fn dim(&mut self, dim: u64) -> Result<(), BadHead> {
        self.shape
            .push(dim as i64)
            .map_err(|text| BadHead::Wrong(format!("input {:?}: {text}", cut(self.name))))
    }
}

/// Returns the name in a map entry.
pub fn entry_name(entry: &[u8]) -> Result<&str, Torn> {
    for field in Fields(entry) {
        if let (1, Field::Bytes(name)) = field? {
            return text(name);
        }
    }
    Ok("")
}
