//! Pieces of requests, as one serving node sends them to another.

use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{check, every_kind};
use streamlearn_serve::split::{FRAME_BYTES, decode, encode};

/// Decodes bytes as a piece. One that is a piece is written as the same bytes again.
pub fn decoded(bytes: &[u8]) {
    let naming = every_kind(Limits { candidates_max: 64, values_max: 256, message_bytes_max: 1 << 20 });
    if let Ok((head, piece)) = decode(bytes, naming.inputs(), 0) {
        if let Some(piece) = &piece {
            check(piece);
        }
        let candidates = piece.as_ref().map_or(0, |piece| piece.candidates);
        let again = encode(&head, piece.as_ref(), 0..candidates);
        assert_eq!(&again[FRAME_BYTES..], bytes);
    }
}
