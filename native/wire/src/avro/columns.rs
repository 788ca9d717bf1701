//! Columns: the flat arrays that records decode into. Knows their names and types, nothing of Avro's bytes.

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 0 or 1 in a byte.
    Bool,
    /// Bytes of strings, and validity.
    U8,
    /// Int values, enum indices and all offsets.
    I32,
    /// Long values.
    I64,
    /// Float values.
    F32,
    /// Double values.
    F64,
}

impl Kind {
    /// The NumPy name of the type.
    pub fn dtype(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }
}

/// A decoded column.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// 0 or 1 in a byte.
    Bool(Vec<u8>),
    /// Bytes of strings, and validity.
    U8(Vec<u8>),
    /// Int values, enum indices and all offsets.
    I32(Vec<i32>),
    /// Long values.
    I64(Vec<i64>),
    /// Float values.
    F32(Vec<f32>),
    /// Double values.
    F64(Vec<f64>),
}

/// A column to encode, in the caller's memory.
#[derive(Debug, Clone, Copy)]
pub enum Slice<'a> {
    /// Booleans, validity and string data.
    U8(&'a [u8]),
    /// Int values, enum indices and all offsets.
    I32(&'a [i32]),
    /// Long values.
    I64(&'a [i64]),
    /// Float values.
    F32(&'a [f32]),
    /// Double values.
    F64(&'a [f64]),
}

impl Column {
    /// The same values in the form that `encode` takes.
    pub fn slice(&self) -> Slice<'_> {
        match self {
            Self::Bool(values) | Self::U8(values) => Slice::U8(values),
            Self::I32(values) => Slice::I32(values),
            Self::I64(values) => Slice::I64(values),
            Self::F32(values) => Slice::F32(values),
            Self::F64(values) => Slice::F64(values),
        }
    }
}

/// One column of a plan: its name, type and slot in `Columns`.
#[derive(Debug)]
pub(super) struct ColumnPlan {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) offsets: bool,
    slot: usize,
}

/// All columns of a plan, in the order of the schema.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) columns: Vec<ColumnPlan>,
}

impl Layout {
    pub(super) fn add(&mut self, name: String, kind: Kind) -> usize {
        self.push(name, kind, false)
    }

    pub(super) fn add_offsets(&mut self, name: String) -> usize {
        self.push(name, Kind::I32, true)
    }

    fn push(&mut self, name: String, kind: Kind, offsets: bool) -> usize {
        let store = |kind: Kind| if kind == Kind::Bool { Kind::U8 } else { kind };
        let slot = self.columns.iter().filter(|column| store(column.kind) == store(kind)).count();
        self.columns.push(ColumnPlan { name, kind, offsets, slot });
        self.columns.len() - 1
    }

    pub(super) fn slot(&self, column: usize) -> usize {
        self.columns[column].slot
    }

    pub(super) fn name(&self, column: usize) -> &str {
        &self.columns[column].name
    }
}

/// Columns being filled, one list per type, so that a push is an index and needs no match.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) u8s: Vec<Vec<u8>>,
    pub(super) i32s: Vec<Vec<i32>>,
    pub(super) i64s: Vec<Vec<i64>>,
    pub(super) f32s: Vec<Vec<f32>>,
    pub(super) f64s: Vec<Vec<f64>>,
}

/// Reserves slightly more than expected, so that a few longer values cause no reallocation.
const SPARE: f64 = 1.05;

fn reserve<T>(columns: &mut [Vec<T>], factor: f64) {
    for column in columns {
        // A failed reservation is not an error here: the push itself allocates again.
        let _ = column.try_reserve_exact((column.len() as f64 * factor) as usize);
    }
}

impl Columns {
    /// Reserves room for `times` the current number of values.
    pub(super) fn reserve(&mut self, times: f64) {
        let factor = times * SPARE;
        reserve(&mut self.u8s, factor);
        reserve(&mut self.i32s, factor);
        reserve(&mut self.i64s, factor);
        reserve(&mut self.f32s, factor);
        reserve(&mut self.f64s, factor);
    }

    pub(super) fn new(layout: &Layout) -> Self {
        let mut columns = Self::default();
        for plan in &layout.columns {
            match plan.kind {
                Kind::Bool | Kind::U8 => columns.u8s.push(Vec::new()),
                Kind::I32 => columns.i32s.push(if plan.offsets { vec![0] } else { Vec::new() }),
                Kind::I64 => columns.i64s.push(Vec::new()),
                Kind::F32 => columns.f32s.push(Vec::new()),
                Kind::F64 => columns.f64s.push(Vec::new()),
            }
        }
        columns
    }

    /// Appends the default of an absent value: a 0, or the previous offset.
    #[inline]
    pub(super) fn push_zero(&mut self, zero: Zero) {
        match zero {
            Zero::U8(slot) => self.u8s[slot].push(0),
            Zero::I32(slot) => self.i32s[slot].push(0),
            Zero::I64(slot) => self.i64s[slot].push(0),
            Zero::F32(slot) => self.f32s[slot].push(0.0),
            Zero::F64(slot) => self.f64s[slot].push(0.0),
            Zero::Offset(slot) => {
                let offsets = &mut self.i32s[slot];
                offsets.push(offsets[offsets.len() - 1]);
            }
        }
    }

    /// The columns in the layout's order.
    pub(super) fn into_vec(mut self, layout: &Layout) -> Vec<Column> {
        let take = |plan: &ColumnPlan| match plan.kind {
            Kind::Bool => Column::Bool(std::mem::take(&mut self.u8s[plan.slot])),
            Kind::U8 => Column::U8(std::mem::take(&mut self.u8s[plan.slot])),
            Kind::I32 => Column::I32(std::mem::take(&mut self.i32s[plan.slot])),
            Kind::I64 => Column::I64(std::mem::take(&mut self.i64s[plan.slot])),
            Kind::F32 => Column::F32(std::mem::take(&mut self.f32s[plan.slot])),
            Kind::F64 => Column::F64(std::mem::take(&mut self.f64s[plan.slot])),
        };
        layout.columns.iter().map(take).collect()
    }
}

/// The value that one column gets where a record's value is absent; the number is a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Zero {
    U8(usize),
    I32(usize),
    I64(usize),
    F32(usize),
    F64(usize),
    Offset(usize),
}
