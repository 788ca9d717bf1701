//! Load over HTTP/1.1 on a small server that sends configured bytes, in pieces, and counts its clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use streamlearn_load::{
    Answered, Arrivals, CallsSettings, Message, Pace, Plan, Posts, Run, Shape, Tally, Way,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tonic::Code;

const WAIT: Duration = Duration::from_secs(120);
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// The behaviour of the server.
#[derive(Debug, Clone, Default)]
struct Behaviour {
    /// The reply, written in these pieces.
    pieces: Vec<&'static str>,
    /// The number of answers after which it closes a connection.
    closes_after: Option<usize>,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Observed {
    connections: AtomicUsize,
    requests: AtomicUsize,
    open: AtomicUsize,
    open_max: AtomicUsize,
    first: Mutex<Option<String>>,
}

impl Observed {
    async fn serve(self: Arc<Self>, mut socket: TcpStream, behaviour: Behaviour) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let mut answered = 0;
        let mut read = Vec::new();
        while let Some(request) = request(&mut socket, &mut read).await {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.first.lock().unwrap().get_or_insert(request);
            let now = self.open.fetch_add(1, Ordering::Relaxed) + 1;
            self.open_max.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(behaviour.delay).await;
            self.open.fetch_sub(1, Ordering::Relaxed);
            for piece in &behaviour.pieces {
                socket.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            answered += 1;
            if behaviour.closes_after.is_some_and(|answers_max| answered >= answers_max) {
                return;
            }
        }
    }
}

/// Reads the next request, head and body; `None` when the connection was closed.
async fn request(socket: &mut TcpStream, read: &mut Vec<u8>) -> Option<String> {
    loop {
        let text = String::from_utf8_lossy(read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let length: usize = length.parse().unwrap();
            if body.len() >= length {
                read.drain(..head.len() + 4 + length);
                return Some(text);
            }
        }
        if socket.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

fn server(behaviour: Behaviour) -> (Arc<Observed>, SocketAddr, Runtime) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let observed = Arc::new(Observed::default());
    let serving = Arc::clone(&observed);
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&serving).serve(socket, behaviour.clone()));
        }
    });
    (observed, address, runtime)
}

fn settings(address: SocketAddr) -> CallsSettings {
    CallsSettings {
        address: address.to_string(),
        connections: 4,
        token: None,
        connect_wait_max: Duration::from_secs(60),
        answer_bytes_max: 1 << 10,
        tls: None,
    }
}

/// The result of two calls to a server that sends these pieces.
fn result_of(pieces: &[&'static str]) -> (Answered, Arc<Observed>) {
    let (observed, address, runtime) = server(Behaviour { pieces: pieces.to_vec(), ..Behaviour::default() });
    let (first, second) = runtime.block_on(async {
        let posts = Posts::connect(&settings(address), "/score?x=1").await.unwrap();
        let message = posts.message(b"{}");
        (posts.call(message.clone(), None, WAIT).await, posts.call(message, None, WAIT).await)
    });
    assert_eq!(first, second);
    (first, observed)
}

fn connections(observed: &Observed) -> usize {
    observed.connections.load(Ordering::Relaxed)
}

#[test]
fn an_answer_of_a_known_length_is_read_and_its_connection_kept() {
    let (answered, observed) = result_of(&["HTTP/1.1 200 OK\r\nContent-", "Length: 5\r\n\r\nhe", "llo"]);
    assert_eq!(answered, Answered::With("hello".into()));
    assert_eq!((connections(&observed), observed.requests.load(Ordering::Relaxed)), (1, 2));
    let request = observed.first.lock().unwrap().take().unwrap();
    assert!(request.starts_with("POST /score?x=1 HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
    assert!(request.contains("\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{}"), "{request}");
}

#[test]
fn an_answer_in_chunks_is_put_together() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let (answered, observed) =
        result_of(&[head, "2\r\nhe\r", "\n3;x=y\r\nllo\r\n0\r\na-trailer: 1\r", "\n\r\n"]);
    assert_eq!(answered, Answered::With("hello".into()));
    assert_eq!(connections(&observed), 1);
}

#[test]
fn what_is_said_before_an_answer_is_passed_over() {
    let (answered, observed) = result_of(&["HTTP/1.1 103 Early Hints\r\n\r\n", OK]);
    assert_eq!(answered, Answered::With("hello".into()));
    assert_eq!(connections(&observed), 1);
}

#[test]
fn a_connection_that_is_to_be_closed_is_not_used_again() {
    let (answered, observed) =
        result_of(&["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"]);
    assert_eq!(answered, Answered::With("hello".into()));
    assert_eq!(connections(&observed), 2);
}

#[test]
fn a_refusal_is_told_by_its_code_with_its_words() {
    for (status, code) in [
        ("400", Code::InvalidArgument),
        ("401", Code::Unauthenticated),
        ("404", Code::NotFound),
        ("429", Code::ResourceExhausted),
        ("500", Code::Internal),
        ("503", Code::Unavailable),
        ("504", Code::DeadlineExceeded),
    ] {
        let text: &'static str = format!("HTTP/1.1 {status} No\r\ncontent-length: 8\r\n\r\ntoo much").leak();
        let (answered, observed) = result_of(&[text]);
        assert_eq!(answered, Answered::Refused(code, format!("HTTP status {status}: too much")));
        assert_eq!(connections(&observed), 1, "a refusal is an answer as well");
    }
}

#[test]
fn what_is_no_answer_is_a_failure() {
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 1025\r\n\r\n";
    let chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n401\r\n";
    let odd = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n";
    for (pieces, words) in [
        ("SSH-2.0-OpenSSH_9\r\n\r\n", "invalid HTTP response"),
        ("HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "invalid content-length \"many\""),
        (long, "more than 1024 bytes"),
        (chunk, "more than 1024 bytes"),
        (odd, "longer than its stated length"),
    ] {
        let (Answered::Refused(code, text), _) = result_of(&[pieces]) else {
            panic!("{pieces:?} is an answer")
        };
        assert_eq!(code, Code::Unavailable);
        assert!(text.contains(words), "{text}");
    }
}

fn open(rate: f64) -> Plan {
    Plan {
        pace: Pace::Open(Arrivals { shape: Shape::Constant, rate, seed: 1 }),
        seconds: 1,
        warmup: Duration::ZERO,
        deadline: None,
        answer_wait_max: WAIT,
        outstanding_max: 10_000,
        keeps_answers: false,
    }
}

fn outcome(plan: Plan, settings: &CallsSettings) -> Tally {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let posts = runtime.block_on(Posts::connect(settings, "/score")).unwrap();
    let way = Way::from(posts);
    let messages: Arc<[Message]> = [way.message(b"ids").unwrap()].into();
    let run = Run::start(plan, way, messages, runtime.handle().clone()).unwrap();
    assert!(run.wait(Duration::from_secs(180)));
    let (_, tally) = run.outcome().unwrap();
    assert_eq!(tally.due, tally.ok() + tally.failed());
    tally
}

#[test]
fn a_connection_that_was_closed_while_idle_costs_no_request() {
    let (observed, address, _runtime) =
        server(Behaviour { pieces: vec![OK], closes_after: Some(3), ..Behaviour::default() });
    let tally = outcome(open(100.0), &settings(address));
    assert_eq!((tally.due, tally.ok(), tally.answer_bytes), (100, 100, 500), "{:?}", tally.said);
    assert!(connections(&observed) >= 33);
}

#[test]
fn no_more_are_under_way_than_there_are_connections_and_waiting_for_one_is_latency() {
    let (observed, address, _runtime) =
        server(Behaviour { pieces: vec![OK], delay: Duration::from_millis(20), ..Behaviour::default() });
    let tally = outcome(open(400.0), &CallsSettings { connections: 2, ..settings(address) });
    assert_eq!(tally.ok(), 400);
    assert_eq!(observed.open_max.load(Ordering::Relaxed), 2);
    assert!(connections(&observed) <= 2);
    // Two at a time of 20 ms each make 100 a second: the last of a second's 400 requests wait three more
    // seconds.
    assert!(tally.latency.max() > 2_000_000_000, "{}", tally.latency.max());
}

#[test]
fn a_deadline_ends_a_call_and_what_comes_later_is_nobodys_answer() {
    let (_observed, address, runtime) =
        server(Behaviour { pieces: vec![OK], delay: Duration::from_secs(3600), ..Behaviour::default() });
    let plan = Plan { deadline: Some(Duration::from_millis(50)), ..open(40.0) };
    let tally = outcome(plan, &settings(address));
    assert_eq!(tally.codes[Code::DeadlineExceeded as usize], 40);
    drop(runtime);
}

#[test]
fn the_token_is_told_and_who_cannot_be_reached_is_named() {
    let (observed, address, runtime) = server(Behaviour { pieces: vec![OK], ..Behaviour::default() });
    let with_token = CallsSettings { token: Some("sesame".into()), ..settings(address) };
    outcome(open(2.0), &with_token);
    let request = observed.first.lock().unwrap().take().unwrap();
    assert!(request.contains("\r\nauthorization: Bearer sesame\r\n"), "{request}");
    assert!(request.contains("\r\ncontent-type: application/octet-stream\r\n"), "{request}");
    let unreachable = settings(([127, 0, 0, 1], 1).into());
    let refused = runtime.block_on(Posts::connect(&unreachable, "/")).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    let two_lines = CallsSettings { token: Some("a\r\nb".into()), ..settings(address) };
    assert!(runtime.block_on(Posts::connect(&two_lines, "/")).is_err());
    assert!(runtime.block_on(Posts::connect(&settings(address), "/a b")).unwrap_err().contains("not a path"));
}
