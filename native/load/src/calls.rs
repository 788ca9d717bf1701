//! Calls: gRPC connections to a node, and calls with messages that are already encoded. Knows no schedule.
//!
//! It uses HTTP/2 frames directly: a general gRPC client would take more CPU from a node on the same machine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, TE};
use http::uri::Uri;
use http::{HeaderMap, Method, Request, Version};
use streamlearn_trust::FileValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::{Code, Status};

/// The called method of the Open Inference Protocol.
pub const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The bytes before a message: the compression flag and its length.
const PREFIX_BYTES: usize = 5;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The message with which servers built on tonic report a passed deadline as CANCELLED.
const LATE: &str = "Timeout expired";
/// How often a request is sent that no connection carried.
const ATTEMPTS: usize = 4;

/// The settings of calls.
#[derive(Debug, Clone)]
pub struct CallsSettings {
    /// The node's `HOST:PORT`.
    pub address: String,
    /// The number of connections, used in turn; for HTTP/1.1 the maximum number.
    pub connections: usize,
    /// The node's access token.
    pub token: Option<String>,
    /// The timeout of connecting.
    pub connect_wait_max: Duration,
    /// The maximum length of an answer.
    pub answer_bytes_max: usize,
    /// How to speak TLS to the node, if it does.
    pub tls: Option<Arc<FileValue<TlsConnector>>>,
}

/// An encoded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(Bytes);

impl Message {
    /// Frames a message.
    ///
    /// # Errors
    /// If its length does not fit four bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let length = u32::try_from(bytes.len())
            .map_err(|_| format!("a message of {} bytes is too long", bytes.len()))?;
        let mut framed = BytesMut::with_capacity(PREFIX_BYTES + bytes.len());
        framed.put_u8(0);
        framed.put_u32(length);
        framed.put_slice(bytes);
        Ok(Self(framed.freeze()))
    }

    /// Wraps bytes that are sent unchanged.
    pub(super) fn unframed(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to send.
    pub(super) fn bytes(self) -> Bytes {
        self.0
    }
}

/// Connections to a node; a lost one is replaced by the next call.
#[derive(Clone)]
pub struct Calls {
    connections: Arc<[Connection]>,
    settings: Arc<CallsSettings>,
    uri: Uri,
    token: Option<HeaderValue>,
}

type Connection = Mutex<OpenConnection>;

/// The open connection, if any, and the number of connections so far.
struct OpenConnection {
    count: u64,
    sender: Option<SendRequest<Bytes>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} connections to {}", self.connections.len(), self.settings.address)
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// An answer.
    With(Bytes),
    /// A refusal, by the node or the connection.
    Refused(Code, String),
    /// No answer within the wait.
    Nothing,
}

impl Calls {
    /// Opens all connections to a node.
    ///
    /// # Errors
    /// The reason why a connection failed.
    pub async fn connect(settings: &CallsSettings) -> Result<Self, String> {
        let token = settings.token.as_ref().map(|token| format!("Bearer {token}").parse());
        let token = token
            .transpose()
            .map_err(|_| "the token has characters that a header cannot contain".to_owned())?;
        let scheme = if settings.tls.is_some() { "https" } else { "http" };
        let uri = format!("{scheme}://{}{METHOD}", settings.address).parse();
        let uri = uri.map_err(|error| format!("{:?} is not an address: {error}", settings.address))?;
        let mut connections = Vec::with_capacity(settings.connections);
        for _ in 0..settings.connections {
            connections
                .push(Mutex::new(OpenConnection { count: 1, sender: Some(connection(settings).await?) }));
        }
        Ok(Self { connections: connections.into(), settings: Arc::new(settings.clone()), uri, token })
    }

    /// Sends a message over the connection with index `turn` modulo their number.
    pub async fn call(
        &self,
        turn: usize,
        message: Message,
        deadline: Option<Duration>,
        answer_wait_max: Duration,
    ) -> Answered {
        let connection = &self.connections[turn % self.connections.len()];
        match timeout(deadline.unwrap_or(answer_wait_max), self.ask(connection, message, deadline)).await {
            Ok(Ok(answer)) => Answered::With(answer),
            Ok(Err(status)) if status.code() == Code::Cancelled && status.message() == LATE => {
                Answered::Refused(Code::DeadlineExceeded, LATE.to_owned())
            }
            Ok(Err(status)) => Answered::Refused(status.code(), status.message().to_owned()),
            Err(_) if deadline.is_some() => Answered::Refused(Code::DeadlineExceeded, LATE.to_owned()),
            Err(_) => Answered::Nothing,
        }
    }

    /// Asks over a connection, and again if the node did not see the request, as every client of gRPC does: over a new
    /// connection if the first was lost or leaving (GOAWAY), and once over the same if the node refused the stream.
    async fn ask(
        &self,
        connection: &Connection,
        message: Message,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Status> {
        let mut gone = 0;
        for attempt in 1.. {
            let (count, sender) = self.sender(connection, gone).await?;
            match self.ask_over(sender, message.clone(), deadline).await {
                Err(Failure { is_unseen: true, is_refused: false, .. }) if attempt < ATTEMPTS => gone = count,
                Err(Failure { is_unseen: true, is_refused: true, .. }) if attempt == 1 => gone = 0,
                outcome => return outcome.map_err(|failure| failure.status),
            }
        }
        unreachable!("the attempts are bounded")
    }

    async fn ask_over(
        &self,
        sender: SendRequest<Bytes>,
        message: Message,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Failure> {
        let unsent = |error| Failure { status: lost(&error), is_unseen: true, is_refused: false };
        let mut sender = sender.ready().await.map_err(unsent)?;
        let (answer, mut body) = sender.send_request(self.head(deadline), false).map_err(unsent)?;
        // If it fails, the answer says why.
        let _ = body.send_data(message.0, true);
        let (head, body) = answer.await.map_err(|error| Failure::of(&error))?.into_parts();
        if head.status != http::StatusCode::OK {
            return Err(Status::unknown(format!("HTTP status {}", head.status)).into());
        }
        Ok(read(&head.headers, body, self.settings.answer_bytes_max).await?)
    }

    /// Returns the connection and its number; opens a new one if the current number is `gone`.
    async fn sender(&self, slot: &Connection, gone: u64) -> Result<(u64, SendRequest<Bytes>), Status> {
        let mut current = slot.lock().await;
        if current.count == gone {
            current.sender = None;
        }
        let sender = match &current.sender {
            Some(sender) => sender.clone(),
            None => {
                let sender = connection(&self.settings).await.map_err(Status::unavailable)?;
                current.count += 1;
                current.sender.insert(sender).clone()
            }
        };
        Ok((current.count, sender))
    }

    fn head(&self, deadline: Option<Duration>) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        if let Some(deadline) = deadline {
            // gRPC allows at most eight digits.
            let ms = deadline.as_millis().min(99_999_999);
            let value = HeaderValue::from_str(&format!("{ms}m"));
            headers.insert("grpc-timeout", value.unwrap_or_else(|_| unreachable!("digits are a header")));
        }
        request
    }
}

/// Why a request failed, and whether it is certain that the node did not see it.
struct Failure {
    status: Status,
    is_unseen: bool,
    /// Whether the node refused the request alone, so that the connection is well.
    is_refused: bool,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, is_unseen: false, is_refused: false }
    }
}

impl Failure {
    /// The failure of a stream: the node did not see one that it refused, or that came after the last one it took.
    fn of(error: &h2::Error) -> Self {
        let is_refused = error.reason() == Some(Reason::REFUSED_STREAM);
        let is_after = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
        Self { status: lost(error), is_unseen: is_refused || is_after, is_refused }
    }
}

async fn connection(settings: &CallsSettings) -> Result<SendRequest<Bytes>, String> {
    let opening = timeout(settings.connect_wait_max, async {
        let socket = TcpStream::connect(&settings.address).await.map_err(|error| error.to_string())?;
        socket.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = &settings.tls else { return begin(socket).await };
        // The certificate may be for any name, but servers with several certificates choose by it.
        let host = settings.address.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
        let peer = socket.peer_addr().map_err(|error| error.to_string())?.ip();
        let name = ServerName::try_from(host).unwrap_or_else(|_| ServerName::from(peer));
        begin(tls.now().connect(name, socket).await.map_err(|error| format!("TLS: {error}"))?).await
    });
    opening.await.map_err(|_| "no connection within the bound".to_owned())?
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<Bytes>, String> {
    let mut builder = Builder::new();
    builder.initial_window_size(STREAM_WINDOW_BYTES).enable_push(false);
    builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    // A late answer to a call that was given up counts as an error of the node. By default 1,024 of them end the
    // connection.
    builder.max_local_error_reset_streams(None);
    let (sender, driver) = builder.handshake(stream).await.map_err(|error| error.to_string())?;
    // Every call on the connection learns of its end.
    tokio::spawn(async move { drop(driver.await) });
    Ok(sender)
}

/// Returns an answer's message, or its status as an error.
async fn read(head: &HeaderMap, mut body: RecvStream, bytes_max: usize) -> Result<Bytes, Status> {
    let mut bytes = Bytes::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| lost(&error))?;
        // Fails only if the connection is gone, which the next read reports.
        let _ = body.flow_control().release_capacity(data.len());
        if bytes.len() + data.len() > bytes_max {
            return Err(Status::out_of_range(format!("an answer has more than {bytes_max} bytes")));
        }
        bytes = if bytes.is_empty() { data } else { [bytes, data].concat().into() };
    }
    let trailers = body.trailers().await.map_err(|error| lost(&error))?;
    let status =
        trailers.as_ref().and_then(Status::from_header_map).or_else(|| Status::from_header_map(head));
    let status = status.unwrap_or_else(|| Status::unknown("the answer has no status"));
    if status.code() != Code::Ok {
        return Err(status);
    }
    match bytes.get(..PREFIX_BYTES) {
        Some([0, length @ ..]) if length == ((bytes.len() - PREFIX_BYTES) as u32).to_be_bytes() => {
            Ok(bytes.slice(PREFIX_BYTES..))
        }
        _ => Err(Status::internal("the answer is not one message, uncompressed")),
    }
}

fn lost(error: &h2::Error) -> Status {
    let code = match error.reason() {
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        _ => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}
