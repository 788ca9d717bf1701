//! Load on nodes that stall, refuse, stay silent or disappear: a run's results must show all of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use streamlearn_load::{
    Answered, Arrivals, Calls, CallsSettings, METHOD, Message, Pace, Plan, Run, Shape, Tally, Way,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tonic::Code;

const ENDLESS: Duration = Duration::from_secs(3600);
const STALL: Duration = Duration::from_millis(200);
/// A gRPC frame header: the compression flag, and the length.
const FRAME_BYTES: usize = 5;

/// The behaviour of a node; the first byte of a request is the code of its answer.
#[derive(Debug, Clone, Copy, Default)]
struct Behaviour {
    delay: Duration,
    /// Request number at which all answers stall for a while.
    stalls_at: Option<usize>,
    /// Request number from which connections are closed.
    leaves_at: Option<usize>,
    /// Request number at which its connection is closed, once.
    cuts_at: Option<usize>,
    /// Request number at which its connection tells its peer to leave (GOAWAY), once.
    retires_at: Option<usize>,
    /// The most requests at once on connections that were made before the first request, if they have such a bound.
    requests_max: Option<u32>,
}

#[derive(Debug, Default)]
struct Node {
    behaviour: Behaviour,
    received: AtomicUsize,
    still_until: Mutex<Option<Instant>>,
    headers: Mutex<Option<HeaderMap>>,
}

impl Node {
    async fn serve(self: Arc<Self>, socket: TcpStream) {
        let mut builder = h2::server::Builder::new();
        let is_early = self.received.load(Ordering::Relaxed) == 0;
        if let Some(most) = self.behaviour.requests_max.filter(|_| is_early) {
            builder.max_concurrent_streams(most);
        }
        let mut connection = builder.handshake(socket).await.unwrap();
        while let Some(Ok((request, reply))) = connection.accept().await {
            let number = self.received.fetch_add(1, Ordering::Relaxed);
            if self.behaviour.leaves_at.is_some_and(|at| number >= at)
                || self.behaviour.cuts_at == Some(number)
            {
                return;
            }
            if self.behaviour.retires_at == Some(number) {
                connection.graceful_shutdown();
            }
            tokio::spawn(Arc::clone(&self).answer(number, request, reply));
        }
    }

    async fn answer(
        self: Arc<Self>,
        number: usize,
        request: Request<RecvStream>,
        mut reply: SendResponse<Bytes>,
    ) {
        assert_eq!(request.uri().path(), METHOD);
        let (head, mut body) = request.into_parts();
        self.headers.lock().unwrap().get_or_insert(head.headers);
        let mut message = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            message.extend_from_slice(&data);
        }
        tokio::time::sleep(self.behaviour.delay).await;
        if self.behaviour.stalls_at == Some(number) {
            *self.still_until.lock().unwrap() = Some(Instant::now() + STALL);
        }
        let still_until = *self.still_until.lock().unwrap();
        if let Some(until) = still_until {
            tokio::time::sleep_until(until.into()).await;
        }
        let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let code = message[FRAME_BYTES];
        // A caller that gave up has closed the stream.
        let Ok(mut stream) = reply.send_response(head, false) else { return };
        if code == 0 {
            let _ = stream.send_data(message.into(), false);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(u16::from(code)));
        trailers.insert("grpc-message", HeaderValue::from_static("as%20asked"));
        let _ = stream.send_trailers(trailers);
    }
}

/// Starts a node at its own address, with the runtime of its tasks.
fn node(behaviour: Behaviour) -> (Arc<Node>, SocketAddr, Runtime) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let node = Arc::new(Node { behaviour, ..Node::default() });
    let serving = Arc::clone(&node);
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&serving).serve(socket));
        }
    });
    (node, address, runtime)
}

fn settings(address: SocketAddr) -> CallsSettings {
    CallsSettings {
        address: address.to_string(),
        connections: 2,
        token: None,
        connect_wait_max: Duration::from_secs(60),
        answer_bytes_max: 1 << 20,
        tls: None,
    }
}

fn open(rate: f64) -> Plan {
    Plan {
        pace: Pace::Open(Arrivals { shape: Shape::Constant, rate, seed: 1 }),
        seconds: 1,
        warmup: Duration::ZERO,
        deadline: None,
        answer_wait_max: Duration::from_secs(120),
        outstanding_max: 10_000,
        keeps_answers: false,
    }
}

fn closed(callers: usize) -> Plan {
    Plan { pace: Pace::Closed { callers, seed: 1 }, ..open(1.0) }
}

fn start(plan: Plan, address: SocketAddr, messages: &[&'static [u8]]) -> (Run, Runtime) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let calls = runtime.block_on(Calls::connect(&settings(address))).unwrap();
    let messages = messages.iter().map(|body| Message::new(body).unwrap()).collect();
    let run = Run::start(plan, calls, messages, runtime.handle().clone()).unwrap();
    (run, runtime)
}

fn outcome(plan: Plan, address: SocketAddr, messages: &[&'static [u8]]) -> Tally {
    let (run, _runtime) = start(plan, address, messages);
    assert!(run.wait(Duration::from_secs(180)));
    let (seconds, tally) = run.outcome().unwrap();
    assert!((seconds - 1.0).abs() < 1e-9, "{seconds}");
    assert_eq!(tally.due, tally.ok() + tally.failed());
    assert_eq!(tally.seconds.iter().map(|second| second.due).sum::<u64>(), tally.due);
    tally
}

#[test]
fn a_stall_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let behaviour = Behaviour { stalls_at: Some(100), ..Behaviour::default() };
    let (_node, address, _runtime) = node(behaviour);
    let opened = outcome(open(500.0), address, &[&[0]]);
    // A fifth of the requests were due during the stall, and each waited for the rest of it.
    assert_eq!((opened.due, opened.ok()), (500, 500));
    assert!(opened.latency.quantile(0.99).unwrap() > 150_000_000, "{:?}", opened.latency.quantile(0.99));
    let hidden_ns = opened.latency.quantile(0.99).unwrap() / 2;
    // A loaded machine has slow answers of its own, or too few of them.
    let is_hidden = (0..20).any(|_| {
        let (_node, address, _runtime) = node(behaviour);
        let closed = outcome(closed(1), address, &[&[0]]).latency;
        closed.max() >= 200_000_000 && closed.quantile(0.99).unwrap() < hidden_ns
    });
    assert!(is_hidden);
}

#[test]
fn every_answer_is_of_a_request_that_was_due_and_bytes_are_counted() {
    let (_node, address, _runtime) =
        node(Behaviour { delay: Duration::from_millis(2), ..Behaviour::default() });
    let tally = outcome(open(400.0), address, &[&[0, 1, 2, 3]]);
    assert_eq!((tally.due, tally.ok(), tally.in_time, tally.warmup), (400, 400, 400, 0));
    assert_eq!(tally.answer_bytes, 1600);
    assert!(tally.latency.quantile(0.01).unwrap() >= 2_000_000);
    assert_eq!(tally.seconds[0].latency.count(), 400);
    assert_eq!(tally.lag.count(), 400);
}

#[test]
fn answers_are_kept_with_their_messages_if_the_plan_says_so() {
    let (_node, address, _runtime) = node(Behaviour::default());
    assert!(outcome(open(200.0), address, &[&[0]]).kept.is_none());
    let plan = Plan { keeps_answers: true, warmup: Duration::from_millis(200), ..open(200.0) };
    let kept = outcome(plan, address, &[&[0, 1], &[8], &[0, 2, 3]]).kept.unwrap();
    assert_eq!(kept.len(), 200);
    for one in kept {
        let expected: Option<&[u8]> = [Some(&[0, 1][..]), None, Some(&[0, 2, 3])][one.message];
        assert_eq!(one.answer.as_deref(), expected);
        assert!((200_000_000..1_200_000_000).contains(&one.due_ns));
    }
}

#[test]
fn requests_of_the_warmup_do_not_count() {
    let (node, address, _runtime) = node(Behaviour::default());
    let tally = outcome(Plan { warmup: Duration::from_millis(500), ..open(200.0) }, address, &[&[0]]);
    assert_eq!((tally.warmup, tally.due), (100, 200));
    assert_eq!(node.received.load(Ordering::Relaxed), 300);
}

#[test]
fn what_is_due_beyond_the_bound_fails_at_once() {
    let (node, address, _runtime) = node(Behaviour { delay: ENDLESS, ..Behaviour::default() });
    let plan = Plan { outstanding_max: 5, answer_wait_max: Duration::from_secs(5), ..open(200.0) };
    let tally = outcome(plan, address, &[&[0]]);
    assert_eq!((tally.due, tally.overrun, tally.unanswered), (200, 195, 5));
    assert_eq!(node.received.load(Ordering::Relaxed), 5);
}

#[test]
fn refusals_are_counted_by_their_codes_and_the_first_is_told() {
    let (_node, address, _runtime) = node(Behaviour::default());
    let tally = outcome(open(400.0), address, &[&[0], &[8], &[3]]);
    let of = |code: Code| tally.codes[code as usize];
    assert_eq!(tally.due, of(Code::Ok) + of(Code::ResourceExhausted) + of(Code::InvalidArgument));
    assert!([Code::Ok, Code::ResourceExhausted, Code::InvalidArgument].iter().all(|code| of(*code) > 80));
    assert_eq!(tally.said[Code::InvalidArgument as usize].as_deref(), Some("as asked"));
    assert_eq!(tally.latency.count(), tally.ok());
}

#[test]
fn a_deadline_is_told_to_the_node_and_kept() {
    let (node, address, _runtime) = node(Behaviour { delay: ENDLESS, ..Behaviour::default() });
    let tally = outcome(Plan { deadline: Some(Duration::from_millis(50)), ..open(100.0) }, address, &[&[0]]);
    assert_eq!(tally.codes[Code::DeadlineExceeded as usize], 100);
    assert_eq!(tally.in_time, 0);
    let headers = node.headers.lock().unwrap().take().unwrap();
    assert_eq!(headers["grpc-timeout"], "50m");
}

#[test]
fn the_token_is_told() {
    let (node, address, _runtime) = node(Behaviour::default());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let settings = CallsSettings { token: Some("sesame".into()), ..settings(address) };
    let calls = runtime.block_on(Calls::connect(&settings)).unwrap();
    runtime.block_on(calls.call(0, Message::new(&[0]).unwrap(), None, Duration::from_secs(120)));
    assert_eq!(node.headers.lock().unwrap().take().unwrap()["authorization"], "Bearer sesame");
}

#[test]
fn a_node_that_goes_away_is_seen_in_failures() {
    let (_node, address, _runtime) = node(Behaviour { leaves_at: Some(50), ..Behaviour::default() });
    let tally = outcome(open(200.0), address, &[&[0]]);
    assert!(tally.ok() <= 50);
    assert!(tally.failed() >= 150);
    assert_eq!(tally.unanswered, 0);
}

#[test]
fn a_connection_that_was_cut_is_made_again() {
    let (_node, address, _runtime) = node(Behaviour { cuts_at: Some(20), ..Behaviour::default() });
    let tally = outcome(open(200.0), address, &[&[0]]);
    assert!(tally.failed() >= 1);
    // Connections are used in turn: if one of them stayed closed, half of the requests would fail.
    assert!(tally.ok() > 150, "{:?} {:?}", tally.codes, tally.said);
}

#[test]
fn callers_of_the_closed_loop_have_one_request_each() {
    let (node, address, _runtime) = node(Behaviour { delay: ENDLESS, ..Behaviour::default() });
    let tally = outcome(Plan { answer_wait_max: Duration::from_secs(5), ..closed(3) }, address, &[&[0]]);
    assert_eq!((tally.due, tally.unanswered, node.received.load(Ordering::Relaxed)), (3, 3, 3));
}

#[test]
fn a_run_that_is_stopped_says_what_was_under_way() {
    let (node, address, _runtime) = node(Behaviour { delay: ENDLESS, ..Behaviour::default() });
    let (run, _runtime) = start(Plan { seconds: 3600, ..open(100.0) }, address, &[&[0]]);
    let started = Instant::now();
    while node.received.load(Ordering::Relaxed) < 10 {
        assert!(started.elapsed() < Duration::from_secs(60));
        assert!(!run.wait(Duration::from_millis(5)));
    }
    assert!(run.outcome().is_none());
    run.stop();
    assert!(run.wait(Duration::from_secs(180)));
    let (seconds, tally) = run.outcome().unwrap();
    assert!(seconds < 60.0);
    assert_eq!(tally.unanswered, tally.due);
}

#[test]
fn who_cannot_be_reached_is_told() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut settings = settings(([127, 0, 0, 1], 1).into());
    let error = runtime.block_on(Calls::connect(&settings)).unwrap_err();
    assert!(error.contains("refused"), "{error}");
    settings.address = "no address".into();
    assert!(runtime.block_on(Calls::connect(&settings)).unwrap_err().contains("no address"));
}

#[test]
fn plans_that_cannot_be_are_refused() {
    assert!(open(0.0).check().is_err());
    assert!(closed(0).check().is_err());
    assert!(Plan { seconds: 0, ..open(1.0) }.check().is_err());
    assert!(Plan { outstanding_max: 0, ..open(1.0) }.check().is_err());
    assert!(Plan { deadline: Some(Duration::ZERO), ..open(1.0) }.check().is_err());
    assert!(open(1.0).check().is_ok());
}

#[test]
fn requests_that_a_leaving_connection_never_carried_are_sent_over_another() {
    let behaviour = Behaviour {
        delay: Duration::from_millis(50),
        retires_at: Some(0),
        requests_max: Some(100),
        ..Behaviour::default()
    };
    let (node, address, _runtime) = node(behaviour);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let answers = runtime.block_on(async {
        let calls = Calls::connect(&CallsSettings { connections: 1, ..settings(address) }).await.unwrap();
        let messages = (0..400).map(|_| Message::new(&[0, 1]).unwrap()).collect();
        Way::from(calls).call_all(messages, ENDLESS).await
    });
    let refused: Vec<_> = answers.iter().filter(|answer| !matches!(answer, Answered::With(_))).collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(node.received.load(Ordering::Relaxed), 400, "each was carried once");
}
