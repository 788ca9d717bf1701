//! JSON of the Open Inference Protocol: a request's tensors and parameters, and the reply, with numbers in it or end to
//! end behind it. Rows are elsewhere.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::columns::Given;
use super::infer::{self, Form};
use super::input_names::Naming;
use super::outputs::{self, DEGRADED, Wanted};
use super::values::tensor::{Elements, Shape, Tensor, cut};
use super::wishes::{Parameter, Said};
use crate::answer::{Answer, Refusal};
use crate::request::Request;

/// The value of a parameter.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number beyond 63 bits.
    Uint(u64),
    /// A number.
    Double(f64),
    /// A text.
    Text(String),
    /// Indices.
    List(Vec<u32>),
}

impl Setting {
    /// Say it under its name.
    pub fn say(self, said: &mut Said, name: &str, candidates_max: usize) -> Result<(), Refusal> {
        let value = match &self {
            Self::Bool(value) => Parameter::Bool(*value),
            Self::Int(value) => Parameter::Int(*value),
            Self::Uint(value) => Parameter::Uint(*value),
            Self::Double(value) => Parameter::Double(*value),
            Self::Text(value) => Parameter::Text(value),
            Self::List(indices) if name == "shown" && indices.len() <= candidates_max => {
                said.shown = Some(indices.clone());
                return Ok(());
            }
            Self::List(indices) => {
                let said =
                    format!("parameter {:?} is a list of {}, expected one value", cut(name), indices.len());
                return Err(Refusal::Bad(said));
            }
        };
        said.parameter(name, value, candidates_max)
    }

    /// A version, as it would stand in a path.
    pub fn into_version(self) -> Result<String, Refusal> {
        match self {
            Self::Text(version) => Ok(version),
            Self::Int(version) => Ok(version.to_string()),
            Self::Uint(version) => Ok(version.to_string()),
            Self::List(all) => Err(Refusal::Bad(format!("version is a list of {}, expected one", all.len()))),
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
    outputs: Vec<Named>,
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
struct Named {
    name: String,
    #[serde(default)]
    parameters: BTreeMap<String, Setting>,
}

/// Whether an output is wanted end to end, as its parameters say.
fn is_raw(output: &Named, by_default: bool) -> Result<bool, Refusal> {
    let mut is_raw = by_default;
    for (name, value) in &output.parameters {
        match (name.as_str(), value) {
            ("binary_data", Setting::Bool(wanted)) => is_raw = *wanted,
            _ => {
                let (output, name) = (cut(&output.name), cut(name));
                return Err(Refusal::Bad(format!(
                    "output {output:?} has a parameter {name:?}; help: it takes binary_data, true or false"
                )));
            }
        }
    }
    Ok(is_raw)
}

/// The header that says where the JSON of a body ends.
pub const JSON_BYTES: &str = "inference-header-content-length";

/// The JSON of a body, and what stands behind it.
///
/// # Errors
/// When the body is shorter than is said.
pub fn parts(body: &[u8], json_bytes: Option<usize>) -> Result<(&[u8], &[u8]), Refusal> {
    body.split_at_checked(json_bytes.unwrap_or(body.len())).ok_or_else(|| {
        Refusal::Bad(format!("{JSON_BYTES} is more than the {} bytes that the body has", body.len()))
    })
}

/// Make a request of a body; `version` is what the path says, `raw` what stands behind the JSON.
///
/// # Errors
/// When it is not what the model takes.
pub fn decode<'a>(
    body: &'a [u8],
    mut raw: &'a [u8],
    naming: &Naming,
    version: &str,
) -> Result<(Request, Form), Refusal> {
    let wrong = |error| Refusal::Bad(format!("the body is not what is expected: {error}"));
    let Ask { id, parameters, inputs, outputs } = serde_json::from_slice(body).map_err(wrong)?;
    let (mut said, mut wanted, mut given) = (Said::default(), Wanted::default(), Given::new(naming));
    let (labels, mut is_raw_by_default) = (&naming.inputs().labels, false);
    said.pin(version)?;
    for (name, value) in parameters {
        match (name.as_str(), &value) {
            ("binary_data_output", Setting::Bool(wanted)) => is_raw_by_default = *wanted,
            _ => value.say(&mut said, &name, naming.inputs().limits.candidates_max)?,
        }
    }
    let mut raws = Vec::with_capacity(labels.len());
    for output in &outputs {
        wanted.add(&output.name, labels)?;
        raws.push(is_raw(output, is_raw_by_default)?);
    }
    for input in &inputs {
        given.add(&input.name, || tensor(input, &mut raw))?;
    }
    if !raw.is_empty() {
        let said = format!("{} bytes behind the JSON belong to no input", raw.len());
        return Err(Refusal::Bad(said));
    }
    let sides = given.into_sides()?;
    said.check_shown(sides.candidates)?;
    let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(labels.len()));
    raws.resize(outputs.len(), is_raw_by_default);
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw: raws };
    Ok((infer::request(naming, id, sides, said), form))
}

/// The bytes of an input that stand behind the JSON, if its parameters say so; they are taken off `raw`.
fn behind<'a>(input: &InputTensor<'_>, raw: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Refusal> {
    let bad = |said: String| Err(Refusal::Bad(format!("input {:?}: {said}", cut(&input.name))));
    let mut found = None;
    for (name, value) in &input.parameters {
        match (name.as_str(), value) {
            ("binary_data_size", Setting::Int(bytes)) => {
                let split = usize::try_from(*bytes).ok().and_then(|bytes| raw.split_at_checked(bytes));
                let Some((own, rest)) = split else {
                    return bad(format!(
                        "binary_data_size is {bytes}, and {} bytes are left behind the JSON; help: the header \
                         Inference-Header-Content-Length says how long the JSON is",
                        raw.len()
                    ));
                };
                (found, *raw) = (Some(own), rest);
            }
            _ => return bad(format!("it has a parameter {:?}; help: it takes binary_data_size", cut(name))),
        }
    }
    Ok(found)
}

fn tensor<'a>(input: &InputTensor<'a>, raw: &mut &'a [u8]) -> Result<Tensor<'a>, Refusal> {
    let wrong = |said: &str| Refusal::Bad(format!("input {:?}: {said}", cut(&input.name)));
    let mut shape = Shape::default();
    for &dim in &input.shape {
        shape.push(dim).map_err(|said| wrong(&said))?;
    }
    let datatype = infer::datatype_of(&input.name, &input.datatype)?;
    let elements = match (behind(input, raw)?, input.data) {
        (None, Some(data)) => Elements::Json(data),
        (Some(raw), None) => Elements::Raw(raw),
        (Some(_), Some(_)) => return Err(wrong("it has data beside binary_data_size")),
        (None, None) => return Err(wrong("it has no data")),
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

/// A reply's bytes, and how many of them are JSON where numbers stand behind it.
pub struct Written {
    /// All of them.
    pub body: Bytes,
    /// How many are JSON, unless all are.
    pub json_bytes: Option<usize>,
}

/// The reply that an answer is written as.
///
/// # Errors
/// When the answer is not one to this request, or has a number that JSON cannot hold.
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

/// The reply to a request that was rows.
///
/// # Errors
/// When the answer is not one to this request, or has a number that JSON cannot hold.
pub fn encode_scores(form: &Form, answer: &Answer, naming: &Naming) -> Result<Written, Refusal> {
    let scores = columns(form, answer, naming)?.into_iter().collect();
    let id = std::str::from_utf8(&form.id).unwrap_or_default();
    let degraded_candidates = answer.degraded;
    let body = written(&Scores { id, version: answer.version, degraded_candidates, scores })?;
    Ok(Written { body, json_bytes: None })
}

type Columns = Vec<(String, Vec<Option<f32>>)>;

/// The columns that are wanted; candidates that were not scored have none there, which JSON has as null.
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
                "version {version} gave {name:?} a value that is not finite"
            )));
        }
        columns.push((name, values));
    }
    Ok(columns)
}

/// A reply as JSON.
///
/// # Errors
/// Never, for what is written here has texts for keys; but it is said rather than hidden.
fn written(reply: &impl Serialize) -> Result<Bytes, Refusal> {
    let written = serde_json::to_vec(reply).map_err(|error| Refusal::Broken(error.to_string()))?;
    Ok(written.into())
}
