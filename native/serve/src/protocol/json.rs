//! JSON of the Open Inference Protocol: decodes a request's tensors and parameters and encodes the reply,
//! with numbers in the JSON or as raw bytes after it. Rows have a module of their own.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::columns::InputTensors;
use super::infer::{self, Form};
use super::input_names::Naming;
use super::outputs::{self, DEGRADED, Wanted};
use super::values::tensor::{Elements, Shape, Tensor, cut};
use super::wishes::{CallerOptions, Parameter};
use crate::answer::{Answer, Refusal};
use crate::request::Request;

/// The value of a parameter.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
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
    /// A list of indices.
    List(Vec<u32>),
}

impl Setting {
    /// Applies the parameter to the options.
    pub fn apply(
        self,
        options: &mut CallerOptions,
        name: &str,
        candidates_max: usize,
    ) -> Result<(), Refusal> {
        let value = match &self {
            Self::Bool(value) => Parameter::Bool(*value),
            Self::Int(value) => Parameter::Int(*value),
            Self::Uint(value) => Parameter::Uint(*value),
            Self::Double(value) => Parameter::Double(*value),
            Self::Text(value) => Parameter::Text(value),
            Self::List(indices) if name == "shown" && indices.len() <= candidates_max => {
                options.shown = Some(indices.clone());
                return Ok(());
            }
            Self::List(indices) => {
                let text =
                    format!("parameter {:?} is a list of {}, expected one value", cut(name), indices.len());
                return Err(Refusal::Bad(text));
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
            Self::List(values) => {
                Err(Refusal::Bad(format!("version is a list of {}, expected one", values.len())))
            }
            other => Err(Refusal::Bad(format!("version {other:?} is not a number"))),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask<'a> {
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: BTreeMap<String, Setting>,
    #[serde(borrow)]
    inputs: Vec<InputTensor<'a>>,
    #[serde(default)]
    outputs: Vec<RequestedOutput>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputTensor<'a> {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    parameters: BTreeMap<String, Setting>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestedOutput {
    name: String,
    #[serde(default)]
    parameters: BTreeMap<String, Setting>,
}

/// Whether the output is requested as raw bytes.
fn is_raw(output: &RequestedOutput, by_default: bool) -> Result<bool, Refusal> {
    let mut is_raw = by_default;
    for (name, value) in &output.parameters {
        match (name.as_str(), value) {
            ("binary_data", Setting::Bool(binary)) => is_raw = *binary,
            _ => {
                let (output, name) = (cut(&output.name), cut(name));
                return Err(Refusal::Bad(format!(
                    "output {output:?}: unsupported parameter {name:?}; help: outputs take binary_data, true or false"
                )));
            }
        }
    }
    Ok(is_raw)
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
    mut raw: &'a [u8],
    naming: &Naming,
    version: &str,
) -> Result<(Request, Form), Refusal> {
    let bad_body = |error| Refusal::Bad(format!("invalid body: {error}"));
    let Ask { id, parameters, inputs, outputs } = serde_json::from_slice(body).map_err(bad_body)?;
    let (mut options, mut wanted, mut tensors) =
        (CallerOptions::default(), Wanted::default(), InputTensors::new(naming));
    let (labels, mut is_raw_by_default) = (&naming.inputs().labels, false);
    options.pin(version)?;
    for (name, value) in parameters {
        match (name.as_str(), &value) {
            ("binary_data_output", Setting::Bool(binary)) => is_raw_by_default = *binary,
            _ => value.apply(&mut options, &name, naming.inputs().limits.candidates_max)?,
        }
    }
    let mut raws = Vec::with_capacity(labels.len());
    for output in &outputs {
        wanted.add(&output.name, labels)?;
        raws.push(is_raw(output, is_raw_by_default)?);
    }
    for input in &inputs {
        tensors.add(&input.name, || tensor(input, &mut raw))?;
    }
    if !raw.is_empty() {
        let text = format!("{} bytes after the JSON belong to no input", raw.len());
        return Err(Refusal::Bad(text));
    }
    let sides = tensors.into_sides()?;
    options.check_shown(sides.candidates)?;
    let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(labels.len()));
    raws.resize(outputs.len(), is_raw_by_default);
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw: raws };
    Ok((infer::request(naming, id, sides, options), form))
}

/// Returns the raw bytes of an input, if its parameters announce them, and removes them from `raw`.
fn raw_bytes<'a>(input: &InputTensor<'_>, raw: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Refusal> {
    let bad = |text: String| Err(Refusal::Bad(format!("input {:?}: {text}", cut(&input.name))));
    let mut input_bytes = None;
    for (name, value) in &input.parameters {
        match (name.as_str(), value) {
            ("binary_data_size", Setting::Int(size)) => {
                let split = usize::try_from(*size).ok().and_then(|size| raw.split_at_checked(size));
                let Some((data, rest)) = split else {
                    return bad(format!(
                        "binary_data_size is {size}, but only {} bytes are left after the JSON; help: the header \
                         Inference-Header-Content-Length gives the length of the JSON",
                        raw.len()
                    ));
                };
                (input_bytes, *raw) = (Some(data), rest);
            }
            _ => {
                return bad(format!(
                    "unsupported parameter {:?}; help: inputs take binary_data_size",
                    cut(name)
                ));
            }
        }
    }
    Ok(input_bytes)
}

fn tensor<'a>(input: &InputTensor<'a>, raw: &mut &'a [u8]) -> Result<Tensor<'a>, Refusal> {
    let refusal = |text: &str| Refusal::Bad(format!("input {:?}: {text}", cut(&input.name)));
    let mut shape = Shape::default();
    for &dim in &input.shape {
        shape.push(dim).map_err(|text| refusal(&text))?;
    }
    let datatype = infer::datatype_of(&input.name, &input.datatype)?;
    let elements = match (raw_bytes(input, raw)?, input.data) {
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
    parameters: BTreeMap<&'static str, usize>,
    outputs: Vec<OutputTensor>,
}

#[derive(Serialize)]
struct OutputTensor {
    name: String,
    datatype: &'static str,
    shape: [usize; 1],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<&'static str, usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Vec<Option<f32>>>,
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
    let columns = columns(form, answer, naming)?;
    let mut raw = BytesMut::new();
    let tensor = |((name, data), is_raw): ((String, Vec<Option<f32>>), &bool)| {
        let mut tensor = OutputTensor {
            name,
            datatype: "FP32",
            shape: [form.candidates],
            parameters: BTreeMap::new(),
            data: None,
        };
        if *is_raw {
            tensor.parameters.insert("binary_data_size", 4 * data.len());
            data.iter().for_each(|value| raw.put_f32_le(value.unwrap_or(f32::NAN)));
        } else {
            tensor.data = Some(data);
        }
        tensor
    };
    let reply = Reply {
        model_name: naming.model(),
        model_version: answer.version.to_string(),
        id: std::str::from_utf8(&form.id).unwrap_or_default(),
        parameters: answer.degraded.map(|scored| (DEGRADED, scored)).into_iter().collect(),
        outputs: columns.into_iter().zip(&form.raw).map(tensor).collect(),
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
    degraded_candidates: Option<usize>,
    scores: BTreeMap<String, Vec<Option<f32>>>,
}

/// Encodes the reply to a request with rows.
///
/// # Errors
/// If the answer does not match the request, or has a number that JSON cannot represent.
pub fn encode_scores(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    let scores = columns(form, answer, naming)?.into_iter().collect();
    let id = std::str::from_utf8(&form.id).unwrap_or_default();
    let degraded_candidates = answer.degraded;
    let body = written(&Scores { id, version: answer.version, degraded_candidates, scores })?;
    Ok(Written { body, json_bytes: None })
}

type Columns = Vec<(String, Vec<Option<f32>>)>;

/// The requested columns; candidates that were not scored have `None`, JSON's null.
fn columns(form: &Form, answer: &Answer, naming: &Naming) -> Result<Columns, Refusal> {
    let labels = &naming.inputs().labels;
    outputs::check(answer, form.candidates, labels.len())?;
    let scored = answer.degraded.unwrap_or(form.candidates);
    let mut columns = Vec::with_capacity(form.outputs.len());
    for output in &form.outputs {
        let (name, values) = (output.name(labels), output.values(answer, labels.len()));
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
