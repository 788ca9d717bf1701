//! JSON of the Open Inference Protocol: a request's tensors and parameters, and the reply. Rows are elsewhere.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::columns::Given;
use super::infer::{self, Form};
use super::naming::Naming;
use super::outputs::{self, Wanted};
use super::tensor::{Elements, Shape, Tensor};
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
                let said = format!("parameter {name:?} is a list of {}, expected one value", indices.len());
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
            other => Err(Refusal::Bad(format!("version {other:?} is no number"))),
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

/// Whether a parameter asks for numbers outside of the JSON, and is refused if it does.
fn is_binary(name: &str, value: &Setting) -> Result<bool, Refusal> {
    match (name, value) {
        ("binary_data" | "binary_data_output", Setting::Bool(false)) => Ok(true),
        ("binary_data" | "binary_data_output" | "binary_data_size", _) => Err(Refusal::Bad(format!(
            "parameter {name:?}: numbers stand in the JSON here; help: leave it out or false, or use gRPC"
        ))),
        _ => Ok(false),
    }
}

fn only_binary(what: &str, parameters: &BTreeMap<String, Setting>) -> Result<(), Refusal> {
    for (name, value) in parameters {
        if !is_binary(name, value)? {
            return Err(Refusal::Bad(format!("{what} has a parameter {name:?}; help: it takes none")));
        }
    }
    Ok(())
}

/// Make a request of a body; `version` is what the path says.
///
/// # Errors
/// When it is not what the model takes.
pub fn decode(body: &[u8], naming: &Naming, version: &str) -> Result<(Request, Form), Refusal> {
    let wrong = |error| Refusal::Bad(format!("the body is not what is expected: {error}"));
    let Ask { id, parameters, inputs, outputs } = serde_json::from_slice(body).map_err(wrong)?;
    let (mut said, mut wanted, mut given) = (Said::default(), Wanted::default(), Given::new(naming));
    said.pin(version)?;
    for (name, value) in parameters {
        if !is_binary(&name, &value)? {
            value.say(&mut said, &name, naming.inputs().limits.candidates_max)?;
        }
    }
    for output in &outputs {
        only_binary(&format!("output {:?}", output.name), &output.parameters)?;
        wanted.add(&output.name, &naming.inputs().labels)?;
    }
    for input in &inputs {
        given.add(&input.name, || tensor(input))?;
    }
    let sides = given.into_sides()?;
    said.check_shown(sides.candidates)?;
    let (id, outputs) = (infer::id_of(&id)?, wanted.outputs(naming.inputs().labels.len()));
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, is_raw: false };
    Ok((infer::request(naming, id, sides, said), form))
}

fn tensor<'a>(input: &InputTensor<'a>) -> Result<Tensor<'a>, Refusal> {
    let wrong = |said: &str| Refusal::Bad(format!("input {:?}: {said}", input.name));
    only_binary(&format!("input {:?}", input.name), &input.parameters)?;
    let mut shape = Shape::default();
    for &dim in &input.shape {
        shape.push(dim).map_err(|said| wrong(&said))?;
    }
    let datatype = infer::datatype_of(&input.name, &input.datatype)?;
    let data = input.data.ok_or_else(|| wrong("it has no data"))?;
    Ok(Tensor { datatype, shape, elements: Elements::Json(data) })
}

#[derive(Serialize)]
struct Reply<'a> {
    model_name: &'a str,
    model_version: String,
    id: &'a str,
    outputs: Vec<OutputTensor>,
}

#[derive(Serialize)]
struct OutputTensor {
    name: String,
    datatype: &'static str,
    shape: [usize; 1],
    data: Vec<f32>,
}

/// The reply that an answer is written as.
///
/// # Errors
/// When the answer is not one to this request, or has a number that JSON cannot hold.
pub fn encode(form: &Form, answer: &Answer, naming: &Naming) -> Result<Bytes, Refusal> {
    let columns = columns(form, answer, naming)?;
    let tensor = |(name, data)| OutputTensor { name, datatype: "FP32", shape: [form.candidates], data };
    let reply = Reply {
        model_name: naming.model(),
        model_version: answer.version.to_string(),
        id: std::str::from_utf8(&form.id).unwrap_or_default(),
        outputs: columns.into_iter().map(tensor).collect(),
    };
    written(&reply)
}

#[derive(Serialize)]
struct Scores<'a> {
    id: &'a str,
    version: u64,
    scores: BTreeMap<String, Vec<f32>>,
}

/// The reply to a request that was rows.
///
/// # Errors
/// When the answer is not one to this request, or has a number that JSON cannot hold.
pub fn encode_scores(form: &Form, answer: &Answer, naming: &Naming) -> Result<Bytes, Refusal> {
    let scores = columns(form, answer, naming)?.into_iter().collect();
    let id = std::str::from_utf8(&form.id).unwrap_or_default();
    written(&Scores { id, version: answer.version, scores })
}

fn columns(form: &Form, answer: &Answer, naming: &Naming) -> Result<Vec<(String, Vec<f32>)>, Refusal> {
    let labels = &naming.inputs().labels;
    outputs::check(answer, form.candidates, labels.len())?;
    let columns: Vec<(String, Vec<f32>)> = form
        .outputs
        .iter()
        .map(|output| (output.name(labels), output.values(answer, labels.len()).collect()))
        .collect();
    // JSON has no number for these, and would hold null in their place.
    match columns.iter().find(|(_, values)| !values.iter().all(|value| value.is_finite())) {
        None => Ok(columns),
        Some((name, _)) => {
            let version = answer.version;
            Err(Refusal::Broken(format!("version {version} gave {name:?} a value that is not finite")))
        }
    }
}

/// A reply as JSON.
///
/// # Errors
/// Never, for what is written here has texts for keys; but it is said rather than hidden.
pub fn written(reply: &impl Serialize) -> Result<Bytes, Refusal> {
    let written = serde_json::to_vec(reply).map_err(|error| Refusal::Broken(error.to_string()))?;
    Ok(written.into())
}
