//! gRPC end to end: every method, every status, and limits that hold while the node keeps serving.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::rig::asks::*;
use crate::rig::fake::logit;
use crate::rig::*;
use bytes::Bytes;
use prost::Message;
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::load::NodeLoad;
use streamlearn_serve::protocol::{DoorLimits, DoorSettings, Secret, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Clone, PartialEq, Message)]
struct Which {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Is {
    #[prost(bool, tag = "1")]
    is: bool,
}

fn which(name: &str, version: &str) -> Which {
    Which { name: name.to_owned(), version: version.to_owned() }
}

async fn assert_serves(client: &mut Client) {
    assert_eq!(client.call("ModelInfer", &ask(&least(), true)).await.code, Some(0));
}

fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

#[tokio::test]
async fn an_answer_has_the_form_of_its_request() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let request_with_id = InferAsk { id: "mine".to_owned(), ..ask(&least(), true) };
    let raw: InferReply = client.call("ModelInfer", &request_with_id).await.read();
    let request = node.fake.last.lock().unwrap().clone().unwrap();
    let column = |label| (0..3).map(|item| sigmoid(logit(&request, item, label))).collect::<Vec<f32>>();
    let (click, like) = (column(0), column(1));
    assert_eq!((raw.model_name.as_str(), raw.model_version.as_str(), raw.id.as_str()), ("ctr", "18", "mine"));
    let outputs: Vec<_> = raw
        .outputs
        .iter()
        .map(|output| (output.name.as_str(), output.datatype.as_str(), &output.shape[..]))
        .collect();
    assert_eq!(outputs, [("click", "FP32", &[3][..]), ("like", "FP32", &[3])]);
    assert_eq!(raw.raw_output_contents, [Data::Fp32(click.clone()).raw(), Data::Fp32(like.clone()).raw()]);
    assert!(raw.outputs.iter().all(|output| output.contents.is_none()));
    let typed: InferReply = client.call("ModelInfer", &ask(&least(), false)).await.read();
    let contents: Vec<_> =
        typed.outputs.iter().map(|output| output.contents.clone().unwrap().floats).collect();
    assert_eq!((contents, typed.raw_output_contents.len()), (vec![click, like], 0));
    assert_eq!(typed.id.find('-'), Some(16), "{:?}", typed.id);
    let with_logit = with_output(ask(&least(), false), "like.logit");
    let pinned = InferAsk { model_version: "17".to_owned(), ..with_logit };
    let pinned_reply: InferReply = client.call("ModelInfer", &pinned).await.read();
    assert_eq!(
        (
            pinned_reply.model_version.as_str(),
            pinned_reply.outputs.len(),
            pinned_reply.outputs[0].name.as_str()
        ),
        ("17", 1, "like.logit")
    );
    let logits: Vec<f32> = (0..3).map(|item| logit(&request, item, 1)).collect();
    assert_eq!(pinned_reply.outputs[0].contents.clone().unwrap().floats, logits);
    node.end().await;
}

#[tokio::test]
async fn every_refusal_has_its_status() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let text = "what happened".to_owned();
    for (refusal, code) in [
        (Refusal::Bad(text.clone()), 3),
        (Refusal::Unknown(text.clone()), 5),
        (Refusal::NotKept(text.clone()), 9),
        (Refusal::Busy { retry_ms: 70, text: text.clone() }, 8),
        (Refusal::Late(text.clone()), 4),
        (Refusal::Away(text.clone()), 14),
        (Refusal::Broken(text.clone()), 13),
    ] {
        *node.fake.refusal.lock().unwrap() = Some(refusal.clone());
        let reply = client.call("ModelInfer", &ask(&least(), true)).await;
        assert_eq!((reply.code, reply.text.as_str()), (Some(code), "what happened"));
        let retry = |name| reply.metadata.get(name).map(|value| value.to_str().unwrap());
        let expected = (code == 8).then_some("70");
        assert_eq!((retry("retry-after-ms"), retry("grpc-retry-pushback-ms")), (expected, expected));
    }
    let reply = client.call("ModelInfer", &with_output(ask(&least(), true), "no")).await;
    assert!(reply.code == Some(3) && reply.text.contains("unknown output \"no\""), "{reply:?}");
}

#[tokio::test]
async fn the_node_says_how_it_stands() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let empty = which("", "");
    let is = async |client: &mut Client, verb: &str, target: &Which| {
        client.call(verb, target).await.read::<Is>().is
    };
    assert!(is(&mut client, "ServerLive", &empty).await && is(&mut client, "ServerReady", &empty).await);
    for (name, version, expected) in
        [("ctr", "", true), ("ctr", "17", true), ("ctr", "16", false), ("other", "", false)]
    {
        assert_eq!(is(&mut client, "ModelReady", &which(name, version)).await, expected);
    }
    node.fake.state.lock().unwrap().is_ready = false;
    assert!(
        !is(&mut client, "ServerReady", &empty).await
            && !is(&mut client, "ModelReady", &which("ctr", "")).await
    );
    for verb in ["ModelMetadata", "ModelConfig", "ModelStatistics"] {
        let reply = client.call(verb, &which("other", "")).await;
        assert!(reply.code == Some(5) && reply.text.contains("\"other\""), "{verb}: {reply:?}");
        let reply = client.call(verb, &which("ctr", "16")).await;
        assert!(reply.code == Some(9) && reply.text.contains("it has 17, 18"), "{verb}: {reply:?}");
        assert_eq!(client.call(verb, &which("ctr", "x")).await.code, Some(3));
        assert_eq!(client.call(verb, &which("ctr", "18")).await.code, Some(0));
    }
    for verb in ["ServerMetadata", "RepositoryIndex"] {
        assert_eq!(client.call(verb, &empty).await.code, Some(0));
    }
}

#[tokio::test]
async fn what_is_not_served_says_what_is() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    for (verb, expected) in [
        ("ModelStreamInfer", "call ModelInfer for each"),
        ("RepositoryModelLoad", "streamlearn promote"),
        ("SystemSharedMemoryStatus", "send tensors"),
        ("TraceSetting", "unknown method"),
    ] {
        let reply = client.call(verb, &which("", "")).await;
        assert!(reply.code == Some(12) && reply.text.contains(expected), "{reply:?}");
    }
    let reply = client.say("ServerLive", &[], Bytes::new()).await.unwrap();
    assert_ne!(reply.code, Some(0), "a call without a message");
    assert_serves(&mut client).await;
}

#[tokio::test]
async fn deadlines_are_the_earliest_that_is_said() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let body =
        |ms| framed(&with_parameter(ask(&least(), true), "deadline_ms", Choice::Int(ms)).encode_to_vec());
    for (timeout, ms, us_max) in [("50S", 600_000, 50_000_000), ("600S", 40_000, 40_000_000)] {
        client.say("ModelInfer", &[("grpc-timeout", timeout)], body(ms)).await.unwrap();
        let remaining_us = node.fake.last.lock().unwrap().clone().unwrap().wishes.deadline_us.unwrap();
        assert!((1..=us_max).contains(&remaining_us) && remaining_us > us_max / 2, "{remaining_us}");
    }
    let late = client.say("ModelInfer", &[("grpc-timeout", "1n")], body(60_000)).await.unwrap();
    assert_eq!(late.code, Some(4), "{late:?}");
    let odd = client.say("ModelInfer", &[("grpc-timeout", "soon")], body(60_000)).await.unwrap();
    assert!(odd.code == Some(3) && odd.text.contains("grpc-timeout is \"soon\""), "{odd:?}");
}

#[tokio::test]
async fn a_node_that_reads_late_refuses_some_requests_unread() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let worth =
        |value| framed(&with_parameter(ask(&least(), true), "value", Choice::Double(value)).encode_to_vec());
    let unimportant = [("x-priority", "2")];
    assert_eq!(client.say("ModelInfer", &unimportant, worth(0.5)).await.unwrap().code, Some(0));
    node.fake.is_late.store(true, Ordering::SeqCst);
    *node.fake.load.lock().unwrap() = Some(NodeLoad::default());
    let expected = client.call("ModelInfer", &ask(&least(), true)).await;
    assert_eq!(expected.code, Some(0));
    let scored = node.fake.began.load(Ordering::SeqCst);
    let refused = client.say("ModelInfer", &unimportant, worth(2.0)).await.unwrap();
    assert!(refused.code == Some(8) && refused.text == "unread", "{refused:?}");
    assert_eq!(node.fake.began.load(Ordering::SeqCst), scored);
    assert!(refused.metadata.contains_key("endpoint-load-metrics-bin"));
    // Of bodies in several frames, too: the connection stays.
    let large = Bytes::from(vec![0; 20_000]);
    for _ in 0..300 {
        let refused = client.say("ModelInfer", &unimportant, large.clone()).await.unwrap();
        assert_eq!(refused.code, Some(8), "{refused:?}");
    }
    assert_eq!(node.door.stats().connections, 1);
    for _ in 0..20 {
        let answered = client.say("ModelInfer", &[], worth(2.0)).await.unwrap();
        assert_eq!(answered.code, Some(0), "what was seen of it stays in it: {answered:?}");
    }
    assert_eq!(client.say("ModelInfer", &[], worth(0.5)).await.unwrap().code, Some(8));
    assert_eq!(client.say("ModelInfer", &[], Bytes::from_static(b"torn")).await.unwrap().code, Some(13));
}

#[tokio::test]
async fn messages_that_are_too_large_torn_or_none_harm_nobody_else() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let large = client.say("ModelInfer", &[], framed(&vec![0; (16 << 10) + 1])).await.unwrap();
    assert!(matches!(large.code, Some(8 | 11)), "{large:?}");
    let lying = [&[0][..], &u32::MAX.to_be_bytes(), b"x"].concat();
    assert!(matches!(client.say("ModelInfer", &[], lying.into()).await.unwrap().code, Some(8 | 11)));
    for garbage in [
        framed(&[0xff; 64]),
        framed(b"\x0a\x7fx"),
        Bytes::from_static(&[0, 0, 0, 0, 9, 1]),
        Bytes::from_static(&[7; 40]),
    ] {
        let reply = client.say("ModelInfer", &[], garbage).await.unwrap();
        assert!(matches!(reply.code, Some(3 | 13)), "{reply:?}");
    }
    let compressed = client.say("ModelInfer", &[("grpc-encoding", "gzip")], framed(b"")).await.unwrap();
    assert_eq!(compressed.code, Some(12), "{compressed:?}");
    let large_query = client.say("ModelMetadata", &[], framed(&vec![0; 70_000])).await.unwrap();
    assert!(matches!(large_query.code, Some(8 | 11)));
    let mut noise = tokio::net::TcpStream::connect(node.grpc).await.unwrap();
    noise.write_all(&[0x5a; 4096]).await.unwrap();
    let mut received = Vec::new();
    // The connection is closed, with or without a reason.
    let _ = tokio::time::timeout(DEADLINE, noise.read_to_end(&mut received)).await.unwrap();
    assert_serves(&mut client).await;
    node.end().await;
}

#[tokio::test]
async fn without_the_token_only_health_is_told() {
    let token = Some(Secret::new("open-sesame").unwrap().into());
    let limits = DoorLimits { token_wait_ms: 1, hello_wait_ms_max: 60_000, ..DoorLimits::default() };
    let node = node_of(DoorSettings { token, limits, ..DoorSettings::default() }).await;
    let mut client = Client::connect(node.grpc).await;
    let body = || framed(&ask(&least(), true).encode_to_vec());
    for wrong in [&[][..], &[("authorization", "Bearer open-sesamf")], &[("authorization", "open-sesame")]] {
        let reply = client.say("ModelInfer", wrong, body()).await.unwrap();
        assert!(reply.code == Some(16) && reply.text.contains("authorization"), "{reply:?}");
    }
    let right = [("authorization", "bearer open-sesame")];
    assert_eq!(client.say("ModelInfer", &right, body()).await.unwrap().code, Some(0));
    assert_eq!(client.call("ServerReady", &which("", "")).await.code, Some(0));
    assert_eq!(client.call("ServerMetadata", &which("", "")).await.code, Some(16));
    assert_eq!(node.door.stats().tokens_refused, 4);
}

#[tokio::test]
async fn one_request_too_many_is_busy_and_one_connection_too_many_is_closed() {
    let limits = DoorLimits { requests_max: 1, connections_max: 2, ..DoorLimits::default() };
    let node = node_with(limits).await;
    node.fake.gate.forget_permits(1 << 20);
    let mut client = Client::connect(node.grpc).await;
    let mut first = client.clone();
    let waiting = tokio::spawn(async move { first.call("ModelInfer", &ask(&least(), true)).await });
    wait_until("the first request", || node.fake.began.load(Ordering::SeqCst) == 1).await;
    let busy = client.call("ModelInfer", &ask(&least(), true)).await;
    assert!(busy.code == Some(8) && busy.text.contains("limit of 1 concurrent requests"), "{busy:?}");
    assert!(busy.metadata.contains_key("grpc-retry-pushback-ms"));
    assert_eq!(client.call("ServerLive", &which("", "")).await.code, Some(0));
    let mut second = Client::connect(node.grpc).await;
    assert_eq!(second.call("ServerLive", &which("", "")).await.code, Some(0));
    wait_until("both connections", || node.door.stats().connections == 2).await;
    let mut third = tokio::net::TcpStream::connect(node.grpc).await.unwrap();
    let mut received = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, third.read_to_end(&mut received)).await.unwrap();
    assert_eq!((received.len(), node.door.stats().connections_refused), (0, 1));
    node.fake.gate.add_permits(1);
    assert_eq!(waiting.await.unwrap().code, Some(0));
    assert_eq!((node.door.stats().requests, node.door.stats().requests_refused), (0, 1));
}

#[tokio::test]
async fn who_goes_away_is_no_longer_worked_for() {
    let node = node().await;
    node.fake.gate.forget_permits(1 << 20);
    let mut client = Client::connect(node.grpc).await;
    let call = tokio::spawn(async move { client.call("ModelInfer", &ask(&least(), true)).await });
    wait_until("the request", || node.fake.began.load(Ordering::SeqCst) == 1).await;
    call.abort();
    wait_until("the released slot", || node.door.stats().requests == 0).await;
    assert!(node.fake.last.lock().unwrap().is_none());
}

#[tokio::test]
async fn what_was_begun_is_finished_at_the_end() {
    let node = node().await;
    node.fake.gate.forget_permits(1 << 20);
    let mut client = Client::connect(node.grpc).await;
    let waiting = tokio::spawn(async move { client.call("ModelInfer", &ask(&least(), true)).await });
    wait_until("the request", || node.fake.began.load(Ordering::SeqCst) == 1).await;
    let (fake, at) = (Arc::clone(&node.fake), node.grpc);
    node.stop.send_replace(true);
    let is_refused = async || tokio::net::TcpStream::connect(at).await.is_err();
    let end = tokio::time::Instant::now() + DEADLINE;
    while !is_refused().await {
        assert!(tokio::time::Instant::now() < end, "the node still listens");
    }
    fake.gate.add_permits(1);
    assert_eq!(waiting.await.unwrap().code, Some(0));
    node.end().await;
}

#[tokio::test]
async fn whoever_stays_too_long_at_the_end_is_left() {
    let node = node_with(DoorLimits { drain_ms_max: 50, ..DoorLimits::default() }).await;
    node.fake.gate.forget_permits(1 << 20);
    let mut client = Client::connect(node.grpc).await;
    let body = framed(&ask(&least(), true).encode_to_vec());
    let waiting = tokio::spawn(async move { client.say("ModelInfer", &[], body).await });
    wait_until("the request", || node.fake.began.load(Ordering::SeqCst) == 1).await;
    node.end().await;
    assert!(waiting.await.unwrap().is_err());
}

#[tokio::test]
async fn the_silent_and_the_slow_are_let_go() {
    let limits = DoorLimits { idle_ms_max: 1_000, arrival_wait_ms_max: 1_000, ..DoorLimits::default() };
    let node = node_with(limits).await;
    for at in [node.grpc, node.http] {
        let mut silent = tokio::net::TcpStream::connect(at).await.unwrap();
        let mut received = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, silent.read_to_end(&mut received)).await.unwrap();
    }
    let stream = tokio::net::TcpStream::connect(node.grpc).await.unwrap();
    let (slow, fast) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .map(|(mut client, connection)| {
        tokio::spawn(connection);
        let request = hyper::Request::post("http://node/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .body(Never)
            .unwrap();
        (client.send_request(request), client)
    })
    .unwrap();
    let response = tokio::time::timeout(DEADLINE, slow).await.unwrap().unwrap();
    assert_eq!(response.headers().get("grpc-status").unwrap(), "4");
    drop(fast);
}

/// A body that never produces a frame.
struct Never;

impl hyper::body::Body for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn with_a_certificate_connections_are_private() {
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let files = certificate("grpc");
    let tls = Some(TlsFiles { cert: files.cert.clone(), key: files.key.clone() });
    let node = node_of(DoorSettings { tls, ..DoorSettings::default() }).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.cert).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let socket = tokio::net::TcpStream::connect(node.grpc).await.unwrap();
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), socket).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = Client::over(stream).await;
    assert_serves(&mut client).await;
    let mut plain = tokio::net::TcpStream::connect(node.grpc).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, plain.read_to_end(&mut received)).await.unwrap();
    assert_serves(&mut client).await;
}
