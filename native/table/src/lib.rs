//! The embedding table: keys to rows by version, and the initial rows of keys that were never stored. No I/O, no
//! Python.
//!
//! Readers take no lock and never wait: a line of the index tells them whether what they read was whole, and nothing
//! they may look at is used again before they have passed.

mod admission;
mod batch;
#[cfg(test)]
mod cases;
mod columns;
mod error;
mod expiry;
mod export;
mod grace;
mod held;
mod images;
mod index;
mod initial;
mod line;
mod memory;
#[cfg(all(test, model))]
mod model;
mod near;
mod optimizer;
mod pace;
mod pack;
mod prefetch;
mod push;
mod put;
mod read;
mod retire;
mod row_type;
mod rows;
mod scatter;
mod set;
mod shared;
mod sheets;
mod sketch;
mod sums;
mod sync;
mod table;
mod versions;

pub use admission::Page;
pub use batch::{ByPart, Member};
pub use columns::{Column, Dense, FlatShape, PackError, Pooling, Sequence, SequenceShape, Slot};
pub use error::{Result, TableError};
pub use expiry::{Expired, Expiry};
pub use export::{Changes, Export};
pub use held::PartSize;
pub use index::{PARTS, mix, part_of as part_of_hash, part_of_key};
pub use initial::Initial;
pub use optimizer::{Optimizer, Rule};
pub use pack::{GROUP, ReadRows, pack_flat, pack_sequences};
pub use prefetch::prefetch_all;
pub use push::{Admit, Push, Pushed};
pub use put::{Again, Embeddings, Rows};
pub use read::Reading;
pub use row_type::RowType;
pub use rows::Use;
pub use scatter::{Gradients, SCATTER_KEYS_MAX, Scatter};
pub use set::{Pin, TableSet};
pub use shared::At;
pub use sketch::{COUNT_MAX, Sketch, SketchSettings, WIDTH_COUNTERS_MAX, WIDTH_COUNTERS_MIN};
pub use table::{Table, TableSettings, TableSize};
