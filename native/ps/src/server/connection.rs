//! A connection: the handshake, then requests one after another. A misbehaving peer affects only its own
//! connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ServerCore;
use super::listen::Socket;
use super::orders::{Answer, OrderSender};
use super::peers::{Ending, Entry};
use super::slices::Parked;
use crate::address::Stream;
use crate::frame::{FrameError, HEADER_BYTES, Kind, REPLY, encode};
use crate::intake::{Frame, Intake};
use crate::message::{HelloAsk, HelloReply, order_of, refusal_payload};
use crate::refusal::{Code, Refusal};
use crate::stats::{Tally, Verb};

/// The largest payload before the handshake.
pub const HELLO_BYTES_MAX: u32 = 4 << 10;
/// Bytes of a frame without its payload.
const FRAME_OVERHEAD_BYTES: usize = HEADER_BYTES + 4;

/// Why a connection ends, or why a request was not answered.
pub enum End {
    /// The request is refused; the connection continues.
    Refused(Refusal),
    /// The connection ends, and the peer gets the reason.
    Told(Refusal),
    /// The connection ends silently: the peer has gone, was too slow, or must be closed.
    Gone,
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        let code = if let FrameError::Large { .. } = error { Code::TooLarge } else { Code::BadFrame };
        Self::Told(Refusal::new(code, error.to_string()))
    }
}

/// A received request.
struct Request {
    frame: Frame,
    /// The request's share of the bytes in flight; released after the answer.
    permit: Option<OwnedSemaphorePermit>,
}

/// One peer.
pub struct Connection<'a> {
    pub(super) core: &'a ServerCore,
    pub(super) entry: Entry<'a>,
    pub(super) client: u128,
    /// Whether the client may change nothing.
    reads_only: bool,
    /// The peer's address, for logs.
    peer_address: String,
    stream: Box<dyn Stream>,
    intake: Intake,
    /// The time of the last received byte.
    last_byte_at: Instant,
    /// When the frame being received began.
    frame_began_at: Option<Instant>,
    permit: Option<OwnedSemaphorePermit>,
    answers: UnboundedReceiver<Answer>,
    asks: UnboundedSender<Answer>,
    /// Unanswered orders of this peer.
    orders: usize,
    /// Reduces that wait for slices; each ends when it can be answered.
    pub(super) parked: JoinSet<Parked>,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        if self.orders > 0 {
            self.core.orders.forget(self.entry.id);
        }
    }
}

/// Serves a peer until its connection ends.
pub async fn serve(core: Arc<ServerCore>, socket: Socket) {
    let peer_address = socket.peer();
    let Some(entry) = core.peers.enter(core.limits.connections_max) else {
        let text = format!(
            "the limit of {} connections is reached, or the shard is stopping",
            core.limits.connections_max
        );
        let refusal = Refusal::new(Code::TooMany, text);
        core.meter.refuse(refusal.code);
        core.notes.add(&peer_address, refusal.to_string());
        if core.tls.is_none() || !socket.is_tcp() {
            socket.say_last(&encode(Kind::Error, REPLY, 0, &refusal_payload(&refusal)));
        }
        return;
    };
    let peer = entry.peer.clone();
    let hello_wait = Duration::from_millis(core.limits.hello_wait_ms_max);
    let opening = timeout(hello_wait, open(&core, (socket, peer_address.clone()), entry));
    let opened = tokio::select! {
        biased;
        () = peer.ends(Ending::Drain) => {
            if peer.is_ending(Ending::GiveWay) {
                let refusal = Refusal::new(Code::TooMany, "closed before its hello to make room for a new connection");
                core.refuse(&refusal);
                core.notes.add(&peer_address, refusal.to_string());
            }
            return;
        }
        opened = opening => opened,
    };
    let Ok(Some(mut connection)) = opened else { return };
    if let End::Told(refusal) | End::Refused(refusal) = connection.talk().await {
        connection.tell(&refusal).await;
    }
}

/// Performs the TLS and protocol handshakes.
async fn open<'a>(
    core: &'a ServerCore,
    (socket, peer_address): (Socket, String),
    entry: Entry<'a>,
) -> Option<Connection<'a>> {
    let tls = core.tls.as_ref().filter(|_| socket.is_tcp());
    let mut stream = socket.into_stream().ok()?;
    if let Some(acceptor) = tls {
        stream = match acceptor.now().accept(stream).await {
            Ok(stream) => Box::new(stream),
            Err(error) => {
                core.notes.add(&peer_address, format!("TLS: {error}"));
                return None;
            }
        };
    }
    let (asks, answers) = unbounded_channel();
    let mut connection = Connection {
        core,
        entry,
        client: 0,
        reads_only: false,
        peer_address,
        stream,
        intake: Intake::new(HELLO_BYTES_MAX),
        last_byte_at: Instant::now(),
        frame_began_at: None,
        permit: None,
        answers,
        asks,
        orders: 0,
        parked: JoinSet::new(),
    };
    match connection.hello().await {
        Ok(()) => {
            connection.intake.set_bytes_max(core.limits.frame_bytes_max);
            Some(connection)
        }
        Err(End::Told(refusal) | End::Refused(refusal)) => {
            if refusal.code == Code::Unauthorized {
                sleep(Duration::from_millis(core.limits.token_wait_ms)).await;
            }
            connection.tell(&refusal).await;
            None
        }
        Err(End::Gone) => None,
    }
}

impl Connection<'_> {
    async fn hello(&mut self) -> Result<(), End> {
        let Request { frame, .. } = self.receive().await?;
        let began = Instant::now();
        let Frame { header, payload } = frame;
        if header.kind != Kind::Hello || header.flags != 0 {
            let text = format!("the first frame is {:?}, expected Hello", header.kind);
            return Err(End::Told(Refusal::new(Code::BadFrame, text)));
        }
        let reply = self.judge(&payload).map_err(End::Told)?.to_payload();
        self.entry.admit(self.client);
        let bytes_out = self.send(Kind::Hello, header.request, &reply).await?;
        let tally = Tally { bytes_in: payload.len() as u64, bytes_out, ..Tally::default() };
        self.core.meter.count(Verb::Hello, began.elapsed(), tally);
        Ok(())
    }

    /// Checks a client's hello, and returns the reply.
    fn judge(&mut self, payload: &[u8]) -> Result<HelloReply, Refusal> {
        let ServerCore { shard, token, limits, stage, .. } = self.core;
        let hello = HelloAsk::decode(payload)?;
        if token.as_ref().is_some_and(|token| !token.is(hello.token)) {
            return Err(Refusal::new(Code::Unauthorized, "the token does not match the shard's"));
        }
        if hello.model != shard.model {
            let text =
                format!("the client expects model {:?}, the shard serves {:?}", hello.model, shard.model);
            return Err(Refusal::new(Code::WrongModel, text));
        }
        if hello.fingerprint != shard.fingerprint {
            let hex = |bytes: &[u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (client_hex, shard_hex) = (hex(&hello.fingerprint), hex(&shard.fingerprint));
            let text = format!("the client's tables are {client_hex}, the shard's {shard_hex}");
            return Err(Refusal::new(Code::WrongTables, text).with_detail(shard.specification.clone()));
        }
        stage.check_hello(hello.epoch)?;
        (self.client, self.reads_only) = (hello.client, hello.reads_only);
        if hello.reads_only {
            // Mark the peer before the epoch is read: an install in between then closes this connection.
            self.entry.peer.follow();
        }
        hello.epoch.inspect(|&epoch| self.entry.peer.used_epoch(epoch));
        let (epoch, dims) = stage.epoch_and_dims();
        Ok(HelloReply {
            number: shard.number,
            count: shard.count,
            parts: shard.parts.start as u32..shard.parts.end as u32,
            epoch,
            frame_bytes_max: limits.frame_bytes_max,
            window_max: limits.window_max,
            idle_ms_max: limits.idle_ms_max,
            dims,
        })
    }

    /// Handles requests one after another, and forwards answers to orders as they arrive.
    async fn talk(&mut self) -> End {
        let peer = self.entry.peer.clone();
        loop {
            let is_draining = peer.is_ending(Ending::Drain);
            let is_idle = self.orders == 0 && self.parked.is_empty();
            if is_draining && (is_idle || peer.is_ending(Ending::Close)) {
                return End::Gone;
            }
            let ending = if is_draining { Ending::Close } else { Ending::Drain };
            let (mut answer, mut parked) = (None, None);
            let request = tokio::select! {
                biased;
                () = peer.ends(ending) => continue,
                // Never None: this connection keeps a sender.
                received = self.answers.recv() => { answer = received; None },
                Some(ended) = self.parked.join_next() => { parked = ended.ok(); None },
                request = next_request(
                    self.core, &mut self.stream, &mut self.intake,
                    (&mut self.last_byte_at, &mut self.frame_began_at), &mut self.permit,
                ), if !is_draining => match request {
                    Ok(request) => Some(request),
                    Err(end) => return end,
                },
            };
            let result = match (request, answer, parked) {
                (Some(request), ..) => self.handle(request).await,
                (_, Some(answer), _) => self.forward(answer).await,
                (.., Some(parked)) => self.unpark(parked).await,
                (None, None, None) => Ok(()),
            };
            if let Err(end) = result {
                return end;
            }
        }
    }

    async fn receive(&mut self) -> Result<Request, End> {
        let times = (&mut self.last_byte_at, &mut self.frame_began_at);
        next_request(self.core, &mut self.stream, &mut self.intake, times, &mut self.permit).await
    }

    async fn handle(&mut self, request: Request) -> Result<(), End> {
        let began = Instant::now();
        let Request { frame: Frame { header, payload }, mut permit } = request;
        let bytes_in = payload.len() as u64;
        if header.flags != 0 {
            let text = format!("a request has the unknown flags {:#06x}", header.flags);
            return Err(End::Told(Refusal::new(Code::BadFrame, text)));
        }
        let (verb, result) = match header.kind {
            Kind::Pull => (Verb::Pull, self.pull(header.request, &payload).await),
            kind @ (Kind::Push | Kind::PushPart | Kind::Reduce) if self.reads_only => {
                let text = format!("the client declared that it only reads, but sent a {kind:?}");
                (verb_of(kind), Err(End::Refused(Refusal::new(Code::ReadsOnly, text))))
            }
            kind @ (Kind::Push | Kind::PushPart) => {
                (verb_of(kind), self.push((kind, header.request), &payload).await)
            }
            Kind::Reduce => match self.reduce(header.request, &payload, began).await {
                // Counted when it is answered.
                Ok(None) => {
                    self.core.payloads.give(payload);
                    return Ok(());
                }
                Ok(Some(bytes_out)) => (Verb::Reduce, Ok((0, bytes_out))),
                Err(end) => (Verb::Reduce, Err(end)),
            },
            Kind::Order => match self.order(header.request, &payload, permit.take()) {
                // Counted when it is answered.
                Ok(()) => return Ok(()),
                Err(refusal) => (Verb::Order, Err(End::Refused(refusal))),
            },
            Kind::Ping => (Verb::Ping, self.ping(header.request, &payload).await),
            Kind::Hello | Kind::Error => {
                let text = format!("{:?} is not a request", header.kind);
                return Err(End::Told(Refusal::new(Code::BadFrame, text)));
            }
        };
        self.core.payloads.give(payload);
        self.conclude((verb, header.request), result, began, bytes_in).await
    }

    /// Sends the refusal of a request that was refused, and counts the request.
    pub(super) async fn conclude(
        &mut self,
        (verb, request): (Verb, u64),
        result: Result<(u64, u64), End>,
        began: Instant,
        bytes_in: u64,
    ) -> Result<(), End> {
        let (rows, bytes_out, is_error) = match result {
            Ok((rows, bytes_out)) => (rows, bytes_out, false),
            Err(End::Refused(refusal)) => {
                self.core.refuse(&refusal);
                (0, self.send(Kind::Error, request, &refusal_payload(&refusal)).await?, true)
            }
            Err(end) => return Err(end),
        };
        self.core.meter.count(verb, began.elapsed(), Tally { rows, bytes_in, bytes_out, is_error });
        Ok(())
    }

    async fn ping(&mut self, request: u64, payload: &[u8]) -> Result<(u64, u64), End> {
        if !payload.is_empty() {
            let text = format!("a ping has {} bytes of payload, expected 0", payload.len());
            return Err(Refusal::new(Code::BadRequest, text).into());
        }
        Ok((0, self.send(Kind::Ping, request, &[]).await?))
    }

    fn order(
        &mut self,
        request: u64,
        payload: &[u8],
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Refusal> {
        let (epoch, body) = order_of(payload)?;
        epoch.inspect(|&epoch| self.entry.peer.used_epoch(epoch));
        let (peer, reads_only, answers) = (self.entry.id, self.reads_only, self.asks.clone());
        let sender = OrderSender { peer, request, reads_only, answers };
        self.core.orders.put(sender, (epoch, body.to_vec()), permit)?;
        self.orders += 1;
        Ok(())
    }

    /// Forwards the available answers to orders.
    pub(super) async fn forward_answers(&mut self) -> Result<(), End> {
        while let Ok(answer) = self.answers.try_recv() {
            self.forward(answer).await?;
        }
        Ok(())
    }

    async fn forward(&mut self, answer: Answer) -> Result<(), End> {
        let Answer { request, content, began } = answer;
        self.orders -= 1;
        let bytes_max = self.core.limits.frame_bytes_max as usize;
        let content = content.and_then(|body| {
            let text = format!("the answer has {} bytes: at most {bytes_max}", body.len());
            if body.len() > bytes_max { Err(Refusal::new(Code::TooLarge, text)) } else { Ok(body) }
        });
        let is_error = content.is_err();
        let bytes_out = match content {
            Ok(body) => self.send(Kind::Order, request, &body).await?,
            Err(refusal) => {
                self.core.refuse(&refusal);
                self.send(Kind::Error, request, &refusal_payload(&refusal)).await?
            }
        };
        let tally = Tally { bytes_out, is_error, ..Tally::default() };
        self.core.meter.count(Verb::Order, began.elapsed(), tally);
        Ok(())
    }

    /// Sends a frame, and returns its length.
    pub(super) async fn send(&mut self, kind: Kind, request: u64, payload: &[u8]) -> Result<u64, End> {
        self.write(&encode(kind, REPLY, request, payload)).await?;
        Ok((payload.len() + FRAME_OVERHEAD_BYTES) as u64)
    }

    /// Writes bytes. Fails if the peer takes none for `write_wait_ms_max`.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        let wait = Duration::from_millis(self.core.limits.write_wait_ms_max);
        let peer = self.entry.peer.clone();
        while !bytes.is_empty() {
            let written = tokio::select! {
                biased;
                written = timeout(wait, self.stream.write(bytes)) => written,
                () = peer.ends(Ending::Close) => return Err(End::Gone),
            };
            match written {
                Ok(Ok(count)) if count > 0 => bytes = &bytes[count..],
                _ => return Err(End::Gone),
            }
        }
        // Only buffering streams such as TLS have something to flush.
        match timeout(wait, self.stream.flush()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(End::Gone),
        }
    }

    /// Tells a peer why its connection ends; errors are ignored.
    async fn tell(&mut self, refusal: &Refusal) {
        self.core.refuse(refusal);
        self.core.notes.add(&self.peer_address, refusal.to_string());
        let _ = self.send(Kind::Error, 0, &refusal_payload(refusal)).await;
        let _ =
            timeout(Duration::from_millis(self.core.limits.write_wait_ms_max), self.stream.shutdown()).await;
    }
}

/// The verb of a request that changes something.
fn verb_of(kind: Kind) -> Verb {
    match kind {
        Kind::PushPart => Verb::Part,
        Kind::Reduce => Verb::Reduce,
        _ => Verb::Push,
    }
}

/// Reads the next request. Cancel-safe: bytes of a partial request stay in `intake`.
async fn next_request(
    core: &ServerCore,
    stream: &mut Box<dyn Stream>,
    intake: &mut Intake,
    (last_byte_at, frame_began_at): (&mut Instant, &mut Option<Instant>),
    permit: &mut Option<OwnedSemaphorePermit>,
) -> Result<Request, End> {
    let ms = Duration::from_millis;
    loop {
        if let Some(frame) = intake.take()? {
            *frame_began_at = None;
            return Ok(Request { frame, permit: permit.take() });
        }
        if let Some(bytes) = intake.claimed() {
            let permits = core.in_flight.clone().acquire_many_owned((bytes >> 10) + 1);
            let deadline = frame_began_at.unwrap_or(*last_byte_at) + ms(core.limits.in_flight_wait_ms_max);
            *permit = match timeout_at(deadline, permits).await {
                Ok(permit) => permit.ok(),
                Err(_) => {
                    let text = format!("no room for {bytes} bytes within the limit of bytes in flight");
                    return Err(End::Told(Refusal::new(Code::Busy, text)));
                }
            };
            intake.give(core.payloads.take());
            intake.admit();
            continue;
        }
        let deadline = match *frame_began_at {
            Some(frame_began_at) => frame_began_at + ms(core.limits.frame_wait_ms_max),
            None => *last_byte_at + ms(core.limits.idle_ms_max.into()),
        };
        let (into, count) = intake.room();
        match timeout_at(deadline, stream.read_buf(&mut into.limit(count))).await {
            Ok(Ok(count)) if count > 0 => {
                *last_byte_at = Instant::now();
                frame_began_at.get_or_insert(*last_byte_at);
            }
            _ => return Err(End::Gone),
        }
    }
}
