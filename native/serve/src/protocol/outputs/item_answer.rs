//! Item answer: encodes the items that were found for a request, for each protocol.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use serde::Serialize;

use super::super::infer::Form;
use super::super::input_names::Naming;
use super::super::messages::{ModelInferReply, OutputTensor, ReplyParameter, TypedContents};
use super::Output;
use crate::answer::{Answer, Refusal};
use crate::inputs::Label;
use crate::versions::item_index::FoundItems;
use crate::versions::raw_ids::RawId;

/// The reply parameter with the event time up to which the version has learned.
const AS_OF_MS: &str = "as_of_ms";
/// The reply parameter with the number of cells that were searched, if not all items were.
const PROBED: &str = "probed";
/// The reply parameter with the number of items that were found to be ranked.
const CANDIDATES: &str = "candidates";
/// The reply parameter that tells versions of one number apart: the first 16 digits of the digest of the manifest.
const DIGEST: &str = "digest";

/// The reply parameters of items that were found ahead of the request: `NEARLINE`, and the version that found them.
const SOURCE: &str = "source";
/// See `SOURCE`.
const SOURCE_VERSION: &str = "source_version";
/// The value of `SOURCE`.
const NEARLINE: &str = "nearline";

/// The outputs of a model that finds items, as labels that are numbers. The first is that of ids.
pub fn labels() -> Vec<Label> {
    ["id", "score"].map(number).into()
}

/// The outputs of a model that also ranks them: ids, and what the ranking model predicts.
pub fn ranked_labels(labels: &[Label]) -> Vec<Label> {
    [number("id")].into_iter().chain(labels.iter().cloned()).collect()
}

/// The labels without the first, which is that of ids.
pub fn predicted(labels: &[Label]) -> &[Label] {
    &labels[1..]
}

fn number(name: &str) -> Label {
    Label { name: name.to_owned(), is_number: true }
}

/// The datatype of an output of such a model.
pub fn datatype(output: Output, is_text: bool) -> &'static str {
    match (output.label, is_text) {
        (0, true) => "BYTES",
        (0, false) => "INT64",
        _ => "FP32",
    }
}

/// An output of an answer.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ItemColumn<'a> {
    /// Ids.
    Ids(Vec<RawId<'a>>),
    /// Scores.
    Scores(Cow<'a, [f32]>),
}

impl<'a> ItemColumn<'a> {
    /// Returns an output of the items that were found, or of those that were then ranked.
    ///
    /// # Errors
    /// If the version has a vector, but no id of an item, or predicted a number that is not finite.
    pub fn of(
        output: Output,
        answer: &'a Answer,
        (labels, found): (&[Label], &'a FoundItems),
    ) -> Result<Self, Refusal> {
        if output.label == 0 {
            return Ok(Self::Ids(ids(answer, found)?));
        }
        if answer.order.is_none() {
            return Ok(Self::Scores(Cow::Borrowed(&found.scores)));
        }
        let column = Output { label: output.label - 1, ..output };
        let (name, labels) = (output.name(labels), predicted(labels));
        let value = |scores| finite(answer, &name, column.of(scores, labels));
        let values = ranked(answer, found, labels)?.map(value);
        values.collect::<Result<_, _>>().map(Self::Scores)
    }

    /// Appends the values as raw bytes.
    pub fn put_raw(&self, raw: &mut BytesMut) {
        match self {
            Self::Scores(scores) => scores.iter().for_each(|&score| raw.put_f32_le(score)),
            Self::Ids(ids) => ids.iter().for_each(|id| match id {
                RawId::Int(int) => raw.put_i64_le(*int),
                RawId::Text(text) => {
                    raw.put_u32_le(text.len() as u32);
                    raw.put_slice(text.as_bytes());
                }
            }),
        }
    }

    fn typed(&self) -> TypedContents {
        let mut contents = TypedContents::default();
        match self {
            Self::Scores(scores) => contents.fp32_contents = scores.to_vec(),
            Self::Ids(ids) => ids.iter().for_each(|id| match id {
                RawId::Int(int) => contents.int64_contents.push(*int),
                RawId::Text(text) => contents.bytes_contents.push(Bytes::copy_from_slice(text.as_bytes())),
            }),
        }
        contents
    }
}

/// The value of a reply parameter.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Said {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

/// The number of items in an answer.
pub fn count(answer: &Answer, found: &FoundItems) -> usize {
    answer.order.as_ref().map_or(found.keys.len(), Vec::len)
}

/// Returns what the reply of the Open Inference Protocol says beside its items, by the names of parameters.
pub fn said(answer: &Answer, found: &FoundItems) -> impl Iterator<Item = (&'static str, Said)> {
    let digest = format!("{:016x}", found.index.identity);
    let candidates = answer.order.as_ref().map(|_| Said::Number(found.keys.len() as i64));
    let named = [
        (DIGEST, Some(Said::Text(digest))),
        (CANDIDATES, candidates),
        (SOURCE, found.origin.map(|_| Said::Text(NEARLINE.to_owned()))),
        (SOURCE_VERSION, found.origin.map(|list| Said::Number(list.version as i64))),
        (AS_OF_MS, as_of_ms(answer, found).map(Said::Number)),
        (PROBED, found.probed.map(|probed| Said::Number(probed as i64))),
    ];
    named.into_iter().filter_map(|(name, said)| Some((name, said?)))
}

/// The event time up to which the version has learned that ranked the items, or else found them.
fn as_of_ms(answer: &Answer, found: &FoundItems) -> Option<i64> {
    let list = found.origin.filter(|_| answer.order.is_none());
    list.map_or(found.index.as_of_ms, |list| (list.as_of_ms >= 0).then_some(list.as_of_ms))
}

/// The ids of the items in an answer.
fn ids<'a>(answer: &Answer, found: &'a FoundItems) -> Result<Vec<RawId<'a>>, Refusal> {
    let id = |&key: &u64| {
        let version = answer.version;
        let text = || format!("version {version} has a vector for key {key} of an item, but no id");
        found.index.ids.get(key).ok_or_else(|| Refusal::Broken(text()))
    };
    match &answer.order {
        None => found.keys.iter().map(id).collect(),
        Some(order) => order.iter().map(|&at| id(&found.keys[at as usize])).collect(),
    }
}

/// Yields the predictions for each ranked item, best first.
///
/// # Errors
/// If the answer does not match the items.
fn ranked<'a>(
    answer: &'a Answer,
    found: &FoundItems,
    labels: &[Label],
) -> Result<impl Iterator<Item = &'a [f32]>, Refusal> {
    super::check(answer, found.keys.len(), labels.len())?;
    let width = labels.len();
    let of = move |&at: &u32| &answer.scores[at as usize * width..][..width];
    let order = answer.order.as_deref().unwrap_or_default();
    Ok(order.iter().map(of))
}

/// Checks a value that is answered.
fn finite(answer: &Answer, name: &str, value: f32) -> Result<f32, Refusal> {
    let version = answer.version;
    let text = || format!("version {version} returned a value for {name:?} that is not finite");
    value.is_finite().then_some(value).ok_or_else(|| Refusal::Broken(text()))
}

/// Encodes an answer as the rest of a gRPC reply.
///
/// # Errors
/// As those of `ItemColumn::of`.
pub fn encode(
    mut reply: ModelInferReply,
    form: &Form,
    answer: &Answer,
    (naming, found): (&Naming, &FoundItems),
) -> Result<Bytes, Refusal> {
    let (labels, index) = (&naming.inputs().labels, &found.index);
    let cut = answer.named().map(|(name, number)| (name, Said::Number(number as i64)));
    for (name, said) in said(answer, found).chain(cut) {
        let parameter = match said {
            Said::Text(text) => ReplyParameter { string_param: Some(text), ..ReplyParameter::default() },
            Said::Number(number) => ReplyParameter { int64_param: Some(number), ..ReplyParameter::default() },
        };
        reply.parameters.insert(name.to_owned(), parameter);
    }
    for (&output, &is_raw) in form.outputs.iter().zip(&form.raw) {
        let column = ItemColumn::of(output, answer, (labels, found))?;
        let mut tensor = OutputTensor {
            name: output.name(labels),
            datatype: datatype(output, index.ids.is_text()).to_owned(),
            shape: vec![count(answer, found) as i64],
            contents: None,
        };
        if is_raw {
            let mut raw = BytesMut::new();
            column.put_raw(&mut raw);
            reply.raw_output_contents.push(raw.freeze());
        } else {
            tensor.contents = Some(column.typed());
        }
        reply.outputs.push(tensor);
    }
    Ok(reply.encode_to_vec().into())
}

/// The reply to `POST /retrieve`.
#[derive(Serialize)]
pub struct ItemReply<'a> {
    id: &'a str,
    model: &'a str,
    version: u64,
    as_of_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_version: Option<u64>,
    items: Vec<RankedItem<'a>>,
}

#[derive(Serialize)]
struct RankedItem<'a> {
    id: RawId<'a>,
    score: f32,
}

impl<'a> ItemReply<'a> {
    /// Returns the reply for an answer.
    ///
    /// # Errors
    /// If the answer has no items, or as those of `ItemColumn::of`.
    pub fn of(form: &'a Form, answer: &'a Answer, naming: &'a Naming) -> Result<Self, Refusal> {
        let version = answer.version;
        let no_items = || Refusal::Broken(format!("version {version} returned no items"));
        let found = answer.found.as_deref().ok_or_else(no_items)?;
        let scored = ids(answer, found)?.into_iter().zip(&found.scores);
        Ok(Self {
            id: std::str::from_utf8(&form.id).unwrap_or_default(),
            model: naming.model(),
            version,
            as_of_ms: as_of_ms(answer, found),
            probed: found.probed,
            source: found.origin.map(|_| NEARLINE),
            source_version: found.origin.map(|list| list.version),
            items: scored.map(|(id, &score)| RankedItem { id, score }).collect(),
        })
    }
}

/// The reply to `POST /recommend`.
#[derive(Serialize)]
pub struct RankedReply<'a> {
    id: &'a str,
    model: &'a str,
    version: u64,
    as_of_ms: Option<i64>,
    /// How many items were retrieved.
    candidates: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_version: Option<u64>,
    items: Vec<ScoredItem<'a>>,
}

#[derive(Serialize)]
struct ScoredItem<'a> {
    id: RawId<'a>,
    scores: BTreeMap<&'a str, f32>,
}

impl<'a> RankedReply<'a> {
    /// Returns the reply for an answer.
    ///
    /// # Errors
    /// If the answer has no ranked items or a number that is not finite, or as those of `ItemColumn::of`.
    pub fn of(form: &'a Form, answer: &'a Answer, naming: &'a Naming) -> Result<Self, Refusal> {
        let (version, labels) = (answer.version, predicted(&naming.inputs().labels));
        let no_items = || Refusal::Broken(format!("version {version} returned no items"));
        let found = answer.found.as_deref().ok_or_else(no_items)?;
        let named = |(label, &one): (&'a Label, &f32)| {
            Ok((label.name.as_str(), finite(answer, &label.name, label.score(one))?))
        };
        let item = |(id, scores): (_, &[f32])| {
            let scores = labels.iter().zip(scores).map(named).collect::<Result<_, Refusal>>()?;
            Ok(ScoredItem { id, scores })
        };
        let items = ids(answer, found)?.into_iter().zip(ranked(answer, found, labels)?).map(item);
        let items = items.collect::<Result<_, Refusal>>()?;
        Ok(Self {
            id: std::str::from_utf8(&form.id).unwrap_or_default(),
            model: naming.model(),
            version,
            as_of_ms: as_of_ms(answer, found),
            candidates: found.keys.len(),
            scored: answer.cut.scored,
            length: answer.cut.length,
            unknown: answer.unknown(),
            probed: found.probed,
            source: found.origin.map(|_| NEARLINE),
            source_version: found.origin.map(|list| list.version),
            items,
        })
    }
}
