//! Every native decoder as a function of any bytes, which must give an error or a value. It knows no fuzzer.

mod avro;
mod join;
mod logs;
mod peers;

/// A decoder, and what must hold of what it gives; it panics where that does not hold.
pub type Target = fn(&[u8]);

/// All of them. Each has a folder of its name in `corpus`.
pub const TARGETS: [(&str, Target); 8] = [
    ("avro_records", avro::records),
    ("avro_schemas", avro::schemas),
    ("join_marks", join::marks),
    ("join_snapshots", join::snapshots),
    ("kafka_batches", logs::batches),
    ("log_frames", logs::frames),
    ("ps_frames", peers::frames),
    ("serve_requests", streamlearn_serve::protocol::fuzz),
];

/// The target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|&(_, target)| target)
}

/// Bytes with a right checksum at their end, so that what lies behind the checksum is reached too.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let sum = streamlearn_wire::checksum::crc32c(0, bytes);
    [bytes, &sum.to_le_bytes()].concat()
}
