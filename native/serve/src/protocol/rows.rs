//! Rows: a request as people write it, a user and items as objects of JSON with the fields that events have.
//! Values go straight into columns as they are read; nothing of the text is kept.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::columns::{History, Sides, lists};
use super::input_names::{Naming, PARTS, Part, Side};
use super::json::Setting;
use super::outputs::Wanted;
use super::values::scalars::{Floats, Found, Ints, Texts, Value};
use super::values::tensor::cut;
use super::wishes::Said;
use crate::answer::Refusal;
use crate::inputs::{Count, Input, Kind};
use crate::request::Values;

/// What the field of a slot's weights ends with, as in events.
const WEIGHTS: &str = "_weights";

/// A request that was read.
#[derive(Debug)]
pub struct Asked {
    /// Its id, empty if it has none.
    pub id: String,
    /// Its columns.
    pub sides: Sides,
    /// What it says beside them.
    pub said: Said,
    /// The outputs that it names.
    pub wanted: Wanted,
}

/// Read a request.
///
/// # Errors
/// When it is not what the model takes.
pub fn decode(body: &[u8], naming: &Naming) -> Result<Asked, Refusal> {
    let refusal = RefCell::new(None);
    let mut from = serde_json::Deserializer::from_slice(body);
    let read = Body(naming, &refusal).deserialize(&mut from).and_then(|asked| from.end().map(|()| asked));
    read.map_err(|error| {
        let refusal: Option<Refusal> = refusal.take();
        refusal.unwrap_or_else(|| Refusal::Bad(format!("the body is not what is expected: {error}")))
    })
}

/// Where a refusal is laid down that JSON's own errors could not carry whole.
type Laid<'r> = &'r RefCell<Option<Refusal>>;

fn lay<E: Error>(laid: Laid<'_>) -> impl FnOnce(Refusal) -> E + '_ {
    move |refusal| {
        let error = E::custom(&refusal);
        laid.replace(Some(refusal));
        error
    }
}

struct Body<'n>(&'n Naming, Laid<'n>);

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = Asked;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Asked, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = Asked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"user\" and \"items\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked, A::Error> {
        let Self(naming, laid) = self;
        let labels = &naming.inputs().labels;
        let (mut rows, mut said, mut wanted) = (RowReader::new(naming), Said::default(), Wanted::default());
        let (mut id, mut has_user, mut has_items) = (String::new(), false, false);
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "user" | "items" => {
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
                "id" => id = map.next_value()?,
                "version" => {
                    let version: Setting = map.next_value()?;
                    said.pin(&version.into_version().map_err(lay(laid))?).map_err(lay(laid))?;
                }
                "outputs" => {
                    for output in map.next_value::<Vec<String>>()? {
                        wanted.add(&output, labels).map_err(lay(laid))?;
                    }
                }
                _ => {
                    let setting: Setting = map.next_value()?;
                    setting
                        .say(&mut said, &name, naming.inputs().limits.candidates_max)
                        .map_err(lay(laid))?;
                }
            }
        }
        if !has_user {
            rows.end(Side::User, 0).map_err(A::Error::custom)?;
        }
        if rows.items == 0 {
            let said = "\"items\" is missing or has none, expected at least 1".to_owned();
            return Err(lay(laid)(Refusal::Bad(said)));
        }
        said.check_shown(rows.items).map_err(lay(laid))?;
        let sides = rows.into_sides().map_err(lay(laid))?;
        Ok(Asked { id, sides, said, wanted })
    }
}

/// A column that grows.
#[derive(Default)]
struct Growing {
    keys: Vec<u64>,
    offsets: Vec<i32>,
    /// Numbers of a dense column, or weights.
    numbers: Vec<f32>,
}

struct RowReader<'n> {
    naming: &'n Naming,
    columns: Vec<Growing>,
    /// The row, counted from 1, that last gave each part of each column.
    given: Vec<usize>,
    items: usize,
}

impl<'n> RowReader<'n> {
    fn new(naming: &'n Naming) -> Self {
        let columns = naming.columns();
        let growing = || Growing { offsets: vec![0], ..Growing::default() };
        let columns_grow = std::iter::repeat_with(growing).take(columns).collect();
        Self { naming, columns: columns_grow, given: vec![0; columns * PARTS], items: 0 }
    }

    /// The column and part that a field means.
    fn place(&self, side: Side, name: &str) -> Result<(usize, Part), String> {
        let own = self.naming.place(name).filter(|place| place.part == Part::Values);
        let found = own.map(|place| (place.column, Part::Values)).or_else(|| {
            let column = self.naming.place(name.strip_suffix(WEIGHTS)?)?.column;
            let (_, input) = self.naming.input(column);
            is_weighted(input).then_some((column, Part::Weights))
        });
        match found {
            Some((column, part)) if self.naming.input(column).0 == side => Ok((column, part)),
            _ => {
                let cut = cut(name);
                Err(format!("unknown input {cut:?}; help: {}", self.naming.known()))
            }
        }
    }

    /// Take the value of one field.
    fn take<'de, A: MapAccess<'de>>(
        &mut self,
        column: usize,
        part: Part,
        map: &mut A,
    ) -> Result<Found, A::Error> {
        let (_, input) = self.naming.input(column);
        let of = self.naming.keys();
        let values_max = self.naming.inputs().limits.values_max;
        let Growing { keys, numbers, .. } = &mut self.columns[column];
        let left = |held: usize| Some(values_max.saturating_sub(held) as u64);
        match (&input.kind, part) {
            (Kind::Slot { .. }, Part::Weights) => {
                let list = left(numbers.len());
                map.next_value_seed(Value { take: &mut Floats(|value| single(value, numbers)), list })
            }
            (Kind::Slot { salt, is_text, values, .. }, _) => {
                let list = if *values == Count::One { None } else { left(keys.len()) };
                if *is_text {
                    let mut take = Texts(|text: &str| {
                        keys.push(of.of_text(text, *salt));
                        Ok(())
                    });
                    map.next_value_seed(Value { take: &mut take, list })
                } else {
                    let mut take = Ints(|value| {
                        keys.push(of.of_int(value, *salt));
                        Ok(())
                    });
                    map.next_value_seed(Value { take: &mut take, list })
                }
            }
            (Kind::Dense { width, .. }, _) => {
                let list = Some(*width as u64);
                map.next_value_seed(Value { take: &mut Floats(|value| single(value, numbers)), list })
            }
        }
    }

    /// Whether what stood there is what the column takes.
    fn check(input: &Input, part: Part, found: Found) -> Result<(), String> {
        let is_right = match (&input.kind, part, found) {
            (_, _, Found::Nothing) => true,
            (Kind::Slot { values: Count::One, .. }, _, found) => found == Found::One,
            (Kind::Slot { .. }, _, found) => matches!(found, Found::List(_)),
            (Kind::Dense { width, .. }, _, Found::List(count)) => count == *width as u64,
            (Kind::Dense { width, .. }, _, Found::One) => *width == 1,
        };
        let expected = match &input.kind {
            Kind::Dense { width, .. } if *width > 1 => format!("a list of {width} numbers"),
            Kind::Slot { .. } => "a list".to_owned(),
            Kind::Dense { .. } => "a number".to_owned(),
        };
        if is_right { Ok(()) } else { Err(format!("{found}, expected {expected}")) }
    }

    /// A row's end: what it did not give takes its default.
    fn end(&mut self, side: Side, number: usize) -> Result<(), String> {
        let users = self.naming.inputs().user.len();
        let columns = if side == Side::User { 0..users } else { users..self.columns.len() };
        for column in columns {
            let (_, input) = self.naming.input(column);
            let is_given = self.given[column * PARTS] == number + 1;
            let grown = &mut self.columns[column];
            let wrong = |said: &str| format!("{}: {said}", row_name(side, number, &input.name));
            match &input.kind {
                Kind::Slot { values: Count::One, default, .. } => match default {
                    _ if is_given => {}
                    Some(key) => grown.keys.push(*key),
                    None => return Err(wrong("it is missing and has no default")),
                },
                Kind::Slot { values, .. } => {
                    if *values == Count::Weighted && grown.numbers.len() != grown.keys.len() {
                        return Err(wrong(&format!(
                            "not as many values as weights in {:?}",
                            weights_of(input)
                        )));
                    }
                    // Not more than `values_max`, which an offset can count.
                    grown.offsets.push(grown.keys.len() as i32);
                }
                Kind::Dense { width, default } => match default {
                    _ if is_given => {}
                    Some(bits) => grown.numbers.extend(std::iter::repeat_n(f32::from_bits(*bits), *width)),
                    None => return Err(wrong("it is missing and has no default")),
                },
            }
            if grown.numbers.len().max(grown.keys.len()) > self.naming.inputs().limits.values_max {
                return Err(wrong("more values for all items than there may be"));
            }
        }
        Ok(())
    }

    fn into_sides(self) -> Result<Sides, Refusal> {
        let (users, candidates) = (self.naming.inputs().user.len(), self.items);
        let mut histories = [History::default(), History::default()];
        let mut values = Vec::with_capacity(self.columns.len());
        for (column, grown) in self.columns.into_iter().enumerate() {
            let (side, input) = self.naming.input(column);
            let Growing { keys, offsets, numbers } = grown;
            values.push(match input.kind {
                Kind::Dense { .. } => Values::Numbers(numbers),
                Kind::Slot { values: Count::One, .. } => Values::Keys(keys),
                Kind::Slot { .. } => {
                    let weights = is_weighted(input).then_some(numbers);
                    lists(input, keys, offsets, weights, &mut histories[side as usize])
                        .map_err(|said| Refusal::Bad(format!("{:?}: {said}", input.name)))?
                }
            });
        }
        let item = values.split_off(users);
        Ok(Sides { candidates, user: values, item })
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

fn single(value: f64, to: &mut Vec<f32>) -> Result<(), String> {
    let single = value as f32;
    if !single.is_finite() {
        return Err(format!("{value} is not finite as float32"));
    }
    to.push(single);
    Ok(())
}

/// The items, one after another.
struct Items<'r, 'n>(&'r mut RowReader<'n>);

impl<'de> DeserializeSeed<'de> for Items<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let most = self.0.naming.inputs().limits.candidates_max;
        loop {
            let number = self.0.items;
            if number == most {
                return match list.next_element::<IgnoredAny>()? {
                    None => Ok(()),
                    Some(_) => Err(A::Error::custom(format!(
                        "more items than {most}; help: ask in several requests"
                    ))),
                };
            }
            if list.next_element_seed(Row { rows: self.0, side: Side::Item, number })?.is_none() {
                return Ok(());
            }
            self.0.items += 1;
        }
    }
}

/// One user or item.
struct Row<'r, 'n> {
    rows: &'r mut RowReader<'n>,
    side: Side,
    number: usize,
}

impl<'de> DeserializeSeed<'de> for Row<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
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
            let named = |said: &dyn fmt::Display| {
                A::Error::custom(format!("{}{suffix}: {said}", row_name(side, number, &input.name)))
            };
            let at = column * PARTS + part as usize;
            if rows.given[at] == number + 1 {
                return Err(named(&"it is given twice"));
            }
            let found = rows.take(column, part, &mut map).map_err(|error| named(&error))?;
            RowReader::check(input, part, found).map_err(|said| named(&said))?;
            if found != Found::Nothing {
                rows.given[at] = number + 1;
            }
        }
        rows.end(side, number).map_err(A::Error::custom)
    }
}

/// A field's name, as the column and part that it means.
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
