//! Messages of the Open Inference Protocol, with their names and field numbers. Fast decoding and the content
//! are elsewhere.

use prost::Message;

/// Datatype numbers in a model configuration.
const DATA_TYPES: [(&str, i32); 4] = [("INT32", 8), ("INT64", 9), ("FP32", 11), ("BYTES", 13)];

/// Returns a datatype's number in a model configuration.
pub fn data_type(name: &str) -> i32 {
    DATA_TYPES.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number)
}

/// Serializes a datatype for JSON, where texts are "TYPE_STRING".
fn data_type_name<S: serde::Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
    let known = DATA_TYPES.iter().find(|(_, known)| known == number);
    let name = known.map_or("INVALID", |(name, _)| if *name == "BYTES" { "STRING" } else { name });
    to.collect_str(&format_args!("TYPE_{name}"))
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $at:ident: $type:ty,)* })*) => {
        $($(#[$doc])* #[derive(Clone, PartialEq, Message)] pub struct $name { $($(#[$field])* pub $at: $type,)* })*
    };
}

messages! {
    /// A boolean reply: of ServerLive, ServerReady and ModelReady.
    Is {
        /// The value.
        #[prost(bool, tag = "1")] is: bool,
    }
    /// A model and an optional version: of ModelReady, ModelMetadata, ModelConfig and ModelStatistics.
    Which {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version; empty for any.
        #[prost(string, tag = "2")] version: String,
    }
    /// A description of the server.
    ServerMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// Its software version.
        #[prost(string, tag = "2")] version: String,
        /// Supported protocol extensions.
        #[prost(string, repeated, tag = "3")] extensions: Vec<String>,
    }
    /// The datatype and shape of a tensor.
    TensorMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The type of its elements.
        #[prost(string, tag = "2")] datatype: String,
        /// Its shape; -1 is any number.
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
    }
    /// A model's inputs and outputs.
    ModelMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// Versions that can be pinned.
        #[prost(string, repeated, tag = "2")] versions: Vec<String>,
        /// The platform.
        #[prost(string, tag = "3")] platform: String,
        /// The inputs.
        #[prost(message, repeated, tag = "4")] inputs: Vec<TensorMetadata>,
        /// The outputs.
        #[prost(message, repeated, tag = "5")] outputs: Vec<TensorMetadata>,
    }
    /// An input in a model's configuration.
    #[derive(serde::Serialize)]
    ConfigInput {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The number of its datatype.
        #[prost(int32, tag = "2")]
        #[serde(serialize_with = "data_type_name")]
        data_type: i32,
        /// Its shape; -1 is any number.
        #[prost(int64, repeated, tag = "4")] dims: Vec<i64>,
        /// Whether it is optional.
        #[prost(bool, tag = "8")] optional: bool,
    }
    /// An output in a model's configuration.
    #[derive(serde::Serialize)]
    ConfigOutput {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The number of its datatype.
        #[prost(int32, tag = "2")]
        #[serde(serialize_with = "data_type_name")]
        data_type: i32,
        /// Its shape; -1 is any number.
        #[prost(int64, repeated, tag = "3")] dims: Vec<i64>,
    }
    /// A list of versions.
    #[derive(serde::Serialize)]
    SpecificVersions {
        /// The versions.
        #[prost(int64, repeated, tag = "1")] versions: Vec<i64>,
    }
    /// The versions that are served.
    #[derive(serde::Serialize)]
    VersionPolicy {
        /// The versions, listed.
        #[prost(message, optional, tag = "3")] specific: Option<SpecificVersions>,
    }
    /// A text in a model's configuration.
    #[derive(serde::Serialize)]
    ConfigText {
        /// The text.
        #[prost(string, tag = "1")] string_value: String,
    }
    /// A model's configuration.
    #[derive(serde::Serialize)]
    ModelConfig {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The platform.
        #[prost(string, tag = "2")] platform: String,
        /// Versions that can be pinned.
        #[prost(message, optional, tag = "3")] version_policy: Option<VersionPolicy>,
        /// 0, because candidates are a dimension of the tensors.
        #[prost(int32, tag = "4")] max_batch_size: i32,
        /// The inputs.
        #[prost(message, repeated, tag = "5")] input: Vec<ConfigInput>,
        /// The outputs.
        #[prost(message, repeated, tag = "6")] output: Vec<ConfigOutput>,
        /// Further facts by name.
        #[prost(btree_map = "string, message", tag = "14")]
        parameters: std::collections::BTreeMap<String, ConfigText>,
        /// The backend.
        #[prost(string, tag = "17")] backend: String,
    }
    /// A reply with a configuration.
    ModelConfigReply {
        /// The configuration.
        #[prost(message, optional, tag = "1")] config: Option<ModelConfig>,
    }
    /// The request of RepositoryIndex.
    IndexAsk {
        /// The repository; empty for all.
        #[prost(string, tag = "1")] repository_name: String,
        /// Whether to list only ready versions.
        #[prost(bool, tag = "2")] ready: bool,
    }
    /// One version of a model.
    #[derive(serde::Serialize)]
    ModelIndex {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version.
        #[prost(string, tag = "2")] version: String,
        /// READY or UNAVAILABLE.
        #[prost(string, tag = "3")] state: String,
        /// Additional information.
        #[prost(string, tag = "4")] reason: String,
    }
    /// All versions.
    Index {
        /// The versions.
        #[prost(message, repeated, tag = "1")] models: Vec<ModelIndex>,
    }
    /// A count with a total duration.
    #[derive(serde::Serialize)]
    Duration {
        /// The count.
        #[prost(uint64, tag = "1")] count: u64,
        /// The total in nanoseconds.
        #[prost(uint64, tag = "2")] ns: u64,
    }
    /// The durations of the stages of requests.
    #[derive(serde::Serialize)]
    InferStatistics {
        /// Answered requests.
        #[prost(message, optional, tag = "1")] success: Option<Duration>,
        /// Refused requests.
        #[prost(message, optional, tag = "2")] fail: Option<Duration>,
        /// Waiting for a lane.
        #[prost(message, optional, tag = "3")] queue: Option<Duration>,
        /// Gathering the model's inputs.
        #[prost(message, optional, tag = "4")] compute_input: Option<Duration>,
        /// Executing the model.
        #[prost(message, optional, tag = "5")] compute_infer: Option<Duration>,
        /// Handing out the outputs.
        #[prost(message, optional, tag = "6")] compute_output: Option<Duration>,
    }
    /// Statistics of one version.
    #[derive(serde::Serialize)]
    VersionStatistics {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version.
        #[prost(string, tag = "2")] version: String,
        /// The time of its last answer, in milliseconds since 1970.
        #[prost(uint64, tag = "3")] last_inference: u64,
        /// Scored candidates.
        #[prost(uint64, tag = "4")] inference_count: u64,
        /// Executions.
        #[prost(uint64, tag = "5")] execution_count: u64,
        /// The durations of the stages.
        #[prost(message, optional, tag = "6")] inference_stats: Option<InferStatistics>,
    }
    /// Statistics of all versions.
    #[derive(serde::Serialize)]
    ModelStatistics {
        /// The versions.
        #[prost(message, repeated, tag = "1")] model_stats: Vec<VersionStatistics>,
    }
    /// An output's values, unless they are raw.
    TypedContents {
        /// The integers.
        #[prost(int64, repeated, tag = "3")] int64_contents: Vec<i64>,
        /// The numbers.
        #[prost(float, repeated, tag = "6")] fp32_contents: Vec<f32>,
        /// The texts.
        #[prost(bytes = "bytes", repeated, tag = "8")] bytes_contents: Vec<bytes::Bytes>,
    }
    /// An output.
    OutputTensor {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The type of its elements.
        #[prost(string, tag = "2")] datatype: String,
        /// Its shape.
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
        /// The numbers, unless they are raw.
        #[prost(message, optional, tag = "5")] contents: Option<TypedContents>,
    }
    /// A parameter of a reply.
    ReplyParameter {
        /// The number, if it is one.
        #[prost(int64, optional, tag = "2")] int64_param: Option<i64>,
        /// The text, if it is one.
        #[prost(string, optional, tag = "3")] string_param: Option<String>,
    }
    /// An answer.
    ModelInferReply {
        /// The model.
        #[prost(string, tag = "1")] model_name: String,
        /// The version that answered.
        #[prost(string, tag = "2")] model_version: String,
        /// The request's id.
        #[prost(string, tag = "3")] id: String,
        /// The reply's parameters.
        #[prost(btree_map = "string, message", tag = "4")]
        parameters: std::collections::BTreeMap<String, ReplyParameter>,
        /// The outputs.
        #[prost(message, repeated, tag = "5")] outputs: Vec<OutputTensor>,
        /// The outputs' raw numbers.
        #[prost(bytes = "bytes", repeated, tag = "6")] raw_output_contents: Vec<bytes::Bytes>,
    }
}
