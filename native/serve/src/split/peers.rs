//! A peer: another node of the application, with one HTTP/2 connection that is kept open and pinged. It scores pieces.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, TE};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use streamlearn_trust::{FileValue, Token};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::piece::FRAME_BYTES;
use super::plan::PeerLoad;
use crate::protocol::Stream;

/// The method that takes pieces.
pub const METHOD: &str = "/streamlearn.Pieces/Score";
/// The header of an answer with the work that the peer has, in microseconds.
pub const BACKLOG_US: HeaderName = HeaderName::from_static("backlog-us");
/// The header of an answer with the time for which the piece was there, in microseconds.
pub const TOOK_US: HeaderName = HeaderName::from_static("took-us");
/// How long a connection and the first answer on it may take.
const REACH: Duration = Duration::from_secs(1);
/// How long after its end a connection is made again, at first and at most: it doubles until one succeeds.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_DOUBLINGS: u32 = 6;
/// The distance of pings, and how long the answer to one may take. A peer that hangs is known after both.
const PING: Duration = Duration::from_secs(1);

/// The token and the TLS with which a node reaches its peers.
pub struct PeerDoor {
    /// The token of both.
    pub token: Option<Token>,
    /// TLS, if peers take it.
    pub tls: Option<FileValue<TlsConnector>>,
}

/// Another node.
pub struct Peer {
    /// Where it takes pieces.
    pub address: SocketAddr,
    state: Mutex<PeerState>,
    /// Its connection ends with it.
    open: watch::Sender<()>,
}

#[derive(Default)]
struct PeerState {
    load: PeerLoad,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// The reason why a peer did not score a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It does not have the version, or takes no such pieces.
    Lacks,
    /// It cannot answer in time.
    Busy,
    /// There was no answer in time.
    Late,
    /// The connection was lost, or the answer is none.
    Lost,
}

/// A peer's answer.
#[derive(Debug)]
pub struct PeerAnswer {
    /// The logit of every candidate and label.
    pub scores: Vec<f32>,
    /// How long the piece was there.
    pub took_us: f64,
    /// The work that the peer has.
    pub backlog_us: f64,
}

impl Peer {
    pub fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self { address, state: Mutex::default(), open: watch::Sender::default() })
    }

    /// Returns the result of `of` on its load, or `None` while there is no connection.
    pub fn with_load<T>(&self, of: impl FnOnce(&mut PeerLoad) -> T) -> Option<T> {
        let mut state = self.state();
        state.sender.is_some().then(|| of(&mut state.load))
    }

    /// Changes its load, whether there is a connection or not.
    pub fn note(&self, change: impl FnOnce(&mut PeerLoad)) {
        change(&mut self.state().load);
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a piece, and returns this number of scores. A future that is dropped cancels it at the peer.
    pub async fn ask(&self, door: &PeerDoor, body: Bytes, scores: usize) -> Result<PeerAnswer, Failure> {
        let sender = self.state().sender.clone().ok_or(Failure::Lost)?;
        ask(sender, self.address, door, body, scores).await
    }

    /// Keeps the connection to a peer until it is dropped. Give it the message that begins a connection.
    pub async fn keep(peer: Weak<Self>, door: Arc<PeerDoor>, hello: Bytes) {
        let mut failures = 0;
        while let Some(held) = peer.upgrade() {
            let (address, mut open) = (held.address, held.open.subscribe());
            drop(held);
            let (peer, hello) = (&peer, hello.clone());
            let talk = async {
                let (sender, connection) = timeout(REACH, connect(address, &door)).await.ok()?.ok()?;
                let greeted = async {
                    timeout(REACH, ask(sender.clone(), address, &door, hello, 0)).await.ok()?.ok()?;
                    peer.upgrade()?.state().sender = Some(sender);
                    std::future::pending::<Option<()>>().await
                };
                tokio::select! {
                    _ = connection => {}
                    _ = greeted => {}
                }
                let held = peer.upgrade()?;
                held.state().sender.take().map(drop)
            };
            tokio::select! {
                was_open = talk => failures = if was_open.is_some() { 0 } else { failures + 1 },
                _ = open.changed() => return,
            }
            tokio::select! {
                () = sleep(RETRY * (1 << failures.min(RETRY_DOUBLINGS))) => {}
                _ = open.changed() => return,
            }
        }
    }
}

type Connection = http2::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>, TokioExecutor>;

async fn connect(address: SocketAddr, door: &PeerDoor) -> io::Result<(SendRequest<Full<Bytes>>, Connection)> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let stream: Box<dyn Stream> = match &door.tls {
        None => Box::new(socket),
        Some(tls) => Box::new(tls.now().connect(ServerName::from(address.ip()), socket).await?),
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    // A late answer to a piece that was given up counts as an error of the peer. By default 1,024 of them end the
    // connection.
    builder.max_local_error_reset_streams(None);
    builder.keep_alive_while_idle(true).handshake(TokioIo::new(stream)).await.map_err(io::Error::other)
}

async fn ask(
    mut sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
    door: &PeerDoor,
    body: Bytes,
    scores: usize,
) -> Result<PeerAnswer, Failure> {
    let scheme = if door.tls.is_some() { "https" } else { "http" };
    let mut request = Request::post(format!("{scheme}://{address}{METHOD}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    if let Some(token) = &door.token {
        request = request.header(AUTHORIZATION, [b"Bearer ", token.to_send().0.bytes()].concat());
    }
    let request = request.body(Full::new(body)).map_err(|_| Failure::Lost)?;
    let response = sender.send_request(request).await.map_err(|_| Failure::Lost)?;
    read(response, scores).await
}

/// Reads an answer with this number of scores; a longer one is not kept.
async fn read(response: Response<Incoming>, scores: usize) -> Result<PeerAnswer, Failure> {
    let (head, mut body) = response.into_parts();
    check_status(&head.headers)?;
    let bytes_max = FRAME_BYTES + 4 * scores;
    let (mut message, mut is_complete) = (Vec::with_capacity(bytes_max), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::Lost)?;
        match frame.into_data() {
            Ok(data) if message.len() + data.remaining() <= bytes_max => message.extend_from_slice(&data),
            Ok(_) => return Err(Failure::Lost),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                check_status(&trailers)?;
                is_complete = trailers.contains_key("grpc-status");
            }
        }
    }
    if !is_complete || message.len() != bytes_max {
        return Err(Failure::Lost);
    }
    let floats = message[FRAME_BYTES..].chunks_exact(4);
    let scores = floats.map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect();
    let number = |name| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let (Some(took_us), Some(backlog_us)) = (number(TOOK_US), number(BACKLOG_US)) else {
        return Err(Failure::Lost);
    };
    Ok(PeerAnswer { scores, took_us: took_us as f64, backlog_us: backlog_us as f64 })
}

/// Checks the status of gRPC, if these headers have it.
fn check_status(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        // RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED; FAILED_PRECONDITION, NOT_FOUND and UNIMPLEMENTED.
        Some(b"8" | b"4") => Err(Failure::Busy),
        Some(b"9" | b"5" | b"12") => Err(Failure::Lacks),
        Some(_) => Err(Failure::Lost),
    }
}
