//! Notes: refused and closed connections with the reason, for the log of the embedding process. Notes never
//! contain a token.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The maximum number of notes that wait; further ones are only counted, so that a peer cannot fill the log
/// or memory.
const NOTES_MAX: usize = 8;

/// One refused connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The peer's address.
    pub peer: String,
    /// The reason.
    pub text: String,
}

#[derive(Default)]
struct NotesState {
    notes: VecDeque<Note>,
    left_out: u64,
}

/// The notes not yet taken.
#[derive(Default)]
pub struct Notes {
    state: Mutex<NotesState>,
    added: Condvar,
}

impl Notes {
    /// Adds a note.
    pub fn add(&self, peer: &str, text: String) {
        let mut state = self.state.lock().expect("no holder panics");
        if state.notes.len() == NOTES_MAX {
            state.left_out += 1;
            return;
        }
        state.notes.push_back(Note { peer: peer.to_owned(), text });
        self.added.notify_one();
    }

    /// Waits for notes, and returns them with the number of notes that were dropped.
    pub fn take(&self, wait: Duration) -> (Vec<Note>, u64) {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock().expect("no holder panics");
        while state.notes.is_empty() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return (Vec::new(), 0);
            }
            state = self.added.wait_timeout(state, remaining).expect("no holder panics").0;
        }
        (state.notes.drain(..).collect(), std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_notes_some_are_kept_and_the_others_counted() {
        let notes = Notes::default();
        assert_eq!(notes.take(Duration::ZERO), (vec![], 0));
        for number in 0..20 {
            notes.add("here", format!("{number}"));
        }
        let (kept, left_out) = notes.take(Duration::from_secs(20));
        assert_eq!((kept.len(), left_out, kept[7].text.as_str()), (8, 12, "7"));
        notes.add("there", "again".to_owned());
        assert_eq!(notes.take(Duration::ZERO).0.len(), 1);
    }
}
