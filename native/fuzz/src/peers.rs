//! Input from peers of a shard: any bytes, and frames with any payload and a correct checksum.

use streamlearn_ps::{Header, Kind};
use streamlearn_wire::checksum::crc32c;

pub fn frames(bytes: &[u8]) {
    streamlearn_ps::fuzz(bytes);
    let (mut stream, mut rest) = (Vec::new(), bytes);
    while let Some(([kind, length], payload)) = rest.split_first_chunk::<2>() {
        let (payload, behind) = payload.split_at(usize::from(*length).min(payload.len()));
        let kinds = [Kind::Hello, Kind::Pull, Kind::Push, Kind::Order, Kind::Ping];
        let kind = kinds[usize::from(*kind) % kinds.len()];
        let header = Header { kind, flags: 0, request: 1, payload_bytes: payload.len() as u32 };
        stream.extend(header.to_bytes());
        stream.extend(payload);
        stream.extend(crc32c(0, payload).to_le_bytes());
        rest = behind;
    }
    streamlearn_ps::fuzz(&stream);
}
