//! A fuzz target: decodes arbitrary bytes as a peer's stream and as every message. Used by the fuzzer and by
//! a test with random bytes.

use crate::intake::{FIRST_BYTES_MAX, Intake};
use crate::message::{
    HelloAsk, HelloReply, PartAsk, PullAsk, PushAsk, PushReply, ReduceAsk, ReduceReply, SliceHead, order_of,
    refusal_of,
};

/// Feeds bytes as a server receives them, in pieces whose length depends on the first byte, and decodes every
/// payload as every message.
///
/// # Panics
/// If the intake holds more memory than the received bytes justify, or if a message decodes to more
/// than the payload holds.
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
        let memory_bytes_max = 2 * at.max(FIRST_BYTES_MAX) + (32 << 10);
        assert!(intake.held_bytes() <= memory_bytes_max, "{} bytes held after {at}", intake.held_bytes());
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
        let mut encoded = Vec::new();
        ask.append(&mut encoded);
        assert_eq!(encoded, payload);
    }
    if let Ok(ask) = PushAsk::decode(payload) {
        assert!(ask.columns.keys.len() * 8 + ask.columns.gradients.len() <= payload.len());
    }
    if let Ok(ask) = PartAsk::decode(payload) {
        // Padding is not read, so only what was encoded here comes back byte by byte.
        let (mut encoded, mut again) = (Vec::new(), Vec::new());
        ask.append(&mut encoded);
        PartAsk::decode(&encoded).expect("what was encoded is decoded").append(&mut again);
        assert_eq!((encoded.len(), &encoded), (payload.len(), &again));
    }
    if let Ok(ask) = ReduceAsk::decode(payload) {
        let mut encoded = Vec::new();
        ask.append(&mut encoded);
        assert_eq!(encoded, payload);
    }
    if let Ok(reply) = ReduceReply::decode(payload) {
        let mut encoded = Vec::new();
        reply.append(&mut encoded);
        assert_eq!(encoded, payload);
    }
    if let Ok((head, rows)) = SliceHead::decode(payload) {
        assert!(head.encoding.numbers(rows, head.count as usize * head.dim as usize).is_some());
    }
    let _ = (PushReply::decode(payload).is_ok(), order_of(payload).is_ok(), refusal_of(payload));
}
