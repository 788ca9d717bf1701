//! The front end of a serving node: requests of many callers, decoded, merged into TensorBatches, answered. No Python.

pub mod answer;
pub mod inputs;
pub mod ladder;
pub mod load;
pub mod protocol;
pub mod request;
pub mod scheduler;
