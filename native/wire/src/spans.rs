//! Spans: values of variable length, laid end to end, gathered in another order.

use std::fmt;

use crate::offsets::{OffsetsError, check_offsets};

/// Spans could not be gathered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpansError {
    /// The offsets do not describe the data.
    Offsets(OffsetsError),
    /// A row out of range.
    Row {
        /// The requested row.
        found: i64,
        /// The number of rows.
        rows: usize,
    },
    /// The result is longer than int32 offsets allow.
    TooLong(usize),
}

impl fmt::Display for SpansError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offsets(error) => error.fmt(out),
            Self::Row { found, rows } => write!(out, "row {found} is out of range; there are {rows} rows"),
            Self::TooLong(bytes) => write!(out, "{bytes} bytes exceed int32 offsets"),
        }
    }
}

impl std::error::Error for SpansError {}

/// Gathers the spans of `rows`, end to end, and the offsets that cut them.
pub fn take_spans(data: &[u8], offsets: &[i64], rows: &[i64]) -> Result<(Vec<u8>, Vec<i32>), SpansError> {
    check_offsets(offsets, data.len()).map_err(SpansError::Offsets)?;
    let count = offsets.len() - 1;
    if let Some(&found) = rows.iter().find(|&&row| usize::try_from(row).map_or(true, |row| row >= count)) {
        return Err(SpansError::Row { found, rows: count });
    }
    let span = |row: i64| offsets[row as usize] as usize..offsets[row as usize + 1] as usize;
    let total: usize = rows.iter().map(|&row| span(row).len()).sum();
    if i32::try_from(total).is_err() {
        return Err(SpansError::TooLong(total));
    }
    let mut taken = Vec::with_capacity(total);
    let mut cuts = Vec::with_capacity(rows.len() + 1);
    cuts.push(0);
    for &row in rows {
        taken.extend_from_slice(&data[span(row)]);
        cuts.push(taken.len() as i32);
    }
    Ok((taken, cuts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_come_out_in_the_order_asked_for() {
        let (taken, cuts) = take_spans(b"abbccc", &[0, 1, 3, 6], &[2, 0, 0]).unwrap();
        assert_eq!((taken.as_slice(), cuts.as_slice()), (&b"cccaa"[..], &[0, 3, 4, 5][..]));
    }

    #[test]
    fn a_row_there_is_not_is_refused() {
        for row in [-1, 3] {
            let error = take_spans(b"abbccc", &[0, 1, 3, 6], &[row]).unwrap_err();
            assert_eq!(error, SpansError::Row { found: row, rows: 3 });
        }
    }
}
