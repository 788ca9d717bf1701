//! Caller options: the parameters of a request beside the features, by name, for all protocols.

mod caller_headers;

use std::str::FromStr;

use streamlearn_wire::keys::{key_of_bytes, key_of_int, slot_salt};

use super::values::fields::{Field, Fields, Torn};
use super::values::tensor::{cut, text};
use crate::answer::Refusal;
use crate::inputs::{Inputs, ItemInputs};
use crate::request::Wishes;

/// The value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Parameter<'a> {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A number.
    Double(f64),
    /// A text.
    Text(&'a str),
}

const PRESCORES: &str = "a comma-separated number of at least 0 for each candidate, such as \"0.3,0.1\"";

const SEGMENTS: &str = "names and values of at most 1,024 bytes, such as \"page=home,client=ios\"";
const SEGMENTS_BYTES_MAX: usize = 1024;

/// The names of all parameters.
const NAMES: [&str; 9] = [
    "deadline_ms",
    "timeout",
    "priority",
    "route_key",
    "shown",
    "features",
    "value",
    "prescores",
    "segments",
];

/// Whether a parameter has this name.
pub fn is_parameter(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The parameters that a request takes, for people. A request for items takes fewer; see `CallerOptions::check`.
pub fn known(items: Option<ItemInputs>) -> String {
    let is_taken = |name: &str| match name {
        "features" | "prescores" => items.is_none(),
        "shown" => items.is_none_or(|items| items.rank_by.is_some()),
        _ => true,
    };
    let names: Vec<_> = NAMES.into_iter().filter(|name| is_taken(name)).collect();
    names.join(", ").replace("timeout", "timeout (microseconds)")
}

impl<'a> Parameter<'a> {
    /// Decodes the value of a parameter's message; `None` if it has none.
    fn read(bytes: &'a [u8]) -> Result<Option<Self>, Torn> {
        let mut value = None;
        for field in Fields(bytes) {
            value = Some(match field? {
                (1, Field::Varint(content)) => Self::Bool(content != 0),
                (2, Field::Varint(content)) => Self::Int(content as i64),
                (3, Field::Bytes(content)) => Self::Text(text(content)?),
                (4, Field::Eight(content)) => Self::Double(f64::from_le_bytes(content)),
                (5, Field::Varint(content)) => Self::Uint(content),
                (1..=5, _) => return Err(Torn),
                _ => continue,
            });
        }
        Ok(value)
    }

    /// Decodes a name and its value from a map entry.
    pub fn entry(bytes: &'a [u8]) -> Result<(&'a str, Option<Self>), Torn> {
        let (mut name, mut value) = ("", None);
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(content)) => name = text(content)?,
                (2, Field::Bytes(content)) => value = Self::read(content)?,
                _ => {}
            }
        }
        Ok((name, value))
    }

    fn number(self) -> Option<f64> {
        match self {
            Self::Double(value) => Some(value),
            other => other.integer().map(|value| value as f64),
        }
    }

    fn integer(self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(value.into()),
            Self::Uint(value) => Some(value.into()),
            _ => None,
        }
    }
}

/// The caller's options, as far as they are known.
#[derive(Debug, Default, PartialEq)]
pub struct CallerOptions {
    /// How to answer the request.
    pub wishes: Wishes,
    /// The candidates that will be shown.
    pub shown: Option<Vec<u32>>,
    /// The caller's expectation of each candidate.
    pub prescores: Option<Vec<f32>>,
    /// The segments by which its figures are split.
    pub segments: Option<Box<str>>,
    /// The arm of an experiment that the request belongs to.
    pub arm: Option<Box<str>>,
    /// The deadline in the headers, which one in the body replaces.
    pub header_deadline_us: Option<u64>,
}

fn bad<T>(name: &str, value: Parameter<'_>, expected: &str) -> Result<T, Refusal> {
    let value = match value {
        Parameter::Bool(value) => value.to_string(),
        Parameter::Int(number) => number.to_string(),
        Parameter::Uint(number) => number.to_string(),
        Parameter::Double(number) => number.to_string(),
        Parameter::Text(text) => format!("{:?}", cut(text)),
    };
    let value = cut(&value);
    Err(Refusal::Bad(format!("parameter {name:?} is {value}, expected {expected}")))
}

impl CallerOptions {
    /// Applies a parameter.
    pub fn parameter(
        &mut self,
        name: &str,
        value: Parameter<'_>,
        candidates_max: usize,
    ) -> Result<(), Refusal> {
        match name {
            "deadline_ms" | "timeout" => {
                let Some(count) = value.integer().filter(|&count| count > 0) else {
                    return bad(name, value, "a whole number of at least 1");
                };
                let us = if name == "timeout" { count } else { count * 1000 };
                self.header_deadline_us = None;
                self.within_us(u64::try_from(us).unwrap_or(u64::MAX));
            }
            "priority" => match value.integer().map(u8::try_from) {
                Some(Ok(priority)) => self.wishes.priority = priority,
                _ => return bad(name, value, "a whole number from 0 (first) to 255"),
            },
            "features" => match value {
                Parameter::Bool(is_wanted) => self.wishes.features = is_wanted,
                _ => return bad(name, value, "true or false"),
            },
            "value" => match value.number().map(|value| value as f32) {
                Some(number) if number.is_finite() && number > 0.0 => self.wishes.value = Some(number),
                _ => return bad(name, value, "a number above 0"),
            },
            "prescores" => match value {
                Parameter::Text(text) => self.prescores = Some(prescores(text, candidates_max)?),
                _ => return bad(name, value, PRESCORES),
            },
            "segments" => match value {
                Parameter::Text(text) if is_segments(text) => self.segments = Some(text.into()),
                _ => return bad(name, value, SEGMENTS),
            },
            "route_key" => self.wishes.route = Some(route(value)?),
            "shown" => match value {
                Parameter::Text(text) => self.shown = Some(indices(text, candidates_max)?),
                Parameter::Int(_) | Parameter::Uint(_) => match value.integer().map(u32::try_from) {
                    Some(Ok(index)) => self.shown = Some(vec![index]),
                    _ => return bad(name, value, "indices of candidates"),
                },
                _ => return bad(name, value, "comma-separated indices of candidates, such as \"0,3\""),
            },
            _ => {
                let cut = cut(name);
                return Err(Refusal::Bad(format!(
                    "unknown parameter {cut:?}; help: parameters are {}",
                    known(None)
                )));
            }
        }
        Ok(())
    }

    /// Sets a deadline; the earliest one counts.
    pub fn within_us(&mut self, us: u64) {
        self.wishes.deadline_us = Some(self.wishes.deadline_us.map_or(us, |earlier| earlier.min(us)));
    }

    /// Sets the pinned version; empty for none.
    pub fn pin(&mut self, version: &str) -> Result<(), Refusal> {
        self.wishes.pin = version_of(version)?;
        Ok(())
    }

    /// Checks that a request takes its parameters, `shown` and `prescores` against the candidates, and the names of
    /// segments.
    pub fn check(&self, candidates: usize, inputs: &Inputs) -> Result<(), Refusal> {
        if let Some(items) = inputs.items {
            let is_ranked = items.rank_by.is_some();
            if self.prescores.is_some() || (!is_ranked && self.shown.is_some()) {
                let text = "\"shown\" and \"prescores\" are for requests that score candidates";
                return Err(Refusal::Bad(text.to_owned()));
            }
            if self.wishes.features {
                let text = "\"features\" is for requests that name their candidates; help: leave it out";
                return Err(Refusal::Bad(text.to_owned()));
            }
        }
        self.check_segments(&inputs.segments)?;
        self.check_prescores(candidates)?;
        self.check_shown(candidates)
    }

    fn check_segments(&self, known: &[String]) -> Result<(), Refusal> {
        let given = self.segments.iter().flat_map(|text| text.split(','));
        let mut seen = Vec::new();
        for name in given.filter_map(|one| one.split_once('=')).map(|one| one.0) {
            let Some(at) = known.iter().position(|known| known == name) else {
                let name = cut(name);
                return Err(Refusal::Bad(format!(
                    "unknown segment {name:?}; help: those of requests are {}",
                    if known.is_empty() { "not declared".to_owned() } else { known.join(", ") }
                )));
            };
            if seen.contains(&at) {
                return Err(Refusal::Bad(format!("\"segments\" has {name:?} twice")));
            }
            seen.push(at);
        }
        Ok(())
    }

    fn check_prescores(&self, candidates: usize) -> Result<(), Refusal> {
        let Some(prescores) = &self.prescores else { return Ok(()) };
        let count = prescores.len();
        if count != candidates {
            let text = format!("\"prescores\" has {count} numbers for {candidates} candidates");
            return Err(Refusal::Bad(text));
        }
        match prescores.iter().find(|expected| !expected.is_finite() || **expected < 0.0) {
            Some(wrong) => {
                Err(Refusal::Bad(format!("\"prescores\" has {wrong}, expected numbers of at least 0")))
            }
            None => Ok(()),
        }
    }

    /// Checks that the candidates to show exist and are distinct.
    fn check_shown(&self, candidates: usize) -> Result<(), Refusal> {
        let Some(shown) = &self.shown else { return Ok(()) };
        let mut seen = vec![false; candidates];
        for &index in shown {
            match seen.get_mut(index as usize) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return Err(Refusal::Bad(format!("\"shown\" names candidate {index} twice"))),
                None => {
                    let last = candidates.saturating_sub(1);
                    let text = format!("\"shown\" names candidate {index}; the indices are 0 to {last}");
                    return Err(Refusal::Bad(text));
                }
            }
        }
        Ok(())
    }
}

/// Whether a text is a list of named values.
fn is_segments(text: &str) -> bool {
    text.len() <= SEGMENTS_BYTES_MAX && text.split(',').all(|one| one.contains('='))
}

/// Parses a version; `None` if the text is empty.
pub fn version_of(text: &str) -> Result<Option<u64>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|_| is_number) {
        Some(version) => Ok(Some(version)),
        None => {
            let cut = cut(text);
            Err(Refusal::Bad(format!(
                "version {cut:?} is not a number; help: leave it empty for the promoted version"
            )))
        }
    }
}

/// Returns the route of a key.
pub fn route(key: Parameter<'_>) -> Result<u64, Refusal> {
    let salt = slot_salt("route_key");
    match (key, key.integer().map(i64::try_from)) {
        (Parameter::Text(text), _) => Ok(key_of_bytes(text.as_bytes(), salt)),
        (_, Some(Ok(value))) => Ok(key_of_int(value, salt)),
        _ => bad("route_key", key, "a text or a signed 64-bit integer"),
    }
}

fn indices(text: &str, candidates_max: usize) -> Result<Vec<u32>, Refusal> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    listed("shown", text, candidates_max, "comma-separated indices of candidates, such as \"0,3\"")
}

fn prescores(text: &str, candidates_max: usize) -> Result<Vec<f32>, Refusal> {
    listed("prescores", text, candidates_max, PRESCORES)
}

fn listed<T: FromStr>(name: &str, text: &str, most: usize, expected: &str) -> Result<Vec<T>, Refusal> {
    let mut list = Vec::new();
    for part in text.split(',') {
        if list.len() == most {
            return Err(Refusal::Bad(format!("{name:?} names more than {most} candidates")));
        }
        match part.trim().parse() {
            Ok(one) => list.push(one),
            Err(_) => return bad(name, Parameter::Text(text), expected),
        }
    }
    Ok(list)
}

/// Parses a `grpc-timeout`, in microseconds. At least one, because 0 would be no time at all.
pub fn grpc_timeout_us(header: &[u8]) -> Result<u64, Refusal> {
    let parsed = header.split_last().and_then(|(unit, digits)| {
        let is_number = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        let count: u64 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
        Some(match unit {
            b'H' => count * 3_600_000_000,
            b'M' => count * 60_000_000,
            b'S' => count * 1_000_000,
            b'm' => count * 1_000,
            b'u' => count,
            b'n' => count / 1_000,
            _ => return None,
        })
    });
    match parsed {
        Some(us) => Ok(us),
        None => {
            let value = String::from_utf8_lossy(&header[..header.len().min(80)]).into_owned();
            Err(Refusal::Bad(format!(
                "grpc-timeout is {value:?}, expected 1 to 8 digits and one of H M S m u n"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::Limits;

    #[test]
    fn the_earliest_deadline_counts() {
        let mut options = CallerOptions::default();
        options.parameter("deadline_ms", Parameter::Int(20), 8).unwrap();
        options.within_us(30_000);
        assert_eq!(options.wishes.deadline_us, Some(20_000));
        options.parameter("timeout", Parameter::Int(7), 8).unwrap();
        assert_eq!(options.wishes.deadline_us, Some(7));
    }

    #[test]
    fn parameters_that_cannot_be_are_refused_with_what_is_expected() {
        let mut options = CallerOptions::default();
        for (name, value, expected) in [
            ("deadline_ms", Parameter::Int(0), "at least 1"),
            ("deadline_ms", Parameter::Text("5"), "at least 1"),
            ("priority", Parameter::Int(256), "0 (first) to 255"),
            ("priority", Parameter::Int(-1), "0 (first) to 255"),
            ("features", Parameter::Int(1), "true or false"),
            ("route_key", Parameter::Bool(true), "a text"),
            ("route_key", Parameter::Uint(u64::MAX), "64-bit"),
            ("shown", Parameter::Text("1,x"), "comma-separated"),
            ("shown", Parameter::Text("0,1,2,3"), "more than 3"),
            ("shown", Parameter::Int(-1), "indices"),
            ("deadline", Parameter::Int(5), "parameters are deadline_ms"),
            ("value", Parameter::Double(f64::NAN), "above 0"),
            ("value", Parameter::Double(1e300), "above 0"),
            ("value", Parameter::Int(0), "above 0"),
            ("value", Parameter::Text("2"), "above 0"),
            ("prescores", Parameter::Double(0.5), "comma-separated"),
            ("prescores", Parameter::Text("0.5,"), "comma-separated"),
            ("prescores", Parameter::Text("1,1,1,1"), "more than 3"),
        ] {
            let refusal = options.parameter(name, value, 3).unwrap_err();
            assert!(matches!(&refusal, Refusal::Bad(text) if text.contains(expected)), "{name}: {refusal}");
        }
        assert_eq!(options, CallerOptions::default());
    }

    #[test]
    fn candidates_that_are_shown_are_there_once_each() {
        let mut options = CallerOptions::default();
        options.parameter("shown", Parameter::Text("2, 0"), 3).unwrap();
        assert_eq!((options.shown.clone(), options.check_shown(3)), (Some(vec![2, 0]), Ok(())));
        assert!(options.check_shown(2).unwrap_err().to_string().contains("candidate 2"));
        options.parameter("shown", Parameter::Text("1,1"), 3).unwrap();
        assert!(options.check_shown(2).unwrap_err().to_string().contains("twice"));
    }

    fn inputs() -> Inputs {
        let limits = Limits { candidates_max: 3, values_max: 9, message_bytes_max: 99 };
        let segments = vec!["page".to_owned(), "client".to_owned()];
        Inputs {
            user: Vec::new(),
            item: Vec::new(),
            labels: Vec::new(),
            segments,
            class_segment: String::new(),
            items: None,
            library: None,
            limits,
        }
    }

    #[test]
    fn segments_are_those_that_are_declared() {
        let checked = |text: &str| {
            let mut options = CallerOptions::default();
            options.parameter("segments", Parameter::Text(text), 3)?;
            options.check(1, &inputs())
        };
        assert_eq!((checked("page=home"), checked("client=ios,page=")), (Ok(()), Ok(())));
        let long = format!("page={}", "a".repeat(1024));
        for (wrong, expected) in [
            ("pages=home", "page, client"),
            ("page=a,page=b", "twice"),
            ("", "names and values"),
            ("home", "names and values"),
            ("page=a,", "names and values"),
            (&long, "1,024 bytes"),
        ] {
            let text = checked(wrong).unwrap_err().to_string();
            assert!(text.contains(expected) && text.len() < 300, "{wrong}: {text}");
        }
        assert!(CallerOptions::default().parameter("segments", Parameter::Int(1), 3).is_err());
    }

    #[test]
    fn what_is_expected_is_a_number_for_each_candidate() {
        let mut options = CallerOptions::default();
        options.parameter("prescores", Parameter::Text("0.5, 0"), 3).unwrap();
        assert_eq!((options.prescores.clone(), options.check(2, &inputs())), (Some(vec![0.5, 0.0]), Ok(())));
        assert!(options.check(3, &inputs()).unwrap_err().to_string().contains("2 numbers for 3 candidates"));
        for wrong in ["-1", "inf", "NaN"] {
            options.parameter("prescores", Parameter::Text(wrong), 3).unwrap();
            assert!(options.check(1, &inputs()).unwrap_err().to_string().contains("at least 0"), "{wrong}");
        }
        options.parameter("value", Parameter::Int(3), 3).unwrap();
        assert_eq!(options.wishes.value, Some(3.0));
    }

    #[test]
    fn timeouts_of_grpc_are_read_in_every_unit() {
        for (header, us) in [
            ("1H", 3_600_000_000),
            ("2M", 120_000_000),
            ("3S", 3_000_000),
            ("4m", 4_000),
            ("5u", 5),
            ("6000n", 6),
        ] {
            assert_eq!(grpc_timeout_us(header.as_bytes()), Ok(us));
        }
        for wrong in ["", "S", "5", "123456789S", "5s", "-1S"] {
            assert!(grpc_timeout_us(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn versions_are_decimal_numbers() {
        assert_eq!((version_of(""), version_of("18")), (Ok(None), Ok(Some(18))));
        for wrong in ["+1", "-1", "1.0", "latest", "99999999999999999999"] {
            assert!(version_of(wrong).is_err(), "{wrong}");
        }
    }
}
