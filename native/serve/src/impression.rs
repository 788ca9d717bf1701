//! Impressions: an answered request written as the event of what was shown. It knows the fields' order, and no topic.

use std::ops::Range;

use streamlearn_wire::avro::varint;

use crate::answer::Answer;
use crate::inputs::{Count, Input, Kind};
use crate::protocol::{Texts, probability};
use crate::request::{Request, Values};

/// How impressions of an application are written; their fields beside these are the inputs and labels of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impression {
    /// What every one begins with: the framing and the fingerprint of its schema.
    pub prefix: Vec<u8>,
    /// Segments of a request, which no request says: they are empty texts.
    pub user_segments: usize,
    /// Segments of an item.
    pub item_segments: usize,
    /// Items of one event, and values of one slot, at most.
    pub items_max: usize,
}

/// What was shown of a request, and when.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The request's id.
    pub id: &'a [u8],
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// The request, with the values themselves where there were their keys.
    pub request: &'a Request,
    /// Its texts.
    pub texts: &'a Texts,
    /// What it was answered.
    pub answer: &'a Answer,
}

impl Impression {
    /// Append an event; gives how many items it shows.
    ///
    /// # Errors
    /// When no reader would take it; nothing is appended then.
    pub fn write(&self, seen: &Seen<'_>, out: &mut Vec<u8>) -> Result<usize, String> {
        let (request, inputs) = (seen.request, &seen.request.inputs);
        let items = request.shown.as_ref().map_or(request.candidates, Vec::len);
        self.check(request, items)?;
        out.extend_from_slice(&self.prefix);
        text(out, seen.id);
        varint::write(out, seen.at_ms);
        varint::write(out, seen.at_ms);
        some(out);
        varint::write(out, seen.answer.version as i64);
        empty_texts(out, self.user_segments);
        for (input, values) in inputs.user.iter().zip(&request.user) {
            column(out, input, values, 0, seen.texts);
        }
        varint::write(out, items as i64);
        match &request.shown {
            None => (0..items).for_each(|item| self.item(seen, item, out)),
            Some(shown) => shown.iter().for_each(|&item| self.item(seen, item as usize, out)),
        }
        out.push(0);
        Ok(items)
    }

    fn item(&self, seen: &Seen<'_>, item: usize, out: &mut Vec<u8>) {
        let (request, inputs) = (seen.request, &seen.request.inputs);
        for (input, values) in inputs.item.iter().zip(&request.item) {
            column(out, input, values, item, seen.texts);
        }
        empty_texts(out, self.item_segments);
        let labels = inputs.labels.len();
        for &logit in &seen.answer.scores[item * labels..(item + 1) * labels] {
            let score = probability(logit);
            if score.is_finite() {
                some(out);
                out.extend_from_slice(&score.to_le_bytes());
            } else {
                out.push(0);
            }
        }
    }

    fn check(&self, request: &Request, items: usize) -> Result<(), String> {
        let most = self.items_max;
        if items > most {
            return Err(format!("{items} items were shown, and an impression has at most {most}"));
        }
        let inputs = &request.inputs;
        let columns = inputs.user.iter().zip(&request.user).chain(inputs.item.iter().zip(&request.item));
        for (input, values) in columns {
            if let Values::Lists { offsets, .. } = values {
                let longest = offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
                if longest as usize > most {
                    return Err(format!(
                        "{:?} has {longest} values, and an impression takes {most}",
                        input.name
                    ));
                }
            }
        }
        Ok(())
    }
}

/// That the second branch of a union follows, of which the first is null.
fn some(out: &mut Vec<u8>) {
    out.push(2);
}

fn empty_texts(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len() + count, 0);
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    varint::write(out, text.len() as i64);
    out.extend_from_slice(text);
}

/// What one example has in a column.
fn column(out: &mut Vec<u8>, input: &Input, values: &Values, example: usize, texts: &Texts) {
    match (&input.kind, values) {
        (Kind::Slot { is_text, .. }, Values::Keys(keys)) => {
            slot(out, &keys[example..=example], *is_text, texts)
        }
        (Kind::Slot { is_text, values: count, .. }, Values::Lists { keys, offsets, weights }) => {
            let held = offsets[example] as usize..offsets[example + 1] as usize;
            array(out, held.len(), |out| slot(out, &keys[held.clone()], *is_text, texts));
            if *count == Count::Weighted {
                let weights = weights.as_deref().unwrap_or_default();
                array(out, held.len(), |out| floats(out, weights, held.clone()));
            }
        }
        (Kind::Dense { width, .. }, Values::Numbers(numbers)) => {
            let held = example * width..(example + 1) * width;
            if *width == 1 {
                floats(out, numbers, held);
            } else {
                array(out, *width, |out| floats(out, numbers, held));
            }
        }
        (Kind::Slot { .. }, Values::Numbers(_)) | (Kind::Dense { .. }, _) => {
            unreachable!("a request's columns are as its inputs say")
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

fn floats(out: &mut Vec<u8>, numbers: &[f32], held: Range<usize>) {
    numbers[held].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}
