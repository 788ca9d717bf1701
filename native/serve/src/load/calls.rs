//! Calls: connections to a node, and messages that were encoded before sent over them. It knows no schedule.

use std::error::Error;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// The method of the Open Inference Protocol that is called.
pub const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";

const LATE: &str = "Timeout expired";

/// Where calls go.
#[derive(Debug, Clone)]
pub struct CallsSettings {
    /// `HOST:PORT` of the node.
    pub address: String,
    /// How many connections there are; calls take them by turns.
    pub connections: usize,
    /// What the node wants to be told to let a caller in.
    pub token: Option<String>,
    /// How long a connection may take.
    pub connect_wait_max: Duration,
    /// How long an answer may be.
    pub answer_bytes_max: usize,
}

/// Connections to a node.
#[derive(Debug, Clone)]
pub struct Calls {
    lines: Vec<Grpc<Channel>>,
    token: Option<MetadataValue<Ascii>>,
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
        let endpoint = Endpoint::from_shared(format!("http://{}", settings.address))
            .map_err(|error| format!("{:?} is no address: {}", settings.address, chain(&error)))?
            .connect_timeout(settings.connect_wait_max)
            .tcp_nodelay(true);
        let mut lines = Vec::with_capacity(settings.connections);
        for _ in 0..settings.connections {
            let channel = endpoint.connect().await.map_err(|error| chain(&error))?;
            lines.push(Grpc::new(channel).max_decoding_message_size(settings.answer_bytes_max));
        }
        Ok(Self { lines, token })
    }

    /// Send a message by the connection whose turn it is.
    pub async fn call(
        &self,
        turn: usize,
        message: Bytes,
        deadline: Option<Duration>,
        answer_wait_max: Duration,
    ) -> Answered {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let line = self.lines[turn % self.lines.len()].clone();
        let Some(deadline) = deadline else {
            let waited = tokio::time::timeout(answer_wait_max, send(line, request)).await;
            return waited.unwrap_or(Answered::Nothing);
        };
        request.set_timeout(deadline); // kept on this side too
        send(line, request).await
    }
}

async fn send(mut line: Grpc<Channel>, request: Request<Bytes>) -> Answered {
    if let Err(error) = line.ready().await {
        return Answered::Refused(Code::Unavailable, chain(&error));
    }
    match line.unary(request, PathAndQuery::from_static(METHOD), Plain).await {
        Ok(answer) => Answered::With(answer.into_inner()),
        // Either side's tonic says by this that the deadline has passed.
        Err(status) if status.code() == Code::Cancelled && status.message() == LATE => {
            Answered::Refused(Code::DeadlineExceeded, LATE.to_owned())
        }
        Err(status) => Answered::Refused(status.code(), said(&status)),
    }
}

fn said(status: &Status) -> String {
    match status.source() {
        Some(source) => format!("{}: {}", status.message(), chain(source)),
        None => status.message().to_owned(),
    }
}

/// An error and what lies behind it, each once.
fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        next = error.source();
    }
    said
}

/// Bytes in, bytes out.
#[derive(Debug, Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
