//! Traffic: counters of connections, bytes and requests at a door. Knows no request.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::distribution::{Distributed, Distribution};

/// The upper bound of the first bucket of durations, in microseconds.
const TIME_US_LEAST: u64 = 10;

/// The protocol of a connection.
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

    /// Returns the protocol's ALPN name.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::Grpc => b"h2",
            Self::Http => b"http/1.1",
        }
    }

    /// Returns the protocol's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }

    /// The status of a request whose caller has gone.
    fn gone(self) -> u16 {
        match self {
            Self::Grpc => 1,
            Self::Http => 499,
        }
    }
}

/// The names of the gRPC statuses, in the order of their numbers.
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
];

/// The key by which requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The protocol.
    pub protocol: Protocol,
    /// Whether the request asks for scores; others ask about the node.
    pub is_scored: bool,
    status: u16,
}

impl Kind {
    /// Returns the status of the answer, as the protocol names it.
    pub fn status(&self) -> String {
        match self.protocol {
            Protocol::Grpc => STATUSES.get(usize::from(self.status)).copied().unwrap_or("UNKNOWN").to_owned(),
            Protocol::Http => self.status.to_string(),
        }
    }
}

/// Counters of one protocol.
#[derive(Debug, Default)]
struct ProtocolCounts {
    connections: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// Counters since the door was created.
#[derive(Debug)]
pub struct Traffic {
    lines: [ProtocolCounts; 2],
    answers: Mutex<BTreeMap<Kind, u64>>,
    decoding: Distribution,
}

impl Default for Traffic {
    fn default() -> Self {
        let decoding = Distribution::new(TIME_US_LEAST);
        Self { lines: Default::default(), answers: Mutex::default(), decoding }
    }
}

/// A request that is counted when it is dropped.
pub struct Counting<'a> {
    traffic: &'a Traffic,
    kind: Kind,
}

impl Counting<'_> {
    /// Sets the status of its answer.
    pub fn answered(mut self, status: u16) {
        self.kind.status = status;
    }

    /// Marks it as a request for scores.
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
    /// Counts a connection.
    pub(super) fn connected(&self, protocol: Protocol) {
        self.lines[protocol as usize].connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts received bytes.
    pub(super) fn received(&self, protocol: Protocol, bytes: usize) {
        self.lines[protocol as usize].received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts sent bytes.
    pub(super) fn sent(&self, protocol: Protocol, bytes: usize) {
        self.lines[protocol as usize].sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Starts counting a request.
    pub(super) fn request(&self, protocol: Protocol) -> Counting<'_> {
        Counting { traffic: self, kind: Kind { protocol, is_scored: false, status: protocol.gone() } }
    }

    /// Records the time since `began`, in which a request was decoded or refused.
    pub(super) fn decoded(&self, began: Instant) {
        self.decoding.add(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the numbers of finished requests.
    pub fn answers(&self) -> BTreeMap<Kind, u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the connections, received bytes and sent bytes of a protocol.
    pub fn lines(&self, protocol: Protocol) -> (u64, u64, u64) {
        let ProtocolCounts { connections, received_bytes, sent_bytes } = &self.lines[protocol as usize];
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(connections), read(received_bytes), read(sent_bytes))
    }

    /// Returns how long decoding took, in microseconds.
    pub fn decoding(&self) -> Distributed {
        self.decoding.read()
    }
}
