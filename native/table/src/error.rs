//! Errors of a table that are not bugs.

use std::fmt;
use std::io;

/// A failed call on a table.
#[derive(Debug)]
pub enum TableError {
    /// Memory could not be allocated.
    Memory(io::Error),
    /// All rows are in use, images included.
    Full {
        /// The limit.
        rows_max: usize,
    },
    /// A key was given twice where it may occur once.
    Twice {
        /// The key.
        key: u64,
    },
    /// The version is not in the state that the call requires.
    Version(String),
    /// The call is impossible now, but not permanently.
    Busy(String),
    /// The arguments do not fit the table.
    Argument(String),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "cannot allocate memory: {error}"),
            Self::Full { rows_max } => write!(f, "all {rows_max} rows are in use, images included"),
            Self::Twice { key } => write!(f, "key {key} is given twice in one version"),
            Self::Version(text) | Self::Busy(text) | Self::Argument(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for TableError {}

impl From<io::Error> for TableError {
    fn from(error: io::Error) -> Self {
        Self::Memory(error)
    }
}

/// The result of a call on a table.
pub type Result<T> = std::result::Result<T, TableError>;
