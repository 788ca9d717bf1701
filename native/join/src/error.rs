//! Errors of a join or of marks that are not bugs.

use std::fmt;

/// A failed call; it has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The memory bound would be exceeded.
    Full {
        /// Bytes in use.
        held: u64,
        /// Bytes that were to be added.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// The arguments are invalid or contradict each other.
    Argument(String),
    /// The bytes are not a valid save, or belong to other settings.
    Bytes(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { held, wanted, max } => {
                write!(out, "cannot add {wanted} bytes: {held} of at most {max} bytes are in use")
            }
            Self::Argument(text) | Self::Bytes(text) => out.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error for an invalid argument.
pub(crate) fn refuse<T>(text: String) -> Result<T> {
    Err(Error::Argument(text))
}
