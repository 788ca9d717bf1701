//! Encoding: columns in, records out. All columns are checked before the first byte is written.

use super::columns::{Layout, Slice};
use super::errors::EncodeError;
use super::shape::{Shape, ShapeField, Text};
use super::varint;
use crate::offsets::check_offsets;

pub(super) fn encode(
    shape: &Shape,
    layout: &Layout,
    columns: &[Option<Slice<'_>>],
    (rows, prefix): (usize, &[u8]),
) -> Result<(Vec<u8>, Vec<i64>), EncodeError> {
    assert_eq!(columns.len(), layout.columns.len());
    if rows > isize::MAX as usize {
        return Err(EncodeError(format!("{rows} rows do not fit into memory")));
    }
    let write = Binder { layout, columns }.bind(shape, rows)?;
    let mut offsets = Vec::new();
    if offsets.try_reserve_exact(rows + 1).is_err() {
        return Err(EncodeError(format!("no memory for the offsets of {rows} rows")));
    }
    let mut out = Vec::new();
    offsets.push(0);
    for row in 0..rows {
        out.extend_from_slice(prefix);
        write.write(row, &mut out);
        offsets.push(out.len() as i64);
    }
    Ok((out, offsets))
}

/// A shape bound to the columns it is written from.
enum Write<'a> {
    Null,
    Constant(&'a [u8]),
    Boolean(&'a [u8]),
    Int(&'a [i32]),
    Long(&'a [i64]),
    Float(&'a [f32]),
    Double(&'a [f64]),
    Text { data: &'a [u8], offsets: &'a [i32] },
    Record(Vec<Write<'a>>),
    Array { offsets: &'a [i32], item: Box<Write<'a>> },
    Nullable { validity: &'a [u8], null_first: bool, inner: Box<Write<'a>> },
}

impl Write<'_> {
    fn write(&self, index: usize, out: &mut Vec<u8>) {
        match self {
            Self::Null => {}
            Self::Constant(bytes) => out.extend_from_slice(bytes),
            Self::Boolean(values) => out.push(values[index]),
            Self::Int(values) => varint::write(out, i64::from(values[index])),
            Self::Long(values) => varint::write(out, values[index]),
            Self::Float(values) => out.extend_from_slice(&values[index].to_le_bytes()),
            Self::Double(values) => out.extend_from_slice(&values[index].to_le_bytes()),
            Self::Text { data, offsets } => {
                let text = &data[offsets[index] as usize..offsets[index + 1] as usize];
                varint::write(out, text.len() as i64);
                out.extend_from_slice(text);
            }
            Self::Record(fields) => fields.iter().for_each(|field| field.write(index, out)),
            Self::Array { offsets, item } => {
                item.write_items(offsets[index] as usize, offsets[index + 1] as usize, out);
            }
            Self::Nullable { validity, null_first, inner } => {
                let present = validity[index] == 1;
                out.push(if present == *null_first { 2 } else { 0 });
                if present {
                    inner.write(index, out);
                }
            }
        }
    }

    #[inline(always)]
    fn write_items(&self, start: usize, end: usize, out: &mut Vec<u8>) {
        if start < end {
            varint::write(out, (end - start) as i64);
            match self {
                Self::Long(values) => values[start..end].iter().for_each(|&value| varint::write(out, value)),
                item => (start..end).for_each(|index| item.write(index, out)),
            }
        }
        out.push(0);
    }
}

struct Binder<'a> {
    layout: &'a Layout,
    columns: &'a [Option<Slice<'a>>],
}

impl<'a> Binder<'a> {
    /// Binds `shape` to its columns, which must hold `count` values.
    fn bind(&self, shape: &'a Shape, count: usize) -> Result<Write<'a>, EncodeError> {
        Ok(match shape {
            Shape::Null => Write::Null,
            &Shape::Boolean(column) => Write::Boolean(self.flags(column, count)?),
            &Shape::Int(column) => Write::Int(self.i32s(column, count)?),
            &Shape::Long(column) => match self.column(column, count)? {
                Slice::I64(values) => Write::Long(values),
                _ => return self.refuse(column, "is not int64"),
            },
            &Shape::Float(column) => match self.column(column, count)? {
                Slice::F32(values) => Write::Float(values),
                _ => return self.refuse(column, "is not float32"),
            },
            &Shape::Double(column) => match self.column(column, count)? {
                Slice::F64(values) => Write::Double(values),
                _ => return self.refuse(column, "is not float64"),
            },
            Shape::Text(text) => self.text(text, count)?,
            Shape::Enum { column, symbols } => {
                let values = self.i32s(*column, count)?;
                if let Some(index) = values.iter().position(|&value| value as u32 as usize >= symbols.len()) {
                    let text = format!(
                        "index {index} is {}, expected a symbol below {}",
                        values[index],
                        symbols.len()
                    );
                    return self.refuse(*column, &text);
                }
                Write::Int(values)
            }
            Shape::Record(fields) => self.record(fields, count)?,
            Shape::Array { offsets: column, item } => {
                let offsets = self.i32s(*column, count + 1)?;
                let items = offsets[count].max(0) as usize;
                if let Err(error) = check_offsets(offsets, items) {
                    return self.refuse(*column, &error.to_string());
                }
                Write::Array { offsets, item: Box::new(self.bind(item, items)?) }
            }
            Shape::Nullable { validity, null_first, inner } => Write::Nullable {
                validity: self.flags(*validity, count)?,
                null_first: *null_first,
                inner: Box::new(self.bind(inner, count)?),
            },
        })
    }

    fn record(&self, fields: &'a [ShapeField], count: usize) -> Result<Write<'a>, EncodeError> {
        let bind = |field: &'a ShapeField| match &field.default {
            Some(default) if !self.any_given(&field.shape) => Ok(Write::Constant(default)),
            _ => self.bind(&field.shape, count),
        };
        Ok(Write::Record(fields.iter().map(bind).collect::<Result<_, _>>()?))
    }

    fn any_given(&self, shape: &Shape) -> bool {
        let is_given = |column: usize| self.columns[column].is_some();
        match shape {
            Shape::Null => false,
            Shape::Boolean(column) | Shape::Int(column) | Shape::Long(column) => is_given(*column),
            Shape::Float(column) | Shape::Double(column) | Shape::Enum { column, .. } => is_given(*column),
            Shape::Text(text) => is_given(text.data) || is_given(text.offsets),
            Shape::Record(fields) => fields.iter().any(|field| self.any_given(&field.shape)),
            Shape::Array { offsets: column, item: inner }
            | Shape::Nullable { validity: column, inner, .. } => is_given(*column) || self.any_given(inner),
        }
    }

    fn refuse<T>(&self, column: usize, text: &str) -> Result<T, EncodeError> {
        Err(EncodeError(format!("column '{}': {text}", self.layout.name(column))))
    }

    fn given(&self, column: usize) -> Result<Slice<'a>, EncodeError> {
        match self.columns[column] {
            Some(slice) => Ok(slice),
            None => self.refuse(column, "missing, and its field has no default"),
        }
    }

    fn column(&self, column: usize, count: usize) -> Result<Slice<'a>, EncodeError> {
        let slice = self.given(column)?;
        if slice.len() != count {
            return self.refuse(column, &format!("{} values, expected {count}", slice.len()));
        }
        Ok(slice)
    }

    fn i32s(&self, column: usize, count: usize) -> Result<&'a [i32], EncodeError> {
        match self.column(column, count)? {
            Slice::I32(values) => Ok(values),
            _ => self.refuse(column, "is not int32"),
        }
    }

    fn flags(&self, column: usize, count: usize) -> Result<&'a [u8], EncodeError> {
        let Slice::U8(values) = self.column(column, count)? else {
            return self.refuse(column, "is neither bool nor uint8");
        };
        match values.iter().position(|&value| value > 1) {
            Some(index) => self.refuse(column, &format!("index {index} is {}, not 0 or 1", values[index])),
            None => Ok(values),
        }
    }

    fn text(&self, text: &Text, count: usize) -> Result<Write<'a>, EncodeError> {
        let offsets = self.i32s(text.offsets, count + 1)?;
        let Slice::U8(data) = self.given(text.data)? else {
            return self.refuse(text.data, "is not uint8");
        };
        if let Err(error) = check_offsets(offsets, data.len()) {
            return self.refuse(text.offsets, &error.to_string());
        }
        let piece = |index: usize| &data[offsets[index] as usize..offsets[index + 1] as usize];
        if text.utf8 && !cuts_utf8(data, offsets) {
            // Data that is UTF-8 as a whole may still be cut inside a character by an offset.
            let bad = (0..count).find(|&index| std::str::from_utf8(piece(index)).is_err());
            return self.refuse(text.data, &format!("index {} is not UTF-8", bad.unwrap_or(0)));
        }
        Ok(Write::Text { data, offsets })
    }
}

fn cuts_utf8(data: &[u8], offsets: &[i32]) -> bool {
    std::str::from_utf8(data)
        .is_ok_and(|text| offsets.iter().all(|&offset| text.is_char_boundary(offset as usize)))
}

impl Slice<'_> {
    fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }
}
