//! The front end of a serving node: requests of many callers, decoded, merged into TensorBatches, answered. No Python.

pub mod answer;
mod columns;
pub mod front;
pub mod inputs;
pub mod ladder;
pub mod layout;
pub mod load;
pub mod node;
pub mod packed;
pub mod protocol;
pub mod request;
pub mod scheduler;
pub mod slab;
mod statistics;
mod versions;
