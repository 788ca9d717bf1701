//! The parameter server: tables of rows behind sockets, and the client that pulls them and pushes to them
//! exactly once. Knows no Python, no files and no versions beyond their numbers: the embedding process
//! provides tables and carries out orders.

#[cfg(not(target_endian = "little"))]
compile_error!("frames are read where they lie: this needs a little-endian machine");

mod address;
mod client;
mod dense_sum;
mod epoch;
mod error;
mod frame;
mod fuzz;
mod intake;
mod merge;
mod message;
mod numbers;
mod open_steps;
mod pool;
mod refusal;
mod server;
mod stats;
#[cfg(test)]
mod step_model;
mod tls;
mod window;

pub use client::{
    Client, ClientLimits, ClientSettings, ClientStats, ClientVerb, Fetched, FetchedRows, LinkStats, PartOf,
    PullAt, PushOf, ReduceOf, Role, ShardOf, TlsTrust,
};
pub use epoch::Epoch;
pub use error::{PsError, Result, Trouble};
pub use frame::{FrameError, HEADER_BYTES, Header, Kind, MORE, REPLY};
pub use fuzz::fuzz;
pub use intake::{Frame, Intake};
pub use message::{
    Columns, HelloAsk, HelloReply, PROTOCOL, PartAsk, PartHead, PullAsk, PushAsk, PushReply, ReduceAsk,
    ReduceHead, ReduceReply, SLICES_MAX, SliceHead,
};
pub use numbers::Encoding;
pub use refusal::{Code, Refusal};
pub use server::{CLOCK_MS_MAX, Limits, Note, Order, Server, ServerSettings, Shard};
pub use stats::{BUCKETS_US, Stats, Verb, VerbStats};
pub use streamlearn_table::{Admit, Pushed};
pub use streamlearn_trust::{Secret, TlsFiles, Token};
pub use window::{Decision, Window};
