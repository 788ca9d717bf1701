//! Frames and messages: golden bytes, round trips, all truncations, and random bytes.

use proptest::prelude::*;
use streamlearn_ps::*;
use streamlearn_wire::checksum::crc32c;

/// Decodes bytes fed in pieces into frames, and checks that memory use never runs ahead of the received
/// bytes.
fn frames(bytes: &[u8], piece: usize, bytes_max: u32) -> (Vec<Frame>, Option<FrameError>) {
    let (mut intake, mut frames, mut at) = (Intake::new(bytes_max), Vec::new(), 0);
    loop {
        match intake.take() {
            Ok(Some(frame)) => frames.push(frame),
            Err(error) => return (frames, Some(error)),
            Ok(None) if intake.claimed().is_some() => intake.admit(),
            Ok(None) if at == bytes.len() => return (frames, None),
            Ok(None) => at += intake.feed(&bytes[at..bytes.len().min(at + piece)]),
        }
        let memory_bytes_max = (16 << 10) + 2 * at.max(1 << 20) + (1 << 10);
        assert!(intake.held_bytes() <= memory_bytes_max, "{} bytes in use after {at}", intake.held_bytes());
    }
}

fn framed(kind: Kind, flags: u16, request: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header { kind, flags, request, payload_bytes: payload.len() as u32 }.to_bytes();
    [&header[..], payload, &crc32c(0, payload).to_le_bytes()].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames_and_payloads_have_these_bytes() {
    let ping = framed(Kind::Ping, REPLY, 0x0102_0304_0506_0708, b"");
    assert_eq!(hex(&ping), "534c5053000000000500010008070605040302017961b18300000000");
    assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    let epoch = Epoch { run: 3, recovery: 1 };
    let hello = HelloAsk {
        model: "m",
        fingerprint: [0xaa; 32],
        client: 5,
        reads_only: true,
        epoch: Some(epoch),
        token: b"t",
    };
    let expected = format!(
        "0300 0100 0100 6d {} 05000000000000000000000000000000 0300000000000000 01000000 01000000 0100 74",
        "aa".repeat(32)
    );
    assert_eq!(hex(&hello.to_payload()), expected.replace(' ', ""));
    let mut other = hello.to_payload();
    other[2] = 3;
    assert!(HelloAsk::decode(&other).err().unwrap().text.contains("flags 0x0003"));
    let reply = HelloReply {
        number: 1,
        count: 2,
        parts: 512..1024,
        epoch: None,
        frame_bytes_max: 16,
        window_max: 4,
        idle_ms_max: 9,
        dims: vec![3],
    };
    let expected = "0300 0100 01000000 02000000 00020000 00040000 0000000000000000 00000000 00000000 \
                    10000000 04000000 09000000 03000000";
    assert_eq!(hex(&reply.to_payload()), expected.replace(' ', ""));
    let mut pull = Vec::new();
    PullAsk { epoch, table: 2, encoding: Encoding::F16, version: Some(7), keys: vec![255].into() }
        .append(&mut pull);
    let expected = "0300000000000000 01000000 0200 01 01 0700000000000000 0100000000000000 ff00000000000000";
    assert_eq!(hex(&pull), expected.replace(' ', ""));
    let head = SliceHead { first: 1, count: 2, dim: 3, encoding: Encoding::F16 };
    assert_eq!(hex(&head.to_bytes()), "01000000020000000300000001000000");
}

#[test]
fn a_push_and_a_push_of_a_slice_have_these_bytes() {
    let (mut push, mut gradients) = (Vec::new(), Vec::new());
    Encoding::F32.append(&[1.0], &mut gradients);
    let (keys, admit) = (vec![9].into(), vec![Admit { end: 1, threshold: 2 }].into());
    let columns = Columns { keys, admit, counts: Some(vec![4].into()), gradients: gradients.into() };
    let ask = PushAsk {
        epoch: Epoch { run: 3, recovery: 1 },
        table: 2,
        encoding: Encoding::F32,
        sequence: 6,
        now_ms: -1,
        rate_scale: 2.0,
        columns,
    };
    ask.append(&mut push);
    let expected = "0300000000000000 01000000 0200 00 01 0600000000000000 ffffffffffffffff 00000040 01000000 \
                    01000000 00000000 0900000000000000 01000000 02000000 04000000 00000000 0000803f 00000000";
    assert_eq!(hex(&push), expected.replace(' ', ""));
    let pushed = PushReply(Pushed { learned: 1, created: 2, waiting: 3 });
    assert_eq!(hex(&pushed.to_payload()), "010000000000000002000000000000000300000000000000");
    for (may_repeat, at_once, flags) in [(false, false, "0100"), (true, false, "0500"), (true, true, "0d00")]
    {
        let (is_last, is_finite, mut part) = (true, true, Vec::new());
        let head =
            PartHead { step: 5, slice: 1, slices: 4, block: 2, is_last, is_finite, may_repeat, at_once };
        PartAsk { head, push: ask.clone() }.append(&mut part);
        assert_eq!(hex(&part), format!("0500000000000000010004000200{flags}") + &hex(&push));
    }
}

#[test]
fn a_reduce_and_its_answer_have_these_bytes() {
    let head = ReduceHead {
        epoch: Epoch { run: 3, recovery: 1 },
        step: 5,
        slice: Some(1),
        slices: 4,
        is_finite: true,
        wants_sums: false,
        first: 7,
        count: 2,
        wait_ms: 9,
        digest: 0xd1,
    };
    let encoded = |head, values: Vec<f32>| {
        let mut payload = Vec::new();
        ReduceAsk { head, values: values.into() }.append(&mut payload);
        payload
    };
    let begin = "0300000000000000 01000000 0500000000000000";
    let end = "0000 07000000 02000000 09000000 d100000000000000";
    let expected = format!("{begin} 0100 0400 0200 {end} 0000803f 00000040").replace(' ', "");
    assert_eq!(hex(&encoded(head, vec![1.0, 2.0])), expected);
    let asks = ReduceHead { slice: None, wants_sums: true, ..head };
    assert_eq!(hex(&encoded(asks, vec![])), format!("{begin} ffff 0400 0000 {end}").replace(' ', ""));
    let infinite = ReduceHead { is_finite: false, ..head };
    assert_eq!(hex(&encoded(infinite, vec![])), format!("{begin} 0100 0400 0300 {end}").replace(' ', ""));
    for (head, values) in [(head, vec![1.0]), (asks, vec![1.0, 2.0]), (infinite, vec![1.0, 2.0])] {
        let refusal = ReduceAsk::decode(&encoded(head, values)).unwrap_err();
        assert!(refusal.text.contains("bytes of values"), "{refusal}");
    }
    let mut reply = Vec::new();
    ReduceReply { is_complete: true, is_finite: true, sums: vec![1.0].into() }.append(&mut reply);
    assert_eq!(hex(&reply), "0100 0100 00000000 0000803f".replace(' ', ""));
    assert_eq!(ReduceReply::decode(&reply).unwrap().sums[..], [1.0]);
    reply[2] = 0;
    assert!(ReduceReply::decode(&reply).unwrap_err().text.contains("not complete"));
}

#[test]
fn every_truncation_is_no_frame_and_every_flipped_bit_is_found() {
    let complete = framed(Kind::Order, 0, 77, &(0..100).collect::<Vec<u8>>());
    for end in 0..complete.len() {
        assert_eq!(frames(&complete[..end], 7, 1 << 20), (vec![], None));
    }
    assert_eq!(frames(&complete, 1000, 1 << 20).0.len(), 1);
    for bit in 0..complete.len() * 8 {
        let mut bytes = complete.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(frames(&bytes, 1000, 1 << 20).1.is_some(), "bit {bit}");
    }
}

#[test]
fn a_claim_is_bounded_before_memory_is_taken_for_it() {
    let claim = |payload_bytes| Header { kind: Kind::Push, flags: 0, request: 1, payload_bytes }.to_bytes();
    let (payload_bytes, bytes_max) = (4097, 4096);
    assert_eq!(frames(&claim(4097), 24, 4096).1, Some(FrameError::Large { payload_bytes, bytes_max }));
    let mut intake = Intake::new(u32::MAX);
    assert_eq!((intake.feed(&claim(u32::MAX)), intake.take()), (24, Ok(None)));
    assert_eq!((intake.claimed(), intake.held_bytes()), (Some(u32::MAX), 16 << 10));
    intake.admit();
    assert!(intake.held_bytes() <= (1 << 20) + (16 << 10));
}

fn ask_of_push() -> impl Strategy<Value = Vec<u8>> {
    let column = (prop::collection::vec(any::<u64>(), 0..40), any::<bool>(), any::<bool>(), 1usize..5);
    (any::<(u64, u32, u16, u64, i64)>(), column).prop_map(
        |((run, recovery, table, sequence, now_ms), column)| {
            let (keys, has_counts, is_half, dim) = column;
            let encoding = if is_half { Encoding::F16 } else { Encoding::F32 };
            let mut gradients = Vec::new();
            encoding.append(&vec![0.5; keys.len() * dim], &mut gradients);
            let counts = has_counts.then(|| (0..keys.len() as u32).collect::<Vec<_>>().into());
            let admit = vec![Admit { end: keys.len(), threshold: 3 }; dim - 1].into();
            let columns = Columns { keys: keys.into(), admit, counts, gradients: gradients.into() };
            let (epoch, mut payload) = (Epoch { run, recovery }, Vec::new());
            PushAsk { epoch, table, encoding, sequence, now_ms, rate_scale: 0.1, columns }
                .append(&mut payload);
            payload
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn frames_come_back_whole_in_pieces_of_any_size(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
        request in any::<u64>(), piece in 1usize..5000,
    ) {
        let stream: Vec<u8> =
            payloads.iter().flat_map(|payload| framed(Kind::Pull, REPLY | MORE, request, payload)).collect();
        let (frames, error) = frames(&stream, piece, 3000);
        prop_assert_eq!(error, None);
        prop_assert!(frames.iter().all(|frame| frame.header.request == request && frame.header.flags == 3));
        prop_assert_eq!(frames.into_iter().map(|frame| frame.payload).collect::<Vec<_>>(), payloads);
    }

    #[test]
    fn any_bytes_are_taken_without_panic_or_memory(
        mut bytes in prop::collection::vec(any::<u8>(), 0..2000), payload_bytes in any::<u32>(), is_header in any::<bool>(),
    ) {
        if is_header {
            let header = Header { kind: Kind::Order, flags: 0, request: 0, payload_bytes }.to_bytes();
            bytes.splice(..0, header);
        }
        fuzz(&bytes);
        let framed = framed(Kind::Push, 0, 1, &bytes);
        fuzz(&[&framed[..], &bytes].concat());
    }

    #[test]
    fn a_push_comes_back_and_its_truncations_never_do_as_more_than_they_are(payload in ask_of_push(), by in any::<u64>()) {
        let push = PushAsk::decode(&payload).unwrap();
        let mut encoded = Vec::new();
        push.append(&mut encoded);
        prop_assert_eq!(&encoded, &payload);
        let end = by as usize % payload.len();
        if let Ok(truncated) = PushAsk::decode(&payload[..end]) {
            prop_assert_eq!(&truncated.columns.keys, &push.columns.keys);
            prop_assert!(truncated.columns.gradients.len() < push.columns.gradients.len());
        }
        let is_finite = by % 3 > 0 || !push.columns.keys.is_empty();
        let head = PartHead { step: by, slice: 1, slices: end as u16, block: 3, is_last: by % 2 == 0, is_finite, may_repeat: by % 5 == 0, at_once: by % 7 == 0 };
        let (part, mut encoded) = (PartAsk { head, push }, Vec::new());
        part.append(&mut encoded);
        prop_assert_eq!(PartAsk::decode(&encoded).unwrap(), part);
        prop_assert!(PartAsk::decode(&encoded[..end.min(15)]).is_err());
    }

    #[test]
    fn a_reduce_comes_back_and_its_truncations_do_not(
        values in prop::collection::vec(-1e9f32..1e9, 0..40), slice in 0u16..5, by in any::<u64>(),
    ) {
        let epoch = Epoch { run: by, recovery: 1 };
        let (slice, count) = ((slice < 4).then_some(slice), values.len() as u32);
        let head = ReduceHead {
            epoch, step: by, slice, slices: 4, is_finite: true, wants_sums: by % 2 == 0, first: 7, count, wait_ms: 3, digest: by,
        };
        let values = if slice.is_some() { values.into() } else { vec![].into() };
        let (ask, mut payload) = (ReduceAsk { head, values }, Vec::new());
        ask.append(&mut payload);
        prop_assert_eq!(&ReduceAsk::decode(&payload).unwrap(), &ask);
        prop_assert!(ReduceAsk::decode(&payload[..by as usize % payload.len()]).is_err());
    }

    #[test]
    fn a_pull_comes_back_and_its_truncations_do_not(
        keys in prop::collection::vec(any::<u64>(), 0..40), version in any::<Option<u64>>(), by in any::<u64>(),
    ) {
        let epoch = Epoch { run: by, recovery: 1 };
        let ask = PullAsk { epoch, table: 1, encoding: Encoding::F16, version, keys: keys.into() };
        let mut payload = Vec::new();
        ask.append(&mut payload);
        prop_assert_eq!(PullAsk::decode(&payload).unwrap(), ask);
        prop_assert!(PullAsk::decode(&payload[..by as usize % payload.len()]).is_err());
    }

    #[test]
    fn hellos_come_back_and_their_truncations_do_not(
        model in "[a-z]{1,20}", token in prop::collection::vec(any::<u8>(), 0..40), run in any::<Option<u64>>(),
        dims in prop::collection::vec(any::<u32>(), 0..9), by in any::<u64>(),
    ) {
        let epoch = run.map(|run| Epoch { run, recovery: 9 });
        let ask = HelloAsk { model: &model, fingerprint: [3; 32], client: u128::from(by) << 50, reads_only: by % 2 == 0, epoch, token: &token };
        let payload = ask.to_payload();
        prop_assert!(HelloAsk::decode(&payload).unwrap() == ask);
        prop_assert!(HelloAsk::decode(&payload[..by as usize % payload.len()]).is_err());
        let reply = HelloReply {
            number: 1, count: 2, parts: 0..9, epoch, frame_bytes_max: 1, window_max: 2, idle_ms_max: 3, dims,
        };
        let payload = reply.to_payload();
        prop_assert_eq!(HelloReply::decode(&payload).unwrap(), reply);
        prop_assert!(HelloReply::decode(&payload[..by as usize % payload.len()]).is_err());
    }
}
