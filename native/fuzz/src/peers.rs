//! Input from a shard's peers: arbitrary bytes, and frames with arbitrary payloads and valid checksums.

use streamlearn_ps::{Header, Kind};
use streamlearn_wire::checksum::crc32c;

pub fn frames(bytes: &[u8]) {
    streamlearn_ps::fuzz(bytes);
    let (mut stream, mut remaining) = (Vec::new(), bytes);
    while let Some(([kind, length], payload)) = remaining.split_first_chunk::<2>() {
        let (payload, tail) = payload.split_at(usize::from(*length).min(payload.len()));
        let kinds =
            [Kind::Hello, Kind::Pull, Kind::Push, Kind::Order, Kind::Ping, Kind::PushPart, Kind::Reduce];
        let kind = kinds[usize::from(*kind) % kinds.len()];
        let header = Header { kind, flags: 0, request: 1, payload_bytes: payload.len() as u32 };
        stream.extend(header.to_bytes());
        stream.extend(payload);
        stream.extend(crc32c(0, payload).to_le_bytes());
        remaining = tail;
    }
    streamlearn_ps::fuzz(&stream);
}
