//! Rows: a request with its user and items as JSON objects that have the fields of events. Values go into
//! columns as they are read; no text is kept.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::columns::item_inputs::{self, ItemInputReader};
use super::columns::{History, Sides, left_out_of, lists};
use super::input_names::{Naming, PARTS, Part, Side};
use super::json_body::{Each, RefusalSlot, SettingOf, carry, read};
use super::outputs::Wanted;
use super::values::scalars::{Floats, Ints, NoText, Texts, Value, ValueForm};
use super::values::tensor::cut;
use super::wishes::{CallerOptions, is_parameter, known};
use crate::answer::Refusal;
use crate::inputs::{Count, Input, Kind};
use crate::request::Values;

/// The fields of a request beside parameters; one for items has others in place of the items.
const FIELDS: &str = "user, items, id, version, outputs";
/// The suffix of the field with a slot's weights, as in events.
const WEIGHTS: &str = "_weights";

/// A decoded request.
#[derive(Debug)]
pub struct ParsedRows {
    /// The id; empty if there is none.
    pub id: String,
    /// Its columns.
    pub sides: Sides,
    /// The caller's options.
    pub options: CallerOptions,
    /// The requested outputs.
    pub wanted: Wanted,
}

/// Decodes a request.
///
/// # Errors
/// If it does not match the model.
pub fn decode(body: &[u8], naming: &Naming, options: CallerOptions) -> Result<ParsedRows, Refusal> {
    let slot = RefCell::new(None);
    read(body, &slot, Body(naming, &slot, options))
}

struct Body<'n>(&'n Naming, RefusalSlot<'n>, CallerOptions);

impl<'de> Visitor<'de> for Body<'_> {
    type Value = ParsedRows;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = if self.0.inputs().items.is_some() { "k" } else { "items" };
        write!(f, "an object with \"user\" and {other:?}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedRows, A::Error> {
        let Self(naming, slot, mut options) = self;
        let (labels, shown_max) = (&naming.inputs().labels, naming.inputs().limits.candidates_max);
        let (mut rows, mut wanted) = (RowReader::new(naming), Wanted::default());
        let (mut id, mut has_user, mut has_items) = (String::new(), false, false);
        let (for_items, mut item_inputs) = (naming.inputs().items, ItemInputReader::default());
        while let Some(name) = map.next_key::<String>()? {
            match (name.as_str(), for_items) {
                (name, Some(items)) if item_inputs::names(items).contains(&name) => {
                    item_inputs.field(name, naming, items, &mut map)?;
                }
                ("user", _) | ("items", None) => {
                    let is_user = name == "user";
                    if std::mem::replace(if is_user { &mut has_user } else { &mut has_items }, true) {
                        return Err(A::Error::custom(format!("{name:?} is given twice")));
                    }
                    if is_user {
                        map.next_value_seed(Row { rows: &mut rows, side: Side::User, number: 0 })?;
                    } else {
                        map.next_value_seed(Items(&mut rows))?;
                    }
                }
                ("id", _) => id = map.next_value()?,
                ("version" | "model_version", _) => {
                    if options.wishes.pin.is_some() {
                        return Err(A::Error::custom("the version is given twice"));
                    }
                    let version = map.next_value_seed(SettingOf { name: &name, shown_max })?;
                    options.pin(&version.into_version().map_err(carry(slot))?).map_err(carry(slot))?;
                }
                ("outputs", None) => {
                    let take = &mut |output: String| wanted.add(&output, labels);
                    map.next_value_seed(Each(slot, PhantomData, take))?;
                }
                (other, _) if !is_parameter(other) => {
                    let of_items =
                        |items| format!("user, {}, id, version", item_inputs::names(items).join(", "));
                    let (cut, fields) = (cut(other), for_items.map_or_else(|| FIELDS.to_owned(), of_items));
                    let text =
                        format!("unknown field {cut:?}; help: fields are {fields}, {}", known(for_items));
                    return Err(carry(slot)(Refusal::Bad(text)));
                }
                _ => {
                    let setting = map.next_value_seed(SettingOf { name: &name, shown_max })?;
                    setting.apply(&mut options, &name, shown_max).map_err(carry(slot))?;
                }
            }
        }
        if !has_user {
            rows.end(Side::User, 0).map_err(A::Error::custom)?;
        }
        let items = for_items
            .map(|items| item_inputs.into_wishes(items, naming.inputs()))
            .transpose()
            .map_err(carry(slot))?;
        rows.items += usize::from(items.is_some());
        if rows.items == 0 {
            let text = "\"items\" is missing or empty, expected at least 1".to_owned();
            return Err(carry(slot)(Refusal::Bad(text)));
        }
        let sides = Sides { items, ..rows.into_sides().map_err(carry(slot))? };
        options.check(sides.shown_max(), naming.inputs()).map_err(carry(slot))?;
        Ok(ParsedRows { id, sides, options, wanted })
    }
}

/// A column under construction.
#[derive(Default)]
struct ColumnBuilder {
    keys: Vec<u64>,
    offsets: Vec<i32>,
    /// Numbers of a dense column, or weights of a slot.
    numbers: Vec<f32>,
}

struct RowReader<'n> {
    naming: &'n Naming,
    columns: Vec<ColumnBuilder>,
    /// For each part of each column, the number (from 1) of the last row that has it.
    last_row: Vec<usize>,
    /// Whether a row has left the column out.
    is_left_out: Vec<bool>,
    /// The candidates that left a column out which the library has.
    left_out: Vec<Vec<u32>>,
    items: usize,
}

impl<'n> RowReader<'n> {
    fn new(naming: &'n Naming) -> Self {
        let columns = naming.columns();
        let empty = || ColumnBuilder { offsets: vec![0], ..ColumnBuilder::default() };
        let columns_grow = std::iter::repeat_with(empty).take(columns).collect();
        let (last_row, is_left_out) = (vec![0; columns * PARTS], vec![false; columns]);
        let left_out = vec![Vec::new(); if naming.inputs().library.is_some() { columns } else { 0 }];
        Self { naming, columns: columns_grow, last_row, is_left_out, left_out, items: 0 }
    }

    /// Returns the column and part of a field.
    fn place(&self, side: Side, name: &str) -> Result<(usize, Part), String> {
        let values_place = self.naming.place(name).filter(|place| place.part == Part::Values);
        let target = values_place.map(|place| (place.column, Part::Values)).or_else(|| {
            let column = self.naming.place(name.strip_suffix(WEIGHTS)?)?.column;
            let (_, input) = self.naming.input(column);
            is_weighted(input).then_some((column, Part::Weights))
        });
        match target {
            Some((column, part)) if column < self.columns.len() && self.naming.input(column).0 == side => {
                Ok((column, part))
            }
            _ => Err(self.naming.unknown(name)),
        }
    }

    /// Reads the value of a field into its column.
    fn take<'de, A: MapAccess<'de>>(
        &mut self,
        column: usize,
        part: Part,
        map: &mut A,
    ) -> Result<ValueForm, A::Error> {
        let (_, input) = self.naming.input(column);
        let hashing = self.naming.keys();
        let values_max = self.naming.inputs().limits.values_max;
        let ColumnBuilder { keys, numbers, .. } = &mut self.columns[column];
        let room = |used: usize| Some(values_max.saturating_sub(used) as u64);
        match (&input.kind, part) {
            (Kind::Slot { .. }, Part::Weights) => {
                let list = room(numbers.len());
                map.next_value_seed(Value { take: &mut Floats(|value| push_f32(value, numbers)), list })
            }
            (Kind::Slot { salt, is_text, values, .. }, _) => {
                let list = if *values == Count::One { None } else { room(keys.len()) };
                if *is_text {
                    let mut take = Texts(|text: &str| {
                        keys.push(hashing.of_text(text, *salt));
                        Ok(())
                    });
                    map.next_value_seed(Value { take: &mut take, list })
                } else {
                    let mut take = Ints(|value| {
                        keys.push(hashing.of_int(value, *salt));
                        Ok(())
                    });
                    map.next_value_seed(Value { take: &mut take, list })
                }
            }
            (Kind::Dense { width, .. }, _) => {
                let list = Some(*width as u64);
                map.next_value_seed(Value { take: &mut Floats(|value| push_f32(value, numbers)), list })
            }
        }
    }

    /// Checks the form of a field's value.
    fn check(input: &Input, part: Part, form: ValueForm) -> Result<(), String> {
        let is_right = match (&input.kind, part, form) {
            (_, _, ValueForm::Nothing) => true,
            (Kind::Slot { values: Count::One, .. }, _, form) => form == ValueForm::One,
            (Kind::Slot { .. }, _, form) => matches!(form, ValueForm::List(_)),
            (Kind::Dense { width, .. }, _, ValueForm::List(count)) => count == *width as u64,
            (Kind::Dense { width, .. }, _, ValueForm::One) => *width == 1,
        };
        let expected = match &input.kind {
            Kind::Dense { width, .. } if *width > 1 => format!("a list of {width} numbers"),
            Kind::Slot { .. } => "a list".to_owned(),
            Kind::Dense { .. } => "a number".to_owned(),
        };
        if is_right { Ok(()) } else { Err(format!("{form}, expected {expected}")) }
    }

    /// Notes that a candidate lacks a column, if the library has it. Most requests send all columns.
    #[cold]
    fn leave_out(&mut self, column: usize, number: usize) -> bool {
        let is_in_library = self.naming.is_in_library(column);
        if is_in_library {
            self.left_out[column].push(number as u32);
        }
        is_in_library
    }

    /// Ends a row: missing fields take their defaults.
    fn end(&mut self, side: Side, number: usize) -> Result<(), String> {
        let users = self.naming.inputs().user.len();
        let columns = if side == Side::User { 0..users } else { users..self.columns.len() };
        for column in columns {
            let (_, input) = self.naming.input(column);
            let is_given = self.last_row[column * PARTS] == number + 1;
            let is_filled = !is_given && self.leave_out(column, number);
            let builder = &mut self.columns[column];
            let error = |text: &str| format!("{}: {text}", row_name(side, number, &input.name));
            self.is_left_out[column] |= !is_given;
            if input.is_computed && self.is_left_out[column] && self.last_row[column * PARTS] > 0 {
                return Err(error(
                    "only some items have it; help: give it to all, or leave it out to have it computed",
                ));
            }
            match &input.kind {
                Kind::Slot { values: Count::One, default, .. } => match default {
                    _ if is_given => {}
                    Some(key) => builder.keys.push(*key),
                    None if is_filled => builder.keys.push(0),
                    None => return Err(error("it is missing and has no default")),
                },
                Kind::Slot { values, .. } => {
                    if *values == Count::Weighted && builder.numbers.len() != builder.keys.len() {
                        return Err(error(&format!(
                            "the number of values differs from the number of weights in {:?}",
                            weights_of(input)
                        )));
                    }
                    // At most `values_max`, which fits an offset.
                    builder.offsets.push(builder.keys.len() as i32);
                }
                Kind::Dense { width, default } => match default {
                    _ if is_given => {}
                    Some(bits) => builder.numbers.extend(std::iter::repeat_n(f32::from_bits(*bits), *width)),
                    None if is_filled => builder.numbers.extend(std::iter::repeat_n(0.0, *width)),
                    None => return Err(error("it is missing and has no default")),
                },
            }
            if builder.numbers.len().max(builder.keys.len()) > self.naming.inputs().limits.values_max {
                return Err(error("the values of all items exceed the limit"));
            }
        }
        Ok(())
    }

    fn into_sides(self) -> Result<Sides, Refusal> {
        let (users, candidates) = (self.naming.inputs().user.len(), self.items);
        let is_lacking =
            |&column: &usize| self.is_left_out[column] && self.naming.input(column).1.is_computed;
        let lacks = (0..self.columns.len()).filter(is_lacking).collect();
        let lacking = self.left_out.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        let left_out = left_out_of(lacking.map(|(column, rows)| (column - users, Some(rows))).collect());
        let mut histories = [History::default(), History::default()];
        let mut values = Vec::with_capacity(self.columns.len());
        for (column, builder) in self.columns.into_iter().enumerate() {
            let (side, input) = self.naming.input(column);
            let ColumnBuilder { keys, offsets, numbers } = builder;
            values.push(match input.kind {
                Kind::Dense { .. } => Values::Numbers(numbers),
                Kind::Slot { values: Count::One, .. } => Values::Keys(keys),
                Kind::Slot { .. } => {
                    let weights = is_weighted(input).then_some(numbers);
                    lists(input, keys, offsets, weights, &mut histories[side as usize])
                        .map_err(|text| Refusal::Bad(format!("{:?}: {text}", input.name)))?
                }
            });
        }
        let item = values.split_off(users);
        Ok(Sides { candidates, user: values, item, lacks, left_out, items: None })
    }
}

fn is_weighted(input: &Input) -> bool {
    matches!(input.kind, Kind::Slot { values: Count::Weighted, .. })
}

fn weights_of(input: &Input) -> String {
    format!("{}{WEIGHTS}", input.name)
}

fn row_name(side: Side, number: usize, name: &str) -> String {
    match side {
        Side::User => format!("user.{name}"),
        Side::Item => format!("items[{number}].{name}"),
    }
}

fn push_f32(value: f64, numbers: &mut Vec<f32>) -> Result<(), String> {
    let value_f32 = value as f32;
    if !value_f32.is_finite() {
        return Err(format!("{value} is not finite as float32"));
    }
    numbers.push(value_f32);
    Ok(())
}

/// Reads the items one after another.
struct Items<'r, 'n>(&'r mut RowReader<'n>);

impl<'de> DeserializeSeed<'de> for Items<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(NoText(self))
    }
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let items_max = self.0.naming.inputs().limits.candidates_max;
        loop {
            let number = self.0.items;
            if number == items_max {
                return match list.next_element::<IgnoredAny>()? {
                    None => Ok(()),
                    Some(_) => {
                        Err(A::Error::custom(format!("more than {items_max} items; help: split the request")))
                    }
                };
            }
            if list.next_element_seed(Row { rows: self.0, side: Side::Item, number })?.is_none() {
                return Ok(());
            }
            self.0.items += 1;
        }
    }
}

/// Reads one user or item.
struct Row<'r, 'n> {
    rows: &'r mut RowReader<'n>,
    side: Side,
    number: usize,
}

impl<'de> DeserializeSeed<'de> for Row<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(NoText(self))
    }
}

impl<'de> Visitor<'de> for Row<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a field for each input")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { rows, side, number } = self;
        while let Some((column, part)) = map.next_key_seed(InputKey { rows: &*rows, side })? {
            let (_, input) = rows.naming.input(column);
            let suffix = if part == Part::Weights { WEIGHTS } else { "" };
            let with_name = |text: &dyn fmt::Display| {
                A::Error::custom(format!("{}{suffix}: {text}", row_name(side, number, &input.name)))
            };
            let at = column * PARTS + part as usize;
            if rows.last_row[at] == number + 1 {
                return Err(with_name(&"it is given twice"));
            }
            let form = rows.take(column, part, &mut map).map_err(|error| with_name(&error))?;
            RowReader::check(input, part, form).map_err(|text| with_name(&text))?;
            if form != ValueForm::Nothing {
                rows.last_row[at] = number + 1;
            }
        }
        rows.end(side, number).map_err(A::Error::custom)
    }
}

/// Reads a field's name as its column and part.
struct InputKey<'r, 'n> {
    rows: &'r RowReader<'n>,
    side: Side,
}

impl<'de> DeserializeSeed<'de> for InputKey<'_, '_> {
    type Value = (usize, Part);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for InputKey<'_, '_> {
    type Value = (usize, Part);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an input")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        self.rows.place(self.side, name).map_err(E::custom)
    }
}
