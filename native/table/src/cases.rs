//! Generated columns and tables for the tests of packing and scattering, with plainly computed expected
//! results.

use std::cell::Cell;

use proptest::prelude::*;

use crate::columns::{Column, Dense, FlatShape, Pooling, Sequence, SequenceShape, Slot};
use crate::pack::{GROUP, ReadRows};

/// A table whose rows are small whole numbers derived from the key, so that sums are exact in any order.
pub(crate) struct Whole {
    pub dim: usize,
    pub reads: Cell<usize>,
}

impl Whole {
    pub fn new(dim: usize) -> Self {
        Self { dim, reads: Cell::new(0) }
    }

    pub fn row(&self, key: u64) -> Vec<f32> {
        let number = |at| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 50)) % 17;
        (0..self.dim).map(|at| number(at) as f32 - 8.0).collect()
    }
}

impl ReadRows for Whole {
    fn dim(&self) -> usize {
        self.dim
    }

    fn read(&self, keys: &[u64], into: &mut [f32]) {
        assert!(keys.len() <= GROUP && into.len() == keys.len() * self.dim);
        self.reads.set(self.reads.get() + 1);
        for (key, row) in keys.iter().zip(into.chunks_mut(self.dim)) {
            row.copy_from_slice(&self.row(*key));
        }
    }
}

/// The dims of the tables in the cases.
pub(crate) const DIMS: [usize; 3] = [1, 5, 40];

pub(crate) fn tables() -> Vec<Whole> {
    DIMS.iter().map(|&dim| Whole::new(dim)).collect()
}

pub(crate) fn readers(tables: &[Whole]) -> Vec<&dyn ReadRows> {
    tables.iter().map(|table| table as &dyn ReadRows).collect()
}

/// One column and the data it borrows.
#[derive(Debug, Clone)]
pub(crate) struct OwnedColumn {
    /// None for a dense column of this width.
    pub table: Option<usize>,
    pub width: usize,
    pub at: usize,
    pub pooling: usize,
    pub keys: Vec<u64>,
    pub offsets: Option<Vec<i32>>,
    /// The weights of the keys, or the numbers of a dense column.
    pub floats: Vec<f32>,
}

/// A flat matrix with its columns.
#[derive(Debug, Clone)]
pub(crate) struct FlatCase {
    pub columns: Vec<OwnedColumn>,
    pub shape: FlatShape,
    pub gradients: Vec<f32>,
}

impl OwnedColumn {
    pub fn column(&self) -> Column<'_> {
        let (name, at, width) = ("it", self.at, self.width);
        let pooling = match self.pooling {
            0 => Pooling::Sum,
            1 => Pooling::Mean,
            2 => Pooling::Sqrtn,
            _ => Pooling::Weighted(&self.floats),
        };
        match self.table {
            None => Column::Dense(Dense { name, at, width, numbers: &self.floats }),
            Some(table) => {
                let offsets = self.offsets.as_deref();
                Column::Slot(Slot { name, table, at, pooling, keys: &self.keys, offsets })
            }
        }
    }

    pub fn keys_of(&self, example: usize) -> std::ops::Range<usize> {
        match &self.offsets {
            Some(offsets) => offsets[example] as usize..offsets[example + 1] as usize,
            None => example..example + 1,
        }
    }

    /// The factor of a key's row, given the number of keys.
    pub fn factor(&self, at: usize, count: usize) -> f32 {
        match self.pooling {
            0 => 1.0,
            1 => 1.0 / count as f32,
            2 => 1.0 / (count as f32).sqrt(),
            _ => self.floats[at],
        }
    }
}

impl FlatCase {
    pub fn columns(&self) -> Vec<Column<'_>> {
        self.columns.iter().map(OwnedColumn::column).collect()
    }

    pub fn floats(&self) -> usize {
        self.shape.examples_padded * self.shape.stride
    }

    /// The packed matrix, computed term by term.
    pub fn packed(&self, tables: &[Whole]) -> Vec<f32> {
        let mut out = vec![0.0; self.floats()];
        for column in &self.columns {
            for example in 0..self.shape.examples {
                let place = example * self.shape.stride + column.at;
                let out = &mut out[place..place + column.width];
                let Some(table) = column.table else {
                    out.copy_from_slice(&column.floats[example * column.width..][..column.width]);
                    continue;
                };
                let keys = column.keys_of(example);
                for at in keys.clone() {
                    let row = tables[table].row(column.keys[at]);
                    for (sum, float) in out.iter_mut().zip(row) {
                        *sum += float * column.factor(at, keys.len());
                    }
                }
            }
        }
        out
    }
}

/// Numbers of keys for which sums, means and roots are exact in binary.
const COUNTS: [usize; 6] = [0, 1, 1, 4, 4, 16];

fn owned(examples: usize) -> impl Strategy<Value = OwnedColumn> {
    let counts = proptest::collection::vec(0..COUNTS.len(), examples);
    (0..4usize, 0..4usize, any::<bool>(), 0..3i32, counts, any::<u64>()).prop_map(
        move |(kind, pooling, multi, skipped, counts, seed)| {
            let number =
                |at: usize, most: u64| (seed ^ (at as u64).wrapping_mul(0x2545_F491_4F6C_DD1D)) >> 7 & most;
            let (table, width) = if kind == 3 { (None, pooling) } else { (Some(kind), DIMS[kind]) };
            let (mut offsets, mut end) = (vec![skipped], skipped);
            for count in counts {
                end += COUNTS[count] as i32;
                offsets.push(end);
            }
            // Extra keys before the first example's and after the last one's, as in a slice of longer
            // columns.
            let keys = if multi { end as usize + 2 } else { examples };
            let floats = if table.is_none() { examples * width } else { keys };
            OwnedColumn {
                table,
                width,
                at: 0,
                pooling,
                keys: (0..keys).map(|at| number(at, 31) << 40).collect(),
                offsets: multi.then_some(offsets),
                floats: (0..floats).map(|at| number(at, 7) as f32 - 3.0).collect(),
            }
        },
    )
}

fn gradient(at: usize) -> f32 {
    (at * 7919 % 31) as f32 - 15.0
}

/// A matrix with extra room; the number of examples is small, zero or larger than a group.
pub(crate) fn flat_case() -> impl Strategy<Value = FlatCase> {
    (prop_oneof![0..5usize, 60..140usize], 0..3usize, 0..3usize).prop_flat_map(|(examples, rows, floats)| {
        proptest::collection::vec(owned(examples), 1..6).prop_map(move |mut columns| {
            let mut width = 0;
            for column in &mut columns {
                column.at = width;
                width += column.width;
            }
            let stride = (width + floats).max(1);
            let shape = FlatShape { examples, examples_padded: examples + rows, width, stride };
            let gradients = (0..(examples + rows) * stride).map(gradient).collect();
            FlatCase { columns, shape, gradients }
        })
    })
}

/// A sequence block and its slots, which share their offsets.
#[derive(Debug, Clone)]
pub(crate) struct SequenceCase {
    pub tables: Vec<usize>,
    pub offsets: Vec<i32>,
    pub keys: Vec<Vec<u64>>,
    pub shape: SequenceShape,
    pub gradients: Vec<f32>,
}

impl SequenceCase {
    pub fn slots(&self) -> Vec<Sequence<'_>> {
        let mut at = 0;
        let mut slots = Vec::new();
        for (&table, keys) in self.tables.iter().zip(&self.keys) {
            slots.push(Sequence { name: "it", table, at, keys, offsets: &self.offsets });
            at += DIMS[table];
        }
        slots
    }

    pub fn floats(&self) -> usize {
        self.shape.users_padded * self.shape.length * self.shape.stride
    }

    /// The position of each kept key's row: (slot, key, float index).
    pub fn places(&self) -> Vec<(usize, u64, usize)> {
        let mut places = Vec::new();
        for (number, slot) in self.slots().iter().enumerate() {
            for user in 0..self.shape.users {
                let keys = &slot.keys[slot.offsets[user] as usize..slot.offsets[user + 1] as usize];
                let newest = &keys[keys.len().saturating_sub(self.shape.length)..];
                for (position, &key) in newest.iter().enumerate() {
                    let place = (user * self.shape.length + position) * self.shape.stride + slot.at;
                    places.push((number, key, place));
                }
            }
        }
        places
    }
}

/// A block of users whose histories are shorter than, as long as and longer than its length.
pub(crate) fn sequence_case() -> impl Strategy<Value = SequenceCase> {
    let counts = proptest::collection::vec(0..20i32, 0..30);
    let tables = proptest::collection::vec(0..DIMS.len(), 1..4);
    (counts, tables, 1..12usize, 0..3usize, 0..3usize, any::<u64>()).prop_map(
        |(counts, tables, length, rows, floats, seed)| {
            let mut offsets = vec![3];
            counts.iter().for_each(|count| offsets.push(offsets[offsets.len() - 1] + count));
            let count = offsets[offsets.len() - 1] as u64 + 1;
            let keys_of = |slot: u64| {
                (0..count).map(move |at| (seed ^ (at + slot).wrapping_mul(0x2545_F491)) >> 3 & 63)
            };
            let keys = (0..tables.len() as u64).map(|slot| keys_of(slot).collect()).collect();
            let width = tables.iter().map(|&table| DIMS[table]).sum::<usize>() + 1;
            let (users, users_padded, stride) = (counts.len(), counts.len() + rows, width + floats);
            let shape = SequenceShape { users, users_padded, length, width, stride };
            let gradients = (0..users_padded * length * stride).map(gradient).collect();
            SequenceCase { tables, offsets, keys, shape, gradients }
        },
    )
}
