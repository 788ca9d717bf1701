//! Settings of a server: its addresses, access control, shard and limits.

use std::ops::Range;

use streamlearn_table::PARTS;
use streamlearn_trust::{TlsFiles, Token};

/// The shard that a server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub number: u32,
    /// The number of shards.
    pub count: u32,
    /// Its range of parts.
    pub parts: Range<usize>,
    /// The model.
    pub model: String,
    /// The fingerprint of the tables' specification.
    pub fingerprint: [u8; 32],
    /// The specification itself. It is sent to clients that expect other tables, so that they can show the
    /// difference; opaque here.
    pub specification: Vec<u8>,
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// `host:port` (port 0 picks a free one) or `unix:/path`.
    pub listen: Vec<String>,
    /// The access token that clients must send; required if another machine can reach an address.
    pub token: Option<Token>,
    /// TLS files, for TCP connections.
    pub tls: Option<TlsFiles>,
    /// Worker threads, each with connections of its own.
    pub threads: usize,
    /// Bounds.
    pub limits: Limits,
}

/// Limits of a server. The server enforces each by refusing a request or closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload; a larger one is refused, and its connection closed.
    pub frame_bytes_max: u32,
    /// Concurrent connections. For a further one, the oldest connection without a hello is closed; if all
    /// have sent one, the new connection is closed.
    pub connections_max: usize,
    /// How long a peer may take for its hello; then it is closed.
    pub hello_wait_ms_max: u64,
    /// How long a peer may be silent between requests; then it is closed.
    pub idle_ms_max: u32,
    /// How long a request may take to arrive completely; then its connection is closed.
    pub frame_wait_ms_max: u64,
    /// How long a peer may accept no byte of a reply; then its connection is closed.
    pub write_wait_ms_max: u64,
    /// Bytes of requests being received or processed; further requests wait unread. And, counted apart, bytes held
    /// of steps that miss slices; a further slice is refused as full.
    pub in_flight_bytes_max: usize,
    /// How long a request waits for room within that limit; then it is refused as busy, and its connection
    /// closed.
    pub in_flight_wait_ms_max: u64,
    /// Orders that are queued or not answered; further ones are refused as busy.
    pub orders_max: usize,
    /// Clients that push in one epoch; a further client's push is refused.
    pub clients_max: usize,
    /// Sequences accepted for each client, from the first missing one on; later ones are refused.
    pub window_max: u32,
    /// How long the refusal of a wrong token is delayed.
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
    /// Checks the values.
    pub(super) fn check(&self, shard: &Shard) -> Result<(), String> {
        let (parts, limits) = (&shard.parts, &self.limits);
        if shard.number >= shard.count {
            return Err(format!("shard {} of {}: numbers start at 0", shard.number, shard.count));
        }
        if parts.is_empty() || parts.end > PARTS {
            return Err(format!("parts [{}, {}) of {PARTS}", parts.start, parts.end));
        }
        if shard.model.is_empty() || shard.model.len() > 255 {
            return Err(format!("the model's name has {} bytes: 1 to 255", shard.model.len()));
        }
        if self.listen.is_empty() {
            return Err("the list of listen addresses is empty".to_owned());
        }
        if !(1..=256).contains(&self.threads) {
            return Err(format!("threads is {}: 1 to 256", self.threads));
        }
        if (limits.frame_bytes_max as usize) < super::connection::HELLO_BYTES_MAX as usize
            || limits.in_flight_bytes_max >> 10 <= limits.frame_bytes_max as usize >> 10
            || limits.in_flight_bytes_max >> 10 > u32::MAX as usize
        {
            return Err(format!(
                "frame_bytes_max is {} and in_flight_bytes_max {}: the first must be at least {}, the second greater than the first",
                limits.frame_bytes_max,
                limits.in_flight_bytes_max,
                super::connection::HELLO_BYTES_MAX
            ));
        }
        Ok(())
    }
}
