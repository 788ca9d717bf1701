//! Requests for items: they are decoded alike in all forms, answered with the nearest items of one version, and refused
//! with what would be right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};
use streamlearn_scan::{Blocks, Changes, Training};
use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{self as scheduler, Costs, Scheduler, Shapes};
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::front::{Front, Waits};
use streamlearn_serve::inputs::{Inputs as ModelInputs, Label, Limits};
use streamlearn_serve::layout::{Layout, Place, Pooling, Side};
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::protocol::{
    CallerOptions, Door, DoorSettings, RequestFormat, check, decode, every_kind_for_items, read,
};
use streamlearn_serve::request::{ItemWishes, Request};
use streamlearn_serve::tensor_batch::Scratch;
use streamlearn_serve::versions::VersionName;
use streamlearn_serve::versions::item_index::ItemIndex;
use streamlearn_serve::versions::raw_ids::{RawId, RawIds};
use streamlearn_table::TableSet;
use streamlearn_wire::keys::{key_of_bytes, key_of_int, slot_salt};

use crate::rig::asks::*;
use crate::rig::{Client, http, post, wait_until};

const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 16 << 20 };
const DIM: usize = 4;

/// Waits until a lane of a front takes work.
pub fn until_lane(front: &Front) {
    let end = Instant::now() + Duration::from_secs(60);
    while front.figures().lanes == 0 {
        assert!(Instant::now() < end, "no lane came");
        std::thread::yield_now();
    }
}

fn keys(ids: &[i64]) -> Vec<u64> {
    ids.iter().map(|&id| key_of_int(id, slot_salt("item_id"))).collect()
}

fn least_for_items(k: i64) -> Inputs {
    vec![("user_id", vec![1], Data::Int64(vec![5])), ("k", vec![1], Data::Int64(vec![k]))]
}

fn of_tensors(inputs: &Inputs, is_raw: bool, is_text: bool) -> Result<Request, Refusal> {
    let ask = InferAsk { model_name: "ctr.retrieve".to_owned(), ..ask(inputs, is_raw) };
    let naming = every_kind_for_items(LIMITS, is_text);
    decode(&ask.encode_to_vec(), &naming, CallerOptions::default()).map(|(request, _)| request)
}

fn of_rows(json: &str, is_text: bool) -> Result<Request, Refusal> {
    read(RequestFormat::Rows, json.as_bytes(), &every_kind_for_items(LIMITS, is_text))
}

#[test]
fn all_forms_of_a_request_name_the_same_items() {
    let mut inputs = least_for_items(7);
    inputs.push(("exclude", vec![3], Data::Int64(vec![1, -2, i64::MAX])));
    inputs.push(("allow", vec![1, 2], Data::Int32(vec![4, 5])));
    let wishes =
        ItemWishes { k: 7, exclude: keys(&[1, -2, i64::MAX]), allow: Some(keys(&[4, 5])), rank: None };
    let json =
        r#"{"k": 7, "exclude": [1, -2, 9223372036854775807], "user": {"user_id": 5}, "allow": [4, 5]}"#;
    for request in [of_tensors(&inputs, true, false), of_tensors(&inputs, false, false), of_rows(json, false)]
    {
        let request = request.unwrap();
        check(&request);
        assert_eq!((request.items.as_deref(), request.candidates), (Some(&wishes), 1));
    }
    let mut inputs = least_for_items(1);
    inputs.push(("exclude", vec![2], Data::texts(&["a", ""])));
    let exclude = ["a", ""].map(|text| key_of_bytes(text.as_bytes(), slot_salt("item_id")));
    let json = r#"{"k": 1, "exclude": ["a", ""], "allow": null, "user": {"user_id": 5}}"#;
    for request in [of_tensors(&inputs, true, true), of_tensors(&inputs, false, true), of_rows(json, true)] {
        let wishes = request.unwrap().items.unwrap();
        assert_eq!((&wishes.exclude[..], wishes.allow), (&exclude[..], None));
    }
}

#[test]
fn a_million_ids_fit_a_message_and_are_read_as_they_come() {
    let ids: Vec<String> = (0..1_000_000).map(|id: i64| id.to_string()).collect();
    let json = format!(r#"{{"user": {{"user_id": 5}}, "k": 1, "exclude": [{}]}}"#, ids.join(","));
    assert!(json.len() < LIMITS.message_bytes_max);
    assert_eq!(of_rows(&json, false).unwrap().items.unwrap().exclude.len(), 1_000_000);
    let many = format!(r#"{{"user": {{"user_id": 5}}, "k": 1, "exclude": [{}1]}}"#, "1,".repeat(2 << 20));
    assert!(of_rows(&many, false).unwrap_err().to_string().contains("more than 2097152 values"));
}

#[test]
fn other_requests_are_refused_with_what_would_be_right() {
    let user = r#""user": {"user_id": 5}"#;
    for (json, text) in [
        (format!("{{{user}}}"), "\"k\" is missing; help: it is the number of items, from 1 to 100"),
        (format!("{{{user}, \"k\": 0}}"), "\"k\" is 0, expected 1 to 100; help: retrieval.k_max"),
        (format!("{{{user}, \"k\": 1000000000}}"), "\"k\" is 1000000000, expected 1 to 100"),
        (format!("{{{user}, \"k\": -1}}"), "\"k\" is -1"),
        (format!("{{{user}, \"k\": 1.5}}"), "\"k\": 1.5, expected a whole number"),
        (format!("{{{user}, \"k\": [1]}}"), "\"k\": a list"),
        (format!("{{{user}, \"k\": 1, \"k\": 2}}"), "\"k\": it is given twice"),
        (format!("{{{user}, \"k\": 1, \"exclude\": 3}}"), "\"exclude\": one value, expected a list of ids"),
        (
            format!("{{{user}, \"k\": 1, \"exclude\": [\"a\"]}}"),
            "\"exclude\": the text \"a\", expected a whole",
        ),
        (
            format!("{{{user}, \"k\": 1, \"exclude\": [1], \"exclude\": [1]}}"),
            "\"exclude\": it is given twice",
        ),
        (format!("{{{user}, \"k\": 1, \"items\": []}}"), "fields are user, k, exclude, allow, id, version"),
        (
            format!("{{{user}, \"k\": 1, \"outputs\": []}}"),
            "unknown field \"outputs\"; help: fields are user, k, exclude, allow, id, version, deadline_ms, timeout (microseconds), priority, route_key, value, segments",
        ),
        (
            format!("{{{user}, \"k\": 1, \"features\": true}}"),
            "\"features\" is for requests that name their candidates",
        ),
        (format!("{{{user}, \"k\": 1, \"shown\": [0]}}"), "are for requests that score candidates"),
        ("{\"user\": {\"user_id\": 5, \"k\": 1}}".to_owned(), "other inputs are k, exclude, allow"),
        ("{\"k\": 1}".to_owned(), "user.user_id: it is missing"),
    ] {
        let refusal = of_rows(&json, false).unwrap_err().to_string();
        assert!(refusal.contains(text), "{json}: {refusal}");
    }
    let with = |name, shape: &[i64], data| {
        let mut inputs = least_for_items(1);
        inputs.push((name, shape.to_vec(), data));
        inputs
    };
    for (inputs, text) in [
        (vec![least_for_items(1).remove(0)], "\"k\" is missing"),
        (least_for_items(101), "\"k\" is 101, expected 1 to 100"),
        (
            vec![("k", vec![1], Data::Fp32(vec![1.0]))],
            "input \"k\": FP32 of shape [1], expected INT64 of shape [1]",
        ),
        (vec![("k", vec![2], Data::Int64(vec![1, 2]))], "of shape [2], expected INT64"),
        (
            with("exclude", &[1], Data::texts(&["a"])),
            "input \"exclude\": BYTES of shape [1], expected INT64 of shape [n]",
        ),
        (with("exclude", &[2, 1], Data::Int64(vec![1, 2])), "shape [2, 1]"),
        (with("exclude", &[1 << 40], Data::Int64(vec![1])), "more than 2097152 values"),
        (with("item_id", &[1], Data::Int64(vec![1])), "unknown input \"item_id\""),
    ] {
        for is_raw in [false, true] {
            let refusal = of_tensors(&inputs, is_raw, false).unwrap_err().to_string();
            assert!(refusal.contains(text), "{inputs:?}: {refusal}");
        }
    }
}

/// A node with a model that finds items; a user's vector is 1 at the place that its age names.
struct Rig {
    front: Arc<Front>,
    servers: Servers,
    tables: Arc<TableSet>,
    is_over: Arc<AtomicBool>,
    lane: Option<JoinHandle<()>>,
}

pub fn front(inputs: ModelInputs, layout: Layout) -> Arc<Front> {
    let ladder = || Ladder::new(vec![1, 4]).unwrap();
    let shapes = Shapes { users: ladder(), candidates: ladder(), lengths: Ladder::new(vec![1]).unwrap() };
    let limits = scheduler::Limits {
        lanes: 1,
        requests_max: 64,
        candidates_max: 64,
        reserved_percent: 0,
        wait_us_max: 100_000_000,
        slack_us: 1_000,
        allowance: None,
        by_cohort: false,
    };
    let costs = Costs::measured(&shapes, |_, _| 1.0, |_, _| 1.0);
    let waits =
        Waits { deadline_us: 60_000_000, deadline_us_max: 100_000_000, shadows_max: 1, value_max: 10.0 };
    Arc::new(Front::new(inputs, layout, Scheduler::new(limits, shapes, costs), waits, 4))
}

pub fn run_lane(front: &Front, is_over: &AtomicBool) {
    let mut scratch = Scratch::default();
    while !is_over.load(Ordering::SeqCst) {
        let Some(work) = front.take(0, Duration::from_millis(20), &mut scratch) else { continue };
        let floats = work.packed.slab.floats();
        let (user, index) = (&work.packed.user[0], &work.packed.score[0]);
        let mut vectors = vec![0.0; work.candidates * DIM];
        for (candidate, vector) in vectors.chunks_exact_mut(DIM).enumerate() {
            vector[floats[user.at + floats[index.at + candidate].to_bits() as usize] as usize] = 1.0;
        }
        front.give(work, &vectors);
    }
}

impl Rig {
    fn start(is_text: bool) -> Self {
        let naming = every_kind_for_items(LIMITS, is_text);
        let labels = (0..DIM).map(|at| Label::from(&*at.to_string())).collect();
        let inputs = ModelInputs { labels, ..ModelInputs::clone(naming.inputs()) };
        let columns = inputs.user.len();
        let place = Place { column: columns - 2, table: 0, pooling: Pooling::Dense, at: 0, width: 1 };
        let user = Side { flat: vec![place], flat_width: 1, inputs: columns, ..Side::default() };
        let front = front(inputs.clone(), Layout { user, item: Side::default() });
        let scores = self::front(
            ModelInputs { items: None, ..inputs },
            Layout { user: Side::default(), item: Side::default() },
        );
        let node = Arc::new(Node::new("ctr", scores.clone(), Box::new(String::new)).unwrap());
        node.retrieve_by(front.clone()).unwrap();
        let tables = Arc::new(TableSet::new(&[]).unwrap());
        for version in [7, 8] {
            tables.begin_staging((version > 7).then_some(7)).unwrap();
            tables.end_staging(version).unwrap();
        }
        assert!(scores.activate(scores.add(VersionName { number: 7, identity: 0 }, &tables, None)));
        node.set_state(true, None);
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Arc::new(Door::new(DoorSettings::default()).unwrap());
        let servers = Servers::start(node, door, (listen(), Some(listen())), 2).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let lane = {
            let (front, is_over) = (front.clone(), is_over.clone());
            Some(std::thread::spawn(move || run_lane(&front, &is_over)))
        };
        until_lane(&front);
        Self { front, servers, tables, is_over, lane }
    }

    /// Adds a version whose item number `n` has the vector (n, -n, 0, 1) / 128.
    fn add(&self, version: u64, items: &[i64], as_of_ms: Option<i64>) -> u64 {
        let values: Vec<i8> = items.iter().flat_map(|&item| [item as i8, -item as i8, 0, 1]).collect();
        let changes = Changes {
            keys: &keys(items),
            values: &values,
            scales: &vec![1.0 / 128.0; items.len()],
            removed: &[],
        };
        let blocks = Arc::new(Blocks::new(DIM).unwrap().apply(&changes).unwrap());
        let ids = items.iter().map(|&item| (keys(&[item])[0], RawId::Int(item)));
        let ids = Arc::new(RawIds::new(false).apply(ids, &[]).unwrap());
        self.add_index(version, ItemIndex { blocks, ids, as_of_ms, probes: None, identity: 0 })
    }

    fn add_index(&self, version: u64, index: ItemIndex) -> u64 {
        let name = VersionName { number: version, identity: 0 };
        self.front.add(name, &self.tables, Some(Arc::new(index)))
    }

    async fn retrieve(&self, body: &str) -> (u16, Value) {
        let reply = post(self.servers.http.unwrap(), "/retrieve", body).await;
        (reply.status, serde_json::from_str(&reply.text).unwrap())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.front.drain();
        self.lane.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn the_best_items_of_the_version_are_answered_over_http_and_grpc() {
    let rig = Rig::start(false);
    let (status, body) = rig.retrieve(r#"{"user": {"user_id": 5}, "k": 1}"#).await;
    assert_eq!((status, &body["error"]), (503, &json!("this node has no version yet")));
    let items: Vec<i64> = (1..=100).collect();
    let handle = rig.add(7, &items, Some(1_234));
    assert!(rig.front.activate(handle));
    let (status, body) = rig
        .retrieve(r#"{"id": "a", "user": {"user_id": 5, "user_age": 0}, "k": 3, "exclude": [99, 5000]}"#)
        .await;
    let expected = json!({
        "id": "a", "model": "ctr.retrieve", "version": 7, "as_of_ms": 1_234,
        "items": [{"id": 100, "score": 0.78125}, {"id": 98, "score": 0.765625}, {"id": 97, "score": 0.7578125}],
    });
    assert_eq!((status, body), (200, expected));
    let (_, body) =
        rig.retrieve(r#"{"user": {"user_id": 5, "user_age": 1}, "k": 9, "allow": [4, 3, 500]}"#).await;
    let ids: Vec<i64> =
        body["items"].as_array().unwrap().iter().map(|item| item["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, [3, 4]);
    let mut client = Client::connect(rig.servers.grpc).await;
    for is_raw in [false, true] {
        let mut inputs = least_for_items(2);
        inputs.push(("user_age", vec![1], Data::Fp32(vec![0.0])));
        let ask = InferAsk { model_name: "ctr.retrieve".to_owned(), ..ask(&inputs, is_raw) };
        let reply = client.call("ModelInfer", &ask).await;
        let reply = InferReply::decode(reply.message).unwrap();
        let [id, score] = &reply.outputs[..] else { panic!("{reply:?}") };
        assert_eq!((&*id.name, &*id.datatype, &id.shape[..]), ("id", "INT64", &[2][..]));
        assert_eq!((&*score.name, &*score.datatype, &*reply.model_version), ("score", "FP32", "7"));
        if is_raw {
            assert_eq!(
                reply.raw_output_contents,
                [Data::Int64(vec![100, 99]).raw(), Data::Fp32(vec![0.78125, 0.7734375]).raw()]
            );
        } else {
            assert_eq!(id.contents.as_ref().unwrap().int64s, [100, 99]);
            assert_eq!(score.contents.as_ref().unwrap().floats, [0.78125, 0.7734375]);
        }
    }
    let (requests, vectors) = rig.front.measures().found();
    assert_eq!((requests, vectors), (4, 100 + 2 + 200));
}

#[tokio::test]
async fn the_model_is_described_beside_the_one_that_scores() {
    let rig = Rig::start(true);
    assert!(rig.front.activate(rig.add(7, &[1], None)));
    let at = rig.servers.http.unwrap();
    let get = |path: &'static str| async move {
        let heard = http(at, "GET", path, &[], "").await;
        (heard.status, serde_json::from_str::<Value>(&heard.text).unwrap())
    };
    let (_, page) = get("/v2/models/ctr.retrieve").await;
    assert_eq!(page["outputs"][0], json!({"name": "id", "datatype": "BYTES", "shape": [-1]}));
    let named =
        |name: &str| page["inputs"].as_array().unwrap().iter().find(|input| input["name"] == name).cloned();
    assert_eq!(named("k"), Some(json!({"name": "k", "datatype": "INT64", "shape": [1]})));
    assert_eq!(named("exclude"), Some(json!({"name": "exclude", "datatype": "BYTES", "shape": [-1]})));
    assert_eq!(named("item_id"), None);
    // The model that scores has no lane here.
    assert_eq!(
        get("/v2/models/ctr.retrieve/ready").await,
        (503, json!({"name": "ctr.retrieve", "ready": false}))
    );
    assert_eq!(get("/v2/models/other/ready").await.0, 404);
    assert_eq!(get("/v2/models/ctr.retrieve/versions/9").await.0, 409);
    let index = post(at, "/v2/repository/index", "").await.text;
    assert!(index.contains("\"ctr\"") && index.contains("\"ctr.retrieve\""), "{index}");
    assert_eq!(get("/v2/models/ctr.retrieve/stats").await.1, json!({"model_stats": []}));
    assert_eq!(get("/v2/models/ctr.retrieve/config").await.1["output"][0]["data_type"], "TYPE_STRING");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_of_one_version_while_versions_change() {
    let rig = Rig::start(false);
    // Version 8 has other items.
    let handles = [rig.add(7, &[1, 2, 3], None), rig.add(8, &[101, 102, 103], None)];
    assert!(rig.front.activate(handles[0]));
    let at = rig.servers.http.unwrap();
    let asking = (0..4).map(|_| async move {
        let mut versions = [0; 2];
        for _ in 0..60 {
            let body = r#"{"user": {"user_id": 5, "user_age": 0}, "k": 5}"#;
            let answer: Value = serde_json::from_str(&post(at, "/retrieve", body).await.text).unwrap();
            let version = answer["version"].as_u64().unwrap();
            let items = answer["items"].as_array().unwrap();
            assert_eq!(items.len(), 3, "{answer}");
            assert!(
                items.iter().all(|item| (item["id"].as_u64().unwrap() > 100) == (version == 8)),
                "{answer}"
            );
            versions[version as usize - 7] += 1;
        }
        versions
    });
    let asking: Vec<_> = asking.map(tokio::spawn).collect();
    let mut turn = 0;
    while asking.iter().any(|asker| !asker.is_finished()) {
        turn += 1;
        assert!(rig.front.activate(handles[turn % 2]));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut both = [0; 2];
    for asker in asking {
        both.iter_mut().zip(asker.await.unwrap()).for_each(|(sum, count)| *sum += count);
    }
    assert!(both.iter().all(|count| *count > 0), "{both:?}");
}

#[tokio::test]
async fn some_cells_are_searched_and_all_where_these_have_too_few_and_what_was_missed_is_counted() {
    let rig = Rig::start(false);
    // The rig's users are unit vectors, and each of the four groups of items is near to one of them.
    let items: Vec<i64> = (0..400).collect();
    let values: Vec<i8> = items
        .iter()
        .flat_map(|&item| {
            (0..DIM as i64).map(move |at| if at == item % 4 { 100 } else { (item / 100) as i8 })
        })
        .collect();
    let changes =
        Changes { keys: &keys(&items), values: &values, scales: &vec![0.01; items.len()], removed: &[] };
    let blocks = Blocks::new(DIM).unwrap().apply(&changes).unwrap();
    let blocks = Arc::new(blocks.in_cells(&Training { cells: 8, rounds: 4, seed: 0 }).unwrap());
    let ids = items.iter().map(|&item| (keys(&[item])[0], RawId::Int(item)));
    let ids = Arc::new(RawIds::new(false).apply(ids, &[]).unwrap());
    let index = ItemIndex { blocks, ids, as_of_ms: None, probes: Some(1), identity: 0 };
    assert!(rig.front.activate(rig.add_index(7, index)));
    let (_, few) = rig.retrieve(r#"{"user": {"user_id": 1}, "k": 3}"#).await;
    assert_eq!((few["probed"].as_u64(), few["items"].as_array().unwrap().len()), (Some(1), 3));
    let inputs =
        ["user_id", "k"].map(|name| json!({"name": name, "datatype": "INT64", "shape": [1], "data": [1]}));
    let body = json!({ "inputs": inputs }).to_string();
    let heard = post(rig.servers.http.unwrap(), "/v2/models/ctr.retrieve/infer", &body).await;
    let tensors: Value = serde_json::from_str(&heard.text).unwrap();
    assert_eq!(tensors["parameters"], json!({"probed": 1, "digest": "0000000000000000"}));
    let scanned = rig.front.measures().found().1;
    assert!(scanned < 800, "{scanned} of 2 * 400 vectors were scanned for a few items");
    let (_, many) = rig.retrieve(r#"{"user": {"user_id": 1}, "k": 100, "exclude": [1, 5, 9]}"#).await;
    assert_eq!((many.get("probed"), many["items"].as_array().unwrap().len()), (None, 100));
    let (_, named) = rig.retrieve(r#"{"user": {"user_id": 1}, "k": 2, "allow": [0, 399]}"#).await;
    assert_eq!((named.get("probed"), named["items"].as_array().unwrap().len()), (None, 2));
    // The first request of some cells is sampled.
    wait_until("three items are counted", || {
        let (found, missed) = rig.front.measures().recall();
        found + missed == 3
    })
    .await;
}
