//! Two nodes share their sockets, and one of them stands aside. When they change places, no request is lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rig::asks::*;
use crate::rig::*;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::CONNECTION;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use streamlearn_serve::protocol::{DoorLimits, DoorSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const ROWS: &str = r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}, {"item_id": -8}]}"#;
const CALLERS: usize = 4;
const TURNS: usize = 20;
/// Between two requests of a caller: 400 requests a second in all.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of requests after which a caller opens a new connection.
const REQUESTS: u64 = 7;

/// Two nodes with the same sockets. The second one stands aside.
async fn pair(limits: DoorLimits) -> [Node; 2] {
    let sockets = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (grpc, http) = (sockets(), sockets());
    let node = |is_aside| {
        let listener = |socket: &std::net::TcpListener| {
            let socket = socket.try_clone().unwrap();
            socket.set_nonblocking(true).unwrap();
            TcpListener::from_std(socket).unwrap()
        };
        let settings = DoorSettings { limits, ..DoorSettings::default() };
        let node = node_at(settings, LIMITS, (listener(&grpc), listener(&http)));
        node.door.stand_aside(is_aside);
        node
    };
    [node(false), node(true)]
}

/// The state that callers share.
#[derive(Clone, Default)]
struct Traffic {
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Traffic {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn count(&self) {
        self.answers.fetch_add(1, Ordering::SeqCst);
    }
}

/// Asks on connections that last until an answer closes them; never asks twice.
async fn call_http(at: SocketAddr, traffic: Traffic) {
    while traffic.goes_on() {
        let stream = TcpStream::connect(at).await.unwrap();
        let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..REQUESTS {
            let request = Request::post("/score")
                .header("host", "localhost")
                .body(Full::new(Bytes::from(ROWS)))
                .unwrap();
            client.ready().await.expect("an open connection, since no answer closed it");
            let (head, body) = client.send_request(request).await.unwrap().into_parts();
            assert!(body.collect().await.unwrap().to_bytes().starts_with(b"{"));
            assert_eq!(head.status, 200);
            traffic.count();
            if head.headers.get(CONNECTION).is_some_and(|value| value == "close") {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Asks on connections that last until a GOAWAY; never asks again for what was sent.
async fn call_grpc(at: SocketAddr, traffic: Traffic) {
    let request = || {
        Request::post("http://node/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(framed(&ask(&least(), true).encode_to_vec())))
            .unwrap()
    };
    while traffic.goes_on() {
        let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
        let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..REQUESTS {
            if client.ready().await.is_err() {
                break;
            }
            let response: Response<_> = match client.try_send_request(request()).await {
                Ok(response) => response,
                Err(mut error) => {
                    // hyper had not sent it when the GOAWAY came; it returns the message only from some places.
                    let is_kept = error.take_message().is_some();
                    let text = format!("{:?}", error.into_error());
                    assert!(is_kept || text.contains("GoAway(b\"\", NO_ERROR, Remote)"), "{text}");
                    break;
                }
            };
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
            traffic.count();
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Lets two nodes change places again and again under traffic.
async fn change_places<F>(
    nodes: [Node; 2],
    call: fn(SocketAddr, Traffic) -> F,
    address: fn(&Node) -> SocketAddr,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (traffic, mut callers) = (Traffic::default(), JoinSet::new());
    for _ in 0..CALLERS {
        callers.spawn(call(address(&nodes[0]), traffic.clone()));
    }
    for turn in 0..TURNS {
        let (old, new) = (&nodes[turn % 2], &nodes[(turn + 1) % 2]);
        let before = new.fake.began.load(Ordering::SeqCst);
        // Both orders occur: for a moment, both accept or none does.
        let doors = if turn % 4 < 2 { [(new, false), (old, true)] } else { [(old, true), (new, false)] };
        doors.into_iter().for_each(|(node, is_aside)| node.door.stand_aside(is_aside));
        wait_until("all callers at the other node", || {
            assert!(callers.try_join_next().is_none(), "a caller ended");
            old.door.stats().connections == 0 && new.fake.began.load(Ordering::SeqCst) > before + 4
        })
        .await;
    }
    traffic.is_over.store(true, Ordering::SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let began: u64 = nodes.iter().map(|node| node.fake.began.load(Ordering::SeqCst)).sum();
    assert_eq!(began, traffic.answers.load(Ordering::SeqCst));
    for node in nodes {
        node.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_by_http_is_lost_while_nodes_change_places() {
    change_places(pair(DoorLimits::default()).await, call_http, |node| node.http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_by_grpc_is_lost_while_nodes_change_places() {
    change_places(pair(DoorLimits::default()).await, call_grpc, |node| node.grpc).await;
}

#[tokio::test]
async fn requests_in_flight_are_answered_and_then_their_connections_end() {
    let [old, new] = pair(DoorLimits::default()).await;
    old.fake.gate.forget_permits(1 << 20);
    let mut client = Client::connect(old.grpc).await;
    let body: Bytes = framed(&ask(&least(), true).encode_to_vec());
    let by_grpc = tokio::spawn(async move { client.say("ModelInfer", &[], body).await });
    let at = old.http;
    let by_http = tokio::spawn(async move { post(at, "/score", ROWS).await });
    wait_until("both requests", || old.fake.began.load(Ordering::SeqCst) == 2).await;
    old.door.stand_aside(true);
    new.door.stand_aside(false);
    assert_eq!(post(at, "/score", ROWS).await.status, 200);
    assert_eq!(new.fake.began.load(Ordering::SeqCst), 1);
    old.fake.gate.add_permits(2);
    assert_eq!(by_grpc.await.unwrap().unwrap().code, Some(0));
    let answer = by_http.await.unwrap();
    assert_eq!((answer.status, answer.headers[CONNECTION].as_bytes()), (200, &b"close"[..]));
    wait_until("the end of both connections", || old.door.stats().connections == 0).await;
    old.end().await;
    new.end().await;
}

#[tokio::test]
async fn connections_without_a_request_stay_for_a_last_one_and_then_end() {
    let limits = DoorLimits { drain_ms_max: 4_000, ..DoorLimits::default() };
    let [old, new] = pair(limits).await;
    let mut idle = TcpStream::connect(old.http).await.unwrap();
    let mut late = TcpStream::connect(old.http).await.unwrap();
    wait_until("both connections", || old.door.stats().connections == 2).await;
    let began = Instant::now();
    old.door.stand_aside(true);
    old.door.stand_aside(true);
    late.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(DEADLINE, late.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    assert_eq!(tokio::time::timeout(DEADLINE, idle.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    assert!((4_000..30_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    old.end().await;
    new.end().await;
}

#[tokio::test]
async fn a_connection_that_nobody_accepts_waits_for_one_who_does() {
    let [old, new] = pair(DoorLimits::default()).await;
    old.door.stand_aside(true);
    let at = old.http;
    let waiting = tokio::spawn(async move { get(at, "/ready").await });
    wait_until("a connection in the kernel's queue", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let listener = format!("0100007F:{:04X} 00000000:0000 0A 00000000:00000001", at.port());
        table.contains(&listener)
    })
    .await;
    new.end().await;
    old.door.stand_aside(false);
    assert_eq!(waiting.await.unwrap().status, 200);
    old.end().await;
}

#[tokio::test]
async fn a_node_that_leaves_says_so_with_every_answer_on_old_and_new_connections_and_goes_on_answering() {
    let [node, other] = pair(DoorLimits::default()).await;
    let mut client = Client::connect(node.grpc).await;
    let mut before = TcpStream::connect(node.http).await.unwrap();
    wait_until("both connections", || node.door.stats().connections == 2).await;
    node.door.leave();
    let mut answer = String::new();
    let said = async |stream: &mut TcpStream, answer: &mut String| {
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        tokio::time::timeout(DEADLINE, stream.read_to_string(answer)).await.unwrap().unwrap();
    };
    said(&mut before, &mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    for _ in 0..2 {
        let answer = post(node.http, "/score", ROWS).await;
        assert_eq!((answer.status, answer.headers[CONNECTION].as_bytes()), (200, &b"close"[..]));
    }
    let body: Bytes = framed(&ask(&least(), true).encode_to_vec());
    for _ in 0..2 {
        assert_eq!(client.say("ModelInfer", &[], body.clone()).await.unwrap().code, Some(0));
    }
    node.end().await;
    other.end().await;
}
