//! Traffic: what came in at a door and what went out, as counts that only grow. It knows no request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::distribution::{Distributed, Distribution};

/// What the first bucket of times goes up to, in microseconds.
const TIME_US_LEAST: u64 = 10;

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// gRPC, on HTTP/2.
    Grpc,
    /// HTTP/1.1 with JSON.
    Http,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Grpc, Self::Http];

    /// What TLS calls it.
    pub fn spoken(self) -> &'static [u8] {
        match self {
            Self::Grpc => b"h2",
            Self::Http => b"http/1.1",
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }

    /// The status of a request whose caller went away.
    fn gone(self) -> u16 {
        match self {
            Self::Grpc => 1,
            Self::Http => 499,
        }
    }
}

/// Names of gRPC's statuses, by their numbers.
const STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]; // in the order of their numbers

/// Which requests are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// What they came by.
    pub protocol: Protocol,
    /// Whether they were to be scored; the others ask of the node.
    pub is_scored: bool,
    status: u16,
}

impl Kind {
    /// What their answer was, as their protocol says it.
    pub fn status(&self) -> String {
        match self.protocol {
            Protocol::Grpc => STATUSES.get(usize::from(self.status)).copied().unwrap_or("UNKNOWN").to_owned(),
            Protocol::Http => self.status.to_string(),
        }
    }
}

/// Counts of one protocol.
#[derive(Debug, Default)]
struct Lines {
    connections: AtomicU64,
    heard_bytes: AtomicU64,
    said_bytes: AtomicU64,
}

/// What came and went since the door was made.
#[derive(Debug)]
pub struct Traffic {
    lines: [Lines; 2],
    answers: Mutex<BTreeMap<Kind, u64>>,
    decoding: Distribution,
}

impl Default for Traffic {
    fn default() -> Self {
        let decoding = Distribution::new(TIME_US_LEAST);
        Self { lines: Default::default(), answers: Mutex::default(), decoding }
    }
}

/// A request that is to be counted when it ends, whichever way.
pub struct Counting<'a> {
    traffic: &'a Traffic,
    kind: Kind,
}

impl Counting<'_> {
    /// What it was answered with.
    pub fn answered(mut self, status: u16) {
        self.kind.status = status;
    }

    /// It is one that is to be scored.
    pub fn scored(&mut self) {
        self.kind.is_scored = true;
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        let mut answers = self.traffic.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(self.kind).or_default() += 1;
    }
}

impl Traffic {
    /// A connection came.
    pub(super) fn came(&self, protocol: Protocol) {
        self.lines[protocol as usize].connections.fetch_add(1, Ordering::Relaxed);
    }

    /// So many bytes came.
    pub(super) fn heard(&self, protocol: Protocol, bytes: usize) {
        self.lines[protocol as usize].heard_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes went.
    pub(super) fn said(&self, protocol: Protocol, bytes: usize) {
        self.lines[protocol as usize].said_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A request came.
    pub(super) fn request(&self, protocol: Protocol) -> Counting<'_> {
        Counting { traffic: self, kind: Kind { protocol, is_scored: false, status: protocol.gone() } }
    }

    /// A request was decoded, or found to be none, since `began`.
    pub(super) fn decoded(&self, began: Instant) {
        self.decoding.add(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// How many requests ended, by kind.
    pub fn answers(&self) -> BTreeMap<Kind, u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of a protocol: connections, bytes that came, bytes that went.
    pub fn lines(&self, protocol: Protocol) -> (u64, u64, u64) {
        let Lines { connections, heard_bytes, said_bytes } = &self.lines[protocol as usize];
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(connections), read(heard_bytes), read(said_bytes))
    }

    /// How long decoding took, in microseconds.
    pub fn decoding(&self) -> Distributed {
        self.decoding.read()
    }
}
