//! The intake: bytes as they arrive, to frames. Believes nothing before its checksum, and takes memory for what has
//! arrived, never for what is only claimed. Knows no socket.

use crate::frame::{CHECK_BYTES, FrameError, HEADER_BYTES, Header};
use streamlearn_wire::checksum::crc32c;

/// Bytes read ahead of a payload.
const AHEAD_BYTES: usize = 16 << 10;
/// Memory taken for a payload before any of it has arrived, at most.
pub const FIRST_BYTES_MAX: usize = 1 << 20;

/// A frame that was checked.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its head.
    pub header: Header,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Where in a frame the bytes are.
enum WindowPlace {
    /// In a header.
    Header,
    /// Behind a header whose payload is not yet admitted.
    Claimed(Header),
    /// In a payload, or in its checksum.
    Payload(Header),
}

/// What the bytes of one peer come to.
pub struct Intake {
    bytes_max: u32,
    place: WindowPlace,
    /// What was read beyond the last payload, from `ahead_at` on.
    ahead: Vec<u8>,
    ahead_at: usize,
    payload: Vec<u8>,
    spare: Vec<u8>,
}

impl Intake {
    /// An intake of frames whose payloads are no larger than this.
    pub fn new(bytes_max: u32) -> Self {
        let (ahead, payload, spare) = (Vec::with_capacity(AHEAD_BYTES), Vec::new(), Vec::new());
        Self { bytes_max, place: WindowPlace::Header, ahead, ahead_at: 0, payload, spare }
    }

    /// Allow other payloads from the next frame on.
    pub fn set_bytes_max(&mut self, bytes_max: u32) {
        self.bytes_max = bytes_max;
    }

    /// Whether no byte of a next frame has arrived.
    pub fn is_between(&self) -> bool {
        matches!(self.place, WindowPlace::Header) && self.ahead_at == self.ahead.len()
    }

    /// What the header at hand claims for its payload, which must be admitted before any of it is taken in.
    pub fn claimed(&self) -> Option<u32> {
        match self.place {
            WindowPlace::Claimed(header) => Some(header.payload_bytes),
            _ => None,
        }
    }

    /// Admit the payload that was claimed.
    pub fn admit(&mut self) {
        let WindowPlace::Claimed(header) = self.place else { return };
        let whole = header.payload_bytes as usize + CHECK_BYTES;
        self.payload = std::mem::take(&mut self.spare);
        self.payload.clear();
        self.payload.reserve(whole.min(FIRST_BYTES_MAX));
        self.place = WindowPlace::Payload(header);
    }

    /// Give memory for a later payload.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.spare.capacity() && buffer.capacity() <= 2 * FIRST_BYTES_MAX {
            self.spare = buffer;
        }
    }

    /// Whether memory for a later payload is at hand.
    pub fn has_spare(&self) -> bool {
        self.spare.capacity() > 0
    }

    /// The next frame, if it is whole. None: more bytes are wanted, or a claim is to be admitted.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        if let WindowPlace::Header = self.place {
            let Some(head) = self.ahead[self.ahead_at..].first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = Header::parse(head)?;
            if header.payload_bytes > self.bytes_max {
                let (payload_bytes, bytes_max) = (header.payload_bytes, self.bytes_max);
                return Err(FrameError::Large { payload_bytes, bytes_max });
            }
            self.ahead_at += HEADER_BYTES;
            self.place = WindowPlace::Claimed(header);
        }
        let WindowPlace::Payload(header) = self.place else { return Ok(None) };
        let whole = header.payload_bytes as usize + CHECK_BYTES;
        let (wanted, ahead) = (whole - self.payload.len(), &self.ahead[self.ahead_at..]);
        let count = wanted.min(ahead.len());
        self.payload.extend_from_slice(&ahead[..count]);
        self.ahead_at += count;
        if self.payload.len() < whole {
            return Ok(None);
        }
        let mut payload = std::mem::take(&mut self.payload);
        let (content, check) = payload.split_at(whole - CHECK_BYTES);
        let said = u32::from_le_bytes(check.try_into().expect("4 bytes"));
        let is = crc32c(0, content);
        if said != is {
            return Err(FrameError::PayloadCheck { said, is });
        }
        payload.truncate(whole - CHECK_BYTES);
        self.place = WindowPlace::Header;
        Ok(Some(Frame { header, payload }))
    }

    /// Where the bytes that arrive next are to be appended, and how many at most. To be asked after `take` gave none.
    pub fn room(&mut self) -> (&mut Vec<u8>, usize) {
        let WindowPlace::Payload(header) = self.place else {
            self.ahead.drain(..self.ahead_at);
            self.ahead_at = 0;
            let count = AHEAD_BYTES - self.ahead.len();
            return (&mut self.ahead, count);
        };
        let left = header.payload_bytes as usize + CHECK_BYTES - self.payload.len();
        if self.payload.len() == self.payload.capacity() {
            // As much again as has arrived.
            self.payload.reserve_exact(left.min(self.payload.len().max(AHEAD_BYTES)));
        }
        let count = left.min(self.payload.capacity() - self.payload.len());
        (&mut self.payload, count)
    }

    /// Take bytes in, as if they had been read. Gives how many were taken.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let (into, count) = self.room();
        let count = count.min(bytes.len());
        into.extend_from_slice(&bytes[..count]);
        count
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        self.ahead.capacity() + self.payload.capacity() + self.spare.capacity()
    }
}
