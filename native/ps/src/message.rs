//! Messages: the payloads of frames. Checks only their format.

mod fields;
mod hello;
mod part;
mod pull;
mod push;
mod reduce;

pub use hello::{HelloAsk, HelloReply, PROTOCOL};
pub use part::{PartAsk, PartHead, SLICES_MAX};
pub use pull::{PullAsk, SliceHead};
pub use push::{Columns, PushAsk, PushReply};
pub use reduce::{ReduceAsk, ReduceHead, ReduceReply};

pub(crate) use part::{PART_HEAD_BYTES, check_slice};
pub(crate) use pull::{PULL_HEAD_BYTES, SLICE_HEAD_BYTES};
pub(crate) use push::PUSH_HEAD_BYTES;
pub(crate) use reduce::REDUCE_HEAD_BYTES;

use fields::{Fields, append_epoch};

use crate::epoch::Epoch;
use crate::refusal::{Code, DETAIL_BYTES_MAX, Refusal};

/// Encodes an order: the sender's epoch and a body.
pub fn order_payload(epoch: Option<Epoch>, body: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(16 + body.len());
    append_epoch(&mut payload, epoch);
    payload.extend_from_slice(body);
    payload
}

/// Decodes the epoch and body of an order.
pub fn order_of(payload: &[u8]) -> Result<(Option<Epoch>, &[u8]), Refusal> {
    let mut fields = Fields::new("an order", payload);
    Ok((fields.optional_epoch()?, fields.rest()))
}

/// Encodes a refusal.
pub fn refusal_payload(refusal: &Refusal) -> Vec<u8> {
    let mut payload = Vec::with_capacity(4 + refusal.text.len() + refusal.detail.len());
    payload.extend_from_slice(&(refusal.code as u16).to_le_bytes());
    payload.extend_from_slice(&(refusal.text.len() as u16).to_le_bytes());
    payload.extend_from_slice(refusal.text.as_bytes());
    payload.extend_from_slice(&refusal.detail);
    payload
}

/// Decodes a refusal; an invalid payload yields a refusal that describes the error.
pub fn refusal_of(payload: &[u8]) -> Refusal {
    let read = || -> Result<Refusal, Refusal> {
        let mut fields = Fields::new("an error", payload);
        let (code, text, detail) = (fields.u16()?, fields.short_bytes()?, fields.rest());
        if detail.len() > DETAIL_BYTES_MAX {
            return Err(fields.bad(format!("{} bytes of detail: at most {DETAIL_BYTES_MAX}", detail.len())));
        }
        let code = Code::from_number(code)
            .ok_or_else(|| Refusal::new(Code::BadFrame, format!("unknown error code {code}")))?;
        Ok(Refusal::new(code, String::from_utf8_lossy(text)).with_detail(detail.to_vec()))
    };
    read().unwrap_or_else(|refusal| refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_these_bytes_and_comes_back() {
        let refusal = Refusal::new(Code::WrongTables, "no").with_detail(b"[1]".to_vec());
        let payload = refusal_payload(&refusal);
        assert_eq!(payload, b"\x06\x00\x02\x00no[1]");
        assert_eq!(refusal_of(&payload), refusal);
        assert_eq!(refusal_of(&payload[..6]), Refusal::new(Code::WrongTables, "no"));
        assert_eq!(refusal_of(&payload[..5]).code, Code::BadRequest);
        let long = [&payload[..], &[0; DETAIL_BYTES_MAX]].concat();
        assert!(refusal_of(&long).text.contains("bytes of detail"));
    }
}
