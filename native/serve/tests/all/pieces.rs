//! Pieces of requests: they are read as they were written, other bytes are refused, and an allowance leaves them alone.

use proptest::prelude::*;
use prost::Message;
use streamlearn_scheduler::{self as scheduler, AllowanceLimits, Costs, Offer, Scheduler, Worth};
use streamlearn_serve::protocol::{CallerOptions, decode as decode_request, every_kind};
use streamlearn_serve::split::{PieceHead, decode, encode};

use crate::split::{LIMITS, VERSION, ask_of, shapes};

pub fn head(left_us: u64) -> PieceHead {
    PieceHead { fingerprint: 5, version: VERSION, left_us, route: 9, priority: 3 }
}

pub fn decoded(candidates: usize, seed: u64) -> streamlearn_serve::request::Request {
    let naming = every_kind(LIMITS);
    let bytes = ask_of(candidates, seed, true).encode_to_vec();
    decode_request(&bytes, &naming, CallerOptions::default()).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_piece_is_read_as_it_was_written(candidates in 1_usize..50, seed in 1_u64..1 << 40, cut in (0_usize..50, 1_usize..50)) {
        let request = decoded(candidates, seed);
        let from = cut.0 % candidates;
        let range = from..(from + cut.1).min(candidates);
        let body = encode(&head(77), Some(&request), range.clone());
        let (read, piece) = decode(&body[5..], &request.inputs, 5).unwrap();
        let piece = piece.unwrap();
        prop_assert_eq!(read, head(77));
        streamlearn_serve::protocol::check(&piece);
        prop_assert_eq!(&piece.user, &request.user);
        let wishes = (piece.wishes.deadline_us, piece.wishes.route, piece.wishes.priority);
        prop_assert_eq!(wishes, (Some(77), Some(9), 3));
        // Its whole is written as the same candidates of the request.
        let again = encode(&head(77), Some(&piece), 0..piece.candidates);
        prop_assert_eq!(again, body);
        prop_assert_eq!(piece.candidates, range.len());
    }

    #[test]
    fn bytes_that_are_no_piece_are_refused_and_take_no_memory(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        seed in 1_u64..1 << 40,
        at in any::<prop::sample::Index>(),
        changes in prop::collection::vec(any::<u8>(), 1..9),
        cut in any::<prop::sample::Index>(),
    ) {
        let request = decoded(5, seed);
        prop_assert!(decode(&bytes, &request.inputs, 5).is_err());
        let body = encode(&head(77), Some(&request), 0..5)[5..].to_vec();
        let mut changed = body.clone();
        let at = at.index(body.len());
        for (byte, change) in changed[at..].iter_mut().zip(&changes) {
            *byte = *change;
        }
        if let Ok((_, Some(piece))) = decode(&changed, &request.inputs, 5) {
            streamlearn_serve::protocol::check(&piece);
        }
        let short = &body[..cut.index(body.len())];
        prop_assert!(decode(short, &request.inputs, 5).is_err());
        prop_assert!(decode(&[&body[..], &changes].concat(), &request.inputs, 5).is_err());
    }
}

#[test]
fn an_allowance_neither_cuts_nor_counts_a_piece() {
    let limits = scheduler::Limits {
        lanes: 1,
        requests_max: 1_000,
        candidates_max: 100_000,
        reserved_percent: 0,
        wait_us_max: 100_000,
        slack_us: 0,
        allowance: Some(AllowanceLimits { candidates_min: 1, shown: 2, short_percent: 0 }),
        by_cohort: false,
    };
    let costs = Costs::measured(&shapes(), |_, _| 1.0, |candidates, _| 100.0 * candidates as f64);
    let mut scheduler = Scheduler::new(limits, shapes(), costs);
    assert!(scheduler.next(0, 0).plan.is_none());
    let worth = Worth { hash: 5 << 32 | 1, ..Worth::default() };
    let of = |now_us: u64| Offer {
        version: 1,
        candidates: 16,
        length: 1,
        deadline_us: now_us + 100_000,
        priority: 0,
        cohort: 0,
        worth,
    };
    let mut now_us = 0;
    for _ in 0..200 {
        now_us += 10_000;
        scheduler.late(now_us);
        (0..60).for_each(|_| drop(scheduler.offer(now_us, &of(now_us))));
    }
    now_us += 100_000;
    scheduler.late(now_us);
    let before = scheduler.figures(now_us).value.unwrap();
    assert!(before.price > 0.0);
    let piece = scheduler.offer_piece(now_us, &of(now_us)).unwrap();
    assert_eq!(piece.candidates, 16);
    assert_eq!(scheduler.figures(now_us).value, Some(before));
    let request = scheduler.offer(now_us, &of(now_us));
    assert!(request.is_err() || request.unwrap().candidates < 16, "the node is still pressed");
}
