//! Errors of Avro columns: of a plan, of one record, of a batch.

use std::fmt;

/// Two schemas cannot be resolved into a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError(pub(super) String);

/// Columns cannot be written as records; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeError(pub(super) String);

/// A column would need offsets beyond int32; the batch must be decoded in smaller pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetsOverflow {
    pub(super) column: String,
    pub(super) offsets_max: usize,
}

impl fmt::Display for PlanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for OffsetsOverflow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, offsets_max } = self;
        write!(out, "column '{column}': offsets beyond {offsets_max}; decode fewer records at once")
    }
}

impl std::error::Error for PlanError {}
impl std::error::Error for EncodeError {}
impl std::error::Error for OffsetsOverflow {}

/// Stops the reading of a record. Boxed, so that results on the hot path fit into registers.
#[derive(Debug)]
pub(super) enum DecodeStop {
    /// The record is bad.
    Fault {
        reason: String,
        at: usize,
        /// Field names, innermost first.
        path: Vec<String>,
    },
    /// The record is valid, but an int32-offset column has no room left.
    Overflow { offsets_column: usize },
}

pub(super) type Step<T = ()> = Result<T, Box<DecodeStop>>;

impl DecodeStop {
    #[cold]
    pub(super) fn inside(mut self: Box<Self>, field: &str) -> Box<Self> {
        if let Self::Fault { path, .. } = &mut *self {
            path.push(field.to_owned());
        }
        self
    }
}
