//! Plain: a request that was answered, read once more, with the values themselves where there were their keys.

use bytes::Bytes;

use super::input_names::Naming;
use super::wishes::Said;
use super::{infer, json, rows};
use crate::answer::Refusal;
use crate::request::Request;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// As a message of gRPC.
    Grpc,
    /// As tensors in JSON of so many bytes, with numbers end to end behind it; of all bytes where it is not said.
    Tensors(Option<usize>),
    /// As rows in JSON.
    Rows,
}

/// Read a request's bytes; what it becomes is as `naming` says.
///
/// # Errors
/// When it is not what the model takes, which bytes that were answered never are.
pub fn read(came: Came, bytes: &[u8], naming: &Naming) -> Result<Request, Refusal> {
    match came {
        Came::Grpc => infer::decode(bytes, naming, Said::default()).map(|(request, _)| request),
        Came::Tensors(json_bytes) => {
            let (json, raw) = json::parts(bytes, json_bytes)?;
            json::decode(json, raw, naming, "").map(|(request, _)| request)
        }
        Came::Rows => {
            let rows::Asked { id, sides, said, .. } = rows::decode(bytes, naming)?;
            Ok(infer::request(naming, Bytes::from(id), sides, said))
        }
    }
}
