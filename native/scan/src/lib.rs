//! Exact search: the items of a library whose vectors have the highest inner products with a user's vector, for many
//! users at once. No I/O, no clock, no Python, and no threads but those of a call.
//!
//! Item vectors are int8 values with a scale, in blocks of 64. `Blocks::apply` copies only the blocks that changes
//! touch, so every version of a library stays as it was. All kernels give the same bits.

mod block;
mod blocks;
mod candidates;
mod cells;
mod changes;
mod error;
mod kernels;
mod layout;
mod plan;
mod positions;
mod query;
mod row;
mod search;

pub use blocks::{Blocks, ROWS_MAX};
pub use cells::{CELLS_MAX, Cells, Training};
pub use changes::Changes;
pub use error::{Result, ScanError};
pub use kernels::Kernel;
pub use row::{DIM_MAX, Row, VALUE_MAX, VALUE_MIN, encode};
pub use search::{Excluded, K_MAX, Search, THREADS_MAX, Top, USERS_MAX};
