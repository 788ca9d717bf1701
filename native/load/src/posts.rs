//! Posts: HTTP/1.1 requests over kept connections, with bodies that are already encoded. Knows no schedule.
//!
//! A connection carries one request at a time, so there are as many as open requests, up to a bound; a
//! request that finds none free waits, and its latency includes the wait.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderValue;
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Code;

use super::calls::{Answered, CallsSettings, Message};

const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 64;
const READ_BYTES: usize = 16 << 10;
/// The maximum length of a refusal's quoted text.
const QUOTED_BYTES_MAX: usize = 300;

/// Connections to a node; a lost one is replaced by the next call.
#[derive(Clone)]
pub struct Posts(Arc<PostPool>);

struct PostPool {
    settings: CallsSettings,
    /// The request head up to the length of the body.
    head: String,
    free: Mutex<Vec<Line>>,
    slots: Semaphore,
}

impl fmt::Debug for Posts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostPool { settings, .. } = &*self.0;
        write!(formatter, "up to {} connections to {}", settings.connections, settings.address)
    }
}

impl Posts {
    /// Opens the first connection to a node.
    ///
    /// # Errors
    /// The reason why it failed.
    pub async fn connect(settings: &CallsSettings, path: &str) -> Result<Self, String> {
        let path: PathAndQuery = path.parse().map_err(|error| format!("{path:?} is not a path: {error}"))?;
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: {}\r\n", settings.address);
        if let Some(token) = &settings.token {
            let token = HeaderValue::from_str(token).ok();
            let token = token.as_ref().and_then(|token| token.to_str().ok());
            let token = token.ok_or("the token has characters that a header cannot contain")?;
            head += &format!("authorization: Bearer {token}\r\n");
        }
        let first = connection(settings).await?;
        Ok(Self(Arc::new(PostPool {
            settings: settings.clone(),
            head,
            free: Mutex::new(vec![first]),
            slots: Semaphore::new(settings.connections),
        })))
    }

    /// Encodes a request with a body.
    #[must_use]
    pub fn message(&self, body: &[u8]) -> Message {
        let kind = if body.first() == Some(&b'{') { "application/json" } else { "application/octet-stream" };
        let head = format!("{}content-type: {kind}\r\ncontent-length: {}\r\n\r\n", self.0.head, body.len());
        Message::unframed([head.as_bytes(), body].concat().into())
    }

    /// Sends a message over a free connection. HTTP has no header for a deadline, so the node does not see
    /// it.
    pub async fn call(
        &self,
        message: Message,
        deadline: Option<Duration>,
        answer_wait_max: Duration,
    ) -> Answered {
        match timeout(deadline.unwrap_or(answer_wait_max), self.0.ask(message)).await {
            Ok(Ok((200, body))) => Answered::With(body),
            Ok(Ok((status, body))) => {
                let text = String::from_utf8_lossy(&body[..body.len().min(QUOTED_BYTES_MAX)]).into_owned();
                Answered::Refused(code_of(status), format!("HTTP status {status}: {text}"))
            }
            Ok(Err(text)) => Answered::Refused(Code::Unavailable, text),
            Err(_) if deadline.is_some() => {
                Answered::Refused(Code::DeadlineExceeded, "no answer within the deadline".to_owned())
            }
            Err(_) => Answered::Nothing,
        }
    }
}

/// Returns the gRPC code that corresponds to an HTTP status.
fn code_of(status: u16) -> Code {
    match status {
        400 | 413 | 422 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        408 | 504 => Code::DeadlineExceeded,
        412 => Code::FailedPrecondition,
        429 => Code::ResourceExhausted,
        500 => Code::Internal,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

impl PostPool {
    /// Returns the status and body of an answer. A cancelled call drops its connection with everything on it.
    async fn ask(&self, message: Message) -> Result<(u16, Bytes), String> {
        let _slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
        let bytes = message.bytes();
        let free_connection = self.free().pop();
        if let Some(mut connection) = free_connection {
            match connection.exchange(&bytes, self.settings.answer_bytes_max).await {
                // The node closed it while it was idle.
                Err(_) if connection.is_silent => {}
                answered => return self.keep(connection, answered),
            }
        }
        let mut new_connection = connection(&self.settings).await?;
        let answered = new_connection.exchange(&bytes, self.settings.answer_bytes_max).await;
        self.keep(new_connection, answered)
    }

    fn keep(&self, connection: Line, answered: Result<(u16, Bytes), String>) -> Result<(u16, Bytes), String> {
        if answered.is_ok() && connection.is_kept {
            self.free().push(connection);
        }
        answered
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn connection(settings: &CallsSettings) -> Result<Line, String> {
    let made = timeout(settings.connect_wait_max, TcpStream::connect(&settings.address)).await;
    let socket = made.map_err(|_| "no connection within the bound".to_owned())?;
    let socket = socket.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(Line { socket, read: BytesMut::with_capacity(READ_BYTES), is_silent: true, is_kept: true })
}

/// A connection.
struct Line {
    socket: TcpStream,
    /// Bytes that were read but not parsed.
    read: BytesMut,
    /// Whether nothing was received since the last request.
    is_silent: bool,
    /// Whether another request may be sent on it.
    is_kept: bool,
}

/// The head of an answer.
struct PostHead {
    status: u16,
    bytes: usize,
    body: Length,
    is_kept: bool,
}

/// The length of a body.
enum Length {
    Known(usize),
    Chunked,
    ToEnd,
}

impl Line {
    async fn exchange(&mut self, request: &[u8], bytes_max: usize) -> Result<(u16, Bytes), String> {
        self.is_silent = true;
        self.socket.write_all(request).await.map_err(|error| error.to_string())?;
        let head = loop {
            match head_of(&self.read)? {
                // An informational response before the final one.
                Some(head) if head.status < 200 => self.read.advance(head.bytes),
                Some(head) => break head,
                None if self.read.len() > HEAD_BYTES_MAX => {
                    return Err("the answer's head is too long".into());
                }
                None if self.more().await? => {}
                None => return Err("the connection was closed before an answer".into()),
            }
        };
        self.read.advance(head.bytes);
        let body = match head.body {
            Length::Known(length) if length > bytes_max => return Err(too_long(bytes_max)),
            Length::Known(length) => self.known(length).await?,
            Length::Chunked => self.chunks(bytes_max).await?,
            Length::ToEnd => self.until_end(bytes_max).await?,
        };
        self.is_kept = head.is_kept && self.read.is_empty();
        Ok((head.status, body))
    }

    /// Reads more bytes; returns false at the end.
    async fn more(&mut self) -> Result<bool, String> {
        self.read.reserve(READ_BYTES);
        let count = self.socket.read_buf(&mut self.read).await.map_err(|error| error.to_string())?;
        self.is_silent &= count == 0;
        Ok(count > 0)
    }

    async fn known(&mut self, length: usize) -> Result<Bytes, String> {
        while self.read.len() < length {
            if !self.more().await? {
                return Err(format!("the answer ended after {} of {length} bytes", self.read.len()));
            }
        }
        Ok(self.read.split_to(length).freeze())
    }

    async fn chunks(&mut self, bytes_max: usize) -> Result<Bytes, String> {
        let mut body = BytesMut::new();
        loop {
            let size = httparse::parse_chunk_size(&self.read).map_err(|_| "a chunk without a length")?;
            let httparse::Status::Complete((begin, length)) = size else {
                if self.read.len() > HEAD_BYTES_MAX || !self.more().await? {
                    return Err("a chunk's length is incomplete".into());
                }
                continue;
            };
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > bytes_max - body.len() {
                return Err(too_long(bytes_max));
            }
            self.read.advance(begin);
            if length == 0 {
                return self.trailers().await.map(|()| body.freeze());
            }
            body.extend_from_slice(&self.known(length).await?);
            if self.known(2).await? != "\r\n" {
                return Err("a chunk is longer than its stated length".into());
            }
        }
    }

    /// Skips the lines after the last chunk, up to an empty one.
    async fn trailers(&mut self) -> Result<(), String> {
        let mut bytes = 0;
        loop {
            let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") else {
                if bytes + self.read.len() > HEAD_BYTES_MAX || !self.more().await? {
                    return Err("the answer's trailers are incomplete".into());
                }
                continue;
            };
            self.read.advance(end + 2);
            bytes += end + 2;
            if end == 0 {
                return Ok(());
            }
        }
    }

    async fn until_end(&mut self, bytes_max: usize) -> Result<Bytes, String> {
        while self.more().await? {
            if self.read.len() > bytes_max {
                return Err(too_long(bytes_max));
            }
        }
        Ok(self.read.split().freeze())
    }
}

fn too_long(bytes_max: usize) -> String {
    format!("an answer has more than {bytes_max} bytes")
}

/// Parses the head of an answer; `None` while it is incomplete.
fn head_of(read: &[u8]) -> Result<Option<PostHead>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(read).map_err(|error| format!("invalid HTTP response: {error}"))?;
    let httparse::Status::Complete(bytes) = parsed else { return Ok(None) };
    let status = response.code.unwrap_or_default();
    let (mut length, mut is_chunked, mut is_kept) = (None, false, response.version == Some(1));
    for header in response.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            let bytes: usize = value.parse().map_err(|_| format!("invalid content-length {value:?}"))?;
            length = Some(bytes);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = value.eq_ignore_ascii_case("chunked");
        } else if header.name.eq_ignore_ascii_case("connection") {
            is_kept = if is_kept {
                !value.eq_ignore_ascii_case("close")
            } else {
                value.eq_ignore_ascii_case("keep-alive")
            };
        }
    }
    let body = match length {
        _ if status < 200 || status == 204 || status == 304 => Length::Known(0),
        _ if is_chunked => Length::Chunked,
        Some(length) => Length::Known(length),
        None => Length::ToEnd,
    };
    is_kept &= !matches!(body, Length::ToEnd);
    Ok(Some(PostHead { status, bytes, body, is_kept }))
}
