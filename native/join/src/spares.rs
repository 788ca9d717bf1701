//! Spares: memory of dropped slices, kept for the next ones. New memory costs more than the join of the data
//! written to it, since the kernel hands it out page by page.

use crate::slice::Slice;

/// Spares may take 1 / SHARE of the memory in use.
const SHARE: u64 = 16;

/// Empty columns and payloads.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    slice: Option<Slice>,
    payload: Option<Vec<u8>>,
}

impl Spares {
    /// Bytes of the spares.
    pub fn bytes(&self) -> u64 {
        let payload = self.payload.as_ref().map_or(0, Vec::capacity) as u64;
        self.slice.as_ref().map_or(0, Slice::bytes) + payload
    }

    /// A slice that starts at `start_ms`, in spare memory if available; else with room for as much as the slice before
    /// it has, if that is a small share of the memory in use: growing step by step would copy each event several times.
    pub fn slice(&mut self, start_ms: i64, before: Option<&Slice>, held: u64) -> Slice {
        let mut slice = self.slice.take().unwrap_or_default();
        if let Some(payload) = self.payload.take().filter(|spare| spare.capacity() > slice.payload.capacity())
        {
            slice.payload = payload;
        }
        if let Some(before) = before.filter(|before| before.bytes() <= held / SHARE) {
            slice.expect(before);
        }
        slice.start_ms = start_ms;
        slice
    }

    /// Keeps the memory of a dropped slice if none is kept yet and it is a small share of the memory in use.
    pub fn keep(&mut self, mut slice: Slice, held: u64) {
        if self.slice.is_none() && slice.bytes() <= held / SHARE {
            slice.clear();
            self.slice = Some(slice);
        }
    }

    /// Keeps the memory of dropped payloads under the same conditions.
    pub fn keep_payload(&mut self, payload: Vec<u8>, held: u64) {
        if self.payload.is_none() && payload.capacity() as u64 <= held / SHARE {
            self.payload = Some(payload);
        }
    }

    /// Drops spares that have become a large share of the memory in use.
    pub fn trim(&mut self, held: u64) {
        if self.bytes() > 2 * held / SHARE {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SHARE, Spares};
    use crate::slice::Slice;

    #[test]
    fn a_slice_has_room_for_what_the_one_before_has_if_that_is_a_small_share() {
        let before = Slice { times: vec![0; 800], payload: vec![0; 8_000], ..Slice::default() };
        let (mut spares, held) = (Spares::default(), before.bytes() * SHARE);
        let slice = spares.slice(7, Some(&before), held);
        assert_eq!((slice.start_ms, slice.len()), (7, 0));
        assert!(slice.times.capacity() >= 900 && slice.payload.capacity() >= 9_000);
        assert_eq!(spares.slice(7, Some(&before), held - 1).times.capacity(), 0);
        assert_eq!(spares.slice(7, None, held).times.capacity(), 0);
    }
}
