//! Offsets: the n+1 positions that cut flat data into n values, as in Arrow.

use std::fmt;

/// The first offset that does not fit its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffsetsError {
    /// No offsets at all, not even the leading 0.
    Empty,
    /// The first offset is not 0.
    Start(i64),
    /// An offset is smaller than the one before it.
    Decrease {
        /// Index of the smaller offset.
        place: usize,
        /// The smaller offset.
        found: i64,
        /// The offset before it.
        before: i64,
    },
    /// The last offset is not the length of the data.
    End {
        /// Index of the last offset.
        place: usize,
        /// The last offset.
        found: i64,
        /// Length of the data.
        length: usize,
    },
}

impl fmt::Display for OffsetsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "no offsets; n values need n + 1 offsets"),
            Self::Start(found) => write!(out, "offsets[0] is {found} and must be 0"),
            Self::Decrease { place, found, before } => {
                write!(out, "offsets[{place}] is {found}, less than {before} before it")
            }
            Self::End { place, found, length } => {
                write!(out, "offsets[{place}] is {found} and must be {length}, the length of the data")
            }
        }
    }
}

impl std::error::Error for OffsetsError {}

/// Checks that offsets start at 0, never decrease and end at `length`.
pub fn check_offsets<O: Copy + Into<i64>>(offsets: &[O], length: usize) -> Result<(), OffsetsError> {
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return Err(OffsetsError::Empty);
    };
    if first.into() != 0 {
        return Err(OffsetsError::Start(first.into()));
    }
    // One pass without early exit vectorises; the index is searched only after a failure.
    let decreases = offsets.windows(2).fold(false, |bad, pair| bad | (pair[1].into() < pair[0].into()));
    if decreases {
        let place = 1 + offsets.windows(2).position(|pair| pair[1].into() < pair[0].into()).unwrap_or(0);
        let (found, before) = (offsets[place].into(), offsets[place - 1].into());
        return Err(OffsetsError::Decrease { place, found, before });
    }
    if usize::try_from(last.into()) != Ok(length) {
        return Err(OffsetsError::End { place: offsets.len() - 1, found: last.into(), length });
    }
    Ok(())
}
