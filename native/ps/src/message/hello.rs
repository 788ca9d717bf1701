//! Hello: the handshake, with a client's identity and a shard's identity and limits.

use std::ops::Range;

use super::fields::{Fields, append_epoch};
use crate::epoch::Epoch;
use crate::refusal::{Code, Refusal};

/// The version of this protocol.
pub const PROTOCOL: u16 = 3;

const READS_ONLY: u16 = 1;

/// A client's first message.
#[derive(Clone, PartialEq, Eq)]
pub struct HelloAsk<'a> {
    /// The model that the client expects.
    pub model: &'a str,
    /// The fingerprint of the tables that it expects.
    pub fingerprint: [u8; 32],
    /// The client's id, under which its pushes are counted.
    pub client: u128,
    /// Whether the client only reads: it uses the shard's epoch, and may change nothing.
    pub reads_only: bool,
    /// The client's epoch, if it has one.
    pub epoch: Option<Epoch>,
    /// The access token; empty if none is required.
    pub token: &'a [u8],
}

/// A shard's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloReply {
    /// The shard's number.
    pub number: u32,
    /// The number of shards.
    pub count: u32,
    /// The shard's range of parts.
    pub parts: Range<u32>,
    /// The shard's epoch; `None` while it has no tables.
    pub epoch: Option<Epoch>,
    /// The largest payload that it accepts.
    pub frame_bytes_max: u32,
    /// How many sequences it accepts, from the first missing one on.
    pub window_max: u32,
    /// How long a client may be silent, in milliseconds.
    pub idle_ms_max: u32,
    /// The dim of each table; empty while it has no tables.
    pub dims: Vec<u32>,
}

impl HelloAsk<'_> {
    /// Encodes the payload.
    pub fn to_payload(&self) -> Vec<u8> {
        let mut payload = PROTOCOL.to_le_bytes().to_vec();
        payload.extend_from_slice(&(if self.reads_only { READS_ONLY } else { 0 }).to_le_bytes());
        payload.extend_from_slice(&(self.model.len() as u16).to_le_bytes());
        payload.extend_from_slice(self.model.as_bytes());
        payload.extend_from_slice(&self.fingerprint);
        payload.extend_from_slice(&self.client.to_le_bytes());
        append_epoch(&mut payload, self.epoch);
        payload.extend_from_slice(&(self.token.len() as u16).to_le_bytes());
        payload.extend_from_slice(self.token);
        payload
    }
}

/// Checks the version first, because other versions may encode the remaining fields differently.
fn same_protocol(fields: &mut Fields<'_>, sender: &str, receiver: &str) -> Result<(), Refusal> {
    let protocol = fields.u16()?;
    if protocol == PROTOCOL {
        return Ok(());
    }
    let text = format!("the {sender} uses protocol {protocol}, the {receiver} {PROTOCOL}");
    Err(Refusal::new(Code::WrongProtocol, text))
}

impl<'a> HelloAsk<'a> {
    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a hello", payload);
        same_protocol(&mut fields, "client", "shard")?;
        let flags = fields.u16()?;
        if flags & !READS_ONLY != 0 {
            return Err(fields.bad(format!("unknown flags {flags:#06x}; only {READS_ONLY:#06x} is defined")));
        }
        let model = std::str::from_utf8(fields.short_bytes()?)
            .map_err(|error| fields.bad(format!("the model's name is not valid UTF-8: {error}")))?;
        let (fingerprint, client) = (fields.bytes32()?, fields.u128()?);
        let (epoch, token) = (fields.optional_epoch()?, fields.short_bytes()?);
        fields.end()?;
        Ok(Self { model, fingerprint, client, reads_only: flags == READS_ONLY, epoch, token })
    }
}

impl HelloReply {
    /// Encodes the payload.
    pub fn to_payload(&self) -> Vec<u8> {
        let mut payload = PROTOCOL.to_le_bytes().to_vec();
        payload.extend_from_slice(&(self.dims.len() as u16).to_le_bytes());
        for number in [self.number, self.count, self.parts.start, self.parts.end] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        append_epoch(&mut payload, self.epoch);
        for number in [self.frame_bytes_max, self.window_max, self.idle_ms_max].iter().chain(&self.dims) {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload
    }

    /// Decodes a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a hello's reply", payload);
        same_protocol(&mut fields, "shard", "client")?;
        let tables = fields.u16()?;
        let (number, count, parts) = (fields.u32()?, fields.u32()?, fields.u32()?..fields.u32()?);
        let epoch = fields.optional_epoch()?;
        let (frame_bytes_max, window_max, idle_ms_max) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let dims = (0..tables).map(|_| fields.u32()).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(Self { number, count, parts, epoch, frame_bytes_max, window_max, idle_ms_max, dims })
    }
}
