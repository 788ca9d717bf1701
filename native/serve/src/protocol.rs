//! The protocols: the Open Inference Protocol over gRPC, and HTTP with JSON. Knows no table and no model.

mod activity;
mod body_deadline;
mod columns;
mod connections;
mod describe;
mod door;
mod fuzz;
mod grpc;
mod http;
mod infer;
mod input_names;
mod json;
mod json_body;
mod messages;
mod node_view;
mod outputs;
mod page_guard;
mod peer_bytes;
mod plain;
mod rows;
mod scorer;
mod status;
mod traffic;
mod values;
mod wishes;

/// Why a model cannot be loaded by a call.
const NO_LOADING: &str =
    "callers cannot load models; help: `streamlearn promote` and `rollback` choose the version";

pub(crate) use connections::Stream;
pub use door::{Door, DoorLimits, DoorSettings, DoorStats};
pub use fuzz::{check, every_kind, every_kind_for_items, every_kind_in_library, fuzz, fuzz_items};
pub use grpc::serve_grpc;
pub use http::serve_http;
pub use infer::{Form, decode, encode};
pub use input_names::Naming;
pub use outputs::item_answer::labels as item_labels;
pub use outputs::load_headers::LoadHeaders;
pub use plain::{RequestFormat, read};
pub use scorer::{Scoring, Span, State, Statistics, no_pieces, no_retrieval};
pub use streamlearn_trust::{Secret, TlsFiles, Token};
pub use traffic::{Kind, Protocol, Traffic};
pub(crate) use values::keys::Texts;
pub use wishes::CallerOptions;
