//! JSON of the Open Inference Protocol: decodes a request's tensors and parameters and encodes the reply,
//! with numbers in the JSON or as raw bytes after it. Rows have a module of their own.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::{Error, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::columns::InputTensors;
use super::infer::{self, Form};
use super::input_names::Naming;
use super::json_body::{Each, Object, Parameters, RefusalSlot, Setting, Text, next_field, read, read_part};
use super::outputs::item_answer::{self, ItemColumn, ItemReply, RankedReply};
use super::outputs::{self, FEATURES, Wanted};
use super::values::scalars::{Ints, Value, ValueForm};
use super::values::tensor::{Elements, Shape, Tensor, cut};
use super::wishes::CallerOptions;
use crate::answer::{Answer, Cut, Refusal};
use crate::inputs::Inputs;
use crate::request::Request;

/// The fields of a request; the first is required.
const FIELDS: [&str; 4] = ["inputs", "id", "parameters", "outputs"];
const INPUT: Object<5> = Object(&["name", "datatype", "shape", "data", "parameters"]);
const OUTPUT: Object<2> = Object(&["name", "parameters"]);

type Part<'a> = Option<&'a RawValue>;

fn required<'a>(part: Part<'a>, field: &str) -> Result<&'a RawValue, Refusal> {
    part.ok_or_else(|| Refusal::Bad(format!("invalid body: missing field `{field}`")))
}

fn text_of<'a>(part: Part<'a>, field: &str, slot: RefusalSlot<'_>) -> Result<Cow<'a, str>, Refusal> {
    let Text(text) = read_part(required(part, field)?, format_args!("{field:?}"), slot, PhantomData)?;
    Ok(text)
}

/// Reads the parameters of an input or output; `take` returns whether it supports one.
fn own_parameters(
    part: Part<'_>,
    slot: RefusalSlot<'_>,
    owner: fmt::Arguments<'_>,
    supported: &str,
    take: &mut dyn FnMut(&str, Setting) -> bool,
) -> Result<(), Refusal> {
    let Some(part) = part else { return Ok(()) };
    let take = &mut |name: &str, value| {
        if take(name, value) {
            return Ok(());
        }
        let text = format!("{owner}: unsupported parameter {:?}; help: {supported}", cut(name));
        Err(Refusal::Bad(text))
    };
    read_part(part, owner, slot, Parameters { slot, shown_max: 0, take })
}

/// Returns whether an output is requested as raw bytes, if its parameters say so.
fn is_raw(name: &str, parameters: Part<'_>, slot: RefusalSlot<'_>) -> Result<Option<bool>, Refusal> {
    let (mut is_raw, name) = (None, cut(name));
    let supported = "outputs take binary_data, true or false";
    own_parameters(parameters, slot, format_args!("output {name:?}"), supported, &mut |name, value| {
        match (name, value) {
            ("binary_data", Setting::Bool(binary)) => is_raw = Some(binary),
            _ => return false,
        }
        true
    })?;
    Ok(is_raw)
}

/// A request under construction.
struct Ask<'a, 'n> {
    slot: RefusalSlot<'n>,
    naming: &'n Naming,
    /// The bytes after the JSON that belong to no input yet.
    raw: &'a [u8],
    id: String,
    options: CallerOptions,
    tensors: InputTensors<'a, 'n>,
    wanted: Wanted,
    /// Whether each output is requested as raw bytes, where its parameters say so.
    raws: Vec<Option<bool>>,
    is_raw_by_default: bool,
}

impl<'a> Visitor<'a> for &mut Ask<'a, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"inputs\"")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Ask { slot, naming, raw, id, options, tensors, wanted, raws, is_raw_by_default } = self;
        let (slot, Inputs { labels, limits, .. }) = (*slot, &**naming.inputs());
        let mut has = [false; FIELDS.len()];
        while let Some(at) = next_field(&mut map, &FIELDS)? {
            if std::mem::replace(&mut has[at], true) {
                return Err(A::Error::duplicate_field(FIELDS[at]));
            }
            match FIELDS[at] {
                "inputs" => {
                    let take = &mut |[name, rest @ ..]: [Part<'a>; 5]| {
                        let name = text_of(name, "name", slot)?;
                        tensors.add(&name, || tensor(cut(&name), rest, raw, slot))
                    };
                    map.next_value_seed(Each(slot, INPUT, take))?;
                }
                "id" => *id = map.next_value()?,
                "parameters" => {
                    let shown_max = limits.candidates_max;
                    let take = &mut |name: &str, value| match (name, value) {
                        ("binary_data_output", Setting::Bool(binary)) => {
                            *is_raw_by_default = binary;
                            Ok(())
                        }
                        (_, value) => value.apply(options, name, shown_max),
                    };
                    map.next_value_seed(Parameters { slot, shown_max, take })?;
                }
                _ => {
                    let take = &mut |[name, parameters]: [Part<'a>; 2]| {
                        let name = text_of(name, "name", slot)?;
                        wanted.add(&name, labels)?;
                        raws.push(is_raw(&name, parameters, slot)?);
                        Ok(())
                    };
                    map.next_value_seed(Each(slot, OUTPUT, take))?;
                }
            }
        }
        if has[0] { Ok(()) } else { Err(A::Error::missing_field(FIELDS[0])) }
    }
}

/// The header with the length of a body's JSON.
pub const JSON_BYTES: &str = "inference-header-content-length";

/// Splits a body into its JSON and the bytes after it.
///
/// # Errors
/// If the body is shorter than `json_bytes`.
pub fn parts(body: &[u8], json_bytes: Option<usize>) -> Result<(&[u8], &[u8]), Refusal> {
    body.split_at_checked(json_bytes.unwrap_or(body.len()))
        .ok_or_else(|| Refusal::Bad(format!("{JSON_BYTES} exceeds the {} bytes of the body", body.len())))
}

/// Decodes a request; `version` comes from the path, `raw` holds the bytes after the JSON.
///
/// # Errors
/// If it does not match the model.
pub fn decode<'a>(
    body: &'a [u8],
    raw: &'a [u8],
    naming: &Naming,
    version: &str,
    options: CallerOptions,
) -> Result<(Request, Form), Refusal> {
    let slot = RefCell::new(None);
    let mut ask = Ask {
        slot: &slot,
        naming,
        raw,
        id: String::new(),
        options,
        tensors: InputTensors::new(naming),
        wanted: Wanted::default(),
        raws: Vec::new(),
        is_raw_by_default: false,
    };
    ask.options.pin(version)?;
    read(body, &slot, &mut ask)?;
    if !ask.raw.is_empty() {
        let text = format!("{} bytes after the JSON belong to no input", ask.raw.len());
        return Err(Refusal::Bad(text));
    }
    let sides = ask.tensors.into_sides()?;
    ask.options.check(sides.shown_max(), naming.inputs())?;
    let (id, outputs) = (infer::id_of(&ask.id)?, ask.wanted.outputs(naming.inputs().labels.len()));
    ask.raws.resize(outputs.len(), None);
    let raw = ask.raws.into_iter().map(|is_raw| is_raw.unwrap_or(ask.is_raw_by_default)).collect();
    let features = ask.options.wishes.features;
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw, features };
    Ok((infer::request(naming, id, sides, ask.options), form))
}

/// Returns the raw bytes of an input, if its parameters announce them, and removes them from `raw`.
fn raw_bytes<'a>(
    name: &str,
    parameters: Part<'_>,
    raw: &mut &'a [u8],
    slot: RefusalSlot<'_>,
) -> Result<Option<&'a [u8]>, Refusal> {
    let (mut raw_size, supported) = (None, "inputs take binary_data_size");
    own_parameters(parameters, slot, format_args!("input {name:?}"), supported, &mut |name, value| {
        match (name, value) {
            ("binary_data_size", Setting::Int(size)) => raw_size = Some(size),
            _ => return false,
        }
        true
    })?;
    let Some(size) = raw_size else { return Ok(None) };
    let split = usize::try_from(size).ok().and_then(|size| raw.split_at_checked(size));
    let Some((data, rest)) = split else {
        return Err(Refusal::Bad(format!(
            "input {name:?}: binary_data_size is {size}, but only {} bytes are left after the JSON; help: the \
             header Inference-Header-Content-Length gives the length of the JSON",
            raw.len()
        )));
    };
    *raw = rest;
    Ok(Some(data))
}

fn tensor<'a>(
    name: &str,
    [datatype, shape, data, parameters]: [Part<'a>; 4],
    raw: &mut &'a [u8],
    slot: RefusalSlot<'_>,
) -> Result<Tensor<'a>, Refusal> {
    let refusal = |text: &str| Refusal::Bad(format!("input {name:?}: {text}"));
    let (part, mut shape) = (required(shape, "shape")?, Shape::default());
    let dims = Value { take: &mut Ints(|dim| shape.push(dim)), list: Some(u64::MAX) };
    let form = read_part(part, format_args!("the shape of input {name:?}"), slot, dims)?;
    if !matches!(form, ValueForm::List(_)) {
        return Err(refusal(&format!("its shape is {form}, expected a list")));
    }
    let datatype = infer::datatype_of(name, &text_of(datatype, "datatype", slot)?)?;
    let elements = match (raw_bytes(name, parameters, raw, slot)?, data) {
        (None, Some(data)) => Elements::Json(data),
        (Some(raw), None) => Elements::Raw(raw),
        (Some(_), Some(_)) => return Err(refusal("it has both data and binary_data_size")),
        (None, None) => return Err(refusal("it has no data")),
    };
    Ok(Tensor { datatype, shape, elements })
}

#[derive(Serialize)]
struct Reply<'a> {
    model_name: &'a str,
    model_version: String,
    id: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<&'static str, Json>,
    outputs: Vec<OutputTensor<'a>>,
}

#[derive(Serialize)]
struct OutputTensor<'a> {
    name: String,
    datatype: &'static str,
    shape: [usize; 1],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<OutputData<'a>>,
}

/// The values of an output.
#[derive(Serialize)]
#[serde(untagged)]
enum OutputData<'a> {
    /// A score for each candidate; those that were not scored have `None`, JSON's null.
    Scores(Vec<Option<f32>>),
    /// Of the found items.
    Items(ItemColumn<'a>),
}

/// An encoded reply.
pub struct Written {
    /// The JSON, and raw numbers after it.
    pub body: Bytes,
    /// The length of the JSON, if raw numbers follow it.
    pub json_bytes: Option<usize>,
}

/// Encodes an answer as a reply.
///
/// # Errors
/// If the answer does not match the request, or has a number that JSON cannot represent.
pub fn encode(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    let mut raw = BytesMut::new();
    let mut tensor = |name, datatype, count, data, is_raw| {
        let mut tensor =
            OutputTensor { name, datatype, shape: [count], parameters: BTreeMap::new(), data: None };
        if is_raw {
            let before = raw.len();
            match data {
                OutputData::Items(column) => column.put_raw(&mut raw),
                OutputData::Scores(scores) => {
                    scores.iter().for_each(|value| raw.put_f32_le(value.unwrap_or(f32::NAN)));
                }
            }
            tensor.parameters.insert("binary_data_size", raw.len() - before);
        } else {
            tensor.data = Some(data);
        }
        tensor
    };
    let mut outputs = Vec::with_capacity(form.outputs.len());
    if let Some(found) = &answer.found {
        let labels = &naming.inputs().labels;
        for (&output, &is_raw) in form.outputs.iter().zip(&form.raw) {
            let datatype = item_answer::datatype(output, found.index.ids.is_text());
            let data = OutputData::Items(ItemColumn::of(output, answer, (labels, found))?);
            outputs.push(tensor(
                output.name(labels),
                datatype,
                item_answer::count(answer, found),
                data,
                is_raw,
            ));
        }
    } else {
        for ((name, scores), &is_raw) in columns(form, answer, naming)?.into_iter().zip(&form.raw) {
            outputs.push(tensor(name, "FP32", form.candidates, OutputData::Scores(scores), is_raw));
        }
    }
    let mut parameters: BTreeMap<_, Json> =
        answer.named().map(|(name, number)| (name, number.into())).collect();
    // Parameters are single values in this protocol.
    if let Some(columns) = outputs::features(form, answer, naming) {
        parameters.insert(FEATURES, columns.to_string().into());
    }
    if let Some(found) = &answer.found {
        let said = item_answer::said(answer, found);
        parameters.extend(said.map(|(name, said)| (name, serde_json::to_value(said).unwrap_or_default())));
    }
    let reply = Reply {
        model_name: naming.model(),
        model_version: answer.version.to_string(),
        id: std::str::from_utf8(&form.id).unwrap_or_default(),
        parameters,
        outputs,
    };
    let json = written(&reply)?;
    if raw.is_empty() {
        return Ok(Written { body: json, json_bytes: None });
    }
    let json_bytes = Some(json.len());
    let mut body = BytesMut::with_capacity(json.len() + raw.len());
    body.extend_from_slice(&json);
    body.extend_from_slice(&raw);
    Ok(Written { body: body.freeze(), json_bytes })
}

#[derive(Serialize)]
struct Scores<'a> {
    id: &'a str,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<usize>,
    scores: BTreeMap<String, Vec<Option<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Json>,
}

/// Encodes the reply to a request with rows.
///
/// # Errors
/// If the answer does not match the request, or has a number that JSON cannot represent.
pub fn encode_scores(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    let scores = columns(form, answer, naming)?.into_iter().collect();
    let id = std::str::from_utf8(&form.id).unwrap_or_default();
    let (Cut { scored, length }, features) = (answer.cut, outputs::features(form, answer, naming));
    let (version, unknown) = (answer.version, answer.unknown());
    let body = written(&Scores { id, version, scored, length, unknown, scores, features })?;
    Ok(Written { body, json_bytes: None })
}

/// Encodes the reply to a request for items.
///
/// # Errors
/// If the answer does not match the request.
pub fn encode_items(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    Ok(Written { body: written(&ItemReply::of(form, answer, naming)?)?, json_bytes: None })
}

/// Encodes the reply to a request for ranked items.
///
/// # Errors
/// If the answer does not match the request, or has a number that JSON cannot represent.
pub fn encode_ranked(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    Ok(Written { body: written(&RankedReply::of(form, answer, naming)?)?, json_bytes: None })
}

type Columns = Vec<(String, Vec<Option<f32>>)>;

/// The requested columns; candidates that were not scored have `None`, JSON's null.
fn columns(form: &Form, answer: &Answer, naming: &Naming) -> Result<Columns, Refusal> {
    let labels = &naming.inputs().labels;
    outputs::check(answer, form.candidates, labels.len())?;
    let scored = answer.cut.scored.unwrap_or(form.candidates);
    let mut columns = Vec::with_capacity(form.outputs.len());
    for output in &form.outputs {
        let (name, values) = (output.name(labels), output.values(answer, labels));
        let values: Vec<_> = values.enumerate().map(|(at, value)| (at < scored).then_some(value)).collect();
        if values.iter().flatten().any(|value| !value.is_finite()) {
            let version = answer.version;
            return Err(Refusal::Broken(format!(
                "version {version} returned a value for {name:?} that is not finite"
            )));
        }
        columns.push((name, values));
    }
    Ok(columns)
}

/// Serializes a reply as JSON.
///
/// # Errors
/// Never for the replies here, whose map keys are texts; an error is reported all the same.
fn written(reply: &impl Serialize) -> Result<Bytes, Refusal> {
    let bytes = serde_json::to_vec(reply).map_err(|error| Refusal::Broken(error.to_string()))?;
    Ok(bytes.into())
}
