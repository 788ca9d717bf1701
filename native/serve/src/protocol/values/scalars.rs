//! Scalars: the values of JSON, taken one by one without keeping them. What they are for is not known here.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::tensor::{Shape, cut};

/// Whoever takes values; what it has no use for it refuses.
pub trait Take {
    /// What it takes, for people.
    const WANTS: &'static str;

    /// A whole number.
    fn int(&mut self, value: i64) -> Result<(), String> {
        Err(format!("{value} where {} is expected", Self::WANTS))
    }

    /// A number.
    fn float(&mut self, value: f64) -> Result<(), String> {
        Err(format!("{value} where {} is expected", Self::WANTS))
    }

    /// A text.
    fn text(&mut self, value: &str) -> Result<(), String> {
        let cut = cut(value);
        Err(format!("the text {cut:?} where {} is expected", Self::WANTS))
    }
}

/// Whole numbers alone.
pub struct Ints<F>(pub F);
/// Any numbers.
pub struct Floats<F>(pub F);
/// Texts alone.
pub struct Texts<F>(pub F);

impl<F: FnMut(i64) -> Result<(), String>> Take for Ints<F> {
    const WANTS: &'static str = "a whole number";

    fn int(&mut self, value: i64) -> Result<(), String> {
        (self.0)(value)
    }
}

impl<F: FnMut(f64) -> Result<(), String>> Take for Floats<F> {
    const WANTS: &'static str = "a number";

    fn int(&mut self, value: i64) -> Result<(), String> {
        (self.0)(value as f64)
    }

    fn float(&mut self, value: f64) -> Result<(), String> {
        (self.0)(value)
    }
}

impl<F: FnMut(&str) -> Result<(), String>> Take for Texts<F> {
    const WANTS: &'static str = "a text";

    fn text(&mut self, value: &str) -> Result<(), String> {
        (self.0)(value)
    }
}

/// One value, or a list of so many values at most; says how many there were.
pub struct Value<'t, T> {
    /// Who takes them.
    pub take: &'t mut T,
    /// How many a list may have, where a list may stand.
    pub list: Option<u64>,
}

/// What stood where values were expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Null.
    Nothing,
    /// One value.
    One,
    /// A list of so many.
    List(u64),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("null"),
            Self::One => f.write_str("one value"),
            Self::List(count) => write!(f, "a list of {count}"),
        }
    }
}

impl<'de, T: Take> DeserializeSeed<'de> for Value<'_, T> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Found, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Take> Visitor<'de> for Value<'_, T> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = if self.list.is_some() { ", or a list" } else { "" };
        write!(f, "{}{list}", T::WANTS)
    }

    fn visit_unit<E: Error>(self) -> Result<Found, E> {
        Ok(Found::Nothing)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Found, E> {
        self.take.int(value).map(|()| Found::One).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Found, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            // Beyond 64 bits with a sign it is a number still.
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Found, E> {
        self.take.float(value).map(|()| Found::One).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Found, E> {
        self.take.text(value).map(|()| Found::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found, A::Error> {
        let Some(most) = self.list else {
            return Err(A::Error::custom(format!("a list where {} is expected", T::WANTS)));
        };
        let mut count = 0;
        while let Some(found) = list.next_element_seed(Value { take: &mut *self.take, list: None })? {
            if found == Found::Nothing {
                return Err(A::Error::custom(format!("null where {} is expected", T::WANTS)));
            }
            count += 1;
            if count > most {
                return Err(A::Error::custom(format!("more values than {most}")));
            }
        }
        Ok(Found::List(count))
    }
}

/// A tensor's data: all values in one list, or in lists as its shape is.
struct Data<'t, T> {
    take: &'t mut T,
    shape: Shape,
}

impl<'de, T: Take> Visitor<'de> for Data<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of data of shape {}", self.shape)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let dims = self.shape.dims().unwrap_or_default();
        let total: u64 = dims.iter().product();
        let row = dims.get(1).copied();
        let (mut values, mut rows) = (0, 0);
        while let Some(found) = list.next_element_seed(Value { take: &mut *self.take, list: row })? {
            match found {
                Found::One => values += 1,
                Found::List(count) if Some(count) == row => rows += 1,
                Found::List(_) | Found::Nothing => {
                    return Err(A::Error::custom(format!("data is not of shape {}", self.shape)));
                }
            }
            if values > total || rows > dims.first().copied().unwrap_or(0) {
                return Err(A::Error::custom(format!("more data than shape {}", self.shape)));
            }
        }
        if (rows, values) != (0, total) && (Some(&rows), values) != (dims.first(), 0) {
            return Err(A::Error::custom(format!("data is not of shape {}", self.shape)));
        }
        Ok(())
    }
}

fn each(text: &RawValue, shape: Shape, mut take: impl Take) -> Result<(), String> {
    let mut from = serde_json::Deserializer::from_str(text.get());
    let read = from.deserialize_any(Data { take: &mut take, shape });
    read.map_err(|error| {
        // Where it stands counts from the data's begin, which would mislead.
        let said = error.to_string();
        said.rsplit_once(" at line ").map_or(said.clone(), |(said, _)| said.to_owned())
    })
}

/// Every whole number of a tensor's data, of which there are as many as its shape says.
pub fn each_int(
    text: &RawValue,
    shape: Shape,
    take: impl FnMut(i64) -> Result<(), String>,
) -> Result<(), String> {
    each(text, shape, Ints(take))
}

/// Every number of a tensor's data, of which there are as many as its shape says.
pub fn each_float(
    text: &RawValue,
    shape: Shape,
    take: impl FnMut(f64) -> Result<(), String>,
) -> Result<(), String> {
    each(text, shape, Floats(take))
}

/// Every text of a tensor's data, of which there are as many as its shape says.
pub fn each_text(
    text: &RawValue,
    shape: Shape,
    take: impl FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    each(text, shape, Texts(take))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_without_dimensions_is_of_one_value() {
        let of = |data: &str| {
            let (text, mut found) = (RawValue::from_string(data.to_owned()).unwrap(), Vec::new());
            let read = each_int(&text, Shape::default(), |value| {
                found.push(value);
                Ok(())
            });
            read.map(|()| found)
        };
        assert_eq!(of("[5]"), Ok(vec![5]));
        for wrong in ["[]", "[5, 6]", "[[5]]"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
