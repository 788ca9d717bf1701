//! Heads end to end: options that a proxy sets there, in every form of a request, and the load that answers carry.

use crate::rig::asks::*;
use crate::rig::*;
use prost::Message;
use streamlearn_serve::answer::Refusal;
use streamlearn_serve::load::NodeLoad;
use streamlearn_serve::request::Request;

const ROWS: &str = r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}]}"#;
const ROWS_WITH: &str = r#"{"user": {"user_id": 5}, "items": [{"item_id": 7}], "deadline_ms": 60000, "priority": 1, "route_key": "b"}"#;
const TENSORS: &str = r#"{"inputs": [{"name": "user_id", "datatype": "INT64", "shape": [1], "data": [5]},
    {"name": "item_id", "datatype": "INT64", "shape": [1], "data": [7]}]}"#;
const TENSORS_WITH: &str = r#"{"inputs": [{"name": "user_id", "datatype": "INT64", "shape": [1], "data": [5]},
    {"name": "item_id", "datatype": "INT64", "shape": [1], "data": [7]}],
    "parameters": {"deadline_ms": 60000, "priority": 1, "route_key": "b"}}"#;
const HEAD: [(&str, &str); 4] =
    [("x-route-key", "a"), ("x-priority", "2"), ("x-arm", "layer:new"), ("x-deadline-ms", "5000")];
const LOAD: NodeLoad = NodeLoad { utilization: 0.5, answers: 100.0, failures: 1.0 };

/// Sends a request in every form with headers, alone and with the same options in its body. Returns what the model
/// got, or the code and text of the refusal.
async fn in_every_form(node: &Node, head: &[(&str, &str)], has_own: bool) -> Vec<Result<Request, String>> {
    let mut message = ask(&least(), true);
    if has_own {
        for (name, value) in [
            ("deadline_ms", Choice::Int(60_000)),
            ("priority", Choice::Int(1)),
            ("route_key", Choice::Text("b".to_owned())),
        ] {
            message = with_parameter(message, name, value);
        }
    }
    let last = || node.fake.last.lock().unwrap().take();
    let mut client = Client::connect(node.grpc).await;
    let reply = client.say("ModelInfer", head, framed(&message.encode_to_vec())).await.unwrap();
    let mut outcomes = vec![last().ok_or(format!("{:?} {}", reply.code, reply.text))];
    for (path, body) in [
        ("/score", if has_own { ROWS_WITH } else { ROWS }),
        ("/v2/models/ctr/infer", if has_own { TENSORS_WITH } else { TENSORS }),
    ] {
        let reply = http(node.http, "POST", path, head, body).await;
        outcomes.push(last().ok_or(format!("{} {}", reply.status, reply.text)));
    }
    outcomes
}

#[tokio::test]
async fn options_in_the_head_are_those_of_every_form_and_the_body_wins() {
    let node = node().await;
    let of_body: Vec<Request> =
        in_every_form(&node, &[], true).await.into_iter().map(|outcome| outcome.unwrap()).collect();
    for (request, body) in in_every_form(&node, &HEAD, false).await.into_iter().zip(&of_body) {
        let request = request.unwrap();
        assert_eq!((request.wishes.priority, request.arm.as_deref()), (2, Some("layer:new")));
        assert!(request.wishes.deadline_us.unwrap() <= 5_000_000);
        assert_ne!(request.wishes.route, body.wishes.route);
    }
    for (request, body) in in_every_form(&node, &HEAD, true).await.into_iter().zip(&of_body) {
        let request = request.unwrap();
        assert_eq!((request.wishes.priority, request.wishes.route), (1, body.wishes.route));
        assert!(request.wishes.deadline_us.unwrap() > 5_000_000, "the body's deadline, though it is later");
    }
    node.end().await;
}

#[tokio::test]
async fn a_head_that_cannot_be_is_refused_in_every_form_and_the_node_goes_on() {
    let node = node().await;
    for (head, expected) in [
        (&[("x-deadline-ms", "NaN")][..], "expected a whole number"),
        (&[("x-deadline-ms", "-1")], "expected a whole number"),
        (&[("x-priority", "1"), ("x-priority", "1")], "more than once"),
        (&[("x-arm", "no space")], "letters, digits"),
        (&[("x-route-key", "caf\u{e9}")], "not printable ASCII"),
    ] {
        for (outcome, code) in
            in_every_form(&node, head, false).await.into_iter().zip(["Some(3)", "400", "400"])
        {
            let text = outcome.unwrap_err();
            assert!(text.starts_with(code) && text.contains(head[0].0) && text.contains(expected), "{text}");
        }
    }
    assert!(in_every_form(&node, &[], false).await.iter().all(Result::is_ok));
    node.end().await;
}

#[tokio::test]
async fn answers_and_refusals_carry_the_load_and_other_replies_do_not() {
    let node = node().await;
    *node.fake.load.lock().unwrap() = Some(LOAD);
    for refusal in [None, Some(Refusal::Busy { retry_ms: 7, text: "busy".into() })] {
        *node.fake.refusal.lock().unwrap() = refusal.clone();
        let mut client = Client::connect(node.grpc).await;
        let body = framed(&ask(&least(), true).encode_to_vec());
        let answer = client.open("inference.GRPCInferenceService/ModelInfer", &[], body).await.unwrap();
        let (head, body) = answer.into_parts();
        let trailer = http_body_util::BodyExt::collect(body).await.unwrap().trailers().cloned();
        let last = trailer.unwrap_or(head.headers);
        assert_eq!(last["grpc-status"], if refusal.is_some() { "8" } else { "0" });
        // 100 answers and a failure a second, and half of the time used.
        assert_eq!(last["endpoint-load-metrics-bin"], "MQAAAAAAAFlAOQAAAAAAAPA/SQAAAAAAAOA/");
        assert!(!last.contains_key("endpoint-load-metrics"));
        for (path, body) in [("/score", ROWS), ("/v2/models/ctr/infer", TENSORS)] {
            let reply = post(node.http, path, body).await;
            let load = "TEXT application_utilization=5e-1, rps_fractional=100.000, eps=1.000";
            assert_eq!(
                (reply.status == 429, &reply.headers["endpoint-load-metrics"]),
                (refusal.is_some(), &load.parse().unwrap())
            );
        }
    }
    let mut client = Client::connect(node.grpc).await;
    let live = client.say("ServerLive", &[], framed(&[])).await.unwrap();
    assert!(live.code == Some(0) && !live.metadata.contains_key("endpoint-load-metrics-bin"));
    assert!(!get(node.http, "/ready").await.headers.contains_key("endpoint-load-metrics"));
    node.end().await;
}
