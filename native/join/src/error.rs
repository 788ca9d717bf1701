//! What can go wrong with a join or with marks that is not a bug here.

use std::fmt;

/// Why something was not done. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// It would hold more than it may.
    Full {
        /// What it holds.
        held: u64,
        /// What would have been added.
        wanted: u64,
        /// The limit.
        max: u64,
    },
    /// What was given contradicts itself.
    Argument(String),
    /// Bytes are not a snapshot or a save of this, or of other settings.
    Bytes(String),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { held, wanted, max } => {
                write!(out, "cannot add {wanted} bytes: {held} bytes are held, and {max} are allowed")
            }
            Self::Argument(text) | Self::Bytes(text) => out.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

/// What a call that may be refused returns.
pub type Result<T> = std::result::Result<T, Error>;

/// An argument that is refused.
pub(crate) fn refuse<T>(text: String) -> Result<T> {
    Err(Error::Argument(text))
}
