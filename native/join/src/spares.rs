//! Spares: memory of slices that were dropped, kept for the next ones. Memory that is new costs more than the join of
//! what is written to it, for the system hands it out page by page.

use crate::slice::Slice;

/// The part of all that is held that spares may be.
const SHARE: u64 = 16;

/// Empty columns and payloads.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    slice: Option<Slice>,
    payload: Option<Vec<u8>>,
}

impl Spares {
    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        let payload = self.payload.as_ref().map_or(0, Vec::capacity) as u64;
        self.slice.as_ref().map_or(0, Slice::bytes) + payload
    }

    /// A slice that begins at a time, in memory that was used before where there is some.
    pub fn slice(&mut self, start_ms: i64) -> Slice {
        let mut slice = self.slice.take().unwrap_or_default();
        if let Some(payload) = self.payload.take().filter(|it| it.capacity() > slice.payload.capacity()) {
            slice.payload = payload;
        }
        slice.start_ms = start_ms;
        slice
    }

    /// Keep the memory of a slice that was dropped, if there is none and it is little of what is held.
    pub fn keep(&mut self, mut slice: Slice, held: u64) {
        if self.slice.is_none() && slice.bytes() <= held / SHARE {
            slice.clear();
            self.slice = Some(slice);
        }
    }

    /// Keep the memory of payloads that were let go of, likewise.
    pub fn keep_payload(&mut self, payload: Vec<u8>, held: u64) {
        if self.payload.is_none() && payload.capacity() as u64 <= held / SHARE {
            self.payload = Some(payload);
        }
    }

    /// Let go of what has become much of what is held.
    pub fn trim(&mut self, held: u64) {
        if self.bytes() > 2 * held / SHARE {
            *self = Self::default();
        }
    }
}
