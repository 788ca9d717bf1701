//! The impression log: events match their schema, are selected by request id, and stay within the queue's
//! bounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rig::asks::*;
use prost::Message;
use streamlearn_scan::Blocks;
use streamlearn_serve::answer::{Answer, Cut};
use streamlearn_serve::impression_log::{Batch, Shown, ShownLimits};
use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{CallerOptions, Naming, RequestFormat, decode, every_kind};
use streamlearn_serve::versions::item_index::{FoundItems, ItemIndex};
use streamlearn_serve::versions::raw_ids::RawIds;
use streamlearn_wire::avro::{Column, Decoder, Limits as ReadLimits, Plan};

const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 1 << 20 };
pub const ALL: ShownLimits = ShownLimits { share: 1.0, events_max: 100, bytes_max: 1 << 20 };
const BATCH: Batch = Batch { events_max: 100, event_bytes_max: 1 << 16, linger: Duration::ZERO };
pub const DESCRIPTION: &str = r#"{"prefix": [7, 8], "item_segments": 2, "items_max": 5,
    "defaults": {"user_word": "Größe", "item_word": ""}}"#;

fn naming() -> Naming {
    every_kind(LIMITS)
}

fn shown(limits: ShownLimits) -> Shown {
    Shown::new(&naming(), DESCRIPTION, limits).unwrap()
}

fn field(name: &str, kind: &str) -> String {
    format!(r#"{{"name": "{name}", "type": {kind}}}"#)
}

/// The schema of impressions; those of an application with a library have the keys of texts that are taken from there.
fn schema(has_library: bool) -> String {
    let list = |of: &str| format!(r#"{{"type": "array", "items": {of}}}"#);
    let side = |of: &str| {
        [
            ("id", r#""long""#.to_owned()),
            ("word", r#""string""#.to_owned()),
            ("tags", list(r#""string""#)),
            ("likes", list(r#""long""#)),
            ("likes_weights", list(r#""float""#)),
            ("seen", list(r#""long""#)),
            ("seen_where", list(r#""string""#)),
            ("age", r#""float""#.to_owned()),
            ("place", list(r#""float""#)),
        ]
        .map(|(name, kind)| field(&format!("{of}_{name}"), &kind))
        .join(",")
    };
    let record =
        |name: &str, fields: &str| format!(r#"{{"type": "record", "name": "{name}", "fields": [{fields}]}}"#);
    let score = |label: &str| field(&format!("served_score_{label}"), r#"["null", "float"]"#);
    let text = r#""string""#;
    let mut items = vec![side("item")];
    if has_library {
        let keys = |slot| field(&format!("served_keys_item_{slot}"), &list(r#""long""#));
        items.extend(["word", "tags"].map(keys));
    }
    items.extend([field("new", text), field("where", text), score("click"), score("like")]);
    let item = items.join(",");
    let fields = [
        field("request_id", text),
        field("event_time_ms", r#""long""#),
        field("shown_wall_ms", r#""long""#),
        field("served_version", r#"["null", "long"]"#),
        field("segments", &record("Segments", &[field("page", text), field("arm", text)].join(","))),
        field("user", &record("User", &side("user"))),
        field("items", &list(&record("Item", &item))),
    ];
    record("Impression", &fields.join(","))
}

/// The columns of the logged events, by name.
fn columns(shown: &Shown) -> Vec<(String, Column)> {
    columns_of(shown, false)
}

pub fn columns_of(shown: &Shown, has_library: bool) -> Vec<(String, Column)> {
    let events = shown.take(Duration::ZERO, &BATCH).unwrap();
    let schema = schema(has_library);
    let plan = Plan::new(&schema, &schema).unwrap();
    let mut decoder = Decoder::new(&plan, ReadLimits::default());
    for (row, span) in events.offsets.windows(2).enumerate() {
        let event = &events.buffer[span[0] as usize..span[1] as usize];
        assert_eq!(event[..2], [7, 8]);
        decoder.push(row, &event[2..]).unwrap();
    }
    let decoded = decoder.finish();
    assert!(decoded.failures.is_empty(), "{:?}", decoded.failures);
    let names = plan.columns().map(|(name, _)| name.to_owned());
    names.zip(decoded.columns).collect()
}

pub fn of<'a>(columns: &'a [(String, Column)], name: &str) -> &'a Column {
    &columns.iter().find(|(column_name, _)| column_name == name).unwrap().1
}

/// Logs a request answered with ascending logits.
fn answer(shown: &Shown, ask: &InferAsk) {
    answer_cut(shown, ask, Cut::default());
}

fn answer_cut(shown: &Shown, ask: &InferAsk, cut: Cut) {
    let bytes = ask.encode_to_vec();
    let (request, form) = decode(&bytes, &naming(), CallerOptions::default()).unwrap();
    if let Some(request_copy) = shown.keep(&request, RequestFormat::Grpc, &bytes) {
        let scores =
            (0..2 * request.candidates).map(|at| if at == 3 { f32::NAN } else { at as f32 }).collect();
        shown.note(
            request_copy,
            form.id,
            Answer {
                version: 18,
                scores,
                cut,
                found: None,
                computed: None,
                filled: None,
                order: None,
                arm: Some("tower:new".into()),
            },
        );
    }
}

fn named(id: &str) -> InferAsk {
    InferAsk { id: id.to_owned(), ..ask(&least(), true) }
}

#[test]
fn an_event_holds_what_was_given_and_the_defaults_of_what_was_not() {
    let shown = shown(ALL);
    let mut inputs = with("user_tags", &[2], Data::texts(&["a", "ö"]));
    inputs.push(("user_seen", vec![4], Data::Int64(vec![1, 2, 3, 4])));
    inputs.push(("user_seen_where", vec![4], Data::texts(&["p", "q", "r", "s"])));
    inputs.push(("item_likes", vec![3, 1], Data::Uint32(vec![4, 5, 6])));
    inputs.push(("item_likes.weights", vec![3, 1], Data::Fp64(vec![0.5, 0.25, 2.0])));
    inputs.push(("item_word", vec![3], Data::texts(&["x", "", "yz"])));
    for is_raw in [true, false] {
        let request = with_parameter(ask(&inputs, is_raw), "shown", Choice::Text("2,1".to_owned()));
        answer(&shown, &InferAsk { id: "q7".to_owned(), ..request });
        let columns = columns(&shown);
        let of = |name: &str| of(&columns, name);
        assert_eq!(*of("request_id"), Column::U8(b"q7".to_vec()));
        assert_eq!(*of("served_version"), Column::I64(vec![18]));
        assert_eq!(of("event_time_ms"), of("shown_wall_ms"));
        assert_eq!(*of("user.user_id"), Column::I64(vec![5]));
        assert_eq!(*of("user.user_word"), Column::U8("Größe".into()));
        assert_eq!(*of("user.user_tags"), Column::U8("aö".into()));
        // The values of a history that the model reads.
        assert_eq!(*of("user.user_seen"), Column::I64(vec![2, 3, 4]));
        assert_eq!(*of("user.user_seen_where"), Column::U8(b"qrs".to_vec()));
        assert_eq!(*of("user.user_age"), Column::F32(vec![0.5]));
        assert_eq!(*of("user.user_place"), Column::F32(vec![0.25; 2]));
        assert_eq!(*of("items[]"), Column::I32(vec![0, 2]));
        assert_eq!(*of("items.item_id"), Column::I64(vec![i64::MAX, -8]));
        assert_eq!(*of("items.item_word"), Column::U8(b"yz".to_vec()));
        assert_eq!(*of("items.item_likes"), Column::I64(vec![6, 5]));
        assert_eq!(*of("items.item_likes_weights"), Column::F32(vec![2.0, 0.25]));
        // NaN is not a score.
        assert_eq!(*of("items.served_score_like?"), Column::U8(vec![1, 0]));
        let score = |logit: f32| 1.0 / (1.0 + (-logit).exp());
        assert_eq!(*of("items.served_score_click"), Column::F32(vec![score(4.0), score(2.0)]));
    }
}

#[test]
fn an_event_holds_only_what_an_overloaded_node_read_and_scored() {
    let shown = shown(ALL);
    let mut inputs = with("user_seen", &[4], Data::Int64(vec![1, 2, 3, 4]));
    inputs.push(("user_seen_where", vec![4], Data::texts(&["p", "q", "r", "s"])));
    let request = with_parameter(ask(&inputs, true), "segments", Choice::Text("page=home".to_owned()));
    answer_cut(&shown, &request, Cut { scored: Some(1), length: Some(2) });
    let columns = columns(&shown);
    assert_eq!(*of(&columns, "segments.page"), Column::U8(b"home".to_vec()));
    assert_eq!(*of(&columns, "segments.arm"), Column::U8(b"tower:new".to_vec()));
    assert_eq!(*of(&columns, "user.user_seen"), Column::I64(vec![3, 4]));
    assert_eq!(*of(&columns, "user.user_seen_where"), Column::U8(b"rs".to_vec()));
    assert_eq!(*of(&columns, "items[]"), Column::I32(vec![0, 1]));
}

#[test]
fn at_a_bound_requests_are_let_go_of_and_counted() {
    let full = shown(ShownLimits { events_max: 2, ..ALL });
    (0..5).for_each(|at| answer(&full, &named(&format!("q{at}"))));
    let figures = full.figures();
    assert_eq!((figures.waiting, figures.noted, figures.dropped), (2, 2, 3));
    assert_eq!(*of(&columns(&full), "request_id"), Column::U8(b"q0q1".to_vec()));
    assert_eq!((full.figures().waiting, full.figures().waiting_bytes), (0, 0));
    let small = shown(ShownLimits { bytes_max: 600, ..ALL });
    (0..5).for_each(|at| answer(&small, &named(&format!("q{at}"))));
    assert!(small.figures().waiting_bytes <= 600 && small.figures().dropped > 0, "{:?}", small.figures());
}

#[test]
fn items_that_were_retrieved_count_for_the_bound() {
    let small = shown(ShownLimits { bytes_max: 4_096, ..ALL });
    let bytes = ask(&least(), true).encode_to_vec();
    let (request, form) = decode(&bytes, &naming(), CallerOptions::default()).unwrap();
    let (blocks, ids) = (Arc::new(Blocks::new(4).unwrap()), Arc::new(RawIds::new(false)));
    let index = Arc::new(ItemIndex { blocks, ids, as_of_ms: None, probes: None, identity: 0 });
    let (keys, scores, order) = ((0..500).collect(), vec![1.0; 500], Some(vec![0]));
    let found = Some(Box::new(FoundItems { keys, scores, probed: None, index, origin: None }));
    let (version, scores, cut, computed, filled) = (18, Vec::new(), Cut::default(), None, None);
    let answer = Answer { version, scores, cut, found, computed, filled, order, arm: None };
    small.note(small.keep(&request, RequestFormat::Grpc, &bytes).unwrap(), form.id, answer);
    assert_eq!((small.figures().noted, small.figures().dropped), (0, 1));
}

#[test]
fn what_no_reader_would_take_is_counted_and_leaves_no_trace() {
    let shown = shown(ALL);
    let many =
        vec![("user_id", vec![1], Data::Int64(vec![5])), ("item_id", vec![6], Data::Int64((0..6).collect()))];
    answer(&shown, &ask(&many, true));
    answer(&shown, &ask(&with("user_tags", &[6], Data::texts(&["a"; 6])), true));
    answer(&shown, &named("good"));
    assert_eq!(*of(&columns(&shown), "request_id"), Column::U8(b"good".to_vec()));
    let figures = shown.figures();
    assert_eq!((figures.noted, figures.refused), (3, 2));
    assert!(figures.said.contains("user_tags"), "{}", figures.said);
    answer(&shown, &named("large"));
    let small = Batch { event_bytes_max: 40, ..BATCH };
    assert_eq!(shown.take(Duration::ZERO, &small).unwrap().offsets, [0]);
    assert_eq!(shown.figures().refused, 3);
}

#[test]
fn requests_are_chosen_by_their_ids_alone() {
    let (third, all) = (shown(ShownLimits { share: 0.3, ..ALL }), shown(ALL));
    let same_share = shown(ShownLimits { share: 0.3, ..ALL });
    let half = shown(ShownLimits { share: 0.5, ..ALL });
    let ids: Vec<String> = (0..2_000).map(|at| format!("request {at}")).collect();
    let selected = |shown: &Shown| ids.iter().filter(|id| shown.chooses(id.as_bytes())).count();
    assert!((500..700).contains(&selected(&third)), "{}", selected(&third));
    assert_eq!((selected(&same_share), selected(&all)), (selected(&third), 2_000));
    // The join drops the actions on requests that it takes for unlogged, so it must make the same choice.
    let joined = |id: &&String| streamlearn_join::is_logged(id.as_bytes(), 0.3);
    assert_eq!(ids.iter().filter(joined).collect::<Vec<_>>(), {
        ids.iter().filter(|id| third.chooses(id.as_bytes())).collect::<Vec<_>>()
    });
    // A larger share includes all of a smaller one.
    assert!(ids.iter().all(|id| !third.chooses(id.as_bytes()) || half.chooses(id.as_bytes())));
}

#[test]
fn the_first_waits_for_others_and_what_is_left_is_given_at_once_when_it_ends() {
    let shown = shown(ALL);
    let patient = Batch { linger: Duration::from_secs(60), ..BATCH };
    answer(&shown, &named("a"));
    assert_eq!(shown.take(Duration::ZERO, &patient), None);
    let full = Batch { events_max: 1, ..patient };
    assert_eq!(shown.take(Duration::from_secs(30), &full).unwrap().items, [3]);
    answer(&shown, &named("b"));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| shown.take(Duration::from_secs(30), &patient));
        shown.close();
        assert_eq!(taker.join().unwrap().unwrap().ids, b"b");
    });
    answer(&shown, &named("c"));
    assert_eq!((shown.take(Duration::from_secs(30), &patient), shown.figures().dropped), (None, 1));
    assert!(started.elapsed() < Duration::from_secs(25));
}
