//! Messages of the Open Inference Protocol, by their names and numbers there. What reads them fast, or fills them, is elsewhere.

use prost::Message;

/// Numbers of datatypes in a configuration.
const DATA_TYPES: [(&str, i32); 4] = [("INT32", 8), ("INT64", 9), ("FP32", 11), ("BYTES", 13)];

/// The number of a datatype in a configuration.
pub fn data_type(name: &str) -> i32 {
    DATA_TYPES.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number)
}

/// A datatype as JSON has it, where texts are "TYPE_STRING".
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
    /// Whether a node lives, or is ready: of ServerLive, ServerReady and ModelReady.
    Is {
        /// Whether it is.
        #[prost(bool, tag = "1")] is: bool,
    }
    /// Names a model, and perhaps a version of it: of ModelReady, ModelMetadata, ModelConfig and ModelStatistics.
    Which {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version; any by default.
        #[prost(string, tag = "2")] version: String,
    }
    /// What a server is.
    ServerMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// Its own version.
        #[prost(string, tag = "2")] version: String,
        /// What it does beyond the protocol.
        #[prost(string, repeated, tag = "3")] extensions: Vec<String>,
    }
    /// What a tensor must be, or is.
    TensorMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The type of its elements.
        #[prost(string, tag = "2")] datatype: String,
        /// Its shape; -1 is any number.
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
    }
    /// What a model takes and gives.
    ModelMetadata {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// Versions that can be asked for.
        #[prost(string, repeated, tag = "2")] versions: Vec<String>,
        /// What runs it.
        #[prost(string, tag = "3")] platform: String,
        /// What it takes.
        #[prost(message, repeated, tag = "4")] inputs: Vec<TensorMetadata>,
        /// What it gives.
        #[prost(message, repeated, tag = "5")] outputs: Vec<TensorMetadata>,
    }
    /// An input, as a model's configuration says it.
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
        /// Whether it may be left out.
        #[prost(bool, tag = "8")] optional: bool,
    }
    /// An output, as a model's configuration says it.
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
    /// Versions, each named.
    #[derive(serde::Serialize)]
    SpecificVersions {
        /// The versions.
        #[prost(int64, repeated, tag = "1")] versions: Vec<i64>,
    }
    /// Which versions there are.
    #[derive(serde::Serialize)]
    VersionPolicy {
        /// These.
        #[prost(message, optional, tag = "3")] specific: Option<SpecificVersions>,
    }
    /// A text of a model's configuration.
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
        /// What runs it.
        #[prost(string, tag = "2")] platform: String,
        /// Versions that can be asked for.
        #[prost(message, optional, tag = "3")] version_policy: Option<VersionPolicy>,
        /// 0, for a request's candidates are a dimension of its own.
        #[prost(int32, tag = "4")] max_batch_size: i32,
        /// What it takes.
        #[prost(message, repeated, tag = "5")] input: Vec<ConfigInput>,
        /// What it gives.
        #[prost(message, repeated, tag = "6")] output: Vec<ConfigOutput>,
        /// Other facts, by name.
        #[prost(btree_map = "string, message", tag = "14")]
        parameters: std::collections::BTreeMap<String, ConfigText>,
        /// What runs it.
        #[prost(string, tag = "17")] backend: String,
    }
    /// The reply that holds a configuration.
    ModelConfigReply {
        /// The configuration.
        #[prost(message, optional, tag = "1")] config: Option<ModelConfig>,
    }
    /// What RepositoryIndex asks.
    IndexAsk {
        /// Of which repository; of all by default.
        #[prost(string, tag = "1")] repository_name: String,
        /// Only what is ready.
        #[prost(bool, tag = "2")] ready: bool,
    }
    /// One version of a model.
    #[derive(serde::Serialize)]
    ModelIndex {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version.
        #[prost(string, tag = "2")] version: String,
        /// READY, or UNAVAILABLE.
        #[prost(string, tag = "3")] state: String,
        /// Why, or what else is to be known.
        #[prost(string, tag = "4")] reason: String,
    }
    /// All versions there are.
    Index {
        /// The versions.
        #[prost(message, repeated, tag = "1")] models: Vec<ModelIndex>,
    }
    /// How often something was done and how long it took together.
    #[derive(serde::Serialize)]
    Duration {
        /// How often.
        #[prost(uint64, tag = "1")] count: u64,
        /// How long.
        #[prost(uint64, tag = "2")] ns: u64,
    }
    /// Where the time of requests went.
    #[derive(serde::Serialize)]
    InferStatistics {
        /// Requests that were answered.
        #[prost(message, optional, tag = "1")] success: Option<Duration>,
        /// Requests that were not.
        #[prost(message, optional, tag = "2")] fail: Option<Duration>,
        /// Waiting.
        #[prost(message, optional, tag = "3")] queue: Option<Duration>,
        /// Gathering what the model takes.
        #[prost(message, optional, tag = "4")] compute_input: Option<Duration>,
        /// The model itself.
        #[prost(message, optional, tag = "5")] compute_infer: Option<Duration>,
        /// Handing out what it gave.
        #[prost(message, optional, tag = "6")] compute_output: Option<Duration>,
    }
    /// Figures of one version.
    #[derive(serde::Serialize)]
    VersionStatistics {
        /// The model.
        #[prost(string, tag = "1")] name: String,
        /// The version.
        #[prost(string, tag = "2")] version: String,
        /// When it last answered, in milliseconds since 1970.
        #[prost(uint64, tag = "3")] last_inference: u64,
        /// Candidates it scored.
        #[prost(uint64, tag = "4")] inference_count: u64,
        /// Executions that took.
        #[prost(uint64, tag = "5")] execution_count: u64,
        /// Where the time went.
        #[prost(message, optional, tag = "6")] inference_stats: Option<InferStatistics>,
    }
    /// Figures of all versions.
    #[derive(serde::Serialize)]
    ModelStatistics {
        /// The versions.
        #[prost(message, repeated, tag = "1")] model_stats: Vec<VersionStatistics>,
    }
    /// Numbers of an output, where they are not end to end.
    TypedContents {
        /// The numbers.
        #[prost(float, repeated, tag = "6")] fp32_contents: Vec<f32>,
    }
    /// An output.
    OutputTensor {
        /// Its name.
        #[prost(string, tag = "1")] name: String,
        /// The type of its elements.
        #[prost(string, tag = "2")] datatype: String,
        /// Its shape.
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
        /// Its numbers, where they are not end to end.
        #[prost(message, optional, tag = "5")] contents: Option<TypedContents>,
    }
    /// A whole number that is said beside outputs.
    ReplyParameter {
        /// The number.
        #[prost(int64, tag = "2")] int64_param: i64,
    }
    /// An answer.
    ModelInferReply {
        /// The model.
        #[prost(string, tag = "1")] model_name: String,
        /// The version that answered.
        #[prost(string, tag = "2")] model_version: String,
        /// The request's id.
        #[prost(string, tag = "3")] id: String,
        /// What is said beside the outputs.
        #[prost(btree_map = "string, message", tag = "4")]
        parameters: std::collections::BTreeMap<String, ReplyParameter>,
        /// The outputs.
        #[prost(message, repeated, tag = "5")] outputs: Vec<OutputTensor>,
        /// Their numbers end to end.
        #[prost(bytes = "bytes", repeated, tag = "6")] raw_output_contents: Vec<bytes::Bytes>,
    }
}
