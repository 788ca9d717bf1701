//! Settings of a client: the shards' addresses, its identity and its limits.

use std::path::PathBuf;

use streamlearn_trust::Token;

use crate::address::Address;
use crate::numbers::Encoding;

/// Shards send slices of rows of up to 256 KiB.
const FRAME_BYTES_MIN: u32 = 1 << 20;

/// The trust settings of a client: which certificates it accepts.
#[derive(Debug, Clone)]
pub struct TlsTrust {
    /// Certificates of the authority, in PEM.
    pub ca: PathBuf,
    /// The host name the shards' certificates must match.
    pub server_name: String,
}

/// The purpose of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It pulls, pushes and sends orders, in the epoch that is set.
    Trains,
    /// It pulls at the shards' current epoch, and changes nothing.
    Reads,
    /// It sends orders that change nothing; the shards need not cover all parts.
    Asks,
}

/// The settings of a client.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Shard i at index i.
    pub addresses: Vec<String>,
    /// Its purpose.
    pub role: Role,
    /// The client's id: its pushes are counted under it, so every client needs its own.
    pub client: u128,
    /// The model.
    pub model: String,
    /// The fingerprint of the tables' specification.
    pub fingerprint: [u8; 32],
    /// The dim of each table.
    pub dims: Vec<usize>,
    /// The access token sent to the shards.
    pub token: Option<Token>,
    /// TLS settings, for TCP addresses.
    pub tls: Option<TlsTrust>,
    /// The encoding of rows and gradients.
    pub encoding: Encoding,
    /// The seed of the jitter between connection attempts.
    pub seed: u64,
    /// Bounds.
    pub limits: ClientLimits,
}

/// Limits of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// The timeout of one attempt to connect and shake hands.
    pub connect_wait_ms_max: u64,
    /// How long a shard that owes an answer may be silent before the connection counts as lost.
    pub reply_wait_ms_max: u64,
    /// The timeout of a call, with all attempts.
    pub retry_wait_ms_max: u64,
    /// The wait before the first retry; it doubles with each retry.
    pub backoff_first_ms: u64,
    /// The longest wait between retries.
    pub backoff_ms_max: u64,
    /// Unanswered blocks of one call at one shard; further blocks wait.
    pub in_flight_max: usize,
    /// Concurrent calls; further calls wait.
    pub calls_max: usize,
    /// Keys of a pulled block; fewer if a frame cannot hold as many.
    pub pull_block_keys: usize,
    /// Keys of a pushed block; fewer if a frame cannot hold as many.
    pub push_block_keys: usize,
    /// The largest payload accepted.
    pub frame_bytes_max: u32,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connect_wait_ms_max: 5_000,
            reply_wait_ms_max: 10_000,
            retry_wait_ms_max: 60_000,
            backoff_first_ms: 10,
            backoff_ms_max: 2_000,
            in_flight_max: 4,
            calls_max: 64,
            pull_block_keys: 16_384,
            push_block_keys: 8_192,
            frame_bytes_max: 64 << 20,
        }
    }
}

impl ClientSettings {
    /// Checks the values.
    pub(super) fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        if self.addresses.is_empty() {
            return Err("the list of shard addresses is empty".to_owned());
        }
        self.addresses.iter().try_for_each(|address| Address::parse(address).map(drop))?;
        if self.model.is_empty() || self.model.len() > 255 {
            return Err(format!("the model's name has {} bytes: 1 to 255", self.model.len()));
        }
        if self.dims.is_empty() || self.dims.contains(&0) || self.dims.len() > usize::from(u16::MAX) {
            return Err(format!("dims are {:?}: each at least 1", self.dims));
        }
        for (name, value, value_max) in [
            ("in_flight_max", limits.in_flight_max, 64),
            ("calls_max", limits.calls_max, 1 << 16),
            ("pull_block_keys", limits.pull_block_keys, 1 << 20),
            ("push_block_keys", limits.push_block_keys, 1 << 20),
        ] {
            if !(1..=value_max).contains(&value) {
                return Err(format!("{name} is {value}: 1 to {value_max}"));
            }
        }
        if limits.frame_bytes_max < FRAME_BYTES_MIN {
            return Err(format!("frame_bytes_max is {}: at least {FRAME_BYTES_MIN}", limits.frame_bytes_max));
        }
        if limits.backoff_first_ms == 0 || limits.backoff_first_ms > limits.backoff_ms_max {
            let (first, backoff_max) = (limits.backoff_first_ms, limits.backoff_ms_max);
            return Err(format!("backoff_first_ms is {first}: 1 to backoff_ms_max, {backoff_max}"));
        }
        Ok(())
    }
}
