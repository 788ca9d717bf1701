//! Requests that leave out what the library has, and requests for ranked items: both are answered by one version whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};
use streamlearn_scan::{Blocks, Changes};
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::features::state_source::{StateGroup, StateKey, StateSource};
use streamlearn_serve::front::Front;
use streamlearn_serve::impression_log::Shown;
use streamlearn_serve::inputs::{Inputs as ModelInputs, Label, Limits};
use streamlearn_serve::layout::{Layout, Place, Pooling, Side};
use streamlearn_serve::list_source::{ListSource, UsableVersions};
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::protocol::{
    CallerOptions, Door, DoorLimits, DoorSettings, RequestFormat, check, decode, every_kind_for_items,
    every_kind_in_library, read,
};
use streamlearn_serve::request::{Request, Values};
use streamlearn_serve::tensor_batch::Scratch;
use streamlearn_serve::versions::VersionName;
use streamlearn_serve::versions::item_features::{ColumnForm, ItemFeatures};
use streamlearn_serve::versions::item_index::ItemIndex;
use streamlearn_serve::versions::raw_ids::{RawId, RawIds};
use streamlearn_table::TableSet;
use streamlearn_wire::avro::Column;
use streamlearn_wire::checksum::crc32c;
use streamlearn_wire::keys::{key_of_bytes, key_of_int, slot_salt};

use crate::items::{front, run_lane, until_lane};
use crate::rig::asks::*;
use crate::rig::{Client, http, post};
use crate::shown::{ALL, DESCRIPTION, columns_of, of};

const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 16 << 20 };
const DIM: usize = 4;

fn keys(ids: &[i64]) -> Vec<u64> {
    ids.iter().map(|&id| key_of_int(id, slot_salt("item_id"))).collect()
}

/// What describes an item in a version, as a caller sends it.
fn sent(id: i64, version: i64) -> Value {
    json!({
        "item_id": id, "item_word": format!("w{}", id % 3), "item_tags": (0..id % 3).map(|tag| format!("t{tag}")).collect::<Vec<_>>(),
        "item_likes": (0..id % 2).collect::<Vec<_>>(), "item_likes_weights": (0..id % 2).map(|_| 0.5).collect::<Vec<_>>(),
        "item_age": (id * version) as f32, "item_place": [id as f32, version as f32],
    })
}

/// The library of a version.
fn library(ids: &[i64], version: i64) -> Arc<ItemFeatures> {
    let text = |text: String, slot: &str| key_of_bytes(text.as_bytes(), slot_salt(slot));
    let list = |length: fn(i64) -> i64, key: &dyn Fn(i64) -> u64| {
        let mut offsets = vec![0];
        let keys: Vec<u64> = ids
            .iter()
            .flat_map(|&id| {
                offsets.push(offsets.last().unwrap() + length(id) as i32);
                (0..length(id)).map(key)
            })
            .collect();
        (keys, offsets)
    };
    let (tags, tags_at) = list(|id| id % 3, &|tag| text(format!("t{tag}"), "item_tags"));
    let (likes, likes_at) = list(|id| id % 2, &|like| key_of_int(like, slot_salt("item_likes")));
    let columns = [
        Values::Keys(ids.iter().map(|id| text(format!("w{}", id % 3), "item_word")).collect()),
        Values::Lists { keys: tags, offsets: tags_at, weights: None },
        Values::Lists { weights: Some(vec![0.5; likes.len()]), keys: likes, offsets: likes_at },
        Values::Numbers(ids.iter().map(|id| (id * version) as f32).collect()),
        Values::Numbers(ids.iter().flat_map(|&id| [id as f32, version as f32]).collect()),
    ];
    let inputs = every_kind_in_library(LIMITS).inputs().clone();
    let forms = inputs.library.as_ref().unwrap().columns.iter().map(|&at| ColumnForm::of(&inputs.item[at]));
    Arc::new(ItemFeatures::new(forms.collect()).apply(&keys(ids), &columns, &[]).unwrap())
}

fn of_rows(items: &[Value]) -> Request {
    let body = json!({"user": {"user_id": 5}, "items": items}).to_string();
    read(RequestFormat::Rows, body.as_bytes(), &every_kind_in_library(LIMITS)).unwrap()
}

fn filled(mut request: Request, library: &ItemFeatures) -> Result<Request, Refusal> {
    library.fill(&mut request, 7)?;
    check(&request);
    Ok(request)
}

#[test]
fn what_is_left_out_is_what_would_have_been_sent() {
    let (ids, library) = ([9, 4, 6, 1, 5], library(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 3));
    let whole: Vec<Value> = ids.iter().map(|&id| sent(id, 3)).collect();
    let expected = of_rows(&whole);
    assert!(expected.left_out.is_none());
    // Each item leaves out other columns; then all leave out all.
    let mut some = whole.clone();
    for (at, item) in some.iter_mut().enumerate() {
        let item = item.as_object_mut().unwrap();
        let names: Vec<String> = item.keys().filter(|name| *name != "item_id").cloned().collect();
        for (number, name) in names.iter().enumerate() {
            if (number + at) % 2 == 0 && !name.starts_with("item_likes") {
                item.remove(name);
            }
        }
    }
    let alone: Vec<Value> = ids.iter().map(|id| json!({"item_id": id, "item_word": null})).collect();
    for items in [&some, &alone] {
        let request = filled(of_rows(items), &library).unwrap();
        assert_eq!(request.item, expected.item);
        assert_eq!(request.left_out.unwrap().unknown(), 0);
    }
    for is_raw in [false, true] {
        let inputs: Inputs = vec![
            ("user_id", vec![1], Data::Int64(vec![5])),
            ("item_id", vec![5], Data::Int64(ids.to_vec())),
            ("item_age", vec![5], Data::Fp32(ids.iter().map(|id| (3 * id) as f32).collect())),
        ];
        let (request, _) = decode(
            &ask(&inputs, is_raw).encode_to_vec(),
            &every_kind_in_library(LIMITS),
            CallerOptions::default(),
        )
        .unwrap();
        assert_eq!(filled(request, &library).unwrap().item, expected.item);
    }
}

#[test]
fn what_is_sent_wins_and_unknown_items_get_defaults_or_are_refused() {
    let library = library(&[1, 2], 3);
    let mine = json!({"item_id": 1, "item_age": 99.0, "item_tags": []});
    let unknown = json!({"item_id": 50, "item_age": 1.0});
    let request = filled(of_rows(&[mine, unknown]), &library).unwrap();
    let left_out = request.left_out.as_ref().unwrap();
    assert_eq!((&left_out.known[..], left_out.unknown()), (&[true, false][..], 1));
    assert_eq!(request.item[6], Values::Numbers(vec![99.0, 1.0]));
    assert_eq!(request.item[7], Values::Numbers(vec![1.0, 3.0, 0.25, 0.25]));
    assert!(matches!(&request.item[2], Values::Lists { offsets, .. } if offsets == &[0, 0, 0]));
    let [word, default] = [key_of_bytes(b"w1", slot_salt("item_word")), 77];
    assert_eq!(request.item[1], Values::Keys(vec![word, default]));
    // A column without a default is required of an item that is not known.
    let naming = every_kind_in_library(LIMITS);
    let mut inputs = ModelInputs::clone(naming.inputs());
    if let streamlearn_serve::inputs::Kind::Slot { default, .. } = &mut inputs.item[1].kind {
        *default = None;
    }
    let naming = streamlearn_serve::protocol::Naming::new("ctr", Arc::new(inputs)).unwrap();
    let body = br#"{"user": {"user_id": 5}, "items": [{"item_id": 2}, {"item_id": 50}]}"#;
    let error = filled(read(RequestFormat::Rows, body, &naming).unwrap(), &library).unwrap_err().to_string();
    assert!(error.contains("items[1].item_word: it is missing") && error.contains("version 7"), "{error}");
}

#[test]
fn a_request_that_names_a_large_item_again_and_again_is_refused_before_it_takes_memory() {
    let large = [
        Values::Keys(vec![1]),
        Values::Lists { keys: (0..100).collect(), offsets: vec![0, 100], weights: None },
        Values::Lists { keys: Vec::new(), offsets: vec![0, 0], weights: Some(Vec::new()) },
        Values::Numbers(vec![1.0]),
        Values::Numbers(vec![1.0, 2.0]),
    ];
    let library = library(&[1], 3).apply(&keys(&[1]), &large, &[]).unwrap();
    let ask = |count| filled(of_rows(&vec![json!({"item_id": 1}); count]), &library);
    assert!(ask(2).is_ok());
    let error = ask(60).unwrap_err().to_string();
    assert!(error.contains("\"item_tags\" of the first 3 candidates has more than 256 values"), "{error}");
}

/// A node whose model ranks by what the library says, and whose towers find items as those of `items` do.
struct Rig {
    fronts: [Arc<Front>; 2],
    node: Arc<Node>,
    servers: Servers,
    tables: Arc<TableSet>,
    is_over: Arc<AtomicBool>,
    lanes: Vec<JoinHandle<()>>,
}

/// Scores candidates: of the first label by age, of the second by the first number of the place.
fn run_ranking(front: &Front, is_over: &AtomicBool, logits: fn(&[f32]) -> [f32; 2]) {
    let mut scratch = Scratch::default();
    while !is_over.load(Ordering::SeqCst) {
        let Some(work) = front.take(0, Duration::from_millis(20), &mut scratch) else { continue };
        let begin = work.packed.score[1].at;
        let floats = &work.packed.slab.floats()[begin..begin + 3 * work.candidates];
        let scores: Vec<f32> = floats.chunks_exact(3).flat_map(logits).collect();
        front.give(work, &scores);
    }
}

impl Rig {
    fn start() -> Self {
        let naming = every_kind_for_items(LIMITS, false);
        let labels = (0..DIM).map(|at| Label::from(&*at.to_string())).collect();
        let inputs = ModelInputs { labels, ..ModelInputs::clone(naming.inputs()) };
        let columns = inputs.user.len();
        let dense = |column, at, width| Place { column, table: 0, pooling: Pooling::Dense, at, width };
        let user =
            Side { flat: vec![dense(columns - 2, 0, 1)], flat_width: 1, inputs: columns, ..Side::default() };
        let towers = front(inputs, Layout { user, item: Side::default() });
        let inputs = ModelInputs::clone(every_kind_in_library(LIMITS).inputs());
        let item = Side {
            flat: vec![dense(6, 0, 1), dense(7, 1, 2)],
            flat_width: 3,
            inputs: inputs.item.len(),
            ..Side::default()
        };
        let ranking = front(inputs, Layout { user: Side::default(), item });
        let node = Arc::new(Node::new("ctr", ranking.clone(), Box::new(String::new)).unwrap());
        let tables = Arc::new(TableSet::new(&[]).unwrap());
        for version in [7, 8] {
            tables.begin_staging((version > 7).then_some(7)).unwrap();
            tables.end_staging(version).unwrap();
        }
        node.set_state(true, None);
        // A lane is there once it has looked for work: who asks before that is refused.
        for front in [&ranking, &towers] {
            assert!(front.take(0, Duration::ZERO, &mut Scratch::default()).is_none());
        }
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let limits = DoorLimits { http_bytes_max: LIMITS.message_bytes_max, ..DoorLimits::default() };
        let door = Arc::new(Door::new(DoorSettings { limits, ..DoorSettings::default() }).unwrap());
        let servers = Servers::start(node.clone(), door, (listen(), Some(listen())), 2).unwrap();
        // A node retrieves only after it has begun to listen.
        node.retrieve_by(towers.clone()).unwrap();
        assert!(
            Arc::ptr_eq(&ranking.readers(), &towers.readers()),
            "lanes of both rest for the same threads"
        );
        let (is_over, lanes) = (Arc::default(), Vec::new());
        Self { fronts: [ranking, towers], node, servers, tables, is_over, lanes }
    }

    /// Lets both models answer.
    fn run(&mut self) {
        self.run_with(|item| [item[0], -item[1]]);
    }

    /// The same with other logits of an item.
    fn run_with(&mut self, logits: fn(&[f32]) -> [f32; 2]) {
        self.run_towers();
        let (front, is_over) = (self.fronts[0].clone(), self.is_over.clone());
        self.lanes.push(std::thread::spawn(move || run_ranking(&front, &is_over, logits)));
        until_lane(&self.fronts[0]);
    }

    fn run_towers(&mut self) {
        let (front, is_over) = (self.fronts[1].clone(), self.is_over.clone());
        self.lanes.push(std::thread::spawn(move || run_lane(&front, &is_over)));
        until_lane(&self.fronts[1]);
    }

    /// Adds a version to both models; its items have the vectors (n, -n, 0, 1) / 128.
    fn add(&self, version: u64, items: &[i64]) -> [u64; 2] {
        let values: Vec<i8> = items.iter().flat_map(|&item| [item as i8, -item as i8, 0, 1]).collect();
        let scales = vec![1.0 / 128.0; items.len()];
        let changes = Changes { keys: &keys(items), values: &values, scales: &scales, removed: &[] };
        let blocks = Arc::new(Blocks::new(DIM).unwrap().apply(&changes).unwrap());
        let ids = items.iter().map(|&item| (keys(&[item])[0], RawId::Int(item)));
        let ids = Arc::new(RawIds::new(false).apply(ids, &[]).unwrap());
        let name = VersionName { number: version, identity: 3 };
        let index = Arc::new(ItemIndex {
            blocks,
            ids,
            as_of_ms: Some(1_000 + version as i64),
            probes: None,
            identity: 0,
        });
        let handles = [
            self.fronts[0].add(name, &self.tables, None),
            self.fronts[1].add(name, &self.tables, Some(index)),
        ];
        self.fronts[0].describe(handles[0], library(items, version as i64));
        handles
    }

    fn activate(&self, handles: [u64; 2]) {
        self.fronts.iter().zip(handles).for_each(|(front, handle)| assert!(front.activate(handle)));
    }

    async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let reply = post(self.servers.http.unwrap(), path, &body.to_string()).await;
        (reply.status, serde_json::from_str(&reply.text).unwrap())
    }

    async fn recommend(&self, more: Value) -> (u16, Value) {
        let mut body = json!({"user": {"user_id": 5, "user_age": 0}, "k": 3});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.ask("/recommend", &body).await
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.fronts.iter().for_each(|front| front.drain());
        self.lanes.drain(..).for_each(|lane| lane.join().unwrap());
    }
}

fn ids(answer: &Value) -> Vec<i64> {
    let items = answer["items"].as_array().unwrap_or_else(|| panic!("{answer}"));
    items.iter().map(|item| item["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn the_best_of_the_retrieved_items_are_answered_with_all_scores() {
    let mut rig = Rig::start();
    let (status, body) = rig.recommend(json!({})).await;
    assert_eq!((status, &body["error"]), (503, &json!("this node has no version yet")));
    let items: Vec<i64> = (1..=100).collect();
    rig.activate(rig.add(7, &items));
    rig.run();
    // By default by the label of the retrieval, whose score falls with the id.
    let (status, body) = rig.recommend(json!({"id": "a", "candidates": 10, "exclude": [100, 5_000]})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(ids(&body), [90, 91, 92]);
    let named = ["id", "model", "version", "as_of_ms", "candidates"].map(|name| body[name].clone());
    assert_eq!(named, [json!("a"), json!("ctr.recommend"), json!(7), json!(1_007), json!(10)]);
    let (_, body) = rig.recommend(json!({"candidates": 10, "rank_by": "click"})).await;
    assert_eq!(ids(&body), [100, 99, 98]);
    assert_eq!(ids(&rig.recommend(json!({"allow": [3, 4, 500]})).await.1), [3, 4]);
    // As many as the front takes, unless the request says otherwise.
    let (_, body) = rig.recommend(json!({})).await;
    assert_eq!((ids(&body), &body["candidates"]), (vec![37, 38, 39], &json!(64)));
    // The same candidates get the same scores if they are sent, or named.
    let scores = body["items"].as_array().unwrap().iter().map(|item| item["scores"]["like"].clone());
    let sent = [37, 38, 39].map(|id| sent(id, 7));
    let alone = [37, 38, 39].map(|id| json!({"item_id": id}));
    for items in [json!(sent), json!(alone)] {
        let (_, scored) = rig.ask("/score", &json!({"user": {"user_id": 5}, "items": items})).await;
        assert_eq!(scored["scores"]["like"], Value::Array(scores.clone().collect()));
    }
    let all = rig.recommend(json!({"exclude": (0..1_000_000).collect::<Vec<i64>>()})).await;
    assert_eq!((all.0, ids(&all.1), &all.1["candidates"]), (200, vec![], &json!(0)));
    let (status, body) =
        rig.ask("/score", &json!({"user": {"user_id": 5}, "items": [{"item_id": 500}]})).await;
    assert_eq!((status, &body["unknown"]), (200, &json!(1)));
    assert_eq!(rig.fronts[0].measures().candidates_filled().1, 1);
}

/// A request of the Open Inference Protocol for the three best of ten items.
fn ask_for_ranked(more: Vec<(&'static str, Vec<i64>, Data)>, is_raw: bool) -> InferAsk {
    let mut inputs = vec![
        ("user_id", vec![1], Data::Int64(vec![5])),
        ("user_age", vec![1], Data::Fp32(vec![0.0])),
        ("k", vec![1], Data::Int64(vec![3])),
        ("candidates", vec![1], Data::Int32(vec![10])),
        ("exclude", vec![2], Data::Int64(vec![100, 5_000])),
    ];
    inputs.extend(more);
    InferAsk { model_name: "ctr.recommend".to_owned(), ..ask(&inputs, is_raw) }
}

#[tokio::test]
async fn the_open_inference_protocol_ranks_items_as_http_does() {
    let mut rig = Rig::start();
    rig.activate(rig.add(7, &(1..=100).collect::<Vec<i64>>()));
    rig.run();
    let (_, said) = rig.recommend(json!({"candidates": 10, "exclude": [100, 5_000]})).await;
    let scores = |label: &str| -> Vec<f32> {
        let items = said["items"].as_array().unwrap().iter();
        items.map(|item| item["scores"][label].as_f64().unwrap() as f32).collect()
    };
    let mut client = Client::connect(rig.servers.grpc).await;
    for is_raw in [false, true] {
        let reply = client.call("ModelInfer", &ask_for_ranked(Vec::new(), is_raw)).await;
        let reply = InferReply::decode(reply.message).unwrap();
        let heads: Vec<_> =
            reply.outputs.iter().map(|one| (&*one.name, &*one.datatype, &one.shape[..])).collect();
        let expected = [("id", "INT64"), ("click", "FP32"), ("like", "FP32")];
        assert_eq!(heads, expected.map(|(name, datatype)| (name, datatype, &[3][..])));
        let data = [Data::Int64(vec![90, 91, 92]), Data::Fp32(scores("click")), Data::Fp32(scores("like"))];
        if is_raw {
            assert_eq!(reply.raw_output_contents, data.map(|one| one.raw()));
        } else {
            let contents: Vec<_> = reply.outputs.iter().map(|one| one.contents.clone().unwrap()).collect();
            assert_eq!(contents, data.map(|one| one.contents()));
        }
    }
    // By another label, and logits alone.
    let by_click = vec![("rank_by", vec![1], Data::texts(&["click"]))];
    let ask = with_output(with_output(ask_for_ranked(by_click, true), "click.logit"), "id");
    let reply = InferReply::decode(client.call("ModelInfer", &ask).await.message).unwrap();
    let [logits, ids] = &reply.raw_output_contents[..] else { panic!("{reply:?}") };
    assert_eq!(*ids, Data::Int64(vec![99, 98, 97]).raw());
    let logit = f32::from_le_bytes(logits[..4].try_into().unwrap());
    assert_eq!(reply.outputs[0].name, "click.logit");
    let (_, best) = rig.recommend(json!({"candidates": 10, "exclude": [100], "rank_by": "click"})).await;
    let expected = best["items"][0]["scores"]["click"].as_f64().unwrap() as f32;
    assert!((1.0 / (1.0 + (-logit).exp()) - expected).abs() < 1e-6);
    // The same by HTTP, with the number of candidates; all allowed items are answered if they are fewer.
    let inputs = json!([
        {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [5]},
        {"name": "k", "datatype": "INT64", "shape": [1], "data": [3]},
        {"name": "allow", "datatype": "INT64", "shape": [3], "data": [3, 4, 500]},
    ]);
    let (status, body) = rig.ask("/v2/models/ctr.recommend/infer", &json!({"inputs": inputs})).await;
    assert_eq!(
        (status, &body["outputs"][0]["data"], &body["parameters"]["candidates"]),
        (200, &json!([3, 4]), &json!(2))
    );
    assert_eq!(
        (&body["model_name"], &body["parameters"]["as_of_ms"]),
        (&json!("ctr.recommend"), &json!(1_007))
    );
    let none = json!({"inputs": inputs, "parameters": {"shown": "3"}});
    let (status, body) = rig.ask("/v2/models/ctr.recommend/infer", &none).await;
    assert!(status == 400 && body["error"].as_str().unwrap().contains("the indices are 0 to 2"), "{body}");
}

#[tokio::test]
async fn a_value_that_is_not_finite_is_refused_if_it_would_be_answered() {
    for (logits, is_chance) in [
        ((|item| [f32::INFINITY, -item[1]]) as fn(&[f32]) -> [f32; 2], true),
        (|item| [f32::NAN, -item[1]], false),
    ] {
        let mut rig = Rig::start();
        rig.activate(rig.add(7, &[1, 2, 3]));
        rig.run_with(logits);
        let inputs = json!([
            {"name": "user_id", "datatype": "INT64", "shape": [1], "data": [5]},
            {"name": "k", "datatype": "INT64", "shape": [1], "data": [3]},
        ]);
        let of = |output: &str| json!({"inputs": inputs, "outputs": [{"name": "id"}, {"name": output}]});
        let path = "/v2/models/ctr.recommend/infer";
        assert_eq!(rig.ask(path, &of("like")).await.0, 200);
        let (status, body) = rig.ask(path, &of("click.logit")).await;
        let text = "version 7 returned a value for \"click.logit\" that is not finite";
        assert_eq!((status, &body["error"]), (500, &json!(text)));
        // The chance of an infinite logit is 1.
        let status = if is_chance { 200 } else { 500 };
        assert_eq!(rig.ask(path, &of("click")).await.0, status);
        assert_eq!(rig.recommend(json!({})).await.0, status);
        let alone = [1, 2, 3].map(|id| json!({"item_id": id}));
        let scored = json!({"user": {"user_id": 5, "user_age": 0}, "items": alone});
        assert_eq!(rig.ask("/score", &scored).await.0, status);
    }
}

#[tokio::test]
async fn the_model_that_ranks_what_it_finds_is_described_beside_the_others() {
    let rig = Rig::start();
    rig.activate(rig.add(7, &[1]));
    let get = async |path: &str| {
        let heard = http(rig.servers.http.unwrap(), "GET", path, &[], "").await;
        (heard.status, serde_json::from_str::<Value>(&heard.text).unwrap())
    };
    let (_, page) = get("/v2/models/ctr.recommend").await;
    let of = |what: &str| -> Vec<String> {
        let named = page[what].as_array().unwrap().iter();
        named
            .map(|one| format!("{} {}", one["name"].as_str().unwrap(), one["datatype"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(of("outputs"), ["id INT64", "click FP32", "like FP32", "click.logit FP32", "like.logit FP32"]);
    let inputs = of("inputs");
    let last = ["k INT64", "exclude INT64", "allow INT64", "candidates INT64", "rank_by BYTES"];
    assert_eq!(inputs[inputs.len() - 5..], last);
    assert!(!inputs.iter().any(|input| input.starts_with("item_id ")), "{inputs:?}");
    let index = post(rig.servers.http.unwrap(), "/v2/repository/index", "").await.text;
    for model in ["ctr", "ctr.retrieve", "ctr.recommend"] {
        assert!(index.contains(&format!("\"{model}\"")), "{index}");
    }
    assert_eq!(get("/v2/models/ctr.recommend/stats").await.1, json!({"model_stats": []}));
    assert_eq!(get("/v2/models/ctr.recommend/versions/7/stats").await, (200, json!({"model_stats": []})));
    let (status, unkept) = get("/v2/models/ctr.recommend/versions/8/stats").await;
    let text = "this node does not keep version 8; help: it has 7";
    assert_eq!((status, &unkept["error"]), (409, &json!(text)));
    let (status, unknown) = get("/v2/models/ctr.recommends").await;
    let text =
        r#"unknown model "ctr.recommends"; help: this node serves "ctr", "ctr.retrieve", "ctr.recommend""#;
    assert_eq!((status, &unknown["error"]), (404, &json!(text)));
    let asked = rig.ask("/v2/models/ctr.recommends/infer", &json!({"inputs": []})).await;
    assert_eq!(asked, (404, unknown.clone()));
    let mut client = Client::connect(rig.servers.grpc).await;
    let other = InferAsk { model_name: "ctr.recommends".to_owned(), ..ask_for_ranked(Vec::new(), true) };
    assert_eq!(client.call("ModelInfer", &other).await.text, text);
}

#[tokio::test]
async fn tensors_of_another_form_are_refused_with_what_would_be_right() {
    let rig = Rig::start();
    let mut client = Client::connect(rig.servers.grpc).await;
    for ((name, shape, data), text) in [
        (
            ("rank_by", vec![1], Data::texts(&["clicks"])),
            "\"rank_by\" is \"clicks\"; help: labels are click, like",
        ),
        (("rank_by", vec![1], Data::Int64(vec![1])), "\"rank_by\": INT64 of shape [1], expected BYTES"),
        (("rank_by", vec![2], Data::texts(&["click", "like"])), "expected BYTES of shape [1]"),
        (("item_id", vec![1], Data::Int64(vec![1])), "unknown input \"item_id\""),
        (("candidates", vec![1], Data::Int64(vec![20])), "\"candidates\" is given twice"),
    ] {
        let reply = client.call("ModelInfer", &ask_for_ranked(vec![(name, shape, data)], true)).await;
        assert!(reply.text.contains(text), "{name}: {}", reply.text);
    }
}

#[tokio::test]
async fn other_requests_are_refused_with_what_would_be_right() {
    let rig = Rig::start();
    for (more, text) in [
        (json!({"k": null}), "\"k\" is missing"),
        (
            json!({"k": 0}),
            "\"k\" is 0, expected 1 to 64; help: retrieval.k_max and front.candidates_max bound",
        ),
        (json!({"k": 1_000_000_000}), "\"k\" is 1000000000, expected 1 to 64"),
        (json!({"candidates": 2}), "\"candidates\" is 2, expected \"k\" to 64"),
        (json!({"candidates": 65}), "\"candidates\" is 65"),
        (json!({"candidates": -1}), "\"candidates\" is -1"),
        (json!({"rank_by": "clicks"}), "\"rank_by\" is \"clicks\"; help: labels are click, like"),
        (json!({"rank_by": 3}), "\"rank_by\": 3"),
        (json!({"shown": [3]}), "the indices are 0 to 2"),
        (json!({"prescores": "1"}), "are for requests that score candidates"),
        (json!({"features": true}), "is for requests that name their candidates"),
        (json!({"items": []}), "fields are user, k, exclude, allow, candidates, rank_by, id, version"),
        (json!({"user": {}}), "user.user_id: it is missing"),
        (
            json!({"user": {"user_id": 5, "item_id": 3}}),
            "other inputs are k, exclude, allow, candidates, rank_by",
        ),
    ] {
        let (status, body) = rig.recommend(more.clone()).await;
        assert!(status == 400 && body["error"].as_str().unwrap().contains(text), "{more}: {body}");
    }
    let (_, body) = rig.ask("/retrieve", &json!({"user": {"user_id": 5}, "k": 1, "candidates": 3})).await;
    assert!(body["error"].as_str().unwrap().contains("unknown field \"candidates\""), "{body}");
}

#[tokio::test]
async fn an_impression_has_the_items_that_were_shown_with_what_was_taken_from_the_library() {
    let mut rig = Rig::start();
    rig.activate(rig.add(7, &[1, 2, 3, 4, 5, 6]));
    rig.run();
    let shown = Arc::new(Shown::new(&every_kind_in_library(LIMITS), DESCRIPTION, ALL).unwrap());
    rig.node.write_back(shown.clone());
    rig.recommend(json!({"id": "none", "shown": ""})).await;
    rig.recommend(json!({"id": "nothing", "allow": [500]})).await;
    rig.recommend(json!({"id": "beyond", "k": 4, "allow": [4, 5], "shown": [3, 2]})).await;
    // Of four places, the answer has two.
    let (_, body) = rig.recommend(json!({"id": "a", "k": 4, "allow": [4, 5], "shown": [3, 1, 0]})).await;
    assert_eq!(ids(&body), [4, 5]);
    let columns = columns_of(&shown, true);
    let of = |name: &str| of(&columns, name);
    assert_eq!(*of("request_id"), Column::U8(b"a".to_vec()));
    assert_eq!(*of("served_version"), Column::I64(vec![7]));
    assert_eq!(*of("user.user_id"), Column::I64(vec![5]));
    assert_eq!(*of("items.item_id"), Column::I64(vec![5, 4]));
    assert_eq!(*of("items.item_age"), Column::F32(vec![35.0, 28.0]));
    assert_eq!(*of("items.item_place"), Column::F32(vec![5.0, 7.0, 4.0, 7.0]));
    assert_eq!(*of("items.item_likes"), Column::I64(vec![0]));
    assert_eq!(*of("items.item_likes_weights"), Column::F32(vec![0.5]));
    // Texts are empty, as many as there are keys.
    assert_eq!(*of("items.item_word"), Column::U8(Vec::new()));
    assert_eq!(*of("items.item_tags[]"), Column::I32(vec![0, 2, 3]));
    let key = |text: &[u8], slot| key_of_bytes(text, slot_salt(slot)) as i64;
    let words = [b"w2", b"w1"].map(|word| key(word, "item_word"));
    assert_eq!(*of("items.served_keys_item_word"), Column::I64(words.to_vec()));
    let tags = [&b"t0"[..], b"t1", b"t0"].map(|tag| key(tag, "item_tags"));
    assert_eq!(*of("items.served_keys_item_tags"), Column::I64(tags.to_vec()));
    let scores = [1, 0].map(|at: usize| body["items"][at]["scores"]["like"].as_f64().unwrap() as f32);
    assert_eq!(*of("items.served_score_like"), Column::F32(scores.to_vec()));
    assert_eq!(shown.figures().refused, 0, "{}", shown.figures().said);
}

/// Waits until a front has a request.
async fn until_waits(front: &Front) {
    let until = Instant::now() + Duration::from_secs(60);
    while front.waiting() == 0 {
        assert!(Instant::now() < until, "no request came");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_goes_between_the_steps_is_replaced_whole_or_refused() {
    for (pin, expected) in [(None, 200), (Some(7), 409)] {
        let mut rig = Rig::start();
        let old = rig.add(7, &[1, 2, 3]);
        rig.activate(old);
        let new = rig.add(8, &[101, 102, 103]);
        let mut body = json!({"user": {"user_id": 5, "user_age": 0}, "k": 3});
        body.as_object_mut().unwrap().extend(pin.map(|pin: u64| ("version".to_owned(), json!(pin))));
        let at = rig.servers.http.unwrap();
        let asked = tokio::spawn(async move { post(at, "/recommend", &body.to_string()).await });
        until_waits(&rig.fronts[1]).await;
        // The towers answer with version 7, but the model that ranks has it no more.
        rig.activate(new);
        rig.fronts[0].remove(old[0]);
        rig.run();
        let reply = asked.await.unwrap();
        let body: Value = serde_json::from_str(&reply.text).unwrap();
        assert_eq!(reply.status, expected, "{body}");
        if pin.is_none() {
            assert_eq!((&body["version"], ids(&body)), (&json!(8), vec![101, 102, 103]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_is_that_of_both_steps() {
    let mut rig = Rig::start();
    rig.activate(rig.add(7, &[1, 2, 3]));
    // Nobody retrieves; then nobody ranks.
    for step in 0..2 {
        let (status, body) = rig.recommend(json!({"deadline_ms": 2_000})).await;
        assert_eq!((step, status), (step, 504), "{body}");
        assert_eq!(rig.fronts[1].measures().found().0, step);
        if step == 0 {
            rig.run_towers();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_of_one_version_while_versions_change() {
    let mut rig = Rig::start();
    let handles = [rig.add(7, &[1, 2, 3]), rig.add(8, &[101, 102, 103])];
    rig.activate(handles[0]);
    rig.run();
    let at = rig.servers.http.unwrap();
    let asking = (0..4).map(|_| async move {
        let mut versions = [0; 2];
        for _ in 0..60 {
            let body = r#"{"user": {"user_id": 5, "user_age": 0}, "k": 3, "rank_by": "click"}"#;
            let answer: Value = serde_json::from_str(&post(at, "/recommend", body).await.text).unwrap();
            let version = answer["version"].as_i64().unwrap();
            let best = if version == 8 { [103, 102, 101] } else { [3, 2, 1] };
            assert_eq!(ids(&answer), best, "{answer}");
            // The place says of which version the library was.
            assert_eq!(answer["as_of_ms"], json!(1_000 + version));
            versions[version as usize - 7] += 1;
        }
        versions
    });
    let asking: Vec<_> = asking.map(tokio::spawn).collect();
    let mut turn = 0;
    while asking.iter().any(|asker| !asker.is_finished()) {
        turn += 1;
        // As a node does: first the model that ranks, then the towers.
        rig.activate(handles[turn % 2]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut both = [0; 2];
    for asker in asking {
        both.iter_mut().zip(asker.await.unwrap()).for_each(|(sum, count)| *sum += count);
    }
    assert!(both.iter().all(|count| *count > 0), "{both:?}");
}

/// A list of items that a version found for user 5, as a store has it.
fn list_of(version: VersionName, items: &[i64]) -> Vec<u8> {
    let user = key_of_int(5, slot_salt("user_id"));
    let words = [user, version.number, version.identity, 1_008, 1_009].into_iter().chain(keys(items));
    let mut bytes = [&b"SLL1"[..], &(items.len() as u32).to_le_bytes()].concat();
    words.for_each(|word| bytes.extend(word.to_le_bytes()));
    items.iter().for_each(|_| bytes.extend(0x3c00_u16.to_le_bytes()));
    let crc = crc32c(0, &bytes).to_le_bytes();
    [bytes, crc.to_vec()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_a_version_that_is_taken_back_while_it_is_read_is_not_answered() {
    let mut rig = Rig::start();
    let [old, new] = [rig.add(7, &[1, 2, 3]), rig.add(8, &[101, 102, 103])];
    rig.activate(new);
    rig.run();
    let name = VersionName { number: 8, identity: 3 };
    let (towers, is_taken_back) = (rig.fronts[1].clone(), Arc::new(AtomicBool::new(false)));
    let (found, taking_back) = (list_of(name, &[103, 101, 102]), is_taken_back.clone());
    let read = move |_: &[StateKey]| {
        if taking_back.load(Ordering::SeqCst) {
            assert!(towers.activate(old[1]));
        }
        Some(vec![Some(found.clone())])
    };
    let user = rig.fronts[1].inputs().user.iter().position(|input| input.name == "user_id").unwrap();
    let store = StateSource::function(Box::new(read));
    let lists = Arc::new(ListSource::new(store, Duration::from_secs(60), 100, user));
    lists.set_group(StateGroup { name: "lists".to_owned(), partitions: 1 });
    lists.allow(UsableVersions { answering: name, of_lists: vec![name] });
    rig.node.answer_lists(lists.clone());
    let body = json!({"user": {"user_id": 5, "user_age": 0}, "k": 3});
    let (_, answer) = rig.ask("/retrieve", &body).await;
    assert_eq!((&answer["source"], ids(&answer)), (&json!("nearline"), vec![103, 101, 102]));
    is_taken_back.store(true, Ordering::SeqCst);
    let (_, answer) = rig.ask("/retrieve", &body).await;
    assert_eq!((answer.get("source"), ids(&answer)), (None, vec![3, 2, 1]), "{answer}");
    assert_eq!(lists.counts(), [1, 0, 1, 0, 0, 0]);
}
