//! A fuzz target: decodes arbitrary bytes as every form of a request, with hashed keys and again with plain
//! values. Used by the fuzzer and by tests with random bytes.

use std::sync::Arc;

use serde_json::json;
use streamlearn_wire::keys::{key_of_bytes, key_of_int};

use super::input_names::Naming;
use super::outputs::item_answer;
use super::plain::{RequestFormat, read};
use super::values::keys::Texts;
use super::wishes::CallerOptions;
use super::{infer, json, rows};
use crate::answer::Refusal;
use crate::inputs::{Count, Input, Inputs, ItemInputs, Kind, Label, LibraryInputs, Limits};
use crate::request::{Request, Values};

/// Describes a model with inputs of all kinds on both sides.
///
/// # Panics
/// Never: the names differ.
pub fn every_kind(limits: Limits) -> Naming {
    let slot = |name: &str, is_text, values, default| Input {
        name: name.to_owned(),
        kind: Kind::Slot { salt: streamlearn_wire::keys::slot_salt(name), is_text, values, default },
        was: None,
        is_computed: false,
    };
    let dense = |name: &str, width, default: Option<f32>| Input {
        name: name.to_owned(),
        kind: Kind::Dense { width, default: default.map(f32::to_bits) },
        was: None,
        is_computed: false,
    };
    let side = |prefix: &str| {
        let named = |name: &str| format!("{prefix}_{name}");
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
    let labels = vec![Label::from("click"), Label::from("like")];
    let segments = vec!["page".to_owned(), "arm".to_owned()];
    let inputs = Arc::new(Inputs {
        user: side("user"),
        item: side("item"),
        labels,
        segments,
        class_segment: "page".to_owned(),
        items: None,
        library: None,
        limits,
    });
    Naming::new("ctr", inputs).expect("names that differ")
}

/// Describes a model with inputs of all kinds, whose items have a library.
///
/// # Panics
/// Never: the names differ.
pub fn every_kind_in_library(limits: Limits) -> Naming {
    let library = LibraryInputs { id: 0, columns: vec![1, 2, 3, 6, 7], k_max: 100, label: 1 };
    let inputs = Inputs::clone(every_kind(limits).inputs());
    Naming::new("ctr", Arc::new(Inputs { library: Some(library), ..inputs })).expect("names that differ")
}

/// Describes a model that finds items, with user inputs of all kinds.
///
/// # Panics
/// Never: the names differ.
pub fn every_kind_for_items(limits: Limits, is_text: bool) -> Naming {
    let items =
        ItemInputs { salt: streamlearn_wire::keys::slot_salt("item_id"), is_text, k_max: 100, rank_by: None };
    let inputs = Inputs::clone(every_kind(limits).inputs());
    let inputs = Inputs { item: Vec::new(), labels: item_answer::labels(), items: Some(items), ..inputs };
    Naming::new("ctr.retrieve", Arc::new(inputs)).expect("names that differ")
}

const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 1 << 20 };

/// Decodes bytes as every form of a request for scores.
///
/// # Panics
/// If a decoded request does not match its inputs.
pub fn fuzz(bytes: &[u8]) {
    thread_local! {
        static NAMES: [Names; 2] = [every_kind(LIMITS), every_kind_in_library(LIMITS)].map(Names::new);
    }
    NAMES.with(|all| all.iter().for_each(|names| fuzz_for(bytes, names)));
}

/// Decodes bytes as every form of a request for items, whose ids are texts or integers, and of one for ranked items.
///
/// # Panics
/// If a decoded request does not match its inputs.
pub fn fuzz_items(bytes: &[u8]) {
    thread_local! {
        static NAMES: [Names; 3] = [
            every_kind_for_items(LIMITS, false),
            every_kind_for_items(LIMITS, true),
            every_kind_in_library(LIMITS).ranking().expect("names that differ").expect("it has a library"),
        ]
        .map(Names::new);
    }
    NAMES.with(|all| all.iter().for_each(|names| fuzz_for(bytes, names)));
}

/// The names of a model's inputs, for keys and for plain values.
struct Names {
    hashed: Naming,
    plain: Naming,
}

impl Names {
    fn new(hashed: Naming) -> Self {
        let defaults = json!({ "user_word": "left out", "item_word": "left out" });
        let plain = hashed.plain(defaults.as_object().expect("an object")).expect("all defaults");
        Self { hashed, plain }
    }
}

fn fuzz_for(bytes: &[u8], names: &Names) {
    let naming = &names.hashed;
    let request = infer::decode(bytes, naming, CallerOptions::default()).map(|(request, form)| {
        assert_eq!(form.candidates, request.candidates);
        request
    });
    check_plain(RequestFormat::Grpc, bytes, names, request);
    let check_tensors = |bytes, json_bytes| {
        let request = json::parts(bytes, json_bytes)
            .and_then(|(json, raw)| json::decode(json, raw, naming, "", CallerOptions::default()));
        check_plain(RequestFormat::Tensors(json_bytes), bytes, names, request.map(|(request, _)| request));
    };
    check_tensors(bytes, None);
    // A body with the length of its JSON in its first two bytes, and numbers after the JSON.
    if let Some((head, rest)) = bytes.split_first_chunk::<2>() {
        check_tensors(rest, Some(usize::from(u16::from_le_bytes(*head)).min(rest.len())));
    }
    let request = rows::decode(bytes, naming, CallerOptions::default());
    let request = request
        .map(|rows::ParsedRows { id, sides, options, .. }| infer::request(naming, id.into(), sides, options));
    check_plain(RequestFormat::Rows, bytes, names, request);
}

/// Checks that decoding with plain values gives the same request or the same error.
fn check_plain(
    format: RequestFormat,
    bytes: &[u8],
    Names { plain, .. }: &Names,
    hashed_result: Result<Request, Refusal>,
) {
    plain.keys().texts().expect("values as they are").forget();
    match (hashed_result, read(format, bytes, plain)) {
        (Ok(hashed), Ok(plain_request)) => {
            check(&hashed);
            check(&plain_request);
            let texts = plain.keys().texts().expect("values as they are");
            agree(&hashed, &plain_request, &texts);
        }
        (Err(error), Err(plain_error)) => assert_eq!(error, plain_error),
        (first, second) => panic!("{first:?} with hashed keys, {second:?} with plain values"),
    }
}

fn agree(hashed: &Request, plain: &Request, texts: &Texts) {
    assert_eq!((hashed.candidates, &hashed.shown), (plain.candidates, &plain.shown));
    if let (Some(items), Some(plain_items), Some(inputs)) = (&hashed.items, &plain.items, hashed.inputs.items)
    {
        let key = |&value: &u64| match inputs.is_text {
            true => key_of_bytes(texts.get(value), inputs.salt),
            false => key_of_int(value as i64, inputs.salt),
        };
        let keyed = |values: &Vec<u64>| values.iter().map(key).collect::<Vec<u64>>();
        assert_eq!((items.k, &items.exclude), (plain_items.k, &keyed(&plain_items.exclude)));
        assert_eq!(
            (items.allow.clone(), items.rank),
            (plain_items.allow.as_ref().map(keyed), plain_items.rank)
        );
    }
    assert_eq!(hashed.left_out, plain.left_out);
    let left_out = hashed.left_out.as_deref();
    for (columns, plain_columns, inputs, plain_inputs, left_out) in [
        (&hashed.user, &plain.user, &hashed.inputs.user, &plain.inputs.user, None),
        (&hashed.item, &plain.item, &hashed.inputs.item, &plain.inputs.item, left_out),
    ] {
        let pairs = columns.iter().zip(plain_columns).zip(inputs).zip(plain_inputs).enumerate();
        for (column, (((values, plain_values), input), other)) in pairs {
            if !input.is_optional()
                && left_out.is_some_and(|left_out| left_out.columns.iter().any(|(at, _)| *at == column))
            {
                continue; // there is no key before it is filled
            }
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
            let hashed_again = match plain_values.clone() {
                Values::Keys(keys) => Values::Keys(keyed(&keys)),
                Values::Lists { keys, offsets, weights } => {
                    Values::Lists { keys: keyed(&keys), offsets, weights }
                }
                numbers => numbers,
            };
            assert_eq!(*values, hashed_again);
        }
    }
}

/// Checks that every column matches the inputs.
///
/// # Panics
/// If one does not.
pub fn check(request: &Request) {
    let Request { inputs, candidates, user, item, shown, prescores, .. } = request;
    let limits = inputs.limits;
    assert_eq!(inputs.items.is_some(), request.items.is_some());
    if let Some((items, wishes)) = inputs.items.zip(request.items.as_ref()) {
        assert!((1..=items.k_max).contains(&wishes.k) && *candidates == 1);
        let ids = wishes.exclude.len().max(wishes.allow.as_ref().map_or(0, Vec::len));
        assert!(ids <= limits.message_bytes_max / 8);
    }
    assert!((1..=limits.candidates_max).contains(candidates));
    let ranked = request.items.as_ref().filter(|items| items.rank.is_some());
    let shown_max = ranked.map_or(*candidates, |items| items.k);
    assert!(shown.iter().flatten().all(|&index| (index as usize) < shown_max));
    assert!(prescores.as_ref().is_none_or(|expected| expected.len() == *candidates));
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
            if let Count::Newest(newest_max) = values {
                assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] <= *newest_max as i32));
            }
        }
        (Kind::Dense { width, .. }, Values::Numbers(numbers)) => {
            assert_eq!(numbers.len(), rows * width);
            assert!(numbers.iter().all(|number| number.is_finite()));
        }
        _ => panic!("{values:?} in a column of {kind:?}"),
    }
}
