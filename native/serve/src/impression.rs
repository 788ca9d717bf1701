//! Impressions: encodes an answered request as an impression event. Knows the order of the fields, and no
//! topic.

use std::ops::Range;

use streamlearn_wire::avro::varint;

use crate::answer::Answer;
use crate::features::Outcome;
use crate::inputs::{Count, Input, Kind};
use crate::protocol::Texts;
use crate::request::{Request, Values};

/// The format of an application's impressions; the other fields are the inputs and labels of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impression {
    /// The bytes before each event: the framing and the schema's fingerprint.
    pub prefix: Vec<u8>,
    /// The names of the segments of a request.
    pub segments: Vec<String>,
    /// The number of item segments.
    pub item_segments: usize,
    /// The maximum number of items in an event, and of values in a slot.
    pub items_max: usize,
    /// Whether events say what computed columns were computed from.
    pub has_features: bool,
}

/// The parts of one impression.
#[derive(Debug, Clone, Copy)]
pub struct ImpressionParts<'a> {
    /// The request's id.
    pub id: &'a [u8],
    /// The time, in milliseconds since 1970.
    pub at_ms: i64,
    /// The request, decoded with plain values instead of keys.
    pub request: &'a Request,
    /// Its texts.
    pub texts: &'a Texts,
    /// Its answer.
    pub answer: &'a Answer,
}

impl Impression {
    /// Appends an event, and returns its number of items.
    ///
    /// # Errors
    /// If readers would reject the event; nothing is appended then.
    pub fn write(&self, parts: &ImpressionParts<'_>, out: &mut Vec<u8>) -> Result<usize, String> {
        let (request, inputs) = (parts.request, &parts.request.inputs);
        // Candidates that were cut were not shown by their score: they are no impression.
        let scored = parts.answer.cut.scored.unwrap_or(request.candidates);
        let items = request.shown.as_ref().map_or(scored, Vec::len);
        self.check(request, items)?;
        out.extend_from_slice(&self.prefix);
        text(out, parts.id);
        varint::write(out, parts.at_ms);
        varint::write(out, parts.at_ms);
        some(out);
        varint::write(out, parts.answer.version as i64);
        if self.has_features {
            let computed = parts.answer.computed.as_deref();
            let is_read = computed.filter(|computed| computed.outcome != Outcome::Unavailable);
            text(out, computed.map_or("", |computed| computed.outcome.name()).as_bytes());
            optional(out, is_read.map(|computed| computed.at_ms));
            optional(out, is_read.map(|computed| computed.states));
            optional(out, computed.and_then(|computed| computed.user_position));
        }
        self.segments.iter().for_each(|name| text(out, request.segment(name).as_bytes()));
        for (input, values) in inputs.user.iter().zip(&request.user) {
            column(
                out,
                input,
                values,
                &Example { at: 0, newest: parts.answer.cut.length, texts: parts.texts },
            );
        }
        varint::write(out, items as i64);
        match &request.shown {
            None => (0..items).for_each(|item| self.item(parts, item, out)),
            Some(shown) => shown.iter().for_each(|&item| self.item(parts, item as usize, out)),
        }
        out.push(0);
        Ok(items)
    }

    fn item(&self, parts: &ImpressionParts<'_>, item: usize, out: &mut Vec<u8>) {
        let (request, inputs) = (parts.request, &parts.request.inputs);
        for (input, values) in inputs.item.iter().zip(&request.item) {
            column(out, input, values, &Example { at: item, newest: None, texts: parts.texts });
        }
        keys_of_texts(out, parts.answer, request, item);
        empty_texts(out, self.item_segments);
        if self.has_features {
            let positions = parts.answer.computed.as_ref().map(|computed| &computed.item_positions);
            optional(out, positions.and_then(|positions| positions.get(item).copied()));
        }
        let labels = inputs.labels.len();
        let predicted = &parts.answer.scores[item * labels..(item + 1) * labels];
        for (label, &one) in inputs.labels.iter().zip(predicted) {
            let score = label.score(one);
            if score.is_finite() {
                some(out);
                out.extend_from_slice(&score.to_le_bytes());
            } else {
                out.push(0);
            }
        }
    }

    fn check(&self, request: &Request, items: usize) -> Result<(), String> {
        let items_max = self.items_max;
        if items > items_max {
            return Err(format!("{items} items were shown, an impression holds at most {items_max}"));
        }
        let inputs = &request.inputs;
        let columns = inputs.user.iter().zip(&request.user).chain(inputs.item.iter().zip(&request.item));
        for (input, values) in columns {
            if let Values::Lists { offsets, .. } = values {
                let longest = offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
                if longest as usize > items_max {
                    return Err(format!(
                        "{:?} has {longest} values, an impression holds at most {items_max}",
                        input.name
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Appends for each slot of texts that the library has the keys that an item has of it, if they were not sent: the texts
/// are not known then, and are empty.
fn keys_of_texts(out: &mut Vec<u8>, answer: &Answer, request: &Request, item: usize) {
    let Some(library) = &request.inputs.library else { return };
    let filled = answer.filled.as_deref().and_then(|filled| Some((filled, filled.left_out.as_deref()?)));
    let is_text = |at: &&usize| matches!(request.inputs.item[**at].kind, Kind::Slot { is_text: true, .. });
    for &at in library.columns.iter().filter(is_text) {
        let keys =
            filled.filter(|(_, left_out)| left_out.is_filled(at, item)).map(|(filled, _)| {
                match &filled.item[at] {
                    Values::Keys(keys) => &keys[item..=item],
                    Values::Lists { keys, offsets, .. } => {
                        &keys[offsets[item] as usize..offsets[item + 1] as usize]
                    }
                    Values::Numbers(_) => unreachable!("a request's columns match its inputs"),
                }
            });
        let keys = keys.unwrap_or_default();
        array(out, keys.len(), |out| slot(out, keys, false, &Texts::default()));
    }
}

/// Selects the second branch of a union whose first is null.
fn some(out: &mut Vec<u8>) {
    out.push(2);
}

fn optional(out: &mut Vec<u8>, number: Option<i64>) {
    match number {
        None => out.push(0),
        Some(number) => {
            some(out);
            varint::write(out, number);
        }
    }
}

fn empty_texts(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len() + count, 0);
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    varint::write(out, text.len() as i64);
    out.extend_from_slice(text);
}

/// Appends one example's value of a column.
/// Which values of a column are written.
struct Example<'a> {
    at: usize,
    /// How many values of a history were read at most, if fewer than it has.
    newest: Option<usize>,
    texts: &'a Texts,
}

fn column(out: &mut Vec<u8>, input: &Input, values: &Values, example: &Example<'_>) {
    let Example { at: example, newest, texts } = *example;
    match (&input.kind, values) {
        (Kind::Slot { is_text, .. }, Values::Keys(keys)) => {
            slot(out, &keys[example..=example], *is_text, texts)
        }
        (Kind::Slot { is_text, values: count, .. }, Values::Lists { keys, offsets, weights }) => {
            let mut range = offsets[example] as usize..offsets[example + 1] as usize;
            if let (Some(newest), Count::Newest(_)) = (newest, count) {
                range.start = range.start.max(range.end.saturating_sub(newest));
            }
            array(out, range.len(), |out| slot(out, &keys[range.clone()], *is_text, texts));
            if *count == Count::Weighted {
                let weights = weights.as_deref().unwrap_or_default();
                array(out, range.len(), |out| floats(out, weights, range.clone()));
            }
        }
        (Kind::Dense { width, .. }, Values::Numbers(numbers)) => {
            let range = example * width..(example + 1) * width;
            if *width == 1 {
                floats(out, numbers, range);
            } else {
                array(out, *width, |out| floats(out, numbers, range));
            }
        }
        (Kind::Slot { .. }, Values::Numbers(_)) | (Kind::Dense { .. }, _) => {
            unreachable!("a request's columns match its inputs")
        }
    }
}

fn array(out: &mut Vec<u8>, count: usize, items: impl FnOnce(&mut Vec<u8>)) {
    if count > 0 {
        varint::write(out, count as i64);
        items(out);
    }
    out.push(0);
}

fn slot(out: &mut Vec<u8>, keys: &[u64], is_text: bool, texts: &Texts) {
    if is_text {
        keys.iter().for_each(|&key| text(out, texts.get(key)));
    } else {
        keys.iter().for_each(|&key| varint::write(out, key as i64));
    }
}

fn floats(out: &mut Vec<u8>, numbers: &[f32], range: Range<usize>) {
    numbers[range].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}
