//! ModelInfer: decodes the bytes of a request in place, and encodes an `Answer`.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::columns::{InputTensors, Sides};
use super::input_names::Naming;
use super::messages::{ModelInferReply, OutputTensor, ReplyParameter, TypedContents};
use super::outputs::item_answer;
use super::outputs::{self, Output, Wanted};
use super::values::fields::{Field, Fields, Torn};
use super::values::tensor::{BadHead, Datatype, Elements, Head, Tensor, cut, entry_name, text};
use super::wishes::{CallerOptions, Parameter};
use crate::answer::{Answer, Refusal};
use crate::inputs::Label;
use crate::request::{Request, Wishes};

/// The maximum length of a request's id.
pub const ID_BYTES_MAX: usize = 256;
/// What gRPC puts before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The form of a request's answer.
#[derive(Debug)]
pub struct Form {
    /// The request's id.
    pub id: Bytes,
    /// The number of candidates.
    pub candidates: usize,
    /// The requested columns.
    pub outputs: Vec<Output>,
    /// Whether each column is encoded as raw bytes.
    pub raw: Vec<bool>,
    /// Whether it brings the computed columns.
    pub features: bool,
}

fn bad<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Bad(text.into()))
}

fn torn(Torn: Torn) -> Refusal {
    Refusal::Bad("cannot decode the bytes as a ModelInferRequest".to_owned())
}

/// The undecoded parts of a request's message.
#[derive(Default)]
struct Parts<'a> {
    model: &'a str,
    version: &'a str,
    id: &'a str,
    inputs: Vec<&'a [u8]>,
    raws: Vec<&'a [u8]>,
}

/// Decodes a request; `options` are those of the headers.
///
/// # Errors
/// If it does not match the model.
pub fn decode(bytes: &[u8], naming: &Naming, mut options: CallerOptions) -> Result<(Request, Form), Refusal> {
    let inputs = naming.inputs();
    let (inputs_max, mut wanted, mut parts) = (naming.places(), Wanted::default(), Parts::default());
    for field in Fields(bytes) {
        match field.map_err(torn)? {
            (1, Field::Bytes(bytes)) => parts.model = text(bytes).map_err(torn)?,
            (2, Field::Bytes(bytes)) => parts.version = text(bytes).map_err(torn)?,
            (3, Field::Bytes(bytes)) => parts.id = text(bytes).map_err(torn)?,
            (4, Field::Bytes(bytes)) => {
                let (name, value) = Parameter::entry(bytes).map_err(torn)?;
                let Some(value) = value else {
                    return bad(format!("parameter {:?} has no value", cut(name)));
                };
                options.parameter(name, value, inputs.limits.candidates_max)?;
            }
            (5, Field::Bytes(bytes)) if parts.inputs.len() == inputs_max => {
                return bad(too_many(&parts, bytes, naming));
            }
            (5, Field::Bytes(bytes)) => parts.inputs.push(bytes),
            (6, Field::Bytes(bytes)) => output(bytes, &inputs.labels, &mut wanted)?,
            (7, Field::Bytes(_)) if parts.raws.len() == inputs_max => {
                return bad(format!(
                    "more than {inputs_max} raw_input_contents, the number of possible inputs"
                ));
            }
            (7, Field::Bytes(bytes)) => parts.raws.push(bytes),
            (1..=7, _) => return Err(torn(Torn)),
            _ => {}
        }
    }
    if parts.model != naming.model() {
        return Err(unknown_model(parts.model, &[naming.model()]));
    }
    options.pin(parts.version)?;
    let is_raw = !parts.raws.is_empty();
    let sides = sides(&parts, naming)?;
    options.check(sides.shown_max(), inputs)?;
    let (id, outputs) = (id_of(parts.id)?, wanted.outputs(inputs.labels.len()));
    let raw = vec![is_raw; outputs.len()];
    let features = options.wishes.features;
    let form = Form { id: id.clone(), candidates: sides.candidates, outputs, raw, features };
    Ok((request(naming, id, sides, options), form))
}

/// The error for more inputs than a model has: the first that it does not have, unless one comes twice.
fn too_many(parts: &Parts<'_>, last: &[u8], naming: &Naming) -> String {
    let heads = parts.inputs.iter().copied().chain([last]).filter_map(|bytes| Head::read(bytes).ok());
    match heads.map(|head| head.name).find(|name| naming.place(name).is_none()) {
        Some(name) => naming.unknown(name),
        None => format!("more than {} inputs; help: {}", naming.places(), naming.known()),
    }
}

/// Assembles a request.
pub fn request(naming: &Naming, id: Bytes, sides: Sides, mut options: CallerOptions) -> Request {
    let Sides { candidates, user, item, lacks, left_out, items } = sides;
    if let Some(us) = options.header_deadline_us {
        options.within_us(us);
    }
    let CallerOptions { wishes, shown, prescores, segments, arm, .. } = options;
    let request = Request::new(Arc::clone(naming.inputs()), candidates, user, item);
    Request { id, lacks, left_out, shown, prescores, segments, arm, items, wishes, ..request }
}

/// Returns the name of a request's model.
///
/// # Errors
/// If the bytes are not a message.
pub fn model_of(bytes: &[u8]) -> Result<&str, Refusal> {
    let mut model = "";
    for field in Fields(bytes) {
        if let (1, Field::Bytes(name)) = field.map_err(torn)? {
            model = text(name).map_err(torn)?;
        }
    }
    Ok(model)
}

/// Returns the wishes of a request as far as the first bytes of its body say them. The bytes need not be a request.
pub fn glance(first: &[u8], wishes: Wishes) -> Wishes {
    let mut options = CallerOptions { wishes, ..CallerOptions::default() };
    for field in Fields(first.get(PREFIX_BYTES..).unwrap_or_default()) {
        let Ok((number @ 1..=4, Field::Bytes(bytes))) = field else { break };
        if number < 4 {
            continue;
        }
        if let Ok((name @ ("priority" | "value"), Some(value))) = Parameter::entry(bytes) {
            let _ = options.parameter(name, value, 0); // a wrong one is refused once the request is read
        }
    }
    options.wishes
}

/// The refusal of a model that a node does not have, by the names of those that it has, the one that scores first.
pub fn unknown_model(model: &str, names: &[&str]) -> Refusal {
    let served: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let finds = names.first().and_then(|scores| model.strip_prefix(scores));
    let needs = match finds {
        Some(".retrieve" | ".recommend") => format!("; {:?} needs App(retrieval=...)", cut(model)),
        _ => String::new(),
    };
    let text = format!("unknown model {:?}; help: this node serves {}{needs}", cut(model), served.join(", "));
    Refusal::Unknown(text)
}

/// Returns the caller's id, or a generated one: a random prefix of this process and a counter.
pub fn id_of(id: &str) -> Result<Bytes, Refusal> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static PROCESS_PREFIX: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    if id.len() > ID_BYTES_MAX {
        return bad(format!("the id has {} bytes, expected at most {ID_BYTES_MAX}", id.len()));
    }
    if !id.is_empty() {
        return Ok(Bytes::copy_from_slice(id.as_bytes()));
    }
    Ok(format!("{:016x}-{:x}", *PROCESS_PREFIX, NEXT.fetch_add(1, Ordering::Relaxed)).into())
}

fn output(bytes: &[u8], labels: &[Label], wanted: &mut Wanted) -> Result<(), Refusal> {
    let mut name = "";
    for field in Fields(bytes) {
        match field.map_err(torn)? {
            (1, Field::Bytes(bytes)) => name = text(bytes).map_err(torn)?,
            (2, Field::Bytes(entry)) => {
                let parameter = cut(entry_name(entry).map_err(torn)?);
                return bad(format!(
                    "unsupported output parameter {parameter:?}; help: outputs take no parameters, and neither shared memory nor classification is supported"
                ));
            }
            _ => {}
        }
    }
    wanted.add(name, labels)
}

fn sides(parts: &Parts<'_>, naming: &Naming) -> Result<Sides, Refusal> {
    if !parts.raws.is_empty() && parts.raws.len() != parts.inputs.len() {
        // An input in shared memory has no bytes here: report that rather than the count.
        for head in parts.inputs.iter().filter_map(|bytes| Head::read(bytes).ok()) {
            if head.parameter.is_some() {
                tensor(head, None)?;
            }
        }
        return bad(format!("{} inputs and {} raw_input_contents", parts.inputs.len(), parts.raws.len()));
    }
    let mut tensors = InputTensors::new(naming);
    for (number, bytes) in parts.inputs.iter().enumerate() {
        let head = Head::read(bytes).map_err(|error| match error {
            BadHead::Torn => {
                Refusal::Bad(format!("cannot decode input number {number} as an InferInputTensor"))
            }
            BadHead::Wrong(text) => Refusal::Bad(text),
        })?;
        let name = head.name;
        tensors.add(name, || tensor(head, parts.raws.get(number).copied()))?;
    }
    tensors.into_sides()
}

fn tensor<'a>(head: Head<'a>, raw: Option<&'a [u8]>) -> Result<Tensor<'a>, Refusal> {
    let Head { name, datatype, shape, contents, parameter } = head;
    if let Some(parameter) = parameter {
        let (name, parameter) = (cut(name), cut(parameter));
        return bad(format!(
            "input {name:?} has a parameter {parameter:?}; help: inputs take no parameters, and shared memory is not supported"
        ));
    }
    let datatype = datatype_of(name, datatype)?;
    let elements = match (raw, contents) {
        (Some(raw), None | Some([])) => Elements::Raw(raw),
        (Some(_), Some(_)) => {
            return bad(format!("input {name:?} has both contents and raw_input_contents"));
        }
        (None, contents) => Elements::Typed(contents.unwrap_or_default()),
    };
    Ok(Tensor { datatype, shape, elements })
}

/// Parses an input's datatype.
pub fn datatype_of(input: &str, datatype: &str) -> Result<Datatype, Refusal> {
    Datatype::from_name(datatype).ok_or_else(|| {
        let (input, cut) = (cut(input), cut(datatype));
        Refusal::Bad(format!(
            "input {input:?}: datatype {cut:?}, expected INT64, INT32, UINT64 or UINT32 for whole numbers, BYTES for texts, \
             FP32 or FP64 for other numbers"
        ))
    })
}

/// Encodes an answer as a reply.
///
/// # Errors
/// If the answer does not match the request.
pub fn encode(form: &Form, answer: &Answer, naming: &Naming) -> Result<Bytes, Refusal> {
    let Form { id, candidates, outputs, raw, .. } = form;
    let labels = &naming.inputs().labels;
    let mut reply = ModelInferReply {
        model_name: naming.model().to_owned(),
        model_version: answer.version.to_string(),
        id: String::from_utf8_lossy(id).into_owned(),
        ..ModelInferReply::default()
    };
    if let Some(found) = &answer.found {
        return item_answer::encode(reply, form, answer, (naming, found));
    }
    outputs::check(answer, *candidates, labels.len())?;
    for (name, number) in answer.named() {
        let parameter =
            ReplyParameter { int64_param: i64::try_from(number).ok(), ..ReplyParameter::default() };
        reply.parameters.insert(name.to_owned(), parameter);
    }
    if let Some(columns) = outputs::features(form, answer, naming) {
        let parameter =
            ReplyParameter { string_param: Some(columns.to_string()), ..ReplyParameter::default() };
        reply.parameters.insert(outputs::FEATURES.to_owned(), parameter);
    }
    for (&output, &is_raw) in outputs.iter().zip(raw) {
        let values = output.values(answer, labels);
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
            tensor.contents =
                Some(TypedContents { fp32_contents: values.collect(), ..TypedContents::default() });
        }
        reply.outputs.push(tensor);
    }
    Ok(reply.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, content.len() as u8], content].concat()
    }

    #[test]
    fn a_glance_sees_priority_and_value_before_the_inputs_and_harms_nothing() {
        let parameter =
            |name: &str, value: Vec<u8>| field(4, &[field(1, name.as_bytes()), field(2, &value)].concat());
        let double = |value: f64| [&[4 << 3 | 1][..], &value.to_le_bytes()].concat();
        let value = parameter("value", double(2.5));
        let whole = [
            field(1, b"ctr"),
            field(3, b"q7"),
            parameter("value", double(-1.0)),
            value.clone(),
            parameter("priority", vec![2 << 3, 3]),
            parameter("deadline_ms", vec![2 << 3, 9]),
            field(5, b"an input"),
            parameter("value", double(7.0)),
        ]
        .concat();
        let first = [&[0; PREFIX_BYTES][..], &whole].concat();
        let seen = glance(&first, Wishes::default());
        assert_eq!((seen.priority, seen.value, seen.deadline_us), (3, Some(2.5), None));
        let given = Wishes { priority: 1, ..Wishes::default() };
        for length in 0..first.len() {
            let seen = glance(&first[..length], given);
            assert!([1, 3].contains(&seen.priority) && [None, Some(2.5)].contains(&seen.value), "{length}");
        }
        assert_eq!(glance(&[255; 64], given), given);
    }
}
