//! Calls: connections to a node, and messages that were encoded before sent over them. It knows no schedule.
//!
//! gRPC is spoken on HTTP/2's frames themselves: what a general client does around them is CPU that the node beside would lack.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, TE};
use http::uri::Uri;
use http::{HeaderMap, Method, Request, Version};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::{Code, Status};

/// The method of the Open Inference Protocol that is called.
pub const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// What servers on tonic say with CANCELLED when the deadline has passed.
const LATE: &str = "Timeout expired";

/// Where calls go.
#[derive(Debug, Clone)]
pub struct CallsSettings {
    /// `HOST:PORT` of the node.
    pub address: String,
    /// How many connections there are, which calls take by turns; of HTTP/1.1 how many there are at most.
    pub connections: usize,
    /// What the node wants to be told to let a caller in.
    pub token: Option<String>,
    /// How long a connection may take.
    pub connect_wait_max: Duration,
    /// How long an answer may be.
    pub answer_bytes_max: usize,
}

/// A message as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(Bytes);

impl Message {
    /// Of its bytes.
    ///
    /// # Errors
    /// It is longer than four bytes can say.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| format!("a message has {} bytes", bytes.len()))?;
        let mut framed = BytesMut::with_capacity(PREFIX_BYTES + bytes.len());
        framed.put_u8(0);
        framed.put_u32(length);
        framed.put_slice(bytes);
        Ok(Self(framed.freeze()))
    }

    /// As it is.
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// As it travels.
    pub(super) fn bytes(self) -> Bytes {
        self.0
    }
}

/// Connections to a node; one that is lost is made again by the next call.
#[derive(Clone)]
pub struct Calls {
    lines: Arc<[Line]>,
    settings: Arc<CallsSettings>,
    uri: Uri,
    token: Option<HeaderValue>,
}

type Line = Mutex<Opened>;

/// The connection that is open, if one is, and how many there were.
struct Opened {
    count: u64,
    sender: Option<SendRequest<Bytes>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} connections to {}", self.lines.len(), self.settings.address)
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// An answer.
    With(Bytes),
    /// A refusal, by the node or on the way to it.
    Refused(Code, String),
    /// Nothing, for as long as was waited.
    Nothing,
}

impl Calls {
    /// Connections to a node, all made.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect(settings: &CallsSettings) -> Result<Self, String> {
        let token = settings.token.as_ref().map(|token| format!("Bearer {token}").parse());
        let token = token.transpose().map_err(|_| "the token holds what no header can".to_owned())?;
        let uri = format!("http://{}{METHOD}", settings.address).parse();
        let uri = uri.map_err(|error| format!("{:?} is not an address: {error}", settings.address))?;
        let mut lines = Vec::with_capacity(settings.connections);
        for _ in 0..settings.connections {
            lines.push(Mutex::new(Opened { count: 1, sender: Some(connection(settings).await?) }));
        }
        Ok(Self { lines: lines.into(), settings: Arc::new(settings.clone()), uri, token })
    }

    /// Send a message by the connection whose turn it is.
    pub async fn call(
        &self,
        turn: usize,
        message: Message,
        deadline: Option<Duration>,
        answer_wait_max: Duration,
    ) -> Answered {
        let line = &self.lines[turn % self.lines.len()];
        match timeout(deadline.unwrap_or(answer_wait_max), self.ask(line, message, deadline)).await {
            Ok(Ok(answer)) => Answered::With(answer),
            Ok(Err(status)) if status.code() == Code::Cancelled && status.message() == LATE => {
                Answered::Refused(Code::DeadlineExceeded, LATE.to_owned())
            }
            Ok(Err(status)) => Answered::Refused(status.code(), status.message().to_owned()),
            Err(_) if deadline.is_some() => Answered::Refused(Code::DeadlineExceeded, LATE.to_owned()),
            Err(_) => Answered::Nothing,
        }
    }

    async fn ask(&self, line: &Line, message: Message, deadline: Option<Duration>) -> Result<Bytes, Status> {
        let (count, sender) = self.sender(line, 0).await?;
        let mut sender = match sender.ready().await {
            Ok(sender) => sender,
            // It was lost before anything was sent by it, so another does as well.
            Err(_) => self.sender(line, count).await?.1.ready().await.map_err(|error| lost(&error))?,
        };
        let (answer, mut body) =
            sender.send_request(self.head(deadline), false).map_err(|error| lost(&error))?;
        body.send_data(message.0, true).map_err(|error| lost(&error))?;
        let (head, body) = answer.await.map_err(|error| lost(&error))?.into_parts();
        if head.status != http::StatusCode::OK {
            return Err(Status::unknown(format!("HTTP status {}", head.status)));
        }
        read(&head.headers, body, self.settings.answer_bytes_max).await
    }

    /// The connection, and its number; another one where that of `gone` is the last.
    async fn sender(&self, line: &Line, gone: u64) -> Result<(u64, SendRequest<Bytes>), Status> {
        let mut open = line.lock().await;
        if open.count == gone {
            open.sender = None;
        }
        let sender = match &open.sender {
            Some(sender) => sender.clone(),
            None => {
                let sender = connection(&self.settings).await.map_err(Status::unavailable)?;
                open.count += 1;
                open.sender.insert(sender).clone()
            }
        };
        Ok((open.count, sender))
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
            // Eight digits at most, as gRPC has it.
            let ms = deadline.as_millis().min(99_999_999);
            let said = HeaderValue::from_str(&format!("{ms}m"));
            headers.insert("grpc-timeout", said.unwrap_or_else(|_| unreachable!("digits are a header")));
        }
        request
    }
}

async fn connection(settings: &CallsSettings) -> Result<SendRequest<Bytes>, String> {
    let made = timeout(settings.connect_wait_max, async {
        let socket = TcpStream::connect(&settings.address).await.map_err(|error| error.to_string())?;
        socket.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut builder = Builder::new();
        builder.initial_window_size(STREAM_WINDOW_BYTES).enable_push(false);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        builder.handshake(socket).await.map_err(|error| error.to_string())
    });
    let (sender, driven) = made.await.map_err(|_| "no connection within the bound".to_owned())??;
    // How it ends is told to every call that is on it.
    tokio::spawn(async move { drop(driven.await) });
    Ok(sender)
}

/// The message and the status of an answer.
async fn read(head: &HeaderMap, mut body: RecvStream, bytes_max: usize) -> Result<Bytes, Status> {
    let mut whole = Bytes::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| lost(&error))?;
        // Refused only when the connection is gone, which the next read says.
        let _ = body.flow_control().release_capacity(data.len());
        if whole.len() + data.len() > bytes_max {
            return Err(Status::out_of_range(format!("an answer has more than {bytes_max} bytes")));
        }
        whole = if whole.is_empty() { data } else { [whole, data].concat().into() };
    }
    let trailers = body.trailers().await.map_err(|error| lost(&error))?;
    let status =
        trailers.as_ref().and_then(Status::from_header_map).or_else(|| Status::from_header_map(head));
    let status = status.unwrap_or_else(|| Status::unknown("the answer has no status"));
    if status.code() != Code::Ok {
        return Err(status);
    }
    match whole.get(..PREFIX_BYTES) {
        Some([0, length @ ..]) if length == ((whole.len() - PREFIX_BYTES) as u32).to_be_bytes() => {
            Ok(whole.slice(PREFIX_BYTES..))
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
