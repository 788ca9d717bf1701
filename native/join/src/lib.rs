//! Event state for ingest and training: the join of impressions with actions, and the marks of learned
//! labels. No I/O, no clock, no Python.
//!
//! `JoinCore` holds the pending requests of one lot and emits the rows that fall due when a watermark passes.
//! `Marks` holds two bits for every (identity, label), so that a repeated row is learned once.

mod advance;
mod bytes;
mod closed_requests;
mod core;
mod counters;
mod emit;
mod error;
mod event_intake;
mod hash;
mod index;
mod interactions;
mod joined_columns;
mod learned_numbers;
mod marks;
mod outcome;
mod output;
mod page;
mod page_bytes;
mod prefetch;
mod settings;
mod shelf;
mod slice;
mod spares;
mod waiting_actions;

pub use crate::core::{Actions, Impressions, JoinCore, Origins, Spans};
pub use counters::{Counters, MarksCounters};
pub use error::{Error, Result};
pub use hash::{is_kept, is_logged, share_threshold};
pub use interactions::{IMPRESSION, Makes};
pub use joined_columns::{Interactions, Letters, Requests, Rows, Taken};
pub use marks::{Marks, MarksSettings, Settled, Settling};
pub use output::LetterKind;
pub use settings::{Combine, GROUPS_MAX, Group, LABELS_MAX, Label, Number, Settings};
