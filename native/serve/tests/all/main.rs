//! The tests of this crate in one binary, which is compiled and linked once.

mod any_bytes;
mod aside;
mod decode;
mod grpc;
mod heads;
mod health;
mod http;
mod items;
mod pieces;
mod recommend;
mod rig;
mod shown;
mod split;
