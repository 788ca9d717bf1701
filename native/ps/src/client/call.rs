//! A call: a waiting caller and the events that arrive for it. Events that arrive after its end are dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use crate::error::PsError;
use crate::message::SliceHead;

/// An event for one block of a call.
#[derive(Debug)]
pub enum Event {
    /// A slice of rows.
    Rows {
        /// The block.
        block: u32,
        /// The slice's head.
        head: SliceHead,
        /// The payload, head included.
        payload: Vec<u8>,
        /// Whether this slice completes the block.
        is_last: bool,
    },
    /// The answer to a push or an order.
    Done {
        /// The block.
        block: u32,
        /// The answer.
        payload: Vec<u8>,
    },
    /// The request was refused or lost.
    Failed {
        /// The block.
        block: u32,
        /// The reason.
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
    /// Returns a call without events.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an event and wakes the caller, unless the call has ended.
    pub fn give(&self, event: Event) {
        let mut state = self.state.lock().expect("no holder panics");
        if !state.is_over {
            state.events.push_back(event);
            drop(state);
            self.ready.notify_one();
        }
    }

    /// Returns the next event, or `None` at the deadline.
    pub fn wait(&self, deadline: Instant) -> Option<Event> {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return None;
            }
            state = self.ready.wait_timeout(state, remaining).expect("no holder panics").0;
        }
    }

    /// Ends the call and drops its events.
    pub fn end(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        state.is_over = true;
        state.events.clear();
    }
}
