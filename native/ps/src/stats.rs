//! Figures of a server: what was asked and answered, how long it took, and how close its bounds are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::refusal::Code;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Who is there.
    Hello,
    /// Rows.
    Pull,
    /// What rows are to learn.
    Push,
    /// Something for whoever embeds the server.
    Order,
    /// A sign of life.
    Ping,
}

/// Upper bounds of the buckets of latencies, in microseconds; one more bucket is for what took longer.
pub const BUCKETS_US: [u64; 16] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

const VERBS: usize = 5;
const CODES: usize = Code::ALL.len();

/// What was asked by one verb.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VerbStats {
    /// Requests that were answered, refusals included.
    pub requests: u64,
    /// Those that were refused.
    pub errors: u64,
    /// Rows that were read or learned.
    pub rows: u64,
    /// Bytes of payloads that came.
    pub bytes_in: u64,
    /// Bytes of frames that went.
    pub bytes_out: u64,
    /// From a whole request to the last byte of its answer.
    pub seconds: f64,
    /// Requests by how long they took, as `BUCKETS_US` bounds them.
    pub buckets: [u64; BUCKETS_US.len() + 1],
}

/// Figures since the server started.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// By verb: hello, pull, push, order, ping.
    pub verbs: [VerbStats; VERBS],
    /// Connections open now.
    pub connections: usize,
    /// The most there may be.
    pub connections_max: usize,
    /// Orders that wait or are not answered yet.
    pub orders: usize,
    /// The most there may be.
    pub orders_max: usize,
    /// Bytes of payloads that are being taken in or worked on.
    pub in_flight_bytes: usize,
    /// The most there may be.
    pub in_flight_bytes_max: usize,
    /// Clients that pushed in this epoch.
    pub clients: usize,
    /// The most there may be.
    pub clients_max: usize,
    /// Pushes that had been applied before and were only answered again.
    pub duplicates: u64,
    /// Connections there were.
    pub accepted: u64,
    /// Refusals by code, in the order of `Code::ALL`.
    pub refusals: [u64; CODES],
}

impl Stats {
    /// The figures of a verb.
    pub fn verb(&self, verb: Verb) -> &VerbStats {
        &self.verbs[verb as usize]
    }

    /// How often something was refused for a reason.
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

/// What one request came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub rows: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub is_error: bool,
}

/// What counts.
#[derive(Default)]
pub struct Meter {
    verbs: [VerbMeter; VERBS],
    refusals: [AtomicU64; CODES],
    pub duplicates: AtomicU64,
    pub accepted: AtomicU64,
}

impl Meter {
    /// Count one request.
    pub fn count(&self, verb: Verb, took: Duration, tally: Tally) {
        let meter = &self.verbs[verb as usize];
        let took_us = took.as_micros() as u64;
        let bucket = BUCKETS_US.partition_point(|&bound| bound < took_us);
        for (number, by) in [
            (&meter.requests, 1),
            (&meter.errors, tally.is_error.into()),
            (&meter.rows, tally.rows),
            (&meter.bytes_in, tally.bytes_in),
            (&meter.bytes_out, tally.bytes_out),
            (&meter.nanoseconds, took.as_nanos() as u64),
            (&meter.buckets[bucket], 1),
        ] {
            number.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Count a refusal.
    pub fn refuse(&self, code: Code) {
        self.refusals[code as usize - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted.
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
