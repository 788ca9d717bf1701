//! The frame: a header that is checked before anything else is believed, a payload, and the payload's checksum.
//! Knows no payload.

use std::fmt;

use streamlearn_wire::checksum::crc32c;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Bytes of the checksum behind a payload.
pub const CHECK_BYTES: usize = 4;
/// What every frame begins with.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SLPS");
/// Flag: this answers a request.
pub const REPLY: u16 = 1;
/// Flag: more frames of this reply come.
pub const MORE: u16 = 2;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Who is there.
    Hello = 1,
    /// Rows of keys.
    Pull = 2,
    /// What rows are to learn.
    Push = 3,
    /// Something for whoever embeds the shard.
    Order = 4,
    /// A sign of life.
    Ping = 5,
    /// A refusal, in reply to any.
    Error = 6,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// `REPLY` and `MORE`.
    pub flags: u16,
    /// The request it is or answers; 0 where there is none.
    pub request: u64,
    /// Bytes of the payload, its checksum apart.
    pub payload_bytes: u32,
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// It begins otherwise.
    Magic(u32),
    /// The header's checksum is another.
    HeaderCheck {
        /// What it says.
        said: u32,
        /// What it is.
        is: u32,
    },
    /// There is no such kind.
    Kind(u16),
    /// There are no such flags.
    Flags(u16),
    /// The payload is larger than is allowed.
    Large {
        /// What the header says.
        payload_bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
    /// The payload's checksum is another.
    PayloadCheck {
        /// What it says.
        said: u32,
        /// What it is.
        is: u32,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(f, "a frame begins with {magic:#010x}, not {MAGIC:#010x}"),
            Self::HeaderCheck { said, is } => {
                write!(f, "a header's checksum is {is:#010x}, it says {said:#010x}")
            }
            Self::Kind(kind) => write!(f, "unknown kind {kind}"),
            Self::Flags(flags) => write!(f, "unknown flags {flags:#06x}"),
            Self::Large { payload_bytes, bytes_max } => {
                write!(f, "a payload of {payload_bytes} bytes: at most {bytes_max}")
            }
            Self::PayloadCheck { said, is } => {
                write!(f, "a payload's checksum is {is:#010x}, it says {said:#010x}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

fn kind_of(number: u16) -> Option<Kind> {
    let kinds = [Kind::Hello, Kind::Pull, Kind::Push, Kind::Order, Kind::Ping, Kind::Error];
    kinds.into_iter().find(|&kind| kind as u16 == number)
}

impl Header {
    /// The bytes of the header.
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

    /// The header that bytes are, if they are one.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if u32_at(0) != MAGIC {
            return Err(FrameError::Magic(u32_at(0)));
        }
        let (said, is) = (u32_at(20), crc32c(0, &bytes[..20]));
        if said != is {
            return Err(FrameError::HeaderCheck { said, is });
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

/// Where a frame begins to be written: room for its header.
pub fn begin(frame: &mut Vec<u8>) {
    frame.clear();
    frame.resize(HEADER_BYTES, 0);
}

/// Write a frame's header and its payload's checksum around the payload.
pub fn finish(frame: &mut Vec<u8>, kind: Kind, flags: u16, request: u64) {
    let check = crc32c(0, &frame[HEADER_BYTES..]);
    let payload_bytes = (frame.len() - HEADER_BYTES) as u32;
    frame[..HEADER_BYTES].copy_from_slice(&Header { kind, flags, request, payload_bytes }.to_bytes());
    frame.extend_from_slice(&check.to_le_bytes());
}

/// Give a frame that is finished another request number.
pub fn readdress(frame: &mut [u8], request: u64) {
    let head = frame.first_chunk_mut::<HEADER_BYTES>().expect("a frame has a header");
    let header = Header::parse(head).expect("the frame is finished");
    *head = Header { request, ..header }.to_bytes();
}

/// A whole frame.
pub fn whole(kind: Kind, flags: u16, request: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECK_BYTES);
    begin(&mut frame);
    frame.extend_from_slice(payload);
    finish(&mut frame, kind, flags, request);
    frame
}
