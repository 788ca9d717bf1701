//! Splitting: a request in pieces over several nodes is answered to the byte as by one, whatever peers do.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{self as scheduler, Costs, Scheduler, Shapes};
use streamlearn_serve::front::{Front, Waits};
use streamlearn_serve::inputs::Limits;
use streamlearn_serve::layout::{Layout, Place, Pooling, Side};
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::protocol::{Door, DoorSettings, Secret, TlsFiles, Token, every_kind};
use streamlearn_serve::split::{METHOD, PeerDoor, PieceHead, Splitter, encode};
use streamlearn_serve::tensor_batch::Scratch;
use streamlearn_serve::versions::VersionName;
use streamlearn_table::{Initial, RowType, TableSet, TableSettings};
use streamlearn_trust::tls::renewed_nameless_connector;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::pieces::{decoded, head};
use crate::rig::asks::*;
use crate::rig::{Certificate, Client, certificate, framed, post, wait_until};

pub const LIMITS: Limits = Limits { candidates_max: 200, values_max: 1_024, message_bytes_max: 1 << 20 };
pub const VERSION: VersionName = VersionName { number: 7, identity: 0xABCD };
const WIDTH: usize = 2;
/// The predicted time of a candidate. Lanes are much faster, so that answers do not depend on the machine.
const SLOW_US: f64 = 500_000.0;
/// That of tests which wait until pieces are given up: a second try still ends in time on a busy machine.
const FAST_US: f64 = 100_000.0;
const WHOLE_MS: u64 = 60_000;
/// The number of candidates of most requests.
const MANY: usize = 40;

/// A node with one lane, whose scores depend on all columns of a candidate and of its user.
struct Rig {
    front: Arc<Front>,
    node: Arc<Node>,
    servers: Servers,
    address: SocketAddr,
    lane: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    /// A lane waits while it is set.
    is_stopped: Arc<AtomicBool>,
    scored: Arc<AtomicU64>,
    candidate_us: f64,
    _tables: Arc<TableSet>,
}

fn layout(naming_inputs: &streamlearn_serve::inputs::Inputs) -> Layout {
    let pooling = [
        Pooling::Sum,
        Pooling::Sum,
        Pooling::Mean,
        Pooling::Weighted,
        Pooling::Sqrtn,
        Pooling::Sum,
        Pooling::Dense,
        Pooling::Dense,
    ];
    let widths = [WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, WIDTH, 1, 2];
    let mut at = 0;
    let flat: Vec<Place> = (0..naming_inputs.user.len())
        .map(|column| {
            let place = Place { column, table: 0, pooling: pooling[column], at, width: widths[column] };
            at += widths[column];
            place
        })
        .collect();
    let side = Side { flat, flat_width: at, inputs: naming_inputs.user.len(), ..Side::default() };
    Layout { user: side.clone(), item: side }
}

pub fn shapes() -> Shapes {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
    Shapes { users: ladder(&[1, 4]), candidates: ladder(&[1, 4, 16]), lengths: ladder(&[1]) }
}

fn tables() -> Arc<TableSet> {
    let settings = TableSettings {
        dim: WIDTH,
        row_type: RowType::F32,
        rule: None,
        admission: None,
        initial: Initial { seed: 5, range: 0.5 },
        tick_ms: 1_000,
        rows_max: 1 << 10,
    };
    let tables = Arc::new(TableSet::new(&[settings]).unwrap());
    tables.begin_staging(None).unwrap();
    tables.end_staging(VERSION.number).unwrap();
    tables
}

impl Rig {
    fn start(candidate_us: f64) -> Self {
        Self::of(candidate_us, VERSION, DoorSettings::default(), PeerDoor { token: None, tls: None })
    }

    fn of(candidate_us: f64, version: VersionName, door: DoorSettings, to_peers: PeerDoor) -> Self {
        let naming = every_kind(LIMITS);
        let inputs = (**naming.inputs()).clone();
        let limits = scheduler::Limits {
            lanes: 1,
            requests_max: 64,
            candidates_max: 4_096,
            reserved_percent: 10,
            wait_us_max: 100_000_000,
            slack_us: 1_000,
            allowance: None,
            by_cohort: false,
        };
        let costs = Costs::measured(&shapes(), |_, _| 1.0, |candidates, _| candidate_us * candidates as f64);
        let waits =
            Waits { deadline_us: 60_000_000, deadline_us_max: 100_000_000, shadows_max: 1, value_max: 10.0 };
        let layout = layout(&inputs);
        let scheduler = Scheduler::new(limits, shapes(), costs);
        let front = Arc::new(Front::new(inputs, layout, scheduler, waits, 4));
        let tables = tables();
        let handle = front.add(version, &tables, None);
        assert!(front.activate(handle));
        let node = Arc::new(Node::new("ctr", front.clone(), Box::new(String::new)).unwrap());
        node.set_state(true, None);
        node.split(4, to_peers);
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Arc::new(Door::new(door).unwrap());
        let servers = Servers::start(node.clone(), door, (listen(), Some(listen())), 2).unwrap();
        let (is_over, is_stopped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let scored = Arc::new(AtomicU64::new(0));
        let lane = {
            let (front, is_over, is_stopped) = (front.clone(), is_over.clone(), is_stopped.clone());
            let scored = scored.clone();
            std::thread::spawn(move || run_lane(&front, &is_over, &is_stopped, &scored))
        };
        let address = servers.grpc;
        let (lane, _tables) = (Some(lane), tables);
        let rig =
            Self { front, node, servers, address, lane, is_over, is_stopped, scored, candidate_us, _tables };
        let end = Instant::now() + Duration::from_secs(120);
        while rig.front.figures().lanes == 0 {
            assert!(Instant::now() < end, "the lane does not begin");
            std::thread::yield_now();
        }
        rig
    }

    /// Sets the peers.
    fn follow(&self, peers: &[SocketAddr]) {
        let keepers = self.splitter().follow(peers);
        keepers.into_iter().for_each(|keeper| self.servers.spawn(keeper));
    }

    /// Splits requests over peers, once there is a connection to each.
    async fn over(&self, peers: &[SocketAddr]) {
        self.follow(peers);
        wait_until("connections to peers", || self.splitter().connected() == (peers.len(), peers.len()))
            .await;
    }

    fn splitter(&self) -> &Arc<Splitter> {
        self.node.splitter().unwrap()
    }

    /// Makes predictions as they were at first: lanes are faster, and would teach it.
    fn forget(&self) {
        let user = vec![vec![1.0; 2]];
        let score = vec![[1.0, 4.0, 16.0].map(|bucket| bucket * self.candidate_us).to_vec()];
        self.front.set_costs(&user, &score).unwrap();
    }

    /// The predicted time of candidates, without the network.
    fn alone_ms(&self, candidates: usize) -> u64 {
        let (tops, rest) = (candidates / 16, candidates % 16);
        let rest = [0, 1, 4, 16].into_iter().find(|bucket| *bucket >= rest).unwrap();
        ((16 * tops + rest) as f64 * self.candidate_us / 1e3) as u64 + 1
    }

    /// A time in which two pieces of `MANY` are done, but not all of it.
    fn split_ms(&self) -> u64 {
        (self.alone_ms(MANY / 2) + self.alone_ms(MANY)) / 2
    }

    fn count(&self, outcome: &str) -> u64 {
        let counts = self.splitter().counts();
        counts.into_iter().find(|(name, _)| *name == outcome).unwrap().1
    }

    fn batches(&self) -> u64 {
        self.scored.load(Ordering::SeqCst)
    }

    async fn ask(&self, ask: &InferAsk, deadline_ms: u64) -> crate::rig::Reply {
        self.forget();
        let mut client = Client::connect(self.address).await;
        let ask = with_parameter(ask.clone(), "deadline_ms", Choice::Int(deadline_ms as i64));
        client.call("ModelInfer", &ask).await
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.is_stopped.store(false, Ordering::SeqCst);
        self.front.drain();
        if let Some(lane) = self.lane.take() {
            lane.join().unwrap();
        }
    }
}

fn run_lane(front: &Front, is_over: &AtomicBool, is_stopped: &AtomicBool, scored: &AtomicU64) {
    let (mut scratch, labels) = (Scratch::default(), front.inputs().labels.len());
    while !is_over.load(Ordering::SeqCst) {
        let Some(work) = front.take(0, Duration::from_millis(20), &mut scratch) else { continue };
        while is_stopped.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let floats = work.packed.slab.floats();
        let row = |tensor: &streamlearn_serve::tensor_batch::Tensor, row: usize| {
            let width = tensor.shape[1];
            &floats[tensor.at + row * width..][..width]
        };
        let (user, index, item) = (&work.packed.user[0], &work.packed.score[0], &work.packed.score[1]);
        let mut scores = Vec::with_capacity(work.candidates * labels);
        for candidate in 0..work.candidates {
            let of_user = row(user, floats[index.at + candidate].to_bits() as usize);
            for label in 0..labels {
                let mut logit = 0.1 + label as f32;
                for (at, (one, other)) in row(item, candidate).iter().zip(of_user).enumerate() {
                    logit = logit * 0.75 + one * (1.0 + at as f32) + other * (0.5 + at as f32);
                }
                scores.push(logit);
            }
        }
        scored.fetch_add(1, Ordering::SeqCst);
        front.give(work, &scores);
    }
}

/// A request with all kinds of columns; lists differ in length.
fn request(candidates: usize, seed: u64) -> Inputs {
    let mut bits = seed;
    let mut next = move |below: u64| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33) % below
    };
    let n = candidates as i64;
    let mut ints = |count: usize| Data::Int64((0..count).map(|_| next(1 << 30) as i64 - 77).collect());
    let mut inputs: Inputs = vec![("user_id", vec![1], ints(1)), ("item_id", vec![n], ints(candidates))];
    let mut lists = |name: &'static str, lengths_name: &'static str, weights_name: Option<&'static str>| {
        let lengths: Vec<i32> = (0..candidates).map(|at| ((seed as usize + at * 7) % 4) as i32).collect();
        let total = lengths.iter().sum::<i32>() as usize;
        let data = if name == "item_tags" {
            Data::Bytes(
                (0..total).map(|at| format!("tag-{}", (at as u64 * seed) % 91).into_bytes()).collect(),
            )
        } else {
            Data::Int64((0..total).map(|at| (at as i64 * 31) ^ seed as i64).collect())
        };
        inputs.push((name, vec![total as i64], data));
        inputs.push((lengths_name, vec![n], Data::Int32(lengths)));
        if let Some(weights_name) = weights_name {
            let weights = (0..total).map(|at| 0.25 * (at % 9) as f32).collect();
            inputs.push((weights_name, vec![total as i64], Data::Fp32(weights)));
        }
    };
    lists("item_tags", "item_tags.lengths", None);
    lists("item_likes", "item_likes.lengths", Some("item_likes.weights"));
    let words: Vec<Vec<u8>> =
        (0..candidates).map(|at| format!("wört-{}", at as u64 ^ seed).into_bytes()).collect();
    inputs.push(("item_word", vec![n], Data::Bytes(words)));
    inputs.push(("user_tags", vec![2], Data::texts(&["a", "ö"])));
    inputs.push(("user_seen", vec![3], Data::Int64(vec![seed as i64, 2, 3])));
    inputs.push(("user_seen_where", vec![3], Data::texts(&["p", "q", "r"])));
    inputs.push(("user_place", vec![2], Data::Fp32(vec![0.5, seed as f32])));
    inputs.push((
        "item_place",
        vec![n, 2],
        Data::Fp64((0..2 * candidates).map(|at| at as f64 / 7.0).collect()),
    ));
    inputs
}

pub fn ask_of(candidates: usize, seed: u64, is_raw: bool) -> InferAsk {
    InferAsk { id: "q7".to_owned(), ..ask(&request(candidates, seed), is_raw) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_request_in_pieces_is_answered_to_the_byte_as_by_one_node() {
    let (home, first, second) = (Rig::start(SLOW_US), Rig::start(SLOW_US), Rig::start(SLOW_US));
    let runtime = runtime();
    runtime.block_on(home.over(&[first.address, second.address]));
    let cases = ProptestConfig::with_cases(48);
    proptest!(cases, |(candidates in 2_usize..60, seed in 1_u64..1 << 40, is_raw: bool, pieces in 2_u64..=3)| {
        runtime.block_on(async {
            let ask = ask_of(candidates, seed, is_raw);
            let sent = home.count("sent");
            // The time that so many pieces need, and fewer do not have.
            let each_ms = |pieces: u64| home.alone_ms(candidates.div_ceil(pieces as usize));
            let deadline_ms = each_ms(pieces) + 4_000;
            prop_assume!(deadline_ms < each_ms(pieces - 1));
            let whole = home.ask(&ask, WHOLE_MS).await;
            prop_assert_eq!(home.count("sent"), sent);
            let split = home.ask(&ask, deadline_ms).await;
            prop_assert_eq!(home.count("sent"), sent + pieces - 1);
            prop_assert_eq!((whole.code, split.code), (Some(0), Some(0)), "{:?}", split.text);
            prop_assert_eq!(whole.message, split.message);
            Ok(())
        })?;
    });
    assert_eq!(home.count("answered"), home.count("sent"));
    assert_eq!(first.front.statistics()[0].answered.count, 0, "pieces are no requests of a peer");
    assert!(first.batches() > 0 && second.batches() > 0);
}

#[test]
fn all_protocol_forms_and_outputs_are_split_and_a_request_that_fits_is_not() {
    let (home, peer) = (Rig::start(SLOW_US), Rig::start(SLOW_US));
    runtime().block_on(async {
        home.over(&[peer.address]).await;
        let split_ms = home.split_ms();
        let item = |at| format!(r#"{{"item_id": {at}, "item_tags": ["x", "{at}"]}}"#);
        let items: Vec<_> = (0..MANY).map(item).collect();
        let body = |deadline_ms| {
            let items = items.join(",");
            format!(
                r#"{{"id": "q", "user": {{"user_id": 1}}, "items": [{items}], "deadline_ms": {deadline_ms}}}"#
            )
        };
        let http = home.servers.http.unwrap();
        home.forget();
        let whole = post(http, "/score", &body(WHOLE_MS)).await;
        assert_eq!((whole.status, home.count("sent")), (200, 0), "{}", whole.text);
        home.forget();
        let split = post(http, "/score", &body(split_ms)).await;
        assert_eq!((split.status, home.count("sent")), (200, 1), "{}", split.text);
        assert_eq!(whole.text, split.text);
        let ask = with_output(with_output(ask_of(MANY, 3, false), "like.logit"), "click");
        let (whole, split) = (home.ask(&ask, WHOLE_MS).await, home.ask(&ask, split_ms).await);
        assert_eq!(home.count("sent"), 2);
        assert_eq!(whole.message, split.message);
        // One candidate cannot be split, and an idle node tries it.
        assert_eq!(home.ask(&ask_of(1, 3, true), 400).await.code, Some(0));
        assert_eq!(home.count("sent"), 2);
        assert_eq!(home.front.statistics()[0].answered.count, 5, "a request in pieces is one request");
        assert_eq!((peer.count("taken"), peer.count("sent")), (2, 0));
        assert!(peer.front.measures().refusals().is_empty());
    });
}

/// A way between two nodes that can be cut without a word, as a stopped process or a lost machine cuts it.
struct Wire {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Wire {
    async fn to(target: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, is_cut) = (listener.local_addr().unwrap(), watch::Sender::new(false));
        let cut = is_cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cut = cut.clone();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    let is_over = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => true,
                        _ = async { cut.wait_for(|is_cut| *is_cut).await.is_ok() } => false,
                    };
                    if !is_over {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Self { address, is_cut }
    }
}

/// Asks in a time that is enough for another try, and checks that the answer is as from one node.
async fn assert_answered_elsewhere(home: &Rig, outcome: &str) {
    let ask = ask_of(MANY, 5, true);
    let whole = home.ask(&ask, WHOLE_MS).await;
    let (before, began) = (home.count(outcome), Instant::now());
    let deadline_ms = home.alone_ms(MANY) - 20;
    let split = home.ask(&ask, deadline_ms).await;
    assert!(began.elapsed() < Duration::from_millis(deadline_ms + 30_000));
    assert_eq!((split.code, home.count(outcome)), (Some(0), before + 1), "{outcome}: {}", split.text);
    assert_eq!(whole.message, split.message, "{outcome}");
}

#[test]
fn a_piece_that_hangs_goes_elsewhere_and_its_peer_rests() {
    let (home, peer, second) = (Rig::start(FAST_US), Rig::start(FAST_US), Rig::start(FAST_US));
    runtime().block_on(async {
        let wire = Wire::to(peer.address).await;
        home.over(&[wire.address]).await;
        wire.is_cut.send_replace(true);
        assert_answered_elsewhere(&home, "lost").await;
        assert_eq!((home.count("sent"), home.count("again")), (1, 1));
        // While the peer rests, requests are tried whole, as without peers.
        assert_eq!(home.ask(&ask_of(MANY, 5, true), home.split_ms()).await.code, Some(0));
        assert_eq!(home.count("sent"), 1);
        wait_until("pings find the peer gone", || home.splitter().connected().0 == 0).await;
        home.over(&[second.address]).await;
        assert_eq!(home.ask(&ask_of(MANY, 5, true), home.split_ms()).await.code, Some(0));
        assert_eq!((home.count("sent"), home.count("lost"), second.count("taken")), (2, 1, 1));
    });
}

#[test]
fn a_request_whose_piece_is_lost_too_late_is_refused_by_its_deadline_and_cancelled() {
    let (home, peer) = (Rig::start(FAST_US), Rig::start(FAST_US));
    runtime().block_on(async {
        home.over(&[peer.address]).await;
        peer.is_stopped.store(true, Ordering::SeqCst);
        let deadline_ms = home.alone_ms(MANY / 2) + 1_000;
        let began = Instant::now();
        let reply = home.ask(&ask_of(MANY, 5, true), deadline_ms).await;
        assert_eq!(reply.code, Some(4), "{}", reply.text);
        // The peer's deadline is earlier by the time that the network takes.
        assert!(began.elapsed() >= Duration::from_millis(deadline_ms - 1_000), "{:?}", began.elapsed());
        assert_eq!(home.front.measures().refusals()["split"], 1);
        wait_until("the piece is cancelled", || peer.front.waiting() == 0).await;
        assert!(peer.front.measures().refusals().is_empty());
        peer.is_stopped.store(false, Ordering::SeqCst);
    });
}

#[test]
fn a_caller_that_goes_away_takes_all_pieces_along() {
    let (home, peer) = (Rig::start(SLOW_US), Rig::start(SLOW_US));
    runtime().block_on(async {
        home.over(&[peer.address]).await;
        for rig in [&home, &peer] {
            rig.is_stopped.store(true, Ordering::SeqCst);
        }
        let ask = with_parameter(ask_of(MANY, 5, true), "deadline_ms", Choice::Int(home.split_ms() as i64));
        home.forget();
        let mut client = Client::connect(home.address).await;
        let calling = tokio::spawn(async move { client.call("ModelInfer", &ask).await });
        wait_until("both have a piece", || home.front.waiting() == 1 && peer.front.waiting() == 1).await;
        calling.abort();
        wait_until("neither has", || home.front.waiting() == 0 && peer.front.waiting() == 0).await;
        for rig in [&home, &peer] {
            rig.is_stopped.store(false, Ordering::SeqCst);
        }
    });
}

#[test]
fn a_peer_of_another_version_and_one_that_closes_cost_one_more_try() {
    let another = VersionName { identity: 0xDCBA, ..VERSION };
    let open = || PeerDoor { token: None, tls: None };
    let home = Rig::start(SLOW_US);
    let (other, closing) = (Rig::of(SLOW_US, another, DoorSettings::default(), open()), Rig::start(SLOW_US));
    runtime().block_on(async {
        home.over(&[other.address]).await;
        assert_answered_elsewhere(&home, "refused").await;
        assert_eq!((other.count("taken"), other.batches()), (1, 0));
        home.over(&[closing.address]).await;
        closing.front.drain();
        assert_answered_elsewhere(&home, "lost").await;
    });
}

#[test]
fn a_busy_peer_refuses_and_gets_nothing_until_its_work_is_done() {
    let (home, peer) = (Rig::start(SLOW_US), Rig::start(2.0 * SLOW_US));
    runtime().block_on(async {
        home.over(&[peer.address]).await;
        peer.is_stopped.store(true, Ordering::SeqCst);
        let mut client = Client::connect(peer.address).await;
        let long = ask_of(MANY, 5, true);
        let calling = tokio::spawn(async move { client.call("ModelInfer", &long).await });
        wait_until("the peer works", || peer.front.figures().lanes_busy == 1).await;
        assert_answered_elsewhere(&home, "refused").await;
        assert_eq!(home.ask(&ask_of(MANY, 5, true), home.split_ms()).await.code, Some(0));
        assert_eq!(home.count("sent"), 1, "it is known to be busy");
        peer.is_stopped.store(false, Ordering::SeqCst);
        assert_eq!(calling.await.unwrap().code, Some(0));
    });
}

type Lie = (&'static str, &'static [(&'static str, &'static str)], Vec<u8>, &'static str);

/// A peer that greets, and answers pieces with a lie.
async fn liar(lie: Lie) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let lie = lie.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let (_, headers, body, status) = lie.clone();
                async move {
                    let sent = request.into_body().collect().await.unwrap().to_bytes();
                    let is_hello = sent.len() < 70;
                    let (headers, body, status) =
                        if is_hello { (HONEST, framed(&[]), "0") } else { (headers, body.into(), status) };
                    let mut response = Response::builder().header("content-type", "application/grpc");
                    for (name, value) in headers {
                        response = response.header(*name, *value);
                    }
                    let trailers =
                        HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]);
                    let frames = [Frame::data(body), Frame::trailers(trailers)].map(Ok::<_, std::io::Error>);
                    response.body(StreamBody::new(tokio_stream::iter(frames)))
                }
            });
            let builder = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(socket), service));
        }
    });
    address
}

const HONEST: &[(&str, &str)] = &[("backlog-us", "0"), ("took-us", "5")];

#[test]
fn a_peer_that_lies_costs_one_more_try_and_then_rests() {
    let scores = 2 * MANY / 2;
    let body = |floats: usize| framed(&vec![0; 4 * floats]).to_vec();
    let lies: [Lie; 7] = [
        ("too few scores", HONEST, body(scores - 1), "0"),
        ("too many scores", HONEST, body(scores + 1), "0"),
        ("far too many", HONEST, vec![0; 1 << 20], "0"),
        ("no load", &[("took-us", "5")], body(scores), "0"),
        ("a load that is none", &[("backlog-us", "-1e9"), ("took-us", "5")], body(scores), "0"),
        ("a status that is none", HONEST, body(scores), "what"),
        ("no scores", HONEST, Vec::new(), "0"),
    ];
    let home = Rig::start(SLOW_US);
    runtime().block_on(async {
        for lie in lies {
            println!("{}", lie.0);
            home.over(&[liar(lie).await]).await;
            assert_answered_elsewhere(&home, "lost").await;
            let sent = home.count("sent");
            assert_eq!(home.ask(&ask_of(MANY, 5, true), home.split_ms()).await.code, Some(0));
            assert_eq!(home.count("sent"), sent, "it rests");
        }
        // Who says to be idle and is busy refuses, and counts as busy.
        home.over(&[liar(("busy", HONEST, Vec::new(), "8")).await]).await;
        assert_answered_elsewhere(&home, "refused").await;
    });
}

#[test]
fn pieces_pass_a_door_with_tls_and_a_token_and_no_other_peer_is_trusted() {
    let (files, strange) = (certificate("split"), certificate("strange"));
    let token = |text: &str| Some(Token::from(Secret::of_header(text).unwrap()));
    let of = |authority: &Certificate, text: &str| PeerDoor {
        token: token(text),
        tls: Some(renewed_nameless_connector(&authority.cert, b"h2").unwrap()),
    };
    let tls = Some(TlsFiles { cert: files.cert.clone(), key: files.key.clone() });
    let door = DoorSettings { token: token("open-sesame"), tls, ..DoorSettings::default() };
    let peer = Rig::of(SLOW_US, VERSION, door, of(&files, "open-sesame"));
    let open = DoorSettings::default;
    let home = Rig::of(SLOW_US, VERSION, open(), of(&files, "open-sesame"));
    let wrong = [
        Rig::of(SLOW_US, VERSION, open(), of(&files, "open-barley")),
        Rig::of(SLOW_US, VERSION, open(), of(&strange, "open-sesame")),
        Rig::of(SLOW_US, VERSION, open(), PeerDoor { token: token("open-sesame"), tls: None }),
    ];
    runtime().block_on(async {
        wrong.iter().for_each(|rig| rig.follow(&[peer.address]));
        // The certificate is for `localhost`, and the peer is known by its address.
        home.over(&[peer.address]).await;
        assert_answered_elsewhere(&home, "answered").await;
        assert_eq!(home.count("again"), 0);
        for rig in &wrong {
            assert_eq!(rig.ask(&ask_of(MANY, 5, true), rig.split_ms()).await.code, Some(0));
            assert_eq!((rig.splitter().connected(), rig.count("sent")), ((0, 1), 0));
        }
    });
}

#[test]
fn a_node_refuses_hostile_pieces_by_name() {
    let peer = Rig::start(SLOW_US);
    let request = decoded(5, 3);
    let fingerprint = peer.front.fingerprint();
    let good = PieceHead { fingerprint, left_us: 50_000_000, ..head(0) };
    let piece = |head: &PieceHead| encode(head, Some(&request), 0..5);
    let huge = {
        let mut bytes = piece(&good).to_vec();
        let at = 5 + 4 + 5 * 8 + 1;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        Bytes::from(bytes)
    };
    let cases = [
        (piece(&good), 0, ""),
        (encode(&good, None, 0..0), 0, ""),
        (piece(&PieceHead { fingerprint: 1, ..good }), 9, "other inputs"),
        (piece(&PieceHead { version: VersionName { number: 8, identity: 1 }, ..good }), 9, "version 8"),
        (piece(&PieceHead { left_us: 0, ..good }), 4, "deadline"),
        (piece(&PieceHead { left_us: u64::MAX, ..good }), 0, ""),
        (framed(b"slp\x02 of a later release"), 9, "another release"),
        (framed(b""), 3, "not a piece"),
        (huge, 3, "too many"),
    ];
    runtime().block_on(async {
        let mut client = Client::connect(peer.address).await;
        for (body, code, text) in cases {
            let reply = client.say_to(&METHOD[1..], &[], body).await.unwrap();
            assert_eq!(reply.code, Some(code), "{text}: {}", reply.text);
            assert!(reply.text.contains(text), "{}", reply.text);
        }
        let node = crate::rig::node().await;
        let mut client = Client::connect(node.grpc).await;
        let reply = client.say_to(&METHOD[1..], &[], piece(&good)).await.unwrap();
        assert_eq!(reply.code, Some(5), "{}", reply.text);
        assert!(reply.text.contains("front.split_pieces_max"));
        node.end().await;
    });
}
