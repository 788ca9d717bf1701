//! Plan: two schemas resolved for decoding and encoding.

use serde_json::Value;

use super::columns::{Kind, Layout, Slice};
use super::encode;
use super::errors::{EncodeError, PlanError};
use super::resolve::{Read, resolve};
use super::schema::Schema;
use super::shape::Shape;

/// Converts records of the writer's schema to columns of the reader's schema and back.
#[derive(Debug)]
pub struct Plan {
    pub(super) writer: Schema,
    pub(super) shape: Shape,
    pub(super) layout: Layout,
    pub(super) read: Read,
    one_schema: bool,
}

impl Plan {
    /// Resolves two schemas given as JSON.
    pub fn new(writer_json: &str, reader_json: &str) -> Result<Self, PlanError> {
        let writer_value = json(writer_json, "writer")?;
        let reader_value = json(reader_json, "reader")?;
        let one_schema = writer_value == reader_value;
        let writer = Schema::parse(&writer_value, "writer")?;
        let reader = Schema::parse(&reader_value, "reader")?;
        let (shape, layout) = Shape::of(&reader)?;
        let read = resolve(&writer, &reader, &shape, &layout)?;
        Ok(Self { writer, shape, layout, read, one_schema })
    }

    /// Name and type of each column, in the order of the reader's schema.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (&str, Kind)> {
        self.layout.columns.iter().map(|column| (column.name.as_str(), column.kind))
    }

    /// Writes `rows` records, each after `prefix`. Returns their bytes end to end, and rows + 1 offsets.
    ///
    /// `columns` has an entry for each column of the plan. A field without any columns is written as its
    /// default.
    pub fn encode(
        &self,
        columns: &[Option<Slice<'_>>],
        rows: usize,
        prefix: &[u8],
    ) -> Result<(Vec<u8>, Vec<i64>), EncodeError> {
        if !self.one_schema {
            let text =
                "this plan resolves two different schemas; to encode, make a plan with the same schema twice";
            return Err(EncodeError(text.to_owned()));
        }
        encode::encode(&self.shape, &self.layout, columns, (rows, prefix))
    }
}

fn json(text: &str, side: &str) -> Result<Value, PlanError> {
    serde_json::from_str(text).map_err(|error| PlanError(format!("{side} schema: not JSON: {error}")))
}
