//! Measures the cost of a request: admission, decoding and hashing, encoding the answer, and logging an impression.
//! Prints microseconds of CPU time.

#[path = "../tests/all/rig/asks.rs"]
#[allow(dead_code)]
mod asks;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use asks::{Data, Inputs as RequestInputs, ask};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;
use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{AllowanceLimits, Costs, Limits as Bounds, Offer, Scheduler, Shapes, Worth};
use streamlearn_serve::answer::{Answer, Cut};
use streamlearn_serve::impression_log::{Batch, Shown, ShownLimits};
use streamlearn_serve::inputs::{Count, Input, Inputs, Kind, Label, Limits};
use streamlearn_serve::load::NodeLoad;
use streamlearn_serve::protocol::{CallerOptions, LoadHeaders, Naming, RequestFormat, decode, encode};

const CANDIDATES: usize = 36;
const ROUNDS: usize = 15;
const TIMES: usize = 2000;
const BATCH: Batch = Batch { events_max: 1, event_bytes_max: 1 << 20, linger: Duration::ZERO };
const DESCRIPTION: &str = r#"{"prefix": [195, 1, 0, 0, 0, 0, 0, 0, 0, 0], "item_segments": 0,
    "items_max": 4096, "defaults": {}}"#;

fn slot(name: &str, is_text: bool, values: Count) -> Input {
    let salt = streamlearn_wire::keys::slot_salt(name);
    Input {
        name: name.to_owned(),
        kind: Kind::Slot { salt, is_text, values, default: None },
        was: None,
        is_computed: false,
    }
}

/// 20 slots: of the user 6 numbers, 2 texts and 2 histories of 50; of candidates 6 numbers, 2 texts, 2 lists.
fn model() -> (Naming, RequestInputs) {
    let names: Vec<&'static str> = (0..20).map(|at| &*format!("feature_{at:02}").leak()).collect();
    let (mut user, mut item, mut inputs_given) = (Vec::new(), Vec::new(), RequestInputs::new());
    let ints = |count: usize| Data::Int64((0..count as i64).map(|value| value * 7919).collect());
    let texts = |count: usize| Data::Bytes((0..count).map(|at| format!("word-{at}").into_bytes()).collect());
    let n = CANDIDATES as i64;
    for (at, &name) in names.iter().enumerate() {
        let (input, shape, data) = match at {
            0..6 => (slot(name, false, Count::One), vec![1], ints(1)),
            6..8 => (slot(name, true, Count::One), vec![1], texts(1)),
            8..10 => (slot(name, false, Count::Newest(50)), vec![50], ints(50)),
            10..16 => (slot(name, false, Count::One), vec![n], ints(CANDIDATES)),
            16..18 => (slot(name, true, Count::One), vec![n], texts(CANDIDATES)),
            _ => (slot(name, false, Count::Many), vec![n, 3], ints(3 * CANDIDATES)),
        };
        if at < 10 {
            user.push(input)
        } else {
            item.push(input)
        }
        inputs_given.push((name, shape, data));
    }
    let labels = ["click", "like", "share"].map(Label::from).to_vec();
    let limits = Limits { candidates_max: 1024, values_max: 1 << 20, message_bytes_max: 4 << 20 };
    let inputs = Inputs {
        user,
        item,
        labels,
        segments: Vec::new(),
        class_segment: String::new(),
        items: None,
        library: None,
        limits,
    };
    (Naming::new("ctr", Arc::new(inputs)).expect("names that differ"), inputs_given)
}

/// The CPU time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let stat =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux reports a thread's CPU time");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the first number is nanoseconds")
}

/// The median over rounds of the microseconds of one turn.
fn median_us(mut turn: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = cpu_ns();
            (0..TIMES).for_each(|_| turn());
            (cpu_ns() - begin) as f64 / 1e3 / TIMES as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// The same of a turn that takes less than the clock shows.
fn median_us_of_many(mut turn: impl FnMut()) -> f64 {
    median_us(|| (0..100).for_each(|_| turn())) / 100.0
}

/// The microseconds of an offer to a node on which 30 requests wait: admitted, and cancelled again, or refused.
fn offer_us(allowance: Option<AllowanceLimits>) -> f64 {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).expect("sizes that grow");
    let (users, candidates) = (ladder(&[1, 2, 4, 8, 16]), ladder(&[16, 32, 64, 128, 256, 512]));
    let shapes = Shapes { users, candidates, lengths: ladder(&[50]) };
    let costs =
        Costs::measured(&shapes, |users, _| 80.0 * users as f64, |count, _| 200.0 + 18.0 * count as f64);
    let limits = Bounds {
        lanes: 1,
        requests_max: 1_000,
        candidates_max: 100_000,
        reserved_percent: 10,
        wait_us_max: 100_000,
        slack_us: 1_000,
        allowance,
        by_cohort: false,
    };
    let mut scheduler = Scheduler::new(limits, shapes, costs);
    scheduler.next(0, 0);
    let prescores: Vec<f32> = (0..CANDIDATES).map(|at| 1.0 / (1.0 + at as f32)).collect();
    let mut number = 0_u64;
    let mut offer = |scheduler: &mut Scheduler, now_us| {
        number += 1;
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let worth = Worth { value: 1.0, class: 0, hash, prescores: &prescores };
        let deadline_us = now_us + 30_000;
        let (version, candidates, length, priority, cohort) = (1, CANDIDATES, 50, 0, 0);
        scheduler.offer(now_us, &Offer { version, candidates, length, deadline_us, priority, cohort, worth })
    };
    (0..30).for_each(|at| drop(offer(&mut scheduler, 100 * at)));
    median_us_of_many(|| {
        if let Ok(admitted) = black_box(offer(&mut scheduler, 3_000)) {
            scheduler.cancel(admitted.ticket);
        }
    })
}

fn main() {
    let (off_us, on_us) =
        (offer_us(None), offer_us(Some(AllowanceLimits { candidates_min: 4, shown: 8, short_percent: 0 })));
    let more_us = on_us - off_us;
    println!(
        "admission: {off_us:.3} us, with an allowance {on_us:.3} us: its decision takes {more_us:.3} us"
    );
    let (naming, inputs) = model();
    let head: HeaderMap =
        [("x-route-key", "user-42"), ("x-priority", "1"), ("x-arm", "new"), ("x-deadline-ms", "50")]
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
    for (name, head) in [("none", &HeaderMap::new()), ("all", &head)] {
        let us = median_us_of_many(|| drop(black_box(CallerOptions::of(black_box(head)))));
        println!("options in headers, {name}: {us:.3} us");
    }
    let (load, headers) = (NodeLoad::default(), LoadHeaders::default());
    let text_us =
        median_us_of_many(|| headers.add_text(black_box(&mut HeaderMap::new()), || Some(black_box(load))));
    let binary_us =
        median_us_of_many(|| headers.add_binary(black_box(&mut HeaderMap::new()), || Some(black_box(load))));
    println!("load in an answer: HTTP {text_us:.3} us, gRPC {binary_us:.3} us");
    let limits = ShownLimits { share: 1.0, events_max: 10, bytes_max: 1 << 20 };
    let shown = Shown::new(&naming, DESCRIPTION, limits).expect("a description");
    for (form, is_raw) in [("raw", true), ("typed", false)] {
        let bytes = ask(&inputs, is_raw).encode_to_vec();
        let read = || decode(black_box(&bytes), &naming, CallerOptions::default()).expect("a good request");
        let answer = Answer {
            version: 18,
            scores: vec![0.25; 3 * CANDIDATES],
            cut: Cut::default(),
            found: None,
            computed: None,
            filled: None,
            order: None,
            arm: None,
        };
        let (request, form_of) = read();
        let decode_us = median_us(|| drop(black_box(read())));
        let write = || encode(&form_of, black_box(&answer), &naming).expect("an answer to it");
        let encode_us = median_us(|| drop(black_box(write())));
        println!(
            "{form}: {} bytes in, decode and hash {decode_us:.2} us, encode {encode_us:.2} us",
            bytes.len()
        );
        let note = || {
            let request_copy =
                shown.keep(&request, RequestFormat::Grpc, black_box(&bytes)).expect("a selected request");
            shown.note(request_copy, request.id.clone(), answer.clone());
        };
        let take = || shown.take(Duration::ZERO, &BATCH).expect("an event");
        let both_us = median_us(|| {
            note();
            drop(black_box(take()));
        });
        note();
        let size = take().buffer.len();
        println!("{form}: copied, logged and encoded as an impression of {size} bytes {both_us:.2} us");
    }
}
