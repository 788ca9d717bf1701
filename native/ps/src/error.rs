//! What can go wrong between a client and its shards that is not a bug here.

use std::fmt;

use crate::refusal::{Code, Refusal};

/// What kind of trouble it is, which says what a caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// What was given cannot be: settings or arguments.
    Settings,
    /// An address cannot be bound, or a file cannot be read.
    Io,
    /// A shard refused, for this reason.
    Refused(Code),
    /// The epoch is not the shard's, or no longer the client's: recover.
    StaleEpoch,
    /// The shard has no tables: recover.
    NotReady,
    /// A shard did not answer within the whole budget.
    Unreachable,
    /// The connection was lost after an order was sent: it may have been obeyed.
    Lost,
    /// A push may or may not have been learned: nothing more is pushed in this epoch.
    Unsure,
    /// The client or server was closed.
    Closed,
}

/// What happened, and where.
#[derive(Debug, Clone)]
pub struct PsError {
    /// The kind.
    pub trouble: Trouble,
    /// The shard's number and address, where it was one shard.
    pub shard: Option<(u32, String)>,
    /// What happened, with the values.
    pub text: String,
    /// The detail of a refusal that had one.
    pub detail: Vec<u8>,
}

/// What a call gives, or why not.
pub type Result<T> = std::result::Result<T, PsError>;

impl PsError {
    /// An error of no one shard.
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
