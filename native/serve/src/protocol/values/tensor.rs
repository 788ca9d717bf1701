//! A tensor as a caller sent it: a shape, a datatype and elements where they lie. It knows no column.

use std::fmt;

use serde_json::value::RawValue;

use super::elements;
use super::fields::{Field, Fields, Torn, varint};
use super::keys::Keys;

/// Types of elements that are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    /// Whole numbers of 32 bits.
    Int32,
    /// Whole numbers of 64 bits.
    Int64,
    /// Whole numbers of 32 bits, none negative.
    Uint32,
    /// Whole numbers of 64 bits, none negative.
    Uint64,
    /// Numbers of 32 bits.
    Fp32,
    /// Numbers of 64 bits.
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

    /// The datatype of a name, if it is one that is taken.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(datatype, _)| *datatype)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(datatype, _)| *datatype == self).map_or("", |(_, name)| name)
    }

    /// Whether elements are whole numbers.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64 | Self::Uint32 | Self::Uint64)
    }

    /// Whether elements are numbers that need not be whole.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Fp32 | Self::Fp64)
    }
}

/// Dimensions; those beyond the second are only counted, for nothing here has more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    dims: [u64; 2],
    rank: usize,
}

impl Shape {
    /// One dimension more, unless it is negative.
    pub fn push(&mut self, dim: i64) -> Result<(), String> {
        let dim = u64::try_from(dim).map_err(|_| format!("a dimension of its shape is {dim}"))?;
        if let Some(place) = self.dims.get_mut(self.rank) {
            *place = dim;
        }
        self.rank += 1;
        Ok(())
    }

    /// The dimensions, if there are at most two.
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

/// Where a tensor's elements lie.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// End to end, little-endian; texts with their lengths before them.
    Raw(&'a [u8]),
    /// In a message with a field for each type.
    Typed(&'a [u8]),
    /// In JSON.
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
    /// How many elements its shape says, which are at most `values_max`.
    pub fn count(&self, values_max: usize) -> Result<usize, String> {
        let dims = self.shape.dims().unwrap_or_default();
        let count = dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        fits(count, values_max).map_err(|_| {
            format!("shape {} is of more values than {values_max}, the most there may be", self.shape)
        })?;
        Ok(count)
    }

    /// What its elements become, which are `count` whole numbers.
    pub fn int_keys(&self, count: usize, salt: u64, of: &Keys) -> Result<Vec<u64>, String> {
        let mut keys = self.room(count)?;
        elements::each_int(self, count, |value| keys.push(of.of_int(value, salt)))?;
        Ok(keys)
    }

    /// What its elements become, which are `count` texts.
    pub fn text_keys(&self, count: usize, salt: u64, of: &Keys) -> Result<Vec<u64>, String> {
        let mut keys = self.room(count)?;
        elements::each_text(self, count, |text| keys.push(of.of_text(text, salt)))?;
        Ok(keys)
    }

    /// Its elements, which are `count` numbers, all finite as float32.
    pub fn floats(&self, count: usize) -> Result<Vec<f32>, String> {
        let mut floats = self.room(count)?;
        elements::each_float(self, count, |value| floats.push(value))?;
        Ok(floats)
    }

    /// Where the values of each of `count` candidates begin and the last's end; its elements say how many each has.
    pub fn offsets(&self, count: usize, values: usize) -> Result<Vec<i32>, String> {
        let (mut offsets, mut wrong) = (Vec::with_capacity(self.room::<i32>(count)?.capacity() + 1), None);
        let mut end = 0usize;
        offsets.push(0);
        elements::each_int(self, count, |length| match usize::try_from(length) {
            Ok(length) if length <= values - end => {
                end += length;
                // Not more than values, which an offset can count.
                offsets.push(end as i32);
            }
            _ => wrong = wrong.or(Some(length)),
        })?;
        if let Some(length) = wrong {
            return Err(format!("one of its lengths is {length}, and there are {values} values in all"));
        }
        if end != values {
            return Err(format!("its lengths are {end} together, and there are {values} values"));
        }
        Ok(offsets)
    }

    /// Memory for `count` elements, once so many can be there at all.
    fn room<T>(&self, count: usize) -> Result<Vec<T>, String> {
        let there = match (self.elements, self.datatype) {
            (Elements::Raw(bytes), Datatype::Int64 | Datatype::Uint64 | Datatype::Fp64) => bytes.len() / 8,
            (Elements::Raw(bytes), _) => bytes.len() / 4,
            (Elements::Typed(bytes), _) => bytes.len(),
            (Elements::Json(text), _) => text.get().len(),
        };
        Ok(Vec::with_capacity(count.min(there)))
    }
}

/// A tensor's message: its name, and the tensor once it is known where its elements lie.
pub struct Head<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its datatype, as it was written.
    pub datatype: &'a str,
    /// Its shape.
    pub shape: Shape,
    /// Its contents, if they stand in the message itself.
    pub contents: Option<&'a [u8]>,
    /// The name of a parameter, if it has one.
    pub parameter: Option<&'a str>,
}

/// Why a tensor's message is refused: it is none, or what it says cannot be.
pub enum BadHead {
    /// It is no message.
    Torn,
    /// What it says cannot be.
    Wrong(String),
}

impl From<Torn> for BadHead {
    fn from(_: Torn) -> Self {
        Self::Torn
    }
}

/// The beginning of a text, as an error shows it: of what a caller sent, no error takes more.
pub fn cut(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

/// A text in a message.
pub fn text(bytes: &[u8]) -> Result<&str, Torn> {
    std::str::from_utf8(bytes).map_err(|_| Torn)
}

impl<'a> Head<'a> {
    /// Read a tensor's message.
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
            .map_err(|said| BadHead::Wrong(format!("input {:?}: {said}", cut(self.name))))
    }
}

/// The name that an entry of a map begins with.
pub fn entry_name(entry: &[u8]) -> Result<&str, Torn> {
    for field in Fields(entry) {
        if let (1, Field::Bytes(name)) = field? {
            return text(name);
        }
    }
    Ok("")
}
