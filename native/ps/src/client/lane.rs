//! The lane: a task of the I/O thread that moves bytes between one link and its shard, and reconnects after
//! failures.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use streamlearn_trust::{FileValue, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::ClientCore;
use super::link::Link;
use super::settings::Role;
use crate::address::{Address, Stream};
use crate::epoch::Epoch;
use crate::error::{PsError, Trouble};
use crate::frame::{Kind, REPLY, encode};
use crate::intake::{Frame, Intake};
use crate::message::{HelloAsk, HelloReply, refusal_of};
use crate::refusal::{Code, Refusal};
use crate::tls;

type Tls = Option<(Arc<FileValue<TlsConnector>>, ServerName<'static>)>;

/// Runs all lanes until the client is closed.
pub async fn carry(core: Arc<ClientCore>, mut closed: watch::Receiver<bool>) {
    let trust = core.settings.tls.as_ref();
    let tls = trust.map(|trust| tls::connector(&trust.ca, &trust.server_name)).transpose();
    let tls = tls.map(|tls| tls.map(|(connector, name)| (Arc::new(connector), name)));
    let links = core.links.clone();
    let lanes: Vec<_> = links
        .into_iter()
        .map(|link| {
            let (core, tls) = (core.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    Ok(tls) => Lane { core, link, tls, attempts: 0 }.run().await,
                    Err(error) => link.refused(None, error),
                }
            })
        })
        .collect();
    // An error would mean that the client is gone: its sender lives as long as the client.
    let _ = closed.wait_for(|&is_closed| is_closed).await;
    lanes.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Why there is no connection.
enum Missing {
    /// A temporary failure.
    Passing(String),
    /// The shard refuses this client.
    Refused(PsError),
}

impl From<io::Error> for Missing {
    fn from(error: io::Error) -> Self {
        Self::Passing(error.to_string())
    }
}

/// The I/O of one link.
struct Lane {
    core: Arc<ClientCore>,
    link: Arc<Link>,
    tls: Tls,
    attempts: u32,
}

impl Lane {
    async fn run(mut self) {
        loop {
            let connect_wait = Duration::from_millis(self.core.settings.limits.connect_wait_ms_max);
            let epoch = self.core.term().epoch;
            let connection = match timeout(connect_wait, self.connect(epoch)).await {
                Ok(connection) => connection,
                Err(_) => Err(Missing::Passing(format!("no hello within {} ms", connect_wait.as_millis()))),
            };
            match connection {
                Ok((stream, intake)) => {
                    let connected_at = Instant::now();
                    let text = self.converse(stream, intake).await;
                    if connected_at.elapsed() > self.backoff() {
                        self.attempts = 0;
                    }
                    self.link.lost(PsError::at(Trouble::Unreachable, self.link.name(), text));
                }
                Err(Missing::Passing(text)) => {
                    self.link.lost(PsError::at(Trouble::Unreachable, self.link.name(), text));
                }
                Err(Missing::Refused(error)) => {
                    self.link.refused(epoch, error);
                    // The shard may accept the client once something has changed; the next attempt waits for
                    // a request.
                    while !self.link.has_work() {
                        self.link.wakeup.notified().await;
                    }
                }
            }
            sleep(self.backoff()).await;
            self.attempts = self.attempts.saturating_add(1);
        }
    }

    /// Returns the wait before the next attempt: exponential backoff with jitter, between half of the nominal
    /// wait and all of it.
    fn backoff(&self) -> Duration {
        let limits = &self.core.settings.limits;
        let nominal_ms =
            limits.backoff_first_ms.saturating_mul(1 << self.attempts.min(32)).min(limits.backoff_ms_max);
        let jitter = streamlearn_table::mix(
            self.core.settings.seed ^ u64::from(self.link.name().0) << 32 ^ u64::from(self.attempts),
        );
        Duration::from_micros(nominal_ms * 500 + jitter % (nominal_ms * 500 + 1))
    }

    async fn connect(&self, epoch: Option<Epoch>) -> Result<(Box<dyn Stream>, Intake), Missing> {
        let mut stream = self.link.address.connect().await?;
        if let (Some((connector, name)), Address::Tcp(_)) = (&self.tls, &self.link.address) {
            stream = Box::new(connector.now().connect(name.clone(), stream).await?);
        }
        let mut intake = Intake::new(self.core.settings.limits.frame_bytes_max);
        let (settings, token) = (&self.core.settings, self.token());
        let hello = HelloAsk {
            model: &settings.model,
            fingerprint: settings.fingerprint,
            client: settings.client,
            reads_only: settings.role != Role::Trains,
            epoch,
            token: token.as_ref().map_or(&[], |token| token.bytes()),
        };
        stream.write_all(&encode(Kind::Hello, 0, 0, &hello.to_payload())).await?;
        stream.flush().await?;
        let frame = next_frame(&mut stream, &mut intake, &self.core).await.map_err(Missing::Passing)?;
        let reply = self.hello_reply(&frame)?;
        self.judge(&reply).map_err(Missing::Refused)?;
        self.link.hello(reply).map_err(Missing::Refused)?;
        Ok((stream, intake))
    }

    /// Returns the token to send. After a change, every second attempt sends the former one: the shard's file may
    /// not have changed yet.
    fn token(&self) -> Option<Arc<Secret>> {
        let (now, former) = self.core.settings.token.as_ref()?.to_send();
        Some(former.filter(|_| self.attempts % 2 == 1).unwrap_or(now))
    }

    fn hello_reply(&self, frame: &Frame) -> Result<HelloReply, Missing> {
        let has_former =
            || self.core.settings.token.as_ref().is_some_and(|token| token.to_send().1.is_some());
        let refusal_error = |refusal: Refusal| match refusal.code {
            Code::Unauthorized if has_former() => Missing::Passing(refusal.to_string()),
            Code::Busy | Code::TooMany | Code::NotReady => Missing::Passing(refusal.to_string()),
            _ => Missing::Refused(PsError::refused(self.link.name(), &refusal)),
        };
        match frame.header.kind {
            Kind::Hello => HelloReply::decode(&frame.payload).map_err(refusal_error),
            Kind::Error => Err(refusal_error(refusal_of(&frame.payload))),
            kind => Err(Missing::Passing(format!("the shard answered a hello with {kind:?}"))),
        }
    }

    /// Checks that the shard is the expected one and that its limits fit.
    fn judge(&self, hello: &HelloReply) -> Result<(), PsError> {
        let (number, settings) = (self.link.name().0, &self.core.settings);
        let mismatch = |text| Err(PsError::at(Trouble::Settings, self.link.name(), text));
        if (hello.number, hello.count as usize) != (number, settings.addresses.len()) {
            let (count, expected) = (hello.count, settings.addresses.len());
            return mismatch(format!(
                "it is shard {} of {count}, expected {number} of {expected}",
                hello.number
            ));
        }
        let (limits, window_max) = (&settings.limits, hello.window_max as usize);
        if limits.calls_max * limits.in_flight_max > window_max {
            let (calls, blocks) = (limits.calls_max, limits.in_flight_max);
            return mismatch(format!(
                "its window_max of {window_max} is less than calls_max ({calls}) times in_flight_max ({blocks})"
            ));
        }
        let is_same = hello.dims.iter().map(|&dim| dim as usize).eq(settings.dims.iter().copied());
        if !hello.dims.is_empty() && !is_same {
            return mismatch(format!("its tables have dims {:?}, expected {:?}", hello.dims, settings.dims));
        }
        Ok(())
    }

    /// Sends and receives until the connection is lost, and returns the reason.
    async fn converse(&mut self, stream: Box<dyn Stream>, intake: Intake) -> String {
        let (reads, writes) = tokio::io::split(stream);
        tokio::select! {
            text = self.send(writes) => text,
            text = self.receive(reads, intake) => text,
        }
    }

    async fn send(&self, mut writes: WriteHalf<Box<dyn Stream>>) -> String {
        let idle = self.link.idle_wait();
        let mut ping = Vec::new();
        loop {
            let frame = self.link.next();
            let bytes: &[u8] = match &frame {
                Some(frame) => frame,
                None => {
                    if timeout(idle, self.link.wakeup.notified()).await.is_ok() {
                        continue;
                    }
                    ping = encode(Kind::Ping, 0, self.link.number(), &[]);
                    &ping
                }
            };
            if let Err(error) = writes.write_all(bytes).await {
                return error.to_string();
            }
            if let Err(error) = writes.flush().await {
                return error.to_string();
            }
            ping.clear();
        }
    }

    async fn receive(&self, mut reads: ReadHalf<Box<dyn Stream>>, mut intake: Intake) -> String {
        let wait_ms = self.core.settings.limits.reply_wait_ms_max;
        let mut was_owed = false;
        loop {
            let next = next_frame(&mut reads, &mut intake, &self.core);
            let frame = match timeout(Duration::from_millis(wait_ms), next).await {
                Ok(Ok(frame)) => frame,
                Ok(Err(text)) => return text,
                // Only the second timeout counts: the request may have been sent just before the first.
                Err(_) if was_owed => return format!("no answer for {wait_ms} ms"),
                Err(_) => {
                    was_owed = self.link.is_owed();
                    continue;
                }
            };
            was_owed = false;
            if frame.header.flags & REPLY == 0 {
                return format!("received a {:?} frame that is not an answer", frame.header.kind);
            }
            if let Err(text) = self.link.answered(frame) {
                return text;
            }
        }
    }
}

/// Reads the next frame. Cancel-safe: bytes of a partial frame stay in `intake`.
async fn next_frame<S>(stream: &mut S, intake: &mut Intake, core: &ClientCore) -> Result<Frame, String>
where
    S: AsyncReadExt + Unpin,
{
    loop {
        if let Some(frame) = intake.take().map_err(|error| error.to_string())? {
            return Ok(frame);
        }
        if intake.claimed().is_some() {
            if !intake.has_spare() {
                intake.give(core.pool.take());
            }
            intake.admit();
            continue;
        }
        let (into, count) = intake.room();
        match stream.read_buf(&mut into.limit(count)).await {
            Ok(0) => return Err("the shard closed the connection".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}
