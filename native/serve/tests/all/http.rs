//! HTTP end to end: every path, every status, and limits.

use crate::rig::*;
use serde_json::{Value, json};
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::protocol::{DoorLimits, DoorSettings, Secret};
use streamlearn_serve::request::Values;
use streamlearn_wire::keys::{key_of_bytes, key_of_int, slot_salt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn tensor(name: &str, datatype: &str, shape: &Value, data: &Value) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape, "data": data })
}

fn least() -> Vec<Value> {
    vec![
        tensor("user_id", "INT64", &json!([1]), &json!([5])),
        tensor("item_id", "INT64", &json!([2]), &json!([7, -8])),
    ]
}

const ROWS: &str = r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}, {"item_id": -8}]}"#;

fn key(name: &str, value: i64) -> u64 {
    key_of_int(value, slot_salt(name))
}

fn word(name: &str, value: &str) -> u64 {
    key_of_bytes(value.as_bytes(), slot_salt(name))
}

#[tokio::test]
async fn both_forms_of_a_request_come_to_the_same_columns() {
    let node = node().await;
    let mut inputs = least();
    inputs.push(tensor("user_word", "BYTES", &json!([1]), &json!(["h\u{e9}\"llo"])));
    inputs.push(tensor("user_likes", "INT64", &json!([2]), &json!([1, 2])));
    inputs.push(tensor("user_likes.weights", "FP32", &json!([2]), &json!([0.5, 2])));
    inputs.push(tensor("user_seen", "UINT32", &json!([4]), &json!([1, 2, 3, 4])));
    inputs.push(tensor("user_seen_where", "BYTES", &json!([4]), &json!(["a", "b", "c", "d"])));
    inputs.push(tensor("item_tags", "BYTES", &json!([3]), &json!(["a", "b", "c"])));
    inputs.push(tensor("item_tags.lengths", "INT32", &json!([2]), &json!([0, 3])));
    inputs.push(tensor("item_place", "FP64", &json!([2, 2]), &json!([[1, 2.5], [0.25, 0.25]])));
    let body = json!({
        "id": "mine", "inputs": inputs, "outputs": [{ "name": "like" }],
        "parameters": { "deadline_ms": 60_000, "route_key": "u5", "shown": [1], "binary_data_output": false },
    });
    let tensors_reply = post(node.http, "/v2/models/ctr/versions/17/infer", &body.to_string()).await;
    assert_eq!(tensors_reply.status, 200, "{tensors_reply:?}");
    let mut first = node.fake.last.lock().unwrap().take().unwrap();
    let rows = json!({
        "user": {
            "user_id": 5, "user_word": "h\u{e9}\"llo", "user_likes": [1, 2], "user_likes_weights": [0.5, 2],
            "user_seen": [1, 2, 3, 4], "user_seen_where": ["a", "b", "c", "d"],
        },
        "items": [
            { "item_id": 7, "item_tags": [], "item_place": [1, 2.5], "item_word": null },
            { "item_tags": ["a", "b", "c"], "item_id": -8 },
        ],
        "id": "mine", "model_version": 17, "outputs": ["like"], "deadline_ms": 60_000, "route_key": "u5", "shown": "1",
    });
    let answer = post(node.http, "/score", &rows.to_string()).await.json();
    let mut second = node.fake.last.lock().unwrap().take().unwrap();
    assert!(first.wishes.deadline_us.take().is_some() && second.wishes.deadline_us.take().is_some());
    assert_eq!(first, second);
    assert_eq!(
        first.user[3],
        Values::Lists {
            keys: vec![key("user_likes", 1), key("user_likes", 2)],
            offsets: vec![0, 2],
            weights: Some(vec![0.5, 2.0]),
        }
    );
    assert_eq!(first.user[1], Values::Keys(vec![word("user_word", "h\u{e9}\"llo")]));
    assert_eq!((&first.shown, first.wishes.pin), (&Some(vec![1]), Some(17)));
    let reply = tensors_reply.json();
    assert_eq!((&reply["model_version"], &reply["id"]), (&json!("17"), &json!("mine")));
    let output = &reply["outputs"][0];
    assert_eq!(
        (&output["name"], &output["shape"], &output["datatype"]),
        (&json!("like"), &json!([2]), &json!("FP32"))
    );
    assert_eq!(answer, json!({ "id": "mine", "version": 17, "scores": { "like": output["data"] } }));
}

#[tokio::test]
async fn tensors_that_are_not_as_they_must_be_are_refused_by_name() {
    let node = node().await;
    let with = |name: &str, datatype: &str, shape: Value, data: Value| {
        let mut inputs = least();
        inputs.push(tensor(name, datatype, &shape, &data));
        json!({ "inputs": inputs })
    };
    for (body, expected) in [
        (with("nope", "INT64", json!([1]), json!([1])), "unknown input \"nope\""),
        (with("user_word", "BYTES", json!([1]), json!([1])), "input \"user_word\": 1, expected a text"),
        (
            with("user_tags", "BYTES", json!([2]), json!(["a"])),
            "input \"user_tags\": the data does not have shape [2]",
        ),
        (with("user_tags", "BYTES", json!([1]), json!(["a", "b"])), "the data exceeds shape [1]"),
        (
            with("item_place", "FP32", json!([2, 2]), json!([[1], [2, 3, 4]])),
            "the data does not have shape [2, 2]",
        ),
        (
            with("item_place", "FP32", json!([2, 2]), json!([[1, 2], 3, 4])),
            "the data does not have shape [2, 2]",
        ),
        (with("item_place", "FP32", json!([2, 2]), json!([[1, 2], [3, [4]]])), "a list, expected a number"),
        (with("item_age", "FP32", json!([2]), json!([1, null])), "the data does not have shape"),
        (with("item_age", "FP32", json!([2]), json!([1, 1e300])), "not finite as float32"),
        (with("item_likes", "INT64", json!([2, 1]), json!([1, 1.5])), "1.5, expected a whole number"),
        (
            with("item_likes", "INT32", json!([2, 1]), json!([1, 3_000_000_000_i64])),
            "3000000000 is not of type INT32",
        ),
        (with("item_likes", "UINT64", json!([2, 1]), json!([1, -1])), "-1 is not of type UINT64"),
        (with("item_likes", "INT64", json!([2, 1]), json!([1, u64::MAX])), "expected a whole number"),
        (with("item_age", "FP16", json!([2]), json!([1, 2])), "datatype \"FP16\", expected"),
        (json!({ "inputs": least(), "parameters": { "binary_data_output": 1 } }), "unknown parameter "),
        (json!({ "inputs": least(), "parameters": { "sequence_id": 1 } }), "unknown parameter "),
        (
            json!({ "inputs": least(), "parameters": { "priority": null } }),
            "invalid type: null, expected a boolean, a number or a text for parameter \"priority\"",
        ),
        (
            json!({ "inputs": least(), "parameters": { "shown": [0.5] } }),
            "\"shown\": 0.5, expected a whole number",
        ),
        (with("user_tags", "BYTES", json!([-1]), json!([])), "a dimension of its shape is -1"),
        (
            with("user_tags", "BYTES", json!(["1"]), json!([])),
            "the shape of input \"user_tags\": the text \"1\", expected",
        ),
        (json!({ "inputs": least(), "outputs": [{ "name": "clack" }] }), "unknown output \"clack\""),
        (json!({ "inputs": least(), "output": [] }), "unknown field `output`"),
        (json!({ "outputs": [] }), "missing field `inputs`"),
    ] {
        let reply = post(node.http, "/v2/models/ctr/infer", &body.to_string()).await;
        assert!(reply.status == 400 && reply.error().contains(expected), "{expected}: {reply:?}");
    }
    for (length, expected) in [("9", "exceeds the 2 bytes"), ("-1", "a number of bytes")] {
        let binary = [("inference-header-content-length", length)];
        let reply = http(node.http, "POST", "/v2/models/ctr/infer", &binary, "{}").await;
        assert!(reply.status == 400 && reply.error().contains(expected), "{reply:?}");
    }
    let gzip = [("content-encoding", "gzip")];
    let reply = http(node.http, "POST", "/score", &gzip, ROWS).await;
    assert!(reply.status == 415 && reply.error().contains("uncompressed"), "{reply:?}");
}

#[tokio::test]
async fn rows_that_are_not_as_they_must_be_are_refused_by_place() {
    let node = node().await;
    let items = |item: &str| format!(r#"{{"user": {{"user_id": 5}}, "items": [{{"item_id": 7}}, {item}]}}"#);
    let user =
        |fields: &str| format!(r#"{{"user": {{"user_id": 5, {fields}}}, "items": [{{"item_id": 7}}]}}"#);
    let many =
        format!(r#"{{"user": {{"user_id": 5}}, "items": [{}]}}"#, vec![r#"{"item_id":1}"#; 65].join(","));
    for (body, expected) in [
        (items("{}"), "items[1].item_id: it is missing and has no default"),
        (items(r#"{"item_id": "x"}"#), "items[1].item_id: the text \"x\", expected a whole number"),
        (items(r#"{"item_id": 1, "item_id": 2}"#), "items[1].item_id: it is given twice"),
        (items(r#"{"item_id": [1]}"#), "items[1].item_id: a list, expected a whole number"),
        (items(r#"{"item_id": 1, "user_id": 2}"#), "unknown input \"user_id\""),
        (items(r#"{"item_id": 1, "item_tags.lengths": [2]}"#), "unknown input "),
        (items(r#"{"item_id": 1, "item_tags": "a"}"#), "items[1].item_tags: one value, expected a list"),
        (items(r#"{"item_id": 1, "item_tags": [null]}"#), "null, expected a text"),
        (
            items(r#"{"item_id": 1, "item_likes": [1, 2], "item_likes_weights": [1]}"#),
            "the number of values differs from the number of weights",
        ),
        (
            items(r#"{"item_id": 1, "item_likes": [1]}"#),
            "items[1].item_likes: the number of values differs from the number of weights",
        ),
        (
            items(r#"{"item_id": 1, "item_place": [1]}"#),
            "items[1].item_place: a list of 1, expected a list of 2 numbers",
        ),
        (items(r#"{"item_id": 1, "item_place": 1}"#), "expected a list of 2 numbers"),
        (items(r#"{"item_id": 1, "item_age": 1e39}"#), "is not finite as float32"),
        (user(r#""user_seen": [1, 2], "user_seen_where": ["a"]"#), "must have the same length"),
        (user(&format!(r#""user_tags": {:?}"#, vec!["a"; 257])), "user.user_tags: more than 256 values"),
        (many, "more than 64 items; help: split the request"),
        (r#"{"user": {"user_id": 5}, "items": []}"#.to_owned(), "expected at least 1"),
        (r#"{"user": {"user_id": 5}}"#.to_owned(), "\"items\" is missing"),
        (r#"{"items": [{"item_id": 7}]}"#.to_owned(), "user.user_id: it is missing"),
        (
            r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}], "shown": [1]}"#.to_owned(),
            "candidate 1; the indices are 0 to 0",
        ),
        (
            r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}], "version": "x"}"#.to_owned(),
            "version \"x\" is not a number",
        ),
        (
            r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}], "deadline": 3}"#.to_owned(),
            "unknown field \"deadline\"; help: fields are user, items, id, version, outputs, deadline_ms",
        ),
        (r#"{"user": {"user_id": 5}, "user": {"user_id": 5}}"#.to_owned(), "\"user\" is given twice"),
        (
            r#"{"version": 17, "user": {"user_id": 5}, "version": 18}"#.to_owned(),
            "the version is given twice",
        ),
        (r#"{"version": "17", "model_version": 17}"#.to_owned(), "the version is given twice"),
        (
            items(r#"{"item_id": 9223372036854775809}"#),
            "items[1].item_id: 9223372036854775809, expected a whole number below 2^63",
        ),
        (items(r#"{"item_id": 18446744073709551617}"#), "1.8446744073709552e19, expected a whole number"),
        (
            r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}]} x"#.to_owned(),
            "the body is not JSON: trailing characters",
        ),
        ("not json".to_owned(), "the body is not JSON: expected ident at line 1 column 2"),
        (r#"{"user": {"user_id": 5}"#.to_owned(), "the body is not JSON: EOF"),
        ("[".repeat(5000), "invalid body: invalid type: sequence"),
    ] {
        let reply = post(node.http, "/score", &body).await;
        assert!(reply.status == 400 && reply.error().contains(expected), "{expected}: {reply:?}");
    }
    assert_eq!(post(node.http, "/score", ROWS).await.status, 200);
}

#[tokio::test]
async fn every_refusal_has_its_status() {
    let node = node().await;
    let text = "what happened".to_owned();
    for (refusal, status) in [
        (Refusal::Bad(text.clone()), 400),
        (Refusal::Unknown(text.clone()), 404),
        (Refusal::NotKept(text.clone()), 409),
        (Refusal::Busy { retry_ms: 1200, text: text.clone() }, 429),
        (Refusal::Late(text.clone()), 504),
        (Refusal::Away(text.clone()), 503),
        (Refusal::Broken(text.clone()), 500),
    ] {
        *node.fake.refusal.lock().unwrap() = Some(refusal);
        let reply = post(node.http, "/score", ROWS).await;
        assert_eq!((reply.status, reply.json()), (status, json!({ "error": "what happened" })));
        let header = |name| reply.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(header("retry-after"), (status == 429).then_some("2"));
        assert_eq!(header("retry-after-ms"), (status == 429).then_some("1200"));
    }
}

#[tokio::test]
async fn the_node_says_how_it_stands() {
    let node = node().await;
    let at = node.http;
    assert_eq!(get(at, "/v2").await.json()["name"], "streamlearn");
    assert_eq!(get(at, "/v2/health/live").await.json(), json!({ "live": true }));
    assert_eq!(get(at, "/v2/health/ready").await.json(), json!({ "ready": true }));
    assert_eq!(get(at, "/v2/models/ctr").await.json()["versions"], json!(["17", "18"]));
    assert_eq!(get(at, "/v2/models/ctr/ready").await.status, 200);
    assert_eq!(get(at, "/v2/models/ctr/versions/17/ready").await.status, 200);
    assert_eq!(get(at, "/v2/models/ctr/versions/16/ready").await.status, 503);
    assert_eq!(get(at, "/v2/models/ctr/versions/16").await.status, 409);
    assert_eq!(get(at, "/v2/models/other").await.status, 404);
    let absent = get(at, "/v2/models/ctr.recommend").await;
    let text = r#"this node serves "ctr"; "ctr.recommend" needs App(retrieval=...)"#;
    assert!(absent.status == 404 && absent.error().ends_with(text), "{}", absent.text);
    let versions = json!({ "model": "ctr", "active": 18, "kept": [17, 18], "stale": null });
    assert_eq!(get(at, "/versions").await.json(), versions);
    assert_eq!(get(at, "/shadow").await.json()["version"], serde_json::Value::Null);
    assert_eq!(get(at, "/sizes").await.json()["lengths"], serde_json::json!([1]));
    let metrics = get(at, "/metrics").await;
    assert!(metrics.text.starts_with("streamlearn_serving_requests_total 0"), "{metrics:?}");
    {
        let mut state = node.fake.state.lock().unwrap();
        (state.is_ready, state.stale) = (false, Some("nothing new for 90 s".to_owned()));
    }
    let ready = get(at, "/v2/health/ready").await;
    assert_eq!((ready.status, &ready.json()["stale"]), (503, &json!("nothing new for 90 s")));
    assert_eq!(get(at, "/v2/models/ctr/ready").await.status, 503);
    let nothing = get(at, "/nothing").await;
    assert!(nothing.status == 404 && nothing.error().contains("GET /v2"));
    assert_eq!(get(at, "/score").await.status, 405);
    node.end().await;
}

#[tokio::test]
async fn bodies_and_headers_have_bounds_and_the_token_is_asked_for() {
    let token = Some(Secret::new("open-sesame").unwrap().into());
    let limits = DoorLimits { token_wait_ms: 1, header_bytes_max: 8 << 10, ..DoorLimits::default() };
    let node = node_of(DoorSettings { token, limits, ..DoorSettings::default() }).await;
    let right = [("authorization", "Bearer open-sesame")];
    let wrong = post(node.http, "/score", ROWS).await;
    assert_eq!(
        (wrong.status, wrong.headers.get("www-authenticate").unwrap().to_str().unwrap()),
        (401, "Bearer")
    );
    assert_eq!(get(node.http, "/metrics").await.status, 401);
    assert_eq!(get(node.http, "/v2/health/ready").await.status, 200);
    assert_eq!(http(node.http, "POST", "/score", &right, ROWS).await.status, 200);
    let large = http(node.http, "POST", "/score", &right, &" ".repeat(17 << 10)).await;
    assert!(large.status == 413 && large.error().contains("16384 bytes"), "{large:?}");
    let wide = "x".repeat(9 << 10);
    let reply = http(node.http, "GET", "/v2", &[right[0], ("x-wide", &wide)], "").await;
    assert_eq!(reply.status, 431);
    assert_eq!(http(node.http, "POST", "/score", &right, ROWS).await.status, 200);
}

#[tokio::test]
async fn a_page_of_another_site_reads_and_scores_nothing_at_a_node_of_this_machine() {
    let asked = async |at, headers: &[(&str, &str)]| {
        let scored = http(at, "POST", "/score", headers, ROWS).await;
        (scored.status, http(at, "GET", "/metrics", headers, "").await.status, scored.text)
    };
    let node = node().await;
    let own = node.http.to_string();
    let origin = format!("http://{own}");
    for headers in [&[("host", own.as_str())][..], &[("host", &own), ("origin", &origin)]] {
        assert_eq!(asked(node.http, headers).await.0, 200, "{headers:?}");
    }
    for headers in [&[("host", "rebound.example")][..], &[("host", &own), ("origin", "https://a.example")]] {
        let (scored, metrics, text) = asked(node.http, headers).await;
        assert_eq!((scored, metrics), (403, 403), "{headers:?}");
        assert!(text.contains(".example") && text.contains("--token-file"), "{text}");
    }
    assert_eq!(node.fake.began.load(std::sync::atomic::Ordering::SeqCst), 2);
    // A token keeps pages out, and whoever has it may be a proxy.
    let token = Some(Secret::new("open-sesame").unwrap().into());
    let guarded = node_of(DoorSettings { token, ..DoorSettings::default() }).await;
    let proxied = [("host", "shop.example"), ("authorization", "Bearer open-sesame")];
    assert_eq!(asked(guarded.http, &proxied).await.0, 200);
}

#[tokio::test]
async fn candidates_that_were_not_scored_are_said_and_have_no_number() {
    let node = node().await;
    *node.fake.scored.lock().unwrap() = Some(1);
    let rows = post(node.http, "/score", ROWS).await.json();
    assert_eq!(rows["scored"], json!(1));
    let click = rows["scores"]["click"].as_array().unwrap();
    assert!(click[0].is_number() && click[1..].iter().all(Value::is_null) && click.len() > 1, "{rows}");
    let inputs = json!({ "inputs": least() });
    let tensors = post(node.http, "/v2/models/ctr/infer", &inputs.to_string()).await.json();
    assert_eq!(tensors["parameters"], json!({ "scored": 1 }));
    assert!(tensors["outputs"][0]["data"][1].is_null() && tensors["outputs"][0]["data"][0].is_number());
    *node.fake.scored.lock().unwrap() = None;
    let complete = post(node.http, "/v2/models/ctr/infer", &inputs.to_string()).await.json();
    assert!(complete.get("parameters").is_none());
}

#[tokio::test]
async fn numbers_may_stand_behind_the_json_in_both_directions() {
    let node = node().await;
    let mut inputs = least();
    let json_request = json!({ "inputs": inputs.clone(), "outputs": [{ "name": "like" }] });
    let plain = post(node.http, "/v2/models/ctr/infer", &json_request.to_string()).await.json();
    let first = node.fake.last.lock().unwrap().take().unwrap();
    // The ids of candidates, eight bytes each.
    let ids: Vec<i64> = inputs[1]["data"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    let raw: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let input = inputs[1].as_object_mut().unwrap();
    input.remove("data");
    input.insert("parameters".to_owned(), json!({ "binary_data_size": raw.len() }));
    let mixed = json!({
        "inputs": inputs,
        "outputs": [{ "name": "like", "parameters": { "binary_data": true } }, { "name": "click" }],
    });
    let json = mixed.to_string();
    let head = json.len().to_string();
    let body = [json.as_bytes(), &raw].concat();
    let headers = [("inference-header-content-length", head.as_str())];
    let (status, reply_headers, reply_body) =
        http_bytes(node.http, "POST", "/v2/models/ctr/infer", &headers, body.into()).await;
    assert_eq!(status, 200, "{:?}", String::from_utf8_lossy(&reply_body));
    let second = node.fake.last.lock().unwrap().take().unwrap();
    assert_eq!(first.item, second.item);
    let json_bytes: usize =
        reply_headers["inference-header-content-length"].to_str().unwrap().parse().unwrap();
    let reply: Value = serde_json::from_slice(&reply_body[..json_bytes]).unwrap();
    assert_eq!(
        reply["outputs"][0]["parameters"],
        json!({ "binary_data_size": reply_body.len() - json_bytes })
    );
    let numbers =
        reply_body[json_bytes..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let like = plain["outputs"][0]["data"].as_array().unwrap();
    assert!(numbers.zip(like).all(|(number, expected)| number == expected.as_f64().unwrap() as f32));
    assert!(reply["outputs"][1]["data"].is_array());
    // The default of outputs, wherever it stands.
    let parameters = json!({ "binary_data_output": true });
    let last = json!({ "outputs": [{ "name": "like" }], "inputs": least(), "parameters": parameters });
    let (_, _, reply_body) =
        http_bytes(node.http, "POST", "/v2/models/ctr/infer", &[], last.to_string().into()).await;
    assert!(String::from_utf8_lossy(&reply_body).contains(r#""binary_data_size":8"#), "{reply_body:?}");
}

#[tokio::test]
async fn configuration_statistics_and_index_are_told_in_json() {
    let node = node().await;
    let at = node.http;
    let config = get(at, "/v2/models/ctr/config").await.json();
    assert_eq!((&config["name"], &config["output"][0]["data_type"]), (&json!("ctr"), &json!("TYPE_FP32")));
    assert_eq!(get(at, "/v2/models/ctr/versions/16/config").await.status, 409);
    let stats = get(at, "/v2/models/ctr/stats").await.json();
    assert_eq!(stats, get(at, "/v2/models/stats").await.json());
    assert_eq!(stats["model_stats"][0]["inference_stats"]["success"], json!({ "count": 2, "ns": 5000 }));
    let server = get(at, "/v2").await.json();
    assert!(server["paths"].as_array().unwrap().iter().any(|path| path == "POST /score"), "{server}");
    for verb in ["load", "unload"] {
        let refused = post(at, &format!("/v2/repository/models/ctr/{verb}"), "{}").await;
        assert!(refused.status == 501 && refused.error().contains("streamlearn promote"), "{refused:?}");
    }
    let index = post(at, "/v2/repository/index", "").await.json();
    assert_eq!(index[1], json!({ "name": "ctr", "version": "18", "state": "READY", "reason": "active" }));
    assert_eq!(post(at, "/v2/repository/index", "[").await.status, 400);
    assert_eq!(post(at, "/v2/repository/index", &" ".repeat(1 << 17)).await.status, 413);
    assert_eq!(get(at, "/health").await.json(), json!({ "live": true, "ready": true }));
    assert_eq!(get(at, "/ready").await.json(), json!({ "ready": true }));
    let answers = node.door.traffic().answers();
    let ok = answers.iter().find(|(kind, _)| kind.status() == "200" && !kind.is_scored);
    assert_eq!(ok.map(|(_, count)| *count), Some(7));
}

#[tokio::test]
async fn headers_that_come_a_byte_at_a_time_have_an_end() {
    let limits = DoorLimits { arrival_wait_ms_max: 1_000, ..DoorLimits::default() };
    let node = node_with(limits).await;
    let mut slow = tokio::net::TcpStream::connect(node.http).await.unwrap();
    let started = tokio::time::Instant::now();
    let trickle = async {
        // Each byte arrives well within the time allowed for a whole request.
        for byte in b"GET /v2/health/live HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'x')) {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, trickle).await.unwrap();
    assert!(started.elapsed() >= std::time::Duration::from_secs(1));
    wait_until("the released slot", || node.door.stats().connections == 0).await;
    assert_eq!(get(node.http, "/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn who_keeps_a_connection_for_nothing_does_not_keep_a_node() {
    let node =
        node_with(DoorLimits { drain_ms_max: 60_000, hello_wait_ms_max: 60_000, ..DoorLimits::default() })
            .await;
    let mut client = Client::connect(node.grpc).await;
    assert_eq!(client.call("ModelInfer", &asks::ask(&asks::least(), true)).await.code, Some(0));
    let mut idle = tokio::net::TcpStream::connect(node.http).await.unwrap();
    idle.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut buffer = [0; 64];
    assert!(idle.read(&mut buffer).await.unwrap() > 0);
    // Connections that have sent nothing, not even the protocol's preface.
    let silent = [node.grpc, node.http].map(|at| std::net::TcpStream::connect(at).unwrap());
    wait_until("all connections", || node.door.stats().connections == 4).await;
    let began = tokio::time::Instant::now();
    node.end().await;
    let duration = began.elapsed();
    assert!(duration < std::time::Duration::from_secs(30), "the end took {duration:?}");
    drop((client, idle, silent));
}
