//! Resolution: how bytes of the writer's schema become values of the reader's shape, by Avro's rules.

use super::columns::{Layout, Zero};
use super::errors::PlanError;
use super::schema::{Field, NODES_MAX, Schema, Type, TypeId, join, refuse, unqualified};
use super::shape::{Shape, ShapeField};

/// The next value to read and its target column. Numbers are slots of `Columns`; a `column` is an index in
/// the layout.
#[derive(Debug)]
pub(super) enum Read {
    Null,
    Skip(TypeId),
    Boolean(usize),
    Int(usize),
    IntToLong(usize),
    IntToFloat(usize),
    IntToDouble(usize),
    Long(usize),
    LongToFloat(usize),
    LongToDouble(usize),
    Float(usize),
    FloatToDouble(usize),
    Double(usize),
    Text {
        column: usize,
        data: usize,
        offsets: usize,
        utf8: bool,
    },
    Enum {
        slot: usize,
        symbols: Vec<Symbol>,
    },
    Record(Vec<ReadField>),
    Array {
        column: usize,
        offsets: usize,
        item_bytes_min: usize,
        item: Box<Read>,
    },
    Union(Vec<Read>),
    Present {
        validity: usize,
        inner: Box<Read>,
    },
    Absent(Vec<Zero>),
    /// A reader's field that the writer does not have: its default is read instead of the record's bytes.
    Default {
        bytes: Vec<u8>,
        read: Box<Read>,
    },
    /// A branch of the writer's union that the reader cannot represent.
    Refuse(String),
}

#[derive(Debug)]
pub(super) struct ReadField {
    pub(super) name: String,
    pub(super) read: Read,
}

/// A writer's symbol and its index in the reader's enum, if it exists there.
#[derive(Debug)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) place: Option<i32>,
}

/// Resolves how to read records of the writer's schema as the reader's shape.
pub(super) fn resolve(
    writer: &Schema,
    reader: &Schema,
    shape: &Shape,
    layout: &Layout,
) -> Result<Read, PlanError> {
    let mut resolver = Resolver { writer, reader, layout, nodes: 0 };
    resolver.read(Pair { writer: writer.root, reader: reader.root, shape }, "").map_err(|PlanError(text)| {
        let (from, to) = (writer.describe(writer.root), reader.describe(reader.root));
        PlanError(format!("writer schema {from} cannot be read as reader schema {to}: {text}"))
    })
}

/// A writer's type, the matching reader's type, and the reader's shape.
#[derive(Clone, Copy)]
struct Pair<'a> {
    writer: TypeId,
    reader: TypeId,
    shape: &'a Shape,
}

struct Resolver<'a> {
    writer: &'a Schema,
    reader: &'a Schema,
    layout: &'a Layout,
    nodes: usize,
}

impl Resolver<'_> {
    fn read(&mut self, pair: Pair<'_>, path: &str) -> Result<Read, PlanError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return refuse(path, &format!("more than {NODES_MAX} fields, items and branches"));
        }
        if let Type::Union(branches) = self.writer.get(pair.writer) {
            return self.union(branches, pair, path);
        }
        if !self.matches(pair.writer, pair.reader) {
            return refuse(path, &self.mismatch(pair.writer, pair.reader));
        }
        if let (Shape::Nullable { validity, inner, .. }, Type::Union(branches)) =
            (pair.shape, self.reader.get(pair.reader))
        {
            if matches!(self.writer.get(pair.writer), Type::Null) {
                let mut zeros = Vec::new();
                pair.shape.zeros(self.layout, &mut zeros);
                return Ok(Read::Absent(zeros));
            }
            let present = branches.iter().find(|&&id| !matches!(self.reader.get(id), Type::Null));
            let reader = *present.expect("a nullable has a branch that is not null");
            let inner = self.read(Pair { reader, shape: inner, ..pair }, path)?;
            return Ok(Read::Present { validity: self.layout.slot(*validity), inner: Box::new(inner) });
        }
        match pair.shape {
            Shape::Record(shapes) => self.record(pair, shapes, path),
            Shape::Array { offsets, item } => {
                match (self.writer.get(pair.writer), self.reader.get(pair.reader)) {
                    (&Type::Array(writer), &Type::Array(reader)) => {
                        let inner = self.read(Pair { writer, reader, shape: item }, path)?;
                        Ok(self.array(*offsets, self.writer.size(writer).min, inner))
                    }
                    _ => refuse(path, &self.mismatch(pair.writer, pair.reader)),
                }
            }
            Shape::Enum { column, .. } => Ok(self.enumeration(pair, *column)),
            leaf => match leaf_read(self.writer.get(pair.writer), leaf, self.layout) {
                Some(read) => Ok(read),
                None => refuse(path, &self.mismatch(pair.writer, pair.reader)),
            },
        }
    }

    fn array(&self, offsets: usize, item_bytes_min: usize, item: Read) -> Read {
        let slot = self.layout.slot(offsets);
        Read::Array { column: offsets, offsets: slot, item_bytes_min, item: Box::new(item) }
    }

    fn mismatch(&self, writer: TypeId, reader: TypeId) -> String {
        format!("{} cannot become {}", self.writer.describe(writer), self.reader.describe(reader))
    }

    /// Whether the two types match at this level. Deeper levels are checked when they are resolved.
    fn matches(&self, writer: TypeId, reader: TypeId) -> bool {
        let names_match = |writer: &str, reader: &str, aliases: &[String]| {
            let matches_writer = |name: &str| unqualified(name) == unqualified(writer);
            matches_writer(reader) || aliases.iter().any(|alias| matches_writer(alias))
        };
        match (self.writer.get(writer), self.reader.get(reader)) {
            (_, Type::Union(branches)) => branches.iter().any(|&branch| self.matches(writer, branch)),
            (Type::Enum { name, .. }, Type::Enum { name: reader, aliases, .. })
            | (Type::Record { name, .. }, Type::Record { name: reader, aliases, .. }) => {
                names_match(name, reader, aliases)
            }
            (Type::Array(_), Type::Array(_)) => true,
            (writer, reader) => promotes(writer, reader),
        }
    }

    fn union(&mut self, branches: &[TypeId], pair: Pair<'_>, path: &str) -> Result<Read, PlanError> {
        if !branches.iter().any(|&branch| self.matches(branch, pair.reader)) {
            return refuse(path, &self.mismatch(pair.writer, pair.reader));
        }
        let mut reads = Vec::with_capacity(branches.len());
        for &writer in branches {
            reads.push(if self.matches(writer, pair.reader) {
                self.read(Pair { writer, ..pair }, path)?
            } else {
                Read::Refuse(self.mismatch(writer, pair.reader))
            });
        }
        Ok(Read::Union(reads))
    }

    fn record(&mut self, pair: Pair<'_>, shapes: &[ShapeField], path: &str) -> Result<Read, PlanError> {
        let (Type::Record { fields: writers, .. }, Type::Record { fields: readers, .. }) =
            (self.writer.get(pair.writer), self.reader.get(pair.reader))
        else {
            return refuse(path, &self.mismatch(pair.writer, pair.reader));
        };
        let chosen = choose(writers, readers);
        let mut reads = Vec::with_capacity(writers.len());
        for (index, field) in writers.iter().enumerate() {
            let read = match chosen.iter().position(|&writer| writer == Some(index)) {
                None => Read::Skip(field.kind),
                Some(reader) => {
                    let below = join(path, &readers[reader].name);
                    let pair = Pair {
                        writer: field.kind,
                        reader: readers[reader].kind,
                        shape: &shapes[reader].shape,
                    };
                    self.read(pair, &below)?
                }
            };
            reads.push(ReadField { name: field.name.clone(), read });
        }
        for (shape, _) in shapes.iter().zip(&chosen).filter(|(_, writer)| writer.is_none()) {
            let Some(bytes) = shape.default.clone() else {
                let (from, to) = (self.writer.describe(pair.writer), self.reader.describe(pair.reader));
                let text = format!(
                    "the reader's {to} has this field without a default and the writer's {from} lacks it"
                );
                return refuse(&join(path, &shape.name), &text);
            };
            let read = Read::Default { bytes, read: Box::new(self.own(&shape.shape)) };
            reads.push(ReadField { name: shape.name.clone(), read });
        }
        Ok(Read::Record(reads))
    }

    fn enumeration(&self, pair: Pair<'_>, column: usize) -> Read {
        let (Type::Enum { symbols: from, .. }, Type::Enum { symbols: to, default, .. }) =
            (self.writer.get(pair.writer), self.reader.get(pair.reader))
        else {
            return Read::Refuse(self.mismatch(pair.writer, pair.reader));
        };
        let find = |wanted: &String| to.iter().position(|symbol| symbol == wanted);
        let symbol = |name: &String| {
            let place = find(name).or_else(|| default.as_ref().and_then(find));
            Symbol { name: name.clone(), place: place.map(|place| place as i32) }
        };
        Read::Enum { slot: self.layout.slot(column), symbols: from.iter().map(symbol).collect() }
    }

    /// How to read the shape's own bytes, the form in which defaults are kept.
    fn own(&mut self, shape: &Shape) -> Read {
        self.nodes += 1;
        let slot = |column: &usize| self.layout.slot(*column);
        match shape {
            Shape::Record(fields) => Read::Record(
                fields
                    .iter()
                    .map(|field| ReadField { name: field.name.clone(), read: self.own(&field.shape) })
                    .collect(),
            ),
            Shape::Array { offsets, item } => {
                let inner = self.own(item);
                self.array(*offsets, item.bytes_min(), inner)
            }
            Shape::Nullable { validity, null_first, inner } => {
                let validity = slot(validity);
                let mut zeros = Vec::new();
                shape.zeros(self.layout, &mut zeros);
                let present = Read::Present { validity, inner: Box::new(self.own(inner)) };
                let absent = Read::Absent(zeros);
                Read::Union(if *null_first { vec![absent, present] } else { vec![present, absent] })
            }
            Shape::Enum { column, symbols } => {
                let symbol = |(place, name): (usize, &String)| Symbol {
                    name: name.clone(),
                    place: Some(place as i32),
                };
                Read::Enum { slot: slot(column), symbols: symbols.iter().enumerate().map(symbol).collect() }
            }
            leaf => leaf_read(own_type(leaf), leaf, self.layout).unwrap_or(Read::Null),
        }
    }
}

fn own_type(leaf: &Shape) -> &'static Type {
    match leaf {
        Shape::Boolean(_) => &Type::Boolean,
        Shape::Int(_) => &Type::Int,
        Shape::Long(_) => &Type::Long,
        Shape::Float(_) => &Type::Float,
        Shape::Double(_) => &Type::Double,
        Shape::Text(text) if text.utf8 => &Type::String,
        Shape::Text(_) => &Type::Bytes,
        _ => &Type::Null,
    }
}

fn promotes(writer: &Type, reader: &Type) -> bool {
    use Type::{Boolean, Bytes, Double, Float, Int, Long, Null, String};
    matches!(
        (writer, reader),
        (Null, Null)
            | (Boolean, Boolean)
            | (Int, Int | Long | Float | Double)
            | (Long, Long | Float | Double)
            | (Float, Float | Double)
            | (Double, Double)
            | (Bytes | String, Bytes | String)
    )
}

fn leaf_read(writer: &Type, shape: &Shape, layout: &Layout) -> Option<Read> {
    let slot = |column: &usize| layout.slot(*column);
    Some(match (writer, shape) {
        (Type::Null, Shape::Null) => Read::Null,
        (Type::Boolean, Shape::Boolean(column)) => Read::Boolean(slot(column)),
        (Type::Int, Shape::Int(column)) => Read::Int(slot(column)),
        (Type::Int, Shape::Long(column)) => Read::IntToLong(slot(column)),
        (Type::Int, Shape::Float(column)) => Read::IntToFloat(slot(column)),
        (Type::Int, Shape::Double(column)) => Read::IntToDouble(slot(column)),
        (Type::Long, Shape::Long(column)) => Read::Long(slot(column)),
        (Type::Long, Shape::Float(column)) => Read::LongToFloat(slot(column)),
        (Type::Long, Shape::Double(column)) => Read::LongToDouble(slot(column)),
        (Type::Float, Shape::Float(column)) => Read::Float(slot(column)),
        (Type::Float, Shape::Double(column)) => Read::FloatToDouble(slot(column)),
        (Type::Double, Shape::Double(column)) => Read::Double(slot(column)),
        (Type::Bytes | Type::String, Shape::Text(text)) => Read::Text {
            column: text.offsets,
            data: slot(&text.data),
            offsets: slot(&text.offsets),
            utf8: text.utf8,
        },
        _ => return None,
    })
}

/// The writer's field for each reader's field, by name first and then by alias. No field is used twice.
fn choose(writers: &[Field], readers: &[Field]) -> Vec<Option<usize>> {
    let find = |wanted: &str| writers.iter().position(|field| field.name == wanted);
    let mut chosen: Vec<_> = readers.iter().map(|field| find(&field.name)).collect();
    for index in 0..readers.len() {
        if chosen[index].is_none() {
            let mut candidates = readers[index].aliases.iter().filter_map(|alias| find(alias));
            chosen[index] = candidates.find(|writer| !chosen.contains(&Some(*writer)));
        }
    }
    chosen
}
