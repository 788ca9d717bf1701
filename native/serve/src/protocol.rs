//! What a caller says and hears: the Open Inference Protocol by gRPC, and HTTP with JSON. It knows no table and no model.

mod arriving;
mod codec;
mod columns;
mod connections;
mod describe;
mod door;
mod elements;
mod fields;
mod fuzz;
mod grpc;
mod http;
mod infer;
mod json;
mod messages;
mod naming;
mod outputs;
mod rows;
mod scalars;
mod scoring;
mod secret;
mod status;
mod tensor;
mod tls;
mod wishes;

pub use door::{Door, DoorLimits, DoorSettings, DoorStats};
pub use fuzz::{check, every_kind, fuzz};
pub use grpc::serve_grpc;
pub use http::serve_http;
pub use infer::{Form, decode, encode};
pub use naming::Naming;
pub use scoring::{Scoring, Span, State, Statistics};
pub use secret::Secret;
pub use tls::TlsFiles;
pub use wishes::Said;
