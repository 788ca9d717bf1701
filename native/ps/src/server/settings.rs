//! Settings of a server: where it listens, who may come, what it is of a model, and its bounds.

use std::ops::Range;

use streamlearn_table::PARTS;
use streamlearn_trust::{Secret, TlsFiles};

/// What a server is of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub count: u32,
    /// The parts it has.
    pub parts: Range<usize>,
    /// The model.
    pub model: String,
    /// Of the tables' specification.
    pub fingerprint: [u8; 32],
    /// The specification itself, which whoever means other tables is told to find the difference by; opaque here.
    pub specification: Vec<u8>,
}

/// Where a server listens, and who may come.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// `host:port`, where port 0 is any, or `unix:/path`.
    pub listen: Vec<String>,
    /// What peers must say; must be there when another machine can reach an address.
    pub token: Option<Secret>,
    /// What makes connections private; those by unix sockets are so anyway.
    pub tls: Option<TlsFiles>,
    /// Threads that work, each on connections of its own.
    pub threads: usize,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of a server. Every one is met by refusing or closing, as each says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload; a larger one is refused and its connection closed.
    pub frame_bytes_max: u32,
    /// Connections at once. For one more the oldest without a hello is closed; where all have said one, it is closed itself.
    pub connections_max: usize,
    /// How long a peer may take to say who it is; then it is closed.
    pub hello_wait_ms_max: u64,
    /// How long a peer may be silent between requests; then it is closed.
    pub idle_ms_max: u32,
    /// How long a request may take to arrive whole; then its connection is closed.
    pub frame_wait_ms_max: u64,
    /// How long a reply may be taken no byte of; then its connection is closed.
    pub write_wait_ms_max: u64,
    /// Bytes of requests taken in or worked on; others wait unread.
    pub in_flight_bytes_max: usize,
    /// How long a request waits for room among them; then it is refused as busy and its connection closed.
    pub in_flight_wait_ms_max: u64,
    /// Orders that wait or are not answered; one more is refused as busy.
    pub orders_max: usize,
    /// Clients that pushed in one epoch; a push of one more is refused.
    pub clients_max: usize,
    /// Sequences taken ahead of the first that is missing, a client; a push further ahead is refused.
    pub window_max: u32,
    /// How long a peer that says a wrong token waits for its refusal.
    pub token_wait_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes_max: 64 << 20,
            connections_max: 1024,
            hello_wait_ms_max: 5_000,
            idle_ms_max: 60_000,
            frame_wait_ms_max: 30_000,
            write_wait_ms_max: 10_000,
            in_flight_bytes_max: 256 << 20,
            in_flight_wait_ms_max: 1_000,
            orders_max: 64,
            clients_max: 256,
            window_max: 1024,
            token_wait_ms: 100,
        }
    }
}

impl ServerSettings {
    /// Whether they can be.
    pub(super) fn check(&self, shard: &Shard) -> Result<(), String> {
        let (parts, limits) = (&shard.parts, &self.limits);
        if shard.number >= shard.count {
            return Err(format!("shard {} of {}: numbers begin with 0", shard.number, shard.count));
        }
        if parts.is_empty() || parts.end > PARTS {
            return Err(format!("parts [{}, {}) of {PARTS}", parts.start, parts.end));
        }
        if shard.model.is_empty() || shard.model.len() > 255 {
            return Err(format!("a model's name of {} bytes: 1 to 255", shard.model.len()));
        }
        if self.listen.is_empty() {
            return Err("no address to listen at".to_owned());
        }
        if !(1..=256).contains(&self.threads) {
            return Err(format!("threads is {}: 1 to 256", self.threads));
        }
        if (limits.frame_bytes_max as usize) < super::connection::HELLO_BYTES_MAX as usize
            || limits.in_flight_bytes_max >> 10 <= limits.frame_bytes_max as usize >> 10
            || limits.in_flight_bytes_max >> 10 > u32::MAX as usize
        {
            return Err(format!(
                "frame_bytes_max is {} and in_flight_bytes_max {}: at least {}, and more than that",
                limits.frame_bytes_max,
                limits.in_flight_bytes_max,
                super::connection::HELLO_BYTES_MAX
            ));
        }
        Ok(())
    }
}
