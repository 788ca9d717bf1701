//! Scatter: returns the gradients of packed inputs to the keys whose rows were packed.
//!
//! It is the adjoint of packing and takes the same columns. It does not decide what a row learns.

use crate::columns::{
    Column, FlatShape, PackError, Pooling, Sequence, SequenceShape, Slot, check_flat, check_sequences, refuse,
};
use crate::pack::divisor;
use crate::sums::{Occurrences, Scale, Sums};

/// Maximum keys of one `Scatter`, since they are numbered with 32 bits.
pub const SCATTER_KEYS_MAX: usize = 1 << 31;

/// Sums of gradients by table and key, over the matrices and blocks of one step.
///
/// Sums are made in the order of the calls; within a call by column as declared, then by example, then by
/// key. The same calls give the same bits. The memory grows with the distinct keys of a step and is kept for
/// the next one. A step with more than `keys_max` key occurrences is an error, which bounds the distinct keys
/// of each table.
pub struct Scatter {
    dims: Vec<usize>,
    tables: Vec<Sums>,
    keys: usize,
    keys_max: usize,
}

/// The summed gradients of one table's keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gradients<'a> {
    /// Distinct keys, in the order of first occurrence.
    pub keys: &'a [u64],
    /// The sum of each key, row after row.
    pub rows: &'a [f32],
    /// The number of occurrences of each key, at most 2^32 - 1.
    pub counts: &'a [u32],
}

impl Scatter {
    /// Makes empty sums for tables of these dims.
    ///
    /// # Panics
    /// If `keys_max` is more than `SCATTER_KEYS_MAX`.
    pub fn new(dims: &[usize], keys_max: usize) -> Self {
        assert!(keys_max <= SCATTER_KEYS_MAX, "{keys_max} keys are more than {SCATTER_KEYS_MAX}");
        let tables = dims.iter().map(|&dim| Sums::new(dim)).collect();
        Self { dims: dims.to_vec(), tables, keys: 0, keys_max }
    }

    /// Drops all sums, for the next step.
    pub fn clear(&mut self) {
        self.tables.iter_mut().for_each(Sums::clear);
        self.keys = 0;
    }

    /// Adds the gradients of a flat matrix. On an error nothing is added.
    pub fn add_flat(
        &mut self,
        columns: &[Column<'_>],
        shape: FlatShape,
        gradients: &[f32],
    ) -> Result<(), PackError> {
        let checked = check_flat(columns, &self.dims, shape, gradients.len())?;
        self.take(checked.keys)?;
        let mut occurrences = Occurrences::default();
        for column in columns {
            if let Column::Slot(slot) = column {
                add_slot(&mut self.tables[slot.table], slot, shape, gradients, &mut occurrences);
            }
        }
        Ok(())
    }

    /// Adds the gradients of a sequence block at the positions that hold a row. On an error nothing is added.
    pub fn add_sequences(
        &mut self,
        slots: &[Sequence<'_>],
        shape: SequenceShape,
        gradients: &[f32],
    ) -> Result<(), PackError> {
        let checked = check_sequences(slots, &self.dims, shape, gradients.len())?;
        self.take(checked.keys)?;
        let mut occurrences = Occurrences::default();
        for slot in slots {
            let sums = &mut self.tables[slot.table];
            for user in 0..shape.users {
                for (position, at) in slot.kept_of(user, shape.length).enumerate() {
                    let place = (user * shape.length + position) * shape.stride + slot.at;
                    if occurrences.push(slot.keys[at], place, 1.0) {
                        sums.add(&mut occurrences, gradients, Scale::Not);
                    }
                }
            }
            sums.add(&mut occurrences, gradients, Scale::Not);
        }
        Ok(())
    }

    /// Counts occurrences before any memory grows for them.
    fn take(&mut self, keys: usize) -> Result<(), PackError> {
        match self.keys.checked_add(keys) {
            Some(total) if total <= self.keys_max => self.keys = total,
            _ => {
                let (before, keys_max) = (self.keys, self.keys_max);
                return refuse(format!(
                    "{keys} keys after {before} of the same step exceed the limit of {keys_max}"
                ));
            }
        }
        Ok(())
    }

    /// The sums of one table.
    ///
    /// # Panics
    /// If the table does not exist.
    pub fn gradients(&self, table: usize) -> Gradients<'_> {
        let Sums { keys, rows, counts, .. } = &self.tables[table];
        Gradients { keys, rows, counts }
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(Sums::bytes).sum()
    }
}

fn add_slot(
    sums: &mut Sums,
    slot: &Slot<'_>,
    shape: FlatShape,
    gradients: &[f32],
    occurrences: &mut Occurrences,
) {
    let (weights, scale) = match slot.pooling {
        Pooling::Weighted(weights) => (weights, Scale::Times),
        Pooling::Mean | Pooling::Sqrtn if slot.offsets.is_some() => (&[][..], Scale::Over),
        _ => (&[][..], Scale::Not),
    };
    for example in 0..shape.examples {
        let (keys, place) = (slot.keys_of(example), example * shape.stride + slot.at);
        let divisor_or_one = divisor(slot.pooling, keys.len()).unwrap_or(1.0);
        for at in keys {
            let factor = weights.get(at).copied().unwrap_or(divisor_or_one);
            if occurrences.push(slot.keys[at], place, factor) {
                sums.add(occurrences, gradients, scale);
            }
        }
    }
    sums.add(occurrences, gradients, scale);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cases::{DIMS, FlatCase, SequenceCase, Whole, flat_case, readers, sequence_case, tables};
    use crate::pack::{pack_flat, pack_sequences};

    /// By table and key: the order of first occurrence, the sum and the count.
    type Plain = BTreeMap<(usize, u64), (usize, Vec<f32>, u32)>;

    fn note(plain: &mut Plain, (table, key): (usize, u64), gradient: impl Iterator<Item = f32>) {
        let first = plain.len();
        let (_, sum, count) = plain.entry((table, key)).or_insert((first, vec![0.0; DIMS[table]], 0));
        sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
        *count += 1;
    }

    fn note_flat(plain: &mut Plain, case: &FlatCase) {
        for column in &case.columns {
            let Some(table) = column.table else { continue };
            for example in 0..case.shape.examples {
                let keys = column.keys_of(example);
                let gradient = &case.gradients[example * case.shape.stride + column.at..][..column.width];
                for at in keys.clone() {
                    let factor = column.factor(at, keys.len());
                    note(plain, (table, column.keys[at]), gradient.iter().map(|number| number * factor));
                }
            }
        }
    }

    fn note_sequences(plain: &mut Plain, case: &SequenceCase) {
        for (slot, key, place) in case.places() {
            let table = case.tables[slot];
            note(plain, (table, key), case.gradients[place..place + DIMS[table]].iter().copied());
        }
    }

    fn check_plain(scatter: &Scatter, plain: &Plain) -> Result<(), TestCaseError> {
        for (table, &dim) in DIMS.iter().enumerate() {
            let mut expected: Vec<_> = plain.iter().filter(|((of, _), _)| *of == table).collect();
            expected.sort_by_key(|(_, (first, _, _))| *first);
            let gradients = scatter.gradients(table);
            prop_assert_eq!(gradients.keys.len(), expected.len());
            prop_assert_eq!(gradients.rows.len(), expected.len() * dim);
            for (at, ((_, key), (_, sum, count))) in expected.into_iter().enumerate() {
                prop_assert_eq!(gradients.keys[at], *key);
                prop_assert_eq!(&gradients.rows[at * dim..][..dim], &sum[..]);
                prop_assert_eq!(gradients.counts[at], *count);
            }
        }
        Ok(())
    }

    /// The sum of products of the rows that were read and the gradients that came back.
    fn rows_times_gradients(scatter: &Scatter, tables: &[Whole]) -> f64 {
        let mut sum = 0.0;
        for (number, table) in tables.iter().enumerate() {
            let Gradients { keys, rows, .. } = scatter.gradients(number);
            for (key, gradient) in keys.iter().zip(rows.chunks(table.dim)) {
                sum += product(&table.row(*key), gradient);
            }
        }
        sum
    }

    fn product(left: &[f32], right: &[f32]) -> f64 {
        left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
    }

    proptest! {
        #[test]
        fn sums_are_what_plain_sums_say_over_several_calls_and_steps(
            flats in proptest::collection::vec(flat_case(), 1..3),
            sequences in sequence_case(),
        ) {
            let mut scatter = Scatter::new(&DIMS, 1 << 20);
            for _ in 0..2 {
                let mut plain = Plain::new();
                scatter.clear();
                for case in &flats {
                    scatter.add_flat(&case.columns(), case.shape, &case.gradients).unwrap();
                    note_flat(&mut plain, case);
                }
                scatter.add_sequences(&sequences.slots(), sequences.shape, &sequences.gradients).unwrap();
                note_sequences(&mut plain, &sequences);
                check_plain(&scatter, &plain)?;
            }
        }

        #[test]
        fn scattering_is_the_adjoint_of_packing_a_flat_matrix(mut case in flat_case()) {
            let tables = tables();
            // Dense columns read no rows.
            for column in &mut case.columns {
                if column.table.is_none() {
                    column.floats.fill(0.0);
                }
            }
            let (mut packed, mut scatter) = (vec![0.0; case.floats()], Scatter::new(&DIMS, 1 << 20));
            pack_flat(&readers(&tables), &case.columns(), case.shape, &mut packed).unwrap();
            scatter.add_flat(&case.columns(), case.shape, &case.gradients).unwrap();
            prop_assert_eq!(product(&packed, &case.gradients), rows_times_gradients(&scatter, &tables));
        }

        #[test]
        fn scattering_is_the_adjoint_of_packing_sequences(mut case in sequence_case()) {
            let tables = tables();
            // The mask reads no rows.
            let (stride, mask) = (case.shape.stride, case.shape.width - 1);
            case.gradients.chunks_mut(stride).for_each(|position| position[mask] = 0.0);
            let (mut packed, mut scatter) = (vec![0.0; case.floats()], Scatter::new(&DIMS, 1 << 20));
            pack_sequences(&readers(&tables), &case.slots(), case.shape, &mut packed).unwrap();
            scatter.add_sequences(&case.slots(), case.shape, &case.gradients).unwrap();
            prop_assert_eq!(product(&packed, &case.gradients), rows_times_gradients(&scatter, &tables));
        }
    }

    fn flat<'a>(keys: &'a [u64], pooling: Pooling<'a>, offsets: &'a [i32]) -> ([Column<'a>; 1], FlatShape) {
        let (examples, offsets) = (offsets.len() - 1, Some(offsets));
        let shape = FlatShape { examples, examples_padded: examples, width: 1, stride: 1 };
        ([Column::Slot(Slot { name: "it", table: 0, at: 0, pooling, keys, offsets })], shape)
    }

    #[test]
    fn means_and_roots_share_a_gradient_among_their_keys() {
        let mut scatter = Scatter::new(&[1], 100);
        let (columns, shape) = flat(&[8, 8, 9], Pooling::Mean, &[0, 3]);
        scatter.add_flat(&columns, shape, &[2.0]).unwrap();
        let third = 2.0f32 / 3.0;
        let expected = Gradients { keys: &[8, 9], rows: &[third + third, third], counts: &[2, 1] };
        assert_eq!(scatter.gradients(0), expected);
        scatter.clear();
        let (columns, shape) = flat(&[8, 9, 10], Pooling::Sqrtn, &[0, 3]);
        scatter.add_flat(&columns, shape, &[2.0]).unwrap();
        assert_eq!(scatter.gradients(0).rows, [2.0 / 3f32.sqrt(); 3]);
    }

    #[test]
    fn sums_are_made_in_the_order_of_the_input() {
        let mut scatter = Scatter::new(&[1], 100);
        let (columns, shape) = flat(&[1; 3], Pooling::Sum, &[0, 1, 2, 3]);
        // In any other order the 1 would not be lost.
        scatter.add_flat(&columns, shape, &[1.0, 1e8, -1e8]).unwrap();
        assert_eq!(scatter.gradients(0).rows, [0.0]);
    }

    #[test]
    fn many_distinct_keys_come_out_once_each_and_memory_is_kept() {
        let keys: Vec<u64> =
            (0..100_000u64).map(|key| key << 44).chain((0..100_000).rev().map(|key| key << 44)).collect();
        let offsets: Vec<i32> = (0..=200_000).collect();
        let (columns, shape) = flat(&keys, Pooling::Sum, &offsets);
        let gradients = vec![1.0; keys.len()];
        let mut scatter = Scatter::new(&[1], keys.len());
        scatter.add_flat(&columns, shape, &gradients).unwrap();
        let first = scatter.gradients(0);
        assert_eq!(first.keys, &keys[..100_000]);
        assert!(first.counts.iter().all(|&count| count == 2) && first.rows.iter().all(|&sum| sum == 2.0));
        let bytes = scatter.bytes();
        for _ in 0..3 {
            scatter.clear();
            assert_eq!(scatter.gradients(0), Gradients { keys: &[], rows: &[], counts: &[] });
            scatter.add_flat(&columns, shape, &gradients).unwrap();
            assert_eq!((scatter.gradients(0).keys, scatter.bytes()), (&keys[..100_000], bytes));
        }
    }

    #[test]
    fn a_step_of_too_many_keys_is_refused_and_changes_nothing() {
        let mut scatter = Scatter::new(&[1], 4);
        let (columns, shape) = flat(&[1, 2, 3], Pooling::Sum, &[0, 1, 2, 3]);
        scatter.add_flat(&columns, shape, &[1.0; 3]).unwrap();
        let refused = scatter.add_flat(&columns, shape, &[1.0; 3]).unwrap_err();
        assert_eq!(refused.to_string(), "3 keys after 3 of the same step exceed the limit of 4");
        assert_eq!(scatter.gradients(0).counts, [1; 3]);
        scatter.clear();
        scatter.add_flat(&columns, shape, &[1.0; 3]).unwrap();
    }
}
