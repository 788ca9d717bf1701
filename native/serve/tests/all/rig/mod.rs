//! The test rig: both servers on loopback, and clients that can misbehave.

pub mod asks;
pub mod fake;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fake::Fake;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{Door, DoorLimits, DoorSettings, every_kind, serve_grpc, serve_http};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub const LIMITS: Limits = Limits { candidates_max: 64, values_max: 256, message_bytes_max: 16 << 10 };
/// The timeout of every wait.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Both servers, with one model and one door.
pub struct Node {
    pub fake: Arc<Fake>,
    pub door: Arc<Door>,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub stop: watch::Sender<bool>,
    pub servers: Vec<JoinHandle<std::io::Result<()>>>,
}

pub async fn node() -> Node {
    node_of(DoorSettings::default()).await
}

pub async fn node_with(limits: DoorLimits) -> Node {
    node_of(DoorSettings { limits, ..DoorSettings::default() }).await
}

pub async fn node_of(settings: DoorSettings) -> Node {
    node_within(settings, LIMITS).await
}

pub async fn node_within(settings: DoorSettings, limits: Limits) -> Node {
    node_at(settings, limits, (listener().await, listener().await))
}

pub fn node_at(
    settings: DoorSettings,
    limits: Limits,
    (grpc_listener, http_listener): (TcpListener, TcpListener),
) -> Node {
    let fake = Arc::new(Fake::new(every_kind(limits)));
    let door = Arc::new(Door::new(settings).unwrap());
    let (stop, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|&is| is).await;
    };
    let (grpc, http) = (grpc_listener.local_addr().unwrap(), http_listener.local_addr().unwrap());
    let servers = vec![
        tokio::spawn(serve_grpc(grpc_listener, fake.clone(), door.clone(), until(stopped.clone()))),
        tokio::spawn(serve_http(http_listener, fake.clone(), door.clone(), until(stopped))),
    ];
    Node { fake, door, grpc, http, stop, servers }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

impl Node {
    /// Stops both servers, and waits for their end.
    pub async fn end(self) {
        self.stop.send_replace(true);
        for server in self.servers {
            tokio::time::timeout(DEADLINE, server).await.unwrap().unwrap().unwrap();
        }
    }
}

/// Waits until a condition holds.
pub async fn wait_until(event: &str, mut holds: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + DEADLINE;
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "not within {DEADLINE:?}: {event}");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A gRPC reply.
#[derive(Debug)]
pub struct Reply {
    /// The gRPC code.
    pub code: Option<i32>,
    pub text: String,
    /// Headers and trailers.
    pub metadata: HeaderMap,
    pub message: Bytes,
}

impl Reply {
    pub fn read<M: Message + Default>(&self) -> M {
        assert_eq!(self.code, Some(0), "{self:?}");
        M::decode(self.message.clone()).unwrap()
    }
}

/// A gRPC client with one connection.
#[derive(Clone)]
pub struct Client(http2::SendRequest<Full<Bytes>>);

pub fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}

impl Client {
    pub async fn connect(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream).await
    }

    pub async fn over<S>(stream: S) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (client, connection) = handshake.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    pub async fn call(&mut self, verb: &str, message: &impl Message) -> Reply {
        self.say(verb, &[], framed(&message.encode_to_vec())).await.unwrap()
    }

    /// Sends a body that need not be a message.
    pub async fn say(&mut self, verb: &str, headers: &[(&str, &str)], body: Bytes) -> hyper::Result<Reply> {
        self.say_to(&format!("inference.GRPCInferenceService/{verb}"), headers, body).await
    }

    /// Sends a body to a method of any service; its answer has not ended.
    pub async fn open(
        &mut self,
        method: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::post(format!("http://node/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sending = self.0.send_request(request.body(Full::new(body)).unwrap());
        tokio::time::timeout(DEADLINE, sending).await.unwrap()
    }

    /// Sends a body to a method of any service.
    pub async fn say_to(
        &mut self,
        method: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Result<Reply> {
        let (head, body) = self.open(method, headers, body).await?.into_parts();
        let collected = body.collect().await?;
        let mut metadata = head.headers;
        metadata.extend(collected.trailers().cloned().unwrap_or_default());
        let body = collected.to_bytes();
        let code = metadata.get("grpc-status").map(|code| code.to_str().unwrap().parse().unwrap());
        let text = metadata.get("grpc-message").map_or("", |text| text.to_str().unwrap()).to_owned();
        let message = if body.len() < 5 { Bytes::new() } else { body.slice(5..) };
        Ok(Reply { code, text: unescaped(&text), metadata, message })
    }
}

fn unescaped(text: &str) -> String {
    let mut bytes = text.as_bytes().iter();
    let mut out = Vec::new();
    while let Some(&byte) = bytes.next() {
        let hex = (byte == b'%').then(|| [*bytes.next().unwrap(), *bytes.next().unwrap()]);
        out.push(hex.map_or(byte, |hex| u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()));
    }
    String::from_utf8(out).unwrap()
}

/// An HTTP reply.
#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Heard {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

pub async fn get(at: SocketAddr, path: &str) -> Heard {
    http(at, "GET", path, &[], "").await
}

pub async fn post(at: SocketAddr, path: &str, body: &str) -> Heard {
    http(at, "POST", path, &[], body).await
}

pub async fn http(at: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Heard {
    let (status, headers, body) = http_bytes(at, method, path, headers, body.to_owned().into()).await;
    Heard { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

pub async fn http_bytes(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> (u16, HeaderMap, Bytes) {
    let stream = TcpStream::connect(at).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let sending = client.send_request(request.body(Full::new(body)).unwrap());
    let response = tokio::time::timeout(DEADLINE, sending).await.unwrap().unwrap();
    let (head, body) = response.into_parts();
    (head.status.as_u16(), head.headers, body.collect().await.unwrap().to_bytes())
}

/// A certificate for "localhost" and its key, in files that are removed on drop.
pub struct Certificate {
    pub folder: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn certificate(name: &str) -> Certificate {
    let folder = std::env::temp_dir().join(format!("streamlearn-serve-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, generated.cert.pem()).unwrap();
    std::fs::write(&key, generated.signing_key.serialize_pem()).unwrap();
    Certificate { folder, cert, key }
}
