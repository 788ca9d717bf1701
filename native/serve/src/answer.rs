//! An answer to a request: scores and their version, or the reason for a refusal.

use std::fmt;
use std::sync::Arc;

use crate::features::Computed;
use crate::request::Request;
use crate::versions::item_index::FoundItems;

/// Scores of all candidates of a request, by one version.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The version that computed them.
    pub version: u64,
    /// The logit of every candidate and label, candidate by candidate.
    pub scores: Vec<f32>,
    /// How much of the request was scored, if not all.
    pub cut: Cut,
    /// The items that were found, if the model finds items; the scores are the user's vector then.
    pub found: Option<Box<FoundItems>>,
    /// The columns that the node computed for it, if there are any.
    pub computed: Option<Box<Computed>>,
    /// The request as it was scored, if columns of candidates were taken from the library.
    pub filled: Option<Arc<Request>>,
    /// The best candidates, best first, if they were ranked; then `found` has all candidates.
    pub order: Option<Vec<u32>>,
    /// The arm of an experiment that it counts for.
    pub arm: Option<Box<str>>,
}

/// The parts of a request that an overloaded node scored or read, where these are not all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// How many candidates were scored, from the first on, if not all; the others are NaN.
    pub scored: Option<usize>,
    /// How many of the newest values of a history were read, if fewer than the model reads.
    pub length: Option<usize>,
}

impl Answer {
    /// How many candidates lack columns and are not in the library; `None` if all are, or lack nothing.
    pub fn unknown(&self) -> Option<usize> {
        let left_out = self.filled.as_ref()?.left_out.as_ref()?;
        Some(left_out.unknown()).filter(|unknown| *unknown > 0)
    }

    /// Returns the names and numbers that say how it differs from a usual one.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        let Cut { scored, length } = self.cut;
        let named = [("scored", scored), ("length", length), ("unknown", self.unknown())];
        named.into_iter().filter_map(|(name, number)| Some((name, number?)))
    }
}

/// The reason why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request does not match the model; the text names the part.
    Bad(String),
    /// The model or version in the request is unknown.
    Unknown(String),
    /// The pinned version is not kept by this node.
    NotKept(String),
    /// The node is too busy to answer in time.
    Busy {
        /// When to try again, in milliseconds.
        retry_ms: u64,
        /// The bound that was reached.
        text: String,
    },
    /// The deadline has passed.
    Late(String),
    /// The node cannot answer now: it is starting, draining, or has no version.
    Away(String),
    /// An internal error; the text goes to the log and to the caller, and must contain no secret.
    Broken(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(text)
            | Self::Unknown(text)
            | Self::NotKept(text)
            | Self::Busy { text, .. }
            | Self::Late(text)
            | Self::Away(text)
            | Self::Broken(text) => formatter.write_str(text),
        }
    }
}
