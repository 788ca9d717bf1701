//! Defaults: encodes a field's JSON default as the Avro bytes of its shape, so that one decoder also fills in
//! defaults.

use serde_json::Value;

use super::shape::{Shape, ShapeField};
use super::varint;

/// Maximum bytes of one default: an array of records may repeat many nested defaults.
const BYTES_MAX: usize = 1 << 20;

/// The default as bytes, or the reason why it does not fit the shape.
pub(super) fn encode(value: &Value, shape: &Shape) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    write(value, shape, &mut out)?;
    Ok(out)
}

fn write(value: &Value, shape: &Shape, out: &mut Vec<u8>) -> Result<(), String> {
    if out.len() > BYTES_MAX {
        return Err(format!("more than {BYTES_MAX} bytes"));
    }
    let wrong = |noun: &str| Err(format!("{value} is not {noun}"));
    match shape {
        Shape::Null => match value {
            Value::Null => {}
            _ => return wrong("null"),
        },
        Shape::Boolean(_) => match value.as_bool() {
            Some(value) => out.push(u8::from(value)),
            None => return wrong("a boolean"),
        },
        Shape::Int(_) => match value.as_i64().map(i32::try_from) {
            Some(Ok(value)) => varint::write(out, i64::from(value)),
            _ => return wrong("a 32-bit integer"),
        },
        Shape::Long(_) => match value.as_i64() {
            Some(value) => varint::write(out, value),
            None => return wrong("a 64-bit integer"),
        },
        Shape::Float(_) => match value.as_f64() {
            Some(value) => out.extend((value as f32).to_le_bytes()),
            None => return wrong("a number"),
        },
        Shape::Double(_) => match value.as_f64() {
            Some(value) => out.extend(value.to_le_bytes()),
            None => return wrong("a number"),
        },
        Shape::Text(text) => match value.as_str().and_then(|value| text_bytes(value, text.utf8)) {
            Some(bytes) => {
                varint::write(out, bytes.len() as i64);
                out.extend(bytes);
            }
            None => {
                return wrong(if text.utf8 { "a string" } else { "a string of bytes (U+0000 to U+00FF)" });
            }
        },
        Shape::Enum { symbols, .. } => {
            match symbols.iter().position(|symbol| Some(symbol.as_str()) == value.as_str()) {
                Some(place) => varint::write(out, place as i64),
                None => return wrong("one of the enum's symbols"),
            }
        }
        Shape::Record(fields) => write_record(value, fields, out)?,
        Shape::Array { item, .. } => write_array(value, item, out)?,
        Shape::Nullable { null_first, inner, .. } => {
            let branch = value.is_null() != *null_first;
            varint::write(out, i64::from(branch));
            if !value.is_null() {
                write(value, inner, out)?;
            }
        }
    }
    Ok(())
}

/// JSON writes bytes as a string of the characters U+0000 to U+00FF.
fn text_bytes(value: &str, utf8: bool) -> Option<Vec<u8>> {
    if utf8 { Some(value.as_bytes().to_vec()) } else { value.chars().map(|c| u8::try_from(c).ok()).collect() }
}

fn write_record(value: &Value, fields: &[ShapeField], out: &mut Vec<u8>) -> Result<(), String> {
    let Some(object) = value.as_object() else {
        return Err(format!("{value} is not an object"));
    };
    for field in fields {
        match (object.get(&field.name), &field.default) {
            (Some(value), _) => write(value, &field.shape, out)?,
            (None, Some(default)) => out.extend(default),
            (None, None) => return Err(format!("'{}' is missing", field.name)),
        }
    }
    Ok(())
}

fn write_array(value: &Value, item: &Shape, out: &mut Vec<u8>) -> Result<(), String> {
    let Some(items) = value.as_array() else {
        return Err(format!("{value} is not a list"));
    };
    if !items.is_empty() {
        varint::write(out, items.len() as i64);
        for value in items {
            write(value, item, out)?;
        }
    }
    out.push(0);
    Ok(())
}
