//! Elements: iterates over the numbers and texts of a tensor in any of its encodings. Knows nothing of their
//! use.

use super::fields::{Field, Fields, Torn, varint};
use super::scalars;
use super::tensor::{Datatype, Elements, Tensor};

/// The error for bytes that are not a valid message.
pub const TORN: &str = "cannot decode its contents as a protobuf message";

/// Calls `take` with each element, which must be `count` integers.
pub fn each_int(tensor: &Tensor<'_>, count: usize, mut take: impl FnMut(i64)) -> Result<(), String> {
    let mut too_large = None;
    let mut unsigned = |value: u64, take: &mut dyn FnMut(i64)| match i64::try_from(value) {
        Ok(value) => take(value),
        Err(_) => too_large = too_large.or(Some(value)),
    };
    match (tensor.elements, tensor.datatype) {
        (Elements::Raw(bytes), Datatype::Int64) => {
            raw(bytes, count)?.for_each(|element| take(i64::from_le_bytes(element)));
        }
        (Elements::Raw(bytes), Datatype::Int32) => {
            raw(bytes, count)?.for_each(|element| take(i32::from_le_bytes(element).into()));
        }
        (Elements::Raw(bytes), Datatype::Uint32) => {
            raw(bytes, count)?.for_each(|element| take(u32::from_le_bytes(element).into()));
        }
        (Elements::Raw(bytes), _) => {
            raw(bytes, count)?.for_each(|element| unsigned(u64::from_le_bytes(element), &mut take));
        }
        (Elements::Typed(bytes), datatype) => typed_ints(bytes, datatype, count, |value| match datatype {
            Datatype::Int32 => take((value as i32).into()),
            Datatype::Int64 => take(value as i64),
            Datatype::Uint32 => take((value as u32).into()),
            _ => unsigned(value, &mut take),
        })?,
        (Elements::Json(text), datatype) => scalars::each_int(text, tensor.shape, |value| {
            let (least, most) = match datatype {
                Datatype::Int32 => (i32::MIN.into(), i32::MAX.into()),
                Datatype::Uint32 => (0, u32::MAX.into()),
                Datatype::Uint64 => (0, i64::MAX),
                _ => (i64::MIN, i64::MAX),
            };
            if !(least..=most).contains(&value) {
                return Err(format!("{value} is not of type {}", datatype.name()));
            }
            take(value);
            Ok(())
        })?,
    }
    match too_large {
        None => Ok(()),
        Some(value) => Err(format!("the value {value} does not fit a signed 64-bit integer")),
    }
}

/// Calls `take` with each element, which must be `count` numbers that are finite as float32.
pub fn each_float(tensor: &Tensor<'_>, count: usize, mut take: impl FnMut(f32)) -> Result<(), String> {
    let mut not_finite = None;
    let mut check = |value: f64, take: &mut dyn FnMut(f32)| {
        let value_f32 = value as f32;
        if value_f32.is_finite() { take(value_f32) } else { not_finite = not_finite.or(Some(value)) }
    };
    match (tensor.elements, tensor.datatype) {
        (Elements::Raw(bytes), Datatype::Fp32) => {
            raw(bytes, count)?.for_each(|element| check(f32::from_le_bytes(element).into(), &mut take));
        }
        (Elements::Raw(bytes), _) => {
            raw(bytes, count)?.for_each(|element| check(f64::from_le_bytes(element), &mut take));
        }
        (Elements::Typed(bytes), Datatype::Fp32) => {
            typed_fixed(bytes, 6, count, |element| check(f32::from_le_bytes(element).into(), &mut take))?;
        }
        (Elements::Typed(bytes), _) => {
            typed_fixed(bytes, 7, count, |element| check(f64::from_le_bytes(element), &mut take))?;
        }
        (Elements::Json(text), _) => scalars::each_float(text, tensor.shape, |value| {
            check(value, &mut take);
            Ok(())
        })?,
    }
    match not_finite {
        None => Ok(()),
        Some(value) => Err(format!("the value {value} is not finite as float32")),
    }
}

/// Calls `take` with each element, which must be `count` texts.
pub fn each_text(tensor: &Tensor<'_>, count: usize, mut take: impl FnMut(&str)) -> Result<(), String> {
    let mut number = 0;
    let mut check = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|_| format!("value {number} is not valid UTF-8"))?;
        number += 1;
        if number <= count {
            take(text);
        }
        Ok::<(), String>(())
    };
    match tensor.elements {
        Elements::Raw(mut bytes) => {
            for at in 0..count {
                let truncated = || {
                    format!("the {} bytes end within value {at} of {count}; expected {LENGTHS}", bytes.len())
                };
                let (length, rest) = bytes.split_first_chunk().ok_or_else(truncated)?;
                let (text, rest) =
                    rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(truncated)?;
                check(text)?;
                bytes = rest;
            }
            if !bytes.is_empty() {
                return Err(format!("{} extra bytes after {count} values", bytes.len()));
            }
            return Ok(());
        }
        Elements::Typed(bytes) => {
            for field in Fields(bytes) {
                match field.map_err(|Torn| TORN)? {
                    (8, Field::Bytes(text)) => check(text)?,
                    (1..=8, _) => return Err(other_field(Datatype::Bytes)),
                    _ => {}
                }
            }
        }
        Elements::Json(text) => scalars::each_text(text, tensor.shape, |text| check(text.as_bytes()))?,
    }
    has_count(number, count)
}

const LENGTHS: &str = "a little-endian length of 4 bytes before each";

fn has_count(actual: usize, count: usize) -> Result<(), String> {
    if actual == count {
        return Ok(());
    }
    Err(format!("its contents have {actual} values, its shape {count}"))
}

/// The elements of `N` bytes each in concatenated bytes.
fn raw<const N: usize>(bytes: &[u8], count: usize) -> Result<impl Iterator<Item = [u8; N]>, String> {
    if bytes.len() / N != count || !bytes.len().is_multiple_of(N) {
        return Err(format!("{} bytes, expected {count} values of {N} bytes each", bytes.len()));
    }
    Ok(chunks(bytes))
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|chunk| {
        let mut element = [0; N];
        element.copy_from_slice(chunk);
        element
    })
}

fn other_field(datatype: Datatype) -> String {
    format!("its contents do not have the type {}", datatype.name())
}

fn typed_ints(
    bytes: &[u8],
    datatype: Datatype,
    count: usize,
    mut take: impl FnMut(u64),
) -> Result<(), String> {
    let own_field = match datatype {
        Datatype::Int32 => 2,
        Datatype::Int64 => 3,
        Datatype::Uint32 => 4,
        _ => 5,
    };
    let mut actual = 0;
    let mut add = |value| {
        actual += 1;
        if actual <= count {
            take(value);
        }
    };
    for field in Fields(bytes) {
        match field.map_err(|Torn| TORN)? {
            (number, Field::Varint(value)) if number == own_field => add(value),
            (number, Field::Bytes(mut packed)) if number == own_field => {
                while !packed.is_empty() {
                    let (value, rest) = varint(packed).map_err(|Torn| TORN)?;
                    add(value);
                    packed = rest;
                }
            }
            (1..=8, _) => return Err(other_field(datatype)),
            _ => {}
        }
    }
    has_count(actual, count)
}

fn typed_fixed<const N: usize>(
    bytes: &[u8],
    own_field: u32,
    count: usize,
    mut take: impl FnMut([u8; N]),
) -> Result<(), String> {
    let datatype = if N == 4 { Datatype::Fp32 } else { Datatype::Fp64 };
    let mut actual = 0;
    let mut add = |bytes: &[u8]| {
        for element in chunks(bytes) {
            actual += 1;
            if actual <= count {
                take(element);
            }
        }
        if bytes.len().is_multiple_of(N) { Ok(()) } else { Err(TORN) }
    };
    for field in Fields(bytes) {
        match field.map_err(|Torn| TORN)? {
            (number, Field::Bytes(packed)) if number == own_field => add(packed)?,
            (number, Field::Four(bytes)) if number == own_field && N == 4 => add(&bytes)?,
            (number, Field::Eight(bytes)) if number == own_field && N == 8 => add(&bytes)?,
            (1..=8, _) => return Err(other_field(datatype)),
            _ => {}
        }
    }
    has_count(actual, count)
}
