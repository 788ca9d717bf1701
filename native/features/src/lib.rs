//! Computed features: what an entity, such as a user or an item, has done lately, as columns of a model. No I/O, no
//! clock, no Python.
//!
//! A `State` takes the interactions of one entity, in any order, and gives the values of its features at any time.
//! Ingest, nodes and tests use the same code, so a value that is served is the value that is learned.

mod batch;
mod blob;
mod definition;
mod error;
mod history;
mod memory;
mod repeats;
mod state;
mod tiles;

pub use batch::{Interactions, Read, evaluate_all, fold_all, read_states};
pub use definition::{COLUMNS_MAX, Definition, FEATURES_MAX, Feature, KINDS_MAX, LENGTH_MAX, WINDOWS_MAX};
pub use error::{Error, Result};
pub use memory::{EVALUATION, MemoryStates};
pub use repeats::Repeats;
pub use state::{Interaction, State, Values};
pub use tiles::{NUMBER_MAX, TILES};
