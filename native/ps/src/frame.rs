//! The frame: a header, a payload and the payload's checksum. The header's own checksum is verified before
//! any field is used. Knows no payload.

use std::fmt;

use streamlearn_wire::checksum::crc32c;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Bytes of the checksum after a payload.
pub const CHECK_BYTES: usize = 4;
/// The first bytes of every frame.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SLPS");
/// Flag: a reply.
pub const REPLY: u16 = 1;
/// Flag: more frames of this reply follow.
pub const MORE: u16 = 2;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The handshake.
    Hello = 1,
    /// A request for rows.
    Pull = 2,
    /// Gradients for rows.
    Push = 3,
    /// An order for the process that embeds the shard.
    Order = 4,
    /// A keepalive.
    Ping = 5,
    /// A refusal; it can answer any request.
    Error = 6,
    /// Gradients of one slice of a step, for rows.
    PushPart = 7,
    /// A slice's dense numbers, for the sum over all slices of a step.
    Reduce = 8,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind.
    pub kind: Kind,
    /// `REPLY` and `MORE`.
    pub flags: u16,
    /// The number of the request, also in its replies; 0 if there is none.
    pub request: u64,
    /// Bytes of the payload, without its checksum.
    pub payload_bytes: u32,
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The first bytes are not `MAGIC`.
    Magic(u32),
    /// The header's checksum does not match.
    HeaderCheck {
        /// The checksum in the header.
        stated: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// The kind is unknown.
    Kind(u16),
    /// A flag is unknown.
    Flags(u16),
    /// The payload is larger than the limit.
    Large {
        /// The size in the header.
        payload_bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
    /// The payload's checksum does not match.
    PayloadCheck {
        /// The checksum in the frame.
        stated: u32,
        /// The computed checksum.
        computed: u32,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(f, "a frame begins with {magic:#010x}, not {MAGIC:#010x}"),
            Self::HeaderCheck { stated, computed } => {
                write!(f, "the header's checksum is {computed:#010x}, the frame states {stated:#010x}")
            }
            Self::Kind(kind) => write!(f, "unknown kind {kind}"),
            Self::Flags(flags) => write!(f, "unknown flags {flags:#06x}"),
            Self::Large { payload_bytes, bytes_max } => {
                write!(f, "a payload of {payload_bytes} bytes: at most {bytes_max}")
            }
            Self::PayloadCheck { stated, computed } => {
                write!(f, "the payload's checksum is {computed:#010x}, the frame states {stated:#010x}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

fn kind_of(number: u16) -> Option<Kind> {
    use Kind::{Error, Hello, Order, Ping, Pull, Push, PushPart, Reduce};
    [Hello, Pull, Push, Order, Ping, Error, PushPart, Reduce].into_iter().find(|&kind| kind as u16 == number)
}

impl Header {
    /// Encodes the header.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.request.to_le_bytes());
        let check = crc32c(0, &bytes[..20]);
        bytes[20..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if u32_at(0) != MAGIC {
            return Err(FrameError::Magic(u32_at(0)));
        }
        let (stated, computed) = (u32_at(20), crc32c(0, &bytes[..20]));
        if stated != computed {
            return Err(FrameError::HeaderCheck { stated, computed });
        }
        let (kind, flags) = (u16_at(8), u16_at(10));
        let kind = kind_of(kind).ok_or(FrameError::Kind(kind))?;
        if flags & !(REPLY | MORE) != 0 {
            return Err(FrameError::Flags(flags));
        }
        let request = u64::from_le_bytes(bytes[12..20].try_into().expect("8 bytes"));
        Ok(Self { kind, flags, request, payload_bytes: u32_at(4) })
    }
}

/// Starts a frame in the buffer: leaves room for the header.
pub fn begin(frame: &mut Vec<u8>) {
    frame.clear();
    frame.resize(HEADER_BYTES, 0);
}

/// Completes a frame: fills in its header and appends the payload's checksum.
pub fn finish(frame: &mut Vec<u8>, kind: Kind, flags: u16, request: u64) {
    let check = crc32c(0, &frame[HEADER_BYTES..]);
    let payload_bytes = (frame.len() - HEADER_BYTES) as u32;
    frame[..HEADER_BYTES].copy_from_slice(&Header { kind, flags, request, payload_bytes }.to_bytes());
    frame.extend_from_slice(&check.to_le_bytes());
}

/// Changes the request number of a complete frame.
pub fn readdress(frame: &mut [u8], request: u64) {
    let head = frame.first_chunk_mut::<HEADER_BYTES>().expect("a frame has a header");
    let header = Header::parse(head).expect("the frame is finished");
    *head = Header { request, ..header }.to_bytes();
}

/// Builds a complete frame.
pub fn encode(kind: Kind, flags: u16, request: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECK_BYTES);
    begin(&mut frame);
    frame.extend_from_slice(payload);
    finish(&mut frame, kind, flags, request);
    frame
}
