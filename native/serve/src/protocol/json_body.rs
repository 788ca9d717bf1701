//! The JSON body of a request: reads its parameters and lists, and passes on each value before it reads the
//! next, so that a refused body stores nothing. Knows no inputs.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::values::scalars::{Floats, Ints, NoText, Value, without_position};
use super::values::tensor::cut;
use super::wishes::{CallerOptions, Parameter};
use crate::answer::Refusal;

/// A side channel for refusals that serde errors cannot carry unchanged.
pub type RefusalSlot<'r> = &'r RefCell<Option<Refusal>>;

/// Puts a refusal into the slot and returns the error that stops the reading.
pub fn carry<E: Error>(slot: RefusalSlot<'_>) -> impl FnOnce(Refusal) -> E + '_ {
    move |refusal| {
        let error = E::custom(&refusal);
        slot.replace(Some(refusal));
        error
    }
}

/// Reads a body, which must be an object.
///
/// # Errors
/// The refusal in the slot, or that the body is not such an object.
pub fn read<'de, V: Visitor<'de>>(
    body: &'de [u8],
    slot: RefusalSlot<'_>,
    visitor: V,
) -> Result<V::Value, Refusal> {
    let mut from = serde_json::Deserializer::from_slice(body);
    let read = from.deserialize_any(NoText(visitor)).and_then(|value| from.end().map(|()| value));
    let bad = |error: serde_json::Error| {
        Refusal::Bad(format!(
            "{}: {error}",
            if error.is_data() { "invalid body" } else { "the body is not JSON" }
        ))
    };
    read.map_err(|error| slot.take().unwrap_or_else(|| bad(error)))
}

/// Reads a part of a body that was left as text; `owner` says in errors whose part it is.
///
/// # Errors
/// The refusal in the slot, or that the part does not have the form of the seed.
pub fn read_part<'de, S: DeserializeSeed<'de>>(
    text: &'de RawValue,
    owner: fmt::Arguments<'_>,
    slot: RefusalSlot<'_>,
    seed: S,
) -> Result<S::Value, Refusal> {
    let read = seed.deserialize(&mut serde_json::Deserializer::from_str(text.get()));
    let bad = |error| Refusal::Bad(format!("{owner}: {}", without_position(&error)));
    read.map_err(|error| slot.take().unwrap_or_else(|| bad(error)))
}

/// Reads a list, each value with the seed, and passes on each.
pub struct Each<'r, S, T>(pub RefusalSlot<'r>, pub S, pub &'r mut dyn FnMut(T) -> Result<(), Refusal>);

impl<'de, S: DeserializeSeed<'de, Value = T> + Copy, T> DeserializeSeed<'de> for Each<'_, S, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(NoText(self))
    }
}

impl<'de, S: DeserializeSeed<'de, Value = T> + Copy, T> Visitor<'de> for Each<'_, S, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self(slot, seed, take) = self;
        while let Some(value) = list.next_element_seed(seed)? {
            take(value).map_err(carry(slot))?;
        }
        Ok(())
    }
}

/// A text, borrowed where it has no escapes.
#[derive(Deserialize)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Reads an object with these fields and leaves their values as text; a null counts as missing.
#[derive(Clone, Copy)]
pub struct Object<const N: usize>(pub &'static [&'static str; N]);

impl<'de, const N: usize> DeserializeSeed<'de> for Object<N> {
    type Value = [Option<&'de RawValue>; N];

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(NoText(self))
    }
}

impl<'de, const N: usize> Visitor<'de> for Object<N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", self.0.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = [None; N];
        while let Some(at) = next_field(&mut map, self.0)? {
            if values[at].is_some() {
                return Err(A::Error::duplicate_field(self.0[at]));
            }
            values[at] = map.next_value()?;
        }
        Ok(values)
    }
}

/// Reads the name of an object's next field and returns its index.
pub fn next_field<'de, A: MapAccess<'de>>(
    map: &mut A,
    names: &'static [&'static str],
) -> Result<Option<usize>, A::Error> {
    let Some(Text(name)) = map.next_key()? else { return Ok(None) };
    let at = names.iter().position(|known| *known == name);
    at.map(Some).ok_or_else(|| A::Error::unknown_field(cut(&name), names))
}

/// The value of a parameter.
#[derive(Debug)]
pub enum Setting {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond 63 bits.
    Uint(u64),
    /// A number.
    Double(f64),
    /// A text.
    Text(String),
    /// The list of `shown`.
    Shown(Vec<u32>),
    /// The list of `prescores`.
    Prescores(Vec<f32>),
}

impl Setting {
    /// Applies the parameter to the options.
    pub fn apply(
        self,
        options: &mut CallerOptions,
        name: &str,
        candidates_max: usize,
    ) -> Result<(), Refusal> {
        let value = match self {
            Self::Bool(value) => Parameter::Bool(value),
            Self::Int(value) => Parameter::Int(value),
            Self::Uint(value) => Parameter::Uint(value),
            Self::Double(value) => Parameter::Double(value),
            Self::Text(ref value) => Parameter::Text(value),
            Self::Shown(indices) => {
                options.shown = Some(indices);
                return Ok(());
            }
            Self::Prescores(expected) => {
                options.prescores = Some(expected);
                return Ok(());
            }
        };
        options.parameter(name, value, candidates_max)
    }

    /// Returns the value as the text of a version.
    pub fn into_version(self) -> Result<String, Refusal> {
        match self {
            Self::Text(version) => Ok(version),
            Self::Int(version) => Ok(version.to_string()),
            Self::Uint(version) => Ok(version.to_string()),
            other => Err(Refusal::Bad(format!("version {other:?} is not a number"))),
        }
    }
}

/// Reads the value of a parameter. Only `shown` may be a list.
#[derive(Clone, Copy)]
pub struct SettingOf<'n> {
    /// The parameter's name.
    pub name: &'n str,
    /// The maximum length of `shown`; 0 where `shown` is not a parameter.
    pub shown_max: usize,
}

impl<'de> DeserializeSeed<'de> for SettingOf<'_> {
    type Value = Setting;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Setting, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SettingOf<'_> {
    type Value = Setting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a boolean, a number or a text for parameter {:?}", cut(self.name))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Setting, E> {
        Ok(Setting::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Setting, E> {
        Ok(Setting::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Setting, E> {
        Ok(i64::try_from(value).map_or(Setting::Uint(value), Setting::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Setting, E> {
        Ok(Setting::Double(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Setting, E> {
        Ok(Setting::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Setting, A::Error> {
        let Self { name, shown_max } = self;
        if name == "prescores" && shown_max > 0 {
            let mut expected = Vec::new();
            let mut take = Floats(|value| {
                expected.push(value as f32);
                Ok(())
            });
            Value { take: &mut take, list: Some(shown_max as u64) }
                .visit_seq(list)
                .map_err(|error| A::Error::custom(format!("\"prescores\": {error}")))?;
            return Ok(Setting::Prescores(expected));
        }
        if name != "shown" || shown_max == 0 {
            let name = cut(name);
            return Err(A::Error::custom(format!("parameter {name:?} is a list, expected one value")));
        }
        let mut indices = Vec::new();
        let mut take = Ints(|value| {
            indices
                .push(u32::try_from(value).map_err(|_| format!("{value} is not the index of a candidate"))?);
            Ok(())
        });
        Value { take: &mut take, list: Some(shown_max as u64) }
            .visit_seq(list)
            .map_err(|error| A::Error::custom(format!("\"shown\": {error}")))?;
        Ok(Setting::Shown(indices))
    }
}

/// Reads an object of parameters and passes on each.
pub struct Parameters<'r> {
    /// Where refusals wait.
    pub slot: RefusalSlot<'r>,
    /// The maximum length of `shown`; 0 where `shown` is not a parameter.
    pub shown_max: usize,
    /// Receives the names and values.
    pub take: &'r mut dyn FnMut(&str, Setting) -> Result<(), Refusal>,
}

impl<'de> DeserializeSeed<'de> for Parameters<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(NoText(self))
    }
}

impl<'de> Visitor<'de> for Parameters<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { slot, shown_max, take } = self;
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(SettingOf { name: &name, shown_max })?;
            take(&name, value).map_err(carry(slot))?;
        }
        Ok(())
    }
}
