//! The front end of a serving node: decodes requests, merges them into TensorBatches, and encodes answers.
//! Contains no Python.

pub mod answer;
mod columns;
pub mod curve;
pub mod distribution;
pub mod features;
pub mod front;
pub mod impression;
pub mod impression_log;
pub mod inputs;
pub mod layout;
pub mod list_source;
pub mod load;
pub mod measures;
pub mod node;
pub mod protocol;
pub mod region;
pub mod request;
mod sizes;
pub mod slab;
pub mod split;
mod statistics;
pub mod tensor_batch;
pub mod versions;
