//! Settings of a client: where the shards are, who it is, and its bounds.

use std::path::PathBuf;

use streamlearn_trust::Secret;

use crate::address::Address;
use crate::numbers::Encoding;

/// Shards send slices of rows of up to 256 KiB.
const FRAME_BYTES_MIN: u32 = 1 << 20;

/// Whom a client trusts to be a shard.
#[derive(Debug, Clone)]
pub struct TlsTrust {
    /// Certificates of the authority, in PEM.
    pub ca: PathBuf,
    /// The name that shards' certificates are of.
    pub server_name: String,
}

/// What a client is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It pulls, pushes and gives orders, in the epoch that it is told.
    Trains,
    /// It pulls, in whatever epoch the shards stand at, and changes nothing.
    Reads,
    /// It gives orders that change nothing, to whichever shards there are.
    Asks,
}

/// Where the shards are, and who asks.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Shard i at i.
    pub addresses: Vec<String>,
    /// What it is for.
    pub role: Role,
    /// Itself: its pushes are counted under this, so no two clients may have the same.
    pub client: u128,
    /// The model.
    pub model: String,
    /// Of the tables' specification.
    pub fingerprint: [u8; 32],
    /// The dim of each table.
    pub dims: Vec<usize>,
    /// What shards are told to be let in.
    pub token: Option<Secret>,
    /// TLS, for addresses that are no unix sockets.
    pub tls: Option<TlsTrust>,
    /// How rows and gradients go.
    pub encoding: Encoding,
    /// Of chance: waits between attempts are spread by it.
    pub seed: u64,
    /// Bounds.
    pub limits: ClientLimits,
}

/// Bounds of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// How long one attempt to connect and say hello may take.
    pub connect_wait_ms_max: u64,
    /// How long a shard that owes an answer may be silent; then the connection counts as lost.
    pub reply_wait_ms_max: u64,
    /// The whole budget of a call, all attempts included; then it fails.
    pub retry_wait_ms_max: u64,
    /// The wait before the first new attempt; each next one waits twice as long.
    pub backoff_first_ms: u64,
    /// The longest such wait.
    pub backoff_ms_max: u64,
    /// Blocks of one call that one shard may have to answer at once; more wait for those.
    pub in_flight_max: usize,
    /// Calls at once; one more waits.
    pub calls_max: usize,
    /// Keys of a block that is pulled; fewer where more are more than a frame may have.
    pub pull_block_keys: usize,
    /// Keys of a block that is pushed; fewer where more are more than a frame may have.
    pub push_block_keys: usize,
    /// Largest payload taken.
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
    /// Whether they can be.
    pub(super) fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        if self.addresses.is_empty() {
            return Err("no address of a shard".to_owned());
        }
        self.addresses.iter().try_for_each(|address| Address::parse(address).map(drop))?;
        if self.model.is_empty() || self.model.len() > 255 {
            return Err(format!("a model's name of {} bytes: 1 to 255", self.model.len()));
        }
        if self.dims.is_empty() || self.dims.contains(&0) || self.dims.len() > usize::from(u16::MAX) {
            return Err(format!("dims are {:?}: each at least 1", self.dims));
        }
        for (name, value, most) in [
            ("in_flight_max", limits.in_flight_max, 64),
            ("calls_max", limits.calls_max, 1 << 16),
            ("pull_block_keys", limits.pull_block_keys, 1 << 20),
            ("push_block_keys", limits.push_block_keys, 1 << 20),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} is {value}: 1 to {most}"));
            }
        }
        if limits.frame_bytes_max < FRAME_BYTES_MIN {
            return Err(format!("frame_bytes_max is {}: at least {FRAME_BYTES_MIN}", limits.frame_bytes_max));
        }
        if limits.backoff_first_ms == 0 || limits.backoff_first_ms > limits.backoff_ms_max {
            let (first, most) = (limits.backoff_first_ms, limits.backoff_ms_max);
            return Err(format!("backoff_first_ms is {first}: 1 to backoff_ms_max, {most}"));
        }
        Ok(())
    }
}
