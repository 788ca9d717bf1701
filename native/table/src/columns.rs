//! Columns of packed inputs: the position of each slot and dense column, and the keys or numbers of every
//! example.
//!
//! An example is a request on the user side and a candidate on the item side. This module knows no tables and
//! moves no floats; packing and scattering rely on its checks.

use std::fmt;
use std::ops::Range;

/// How the rows of one example are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pooling<'a> {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    Sqrtn,
    /// The sum of weight times row, with a weight for each key; not divided.
    Weighted(&'a [f32]),
}

/// One pooled slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slot<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// The index of its table.
    pub table: usize,
    /// Its first float in a row of the matrix; it takes as many floats as its table's dim.
    pub at: usize,
    /// How the rows of one example are combined.
    pub pooling: Pooling<'a>,
    /// The keys of all examples, end to end.
    pub keys: &'a [u64],
    /// The start of each example's keys, and the end of the last; None if each example has one key.
    pub offsets: Option<&'a [i32]>,
}

/// One column of plain numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// Its first float in a row of the matrix.
    pub at: usize,
    /// The number of floats it takes.
    pub width: usize,
    /// `width` numbers for every example.
    pub numbers: &'a [f32],
}

/// One column of a flat matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Column<'a> {
    /// Rows of a table, pooled.
    Slot(Slot<'a>),
    /// Numbers, copied unchanged.
    Dense(Dense<'a>),
}

/// One sequence slot: keys oldest first; the newest are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sequence<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// The index of its table.
    pub table: usize,
    /// Its first channel; it takes as many channels as its table's dim.
    pub at: usize,
    /// The keys of all users, end to end.
    pub keys: &'a [u64],
    /// The start of each user's keys, and the end of the last.
    pub offsets: &'a [i32],
}

/// A matrix (examples, width) in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlatShape {
    /// Rows that hold examples.
    pub examples: usize,
    /// Rows of the buffer; those after the examples are zero.
    pub examples_padded: usize,
    /// Floats that the columns take.
    pub width: usize,
    /// Floats from one row to the next; the floats after `width` are zero.
    pub stride: usize,
}

/// A block (users, length, width) in a buffer, whose last channel is the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceShape {
    /// The number of users.
    pub users: usize,
    /// The number of users in the buffer; those after `users` are zero.
    pub users_padded: usize,
    /// Positions per user; of a longer sequence the newest keys are kept.
    pub length: usize,
    /// Channels per position: those of the slots, and the mask.
    pub width: usize,
    /// Floats from one position to the next; the floats after `width` are zero.
    pub stride: usize,
}

/// Columns that contradict each other, their tables or the buffer. Nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackError(String);

impl fmt::Display for PackError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for PackError {}

/// An error with this text.
pub(crate) fn refuse<T>(text: String) -> Result<T, PackError> {
    Err(PackError(text))
}

impl Slot<'_> {
    /// The keys of one example.
    #[inline(always)]
    pub(crate) fn keys_of(&self, example: usize) -> Range<usize> {
        match self.offsets {
            Some(offsets) => offsets[example] as usize..offsets[example + 1] as usize,
            None => example..example + 1,
        }
    }

    /// Whether an example's pooled row is just the row of its one key.
    pub(crate) fn is_plain(&self) -> bool {
        self.offsets.is_none() && !matches!(self.pooling, Pooling::Weighted(_))
    }
}

impl Sequence<'_> {
    /// The kept keys of one user.
    #[inline(always)]
    pub(crate) fn kept_of(&self, user: usize, length: usize) -> Range<usize> {
        let (begin, end) = (self.offsets[user] as usize, self.offsets[user + 1] as usize);
        end - (end - begin).min(length)..end
    }
}

/// The totals of checked columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// The number of keys over all slots.
    pub keys: usize,
    /// The widest row.
    pub dim_max: usize,
}

/// Rejects columns that do not fill the shape, lack keys or numbers, or point outside of them.
pub(crate) fn check_flat(
    columns: &[Column<'_>],
    dims: &[usize],
    shape: FlatShape,
    floats: usize,
) -> Result<Checked, PackError> {
    let FlatShape { examples: users, examples_padded: users_padded, width, stride } = shape;
    check_size("examples", SequenceShape { users, users_padded, length: 1, width, stride }, floats)?;
    let (mut checked, mut end) = (Checked::default(), 0);
    for column in columns {
        match column {
            Column::Slot(slot) => {
                let dim = check_table(slot.name, slot.table, dims)?;
                end = check_place(slot.name, slot.at, dim, end)?;
                checked.keys += check_slot(slot, shape.examples)?;
                checked.dim_max = checked.dim_max.max(dim);
            }
            Column::Dense(dense) => {
                end = check_place(dense.name, dense.at, dense.width, end)?;
                let (count, examples) = (dense.numbers.len(), shape.examples);
                if examples.checked_mul(dense.width) != Some(count) {
                    let (name, width) = (dense.name, dense.width);
                    return refuse(format!(
                        "column {name} has {count} numbers for {examples} examples of {width}"
                    ));
                }
            }
        }
    }
    if end != width {
        return refuse(format!("the columns take {end} floats, but the matrix is {width} wide"));
    }
    Ok(checked)
}

/// Rejects sequence slots that do not fill the shape, point outside of their keys or differ in history
/// length.
pub(crate) fn check_sequences(
    slots: &[Sequence<'_>],
    dims: &[usize],
    shape: SequenceShape,
    floats: usize,
) -> Result<Checked, PackError> {
    check_size("users", shape, floats)?;
    if shape.length == 0 {
        return refuse("the sequence length is 0; it must be at least 1".into());
    }
    let Some(first) = slots.first() else { return refuse("a sequence block needs at least one slot".into()) };
    let (mut checked, mut end) = (Checked::default(), 0);
    for slot in slots {
        let dim = check_table(slot.name, slot.table, dims)?;
        end = check_place(slot.name, slot.at, dim, end)?;
        check_offsets(slot.name, slot.offsets, shape.users, slot.keys.len())?;
        check_history(first, slot, shape.users)?;
        checked.keys += (0..shape.users).map(|user| slot.kept_of(user, shape.length).len()).sum::<usize>();
        checked.dim_max = checked.dim_max.max(dim);
    }
    if end.checked_add(1) != Some(shape.width) {
        return refuse(format!(
            "the slots and the mask take {end} + 1 channels, but the block has {}",
            shape.width
        ));
    }
    Ok(checked)
}

/// Rejects two columns of one history with different numbers of keys for a user.
fn check_history(first: &Sequence<'_>, slot: &Sequence<'_>, users: usize) -> Result<(), PackError> {
    let length = |slot: &Sequence<'_>, user: usize| slot.offsets[user + 1] - slot.offsets[user];
    match (0..users).find(|&user| length(slot, user) != length(first, user)) {
        Some(user) => refuse(format!(
            "columns {} and {} share one history, but user {user} has {} keys in the first and {} in the second",
            first.name,
            slot.name,
            length(first, user),
            length(slot, user),
        )),
        None => Ok(()),
    }
}

/// Rejects a shape that contradicts itself or the buffer.
fn check_size(noun: &str, shape: SequenceShape, floats: usize) -> Result<(), PackError> {
    let SequenceShape { users: count, users_padded: padded, length, width, stride } = shape;
    if count > padded {
        return refuse(format!("{count} {noun} do not fit into a buffer for {padded}"));
    }
    if stride == 0 || width > stride {
        // With a stride of 0, any number of rows would fit any buffer.
        return refuse(format!("rows of {width} floats do not fit a stride of {stride}"));
    }
    let expected = padded.checked_mul(length).and_then(|rows| rows.checked_mul(stride));
    if expected != Some(floats) {
        return refuse(format!(
            "a buffer of {floats} floats does not hold {padded} {noun} x {length} rows at a stride of {stride}"
        ));
    }
    Ok(())
}

fn check_table(name: &str, table: usize, dims: &[usize]) -> Result<usize, PackError> {
    match dims.get(table) {
        Some(0) => refuse(format!("column {name}: table {table} has rows of 0 floats")),
        Some(&dim) => Ok(dim),
        None => refuse(format!("column {name} refers to table {table}, but there are {} tables", dims.len())),
    }
}

/// Rejects a gap or an overlap: a gap would expose the buffer's earlier content to the model.
fn check_place(name: &str, at: usize, width: usize, end: usize) -> Result<usize, PackError> {
    if at != end {
        return refuse(format!("column {name} is at float {at}, but the columns before it end at {end}"));
    }
    end.checked_add(width)
        .map_or_else(|| refuse(format!("column {name} of {width} floats exceeds the address range")), Ok)
}

fn check_slot(slot: &Slot<'_>, examples: usize) -> Result<usize, PackError> {
    let (name, keys) = (slot.name, slot.keys.len());
    match slot.pooling {
        Pooling::Weighted(weights) if weights.len() != keys => {
            return refuse(format!("column {name} has {} weights for {keys} keys", weights.len()));
        }
        _ => (),
    }
    match slot.offsets {
        Some(offsets) => check_offsets(name, offsets, examples, keys),
        None if keys == examples => Ok(keys),
        None => refuse(format!("column {name} has {keys} keys for {examples} examples with one key each")),
    }
}

/// Rejects offsets that decrease or exceed the keys; returns the number of keys between the first and the
/// last offset.
fn check_offsets(name: &str, offsets: &[i32], examples: usize, keys: usize) -> Result<usize, PackError> {
    if offsets.len().checked_sub(1) != Some(examples) {
        return refuse(format!("column {name} has {} offsets for {examples} examples", offsets.len()));
    }
    // No early exit, so that the comparison vectorises.
    if offsets.windows(2).fold(false, |falls, pair| falls | (pair[1] < pair[0])) {
        let at = offsets.windows(2).position(|pair| pair[1] < pair[0]).unwrap_or(0);
        return refuse(format!(
            "column {name}: offsets decrease from {} to {} at example {at}",
            offsets[at],
            offsets[at + 1],
        ));
    }
    let (first, last) = (offsets[0], offsets[examples]);
    match (usize::try_from(first), usize::try_from(last)) {
        (Ok(first), Ok(last)) if last <= keys => Ok(last - first),
        _ => refuse(format!("column {name}: offsets {first} to {last} are outside of its {keys} keys")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cases::{
        DIMS, FlatCase, OwnedColumn, SequenceCase, flat_case, readers, sequence_case, tables,
    };
    use crate::pack::{pack_flat, pack_sequences};
    use crate::scatter::Scatter;

    /// Numbers that no valid description has.
    fn wild() -> impl Strategy<Value = usize> {
        prop_oneof![0..8usize, Just(1 << 31), Just(1 << 40), Just(usize::MAX / 2 + 1), Just(usize::MAX)]
    }

    fn wild_offset() -> impl Strategy<Value = i32> {
        prop_oneof![-2..9i32, Just(i32::MIN), Just(i32::MAX)]
    }

    /// Replaces one field of a column with a value that may not fit.
    fn spoil(column: &mut OwnedColumn, field: usize, number: usize, offset: i32) {
        match (field, &mut column.offsets) {
            (0, _) => column.table = Some(number),
            (1, _) => column.at = number,
            (2, _) => column.width = number,
            (3, _) => column.keys.truncate(number),
            (4, _) => column.floats.truncate(number),
            (5, _) => column.pooling = number,
            (6, Some(offsets)) => offsets.truncate(number),
            (7, Some(offsets)) => offsets.push(offset),
            (8, Some(offsets)) => *offsets.last_mut().unwrap() = offset,
            (_, Some(offsets)) => {
                let at = number % offsets.len();
                offsets[at] = offset;
            }
            (_, offsets) => *offsets = Some(vec![offset; number.min(200)]),
        }
    }

    fn spoil_shape(shape: [&mut usize; 4], index: usize, number: usize) {
        if let Some(field) = shape.into_iter().nth(index) {
            *field = number;
        }
    }

    /// A rejected description changes nothing and scattering rejects it too; an accepted one is written
    /// whole.
    fn check_flat_case(case: &FlatCase) -> Result<(), TestCaseError> {
        let (tables, mut into) = (tables(), vec![f32::NAN; case.gradients.len()]);
        let (columns, mut scatter) = (case.columns(), Scatter::new(&DIMS, 1 << 20));
        let packed = pack_flat(&readers(&tables), &columns, case.shape, &mut into);
        prop_assert_eq!(&scatter.add_flat(&columns, case.shape, &case.gradients), &packed);
        prop_assert!(into.iter().all(|float| float.is_nan() == packed.is_err()));
        if packed.is_err() {
            prop_assert!((0..DIMS.len()).all(|table| scatter.gradients(table).keys.is_empty()));
            prop_assert!(tables.iter().all(|table| table.reads.get() == 0));
        }
        Ok(())
    }

    fn check_sequence_case(case: &SequenceCase, slots: &[Sequence<'_>]) -> Result<(), TestCaseError> {
        let (tables, mut into) = (tables(), vec![f32::NAN; case.gradients.len()]);
        let mut scatter = Scatter::new(&DIMS, 1 << 20);
        let packed = pack_sequences(&readers(&tables), slots, case.shape, &mut into);
        prop_assert_eq!(&scatter.add_sequences(slots, case.shape, &case.gradients), &packed);
        prop_assert!(into.iter().all(|float| float.is_nan() == packed.is_err()));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn a_flat_description_with_one_thing_changed_is_packed_whole_or_refused(
            mut case in flat_case(), which in any::<usize>(), what in 0..15usize,
            number in wild(), offset in wild_offset(),
        ) {
            let which = which % case.columns.len();
            match what {
                0..10 => spoil(&mut case.columns[which], what, number, offset),
                10 => case.gradients.truncate(number),
                _ => {
                    let FlatShape { examples, examples_padded, width, stride } = &mut case.shape;
                    spoil_shape([examples, examples_padded, width, stride], what - 11, number);
                }
            }
            check_flat_case(&case)?;
        }

        #[test]
        fn a_sequence_description_with_one_thing_changed_is_packed_whole_or_refused(
            mut case in sequence_case(), which in any::<usize>(), what in 0..9usize,
            number in wild(), offset in wild_offset(),
        ) {
            let SequenceShape { users, users_padded, length, width, stride } = &mut case.shape;
            match what {
                0..4 => spoil_shape([users, users_padded, width, stride], what, number),
                4 => *length = number,
                5 => case.gradients.truncate(number),
                _ => (),
            }
            let (mut slots, mut offsets) = (case.slots(), case.offsets.clone());
            let (which, at) = (which % slots.len(), which % offsets.len());
            offsets[at] = offset;
            match what {
                6 => slots[which].table = number,
                7 => slots[which].at = number,
                8 => slots[which].offsets = &offsets,
                _ => (),
            }
            check_sequence_case(&case, &slots)?;
        }

        #[test]
        fn a_description_made_up_of_anything_is_packed_whole_or_refused(
            columns in proptest::collection::vec(
                (
                    (proptest::option::of(0..4usize), wild(), wild(), 0..4usize),
                    proptest::collection::vec(any::<u64>(), 0..4),
                    proptest::option::of(proptest::collection::vec(wild_offset(), 0..4)),
                    proptest::collection::vec(-1f32..1.0, 0..4),
                ),
                0..3,
            ),
            (examples, examples_padded, width, stride) in (wild(), wild(), wild(), wild()),
            floats in 0..50usize,
        ) {
            let owned = |((table, at, width, pooling), keys, offsets, floats)| {
                OwnedColumn { table, width, at, pooling, keys, offsets, floats }
            };
            let columns = columns.into_iter().map(owned).collect();
            let shape = FlatShape { examples, examples_padded, width, stride };
            check_flat_case(&FlatCase { columns, shape, gradients: vec![1.0; floats] })?;
        }
    }

    const SHAPE: FlatShape = FlatShape { examples: 2, examples_padded: 3, width: 5, stride: 6 };
    const SLOT: Slot<'_> = Slot {
        name: "likes",
        table: 1,
        at: 0,
        pooling: Pooling::Sum,
        keys: &[7, 8, 9],
        offsets: Some(&[0, 1, 3]),
    };

    #[track_caller]
    fn refused(column: Column<'_>, shape: FlatShape, floats: usize, expected: &str) {
        let error = check_flat(&[column], &DIMS, shape, floats).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn refusals_of_slots_name_the_column_and_the_numbers() {
        let expected = Checked { keys: 3, dim_max: 5 };
        assert_eq!(check_flat(&[Column::Slot(SLOT)], &DIMS, SHAPE, 18), Ok(expected));
        for (slot, expected) in [
            (Slot { table: 3, ..SLOT }, "column likes refers to table 3, but there are 3 tables"),
            (Slot { at: 1, ..SLOT }, "column likes is at float 1, but the columns before it end at 0"),
            (Slot { table: 0, ..SLOT }, "the columns take 1 floats, but the matrix is 5 wide"),
            (Slot { pooling: Pooling::Weighted(&[1.0; 4]), ..SLOT }, "column likes has 4 weights for 3 keys"),
            (Slot { pooling: Pooling::Weighted(&[1.0]), ..SLOT }, "column likes has 1 weights for 3 keys"),
            (Slot { offsets: None, ..SLOT }, "column likes has 3 keys for 2 examples with one key each"),
            (Slot { offsets: Some(&[]), ..SLOT }, "column likes has 0 offsets for 2 examples"),
            (
                Slot { offsets: Some(&[0, 3, 1]), ..SLOT },
                "column likes: offsets decrease from 3 to 1 at example 1",
            ),
            (
                Slot { offsets: Some(&[0, 1, 4]), ..SLOT },
                "column likes: offsets 0 to 4 are outside of its 3 keys",
            ),
            (
                Slot { offsets: Some(&[-1, 1, 3]), ..SLOT },
                "column likes: offsets -1 to 3 are outside of its 3 keys",
            ),
        ] {
            refused(Column::Slot(slot), SHAPE, 18, expected);
        }
        let error = check_flat(&[Column::Slot(SLOT)], &[1, 0], SHAPE, 18).unwrap_err();
        assert_eq!(error.to_string(), "column likes: table 1 has rows of 0 floats");
    }

    #[test]
    fn refusals_of_numbers_and_shapes_name_the_numbers() {
        let dense = Dense { name: "age", at: 0, width: 5, numbers: &[0.0; 9] };
        refused(Column::Dense(dense), SHAPE, 18, "column age has 9 numbers for 2 examples of 5");
        let slot = Column::Slot(SLOT);
        let few = FlatShape { examples: 4, ..SHAPE };
        refused(slot, few, 18, "4 examples do not fit into a buffer for 3");
        let tight = FlatShape { stride: 4, ..SHAPE };
        refused(slot, tight, 12, "rows of 5 floats do not fit a stride of 4");
        let flat = FlatShape { width: 0, stride: 0, ..SHAPE };
        refused(slot, flat, 0, "rows of 0 floats do not fit a stride of 0");
        let expected = "a buffer of 17 floats does not hold 3 examples x 1 rows at a stride of 6";
        refused(slot, SHAPE, 17, expected);
    }

    #[test]
    fn refusals_of_sequences_name_the_column_and_the_numbers() {
        let slot = Sequence { name: "seen", table: 1, at: 0, keys: &[7, 8, 9], offsets: &[0, 1, 3] };
        let other = Sequence { name: "when", at: 5, offsets: &[1, 3, 3], ..slot };
        let shape = SequenceShape { users: 2, users_padded: 2, length: 1, width: 11, stride: 11 };
        let check = |slots: &[Sequence<'_>], shape| match check_sequences(slots, &DIMS, shape, 22) {
            Ok(checked) => format!("{} keys", checked.keys),
            Err(error) => error.to_string(),
        };
        let same = Sequence { offsets: &[0, 1, 3], ..other };
        assert_eq!(check(&[slot, same], shape), "4 keys");
        let histories =
            "columns seen and when share one history, but user 0 has 1 keys in the first and 2 in the second";
        assert_eq!(check(&[slot, other], shape), histories);
        assert_eq!(check(&[slot], shape), "the slots and the mask take 5 + 1 channels, but the block has 11");
        assert_eq!(check(&[], shape), "a sequence block needs at least one slot");
        let nothing = SequenceShape { length: 0, ..shape };
        let error = check_sequences(&[slot, same], &DIMS, nothing, 0).unwrap_err();
        assert_eq!(error.to_string(), "the sequence length is 0; it must be at least 1");
    }
}
