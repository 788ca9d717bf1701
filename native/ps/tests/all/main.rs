//! The tests of this crate in one binary, which is compiled and linked once.

mod codec;
mod contract;
mod doors;
mod duplicates;
mod epochs;
mod peers;
mod readers;
mod rig;
mod slices;
