//! What any bytes must not break: the way from a peer's bytes to messages. For a fuzzer, and for a test of random bytes.

use crate::intake::{FIRST_BYTES_MAX, Intake};
use crate::message::{HelloAsk, HelloReply, PullAsk, PushAsk, PushReply, SliceHead, order_of, refusal_of};

/// Take bytes in as a server does, in pieces whose length the first byte says, and read every payload as everything.
///
/// # Panics
/// When memory runs ahead of what has arrived, or when anything read is more than there was.
pub fn fuzz(bytes: &[u8]) {
    let (mut intake, mut at) = (Intake::new(64 << 20), 0);
    let piece = bytes.first().map_or(1, |&byte| usize::from(byte) * 16 + 1);
    loop {
        match intake.take() {
            Ok(Some(frame)) => read(&frame.payload),
            Err(_) => break,
            Ok(None) if intake.claimed().is_some() => intake.admit(),
            Ok(None) if at == bytes.len() => break,
            Ok(None) => at += intake.feed(&bytes[at..bytes.len().min(at + piece)]),
        }
        let held_max = 2 * at.max(FIRST_BYTES_MAX) + (32 << 10);
        assert!(intake.held_bytes() <= held_max, "{} bytes held after {at}", intake.held_bytes());
    }
    read(bytes);
}

fn read(payload: &[u8]) {
    if let Ok(hello) = HelloAsk::decode(payload) {
        assert_eq!(hello.to_payload(), payload);
    }
    if let Ok(hello) = HelloReply::decode(payload) {
        assert_eq!(hello.to_payload(), payload);
    }
    if let Ok(ask) = PullAsk::decode(payload) {
        let mut again = Vec::new();
        ask.append(&mut again);
        assert_eq!(again, payload);
    }
    if let Ok(ask) = PushAsk::decode(payload) {
        assert!(ask.columns.keys.len() * 8 + ask.columns.gradients.len() <= payload.len());
    }
    if let Ok((head, rows)) = SliceHead::decode(payload) {
        assert!(head.encoding.numbers(rows, head.count as usize * head.dim as usize).is_some());
    }
    let _ = (PushReply::decode(payload).is_ok(), order_of(payload).is_ok(), refusal_of(payload));
}
