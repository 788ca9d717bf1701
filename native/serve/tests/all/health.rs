//! Health and reflection of gRPC, as Kubernetes, Envoy and grpcurl ask for them.

use crate::rig::*;
use bytes::Bytes;
use http_body_util::BodyExt;
use prost::Message;
use streamlearn_serve::protocol::{DoorLimits, DoorSettings, Secret};

const CHECK: &str = "grpc.health.v1.Health/Check";
const WATCH: &str = "grpc.health.v1.Health/Watch";
const REFLECT: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn about(service: &str) -> Bytes {
    framed(&Service { service: service.to_owned() }.encode_to_vec())
}

async fn health(client: &mut Client, service: &str) -> i32 {
    client.say_to(CHECK, &[], about(service)).await.unwrap().read::<Health>().status
}

#[tokio::test]
async fn a_check_tells_readiness_and_life_apart() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    let services = ["", "readiness", "liveness", "ctr", "inference.GRPCInferenceService"];
    for service in services {
        assert_eq!(health(&mut client, service).await, SERVING, "{service}");
    }
    node.fake.state.lock().unwrap().is_ready = false;
    for service in services {
        let expected = if service == "liveness" { SERVING } else { NOT_SERVING };
        assert_eq!(health(&mut client, service).await, expected, "{service}");
    }
    node.fake.state.lock().unwrap().is_live = false;
    assert_eq!(health(&mut client, "liveness").await, NOT_SERVING);
    let unknown = client.say_to(CHECK, &[], about("other")).await.unwrap();
    assert!(unknown.code == Some(5) && unknown.text.contains("\"other\""), "{unknown:?}");
    let long = client.say_to(CHECK, &[], about(&"x".repeat(5_000))).await.unwrap();
    assert_eq!(long.code, Some(11), "{long:?}");
    node.end().await;
}

#[tokio::test]
async fn a_check_and_a_watch_need_no_token_and_the_rest_does() {
    let token = Some(Secret::new("open-sesame").unwrap().into());
    let limits = DoorLimits {
        token_wait_ms: 1,
        arrival_wait_ms_max: 2_000,
        hello_wait_ms_max: 60_000,
        ..DoorLimits::default()
    };
    let node = node_of(DoorSettings { token, limits, ..DoorSettings::default() }).await;
    let mut client = Client::connect(node.grpc).await;
    assert_eq!(health(&mut client, "").await, SERVING);
    let mut watched = client.open(WATCH, &[], about("")).await.unwrap().into_body();
    assert!(watched.frame().await.unwrap().is_ok());
    for method in REFLECT {
        assert_eq!(client.say_to(method, &[], about("")).await.unwrap().code, Some(16), "{method}");
    }
    // Half of a message: it is waited for as long as any request, and holds no slot.
    let half = client.say_to(CHECK, &[], about("liveness").slice(..7)).await.unwrap();
    assert_ne!(half.code, Some(0), "{half:?}");
    assert_eq!(node.door.stats().requests, 0);
    node.end().await;
}

#[tokio::test]
async fn a_watch_tells_each_change_and_ends_with_the_node() {
    let node = node_with(DoorLimits { drain_ms_max: 60_000, ..DoorLimits::default() }).await;
    let mut client = Client::connect(node.grpc).await;
    let mut body = client.open(WATCH, &[], about("ctr")).await.unwrap().into_body();
    let mut other = client.open(WATCH, &[], about("other")).await.unwrap().into_body();
    let next = async |body: &mut hyper::body::Incoming| {
        let frame = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap()?.unwrap();
        Some(Health::decode(&frame.into_data().ok()?[5..]).unwrap().status)
    };
    assert_eq!(next(&mut body).await, Some(SERVING));
    assert_eq!(next(&mut other).await, Some(SERVICE_UNKNOWN));
    for is_ready in [false, true] {
        node.fake.state.lock().unwrap().is_ready = is_ready;
        assert_eq!(next(&mut body).await, Some(if is_ready { SERVING } else { NOT_SERVING }));
    }
    let began = std::time::Instant::now();
    node.stop.send_replace(true);
    assert_eq!(next(&mut body).await, Some(NOT_SERVING));
    assert_eq!((next(&mut body).await, next(&mut other).await), (None, None));
    node.end().await;
    assert!(began.elapsed() < DEADLINE / 4, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_watch_keeps_its_connection() {
    let node = node_with(DoorLimits { idle_ms_max: 3_000, drain_ms_max: 200, ..DoorLimits::default() }).await;
    let mut client = Client::connect(node.grpc).await;
    let mut body = client.open(WATCH, &[], about("")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    // Another connection is idle meanwhile, and is closed.
    let mut idle = Client::connect(node.grpc).await;
    assert_eq!(health(&mut idle, "").await, SERVING);
    wait_until("both connections", || node.door.stats().connections == 2).await;
    wait_until("the end of the idle one", || node.door.stats().connections == 1).await;
    node.fake.state.lock().unwrap().is_ready = false;
    let frame = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(Health::decode(&frame.into_data().unwrap()[5..]).unwrap().status, NOT_SERVING);
}

#[tokio::test]
async fn a_watch_without_the_token_does_not_keep_its_connection() {
    let token = Some(Secret::new("open-sesame").unwrap().into());
    let limits = DoorLimits { hello_wait_ms_max: 2_000, ..DoorLimits::default() };
    let node = node_of(DoorSettings { token, limits, ..DoorSettings::default() }).await;
    let mut client = Client::connect(node.grpc).await;
    let mut body = client.open(WATCH, &[], about("")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok());
    wait_until("the end of its connection", || node.door.stats().connections == 0).await;
    node.end().await;
}

/// A request of reflection: the name of a symbol or, empty, all services.
#[derive(Clone, PartialEq, Message)]
struct ReflectAsk {
    #[prost(string, optional, tag = "4")]
    symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list: Option<String>,
}

#[tokio::test]
async fn reflection_names_the_services_and_describes_their_messages() {
    let node = node().await;
    let mut client = Client::connect(node.grpc).await;
    for method in REFLECT {
        let ask = ReflectAsk { symbol: None, list: Some(String::new()) };
        let reply = client.say_to(method, &[], framed(&ask.encode_to_vec())).await.unwrap();
        let text = String::from_utf8_lossy(&reply.message).into_owned();
        assert_eq!(reply.code, Some(0), "{reply:?}");
        for service in ["inference.GRPCInferenceService", "grpc.health.v1.Health"] {
            assert!(text.contains(service), "{text}");
        }
        let ask = ReflectAsk { symbol: Some("inference.ModelInferRequest".to_owned()), list: None };
        let reply = client.say_to(method, &[], framed(&ask.encode_to_vec())).await.unwrap();
        assert!(String::from_utf8_lossy(&reply.message).contains("raw_input_contents"), "{reply:?}");
    }
    node.end().await;
}
