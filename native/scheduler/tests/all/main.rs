//! The tests of this crate in one binary, which is compiled and linked once.

mod admission;
mod allowance;
mod ladder;
mod node;
mod overload;
mod sequences;
mod tuned;
