//! Notes: who was not let in or was put out, and why, for a log that whoever embeds the server keeps. Never a token.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Notes that wait to be taken; of more only the number is known, so that nobody fills a log or memory.
const NOTES_MAX: usize = 8;

/// What happened to one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where it came from.
    pub peer: String,
    /// Why it was refused.
    pub text: String,
}

#[derive(Default)]
struct NotesState {
    notes: VecDeque<Note>,
    left_out: u64,
}

/// Notes nobody has taken yet.
#[derive(Default)]
pub struct Notes {
    state: Mutex<NotesState>,
    noted: Condvar,
}

impl Notes {
    /// Note one connection.
    pub fn add(&self, peer: &str, text: String) {
        let mut state = self.state.lock().expect("no holder panics");
        if state.notes.len() == NOTES_MAX {
            state.left_out += 1;
            return;
        }
        state.notes.push_back(Note { peer: peer.to_owned(), text });
        self.noted.notify_one();
    }

    /// Take the notes there are, once there are some or the wait is over, and how many more there were.
    pub fn take(&self, wait: Duration) -> (Vec<Note>, u64) {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock().expect("no holder panics");
        while state.notes.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (Vec::new(), 0);
            }
            state = self.noted.wait_timeout(state, left).expect("no holder panics").0;
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
