//! Packing: copies the rows of keys, pooled, and dense numbers to their positions in the matrix a model
//! takes.
//!
//! It knows tables only as `ReadRows`, and no versions: the implementation of `ReadRows` has pinned one.

use std::ops::Range;

use crate::columns::{
    Column, Dense, FlatShape, PackError, Pooling, Sequence, SequenceShape, Slot, check_flat, check_sequences,
};
use crate::storage::prefetch::{LINE_FLOATS, prefetch_row};

/// Maximum keys read together, so that the memory of all is prefetched before the first is needed.
pub const GROUP: usize = 64;

/// Floats of a group that are read into a buffer before they are spread.
const SPREAD_FLOATS: usize = 1024;

/// A source of rows.
pub trait ReadRows {
    /// The number of floats of a row, at least 1 and constant.
    fn dim(&self) -> usize;

    /// Writes the rows of 1 to `GROUP` keys, one after another; a key that was never stored has its initial
    /// row.
    fn read(&self, keys: &[u64], into: &mut [f32]);

    /// Like `read`, with each row `stride` floats after the one before; the floats between rows are
    /// unchanged.
    ///
    /// `into` starts at the first row and may end at or after the end of the last one. Implement it if rows
    /// can be written directly with a stride: this default reads into a buffer and copies.
    fn read_strided(&self, keys: &[u64], into: &mut [f32], stride: usize) {
        let dim = self.dim();
        if dim > SPREAD_FLOATS {
            for (index, key) in keys.iter().enumerate() {
                self.read(std::slice::from_ref(key), &mut into[index * stride..][..dim]);
            }
            return;
        }
        let mut buffer = [0.0; SPREAD_FLOATS];
        let group_keys = SPREAD_FLOATS / dim;
        for (group, keys) in keys.chunks(group_keys).enumerate() {
            let (rows, into) = (&mut buffer[..keys.len() * dim], &mut into[group * group_keys * stride..]);
            expect(into, 0..keys.len(), stride, dim);
            self.read(keys, rows);
            for (at, row) in rows.chunks_exact(dim).enumerate() {
                into[at * stride..][..dim].copy_from_slice(row);
            }
        }
    }
}

/// Prefetches the destination of some rows, before reading their sources keeps the caches busy.
#[inline(always)]
fn expect(into: &[f32], rows: Range<usize>, stride: usize, dim: usize) {
    for row in rows {
        prefetch_row(into.as_ptr().wrapping_add(row * stride), dim);
    }
}

/// Packs a side's flat matrix and writes all of `into`.
///
/// An example without keys has zeros, whatever the pooling. Rows are summed in the order of their keys.
pub fn pack_flat(
    tables: &[&dyn ReadRows],
    columns: &[Column<'_>],
    shape: FlatShape,
    into: &mut [f32],
) -> Result<(), PackError> {
    let dims: Vec<usize> = tables.iter().map(|table| table.dim()).collect();
    let checked = check_flat(columns, &dims, shape, into.len())?;
    let mut buffer = vec![0.0; GROUP * checked.dim_max];
    let stride = shape.stride;
    // Few examples of all columns at a time, so that the rows being written stay in the cache until they are
    // complete.
    for begin in (0..shape.examples).step_by(GROUP) {
        let examples = begin..shape.examples.min(begin + GROUP);
        for column in columns {
            match column {
                Column::Slot(slot) if slot.is_plain() => {
                    let (out, dim) = (&mut into[begin * stride + slot.at..], dims[slot.table]);
                    if dim > LINE_FLOATS {
                        // Rows of one line each are written fast enough without prefetching.
                        expect(out, 0..examples.len(), stride, dim);
                    }
                    tables[slot.table].read_strided(&slot.keys[examples.clone()], out, stride);
                }
                Column::Slot(slot) => {
                    pool(tables[slot.table], slot, examples.clone(), &mut buffer, stride, into);
                }
                Column::Dense(dense) => copy_dense(dense, examples.clone(), stride, into),
            }
        }
        for example in examples {
            into[example * stride + shape.width..(example + 1) * stride].fill(0.0);
        }
    }
    into[shape.examples * stride..].fill(0.0);
    Ok(())
}

fn copy_dense(dense: &Dense<'_>, examples: Range<usize>, stride: usize, into: &mut [f32]) {
    let width = dense.width;
    for example in examples {
        let numbers = &dense.numbers[example * width..][..width];
        into[example * stride + dense.at..][..width].copy_from_slice(numbers);
    }
}

/// Pools one slot of some examples and reads their keys in full groups.
fn pool(
    table: &dyn ReadRows,
    slot: &Slot<'_>,
    examples: Range<usize>,
    buffer: &mut [f32],
    stride: usize,
    into: &mut [f32],
) {
    let dim = table.dim();
    let keys_end = slot.keys_of(examples.end - 1).end;
    expect(&into[slot.at..], examples.clone(), stride, dim);
    let mut read = 0..0;
    for example in examples {
        let keys = slot.keys_of(example);
        let out = &mut into[example * stride + slot.at..][..dim];
        if keys.is_empty() {
            out.fill(0.0);
        }
        for at in keys.clone() {
            if at >= read.end {
                read = at..keys_end.min(at + GROUP);
                table.read(&slot.keys[read.clone()], &mut buffer[..read.len() * dim]);
            }
            let row = &buffer[(at - read.start) * dim..][..dim];
            match slot.pooling {
                Pooling::Weighted(weights) if at == keys.start => set_times(out, row, weights[at]),
                Pooling::Weighted(weights) => add_times(out, row, weights[at]),
                _ if at == keys.start => out.copy_from_slice(row),
                _ => add(out, row),
            }
        }
        if let Some(divisor) = divisor(slot.pooling, keys.len()) {
            out.iter_mut().for_each(|sum| *sum /= divisor);
        }
    }
}

/// The divisor of the sum of `count` rows; None if it is 1.
#[inline(always)]
pub(crate) fn divisor(pooling: Pooling<'_>, count: usize) -> Option<f32> {
    match pooling {
        Pooling::Mean if count > 1 => Some(count as f32),
        Pooling::Sqrtn if count > 1 => Some((count as f32).sqrt()),
        _ => None,
    }
}

#[inline(always)]
fn add(out: &mut [f32], row: &[f32]) {
    for (sum, &float) in out.iter_mut().zip(row) {
        *sum += float;
    }
}

#[inline(always)]
fn set_times(out: &mut [f32], row: &[f32], weight: f32) {
    for (sum, &float) in out.iter_mut().zip(row) {
        *sum = weight * float;
    }
}

#[inline(always)]
fn add_times(out: &mut [f32], row: &[f32], weight: f32) {
    for (sum, &float) in out.iter_mut().zip(row) {
        *sum += weight * float;
    }
}

/// Packs a side's sequence block and writes all of `into`.
///
/// A user's newest `length` keys are at its first positions, oldest first. The last channel is 1 where a row
/// is present, and positions without one are zero.
pub fn pack_sequences(
    tables: &[&dyn ReadRows],
    slots: &[Sequence<'_>],
    shape: SequenceShape,
    into: &mut [f32],
) -> Result<(), PackError> {
    let dims: Vec<usize> = tables.iter().map(|table| table.dim()).collect();
    let checked = check_sequences(slots, &dims, shape, into.len())?;
    let mut buffer = vec![0.0; GROUP * checked.dim_max];
    mask(&slots[0], shape, into);
    for slot in slots {
        let (table, dim) = (tables[slot.table], dims[slot.table]);
        // Groups span several users, since many histories are shorter than a group.
        let (mut keys, mut places, mut count) = ([0; GROUP], [0; GROUP], 0);
        for user in 0..shape.users {
            for (position, at) in slot.kept_of(user, shape.length).enumerate() {
                keys[count] = slot.keys[at];
                places[count] = (user * shape.length + position) * shape.stride + slot.at;
                count += 1;
                if count == GROUP {
                    put(table, &keys, &places, &mut buffer[..GROUP * dim], into);
                    count = 0;
                }
            }
        }
        if count > 0 {
            put(table, &keys[..count], &places[..count], &mut buffer[..count * dim], into);
        }
    }
    Ok(())
}

/// Reads rows and copies each to its position.
fn put(table: &dyn ReadRows, keys: &[u64], places: &[usize], buffer: &mut [f32], into: &mut [f32]) {
    let dim = table.dim();
    for &place in places {
        prefetch_row(into.as_ptr().wrapping_add(place), dim);
    }
    table.read(keys, buffer);
    for (row, &place) in buffer.chunks_exact(dim).zip(places) {
        into[place..place + dim].copy_from_slice(row);
    }
}

/// Writes everything except rows: the mask, and zeros at empty positions.
fn mask(history: &Sequence<'_>, shape: SequenceShape, into: &mut [f32]) {
    for user in 0..shape.users {
        let kept = history.kept_of(user, shape.length).len();
        let begin = user * shape.length;
        for position in begin..begin + kept {
            let row = &mut into[position * shape.stride..][..shape.stride];
            row[shape.width - 1] = 1.0;
            row[shape.width..].fill(0.0);
        }
        into[(begin + kept) * shape.stride..(begin + shape.length) * shape.stride].fill(0.0);
    }
    into[shape.users * shape.length * shape.stride..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::{Whole, flat_case, readers, sequence_case, tables};

    fn slot<'a>(keys: &'a [u64], offsets: Option<&'a [i32]>, pooling: Pooling<'a>) -> [Column<'a>; 1] {
        [Column::Slot(Slot { name: "it", table: 0, at: 0, pooling, keys, offsets })]
    }

    fn tight(examples: usize, width: usize) -> FlatShape {
        FlatShape { examples, examples_padded: examples, width, stride: width }
    }

    proptest! {
        #[test]
        fn a_flat_matrix_is_what_plain_sums_say_and_zero_elsewhere(case in flat_case()) {
            let tables = tables();
            let mut into = vec![f32::NAN; case.floats()];
            pack_flat(&readers(&tables), &case.columns(), case.shape, &mut into).unwrap();
            prop_assert_eq!(into, case.packed(&tables));
        }

        #[test]
        fn a_sequence_block_keeps_the_newest_keys_in_order_and_masks_them(case in sequence_case()) {
            let tables = tables();
            let mut into = vec![f32::NAN; case.floats()];
            pack_sequences(&readers(&tables), &case.slots(), case.shape, &mut into).unwrap();
            let mut expected = vec![0.0; case.floats()];
            for (slot, key, place) in case.places() {
                let row = tables[case.tables[slot]].row(key);
                expected[place..place + row.len()].copy_from_slice(&row);
                let position = place / case.shape.stride;
                expected[position * case.shape.stride + case.shape.width - 1] = 1.0;
            }
            prop_assert_eq!(into, expected);
        }
    }

    #[test]
    fn several_keys_are_pooled_as_the_pooling_says() {
        let (table, keys, offsets) = (Whole::new(3), [7, 7, 9, 5], [0, 3, 3, 4]);
        let (seven, nine, five) = (table.row(7), table.row(9), table.row(5));
        let of = |pooling| {
            let mut into = [f32::NAN; 9];
            pack_flat(&[&table], &slot(&keys, Some(&offsets), pooling), tight(3, 3), &mut into).unwrap();
            assert_eq!(into[3..6], [0.0; 3], "an example without keys");
            (into[..3].to_vec(), into[6..].to_vec())
        };
        let each = |value: &dyn Fn(usize) -> f32| (0..3).map(value).collect::<Vec<f32>>();
        let sum = each(&|at| seven[at] + seven[at] + nine[at]);
        assert_eq!(of(Pooling::Sum), (sum.clone(), five.clone()));
        assert_eq!(of(Pooling::Mean), (each(&|at| sum[at] / 3.0), five.clone()));
        assert_eq!(of(Pooling::Sqrtn), (each(&|at| sum[at] / 3f32.sqrt()), five.clone()));
        let weights = [0.5, -1.0, 2.0, 0.25];
        let weighted = each(&|at| 0.5 * seven[at] - seven[at] + 2.0 * nine[at]);
        assert_eq!(of(Pooling::Weighted(&weights)), (weighted, each(&|at| 0.25 * five[at])));
        let mut into = [f32::NAN; 3];
        pack_flat(&[&table], &slot(&keys[1..3], Some(&[0, 2]), Pooling::Mean), tight(1, 3), &mut into)
            .unwrap();
        assert_eq!(into[..], each(&|at| (seven[at] + nine[at]) / 2.0));
    }

    #[test]
    fn one_example_may_have_more_keys_than_a_group() {
        let table = Whole::new(2);
        let keys: Vec<u64> = (0..1000).collect();
        let mut into = [0.0; 2];
        pack_flat(&[&table], &slot(&keys, Some(&[0, 1000]), Pooling::Sum), tight(1, 2), &mut into).unwrap();
        let sum = |at: usize| keys.iter().map(|&key| table.row(key)[at]).sum::<f32>();
        assert_eq!(into, [sum(0), sum(1)]);
        assert_eq!(table.reads.get(), 1000usize.div_ceil(GROUP));
    }

    #[test]
    fn short_examples_and_histories_are_read_in_whole_groups() {
        let table = Whole::new(4);
        let (keys, offsets): (Vec<u64>, Vec<i32>) = ((0..128).collect(), (0..=64).map(|at| at * 2).collect());
        let mut into = vec![0.0; 64 * 4];
        pack_flat(&[&table], &slot(&keys, Some(&offsets), Pooling::Sum), tight(64, 4), &mut into).unwrap();
        assert_eq!(table.reads.take(), 2);
        let shape = SequenceShape { users: 64, users_padded: 64, length: 2, width: 5, stride: 5 };
        let history = [Sequence { name: "it", table: 0, at: 0, keys: &keys, offsets: &offsets }];
        pack_sequences(&[&table], &history, shape, &mut vec![0.0; 64 * 10]).unwrap();
        assert_eq!(table.reads.take(), 2);
    }

    #[test]
    fn one_key_a_row_is_the_row_to_the_bit() {
        struct Odd;
        impl ReadRows for Odd {
            fn dim(&self) -> usize {
                3
            }
            fn read(&self, keys: &[u64], into: &mut [f32]) {
                keys.iter()
                    .zip(into.chunks_mut(3))
                    .for_each(|(_, row)| row.copy_from_slice(&[-0.0, 1e-42, 0.1]));
            }
        }
        for (offsets, pooling) in [
            (None, Pooling::Sum),
            (Some(&[0, 1][..]), Pooling::Sum),
            (Some(&[0, 1]), Pooling::Mean),
            (Some(&[0, 1]), Pooling::Sqrtn),
        ] {
            let mut into = [f32::NAN; 3];
            pack_flat(&[&Odd], &slot(&[1], offsets, pooling), tight(1, 3), &mut into).unwrap();
            assert_eq!(into.map(f32::to_bits), [-0.0f32, 1e-42, 0.1].map(f32::to_bits), "{pooling:?}");
        }
    }

    #[test]
    fn rows_of_any_dim_are_spread_and_nothing_between_them_is_touched() {
        for (dim, count) in [(1, 64), (16, 64), (300, 7), (1024, 2), (1025, 3)] {
            let (table, stride) = (Whole::new(dim), dim + 2);
            let keys: Vec<u64> = (0..count as u64).map(|key| key << 30).collect();
            let mut into = vec![-99.0; count * stride];
            table.read_strided(&keys, &mut into[..(count - 1) * stride + dim], stride);
            for (key, row) in keys.iter().zip(into.chunks(stride)) {
                assert_eq!(row[..dim], table.row(*key));
                assert_eq!(row[dim..], [-99.0; 2]);
            }
        }
    }
}
