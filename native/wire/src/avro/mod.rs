//! Converts Avro records to columns and back. A plan is built once from two schemas and used for many
//! records.
//!
//! Each leaf of the reader's schema is a column named by its dotted path. `path$` holds the byte offsets of a
//! string, `path[]` the offsets of an array, `path?` the validity of a nullable. An array inside an array, or
//! a nullable inside an array, repeats the brackets before its suffix: `path[][]`, `path[]?`.

mod columns;
mod cursor;
mod decode;
mod default;
mod encode;
mod errors;
mod plan;
mod resolve;
mod schema;
mod shape;
mod skip;
pub mod varint;

pub use columns::{Column, Kind, Slice};
pub use decode::{Decoded, Decoder, Failure, Limits};
pub use errors::{EncodeError, OffsetsOverflow, PlanError};
pub use plan::Plan;
