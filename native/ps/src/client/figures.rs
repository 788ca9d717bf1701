//! Counters of a client: requests to each shard, their bytes and durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::frame::Kind;

/// Counters of one request kind, at one shard.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClientVerb {
    /// Requests, each counted once.
    pub requests: u64,
    /// Refused or lost requests.
    pub errors: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Bytes of frames sent, retries included.
    pub bytes_out: u64,
    /// Bytes of payloads received.
    pub bytes_in: u64,
    /// Sum of the times from a request to the last byte of its answer.
    pub seconds: f64,
}

/// Counters of one shard.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkStats {
    /// Pulls.
    pub pull: ClientVerb,
    /// Pushes.
    pub push: ClientVerb,
    /// Orders.
    pub order: ClientVerb,
    /// Pushes of slices.
    pub part: ClientVerb,
    /// Slices for dense sums, and requests for the sums.
    pub reduce: ClientVerb,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Requests that are queued or not answered.
    pub in_flight: usize,
}

/// Counters since the client was opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientStats {
    /// Shard i at index i.
    pub shards: Vec<LinkStats>,
}

#[derive(Default)]
struct CallMeter {
    requests: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The live counters of one shard.
#[derive(Default)]
pub struct LinkMeter {
    verbs: [CallMeter; 5],
    connects: AtomicU64,
    in_flight: AtomicU64,
}

fn add(number: &AtomicU64, by: u64) {
    number.fetch_add(by, Ordering::Relaxed);
}

impl LinkMeter {
    fn verb(&self, kind: Kind) -> Option<&CallMeter> {
        match kind {
            Kind::Pull => Some(&self.verbs[0]),
            Kind::Push => Some(&self.verbs[1]),
            Kind::Order => Some(&self.verbs[2]),
            Kind::PushPart => Some(&self.verbs[3]),
            Kind::Reduce => Some(&self.verbs[4]),
            Kind::Hello | Kind::Ping | Kind::Error => None,
        }
    }

    /// Counts a new connection.
    pub fn connect(&self) {
        add(&self.connects, 1);
    }

    /// Counts a request that was sent, or sent again.
    pub fn send(&self, kind: Kind, bytes: usize, is_again: bool) {
        let Some(verb) = self.verb(kind) else { return };
        add(&verb.bytes_out, bytes as u64);
        add(if is_again { &verb.retries } else { &verb.requests }, 1);
    }

    /// Counts the bytes of an answer.
    pub fn receive(&self, kind: Kind, bytes: usize) {
        self.verb(kind).inspect(|verb| add(&verb.bytes_in, bytes as u64));
    }

    /// Counts a finished request.
    pub fn end(&self, kind: Kind, took: Duration, is_error: bool) {
        let Some(verb) = self.verb(kind) else { return };
        add(&verb.nanoseconds, took.as_nanos() as u64);
        add(&verb.errors, is_error.into());
    }

    /// Sets the number of requests that are queued or not answered.
    pub fn set_in_flight(&self, requests: usize) {
        self.in_flight.store(requests as u64, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub fn stats(&self) -> LinkStats {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let verb = |at: usize| {
            let meter = &self.verbs[at];
            ClientVerb {
                requests: load(&meter.requests),
                errors: load(&meter.errors),
                retries: load(&meter.retries),
                bytes_out: load(&meter.bytes_out),
                bytes_in: load(&meter.bytes_in),
                seconds: load(&meter.nanoseconds) as f64 / 1e9,
            }
        };
        LinkStats {
            pull: verb(0),
            push: verb(1),
            order: verb(2),
            part: verb(3),
            reduce: verb(4),
            reconnects: load(&self.connects).saturating_sub(1),
            in_flight: load(&self.in_flight) as usize,
        }
    }
}
