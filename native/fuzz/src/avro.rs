//! Avro: records of many schemas, read with the same or another schema; and schemas made of arbitrary text.

use std::sync::LazyLock;

use streamlearn_wire::avro::{Column, Decoded, Decoder, Limits, Plan, Slice};

const ITEMS_MAX: u64 = 1_000;

const EVENT: &str = r#"{"type": "record", "name": "Event", "namespace": "t", "fields": [
    {"name": "id", "type": "string"}, {"name": "at", "type": "long"}, {"name": "seen", "type": "boolean"},
    {"name": "device", "type": {"type": "enum", "name": "Device", "symbols": ["PHONE", "TV"]}},
    {"name": "raw", "type": ["bytes", "null"]}, {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
        {"name": "video_id", "type": "long"}, {"name": "score", "type": ["null", "float"]},
        {"name": "history", "type": {"type": "array", "items": ["null", "int"]}}]}}},
    {"name": "where", "type": ["null", {"type": "record", "name": "Where", "fields": [
        {"name": "lat", "type": "double"}, {"name": "cells", "type": {"type": "array", "items": "long"}}]}]}]}"#;
/// Types that only a writer's schema may have: maps, fixed, recursive types, other numbers and unions.
const OTHER: &str = r#"{"type": "record", "name": "Event", "namespace": "u", "fields": [
    {"name": "at", "type": "int"}, {"name": "id", "type": ["string", "bytes"]},
    {"name": "lost", "type": {"type": "map", "values": {"type": "array", "items": "null"}}},
    {"name": "device", "type": {"type": "enum", "name": "Device", "symbols": ["TV", "RADIO", "PHONE"]}},
    {"name": "tree", "type": {"type": "record", "name": "Tree", "fields": [
        {"name": "left", "type": ["null", "Tree"]}, {"name": "right", "type": {"type": "array", "items": "Tree"}},
        {"name": "leaf", "type": {"type": "fixed", "name": "Leaf", "size": 3}}]}},
    {"name": "seen", "type": "boolean"}, {"name": "raw", "type": ["null", "string"]},
    {"name": "tags", "type": {"type": "array", "items": "bytes"}},
    {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
        {"name": "score", "type": "int"}, {"name": "video_id", "type": ["int", "long"]},
        {"name": "empty", "type": {"type": "record", "name": "Empty", "fields": []}},
        {"name": "history", "type": {"type": "array", "items": "int"}}]}}},
    {"name": "where", "type": "null"}]}"#;
const NULLS: &str = r#"{"type": "record", "name": "T", "fields": [{"name": "n", "type": {"type": "array", "items": "null"}}]}"#;
const TREES: &str =
    r#"{"type": "record", "name": "T", "fields": [{"name": "t", "type": {"type": "array", "items": "T"}}]}"#;
const READER: &str =
    r#"{"type": "record", "name": "T", "fields": [{"name": "x", "type": "int", "default": 7}]}"#;

static PLANS: LazyLock<Vec<Plan>> = LazyLock::new(|| {
    let pairs = [(EVENT, EVENT), (OTHER, EVENT), (NULLS, READER), (TREES, READER)];
    pairs.iter().map(|(writer, reader)| Plan::new(writer, reader).expect("schemas that resolve")).collect()
});

/// The first byte chooses the schemas, the second the record length.
pub fn records(bytes: &[u8]) {
    let Some(([choice, length], body)) = bytes.split_first_chunk::<2>() else { return };
    let plan = &PLANS[usize::from(*choice) % PLANS.len()];
    let records: Vec<&[u8]> = match length {
        0 => vec![body],
        length => body.chunks(usize::from(*length)).collect(),
    };
    let decoded = decode(plan, &records);
    assert_eq!(decoded.rows.len() + decoded.failures.len(), records.len());
    if usize::from(*choice) % PLANS.len() == 0 {
        // Encoding the decoded values must give records with the same values.
        let slices: Vec<Option<Slice<'_>>> =
            decoded.columns.iter().map(|column| Some(column.slice())).collect();
        let rows = decoded.rows.len();
        let (written, at) = plan.encode(&slices, rows, b"").expect("columns that agree");
        let second: Vec<&[u8]> = at.windows(2).map(|at| &written[at[0] as usize..at[1] as usize]).collect();
        let second = decode(plan, &second);
        assert_eq!((second.rows.len(), second.failures.len()), (rows, 0));
        same(&decoded.columns, &second.columns);
    }
}

/// A writer's and a reader's schema, separated by a zero byte, or one schema for both; then decodes arbitrary
/// records.
pub fn schemas(bytes: &[u8]) {
    let mut texts = bytes.splitn(3, |&byte| byte == 0).map(std::str::from_utf8);
    let Some(Ok(writer)) = texts.next() else { return };
    let Some(Ok(reader)) = texts.next().or(Some(Ok(writer))) else { return };
    let Ok(plan) = Plan::new(writer, reader) else { return };
    let records = [&b""[..], &[0; 64], &[2; 64], &bytes[bytes.len() / 2..]];
    let decoded = decode(&plan, &records);
    assert_eq!(decoded.rows.len() + decoded.failures.len(), records.len());
    assert_eq!(decoded.columns.len(), plan.columns().len());
}

fn decode(plan: &Plan, records: &[&[u8]]) -> Decoded {
    let bytes: usize = records.iter().map(|record| record.len()).sum();
    let mut decoder =
        Decoder::new(plan, Limits { items_max: ITEMS_MAX, ..Limits::default() }).expecting(bytes);
    for (index, record) in records.iter().enumerate() {
        decoder.push(index, record).expect("offsets of few records");
    }
    decoder.finish()
}

fn same(columns: &[Column], others: &[Column]) {
    // Compare bits, so that NaN equals NaN.
    let text = |columns: &[Column]| format!("{columns:?}");
    assert_eq!(text(columns), text(others));
}
