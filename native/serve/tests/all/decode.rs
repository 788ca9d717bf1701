//! gRPC requests as bytes: every valid form is decoded into its columns, and every invalid one is refused
//! with the input's name.

use crate::rig::asks::*;
use proptest::prelude::*;
use prost::Message;
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::inputs::{Inputs as ModelInputs, Limits};
use streamlearn_serve::protocol::{
    CallerOptions, Form, Naming, check, decode, every_kind, every_kind_in_library,
};
use streamlearn_serve::request::{Request, Values};
use streamlearn_wire::keys::{key_of_bytes, key_of_int, slot_salt};

const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 1 << 20 };

fn read(ask: &InferAsk) -> Result<(Request, Form), Refusal> {
    decode(&ask.encode_to_vec(), &every_kind(LIMITS), CallerOptions::default())
}

/// Decodes a valid request in both encodings, and checks that they agree.
fn good(inputs: &Inputs) -> Request {
    let (mut typed, form) = read(&ask(inputs, false)).unwrap();
    let (raw, raw_form) = read(&ask(inputs, true)).unwrap();
    assert_eq!((&form.raw[..], &raw_form.raw[..]), (&[false, false][..], &[true, true][..]));
    assert_ne!(typed.id, raw.id, "generated ids differ");
    typed.id = raw.id.clone();
    assert_eq!(typed, raw);
    check(&raw);
    raw
}

/// The error of a request that is invalid in both encodings.
fn refusal_of(inputs: &Inputs) -> String {
    let text_of = |is_raw| match read(&ask(inputs, is_raw)) {
        Err(Refusal::Bad(text)) => text,
        other => panic!("{other:?}"),
    };
    let (typed, raw) = (text_of(false), text_of(true));
    assert_eq!(typed.split_once(':').map(|parts| parts.0), raw.split_once(':').map(|parts| parts.0));
    raw
}

fn ints(name: &str, values: &[i64]) -> Vec<u64> {
    values.iter().map(|&value| key_of_int(value, slot_salt(name))).collect()
}

fn texts(name: &str, values: &[&str]) -> Vec<u64> {
    values.iter().map(|value| key_of_bytes(value.as_bytes(), slot_salt(name))).collect()
}

fn lists(keys: Vec<u64>, offsets: &[i32], weights: Option<&[f32]>) -> Values {
    Values::Lists { keys, offsets: offsets.to_vec(), weights: weights.map(<[f32]>::to_vec) }
}

#[test]
fn what_is_left_out_takes_its_default() {
    let request = good(&least());
    let empty = |rows: usize| vec![0; rows + 1];
    let side = |name: &str, ids: &[i64]| {
        let rows = ids.len();
        vec![
            Values::Keys(ints(name, ids)),
            Values::Keys(vec![77; rows]),
            lists(vec![], &empty(rows), None),
            lists(vec![], &empty(rows), Some(&[])),
            lists(vec![], &empty(rows), None),
            lists(vec![], &empty(rows), None),
            Values::Numbers(vec![0.5; rows]),
            Values::Numbers(vec![0.25; 2 * rows]),
        ]
    };
    assert_eq!(request.candidates, 3);
    assert_eq!(request.user, side("user_id", &[5]));
    assert_eq!(request.item, side("item_id", &[7, -8, i64::MAX]));
    assert_eq!((request.shown, request.wishes), (None, Default::default()));
}

#[test]
fn single_values_come_in_every_datatype_that_holds_them() {
    let of = |data| good(&vec![("user_id", vec![], data), least()[1].clone()]).user[0].clone();
    let five = Values::Keys(ints("user_id", &[5]));
    for data in [Data::Int32(vec![5]), Data::Int64(vec![5]), Data::Uint32(vec![5]), Data::Uint64(vec![5])] {
        assert_eq!(of(data), five);
    }
    assert_eq!(of(Data::Int32(vec![-5])), Values::Keys(ints("user_id", &[-5])));
    let word = |inputs| good(&inputs).item[1].clone();
    let expected = Values::Keys(texts("item_word", &["a", "", "zé"]));
    assert_eq!(word(with("item_word", &[3], Data::texts(&["a", "", "zé"]))), expected);
    assert!(
        refusal_of(&with("item_word", &[3], Data::Bytes(vec![vec![0xff], vec![], vec![]])))
            .contains("not valid UTF-8")
    );
    let large = vec![("user_id", vec![1], Data::Uint64(vec![1 << 63])), least()[1].clone()];
    assert!(refusal_of(&large).contains("9223372036854775808 does not fit"));
}

#[test]
fn lists_of_the_user_are_one_dimension() {
    let tags = |shape: &[i64]| good(&with("user_tags", shape, Data::texts(&["a", "b"]))).user[2].clone();
    let expected = lists(texts("user_tags", &["a", "b"]), &[0, 2], None);
    assert_eq!((tags(&[2]), tags(&[1, 2])), (expected.clone(), expected));
    assert_eq!(
        refusal_of(&with("user_tags", &[2, 1], Data::texts(&["a", "b"]))),
        "input \"user_tags\": shape [2, 1], expected [k], one for each value"
    );
}

#[test]
fn lists_of_candidates_have_lengths_or_are_all_as_long() {
    let values = Data::texts(&["a", "b", "c"]);
    let mut with_lengths = with("item_tags", &[3], values.clone());
    with_lengths.push(("item_tags.lengths", vec![3], Data::Int32(vec![1, 0, 2])));
    let keys = texts("item_tags", &["a", "b", "c"]);
    assert_eq!(good(&with_lengths).item[2], lists(keys.clone(), &[0, 1, 1, 3], None));
    assert_eq!(good(&with("item_tags", &[3, 1], values)).item[2], lists(keys, &[0, 1, 2, 3], None));
    let nothing = good(&with("item_tags", &[3, 0], Data::texts(&[]))).item[2].clone();
    assert_eq!(nothing, lists(vec![], &[0, 0, 0, 0], None));
}

#[test]
fn lengths_that_lie_are_refused() {
    let of = |lengths: Data, shape: i64| {
        let mut inputs = with("item_tags", &[3], Data::texts(&["a", "b", "c"]));
        inputs.push(("item_tags.lengths", vec![shape], lengths));
        refusal_of(&inputs)
    };
    assert!(of(Data::Int32(vec![1, 0, 1]), 3).contains("the sum of its lengths is 2, for 3 values"));
    assert!(of(Data::Int64(vec![1, 0, i64::MAX]), 3).contains("one of its lengths is 9223372036854775807"));
    assert!(of(Data::Int32(vec![4, -1, 0]), 3).contains("one of its lengths is 4"));
    assert!(of(Data::Int32(vec![1, -1, 3]), 3).contains("one of its lengths is -1"));
    assert!(of(Data::Fp32(vec![1.0, 1.0, 1.0]), 3).contains("datatype FP32, expected INT32 or INT64"));
    let text_of_two = of(Data::Int32(vec![1, 2]), 2);
    assert!(
        text_of_two.contains("\"item_tags.lengths\" has 2 candidates, but \"item_id\" has 3"),
        "{text_of_two}"
    );
    let alone = refusal_of(&with("item_tags.lengths", &[3], Data::Int32(vec![0, 0, 0])));
    assert!(alone.contains("\"item_tags.lengths\": it is given without \"item_tags\""), "{alone}");
    let flat = refusal_of(&with("item_tags", &[3], Data::texts(&["a", "b", "c"])));
    assert!(
        flat.contains("expected [n, k]") && flat.contains("\"item_tags.lengths\" of shape [n]"),
        "{flat}"
    );
}

#[test]
fn weights_are_as_many_as_values() {
    let of = |name, values: &[i64], shape: &[i64], weights: Option<(&'static str, Vec<i64>, Data)>| {
        let mut inputs = with(name, shape, Data::Int64(values.to_vec()));
        inputs.extend(weights);
        inputs
    };
    let user =
        of("user_likes", &[1, 2], &[2], Some(("user_likes.weights", vec![2], Data::Fp32(vec![0.5, 2.0]))));
    assert_eq!(good(&user).user[3], lists(ints("user_likes", &[1, 2]), &[0, 2], Some(&[0.5, 2.0])));
    let weights = ("item_likes.weights", vec![3, 1], Data::Fp64(vec![1.0, 2.0, 3.0]));
    let item = of("item_likes", &[1, 2, 3], &[3, 1], Some(weights));
    let expected = lists(ints("item_likes", &[1, 2, 3]), &[0, 1, 2, 3], Some(&[1.0, 2.0, 3.0]));
    assert_eq!(good(&item).item[3], expected);
    assert!(
        refusal_of(&of("user_likes", &[1], &[1], None)).contains("\"user_likes.weights\": it is missing")
    );
    for (weights, expected_text) in [
        (Data::Fp32(vec![1.0, 2.0]), "shape [2], expected [1]"),
        (Data::Fp32(vec![f32::NAN]), "not finite"),
        (Data::Fp64(vec![1e300]), "not finite"),
        (Data::Int64(vec![1]), "datatype INT64, expected FP32 or FP64"),
    ] {
        let count = if let Data::Fp32(values) = &weights { values.len() as i64 } else { 1 };
        let text =
            refusal_of(&of("user_likes", &[1], &[1], Some(("user_likes.weights", vec![count], weights))));
        assert!(text.contains("user_likes.weights") && text.contains(expected_text), "{text}");
    }
}

#[test]
fn of_histories_the_newest_are_kept_and_they_are_as_long_as_each_other() {
    let of = |seen: &[i64], places: &[&str]| {
        let mut inputs = with("user_seen", &[seen.len() as i64], Data::Int64(seen.to_vec()));
        inputs.push(("user_seen_where", vec![places.len() as i64], Data::texts(places)));
        inputs
    };
    let request = good(&of(&[1, 2, 3, 4, 5], &["a", "b", "c", "d", "e"]));
    assert_eq!(request.user[4], lists(ints("user_seen", &[3, 4, 5]), &[0, 3], None));
    assert_eq!(request.user[5], lists(texts("user_seen_where", &["c", "d", "e"]), &[0, 3], None));
    let other = refusal_of(&of(&[1, 2, 3, 4, 5], &["a", "b", "c", "d"]));
    assert!(
        other.contains("\"user_seen_where\"") && other.contains("4 values, but \"user_seen\" has 5"),
        "{other}"
    );
    assert!(refusal_of(&with("user_seen", &[1], Data::Int64(vec![1]))).contains("must have the same length"));
    let mut items = with("item_seen", &[5], Data::Int64(vec![1, 2, 3, 4, 5]));
    items.push(("item_seen.lengths", vec![3], Data::Int32(vec![0, 4, 1])));
    items.push(("item_seen_where", vec![5], Data::texts(&["a", "b", "c", "d", "e"])));
    items.push(("item_seen_where.lengths", vec![3], Data::Int32(vec![0, 4, 1])));
    assert_eq!(good(&items).item[4], lists(ints("item_seen", &[2, 3, 4, 5]), &[0, 0, 3, 4], None));
}

#[test]
fn dense_columns_have_their_width() {
    let of = |name, shape: &[i64], values: &[f32]| with(name, shape, Data::Fp32(values.to_vec()));
    assert_eq!(good(&of("user_place", &[2], &[1.0, 2.0])).user[7], Values::Numbers(vec![1.0, 2.0]));
    assert_eq!(good(&of("user_place", &[1, 2], &[1.0, 2.0])).user[7], Values::Numbers(vec![1.0, 2.0]));
    assert_eq!(good(&of("user_age", &[], &[1.0])).user[6], Values::Numbers(vec![1.0]));
    assert_eq!(good(&of("item_age", &[3], &[1.0; 3])).item[6], Values::Numbers(vec![1.0; 3]));
    assert_eq!(good(&of("item_age", &[3, 1], &[1.0; 3])).item[6], Values::Numbers(vec![1.0; 3]));
    assert_eq!(good(&of("item_place", &[3, 2], &[1.0; 6])).item[7], Values::Numbers(vec![1.0; 6]));
    let wide = good(&with("item_age", &[3], Data::Fp64(vec![0.1; 3]))).item[6].clone();
    assert_eq!(wide, Values::Numbers(vec![0.1; 3]));
    for (name, shape, count, expected) in [
        ("user_place", &[3][..], 3, "shape [3], expected [2] or [1, 2]"),
        ("item_place", &[6], 6, "shape [6], expected [n, 2]"),
        ("item_place", &[2, 3], 6, "shape [2, 3], expected [n, 2]"),
        ("item_age", &[3, 1, 1], 3, "shape [3, 1, ... 3 dimensions], expected [n] or [n, 1]"),
    ] {
        let text = refusal_of(&of(name, shape, &vec![1.0; count]));
        assert!(text.contains(name) && text.contains(expected), "{text}");
    }
    assert!(refusal_of(&of("item_age", &[3], &[1.0, f32::INFINITY, 1.0])).contains("inf is not finite"));
}

#[test]
fn what_is_no_input_or_not_as_it_must_be_is_refused_by_name() {
    let mut twice = least();
    twice.push(least()[0].clone());
    let many = vec![least()[0].clone(); 100];
    let mut many_with_nope = many.clone();
    many_with_nope[0] = ("nope", vec![1], Data::Int64(vec![1]));
    for (inputs, expected) in [
        (with("nope", &[1], Data::Int64(vec![1])), "unknown input \"nope\"; help: user inputs are user_id"),
        (many_with_nope, "unknown input \"nope\"; help: user inputs are user_id"),
        (many, " inputs; help: user inputs are user_id"),
        (with("user_tags.lengths", &[1], Data::Int64(vec![1])), "unknown input "),
        (twice, "\"user_id\" is given twice"),
        (vec![least()[1].clone()], "\"user_id\": it is missing and has no default"),
        (vec![least()[0].clone()], "no candidate input is given"),
        (vec![], "no candidate input is given"),
        (
            with("item_word", &[2], Data::texts(&["a", "b"])),
            "\"item_word\" has 2 candidates, but \"item_id\" has 3",
        ),
        (
            with("item_word", &[3], Data::Int64(vec![1, 2, 3])),
            "datatype INT64, expected BYTES, because its values are texts",
        ),
        (
            with("user_likes", &[1], Data::texts(&["1"])),
            "datatype BYTES, expected INT64 (or INT32, UINT32, UINT64)",
        ),
        (with("user_age", &[1], Data::Int64(vec![1])), "datatype INT64, expected FP32 or FP64"),
        (
            vec![least()[0].clone(), ("item_id", vec![0], Data::Int64(vec![]))],
            "has 0 candidates; at least 1 is required",
        ),
        (
            vec![least()[0].clone(), ("item_id", vec![65], Data::Int64(vec![1; 65]))],
            "65 candidates; at most 64 are allowed",
        ),
        (with("user_tags", &[257], Data::texts(&["a"; 257])), "shape [257] has more than 256 values"),
        (with("user_tags", &[-1], Data::texts(&["a"])), "a dimension of its shape is -1"),
    ] {
        let text = refusal_of(&inputs);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn contents_that_are_not_as_many_as_the_shape_says_are_refused() {
    let of = |shape: i64, data: Data| {
        let inputs = vec![("user_id", vec![], Data::Int64(vec![1])), ("item_id", vec![shape], data)];
        refusal_of(&inputs)
    };
    assert!(of(3, Data::Int64(vec![1, 2])).contains("16 bytes, expected 3 values of 8 bytes each"));
    assert!(of(2, Data::Int64(vec![1, 2, 3])).contains("24 bytes, expected 2 values of 8 bytes each"));
    let words = |shape: i64, texts: &[&str]| refusal_of(&with("item_word", &[shape], Data::texts(texts)));
    assert!(
        words(3, &["a", "b"]).contains("0 bytes end within value 2 of 3; expected a little-endian length")
    );
    assert!(words(3, &["a", "b", "c", "d"]).contains("5 extra bytes after 3 values"));
    let mut lying = ask(&with("item_word", &[3], Data::texts(&["a", "b", "c"])), true);
    lying.raw_input_contents[2][0] = 0xff;
    assert!(read(&lying).unwrap_err().to_string().contains("end within value 0 of 3"));
    let mut other = ask(&least(), false);
    other.inputs[0].contents = Some(Data::Fp32(vec![1.0]).contents());
    assert!(read(&other).unwrap_err().to_string().contains("contents do not have the type INT64"));
    let mut odd = ask(&least(), true);
    odd.inputs[0].datatype = "INT8".to_owned();
    assert!(read(&odd).unwrap_err().to_string().contains("datatype \"INT8\", expected INT64"));
}

#[test]
fn contents_stand_in_one_place_only() {
    let mut both = ask(&least(), true);
    both.inputs[0].contents = Some(Data::Int64(vec![5]).contents());
    assert!(read(&both).unwrap_err().to_string().contains("both contents and raw_input_contents"));
    let mut fewer = ask(&least(), true);
    fewer.raw_input_contents.pop();
    assert!(read(&fewer).unwrap_err().to_string().contains("2 inputs and 1 raw_input_contents"));
    let mut shared = ask(&least(), true);
    let region = Parameter { choice: Some(Choice::Text("r".to_owned())) };
    shared.inputs[0].parameters.insert("shared_memory_region".to_owned(), region);
    assert!(read(&shared).unwrap_err().to_string().contains("shared memory is not supported"));
    let mut many = ask(&least(), false);
    many.inputs = vec![many.inputs[0].clone(); 100];
    assert!(read(&many).unwrap_err().to_string().contains("more than"));
}

#[test]
fn wishes_are_read() {
    let mut request_sent = with_parameter(ask(&least(), true), "deadline_ms", Choice::Int(20));
    request_sent = with_parameter(request_sent, "timeout", Choice::Int(500_000));
    request_sent = with_parameter(request_sent, "priority", Choice::Uint(3));
    request_sent = with_parameter(request_sent, "route_key", Choice::Text("u5".to_owned()));
    request_sent = with_parameter(request_sent, "shown", Choice::Text("2,0".to_owned()));
    request_sent = with_output(with_output(request_sent, "like"), "click.logit");
    request_sent.model_version = "17".to_owned();
    request_sent.id = "mine".to_owned();
    let (request, form) = read(&request_sent).unwrap();
    assert_eq!((&request.id[..], &form.id[..]), (&b"mine"[..], &b"mine"[..]));
    assert_eq!((request.wishes.pin, request.wishes.deadline_us), (Some(17), Some(20_000)));
    let route = key_of_bytes(b"u5", slot_salt("route_key"));
    assert_eq!((request.wishes.priority, request.wishes.route), (3, Some(route)));
    assert_eq!(request.shown, Some(vec![2, 0]));
    let names: Vec<_> = form.outputs.iter().map(|output| output.name(&request.inputs.labels)).collect();
    assert_eq!(names, ["like", "click.logit"]);
}

#[test]
fn what_cannot_be_wished_is_refused() {
    let plain = || ask(&least(), false);
    let parameter = |name, choice| with_parameter(plain(), name, choice);
    for (ask, expected) in [
        (parameter("shown", Choice::Text("3".to_owned())), "candidate 3; the indices are 0 to 2"),
        (parameter("shown", Choice::Text("1,1".to_owned())), "twice"),
        (parameter("sequence_id", Choice::Int(1)), "unknown parameter \"sequence_id\""),
        (parameter("deadline_ms", Choice::Double(1.0)), "at least 1"),
        (InferAsk { model_version: "new".to_owned(), ..plain() }, "version \"new\" is not a number"),
        (InferAsk { id: "x".repeat(257), ..plain() }, "the id has 257 bytes, expected at most 256"),
        (with_output(plain(), "clack"), "unknown output \"clack\"; help: outputs are click, like"),
        (with_output(with_output(plain(), "click"), "click"), "requested twice"),
    ] {
        let refusal = read(&ask).unwrap_err();
        assert!(matches!(&refusal, Refusal::Bad(text) if text.contains(expected)), "{refusal}");
    }
    let other = InferAsk { model_name: "other".to_owned(), ..plain() };
    assert_eq!(
        read(&other).unwrap_err(),
        Refusal::Unknown("unknown model \"other\"; help: this node serves \"ctr\"".to_owned())
    );
}

#[test]
fn two_inputs_of_one_name_are_no_model() {
    let naming = every_kind(LIMITS);
    let inputs = naming.inputs();
    let twice = ModelInputs { item: inputs.user.clone(), ..ModelInputs::clone(inputs) };
    assert!(Naming::new("ctr", twice.into()).unwrap_err().contains("named \"user_id\""));
    // Nor may an input of the user be named as one of requests for items, which are ranked.
    let naming = every_kind_in_library(LIMITS);
    let mut inputs = ModelInputs::clone(naming.inputs());
    assert!(naming.ranking().unwrap().is_some());
    inputs.user[0].name = "rank_by".to_owned();
    let error = Naming::new("ctr", inputs.into()).unwrap().ranking().unwrap_err();
    assert_eq!(error, "two inputs of model \"ctr.recommend\" are named \"rank_by\"");
    let inputs = every_kind(LIMITS).inputs().clone();
    let limits = Limits { values_max: 1 << 31, ..LIMITS };
    let large = ModelInputs { limits, ..ModelInputs::clone(&inputs) };
    assert!(Naming::new("ctr", large.into()).unwrap_err().contains("values_max is 2147483648"));
}

/// Values of a slot for three candidates; some lists are empty.
fn three_lists() -> impl Strategy<Value = [Vec<i64>; 3]> {
    let list = || proptest::collection::vec(any::<i64>(), 0..6);
    [list(), list(), list()]
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        user in any::<i64>(),
        items in any::<[i64; 3]>(),
        words in any::<[String; 3]>(),
        likes in three_lists(),
        place in any::<[f32; 6]>(),
        is_raw: bool,
    ) {
        prop_assume!(place.iter().all(|value| value.is_finite()));
        let all: Vec<i64> = likes.concat();
        let weights: Vec<f32> = (0..all.len()).map(|at| at as f32).collect();
        let lengths: Vec<i32> = likes.iter().map(|list| list.len() as i32).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let count = all.len() as i64;
        let inputs = vec![
            ("item_likes.weights", vec![count], Data::Fp32(weights.clone())),
            ("item_likes", vec![count], Data::Int64(all.clone())),
            ("item_likes.lengths", vec![3], Data::Int32(lengths.clone())),
            ("item_word", vec![3], Data::texts(&words)),
            ("item_place", vec![3, 2], Data::Fp32(place.to_vec())),
            ("item_id", vec![3], Data::Int64(items.to_vec())),
            ("user_id", vec![1], Data::Int64(vec![user])),
        ];
        let (request, _) = read(&ask(&inputs, is_raw)).unwrap();
        check(&request);
        let mut offsets = vec![0];
        lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + length));
        prop_assert_eq!(&request.user[0], &Values::Keys(ints("user_id", &[user])));
        prop_assert_eq!(&request.item[0], &Values::Keys(ints("item_id", &items)));
        prop_assert_eq!(&request.item[1], &Values::Keys(texts("item_word", &words)));
        prop_assert_eq!(&request.item[3], &lists(ints("item_likes", &all), &offsets, Some(&weights)));
        prop_assert_eq!(&request.item[7], &Values::Numbers(place.to_vec()));
    }
}
