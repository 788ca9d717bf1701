//! Connections: accepts up to a bound, performs TLS handshakes, and closes gracefully. Knows nothing of the
//! protocols' content.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use streamlearn_trust::{FileValue, tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::activity::Activity;
use super::door::{Door, DoorLimits};
use super::peer_bytes::CountedStream;
use super::traffic::Protocol;
use turn::{Turn, Turns};

pub mod turn;

/// The pause after a failed accept: the missing resource does not return at once.
const REST: Duration = Duration::from_millis(20);
/// How long a closing connection without requests may take to end by itself: its peer has to see the close,
/// and a request may have crossed it on the way.
const LAST_WAIT: Duration = Duration::from_millis(250);

/// A connection's byte stream, over any transport.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection's stream, as hyper reads it.
pub type Peer = TokioIo<CountedStream<Box<dyn Stream>>>;

/// Decides when to close a connection.
pub struct Leave {
    /// Its open requests.
    pub activity: Arc<Activity>,
    /// Whether the server wants it to leave.
    pub turn: Turn,
    /// How long it stays for a last request that its peer cannot know to be the last.
    patience: Duration,
    hello: Duration,
    idle: Duration,
    arrival: Duration,
    drain: Duration,
}

impl Leave {
    fn of(activity: Activity, protocol: Protocol, turn: Turn, limits: &DoorLimits) -> Self {
        Self {
            activity: Arc::new(activity),
            turn,
            // GOAWAY tells a gRPC client at any time. HTTP/1.1 can say `Connection: close` only with an answer.
            patience: Duration::from_millis(if protocol == Protocol::Http { limits.drain_ms_max } else { 0 }),
            hello: Duration::from_millis(limits.hello_wait_ms_max),
            idle: Duration::from_millis(limits.idle_ms_max),
            arrival: Duration::from_millis(limits.arrival_wait_ms_max),
            drain: Duration::from_millis(limits.drain_ms_max),
        }
    }

    async fn time(&mut self) {
        tokio::select! {
            () = self.turn.over_for(self.patience) => {}
            () = self.activity.unadmitted(self.hello) => {}
            () = self.activity.idle(self.idle) => {}
            () = self.activity.stuck(self.arrival) => {}
        }
    }

    /// Drives a connection until it ends or must be closed; then `tell` starts a graceful close, which has
    /// bounded time.
    pub async fn drive<C: Future>(self, connection: C, tell: fn(Pin<&mut C>)) {
        let activity = self.activity.clone();
        tokio::select! {
            () = self.drive_to_end(connection, tell) => {}
            () = activity.place.gives_way.notified() => {}
        }
    }

    async fn drive_to_end<C: Future>(mut self, connection: C, tell: fn(Pin<&mut C>)) {
        let mut connection = pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.time() => {}
        }
        tell(connection.as_mut());
        let activity = self.activity;
        let is_over = async {
            sleep(LAST_WAIT).await;
            // Answers to a peer that is not admitted are not waited for: it may never read them.
            if activity.place.is_admitted() {
                activity.quiet(LAST_WAIT).await;
            }
        };
        tokio::select! {
            _ = connection => {}
            // The remaining peer is dropped.
            () = is_over => {}
            () = sleep(self.drain) => {}
        }
    }
}

/// Serves connections until `shutdown`, then drains them. While the door stands aside, it accepts none, and those
/// from before leave. Once the door is left, so do all connections of HTTP, new ones too.
///
/// # Errors
/// If the TLS certificate or key cannot be used.
pub async fn serve<F>(
    listener: TcpListener,
    door: Arc<Door>,
    protocol: Protocol,
    shutdown: impl Future<Output = ()> + Send,
    talk: impl Fn(Peer, Leave) -> F + Clone + Send + 'static,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send,
{
    let tls = door.tls.as_ref().map(|files| tls::renewed_acceptor(files, Some(protocol.alpn()))).transpose();
    let tls = tls.map_err(io::Error::other)?;
    let (turns, mut aside, mut is_aside) = (Turns::default(), door.aside.subscribe(), false);
    let (mut leaving, mut is_leaving) = (door.leaving.subscribe(), protocol != Protocol::Http);
    let (mut shutdown, mut tasks) = (pin!(shutdown), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.as_mut() => break,
            Some(_) = tasks.join_next() => continue,
            _ = aside.wait_for(|&is_now| is_now != is_aside) => {
                is_aside = !is_aside;
                if is_aside {
                    turns.pass();
                }
                continue;
            }
            // Clients of gRPC get GOAWAY at the end instead.
            _ = leaving.wait_for(|&is_now| is_now), if !is_leaving => {
                is_leaving = true;
                turns.leave();
                continue;
            }
            accepted = listener.accept(), if !is_aside => accepted,
        };
        let Ok((socket, _)) = accepted else {
            sleep(REST).await;
            continue;
        };
        let Some(place) = door.connection() else { continue };
        door.traffic.connected(protocol);
        let leave = Leave::of(Activity::new(protocol, place), protocol, turns.take(), &door.limits);
        let (talk, tls, door) = (talk.clone(), tls.as_ref().map(FileValue::now), door.clone());
        tasks.spawn(async move {
            let mut turn = leave.turn.clone();
            let stream = tokio::select! {
                stream = open(socket, tls, leave.hello) => stream,
                // A connection without a request has nothing to finish.
                () = turn.over_for(leave.drain) => None,
                () = leave.activity.place.gives_way.notified() => None,
            };
            if let Some(stream) = stream {
                let counted = CountedStream::new(stream, protocol, leave.activity.clone(), door);
                talk(TokioIo::new(counted), leave).await;
            }
        });
    }
    drop(listener);
    turns.end();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// Returns the stream of a peer that has begun to speak in time: before that, it needs no buffers.
async fn open(socket: TcpStream, tls: Option<Arc<TlsAcceptor>>, wait: Duration) -> Option<Box<dyn Stream>> {
    socket.set_nodelay(true).ok()?;
    let speaks = async {
        socket.readable().await?;
        Ok::<Box<dyn Stream>, io::Error>(match tls {
            None => Box::new(socket),
            Some(acceptor) => Box::new(acceptor.accept(socket).await?),
        })
    };
    timeout(wait, speaks).await.ok()?.ok()
}
