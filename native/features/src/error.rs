//! Errors of definitions and of stored states.

use std::fmt;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The definition is invalid.
    Definition(String),
    /// The bytes are not a state.
    Damaged(&'static str),
    /// The bytes are a state of another definition, which has this id.
    Other(u64),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definition(text) => out.write_str(text),
            Self::Damaged(what) => write!(out, "these bytes are not a state of features: {what}"),
            Self::Other(id) => write!(out, "this state belongs to definition {id:016x}"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a call that can fail.
pub type Result<T> = std::result::Result<T, Error>;
