//! Columns: converts the tensors of a request into the columns of both sides. Knows no protocol.

pub mod item_inputs;

use std::fmt::Write;

use super::input_names::{Naming, PARTS, Part, Place, Side};
use super::values::tensor::{Datatype, Shape, Tensor};
use crate::answer::Refusal;
use crate::inputs::{Count, Input, ItemInputs, Kind, Limits};
use crate::request::{ItemWishes, LeftOut, Values};
use item_inputs::ItemInputReader;

/// The tensors of a request, added one by one.
pub struct InputTensors<'a, 'n> {
    naming: &'n Naming,
    tensors: Vec<Option<Tensor<'a>>>,
}

/// The columns of a request.
#[derive(Debug, PartialEq)]
pub struct Sides {
    /// The number of candidates.
    pub candidates: usize,
    /// The user's columns.
    pub user: Vec<Values>,
    /// The candidates' columns.
    pub item: Vec<Values>,
    /// As `Request::lacks`.
    pub lacks: Vec<usize>,
    /// As `Request::left_out`.
    pub left_out: Option<Box<LeftOut>>,
    /// As `Request::items`.
    pub items: Option<Box<ItemWishes>>,
}

impl Sides {
    /// The number of places among which `shown` chooses: candidates, or items of a ranked answer.
    pub fn shown_max(&self) -> usize {
        let ranked = self.items.as_ref().filter(|items| items.rank.is_some());
        ranked.map_or(self.candidates, |items| items.k)
    }
}

/// The first history column of a side; all histories of a side have the same length.
#[derive(Default)]
pub struct History {
    first: Option<(String, Vec<i32>)>,
}

fn bad<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Bad(text.into()))
}

/// The name of a part of a column.
fn name_of(input: &Input, part: Part) -> String {
    let suffix = ["", ".lengths", ".weights"][part as usize];
    format!("{}{suffix}", input.name)
}

impl<'a, 'n> InputTensors<'a, 'n> {
    /// Starts without tensors.
    pub fn new(naming: &'n Naming) -> Self {
        let columns = naming.columns() + item_inputs::NAMES_MAX;
        Self { naming, tensors: vec![None; columns * PARTS] }
    }

    /// Adds an input.
    pub fn add(
        &mut self,
        name: &str,
        tensor: impl FnOnce() -> Result<Tensor<'a>, Refusal>,
    ) -> Result<(), Refusal> {
        let Some(Place { column, part }) = self.naming.place(name) else {
            return bad(self.naming.unknown(name));
        };
        let slot = &mut self.tensors[column * PARTS + part as usize];
        if slot.is_some() {
            return bad(format!("input {name:?} is given twice"));
        }
        *slot = Some(tensor()?);
        Ok(())
    }

    fn part(&self, column: usize, part: Part) -> Option<&Tensor<'a>> {
        self.tensors[column * PARTS + part as usize].as_ref()
    }

    /// The number of candidates, on which all candidate inputs must agree.
    fn candidates(&self) -> Result<usize, Refusal> {
        let mut known: Option<(u64, String)> = None;
        for column in self.naming.inputs().user.len()..self.naming.columns() {
            let (_, input) = self.naming.input(column);
            let lengths = self.part(column, Part::Lengths);
            let (part, tensor) = match (lengths, self.part(column, Part::Values)) {
                (Some(tensor), _) => (Part::Lengths, tensor),
                (None, Some(tensor)) => (Part::Values, tensor),
                (None, None) => continue,
            };
            check_shape(Side::Item, input, part, tensor.shape, lengths.is_some())
                .map_err(|error| error.of(input))?;
            let rows = tensor.shape.dims().and_then(|dims| dims.first()).copied().unwrap_or(0);
            match &known {
                None => known = Some((rows, name_of(input, part))),
                Some((first, name)) if *first != rows => {
                    return bad(format!(
                        "input {:?} has {rows} candidates, but {name:?} has {first}; \
                         help: the first dimension of all candidate inputs must be the number of candidates",
                        name_of(input, part)
                    ));
                }
                Some(_) => {}
            }
        }
        let Some((rows, name)) = known else {
            return bad(format!(
                "the number of candidates is unknown, because no candidate input is given; help: {}",
                self.naming.known()
            ));
        };
        check_candidates(rows, &name, &self.naming.inputs().limits)
    }

    /// Checks all tensors and returns the columns of both sides.
    pub fn into_sides(self) -> Result<Sides, Refusal> {
        let inputs = self.naming.inputs();
        let items = inputs.items.map(|items| self.item_wishes(items)).transpose()?;
        let candidates = if items.is_some() { 1 } else { self.candidates()? };
        let (mut user, mut item) =
            (Vec::with_capacity(inputs.user.len()), Vec::with_capacity(inputs.item.len()));
        let mut histories = [History::default(), History::default()];
        let (mut lacks, mut left_out) = (Vec::new(), Vec::new());
        for column in 0..self.naming.columns() {
            let (side, input) = self.naming.input(column);
            if input.is_computed && self.part(column, Part::Values).is_none() {
                lacks.push(column);
            }
            if side == Side::Item && self.is_left_out(column) {
                left_out.push((item.len(), None));
                let values = input.blank(candidates, self.naming.inputs().limits.values_max);
                item.push(values.map_err(|text| PartError::values(text).of(input))?);
                continue;
            }
            let (rows, to) = match side {
                Side::User => (1, &mut user),
                Side::Item => (candidates, &mut item),
            };
            let history = &mut histories[side as usize];
            to.push(self.column(column, side, rows, history).map_err(|error| error.of(input))?);
        }
        let left_out = left_out_of(left_out);
        Ok(Sides { candidates, user, item, lacks, left_out, items })
    }

    /// Whether the library has a column, which is not given.
    fn is_left_out(&self, column: usize) -> bool {
        let is_given =
            [Part::Values, Part::Lengths, Part::Weights].map(|part| self.part(column, part).is_some());
        is_given == [false; PARTS] && self.naming.is_in_library(column)
    }

    fn item_wishes(&self, items: ItemInputs) -> Result<Box<ItemWishes>, Refusal> {
        let (first, mut reader) = (self.naming.columns(), ItemInputReader::default());
        let tensors = std::array::from_fn(|at| self.part(first + at, Part::Values));
        reader.tensors(tensors, items, self.naming)?;
        reader.into_wishes(items, self.naming.inputs())
    }

    fn column(
        &self,
        column: usize,
        side: Side,
        rows: usize,
        history: &mut History,
    ) -> Result<Values, PartError> {
        let (_, input) = self.naming.input(column);
        let limits = self.naming.inputs().limits;
        let (values, lengths) = (self.part(column, Part::Values), self.part(column, Part::Lengths));
        let weights = self.part(column, Part::Weights);
        let Some(tensor) = values else {
            if let Some(part) = lengths.map(|_| Part::Lengths).or(weights.map(|_| Part::Weights)) {
                return Err(PartError { part, text: format!("it is given without {:?}", input.name) });
            }
            return missing(input, rows, &limits, history);
        };
        if side == Side::User || lengths.is_some() {
            check_shape(side, input, Part::Values, tensor.shape, lengths.is_some())?;
        }
        check_type(input, Part::Values, tensor.datatype)?;
        let count = tensor.count(limits.values_max).map_err(PartError::values)?;
        match &input.kind {
            Kind::Dense { .. } => tensor.floats(count).map(Values::Numbers).map_err(PartError::values),
            Kind::Slot { salt, is_text, values, .. } => {
                let hashing = self.naming.keys();
                let keys = if *is_text {
                    tensor.text_keys(count, *salt, hashing)
                } else {
                    tensor.int_keys(count, *salt, hashing)
                };
                let keys = keys.map_err(PartError::values)?;
                if *values == Count::One {
                    return Ok(Values::Keys(keys));
                }
                let weights = given_weights(*values == Count::Weighted, tensor, weights, count)?;
                let offsets = match lengths {
                    None => even_offsets(rows, count),
                    Some(lengths) => {
                        check_type(input, Part::Lengths, lengths.datatype)?;
                        lengths
                            .offsets(rows, count)
                            .map_err(|text| PartError { part: Part::Lengths, text })?
                    }
                };
                lists(input, keys, offsets, weights, history).map_err(PartError::values)
            }
        }
    }
}

/// What was left out, if anything was.
pub fn left_out_of(columns: Vec<(usize, Option<Vec<u32>>)>) -> Option<Box<LeftOut>> {
    (!columns.is_empty()).then(|| Box::new(LeftOut { columns, known: Vec::new() }))
}

/// An error in a part of a column.
pub struct PartError {
    part: Part,
    text: String,
}

impl PartError {
    fn values(text: String) -> Self {
        Self { part: Part::Values, text }
    }

    /// Converts it to a refusal that names the input.
    pub fn of(self, input: &Input) -> Refusal {
        Refusal::Bad(format!("input {:?}: {}", name_of(input, self.part), self.text))
    }
}

/// Checks the number of candidates.
pub fn check_candidates(rows: u64, name: &str, limits: &Limits) -> Result<usize, Refusal> {
    match usize::try_from(rows) {
        Ok(0) => bad(format!("input {name:?} has 0 candidates; at least 1 is required")),
        Ok(rows) if rows <= limits.candidates_max => Ok(rows),
        _ => bad(format!(
            "input {name:?} has {rows} candidates; at most {} are allowed; help: split the request",
            limits.candidates_max
        )),
    }
}

/// Returns the values of a column that is missing in the request.
pub fn missing(
    input: &Input,
    rows: usize,
    limits: &Limits,
    history: &mut History,
) -> Result<Values, PartError> {
    if !input.is_optional() {
        return Err(PartError::values("it is missing and has no default".to_owned()));
    }
    match input.blank(rows, limits.values_max).map_err(PartError::values)? {
        Values::Lists { keys, offsets, weights } => {
            lists(input, keys, offsets, weights, history).map_err(PartError::values)
        }
        values => Ok(values),
    }
}

/// Builds the lists of a slot with many values. Histories keep their newest values and must all have the same
/// length.
pub fn lists(
    input: &Input,
    mut keys: Vec<u64>,
    mut offsets: Vec<i32>,
    weights: Option<Vec<f32>>,
    history: &mut History,
) -> Result<Values, String> {
    if let Kind::Slot { values: Count::Newest(newest_max), .. } = input.kind {
        if let Some((name, first)) = &history.first {
            if *first != offsets {
                let count = |offsets: &[i32]| offsets.last().copied().unwrap_or(0);
                return Err(format!(
                    "it has {} values, but {name:?} has {}; help: all columns of a history must have the same length",
                    count(&offsets),
                    count(first)
                ));
            }
        } else {
            history.first = Some((input.name.clone(), offsets.clone()));
        }
        keep_newest(&mut keys, &mut offsets, newest_max);
    }
    Ok(Values::Lists { keys, offsets, weights })
}

fn keep_newest(keys: &mut Vec<u64>, offsets: &mut [i32], newest_max: usize) {
    let (mut end, mut begin) = (0, 0);
    for offset in offsets.iter_mut().skip(1) {
        let next = *offset as usize;
        let from = begin.max(next.saturating_sub(newest_max));
        keys.copy_within(from..next, end);
        end += next - from;
        begin = next;
        *offset = end as i32;
    }
    keys.truncate(end);
}

fn even_offsets(rows: usize, count: usize) -> Vec<i32> {
    let each = count / rows;
    // The product is at most the number of values, which fits an offset.
    (0..=rows).map(|row| (row * each) as i32).collect()
}

fn given_weights(
    is_weighted: bool,
    values: &Tensor<'_>,
    weights: Option<&Tensor<'_>>,
    count: usize,
) -> Result<Option<Vec<f32>>, PartError> {
    let error = |text| PartError { part: Part::Weights, text };
    if !is_weighted {
        return Ok(None);
    }
    let Some(tensor) = weights else {
        if count == 0 {
            return Ok(Some(Vec::new()));
        }
        return Err(error(format!("it is missing, expected FP32 of shape {}", values.shape)));
    };
    if !tensor.datatype.is_float() {
        return Err(error(format!("datatype {}, expected FP32 or FP64", tensor.datatype.name())));
    }
    if tensor.shape != values.shape {
        return Err(error(format!("shape {}, expected {} like its values", tensor.shape, values.shape)));
    }
    tensor.floats(count).map(Some).map_err(error)
}

fn check_type(input: &Input, part: Part, datatype: Datatype) -> Result<(), PartError> {
    let (is_right, expected) = match (&input.kind, part) {
        (_, Part::Lengths) => (matches!(datatype, Datatype::Int32 | Datatype::Int64), "INT32 or INT64"),
        (Kind::Slot { is_text: true, .. }, _) => {
            (datatype == Datatype::Bytes, "BYTES, because its values are texts")
        }
        (Kind::Slot { .. }, _) => {
            (datatype.is_whole(), "INT64 (or INT32, UINT32, UINT64), because its values are whole numbers")
        }
        (Kind::Dense { .. }, _) => (datatype.is_float(), "FP32 or FP64"),
    };
    if is_right {
        return Ok(());
    }
    Err(PartError { part, text: format!("datatype {}, expected {expected}", datatype.name()) })
}

/// Checks that the input may have this shape.
fn check_shape(
    side: Side,
    input: &Input,
    part: Part,
    shape: Shape,
    has_lengths: bool,
) -> Result<(), PartError> {
    let dims = shape.dims();
    let is_right = match (side, part, &input.kind, dims) {
        (_, _, _, None) => false,
        (Side::Item, Part::Lengths | Part::Weights, _, Some(dims)) => dims.len() == 1,
        (Side::User, _, Kind::Slot { values: Count::One, .. }, Some(dims)) => matches!(dims, [] | [1]),
        (Side::User, _, Kind::Slot { .. }, Some(dims)) => matches!(dims, [_] | [1, _]),
        (Side::User, _, Kind::Dense { width, .. }, Some(dims)) => match dims {
            [] => *width == 1,
            [count] | [1, count] => *count == *width as u64,
            _ => false,
        },
        (Side::Item, _, Kind::Slot { values: Count::One, .. }, Some(dims)) => dims.len() == 1,
        (Side::Item, _, Kind::Slot { .. }, Some(dims)) => dims.len() == if has_lengths { 1 } else { 2 },
        (Side::Item, _, Kind::Dense { width, .. }, Some(dims)) => match dims {
            [_] => *width == 1,
            [_, of] => *of == *width as u64,
            _ => false,
        },
    };
    if is_right {
        return Ok(());
    }
    let mut expected = expected_shape(side, input, part, has_lengths);
    if side == Side::Item
        && part == Part::Values
        && matches!(dims, Some([_]))
        && expected.starts_with("[n, k]")
    {
        let _ = write!(
            expected,
            "; help: with {:?} of shape [n], its values may have shape [total]",
            name_of(input, Part::Lengths)
        );
    }
    Err(PartError { part, text: format!("shape {shape}, expected {expected}") })
}

fn expected_shape(side: Side, input: &Input, part: Part, has_lengths: bool) -> String {
    match (side, part, &input.kind) {
        (_, Part::Lengths | Part::Weights, _) => "[n], one for each candidate".to_owned(),
        (Side::User, _, Kind::Slot { values: Count::One, .. }) => "[1]".to_owned(),
        (Side::User, _, Kind::Slot { .. }) => "[k], one for each value".to_owned(),
        (Side::User, _, Kind::Dense { width, .. }) => format!("[{width}] or [1, {width}]"),
        (Side::Item, _, Kind::Slot { values: Count::One, .. }) => {
            "[n], one value for each candidate".to_owned()
        }
        (Side::Item, _, Kind::Slot { .. }) if has_lengths => {
            "[total], the concatenated values of all candidates, because its lengths are given".to_owned()
        }
        (Side::Item, _, Kind::Slot { .. }) => "[n, k], k values for each candidate".to_owned(),
        (Side::Item, _, Kind::Dense { width: 1, .. }) => "[n] or [n, 1], n candidates".to_owned(),
        (Side::Item, _, Kind::Dense { width, .. }) => {
            format!("[n, {width}], {width} numbers for each candidate")
        }
    }
}
