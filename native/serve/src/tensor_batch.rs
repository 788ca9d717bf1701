//! A packed TensorBatch: the rows of several requests at one version, as the input tensors of one execution.

use std::ops::Range;
use std::sync::Arc;

use streamlearn_table::{self as table, FlatShape, PackError, ReadRows, SequenceShape};
use streamlearn_wire::keys::{key_of_pair, occurrences};

use crate::columns::Column;
use crate::layout::{Derived, Layout, Place, Pooling, Side, Source};
use crate::request::{Request, Values};
use crate::slab::{Pool, Slab, aligned};

/// The padded shape of a TensorBatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the user graph.
    pub users: usize,
    /// Rows of the score graph.
    pub candidates: usize,
    /// The length of histories; 0 if the model has none.
    pub length: usize,
}

/// A range of candidates of one request.
#[derive(Debug, Clone)]
pub struct Part {
    /// The request.
    pub request: Arc<Request>,
    /// The range.
    pub range: Range<usize>,
}

/// A tensor in a slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its first float in the slab.
    pub at: usize,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Whether it holds int32 numbers; otherwise float32.
    pub is_int: bool,
}

/// The input tensors of one execution.
#[derive(Debug, Clone)]
pub struct Packed {
    /// Their memory.
    pub slab: Arc<Slab>,
    /// The inputs of the user graph: the flat matrix and the sequence block, if the model has them.
    pub user: Vec<Tensor>,
    /// The inputs of the score graph after the user graph's outputs: the user row of each candidate, and the
    /// matrix.
    pub score: Vec<Tensor>,
}

/// Reusable memory for packing.
#[derive(Debug, Default)]
pub struct Scratch {
    user: Vec<Column>,
    item: Vec<Column>,
}

/// Returns the floats that a slab needs for a shape.
pub fn slab_floats(layout: &Layout, shape: Shape) -> usize {
    let Layout { user, item } = layout;
    aligned(shape.users * user.flat_width)
        + aligned(shape.users * shape.length * user.sequence_width)
        + aligned(shape.candidates)
        + aligned(shape.candidates * item.flat_width)
}

/// Packs parts of requests; rows of keys are read from `tables`, in the order of the layout's numbers.
///
/// Each request's user is packed once. Padding is zero, and padding candidates refer to user 0.
pub fn pack(
    layout: &Layout,
    tables: &[&dyn ReadRows],
    parts: &[Part],
    shape: Shape,
    pool: &Arc<Pool>,
    scratch: &mut Scratch,
) -> Result<Packed, PackError> {
    gather(&mut scratch.user, layout.user.inputs, parts, |part| (&part.request.user, 1, 0..1));
    gather(&mut scratch.item, layout.item.inputs, parts, |part| {
        (&part.request.item, part.request.candidates, part.range.clone())
    });
    add_derived(&layout.user, &mut scratch.user, &[], parts.len(), |row| row);
    let mut user_of = Vec::new();
    if !layout.item.derived.is_empty() {
        user_of
            .extend(parts.iter().enumerate().flat_map(|(user, part)| part.range.clone().map(move |_| user)));
    }
    add_derived(&layout.item, &mut scratch.item, &scratch.user, user_of.len(), |row| user_of[row]);
    let users = parts.len();
    let candidates: usize = parts.iter().map(|part| part.range.len()).sum();
    assert!(users <= shape.users && candidates <= shape.candidates, "the plan does not fit its bucket");
    let mut slab = pool.take();
    let mut free = Free { floats: slab.floats_mut(), at: 0 };
    let mut user = Vec::with_capacity(2);
    if layout.user.flat_width > 0 {
        let (tensor, into) = free.take(&[shape.users, layout.user.flat_width]);
        pack_flat(&layout.user, tables, &scratch.user, users, shape.users, into)?;
        user.push(tensor);
    }
    if layout.user.length > 0 {
        let (tensor, into) = free.take(&[shape.users, shape.length, layout.user.sequence_width]);
        pack_sequences(&layout.user, tables, &scratch.user, users, shape, into)?;
        user.push(tensor);
    }
    let mut score = Vec::with_capacity(2);
    let (mut index, into) = free.take(&[shape.candidates]);
    index.is_int = true;
    write_index(parts, into);
    score.push(index);
    if layout.item.flat_width > 0 {
        let (tensor, into) = free.take(&[shape.candidates, layout.item.flat_width]);
        pack_flat(&layout.item, tables, &scratch.item, candidates, shape.candidates, into)?;
        score.push(tensor);
    }
    Ok(Packed { slab: Arc::new(slab), user, score })
}

/// The unused rest of a slab.
struct Free<'a> {
    floats: &'a mut [f32],
    at: usize,
}

impl<'a> Free<'a> {
    fn take(&mut self, shape: &[usize]) -> (Tensor, &'a mut [f32]) {
        let (floats, aligned_floats) = (shape.iter().product(), aligned(shape.iter().product()));
        let (used, rest) = std::mem::take(&mut self.floats).split_at_mut(aligned_floats);
        let tensor = Tensor { at: self.at, shape: shape.to_vec(), is_int: false };
        (self.floats, self.at) = (rest, self.at + aligned_floats);
        (tensor, &mut used[..floats])
    }
}

fn gather<'a>(
    columns: &mut Vec<Column>,
    count: usize,
    parts: &'a [Part],
    of: impl Fn(&'a Part) -> (&'a Vec<Values>, usize, Range<usize>),
) {
    columns.resize_with(count.max(columns.len()), Column::default);
    for (at, column) in columns[..count].iter_mut().enumerate() {
        column.clear();
        for part in parts {
            let (values, examples, range) = of(part);
            column.add(&values[at], examples, range);
        }
    }
}

/// Appends a side's derived columns; `user_of` is the user of a row.
fn add_derived(
    side: &Side,
    columns: &mut Vec<Column>,
    users: &[Column],
    rows: usize,
    user_of: impl Fn(usize) -> usize,
) {
    let end = side.inputs + side.derived.len();
    columns.resize_with(end.max(columns.len()), Column::default);
    for (number, derived) in side.derived.iter().enumerate() {
        let mut made = std::mem::take(&mut columns[side.inputs + number]);
        made.clear();
        let own = &columns[..side.inputs];
        let at = |source, row: usize| match source {
            Source::Own(column) => (&own[column], row),
            Source::User(column) => (&users[column], user_of(row)),
        };
        let key = |source, row| {
            let (column, row) = at(source, row);
            column.keys[row]
        };
        match *derived {
            Derived::Cross([first, second], salt) => {
                let pair = |row| key_of_pair(key(first, row), key(second, row), salt);
                made.keys.extend((0..rows).map(pair));
            }
            Derived::Product(of, width) => {
                for row in 0..rows {
                    let [first, second] = of.map(|source| {
                        let (column, row) = at(source, row);
                        &column.numbers[row * width..][..width]
                    });
                    made.numbers.extend(
                        first
                            .iter()
                            .zip(second)
                            .map(|(first, second)| (first * second).clamp(f32::MIN, f32::MAX)),
                    );
                }
            }
            Derived::Key(slot) => made.numbers.extend((0..rows).flat_map(|row| {
                let key = key(slot, row);
                [key >> 40, key >> 16 & 0xff_ffff].map(|part| part as f32 / (1 << 24) as f32)
            })),
            Derived::Count([slot, within]) => made.numbers.extend((0..rows).map(|row| {
                let (lists, list) = at(within, row);
                let range = lists.offsets[list] as usize..lists.offsets[list + 1] as usize;
                occurrences(key(slot, row), &lists.keys[range])
            })),
        }
        columns[side.inputs + number] = made;
    }
}

/// Writes the user row of each candidate as int32 bits; padding refers to user 0.
fn write_index(parts: &[Part], into: &mut [f32]) {
    let mut at = 0;
    for (user, part) in parts.iter().enumerate() {
        into[at..at + part.range.len()].fill(f32::from_bits(user as u32));
        at += part.range.len();
    }
    into[at..].fill(f32::from_bits(0));
}

fn pack_flat(
    side: &Side,
    tables: &[&dyn ReadRows],
    columns: &[Column],
    examples: usize,
    examples_padded: usize,
    into: &mut [f32],
) -> Result<(), PackError> {
    if side.flat.is_empty() {
        // A model that finds items takes none of theirs.
        into.fill(0.0);
        return Ok(());
    }
    let packed: Vec<table::Column<'_>> = side.flat.iter().map(|place| flat_column(place, columns)).collect();
    let shape = FlatShape { examples, examples_padded, width: side.flat_width, stride: side.flat_width };
    table::pack_flat(tables, &packed, shape, into)
}

fn flat_column<'a>(place: &'a Place, columns: &'a [Column]) -> table::Column<'a> {
    let column = &columns[place.column];
    let pooling = match place.pooling {
        Pooling::Dense => {
            let Place { at, width, .. } = *place;
            return table::Column::Dense(table::Dense { name: "", at, width, numbers: &column.numbers });
        }
        Pooling::Mean => table::Pooling::Mean,
        Pooling::Sqrtn => table::Pooling::Sqrtn,
        Pooling::Weighted => table::Pooling::Weighted(&column.weights),
        Pooling::Sum | Pooling::Sequence => table::Pooling::Sum,
    };
    let offsets = (!column.offsets.is_empty()).then_some(column.offsets.as_slice());
    table::Column::Slot(table::Slot {
        name: "",
        table: place.table,
        at: place.at,
        pooling,
        keys: &column.keys,
        offsets,
    })
}

fn pack_sequences(
    side: &Side,
    tables: &[&dyn ReadRows],
    columns: &[Column],
    users: usize,
    shape: Shape,
    into: &mut [f32],
) -> Result<(), PackError> {
    let packed: Vec<table::Sequence<'_>> = side
        .sequence
        .iter()
        .map(|place| {
            let Column { keys, offsets, .. } = &columns[place.column];
            table::Sequence { name: "", table: place.table, at: place.at, keys, offsets }
        })
        .collect();
    let (width, stride) = (side.sequence_width, side.sequence_width);
    let shape = SequenceShape { users, users_padded: shape.users, length: shape.length, width, stride };
    table::pack_sequences(tables, &packed, shape, into)
}
