//! The tests of this crate in one binary, which is compiled and linked once.

mod admission;
mod allowance;
mod any_bytes;
mod aside;
mod decode;
mod grpc;
mod heads;
mod health;
mod http;
mod ladder;
mod node;
mod overload;
mod pieces;
mod rig;
mod sequences;
mod shown;
mod split;
mod tuned;
