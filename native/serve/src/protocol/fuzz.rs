//! What any bytes must not break: the way from a caller's bytes to a request, with its keys and once more with its
//! values. For a fuzzer, and for tests of random bytes.

use std::sync::Arc;

use serde_json::json;
use streamlearn_wire::keys::{key_of_bytes, key_of_int};

use super::input_names::Naming;
use super::plain::{Came, read};
use super::values::keys::Texts;
use super::wishes::Said;
use super::{infer, json, rows};
use crate::answer::Refusal;
use crate::inputs::{Count, Input, Inputs, Kind, Limits};
use crate::request::{Request, Values};

/// A model with an input of every kind on both sides.
///
/// # Panics
/// Never: its names differ.
pub fn every_kind(limits: Limits) -> Naming {
    let slot = |name: &str, is_text, values, default| Input {
        name: name.to_owned(),
        kind: Kind::Slot { salt: streamlearn_wire::keys::slot_salt(name), is_text, values, default },
    };
    let dense = |name: &str, width, default: Option<f32>| Input {
        name: name.to_owned(),
        kind: Kind::Dense { width, default: default.map(f32::to_bits) },
    };
    let side = |of: &str| {
        let named = |name: &str| format!("{of}_{name}");
        vec![
            slot(&named("id"), false, Count::One, None),
            slot(&named("word"), true, Count::One, Some(77)),
            slot(&named("tags"), true, Count::Many, None),
            slot(&named("likes"), false, Count::Weighted, None),
            slot(&named("seen"), false, Count::Newest(3), None),
            slot(&named("seen_where"), true, Count::Newest(3), None),
            dense(&named("age"), 1, Some(0.5)),
            dense(&named("place"), 2, Some(0.25)),
        ]
    };
    let labels = vec!["click".to_owned(), "like".to_owned()];
    let inputs = Arc::new(Inputs { user: side("user"), item: side("item"), labels, limits });
    Naming::new("ctr", inputs).expect("names that differ")
}

/// Read bytes as every form of a request.
///
/// # Panics
/// When a request comes of it that is not what its inputs say.
pub fn fuzz(bytes: &[u8]) {
    let limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 1 << 20 };
    let naming = every_kind(limits);
    let asked = infer::decode(bytes, &naming, Said::default()).map(|(request, form)| {
        assert_eq!(form.candidates, request.candidates);
        request
    });
    twice(Came::Grpc, bytes, &naming, asked);
    let tensors = |bytes, json_bytes| {
        let asked =
            json::parts(bytes, json_bytes).and_then(|(json, raw)| json::decode(json, raw, &naming, ""));
        twice(Came::Tensors(json_bytes), bytes, &naming, asked.map(|(request, _)| request));
    };
    tensors(bytes, None);
    // A body whose JSON ends where its first two bytes say, and whose numbers stand behind it.
    if let Some((head, rest)) = bytes.split_first_chunk::<2>() {
        tensors(rest, Some(usize::from(u16::from_le_bytes(*head)).min(rest.len())));
    }
    let asked = rows::decode(bytes, &naming);
    let asked =
        asked.map(|rows::Asked { id, sides, said, .. }| infer::request(&naming, id.into(), sides, said));
    twice(Came::Rows, bytes, &naming, asked);
}

/// Whether bytes that were read with their keys are the same request, or as bad, when they are read with their values.
fn twice(came: Came, bytes: &[u8], naming: &Naming, asked: Result<Request, Refusal>) {
    let defaults = json!({ "user_word": "left out", "item_word": "left out" });
    let plain = naming.plain(defaults.as_object().expect("an object")).expect("all defaults");
    match (asked, read(came, bytes, &plain)) {
        (Ok(hashed), Ok(plainly)) => {
            check(&hashed);
            check(&plainly);
            let texts = plain.keys().texts().expect("values as they are");
            agree(&hashed, &plainly, &texts);
        }
        (Err(said), Err(again)) => assert_eq!(said, again),
        (first, second) => panic!("{first:?} and then {second:?}"),
    }
}

fn agree(hashed: &Request, plain: &Request, texts: &Texts) {
    assert_eq!((hashed.candidates, &hashed.shown), (plain.candidates, &plain.shown));
    for (columns, again, inputs, with) in [
        (&hashed.user, &plain.user, &hashed.inputs.user, &plain.inputs.user),
        (&hashed.item, &plain.item, &hashed.inputs.item, &plain.inputs.item),
    ] {
        for (((values, plainly), input), other) in columns.iter().zip(again).zip(inputs).zip(with) {
            let key = |value: u64| match (&input.kind, &other.kind) {
                (Kind::Slot { default, .. }, Kind::Slot { default: Some(left_out), .. })
                    if *left_out == value =>
                {
                    default.expect("a default in both")
                }
                (Kind::Slot { is_text: true, salt, .. }, _) => key_of_bytes(texts.get(value), *salt),
                (Kind::Slot { salt, .. }, _) => key_of_int(value as i64, *salt),
                (Kind::Dense { .. }, _) => panic!("numbers have no keys"),
            };
            let keyed = |values: &[u64]| values.iter().map(|&value| key(value)).collect::<Vec<u64>>();
            let again = match plainly.clone() {
                Values::Keys(keys) => Values::Keys(keyed(&keys)),
                Values::Lists { keys, offsets, weights } => {
                    Values::Lists { keys: keyed(&keys), offsets, weights }
                }
                numbers => numbers,
            };
            assert_eq!(*values, again);
        }
    }
}

/// Whether every column is as the inputs say.
///
/// # Panics
/// When one is not.
pub fn check(request: &Request) {
    let Request { inputs, candidates, user, item, shown, .. } = request;
    let limits = inputs.limits;
    assert!((1..=limits.candidates_max).contains(candidates));
    assert!(shown.iter().flatten().all(|&index| (index as usize) < *candidates));
    for (inputs, values, rows) in [(&inputs.user, user, 1), (&inputs.item, item, *candidates)] {
        assert_eq!(inputs.len(), values.len());
        for (input, values) in inputs.iter().zip(values) {
            check_column(&input.kind, values, rows, limits.values_max);
        }
    }
}

fn check_column(kind: &Kind, values: &Values, rows: usize, values_max: usize) {
    match (kind, values) {
        (Kind::Slot { values: Count::One, .. }, Values::Keys(keys)) => assert_eq!(keys.len(), rows),
        (Kind::Slot { values, .. }, Values::Lists { keys, offsets, weights }) => {
            let count = keys.len();
            assert!(count <= values_max && offsets.len() == rows + 1);
            assert_eq!((offsets[0], offsets[rows]), (0, count as i32));
            assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
            let weights = weights.as_ref().map(Vec::len);
            assert_eq!(weights, (*values == Count::Weighted).then_some(count));
            if let Count::Newest(most) = values {
                assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] <= *most as i32));
            }
        }
        (Kind::Dense { width, .. }, Values::Numbers(numbers)) => {
            assert_eq!(numbers.len(), rows * width);
            assert!(numbers.iter().all(|number| number.is_finite()));
        }
        _ => panic!("{values:?} in a column of {kind:?}"),
    }
}
