//! The tests of this crate in one binary, which is compiled and linked once.

mod avro;
mod keys;
