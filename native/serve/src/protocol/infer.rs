//! ModelInfer: the bytes of a request read where they lie and made a `Request`; an `Answer` made the reply.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::columns::{Given, Sides};
use super::input_names::Naming;
use super::messages::{ModelInferReply, OutputTensor, ReplyParameter, TypedContents};
use super::outputs::{self, Output, Wanted};
use super::values::fields::{Field, Fields, Torn};
use super::values::tensor::{BadHead, Datatype, Elements, Head, Tensor, cut, entry_name, text};
use super::wishes::{Parameter, Said};
use crate::answer::{Answer, Refusal};
use crate::request::Request;

/// Bytes of a request's id at most.
pub const ID_BYTES_MAX: usize = 256;

/// How an answer is to be written.
#[derive(Debug)]
pub struct Form {
    /// The request's id.
    pub id: Bytes,
    /// How many candidates it has.
    pub candidates: usize,
    /// The columns that are wanted.
    pub outputs: Vec<Output>,
    /// Whether numbers of each of them go end to end.
    pub raw: Vec<bool>,
}

fn bad<T>(said: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Bad(said.into()))
}

fn torn(Torn: Torn) -> Refusal {
    Refusal::Bad("cannot decode the bytes as a ModelInferRequest".to_owned())
}

/// The parts of a request's message, not looked into.
#[derive(Default)]
struct Parts<'a> {
    model: &'a str,
    version: &'a str,
    id: &'a str,
    inputs: Vec<&'a [u8]>,
    raws: Vec<&'a [u8]>,
}

/// Make a request of bytes; `said` is what headers said of it already.
///
/// # Errors
/// When it is not what the model takes.
pub fn decode(bytes: &[u8], naming: &Naming, mut said: Said) -> Result<(Request, Form), Refusal> {
    let inputs = naming.inputs();
    let (places_max, mut wanted, mut parts) = (naming.places(), Wanted::default(), Parts::default());
    for field in Fields(bytes) {
        match field.map_err(torn)? {
            (1, Field::Bytes(found)) => parts.model = text(found).map_err(torn)?,
            (2, Field::Bytes(found)) => parts.version = text(found).map_err(torn)?,
            (3, Field::Bytes(found)) => parts.id = text(found).map_err(torn)?,
            (4, Field::Bytes(found)) => {
                let (name, value) = Parameter::entry(found).map_err(torn)?;
                let Some(value) = value else {
                    return bad(format!("parameter {:?} has no value", cut(name)));
                };
                said.parameter(name, value, inputs.limits.candidates_max)?;
            }
            (5, Field::Bytes(_)) if parts.inputs.len() == places_max => {
                return bad(format!(
                    "more inputs than the {places_max} there may be; help: {}",
                    naming.known()
                ));
            }
            (5, Field::Bytes(found)) => parts.inputs.push(found),
            (6, Field::Bytes(found)) => output(found, &inputs.labels, &mut wanted)?,
            (7, Field::Bytes(_)) if parts.raws.len() == places_max => {
                return bad(format!("more raw_input_contents than the {places_max} inputs there may be"));
            }
            (7, Field::Bytes(found)) => parts.raws.push(found),
            (1..=7, _) => return Err(torn(Torn)),
            _ => {}
        }
    }
    check_model(parts.model, naming)?;
    said.pin(parts.version)?;
    let is_raw = !parts.raws.is_empty();
    let sides = sides(&parts, naming)?;
    said.check_shown(sides.candidates)?;
    let (id, outputs) = (id_of(parts.id)?, wanted.outputs(inputs.labels.len()));
    let raw = vec![is_raw; outputs.len()];
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw };
    Ok((request(naming, id, sides, said), form))
}

/// A request of its parts.
pub fn request(naming: &Naming, id: Bytes, sides: Sides, said: Said) -> Request {
    let Sides { candidates, user, item } = sides;
    let Said { wishes, shown } = said;
    Request { id, inputs: Arc::clone(naming.inputs()), candidates, user, item, shown, wishes }
}

/// Whether it is this model that is asked for.
pub fn check_model(model: &str, naming: &Naming) -> Result<(), Refusal> {
    if model == naming.model() {
        return Ok(());
    }
    let cut = cut(model);
    Err(Refusal::Unknown(format!("model {cut:?} is not served here; help: {:?} is", naming.model())))
}

/// An id as the caller wrote it, or one that is made up: what no other process has, and a number that counts on.
pub fn id_of(id: &str) -> Result<Bytes, Refusal> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static OWN: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    if id.len() > ID_BYTES_MAX {
        return bad(format!("an id of {} bytes, expected at most {ID_BYTES_MAX}", id.len()));
    }
    if !id.is_empty() {
        return Ok(Bytes::copy_from_slice(id.as_bytes()));
    }
    Ok(format!("{:016x}-{:x}", *OWN, NEXT.fetch_add(1, Ordering::Relaxed)).into())
}

fn output(bytes: &[u8], labels: &[String], wanted: &mut Wanted) -> Result<(), Refusal> {
    let mut name = "";
    for field in Fields(bytes) {
        match field.map_err(torn)? {
            (1, Field::Bytes(found)) => name = text(found).map_err(torn)?,
            (2, Field::Bytes(entry)) => {
                let parameter = cut(entry_name(entry).map_err(torn)?);
                return bad(format!(
                    "parameter {parameter:?} of an output; help: outputs take none, no shared memory and no classes"
                ));
            }
            _ => {}
        }
    }
    wanted.add(name, labels)
}

fn sides(parts: &Parts<'_>, naming: &Naming) -> Result<Sides, Refusal> {
    if !parts.raws.is_empty() && parts.raws.len() != parts.inputs.len() {
        // One that lies elsewhere has no bytes here: that is said rather than how many there are.
        for head in parts.inputs.iter().filter_map(|bytes| Head::read(bytes).ok()) {
            if head.parameter.is_some() {
                tensor(head, None)?;
            }
        }
        return bad(format!("{} inputs and {} raw_input_contents", parts.inputs.len(), parts.raws.len()));
    }
    let mut given = Given::new(naming);
    for (number, bytes) in parts.inputs.iter().enumerate() {
        let head = Head::read(bytes).map_err(|wrong| match wrong {
            BadHead::Torn => {
                Refusal::Bad(format!("cannot decode input number {number} as an InferInputTensor"))
            }
            BadHead::Wrong(said) => Refusal::Bad(said),
        })?;
        let name = head.name;
        given.add(name, || tensor(head, parts.raws.get(number).copied()))?;
    }
    given.into_sides()
}

fn tensor<'a>(head: Head<'a>, raw: Option<&'a [u8]>) -> Result<Tensor<'a>, Refusal> {
    let Head { name, datatype, shape, contents, parameter } = head;
    if let Some(parameter) = parameter {
        let (name, parameter) = (cut(name), cut(parameter));
        return bad(format!(
            "input {name:?} has a parameter {parameter:?}; help: inputs take none, and no shared memory"
        ));
    }
    let datatype = datatype_of(name, datatype)?;
    let elements = match (raw, contents) {
        (Some(raw), None | Some([])) => Elements::Raw(raw),
        (Some(_), Some(_)) => {
            return bad(format!("input {name:?} has contents of its own beside raw_input_contents"));
        }
        (None, contents) => Elements::Typed(contents.unwrap_or_default()),
    };
    Ok(Tensor { datatype, shape, elements })
}

/// The datatype that an input's name of it means.
pub fn datatype_of(input: &str, datatype: &str) -> Result<Datatype, Refusal> {
    Datatype::from_name(datatype).ok_or_else(|| {
        let (input, cut) = (cut(input), cut(datatype));
        Refusal::Bad(format!(
            "input {input:?}: datatype {cut:?}, expected INT64, INT32, UINT64 or UINT32 for whole numbers, BYTES for texts, \
             FP32 or FP64 for other numbers"
        ))
    })
}

/// The reply that an answer is written as.
///
/// # Errors
/// When the answer is not one to this request.
pub fn encode(form: &Form, answer: &Answer, naming: &Naming) -> Result<Bytes, Refusal> {
    let Form { id, candidates, outputs, raw } = form;
    let labels = &naming.inputs().labels;
    outputs::check(answer, *candidates, labels.len())?;
    let mut reply = ModelInferReply {
        model_name: naming.model().to_owned(),
        model_version: answer.version.to_string(),
        id: String::from_utf8_lossy(id).into_owned(),
        ..ModelInferReply::default()
    };
    if let Some(scored) = answer.degraded {
        let said = ReplyParameter { int64_param: i64::try_from(scored).unwrap_or(i64::MAX) };
        reply.parameters.insert(outputs::DEGRADED.to_owned(), said);
    }
    for (&output, &is_raw) in outputs.iter().zip(raw) {
        let values = output.values(answer, labels.len());
        let mut tensor = OutputTensor {
            name: output.name(labels),
            datatype: Datatype::Fp32.name().to_owned(),
            shape: vec![*candidates as i64],
            contents: None,
        };
        if is_raw {
            let mut raw = BytesMut::with_capacity(4 * candidates);
            values.for_each(|value| raw.put_f32_le(value));
            reply.raw_output_contents.push(raw.freeze());
        } else {
            tensor.contents = Some(TypedContents { fp32_contents: values.collect() });
        }
        reply.outputs.push(tensor);
    }
    Ok(reply.encode_to_vec().into())
}
