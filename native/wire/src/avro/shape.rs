//! Shape: the reader's schema as a tree over columns. Describes a row, not where its bytes come from.

use super::columns::{Columns, Kind, Layout, Zero};
use super::default;
use super::errors::PlanError;
use super::schema::{DEPTH_MAX, Field, NODES_MAX, Schema, Type, TypeId, join, refuse};

/// Numbers are indices in the layout.
#[derive(Debug)]
pub(super) enum Shape {
    /// Null has no column, since it carries no information.
    Null,
    Boolean(usize),
    Int(usize),
    Long(usize),
    Float(usize),
    Double(usize),
    Text(Text),
    Enum {
        column: usize,
        symbols: Vec<String>,
    },
    Record(Vec<ShapeField>),
    Array {
        offsets: usize,
        item: Box<Shape>,
    },
    Nullable {
        validity: usize,
        null_first: bool,
        inner: Box<Shape>,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Text {
    pub(super) data: usize,
    pub(super) offsets: usize,
    pub(super) utf8: bool,
}

#[derive(Debug)]
pub(super) struct ShapeField {
    pub(super) name: String,
    pub(super) shape: Shape,
    /// The schema's default as this shape's own Avro bytes.
    pub(super) default: Option<Vec<u8>>,
}

impl Shape {
    /// The shape and layout of a schema, whose root must be a record.
    pub(super) fn of(schema: &Schema) -> Result<(Self, Layout), PlanError> {
        if !matches!(schema.get(schema.root), Type::Record { .. }) {
            let root = schema.describe(schema.root);
            return Err(PlanError(format!("reader schema: the root must be a record, not {root}")));
        }
        let mut builder = Builder { schema, layout: Layout::default(), nodes: 0 };
        let place = ShapePlace { path: "", levels: "", depth: 0 };
        let shape = builder.build(schema.root, &place);
        let shape = shape.map_err(|PlanError(text)| PlanError(format!("reader schema: {text}")))?;
        Ok((shape, builder.layout))
    }

    /// The values that one absent value (0, empty or null throughout) adds to the columns.
    pub(super) fn zeros(&self, layout: &Layout, zeros: &mut Vec<Zero>) {
        match self {
            Self::Null => {}
            Self::Boolean(column) => zeros.push(Zero::U8(layout.slot(*column))),
            Self::Int(column) | Self::Enum { column, .. } => zeros.push(Zero::I32(layout.slot(*column))),
            Self::Long(column) => zeros.push(Zero::I64(layout.slot(*column))),
            Self::Float(column) => zeros.push(Zero::F32(layout.slot(*column))),
            Self::Double(column) => zeros.push(Zero::F64(layout.slot(*column))),
            Self::Text(Text { offsets, .. }) | Self::Array { offsets, .. } => {
                zeros.push(Zero::Offset(layout.slot(*offsets)));
            }
            Self::Record(fields) => fields.iter().for_each(|field| field.shape.zeros(layout, zeros)),
            Self::Nullable { validity, inner, .. } => {
                zeros.push(Zero::U8(layout.slot(*validity)));
                inner.zeros(layout, zeros);
            }
        }
    }

    /// The fewest bytes that one value of this shape's own schema takes.
    pub(super) fn bytes_min(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Float(_) => 4,
            Self::Double(_) => 8,
            Self::Record(fields) => fields.iter().map(|field| field.shape.bytes_min()).sum(),
            _ => 1,
        }
    }

    /// Cuts every column back to `count` values.
    pub(super) fn truncate(&self, count: usize, layout: &Layout, columns: &mut Columns) {
        match self {
            Self::Null => {}
            Self::Boolean(column) => columns.u8s[layout.slot(*column)].truncate(count),
            Self::Int(column) | Self::Enum { column, .. } => {
                columns.i32s[layout.slot(*column)].truncate(count);
            }
            Self::Long(column) => columns.i64s[layout.slot(*column)].truncate(count),
            Self::Float(column) => columns.f32s[layout.slot(*column)].truncate(count),
            Self::Double(column) => columns.f64s[layout.slot(*column)].truncate(count),
            Self::Text(text) => {
                let end = truncate_offsets(&mut columns.i32s[layout.slot(text.offsets)], count);
                columns.u8s[layout.slot(text.data)].truncate(end);
            }
            Self::Record(fields) => {
                fields.iter().for_each(|field| field.shape.truncate(count, layout, columns));
            }
            Self::Array { offsets, item } => {
                let end = truncate_offsets(&mut columns.i32s[layout.slot(*offsets)], count);
                item.truncate(end, layout, columns);
            }
            Self::Nullable { validity, inner, .. } => {
                columns.u8s[layout.slot(*validity)].truncate(count);
                inner.truncate(count, layout, columns);
            }
        }
    }
}

fn truncate_offsets(offsets: &mut Vec<i32>, count: usize) -> usize {
    offsets.truncate(count + 1);
    offsets[count] as usize
}

struct ShapePlace<'a> {
    path: &'a str,
    /// One `[]` for each array since the last field name of the path.
    levels: &'a str,
    depth: usize,
}

struct Builder<'a> {
    schema: &'a Schema,
    layout: Layout,
    nodes: usize,
}

impl Builder<'_> {
    fn build(&mut self, id: TypeId, place: &ShapePlace<'_>) -> Result<Shape, PlanError> {
        let &ShapePlace { path, levels, depth } = place;
        self.nodes += 1;
        if depth > DEPTH_MAX {
            let help = "a type that contains itself cannot become columns";
            return refuse(path, &format!("types nest deeper than {DEPTH_MAX}; {help}"));
        }
        if self.nodes > NODES_MAX {
            return refuse(path, &format!("more than {NODES_MAX} fields, items and branches"));
        }
        let schema = self.schema;
        let name = || path.to_owned();
        Ok(match schema.get(id) {
            Type::Null => Shape::Null,
            Type::Boolean => Shape::Boolean(self.layout.add(name(), Kind::Bool)),
            Type::Int => Shape::Int(self.layout.add(name(), Kind::I32)),
            Type::Long => Shape::Long(self.layout.add(name(), Kind::I64)),
            Type::Float => Shape::Float(self.layout.add(name(), Kind::F32)),
            Type::Double => Shape::Double(self.layout.add(name(), Kind::F64)),
            Type::Bytes => self.text(path, false),
            Type::String => self.text(path, true),
            Type::Enum { symbols, .. } => {
                let column = self.layout.add(name(), Kind::I32);
                Shape::Enum { column, symbols: symbols.clone() }
            }
            Type::Record { fields, .. } => self.record(fields, place)?,
            &Type::Array(item) => {
                let levels = format!("{levels}[]");
                let offsets = self.layout.add_offsets(format!("{path}{levels}"));
                let item = self.build(item, &ShapePlace { path, levels: &levels, depth: depth + 1 })?;
                Shape::Array { offsets, item: Box::new(item) }
            }
            Type::Union(branches) => self.nullable(branches, place)?,
            Type::Map(_) | Type::Fixed { .. } => {
                return refuse(path, &format!("{} cannot become columns", schema.describe(id)));
            }
        })
    }

    fn text(&mut self, path: &str, utf8: bool) -> Shape {
        let data = self.layout.add(path.to_owned(), Kind::U8);
        let offsets = self.layout.add_offsets(format!("{path}$"));
        Shape::Text(Text { data, offsets, utf8 })
    }

    fn record(&mut self, fields: &[Field], place: &ShapePlace<'_>) -> Result<Shape, PlanError> {
        let mut shapes = Vec::with_capacity(fields.len());
        for field in fields {
            let path = join(place.path, &field.name);
            let shape =
                self.build(field.kind, &ShapePlace { path: &path, levels: "", depth: place.depth + 1 })?;
            let default = field.default.as_ref().map(|value| default::encode(value, &shape));
            let default = match default.transpose() {
                Ok(default) => default,
                Err(reason) => return refuse(&path, &format!("default: {reason}")),
            };
            shapes.push(ShapeField { name: field.name.clone(), shape, default });
        }
        Ok(Shape::Record(shapes))
    }

    fn nullable(&mut self, branches: &[TypeId], place: &ShapePlace<'_>) -> Result<Shape, PlanError> {
        let is_null = |id: &TypeId| matches!(self.schema.get(*id), Type::Null);
        let (null_first, other) = match branches {
            [null, other] if is_null(null) => (true, *other),
            [other, null] if is_null(null) => (false, *other),
            _ => {
                let names: Vec<_> = branches.iter().map(|&branch| self.schema.describe(branch)).collect();
                let text = format!("a union must be null and one other type, not {}", names.join(", "));
                return refuse(place.path, &text);
            }
        };
        let validity = self.layout.add(format!("{}{}?", place.path, place.levels), Kind::U8);
        let below = ShapePlace { path: place.path, levels: place.levels, depth: place.depth + 1 };
        let inner = Box::new(self.build(other, &below)?);
        Ok(Shape::Nullable { validity, null_first, inner })
    }
}
