//! The embedding table: keys to rows, and the initial rows of keys that were never stored. No I/O, no Python.
//!
//! Readers take no lock and never wait: a line of the index tells them whether what they read was whole, and nothing
//! they may look at is used again before they have passed.

mod grace;
mod initial;
mod line;
mod memory;
mod part;
mod rows;
mod table;

pub use initial::Initial;
pub use part::PARTS;
pub use table::{Table, TableSettings, TableSize};
