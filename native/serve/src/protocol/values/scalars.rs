//! Scalars: reads JSON values one by one without storing them. Knows nothing of their use.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::tensor::{Shape, cut};

/// Receives values; refuses values of the wrong type.
pub trait Take {
    /// The expected type, for errors.
    const WANTS: &'static str;

    /// Takes an integer.
    fn int(&mut self, value: i64) -> Result<(), String> {
        Err(format!("{value}, expected {}", Self::WANTS))
    }

    /// Takes an integer beyond `i64`.
    fn large(&mut self, value: u64) -> Result<(), String> {
        self.float(value as f64)
    }

    /// Takes a number.
    fn float(&mut self, value: f64) -> Result<(), String> {
        // With an exponent, where it is rounded.
        Err(format!("{value:?}, expected {}", Self::WANTS))
    }

    /// Takes a text.
    fn text(&mut self, value: &str) -> Result<(), String> {
        let cut = cut(value);
        Err(format!("the text {cut:?}, expected {}", Self::WANTS))
    }
}

/// Takes integers only.
pub struct Ints<F>(pub F);
/// Takes any numbers.
pub struct Floats<F>(pub F);
/// Takes texts only.
pub struct Texts<F>(pub F);

impl<F: FnMut(i64) -> Result<(), String>> Take for Ints<F> {
    const WANTS: &'static str = "a whole number";

    fn int(&mut self, value: i64) -> Result<(), String> {
        (self.0)(value)
    }

    fn large(&mut self, value: u64) -> Result<(), String> {
        Err(format!("{value}, expected {} below 2^63", Self::WANTS))
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

/// Reads one value, or a list with a maximum length; the result tells which.
pub struct Value<'t, T> {
    /// Receives the values.
    pub take: &'t mut T,
    /// The maximum length of a list, if a list is allowed.
    pub list: Option<u64>,
}

/// The form of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    /// Null.
    Nothing,
    /// One value.
    One,
    /// A list of this length.
    List(u64),
}

impl fmt::Display for ValueForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("null"),
            Self::One => f.write_str("one value"),
            Self::List(count) => write!(f, "a list of {count}"),
        }
    }
}

impl<'de, T: Take> DeserializeSeed<'de> for Value<'_, T> {
    type Value = ValueForm;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<ValueForm, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Take> Visitor<'de> for Value<'_, T> {
    type Value = ValueForm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = if self.list.is_some() { ", or a list" } else { "" };
        write!(f, "{}{list}", T::WANTS)
    }

    fn visit_unit<E: Error>(self) -> Result<ValueForm, E> {
        Ok(ValueForm::Nothing)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<ValueForm, E> {
        self.take.int(value).map(|()| ValueForm::One).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<ValueForm, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.take.large(value).map(|()| ValueForm::One).map_err(E::custom),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<ValueForm, E> {
        self.take.float(value).map(|()| ValueForm::One).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<ValueForm, E> {
        self.take.text(value).map(|()| ValueForm::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ValueForm, A::Error> {
        let Some(length_max) = self.list else {
            return Err(A::Error::custom(format!("a list, expected {}", T::WANTS)));
        };
        let mut count = 0;
        while let Some(form) = list.next_element_seed(Value { take: &mut *self.take, list: None })? {
            if form == ValueForm::Nothing {
                return Err(A::Error::custom(format!("null, expected {}", T::WANTS)));
            }
            count += 1;
            if count > length_max {
                return Err(A::Error::custom(format!("more than {length_max} values")));
            }
        }
        Ok(ValueForm::List(count))
    }
}

/// Visits an object or a list with `deserialize_any`. If it is a text, the error quotes only the start: the
/// errors of `deserialize_map` and `deserialize_seq` quote all of it.
pub struct NoText<V>(pub V);

impl<'de, V: Visitor<'de>> Visitor<'de> for NoText<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        Err(E::invalid_type(Unexpected::Str(cut(text)), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(map)
    }
}

/// Reads a tensor's data: all values in one list, or in lists nested as its shape.
struct Data<'t, T> {
    take: &'t mut T,
    shape: Shape,
}

impl<'de, T: Take> Visitor<'de> for Data<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list with the data of shape {}", self.shape)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let dims = self.shape.dims().unwrap_or_default();
        let total: u64 = dims.iter().product();
        let row = dims.get(1).copied();
        let (mut values, mut rows) = (0, 0);
        while let Some(form) = list.next_element_seed(Value { take: &mut *self.take, list: row })? {
            match form {
                ValueForm::One => values += 1,
                ValueForm::List(count) if Some(count) == row => rows += 1,
                ValueForm::List(_) | ValueForm::Nothing => {
                    return Err(A::Error::custom(format!("the data does not have shape {}", self.shape)));
                }
            }
            if values > total || rows > dims.first().copied().unwrap_or(0) {
                return Err(A::Error::custom(format!("the data exceeds shape {}", self.shape)));
            }
        }
        if (rows, values) != (0, total) && (Some(&rows), values) != (dims.first(), 0) {
            return Err(A::Error::custom(format!("the data does not have shape {}", self.shape)));
        }
        Ok(())
    }
}

fn each(text: &RawValue, shape: Shape, mut take: impl Take) -> Result<(), String> {
    let mut from = serde_json::Deserializer::from_str(text.get());
    let read = from.deserialize_any(NoText(Data { take: &mut take, shape }));
    read.map_err(|error| without_position(&error))
}

/// The text of an error in a part of a body, without its position in the part, which would mislead.
pub fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(text, _)| text.to_owned())
}

/// Calls `take` with every integer of a tensor's data, as many as its shape has.
pub fn each_int(
    text: &RawValue,
    shape: Shape,
    take: impl FnMut(i64) -> Result<(), String>,
) -> Result<(), String> {
    each(text, shape, Ints(take))
}

/// Calls `take` with every number of a tensor's data, as many as its shape has.
pub fn each_float(
    text: &RawValue,
    shape: Shape,
    take: impl FnMut(f64) -> Result<(), String>,
) -> Result<(), String> {
    each(text, shape, Floats(take))
}

/// Calls `take` with every text of a tensor's data, as many as its shape has.
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
        let ints_of = |data: &str| {
            let (text, mut values) = (RawValue::from_string(data.to_owned()).unwrap(), Vec::new());
            let result = each_int(&text, Shape::default(), |value| {
                values.push(value);
                Ok(())
            });
            result.map(|()| values)
        };
        assert_eq!(ints_of("[5]"), Ok(vec![5]));
        for wrong in ["[]", "[5, 6]", "[[5]]"] {
            assert!(ints_of(wrong).is_err(), "{wrong}");
        }
    }
}
