//! Errors of calls that are not bugs.

use std::fmt;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanError {
    /// The arguments do not fit each other, or a bound.
    Argument(String),
    /// A vector holds a value that is NaN, infinite or too large.
    Value {
        /// The index of the vector.
        vector: usize,
    },
    /// A key was given twice where it may occur once.
    Twice {
        /// The key.
        key: u64,
    },
    /// The library would hold too many rows.
    Full {
        /// The limit.
        rows_max: usize,
    },
}

impl fmt::Display for ScanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(text) => out.write_str(text),
            Self::Value { vector } => {
                write!(out, "vector {vector} has a value that is not finite or too large")
            }
            Self::Twice { key } => write!(out, "key {key} is given twice in one change"),
            Self::Full { rows_max } => write!(out, "a library has at most {rows_max} rows"),
        }
    }
}

impl std::error::Error for ScanError {}

/// The result of a call that can fail.
pub type Result<T> = std::result::Result<T, ScanError>;
