//! A call: a caller that waits, and what has come for it. Once it has ended nothing comes any more.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::error::PsError;
use crate::message::SliceHead;

/// What has come for one block of a call.
#[derive(Debug)]
pub enum Event {
    /// A slice of rows, whose block begins behind the head; the last one says so.
    Rows {
        /// The block.
        block: u32,
        /// What the slice says of itself.
        head: SliceHead,
        /// The slice, its head included.
        payload: Vec<u8>,
        /// Whether it is the last.
        is_last: bool,
    },
    /// The answer to anything else.
    Done {
        /// The block.
        block: u32,
        /// The answer.
        payload: Vec<u8>,
    },
    /// It was refused or lost.
    Failed {
        /// The block.
        block: u32,
        /// Why.
        error: PsError,
    },
}

#[derive(Default)]
struct CallState {
    events: VecDeque<Event>,
    is_over: bool,
}

/// One call of one caller.
#[derive(Default)]
pub struct Call {
    state: Mutex<CallState>,
    ready: Condvar,
}

impl Call {
    /// A call for which nothing has come.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Something has come.
    pub fn give(&self, event: Event) {
        let mut state = self.state.lock().expect("no holder panics");
        if !state.is_over {
            state.events.push_back(event);
            drop(state);
            self.ready.notify_one();
        }
    }

    /// The next thing that comes before the deadline.
    pub fn wait(&self, deadline: Instant) -> Option<Event> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.ready.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Nobody waits any more.
    pub fn end(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        state.is_over = true;
        state.events.clear();
    }
}
