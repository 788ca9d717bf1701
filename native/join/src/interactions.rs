//! Interactions: what users did with items and were shown, said as soon as an event meets its impression.
//!
//! Rows wait for their labels; interactions do not. They leave with the next `take`.

use crate::core::JoinCore;
use crate::index::At;
use crate::outcome::Done;
use crate::slice::DEAD;
use streamlearn_wire::keys::{key_of_bytes, slot_salt};

/// The kind of an interaction that is the impression itself; others have the code of their action.
pub const IMPRESSION: u8 = u8::MAX;

/// Which interactions a join makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Makes {
    /// None.
    Nothing,
    /// One for each action on an item.
    Actions,
    /// And one for each item that is shown.
    All,
}

/// An interaction that waits to be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interaction {
    pub at: At,
    /// Position of the item in its impression.
    pub position: u32,
    /// Whether the payload has to be read back by origin.
    pub reads_back: bool,
    pub done: Done,
    pub identity: u64,
}

/// The identity of an interaction: the same in every run, and for every copy of its events. `hash` is the request's.
/// Where every action of a kind counts, they differ by time and number.
fn identity_of(hash: u64, item: u64, done: Done, counts_all: bool) -> u64 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&hash.to_le_bytes());
    bytes[8..16].copy_from_slice(&item.to_le_bytes());
    bytes[16] = done.code;
    if counts_all {
        bytes[20..28].copy_from_slice(&done.time.to_le_bytes());
        bytes[28..].copy_from_slice(&done.number.unwrap_or(f32::NAN).to_bits().to_le_bytes());
    }
    key_of_bytes(&bytes, slot_salt("streamlearn.interactions"))
}

impl JoinCore {
    /// Makes an interaction of an action on an item.
    pub(crate) fn interact(&mut self, at: At, position: usize, done: Done) {
        if self.rules.settings.makes == Makes::Nothing {
            return;
        }
        let window_min = self.rules.window_min;
        let slice = self.slices.shelf.get_mut(at.slice);
        let item = slice.items[slice.items_at(at.place).start + position];
        let is_over = self.watermark > slice.time(at.place) + window_min;
        let reads_back = is_over || !slice.has_payload(at.place);
        slice.ready += 1;
        slice.ready_payload += u64::from(!reads_back);
        let hash = self.place_hash(at);
        let identity = identity_of(hash, item, done, self.rules.counts_all(done.code));
        let made = Interaction { at, position: position as u32, reads_back, done, identity };
        self.out.counters.interactions += 1;
        self.out.interactions.push_back(made);
    }

    /// Makes an interaction of each item that counts for an impression.
    pub(crate) fn show(&mut self, at: At) {
        if self.rules.settings.makes != Makes::All {
            return;
        }
        let slice = self.slices.shelf.get(at.slice);
        let time = slice.time(at.place);
        for (position, item) in slice.items_at(at.place).enumerate() {
            if self.slices.shelf.get(at.slice).heads[item] != DEAD {
                self.interact(at, position, Done { code: IMPRESSION, time, weight: 1.0, number: None });
            }
        }
    }

    fn place_hash(&self, at: At) -> u64 {
        key_of_bytes(self.slices.shelf.get(at.slice).id(at.place), crate::hash::place_salt())
    }
}
