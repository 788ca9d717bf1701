//! The intake: turns arriving bytes into frames. Uses no field before its checksum is verified, and allocates
//! memory for received bytes, not for announced ones. Knows no socket.

use crate::frame::{CHECK_BYTES, FrameError, HEADER_BYTES, Header};
use streamlearn_wire::checksum::crc32c;

/// Bytes read ahead of a payload.
const AHEAD_BYTES: usize = 16 << 10;
/// The maximum memory allocated for a payload before any of it has arrived.
pub const FIRST_BYTES_MAX: usize = 1 << 20;

/// A frame with verified checksums.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// The header.
    pub header: Header,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The position within the current frame.
enum FramePosition {
    /// In the header.
    Header,
    /// After a header whose payload is not admitted yet.
    Claimed(Header),
    /// In the payload or its checksum.
    Payload(Header),
}

/// The frames of one peer's byte stream.
pub struct Intake {
    bytes_max: u32,
    position: FramePosition,
    /// Bytes read beyond the last payload, from `ahead_at` on.
    ahead: Vec<u8>,
    ahead_at: usize,
    payload: Vec<u8>,
    spare: Vec<u8>,
}

impl Intake {
    /// Creates an intake for payloads of at most `bytes_max`.
    pub fn new(bytes_max: u32) -> Self {
        let (ahead, payload, spare) = (Vec::with_capacity(AHEAD_BYTES), Vec::new(), Vec::new());
        Self { bytes_max, position: FramePosition::Header, ahead, ahead_at: 0, payload, spare }
    }

    /// Changes the payload limit from the next frame on.
    pub fn set_bytes_max(&mut self, bytes_max: u32) {
        self.bytes_max = bytes_max;
    }

    /// Whether no byte of a next frame has arrived.
    pub fn is_between(&self) -> bool {
        matches!(self.position, FramePosition::Header) && self.ahead_at == self.ahead.len()
    }

    /// Returns the payload size in the current header, while the payload is not admitted.
    pub fn claimed(&self) -> Option<u32> {
        match self.position {
            FramePosition::Claimed(header) => Some(header.payload_bytes),
            _ => None,
        }
    }

    /// Admits the announced payload.
    pub fn admit(&mut self) {
        let FramePosition::Claimed(header) = self.position else { return };
        let payload_and_check = header.payload_bytes as usize + CHECK_BYTES;
        self.payload = std::mem::take(&mut self.spare);
        self.payload.clear();
        self.payload.reserve(payload_and_check.min(FIRST_BYTES_MAX));
        self.position = FramePosition::Payload(header);
    }

    /// Provides a buffer for a later payload.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > self.spare.capacity() && buffer.capacity() <= 2 * FIRST_BYTES_MAX {
            self.spare = buffer;
        }
    }

    /// Whether a buffer for a later payload is available.
    pub fn has_spare(&self) -> bool {
        self.spare.capacity() > 0
    }

    /// Returns the next complete frame; `None` if more bytes are needed or a payload must be admitted.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        if let FramePosition::Header = self.position {
            let Some(head) = self.ahead[self.ahead_at..].first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = Header::parse(head)?;
            if header.payload_bytes > self.bytes_max {
                let (payload_bytes, bytes_max) = (header.payload_bytes, self.bytes_max);
                return Err(FrameError::Large { payload_bytes, bytes_max });
            }
            self.ahead_at += HEADER_BYTES;
            self.position = FramePosition::Claimed(header);
        }
        let FramePosition::Payload(header) = self.position else { return Ok(None) };
        let payload_and_check = header.payload_bytes as usize + CHECK_BYTES;
        let (wanted, ahead) = (payload_and_check - self.payload.len(), &self.ahead[self.ahead_at..]);
        let count = wanted.min(ahead.len());
        self.payload.extend_from_slice(&ahead[..count]);
        self.ahead_at += count;
        if self.payload.len() < payload_and_check {
            return Ok(None);
        }
        let mut payload = std::mem::take(&mut self.payload);
        let (content, check) = payload.split_at(payload_and_check - CHECK_BYTES);
        let stated = u32::from_le_bytes(check.try_into().expect("4 bytes"));
        let computed = crc32c(0, content);
        if stated != computed {
            return Err(FrameError::PayloadCheck { stated, computed });
        }
        payload.truncate(payload_and_check - CHECK_BYTES);
        self.position = FramePosition::Header;
        Ok(Some(Frame { header, payload }))
    }

    /// Returns the buffer for the next bytes, and how many to append at most. Call it after `take` has
    /// returned `None`.
    pub fn room(&mut self) -> (&mut Vec<u8>, usize) {
        let FramePosition::Payload(header) = self.position else {
            self.ahead.drain(..self.ahead_at);
            self.ahead_at = 0;
            let count = AHEAD_BYTES - self.ahead.len();
            return (&mut self.ahead, count);
        };
        let missing = header.payload_bytes as usize + CHECK_BYTES - self.payload.len();
        if self.payload.len() == self.payload.capacity() {
            // Grow by as much as has arrived.
            self.payload.reserve_exact(missing.min(self.payload.len().max(AHEAD_BYTES)));
        }
        let count = missing.min(self.payload.capacity() - self.payload.len());
        (&mut self.payload, count)
    }

    /// Feeds bytes as if they had been read, and returns how many were taken.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let (into, count) = self.room();
        let count = count.min(bytes.len());
        into.extend_from_slice(&bytes[..count]);
        count
    }

    /// Returns the bytes of memory in use.
    pub fn held_bytes(&self) -> usize {
        self.ahead.capacity() + self.payload.capacity() + self.spare.capacity()
    }
}
