//! Statistics of a server: requests, their durations, and the use of its limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::refusal::Code;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The handshake.
    Hello,
    /// A request for rows.
    Pull,
    /// Gradients for rows.
    Push,
    /// An order for the embedding process.
    Order,
    /// A keepalive.
    Ping,
    /// Gradients of one slice of a step.
    Part,
    /// Dense numbers, for their sum over the slices of a step.
    Reduce,
}

/// Upper bounds of the latency buckets, in microseconds; one more bucket counts slower requests.
pub const BUCKETS_US: [u64; 16] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

const VERBS: usize = 7;
const CODES: usize = Code::ALL.len();

/// Counters of one request kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VerbStats {
    /// Answered requests, refusals included.
    pub requests: u64,
    /// Refused requests.
    pub errors: u64,
    /// Rows read or updated.
    pub rows: u64,
    /// Bytes of payloads received.
    pub bytes_in: u64,
    /// Bytes of frames sent.
    pub bytes_out: u64,
    /// Sum of the times from a complete request to the last byte of its answer.
    pub seconds: f64,
    /// Requests by duration, in the buckets of `BUCKETS_US`.
    pub buckets: [u64; BUCKETS_US.len() + 1],
}

/// Statistics since the server started.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// By kind: hello, pull, push, order, ping, part, reduce.
    pub verbs: [VerbStats; VERBS],
    /// Connections open now.
    pub connections: usize,
    /// The limit of connections.
    pub connections_max: usize,
    /// Orders that are queued or not answered.
    pub orders: usize,
    /// The limit of orders.
    pub orders_max: usize,
    /// Bytes of payloads that are being received or processed.
    pub in_flight_bytes: usize,
    /// The limit of these bytes.
    pub in_flight_bytes_max: usize,
    /// Clients that have pushed in this epoch.
    pub clients: usize,
    /// The limit of clients.
    pub clients_max: usize,
    /// Repeated pushes: they were already applied, and only the answer was sent again.
    pub duplicates: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Refusals by code, in the order of `Code::ALL`.
    pub refusals: [u64; CODES],
}

impl Stats {
    /// Returns the counters of a request kind.
    pub fn verb(&self, verb: Verb) -> &VerbStats {
        &self.verbs[verb as usize]
    }

    /// Returns the number of refusals with a code.
    pub fn refused(&self, code: Code) -> u64 {
        self.refusals[code as usize - 1]
    }
}

#[derive(Default)]
struct VerbMeter {
    requests: AtomicU64,
    errors: AtomicU64,
    rows: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
}

/// The counts of one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub rows: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub is_error: bool,
}

/// The live counters.
#[derive(Default)]
pub struct Meter {
    verbs: [VerbMeter; VERBS],
    refusals: [AtomicU64; CODES],
    pub duplicates: AtomicU64,
    pub accepted: AtomicU64,
}

impl Meter {
    /// Counts one request.
    pub fn count(&self, verb: Verb, took: Duration, tally: Tally) {
        let meter = &self.verbs[verb as usize];
        let took_us = took.as_micros() as u64;
        let bucket = BUCKETS_US.partition_point(|&bound| bound < took_us);
        for (number, amount) in [
            (&meter.requests, 1),
            (&meter.errors, tally.is_error.into()),
            (&meter.rows, tally.rows),
            (&meter.bytes_in, tally.bytes_in),
            (&meter.bytes_out, tally.bytes_out),
            (&meter.nanoseconds, took.as_nanos() as u64),
            (&meter.buckets[bucket], 1),
        ] {
            number.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Counts a refusal.
    pub fn refuse(&self, code: Code) {
        self.refusals[code as usize - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Stats {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stats {
            verbs: std::array::from_fn(|at| {
                let meter = &self.verbs[at];
                VerbStats {
                    requests: load(&meter.requests),
                    errors: load(&meter.errors),
                    rows: load(&meter.rows),
                    bytes_in: load(&meter.bytes_in),
                    bytes_out: load(&meter.bytes_out),
                    seconds: load(&meter.nanoseconds) as f64 / 1e9,
                    buckets: std::array::from_fn(|bucket| load(&meter.buckets[bucket])),
                }
            }),
            refusals: std::array::from_fn(|at| load(&self.refusals[at])),
            duplicates: load(&self.duplicates),
            accepted: load(&self.accepted),
            ..Stats::default()
        }
    }
}
