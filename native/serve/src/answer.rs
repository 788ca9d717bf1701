//! An answer to a request: scores and the version that made them, or why there are none.

use std::fmt;

/// Scores of all candidates of a request, by one version.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The version that made them.
    pub version: u64,
    /// The logit of every candidate and label, candidate by candidate.
    pub scores: Vec<f32>,
    /// How many candidates were scored, from the first on, where the node had too much to do for all; the others' are NaN.
    pub degraded: Option<usize>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request is not what the model takes; the text says which part.
    Bad(String),
    /// The model or the version it names is not known.
    Unknown(String),
    /// The version it pins is not kept here.
    NotKept(String),
    /// The node has too much to do to answer in time; when to ask again.
    Busy {
        /// After how many milliseconds.
        retry_ms: u64,
        /// What is in the way.
        said: String,
    },
    /// Its deadline has passed.
    Late(String),
    /// The node cannot answer now: it starts, drains or has no version.
    Away(String),
    /// A defect; the text is for the log of the node and its caller alike, and holds no secret.
    Broken(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(said)
            | Self::Unknown(said)
            | Self::NotKept(said)
            | Self::Busy { said, .. }
            | Self::Late(said)
            | Self::Away(said)
            | Self::Broken(said) => formatter.write_str(said),
        }
    }
}
