//! Plain decoding: decodes an answered request again, with plain values instead of keys.

use bytes::Bytes;

use super::input_names::Naming;
use super::wishes::CallerOptions;
use super::{infer, json, rows};
use crate::answer::Refusal;
use crate::request::Request;

/// The format of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFormat {
    /// A gRPC message.
    Grpc,
    /// JSON with tensors: its length, if raw numbers follow it.
    Tensors(Option<usize>),
    /// JSON with rows.
    Rows,
}

/// Decodes a request's bytes with `naming`.
///
/// # Errors
/// If it does not match the model, which never happens for bytes that were answered.
pub fn read(format: RequestFormat, bytes: &[u8], naming: &Naming) -> Result<Request, Refusal> {
    match format {
        RequestFormat::Grpc => {
            infer::decode(bytes, naming, CallerOptions::default()).map(|(request, _)| request)
        }
        RequestFormat::Tensors(json_bytes) => {
            let (json, raw) = json::parts(bytes, json_bytes)?;
            json::decode(json, raw, naming, "", CallerOptions::default()).map(|(request, _)| request)
        }
        RequestFormat::Rows => {
            let rows::ParsedRows { id, sides, options, .. } =
                rows::decode(bytes, naming, CallerOptions::default())?;
            Ok(infer::request(naming, Bytes::from(id), sides, options))
        }
    }
}
