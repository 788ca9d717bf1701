//! Boundary formats, byte by byte: key hashes, checksums, log frames, Avro columns. No I/O, no Python.

pub mod avro;
pub mod checksum;
pub mod frame;
pub mod keys;
pub mod logged_share;
pub mod offsets;
pub mod partitioner;
pub mod spans;
