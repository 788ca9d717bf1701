//! Doors under attack: silent connections and endless bodies do not affect callers.
//!
//! A binary of its own, because memory is measured for the whole process.

#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "all/rig/mod.rs"]
mod rig;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use prost::Message;
use rig::asks::*;
use rig::*;
use streamlearn_serve::protocol::{DoorLimits, DoorSettings, Secret, TlsFiles};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Connections without a byte, about twice the limit of a door.
const SILENT: usize = 2_000;
/// Bodies that start and never end.
const HALF_SENT: usize = 5_000;
/// The number of streams on each of their connections.
const STREAMS: usize = 8;
/// The maximum growth of memory, this side's included.
const GROWTH_BYTES_MAX: usize = 64 << 20;
const TOKEN: [(&str, &str); 1] = [("authorization", "Bearer open-sesame")];
/// Held by each test, because memory is measured for the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

fn allow_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn with_token(limits: DoorLimits) -> DoorSettings {
    DoorSettings {
        token: Some(Secret::new("open-sesame").unwrap().into()),
        limits,
        ..DoorSettings::default()
    }
}

fn infer_body() -> Bytes {
    framed(&ask(&least(), true).encode_to_vec())
}

async fn assert_answers(client: &mut Client) {
    assert_eq!(client.say("ModelInfer", &TOKEN, infer_body()).await.unwrap().code, Some(0));
}

/// A TLS client for a node.
fn connector(certificate: &Certificate) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate.cert).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn stream_of(node: &Node, tls: Option<&TlsConnector>) -> Box<dyn ByteStream> {
    let socket = TcpStream::connect(node.grpc).await.unwrap();
    socket.set_nodelay(true).unwrap();
    match tls {
        None => Box::new(socket),
        Some(tls) => Box::new(tls.connect(ServerName::try_from("localhost").unwrap(), socket).await.unwrap()),
    }
}

trait ByteStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> ByteStream for S {}

/// Checks that callers are answered and new ones accepted while 2,000 connections are silent.
/// Limits by which the first connections are not too late before the last has come, on a busy machine.
fn patient() -> DoorLimits {
    DoorLimits { hello_wait_ms_max: 60_000, ..DoorLimits::default() }
}

async fn assert_silence_harms_nobody(settings: DoorSettings, tls: Option<TlsConnector>, handshakes: usize) {
    allow_open_files();
    let node = node_of(settings).await;
    let mut caller = Client::over(stream_of(&node, tls.as_ref()).await).await;
    assert_answers(&mut caller).await;
    let before_bytes = resident_bytes();
    let mut silent: Vec<Box<dyn ByteStream>> = Vec::new();
    for number in 0..SILENT {
        silent.push(match number % 2 {
            0 => Box::new(TcpStream::connect(node.http).await.unwrap()),
            _ => stream_of(&node, tls.as_ref().filter(|_| number < 2 * handshakes)).await,
        });
    }
    wait_until("all connections", || {
        let stats = node.door.stats();
        stats.connections as u64 + stats.connections_refused > SILENT as u64
    })
    .await;
    for _ in 0..50 {
        assert_answers(&mut caller).await;
        let mut fresh = Client::over(stream_of(&node, tls.as_ref()).await).await;
        assert_answers(&mut fresh).await;
        if tls.is_none() {
            assert_eq!(get(node.http, "/ready").await.status, 200);
        }
    }
    let grown_bytes = resident_bytes().saturating_sub(before_bytes);
    assert!(grown_bytes <= GROWTH_BYTES_MAX, "{} MiB for {SILENT} connections", grown_bytes >> 20);
    assert!(node.door.stats().connections <= DoorLimits::default().connections_max);
    drop(silent);
    node.end().await;
}

#[tokio::test]
async fn silent_connections_crowd_out_no_caller() {
    let _alone = ALONE.lock().await;
    let settings = DoorSettings { limits: patient(), ..DoorSettings::default() };
    assert_silence_harms_nobody(settings, None, 0).await;
}

#[tokio::test]
async fn silent_connections_crowd_out_no_caller_who_says_the_token() {
    let _alone = ALONE.lock().await;
    assert_silence_harms_nobody(with_token(patient()), None, 0).await;
}

#[tokio::test]
async fn silent_connections_crowd_out_no_caller_who_speaks_tls() {
    let _alone = ALONE.lock().await;
    let files = certificate("silent");
    let tls = Some(TlsFiles { cert: files.cert.clone(), key: files.key.clone() });
    let settings = DoorSettings { tls, ..with_token(patient()) };
    assert_silence_harms_nobody(settings, Some(connector(&files)), 200).await;
}

#[tokio::test]
async fn a_connection_has_little_time_until_a_request_is_let_in() {
    let _alone = ALONE.lock().await;
    let files = certificate("late");
    let tls = Some(TlsFiles { cert: files.cert.clone(), key: files.key.clone() });
    let limits = DoorLimits { hello_wait_ms_max: 3_000, token_wait_ms: 1, ..DoorLimits::default() };
    for (tls, connector) in [(None, None), (tls, Some(connector(&files)))] {
        let node = node_of(DoorSettings { tls, ..with_token(limits) }).await;
        let open = async || stream_of(&node, connector.as_ref()).await;
        let mut caller = Client::over(open().await).await;
        assert_answers(&mut caller).await;
        let mut health_client = Client::over(open().await).await;
        let live = async |client: &mut Client| client.say("ServerLive", &[], framed(b"")).await;
        assert_eq!(live(&mut health_client).await.unwrap().code, Some(0));
        let mut client_without_token = Client::over(open().await).await;
        assert_eq!(client_without_token.say("ModelInfer", &[], infer_body()).await.unwrap().code, Some(16));
        let (mut silent, mut received) = (open().await, Vec::new());
        let _ = tokio::time::timeout(DEADLINE, silent.read_to_end(&mut received)).await.unwrap();
        wait_until("the caller as the only connection", || node.door.stats().connections == 1).await;
        assert_answers(&mut caller).await;
        node.end().await;
    }
}

#[tokio::test]
async fn a_door_full_of_callers_lets_nobody_give_way() {
    let _alone = ALONE.lock().await;
    let node = node_of(with_token(DoorLimits { connections_max: 3, ..patient() })).await;
    let mut callers = Vec::new();
    for _ in 0..3 {
        let mut caller = Client::connect(node.grpc).await;
        assert_answers(&mut caller).await;
        callers.push(caller);
    }
    let (mut fourth, mut received) = (TcpStream::connect(node.http).await.unwrap(), Vec::new());
    let _ = tokio::time::timeout(DEADLINE, fourth.read_to_end(&mut received)).await.unwrap();
    assert_eq!((node.door.stats().connections_refused, node.door.stats().connections), (1, 3));
    for caller in &mut callers {
        assert_answers(caller).await;
    }
    drop(callers.pop());
    wait_until("the released slot", || node.door.stats().connections == 2).await;
    let first = TcpStream::connect(node.http).await.unwrap();
    wait_until("the new connection", || node.door.stats().connections == 3).await;
    assert_answers(&mut Client::connect(node.grpc).await).await;
    let (mut first, mut received) = (first, Vec::new());
    let _ = tokio::time::timeout(DEADLINE, first.read_to_end(&mut received)).await.unwrap();
    node.end().await;
}

/// A body that starts with these bytes and never ends.
struct Half(Option<Bytes>);

impl Body for Half {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => std::task::Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => std::task::Poll::Pending,
        }
    }
}

/// Sends endless bodies, and waits until each is answered.
async fn send_halves(at: SocketAddr, verb: &str, status: &'static str) {
    let body_start = [&[0][..], &65_000_u32.to_be_bytes(), &[0; 60_000]].concat();
    let (half, mut streams) = (Bytes::from(body_start), JoinSet::new());
    for _ in 0..HALF_SENT / STREAMS {
        let socket = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
        let executor = hyper_util::rt::TokioExecutor::new();
        let (client, connection) = hyper::client::conn::http2::handshake(executor, socket).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..STREAMS {
            let mut client = client.clone();
            let request = hyper::Request::post(format!("http://node/inference.GRPCInferenceService/{verb}"))
                .header("content-type", "application/grpc")
                .body(Half(Some(half.clone())))
                .unwrap();
            streams.spawn(async move {
                let (head, body) = client.send_request(request).await.unwrap().into_parts();
                let trailers = http_body_util::BodyExt::collect(body).await.unwrap().trailers().cloned();
                let status_in_head = head.headers.get("grpc-status").cloned();
                assert_eq!(status_in_head.or_else(|| trailers?.get("grpc-status").cloned()).unwrap(), status);
            });
        }
    }
    while let Some(answered) = streams.join_next().await {
        answered.unwrap();
    }
}

/// Requests answers, with a window too small to receive them.
async fn leave_unread(at: SocketAddr) {
    let mut unread = Vec::new();
    for _ in 0..HALF_SENT / STREAMS {
        let socket = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
        let executor = hyper_util::rt::TokioExecutor::new();
        let mut builder = hyper::client::conn::http2::Builder::new(executor);
        let (mut client, connection) = builder.initial_stream_window_size(0).handshake(socket).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..STREAMS {
            let request = hyper::Request::post("http://node/inference.GRPCInferenceService/ServerLive")
                .header("content-type", "application/grpc")
                .body(http_body_util::Full::new(framed(b"")))
                .unwrap();
            unread.push(client.send_request(request));
        }
    }
    let mut answers = Vec::new();
    for answer in unread {
        answers.push(answer.await);
    }
    std::future::pending().await
}

/// Runs strangers in a process of their own, so that memory here is the node's.
fn strangers(at: SocketAddr, attack: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["strangers_of_a_test", "--exact", "--ignored"]).env("STRANGERS", format!("{at} {attack}"));
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
#[ignore = "other tests start it"]
async fn strangers_of_a_test() {
    let setting = std::env::var("STRANGERS").unwrap();
    let (at, attack) = setting.split_once(' ').unwrap();
    let at = at.parse().unwrap();
    allow_open_files();
    match attack {
        "ModelInfer" => send_halves(at, attack, "16").await,
        "ServerLive" | "ServerReady" => send_halves(at, attack, "0").await,
        "unread" => leave_unread(at).await,
        // Until it is killed: 2,000 connections without a byte, a quarter of them replaced each second, and
        // 5,000 bodies.
        _ => {
            let mut silent = VecDeque::new();
            loop {
                while silent.len() < SILENT {
                    silent.push_back(TcpStream::connect(at).await.unwrap());
                }
                send_halves(at, "ServerLive", "0").await;
                tokio::time::sleep(Duration::from_secs(1)).await;
                silent.drain(..SILENT / 4);
            }
        }
    }
}

/// Waits for a condition that may take long on a busy machine.
async fn wait_long(event: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + 6 * DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "{event}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Checks that half-sent bodies of strangers are answered at once without their rest, and cost little memory.
async fn assert_half_sent_bodies_are_answered(verb: &str) {
    let _alone = ALONE.lock().await;
    let node = node_of(with_token(DoorLimits { hello_wait_ms_max: 60_000, ..DoorLimits::default() })).await;
    let mut caller = Client::connect(node.grpc).await;
    assert_answers(&mut caller).await;
    let before_bytes = resident_bytes();
    let (mut strangers, mut grown_bytes, mut ended) = (strangers(node.grpc, verb), 0, None);
    wait_long("answers to all bodies", || {
        grown_bytes = grown_bytes.max(resident_bytes().saturating_sub(before_bytes));
        ended = strangers.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert!(ended.unwrap().success());
    assert!(grown_bytes <= GROWTH_BYTES_MAX, "{} MiB for {HALF_SENT} bodies", grown_bytes >> 20);
    println!("{verb}: {} MiB for {HALF_SENT} half-sent bodies", grown_bytes >> 20);
    assert_answers(&mut caller).await;
}

#[tokio::test]
async fn what_anybody_may_ask_is_answered_without_its_body() {
    assert_half_sent_bodies_are_answered("ServerLive").await;
    assert_half_sent_bodies_are_answered("ServerReady").await;
}

#[tokio::test]
async fn who_says_no_token_is_refused_without_its_body() {
    assert_half_sent_bodies_are_answered("ModelInfer").await;
}

#[tokio::test]
async fn a_connection_without_the_token_has_few_requests_at_once() {
    let _alone = ALONE.lock().await;
    let node = node_of(with_token(DoorLimits { token_wait_ms: 600_000, ..patient() })).await;
    let mut stranger = Client::connect(node.grpc).await;
    let mut waiting = JoinSet::new();
    for _ in 0..STREAMS {
        let mut stranger = stranger.clone();
        waiting.spawn(async move { stranger.say("ModelInfer", &[], infer_body()).await });
    }
    wait_until("all delayed refusals", || node.door.stats().tokens_refused == STREAMS as u64).await;
    let refused = stranger.say("ServerLive", &[], framed(b"")).await.unwrap();
    assert!(
        refused.code == Some(8) && refused.text.contains("limit of 8 concurrent requests"),
        "{refused:?}"
    );
    assert_eq!(
        Client::connect(node.grpc).await.say("ServerLive", &[], framed(b"")).await.unwrap().code,
        Some(0)
    );
    // The token makes the client a caller, also on this connection.
    assert_answers(&mut stranger).await;
    assert_eq!(stranger.say("ServerLive", &[], framed(b"")).await.unwrap().code, Some(0));
}

#[tokio::test]
async fn a_connection_without_the_token_that_goes_on_in_spite_of_refusals_is_closed() {
    let _alone = ALONE.lock().await;
    let limits = DoorLimits { token_wait_ms: 600_000, hello_wait_ms_max: 600_000, ..DoorLimits::default() };
    let node = node_of(with_token(limits)).await;
    let (stranger, mut asked) = (Client::connect(node.grpc).await, JoinSet::new());
    for _ in 0..STREAMS + 200 {
        let mut stranger = stranger.clone();
        asked.spawn(async move { stranger.say("ModelInfer", &[], infer_body()).await });
    }
    let is_closed = || node.door.stats().requests_refused > 128 && node.door.stats().connections == 0;
    wait_until("the end of the connection", is_closed).await;
    assert_answers(&mut Client::connect(node.grpc).await).await;
}

#[tokio::test]
async fn answers_that_strangers_do_not_read_end_with_their_connections() {
    let _alone = ALONE.lock().await;
    let limits = DoorLimits { hello_wait_ms_max: 10_000, ..DoorLimits::default() };
    let node = node_of(with_token(limits)).await;
    let mut caller = Client::connect(node.grpc).await;
    assert_answers(&mut caller).await;
    let (before_bytes, mut strangers) = (resident_bytes(), strangers(node.grpc, "unread"));
    let answers = || node.door.traffic().answers().values().sum::<u64>();
    wait_long("all answers", || answers() > HALF_SENT as u64).await;
    let grown_bytes = resident_bytes().saturating_sub(before_bytes);
    println!("{} MiB for {HALF_SENT} unread answers", grown_bytes >> 20);
    assert!(grown_bytes <= GROWTH_BYTES_MAX, "{} MiB", grown_bytes >> 20);
    wait_long("the caller as the only connection", || node.door.stats().connections == 1).await;
    strangers.kill().unwrap();
    strangers.wait().unwrap();
    assert_answers(&mut caller).await;
}

/// The durations of a caller's sequential requests, in microseconds.
async fn times_us(caller: &mut Client, seconds: u64) -> Vec<u32> {
    let (end, mut times_us) = (Instant::now() + Duration::from_secs(seconds), Vec::new());
    while Instant::now() < end {
        let began = Instant::now();
        assert_answers(caller).await;
        times_us.push(u32::try_from(began.elapsed().as_micros()).unwrap());
    }
    times_us
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a measurement, which needs --release and a quiet machine"]
async fn how_long_callers_wait_beside_strangers() {
    let _alone = ALONE.lock().await;
    allow_open_files();
    let node = node_of(with_token(DoorLimits::default())).await;
    let mut caller = Client::over(stream_of(&node, None).await).await;
    times_us(&mut caller, 1).await;
    let (mut times, before_bytes, mut grown_bytes) = ([Vec::new(), Vec::new()], resident_bytes(), 0);
    for turn in 0..12 {
        let attack = (turn % 2 == 1).then(|| strangers(node.grpc, "all"));
        if attack.is_some() {
            wait_until("the strangers' connections", || node.door.stats().connections > 1_000).await;
        }
        times[turn % 2].extend(times_us(&mut caller, 5).await);
        grown_bytes = grown_bytes.max(resident_bytes().saturating_sub(before_bytes));
        if let Some(mut attack) = attack {
            assert!(attack.try_wait().unwrap().is_none(), "strangers ended by themselves");
            attack.kill().unwrap();
            attack.wait().unwrap();
            wait_until("the end of the strangers' connections", || node.door.stats().connections == 1).await;
        }
    }
    let p99_us = ["quiet", "beside strangers"].iter().zip(&mut times).map(|(name, times_us)| {
        times_us.sort_unstable();
        let share = |per_mille: usize| times_us[times_us.len() * per_mille / 1000];
        let (p50, p99, p999) = (share(500), share(990), share(999));
        println!("{name}: {} requests, p50 {p50} us, p99 {p99} us, p99.9 {p999} us", times_us.len());
        p99
    });
    let p99_us: Vec<u32> = p99_us.collect();
    let ratio = f64::from(p99_us[1]) / f64::from(p99_us[0]);
    println!(
        "p99 beside strangers is {ratio:.2} times the quiet one; memory grew by {} MiB",
        grown_bytes >> 20
    );
    assert!(ratio <= 1.5, "p99 grew by {ratio:.2}");
    assert!(grown_bytes <= 64 << 20, "memory grew by {} MiB", grown_bytes >> 20);
}
