//! Requests as gRPC clients encode them: messages by their field numbers, with both encodings of tensors.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Choice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint(u64),
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")]
    pub choice: Option<Choice>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub floats: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub doubles: Vec<f64>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub texts: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InputTensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputAsk {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub parameters: BTreeMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferAsk {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<InputTensor>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<OutputAsk>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub raw_input_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputTensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferReply {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<OutputTensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub raw_output_contents: Vec<Vec<u8>>,
}

/// The elements of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Uint32(Vec<u32>),
    Uint64(Vec<u64>),
    Fp32(Vec<f32>),
    Fp64(Vec<f64>),
    Bytes(Vec<Vec<u8>>),
}

impl Data {
    pub fn texts(texts: &[&str]) -> Self {
        Self::Bytes(texts.iter().map(|text| text.as_bytes().to_vec()).collect())
    }

    pub fn datatype(&self) -> &'static str {
        match self {
            Self::Int32(_) => "INT32",
            Self::Int64(_) => "INT64",
            Self::Uint32(_) => "UINT32",
            Self::Uint64(_) => "UINT64",
            Self::Fp32(_) => "FP32",
            Self::Fp64(_) => "FP64",
            Self::Bytes(_) => "BYTES",
        }
    }

    pub fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        match self.clone() {
            Self::Int32(values) => contents.ints = values,
            Self::Int64(values) => contents.int64s = values,
            Self::Uint32(values) => contents.uints = values,
            Self::Uint64(values) => contents.uint64s = values,
            Self::Fp32(values) => contents.floats = values,
            Self::Fp64(values) => contents.doubles = values,
            Self::Bytes(values) => contents.texts = values,
        }
        contents
    }

    pub fn raw(&self) -> Vec<u8> {
        match self {
            Self::Int32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Int64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Uint32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Uint64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Fp32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Fp64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Bytes(values) => values
                .iter()
                .flat_map(|value| [&(value.len() as u32).to_le_bytes()[..], value].concat())
                .collect(),
        }
    }
}

/// Inputs by name, each with a shape and elements.
pub type Inputs = Vec<(&'static str, Vec<i64>, Data)>;

/// The smallest valid request: a user and three candidates.
pub fn least() -> Inputs {
    vec![("user_id", vec![1], Data::Int64(vec![5])), ("item_id", vec![3], Data::Int64(vec![7, -8, i64::MAX]))]
}

/// The smallest request with another input.
pub fn with(name: &'static str, shape: &[i64], data: Data) -> Inputs {
    let mut inputs = least();
    inputs.push((name, shape.to_vec(), data));
    inputs
}

/// A request with inputs in either encoding.
pub fn ask(inputs: &Inputs, is_raw: bool) -> InferAsk {
    let tensor = |(name, shape, data): &(&'static str, Vec<i64>, Data)| InputTensor {
        name: (*name).to_owned(),
        datatype: data.datatype().to_owned(),
        shape: shape.clone(),
        parameters: BTreeMap::new(),
        contents: (!is_raw).then(|| data.contents()),
    };
    InferAsk {
        model_name: "ctr".to_owned(),
        inputs: inputs.iter().map(tensor).collect(),
        raw_input_contents: inputs.iter().filter(|_| is_raw).map(|(_, _, data)| data.raw()).collect(),
        ..InferAsk::default()
    }
}

/// The same request with a parameter.
pub fn with_parameter(mut ask: InferAsk, name: &str, choice: Choice) -> InferAsk {
    ask.parameters.insert(name.to_owned(), Parameter { choice: Some(choice) });
    ask
}

/// The same request with a requested output.
pub fn with_output(mut ask: InferAsk, name: &str) -> InferAsk {
    ask.outputs.push(OutputAsk { name: name.to_owned(), parameters: BTreeMap::new() });
    ask
}
