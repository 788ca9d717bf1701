//! The embedding table: maps keys to rows by version, and computes the initial rows of keys that were never
//! stored. No I/O, no Python.
//!
//! Readers take no lock and never wait. The head of an index line shows whether a read was consistent, and
//! memory that a reader may see is not reused before the reader has left.

mod admission;
mod batch;
#[cfg(test)]
mod cases;
mod columns;
mod error;
mod expiry;
mod export;
mod locked_part;
mod lookup;
#[cfg(all(test, feature = "model"))]
mod model;
mod optimizer;
mod pace;
mod pack;
mod push;
mod put;
mod rows;
mod scatter;
mod set;
mod sketch;
mod storage;
mod sums;
mod table;
mod table_set;
mod versions;

pub use admission::Page;
pub use batch::{ByPart, Member};
pub use columns::{Column, Dense, FlatShape, PackError, Pooling, Sequence, SequenceShape, Slot};
pub use error::{Result, TableError};
pub use expiry::{Expired, Expiry};
pub use export::{Changes, Export};
pub use locked_part::PartSize;
pub use lookup::Reading;
pub use optimizer::{Optimizer, Rule};
pub use pace::take_slices;
pub use pack::{GROUP, ReadRows, pack_flat, pack_sequences};
pub use push::{Admit, Push, Pushed};
pub use put::{Again, Embeddings, Rows};
pub use rows::Use;
pub use scatter::{Gradients, SCATTER_KEYS_MAX, Scatter};
pub use set::{Pin, TableSet};
pub use sketch::{COUNT_MAX, Sketch, SketchSettings, WIDTH_COUNTERS_MAX, WIDTH_COUNTERS_MIN};
pub use storage::index::{PARTS, mix, part_of as part_of_hash, part_of_key};
pub use storage::initial::Initial;
pub use storage::prefetch::prefetch_all;
pub use storage::row_type::RowType;
pub use table::{Table, TableSettings, TableSize};
pub use table_set::At;
