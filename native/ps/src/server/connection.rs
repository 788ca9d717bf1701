//! A connection: who is there, then its requests one after another. Whatever a peer does, it harms only itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ServerCore;
use super::listen::Socket;
use super::orders::{Answer, Asker};
use super::peers::{Ending, Entry};
use crate::address::Stream;
use crate::frame::{FrameError, HEADER_BYTES, Kind, REPLY, whole};
use crate::intake::{Frame, Intake};
use crate::message::{HelloAsk, HelloReply, order_of, refusal_payload};
use crate::refusal::{Code, Refusal};
use crate::stats::{Tally, Verb};

/// Largest payload before a peer has said who it is.
pub const HELLO_BYTES_MAX: u32 = 4 << 10;
/// Bytes of a frame beyond its payload.
const FRAME_OVERHEAD_BYTES: usize = HEADER_BYTES + 4;

/// Why a connection ends, or a request was not answered.
pub enum End {
    /// The request is refused; the connection goes on.
    Refused(Refusal),
    /// The connection is told why it ends.
    Told(Refusal),
    /// It ends: the peer has gone, was too slow, or is to be closed.
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

/// A request that has arrived.
struct Request {
    frame: Frame,
    /// What its bytes take of what may be in flight; let go of after it was answered.
    permit: Option<OwnedSemaphorePermit>,
}

/// One peer.
pub struct Connection<'a> {
    pub(super) core: &'a ServerCore,
    pub(super) entry: Entry<'a>,
    pub(super) client: u128,
    /// Whether it may change nothing.
    reads_only: bool,
    /// Where it came from.
    from: String,
    stream: Box<dyn Stream>,
    intake: Intake,
    /// When the last byte came.
    heard: Instant,
    /// When the frame that is arriving began to.
    began: Option<Instant>,
    permit: Option<OwnedSemaphorePermit>,
    answers: UnboundedReceiver<Answer>,
    asks: UnboundedSender<Answer>,
    /// Orders of this peer that are not answered.
    orders: usize,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        if self.orders > 0 {
            self.core.orders.forget(self.entry.id);
        }
    }
}

/// Serve a peer until it ends.
pub async fn serve(core: Arc<ServerCore>, socket: Socket) {
    let from = socket.peer();
    let Some(entry) = core.peers.enter(core.limits.connections_max) else {
        let text = format!(
            "{} connections, the most there may be, or the shard is stopping",
            core.limits.connections_max
        );
        let refusal = Refusal::new(Code::TooMany, text);
        core.meter.refuse(refusal.code);
        core.notes.add(&from, refusal.to_string());
        if core.tls.is_none() || !socket.is_tcp() {
            socket.say_last(&whole(Kind::Error, REPLY, 0, &refusal_payload(&refusal)));
        }
        return;
    };
    let peer = entry.peer.clone();
    let hello_wait = Duration::from_millis(core.limits.hello_wait_ms_max);
    let opening = timeout(hello_wait, open(&core, (socket, from.clone()), entry));
    let opened = tokio::select! {
        biased;
        () = peer.ends(Ending::Drain) => {
            if peer.is_ending(Ending::GiveWay) {
                let refusal = Refusal::new(Code::TooMany, "it gave way to a new connection before its hello");
                core.refuse(&refusal);
                core.notes.add(&from, refusal.to_string());
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

/// Make a connection private if it is to be, and hear who is there.
async fn open<'a>(
    core: &'a ServerCore,
    (socket, from): (Socket, String),
    entry: Entry<'a>,
) -> Option<Connection<'a>> {
    let tls = core.tls.as_ref().filter(|_| socket.is_tcp());
    let mut stream = socket.into_stream().ok()?;
    if let Some(acceptor) = tls {
        stream = match acceptor.accept(stream).await {
            Ok(stream) => Box::new(stream),
            Err(error) => {
                core.notes.add(&from, format!("TLS: {error}"));
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
        from,
        stream,
        intake: Intake::new(HELLO_BYTES_MAX),
        heard: Instant::now(),
        began: None,
        permit: None,
        answers,
        asks,
        orders: 0,
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
            let text = format!("the first frame is {:?}: say hello first", header.kind);
            return Err(End::Told(Refusal::new(Code::BadFrame, text)));
        }
        let reply = self.judge(&payload).map_err(End::Told)?.to_payload();
        self.entry.admit();
        let bytes_out = self.send(Kind::Hello, header.request, &reply).await?;
        let tally = Tally { bytes_in: payload.len() as u64, bytes_out, ..Tally::default() };
        self.core.meter.count(Verb::Hello, began.elapsed(), tally);
        Ok(())
    }

    /// Whether who is there may come in, and what it is to know.
    fn judge(&mut self, payload: &[u8]) -> Result<HelloReply, Refusal> {
        let ServerCore { shard, token, limits, stage, .. } = self.core;
        let ask = HelloAsk::decode(payload)?;
        if token.as_ref().is_some_and(|token| !token.is(ask.token)) {
            return Err(Refusal::new(Code::Unauthorized, "the token is not the shard's"));
        }
        if ask.model != shard.model {
            let text = format!("the client is of model {:?}, the shard of {:?}", ask.model, shard.model);
            return Err(Refusal::new(Code::WrongModel, text));
        }
        if ask.fingerprint != shard.fingerprint {
            let hex = |bytes: &[u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (said, is) = (hex(&ask.fingerprint), hex(&shard.fingerprint));
            let text = format!("the client's tables are {said}, the shard's {is}");
            return Err(Refusal::new(Code::WrongTables, text).with_detail(shard.specification.clone()));
        }
        stage.check_hello(ask.epoch)?;
        (self.client, self.reads_only) = (ask.client, ask.reads_only);
        if ask.reads_only {
            // Before it is looked which epoch that is: one that comes in between closes this connection.
            self.entry.peer.follow();
        }
        ask.epoch.inspect(|&epoch| self.entry.peer.speaks_of(epoch));
        let (epoch, dims) = stage.stands_at();
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

    /// Requests one after another, and answers to orders as they come.
    async fn talk(&mut self) -> End {
        let peer = self.entry.peer.clone();
        loop {
            let is_draining = peer.is_ending(Ending::Drain);
            if is_draining && (self.orders == 0 || peer.is_ending(Ending::Close)) {
                return End::Gone;
            }
            let ending = if is_draining { Ending::Close } else { Ending::Drain };
            let mut answer = None;
            let request = tokio::select! {
                biased;
                () = peer.ends(ending) => continue,
                // Never None: a sender is kept.
                one = self.answers.recv() => { answer = one; None },
                request = next_request(
                    self.core, &mut self.stream, &mut self.intake,
                    (&mut self.heard, &mut self.began), &mut self.permit,
                ), if !is_draining => match request {
                    Ok(request) => Some(request),
                    Err(end) => return end,
                },
            };
            let worked = match (request, answer) {
                (Some(request), _) => self.handle(request).await,
                (None, Some(answer)) => self.pass_on(answer).await,
                (None, None) => Ok(()),
            };
            if let Err(end) = worked {
                return end;
            }
        }
    }

    async fn receive(&mut self) -> Result<Request, End> {
        let times = (&mut self.heard, &mut self.began);
        next_request(self.core, &mut self.stream, &mut self.intake, times, &mut self.permit).await
    }

    async fn handle(&mut self, request: Request) -> Result<(), End> {
        let began = Instant::now();
        let Request { frame: Frame { header, payload }, mut permit } = request;
        let bytes_in = payload.len() as u64;
        if header.flags != 0 {
            let text = format!("a request of flags {:#06x}", header.flags);
            return Err(End::Told(Refusal::new(Code::BadFrame, text)));
        }
        let (verb, worked) = match header.kind {
            Kind::Pull => (Verb::Pull, self.pull(header.request, &payload).await),
            Kind::Push if self.reads_only => {
                let text = "the client said that it only reads, and asks for a push";
                (Verb::Push, Err(End::Refused(Refusal::new(Code::ReadsOnly, text))))
            }
            Kind::Push => (Verb::Push, self.push(header.request, &payload).await),
            Kind::Order => match self.order(header.request, &payload, permit.take()) {
                // It is counted when it is answered.
                Ok(()) => return Ok(()),
                Err(refusal) => (Verb::Order, Err(End::Refused(refusal))),
            },
            Kind::Ping => (Verb::Ping, self.ping(header.request, &payload).await),
            Kind::Hello | Kind::Error => {
                let text = format!("{:?} is not a request", header.kind);
                return Err(End::Told(Refusal::new(Code::BadFrame, text)));
            }
        };
        let (rows, bytes_out, is_error) = match worked {
            Ok((rows, bytes_out)) => (rows, bytes_out, false),
            Err(End::Refused(refusal)) => {
                self.core.refuse(&refusal);
                (0, self.send(Kind::Error, header.request, &refusal_payload(&refusal)).await?, true)
            }
            Err(end) => return Err(end),
        };
        self.core.payloads.give(payload);
        self.core.meter.count(verb, began.elapsed(), Tally { rows, bytes_in, bytes_out, is_error });
        Ok(())
    }

    async fn ping(&mut self, request: u64, payload: &[u8]) -> Result<(u64, u64), End> {
        if !payload.is_empty() {
            let text = format!("a ping of {} bytes: it has none", payload.len());
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
        epoch.inspect(|&epoch| self.entry.peer.speaks_of(epoch));
        let (peer, reads_only, answers) = (self.entry.id, self.reads_only, self.asks.clone());
        let asker = Asker { peer, request, reads_only, answers };
        self.core.orders.put(asker, (epoch, body.to_vec()), permit)?;
        self.orders += 1;
        Ok(())
    }

    /// Pass on the answers to orders that are there.
    pub(super) async fn pass_on_all(&mut self) -> Result<(), End> {
        while let Ok(answer) = self.answers.try_recv() {
            self.pass_on(answer).await?;
        }
        Ok(())
    }

    async fn pass_on(&mut self, answer: Answer) -> Result<(), End> {
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

    /// Send a frame. Gives its bytes.
    pub(super) async fn send(&mut self, kind: Kind, request: u64, payload: &[u8]) -> Result<u64, End> {
        self.write(&whole(kind, REPLY, request, payload)).await?;
        Ok((payload.len() + FRAME_OVERHEAD_BYTES) as u64)
    }

    /// Write bytes to a peer that takes some of them now and then.
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
        // Only what keeps bytes back, as TLS does, has anything to do here.
        match timeout(wait, self.stream.flush()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(End::Gone),
        }
    }

    /// Tell a peer why its connection ends; whether it hears it is no matter.
    async fn tell(&mut self, refusal: &Refusal) {
        self.core.refuse(refusal);
        self.core.notes.add(&self.from, refusal.to_string());
        let _ = self.send(Kind::Error, 0, &refusal_payload(refusal)).await;
        let _ =
            timeout(Duration::from_millis(self.core.limits.write_wait_ms_max), self.stream.shutdown()).await;
    }
}

/// The next request. May be dropped at any time: what has arrived of it stays.
async fn next_request(
    core: &ServerCore,
    stream: &mut Box<dyn Stream>,
    intake: &mut Intake,
    (heard, began): (&mut Instant, &mut Option<Instant>),
    permit: &mut Option<OwnedSemaphorePermit>,
) -> Result<Request, End> {
    let ms = Duration::from_millis;
    loop {
        if let Some(frame) = intake.take()? {
            *began = None;
            return Ok(Request { frame, permit: permit.take() });
        }
        if let Some(bytes) = intake.claimed() {
            let room = core.in_flight.clone().acquire_many_owned((bytes >> 10) + 1);
            let deadline = began.unwrap_or(*heard) + ms(core.limits.in_flight_wait_ms_max);
            *permit = match timeout_at(deadline, room).await {
                Ok(permit) => permit.ok(),
                Err(_) => {
                    let text = format!("no room for {bytes} bytes among those that are worked on");
                    return Err(End::Told(Refusal::new(Code::Busy, text)));
                }
            };
            intake.give(core.payloads.take());
            intake.admit();
            continue;
        }
        let deadline = match *began {
            Some(began) => began + ms(core.limits.frame_wait_ms_max),
            None => *heard + ms(core.limits.idle_ms_max.into()),
        };
        let (into, count) = intake.room();
        match timeout_at(deadline, stream.read_buf(&mut into.limit(count))).await {
            Ok(Ok(count)) if count > 0 => {
                *heard = Instant::now();
                began.get_or_insert(*heard);
            }
            _ => return Err(End::Gone),
        }
    }
}
