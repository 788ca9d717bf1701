//! Skipping: steps over a value of any Avro type that no column needs. Checks lengths, not contents.

use super::cursor::Cursor;
use super::errors::Step;
use super::schema::{Schema, Type, TypeId};

/// Maximum nesting of a value of a recursive type.
const DEPTH_MAX: usize = 256;

pub(super) fn skip(schema: &Schema, id: TypeId, cursor: &mut Cursor<'_>, depth: usize) -> Step {
    // Types of exact size are skipped in one step. All others cost at least a byte or nest deeper, so the
    // record's bytes bound the work however often the schema repeats types.
    if let Some(length) = schema.size(id).exact {
        return cursor.take(length).map(|_| ());
    }
    if depth > DEPTH_MAX {
        return Err(cursor.fault(format!("values nest deeper than {DEPTH_MAX}")));
    }
    match schema.get(id) {
        Type::Int | Type::Long | Type::Enum { .. } => cursor.long().map(|_| ()),
        Type::Bytes | Type::String => cursor.text().map(|_| ()),
        Type::Record { fields, .. } => {
            fields.iter().try_for_each(|field| skip(schema, field.kind, cursor, depth + 1))
        }
        Type::Union(branches) => {
            let branch = cursor.index(branches.len(), "union branch")?;
            skip(schema, branches[branch], cursor, depth + 1)
        }
        &Type::Array(item) => skip_blocks(schema, item, cursor, depth, false),
        &Type::Map(value) => skip_blocks(schema, value, cursor, depth, true),
        Type::Null | Type::Boolean | Type::Float | Type::Double | Type::Fixed { .. } => Ok(()),
    }
}

fn skip_blocks(schema: &Schema, item: TypeId, cursor: &mut Cursor<'_>, depth: usize, keyed: bool) -> Step {
    let size = schema.size(item);
    while let Some(block) = cursor.block(size.min.saturating_add(usize::from(keyed)))? {
        match size.exact {
            // `block` checked that the count times this length fits, so the product cannot overflow.
            Some(length) if !keyed => {
                cursor.take((block.items as usize).saturating_mul(length))?;
            }
            _ => {
                for _ in 0..block.items {
                    if keyed {
                        cursor.text()?;
                    }
                    skip(schema, item, cursor, depth + 1)?;
                }
            }
        }
        cursor.end_block(&block)?;
    }
    Ok(())
}
