//! Fuzz targets: every native decoder as a function of arbitrary bytes that must return an error or a value.
//! Does not depend on a fuzzer.

mod avro;
mod features;
mod join;
mod logs;
mod peers;
mod pieces;

/// Runs a decoder on bytes and checks its result; panics if a check fails.
pub type Target = fn(&[u8]);

/// All targets. Each has a folder of its name in `corpus`.
pub const TARGETS: [(&str, Target); 10] = [
    ("avro_records", avro::records),
    ("avro_schemas", avro::schemas),
    ("feature_states", features::states),
    ("join_marks", join::marks),
    ("kafka_batches", logs::batches),
    ("log_frames", logs::frames),
    ("ps_frames", peers::frames),
    ("serve_item_requests", streamlearn_serve::protocol::fuzz_items),
    ("serve_pieces", pieces::decoded),
    ("serve_requests", streamlearn_serve::protocol::fuzz),
];

/// The target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(target_name, _)| *target_name == name).map(|&(_, target)| target)
}

/// Appends a valid checksum, so that the code behind the check is reached.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let sum = streamlearn_wire::checksum::crc32c(0, bytes);
    [bytes, &sum.to_le_bytes()].concat()
}
