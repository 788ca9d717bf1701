//! Avro columns: round trips, bad records, resolution and limits.

use proptest::prelude::*;
use streamlearn_wire::avro::{Column, Decoded, Decoder, Limits, Plan, Slice, varint};

const EVENT: &str = r#"{"type": "record", "name": "Event", "namespace": "t", "fields": [
    {"name": "id", "type": "string"},
    {"name": "at", "type": "long"},
    {"name": "seen", "type": "boolean"},
    {"name": "device", "type": {"type": "enum", "name": "Device", "symbols": ["PHONE", "TV"]}},
    {"name": "raw", "type": ["bytes", "null"]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
        {"name": "video_id", "type": "long"},
        {"name": "score", "type": ["null", "float"]},
        {"name": "history", "type": {"type": "array", "items": ["null", "int"]}}]}}},
    {"name": "where", "type": ["null", {"type": "record", "name": "Where", "fields": [
        {"name": "lat", "type": "double"}, {"name": "cells", "type": {"type": "array", "items": "long"}}]}]}]}"#;

#[derive(Debug, Clone)]
struct Item {
    video_id: i64,
    score: Option<f32>,
    history: Vec<Option<i32>>,
}

#[derive(Debug, Clone)]
struct Event {
    id: String,
    at: i64,
    seen: bool,
    device: i64,
    raw: Option<Vec<u8>>,
    tags: Vec<String>,
    items: Vec<Item>,
    place: Option<(f64, Vec<i64>)>,
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::write(out, bytes.len() as i64);
    out.extend(bytes);
}

fn list<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    if !items.is_empty() {
        varint::write(out, items.len() as i64);
        items.iter().for_each(|item| write(out, item));
    }
    out.push(0);
}

impl Event {
    /// The record as the specification describes it, written without the code under test.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        text(&mut out, self.id.as_bytes());
        varint::write(&mut out, self.at);
        out.push(u8::from(self.seen));
        varint::write(&mut out, self.device);
        match &self.raw {
            Some(raw) => {
                out.push(0);
                text(&mut out, raw);
            }
            None => out.push(2),
        }
        list(&mut out, &self.tags, |out, tag| text(out, tag.as_bytes()));
        list(&mut out, &self.items, |out, item| {
            varint::write(out, item.video_id);
            match item.score {
                Some(score) => {
                    out.push(2);
                    out.extend(score.to_le_bytes());
                }
                None => out.push(0),
            }
            list(out, &item.history, |out, value| match value {
                Some(value) => {
                    out.push(2);
                    varint::write(out, i64::from(*value));
                }
                None => out.push(0),
            });
        });
        match &self.place {
            Some((lat, cells)) => {
                out.push(2);
                out.extend(lat.to_le_bytes());
                list(&mut out, cells, |out, cell| varint::write(out, *cell));
            }
            None => out.push(0),
        }
        out
    }
}

prop_compose! {
    fn item()(
        video_id: i64,
        score in prop::option::of(-1e6f32..1e6),
        history in prop::collection::vec(any::<Option<i32>>(), 0..4),
    ) -> Item {
        Item { video_id, score, history }
    }
}

prop_compose! {
    fn event()(
        id in ".{0,12}",
        at: i64,
        seen: bool,
        device in 0i64..2,
        raw in any::<Option<Vec<u8>>>(),
        tags in prop::collection::vec(".{0,5}", 0..3),
        items in prop::collection::vec(item(), 0..3),
        place in prop::option::of((-90f64..90.0, prop::collection::vec(any::<i64>(), 0..3))),
    ) -> Event {
        Event { id, at, seen, device, raw, tags, items, place }
    }
}

fn plan(writer: &str, reader: &str) -> Plan {
    Plan::new(writer, reader).unwrap()
}

fn decode(plan: &Plan, records: &[impl AsRef<[u8]>]) -> Decoded {
    let mut decoder = Decoder::new(plan, Limits::default());
    for (index, record) in records.iter().enumerate() {
        decoder.push(index, record.as_ref()).unwrap();
    }
    decoder.finish()
}

fn column<'a>(plan: &Plan, decoded: &'a Decoded, name: &str) -> &'a Column {
    let place = plan.columns().position(|(column_name, _)| column_name == name).unwrap();
    &decoded.columns[place]
}

fn encode(plan: &Plan, columns: &[Column], rows: usize) -> Vec<Vec<u8>> {
    let slices: Vec<Option<Slice<'_>>> = columns.iter().map(|column| Some(column.slice())).collect();
    let (bytes, offsets) = plan.encode(&slices, rows, b"").unwrap();
    offsets.windows(2).map(|pair| bytes[pair[0] as usize..pair[1] as usize].to_vec()).collect()
}

proptest! {
    #[test]
    fn records_come_back_from_their_columns(events in prop::collection::vec(event(), 0..6)) {
        let plan = plan(EVENT, EVENT);
        let records: Vec<_> = events.iter().map(Event::bytes).collect();
        let decoded = decode(&plan, &records);
        prop_assert_eq!(&decoded.failures, &[]);
        prop_assert_eq!(encode(&plan, &decoded.columns, records.len()), records);
    }

    #[test]
    fn a_record_cut_at_any_byte_fails_and_leaves_no_trace(before in event(), torn in event(), after in event()) {
        let plan = plan(EVENT, EVENT);
        let torn = torn.bytes();
        let expected = decode(&plan, &[before.bytes(), after.bytes()]);
        for cut in 0..torn.len() {
            let decoded = decode(&plan, &[before.bytes(), torn[..cut].to_vec(), after.bytes()]);
            prop_assert_eq!(&decoded.columns, &expected.columns);
            prop_assert_eq!(&decoded.rows, &[0, 2]);
            prop_assert_eq!(decoded.failures.len(), 1);
            prop_assert_eq!(decoded.failures[0].index, 1);
        }
    }

    #[test]
    fn a_record_with_any_byte_changed_leaves_others_whole(
        before in event(), bad in event(), after in event(), place: prop::sample::Index, byte: u8,
    ) {
        let plan = plan(EVENT, EVENT);
        let mut bad = bad.bytes();
        let place = place.index(bad.len());
        bad[place] = byte;
        let decoded = decode(&plan, &[before.bytes(), bad.clone(), after.bytes()]);
        let mut expected = vec![before.bytes()];
        if decoded.failures.is_empty() {
            // The changed byte made another valid record: its values must come back, though maybe not its
            // bytes.
            let alone = decode(&plan, &[bad]);
            expected.extend(encode(&plan, &alone.columns, 1));
        }
        expected.push(after.bytes());
        prop_assert_eq!(encode(&plan, &decoded.columns, decoded.rows.len()), expected);
    }

    #[test]
    fn garbage_never_panics_and_never_mixes_into_columns(
        records in prop::collection::vec(prop::collection::vec(0u8..12, 0..40), 0..20),
    ) {
        let plan = plan(EVENT, EVENT);
        let decoded = decode(&plan, &records);
        prop_assert_eq!(decoded.rows.len() + decoded.failures.len(), records.len());
        prop_assert_eq!(encode(&plan, &decoded.columns, decoded.rows.len()).len(), decoded.rows.len());
    }

    #[test]
    fn a_reader_of_nothing_skips_everything(events in prop::collection::vec(event(), 0..4)) {
        let plan = plan(EVENT, r#"{"type": "record", "name": "Event", "fields": [{"name": "at", "type": "double"}]}"#);
        let records: Vec<_> = events.iter().map(Event::bytes).collect();
        let decoded = decode(&plan, &records);
        let expected = events.iter().map(|event| event.at as f64).collect();
        prop_assert_eq!(column(&plan, &decoded, "at"), &Column::F64(expected));
        for record in records {
            for cut in 0..record.len() {
                prop_assert_eq!(decode(&plan, &[&record[..cut]]).failures.len(), 1);
            }
        }
    }
}

fn of(fields: &str) -> String {
    format!(r#"{{"type": "record", "name": "R", "fields": [{fields}]}}"#)
}

fn reason(plan: &Plan, record: &[u8]) -> String {
    let decoded = decode(plan, &[record]);
    assert_eq!(decoded.failures.len(), 1, "{decoded:?}");
    decoded.failures[0].reason.clone()
}

#[test]
fn a_batch_beyond_its_offsets_is_refused_whole() {
    let schema =
        of(r#"{"name": "s", "type": "string"}, {"name": "a", "type": {"type": "array", "items": "null"}}"#);
    let plan = plan(&schema, &schema);
    let limits = Limits { items_max: 100, offsets_max: 5 };
    let mut decoder = Decoder::new(&plan, limits);
    decoder.push(0, b"\x06abc\x00").unwrap();
    let error = decoder.push(1, b"\x06abc\x00").unwrap_err();
    assert_eq!(error.to_string(), "column 's$': offsets beyond 5; decode fewer records at once");
    assert_eq!(
        decoder.push(1, b"\x00\x0c\x00").unwrap_err().to_string().split(':').next(),
        Some("column 'a[]'")
    );
}

#[test]
fn items_without_bytes_are_bounded_by_a_limit() {
    let schema = of(r#"{"name": "a", "type": {"type": "array", "items": "null"}}"#);
    let plan = plan(&schema, &schema);
    let mut record = Vec::new();
    varint::write(&mut record, 1_000_001);
    record.push(0);
    assert_eq!(reason(&plan, &record), "a: more than 1000000 items (at byte 3)");
    record.clear();
    varint::write(&mut record, 1_000_000);
    record.push(0);
    assert_eq!(decode(&plan, &[record]).columns, [Column::I32(vec![0, 1_000_000])]);
}

#[test]
fn counts_and_lengths_that_lie_are_refused_before_they_are_believed() {
    let schema =
        of(r#"{"name": "a", "type": {"type": "array", "items": "int"}}, {"name": "s", "type": "string"}"#);
    let plan = plan(&schema, &schema);
    let record = |numbers: &[i64]| {
        let mut record = Vec::new();
        numbers.iter().for_each(|&number| varint::write(&mut record, number));
        record
    };
    assert_eq!(decode(&plan, &[record(&[-2, 2, 7, 8, 1, 9, 0, 0])]).failures, []);
    assert_eq!(
        reason(&plan, &record(&[i64::MAX, 7])),
        "a: a block of 9223372036854775807 items in 1 bytes (at byte 10)"
    );
    assert_eq!(
        reason(&plan, &record(&[i64::MIN, 0])),
        "a: a block of -9223372036854775808 items (at byte 11)"
    );
    assert_eq!(reason(&plan, &record(&[-2, 1, 7, 8, 0, 0])), "a: a block should end at byte 3 (at byte 4)");
    assert_eq!(reason(&plan, &record(&[-2, 9, 7, 8, 0, 0])), "a: a block of 9 bytes, 4 left (at byte 2)");
    assert_eq!(reason(&plan, &record(&[0, -1])), "s: a length of -1 (at byte 2)");
    assert_eq!(
        reason(&plan, &record(&[0, i64::MAX])),
        format!("s: truncated: {} bytes needed, 0 left (at byte 11)", i64::MAX)
    );
    assert_eq!(reason(&plan, &record(&[0, 0, 0])), "1 bytes after the record's end (at byte 2)");
    assert_eq!(
        reason(&plan, &record(&[1, 1 << 31, 0, 0])),
        "a: 2147483648 is not a 32-bit integer (at byte 6)"
    );
}

#[test]
fn a_type_that_contains_itself_is_skipped_but_never_read() {
    let chain = r#"{"name": "chain", "type": {"type": "record", "name": "Link", "fields": [
        {"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Link"]}]}}"#;
    let writer = of(&format!(r#"{chain}, {{"name": "x", "type": "long"}}"#));
    let plan = plan(&writer, &of(r#"{"name": "x", "type": "long"}"#));
    assert_eq!(decode(&plan, &[[2, 2, 4, 0, 6]]).columns, [Column::I64(vec![3])]);
    let endless = [2; 10_000];
    assert_eq!(reason(&plan, &endless), "chain: values nest deeper than 256 (at byte 256)");
    let error = Plan::new(&writer, &writer).unwrap_err().to_string();
    assert!(
        error.ends_with("types nest deeper than 32; a type that contains itself cannot become columns"),
        "{error}"
    );
}

#[test]
fn types_that_multiply_cost_no_more_than_their_bytes() {
    let mut fields =
        vec![r#"{"name": "f0", "type": {"type": "record", "name": "R0", "fields": []}}"#.to_owned()];
    for level in 1..200 {
        let below = level - 1;
        fields.push(format!(
            r#"{{"name": "f{level}", "type": {{"type": "record", "name": "R{level}", "fields": [
                {{"name": "a", "type": "R{below}"}}, {{"name": "b", "type": "R{below}"}}]}}}}"#
        ));
    }
    let writer = of(&fields.join(","));
    assert_eq!(decode(&plan(&writer, &of("")), &[b""]).failures, []);
    let error = Plan::new(&writer, &writer).unwrap_err().to_string();
    assert!(error.contains("more than 10000 fields") || error.contains("nest deeper"), "{error}");
}

#[test]
fn a_schema_of_endless_nesting_is_refused() {
    for depth in [40, 100] {
        let mut kind = "\"long\"".to_owned();
        for _ in 0..depth {
            kind = format!(r#"{{"type": "array", "items": {kind}}}"#);
        }
        let schema = of(&format!(r#"{{"name": "x", "type": {kind}}}"#));
        let error = Plan::new(&schema, &of("")).unwrap_err().to_string();
        assert!(error.contains("nest deeper than 32") || error.contains("recursion limit"), "{error}");
    }
}
