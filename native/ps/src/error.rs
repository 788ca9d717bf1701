//! Errors between a client and its shards that are not bugs.

use std::fmt;

use crate::refusal::{Code, Refusal};

/// The kind of an error, which tells the caller what it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Invalid settings or arguments.
    Settings,
    /// An address cannot be bound, or a file cannot be read.
    Io,
    /// A shard refused the request, with this code.
    Refused(Code),
    /// The epoch is not the shard's, or no longer the client's: recover.
    StaleEpoch,
    /// The shard has no tables: recover.
    NotReady,
    /// A shard did not answer before the call's deadline.
    Unreachable,
    /// The connection was lost after an order was sent: the order may have been carried out.
    Lost,
    /// A push may have been applied: the client pushes nothing more in this epoch.
    Unsure,
    /// The client or server was closed.
    Closed,
}

/// An error, with its shard.
#[derive(Debug, Clone)]
pub struct PsError {
    /// The kind.
    pub trouble: Trouble,
    /// The shard's number and address, if a single shard is concerned.
    pub shard: Option<(u32, String)>,
    /// The description, with values.
    pub text: String,
    /// The detail of a refusal, if any.
    pub detail: Vec<u8>,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, PsError>;

impl PsError {
    /// Creates an error that concerns no single shard.
    pub fn new(trouble: Trouble, text: impl Into<String>) -> Self {
        Self { trouble, shard: None, text: text.into(), detail: Vec::new() }
    }

    pub(crate) fn at(trouble: Trouble, shard: (u32, &str), text: impl Into<String>) -> Self {
        Self { shard: Some((shard.0, shard.1.to_owned())), ..Self::new(trouble, text) }
    }

    pub(crate) fn refused(shard: (u32, &str), refusal: &Refusal) -> Self {
        let trouble = match refusal.code {
            Code::StaleEpoch => Trouble::StaleEpoch,
            Code::NotReady => Trouble::NotReady,
            code => Trouble::Refused(code),
        };
        Self { detail: refusal.detail.clone(), ..Self::at(trouble, shard, refusal.to_string()) }
    }
}

impl fmt::Display for PsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shard {
            Some((number, address)) => write!(f, "shard {number} at {address}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for PsError {}
