//! Connections: accepted up to a bound, made private, and left in good order. It knows not what is spoken in them.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use streamlearn_trust::tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::activity::Activity;
use super::door::Door;
use super::peer_bytes::Counted;
use super::traffic::Protocol;

/// How long accepting rests after it failed, for what it lacks then does not come at once.
const REST: Duration = Duration::from_millis(20);
/// How long a connection that is to be left and has no request may take to end by itself: for its peer to hear of it,
/// and for a request that met the news on its way.
const LAST_WAIT: Duration = Duration::from_millis(250);

/// A peer, whatever carries its bytes.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A peer, as hyper reads it.
pub type Peer = TokioIo<Counted<Box<dyn Stream>>>;

/// When a connection is to be left.
pub struct Leave {
    /// What is under way on it.
    pub activity: Arc<Activity>,
    draining: watch::Receiver<bool>,
    hello: Duration,
    idle: Duration,
    arrival: Duration,
    drain: Duration,
}

impl Leave {
    async fn time(&mut self) {
        tokio::select! {
            _ = self.draining.wait_for(|&is_draining| is_draining) => {}
            () = self.activity.strange(self.hello) => {}
            () = self.activity.idle(self.idle) => {}
            () = self.activity.stuck(self.arrival) => {}
        }
    }

    /// Let a connection work until it ends, or until it is to be left; then it is told so and has a while to end.
    pub async fn ride<C: Future>(self, connection: C, tell: fn(Pin<&mut C>)) {
        let activity = self.activity.clone();
        tokio::select! {
            () = self.see_out(connection, tell) => {}
            () = activity.place.gives_way.notified() => {}
        }
    }

    async fn see_out<C: Future>(mut self, connection: C, tell: fn(Pin<&mut C>)) {
        let mut connection = pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.time() => {}
        }
        tell(connection.as_mut());
        let activity = self.activity;
        let is_over = async {
            sleep(LAST_WAIT).await;
            // A stranger's answers are not waited for: it may never take them.
            if activity.place.is_admitted() {
                activity.quiet(LAST_WAIT).await;
            }
        };
        tokio::select! {
            _ = connection => {}
            // Whoever is still there is left alone.
            () = is_over => {}
            () = sleep(self.drain) => {}
        }
    }
}

/// Serve all who come until `shutdown`, then see those out who are there.
///
/// # Errors
/// When the certificate and key of TLS cannot be used.
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
    let tls = door.tls.as_ref().map(|files| tls::acceptor(files, Some(protocol.spoken()))).transpose();
    let tls = tls.map_err(io::Error::other)?;
    let (drain, draining) = watch::channel(false);
    let (mut shutdown, mut tasks) = (pin!(shutdown), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.as_mut() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            sleep(REST).await;
            continue;
        };
        let Some(place) = door.connection() else { continue };
        door.traffic.came(protocol);
        let limits = door.limits;
        let leave = Leave {
            activity: Arc::new(Activity::new(protocol, place)),
            draining: draining.clone(),
            hello: Duration::from_millis(limits.hello_wait_ms_max),
            idle: Duration::from_millis(limits.idle_ms_max),
            arrival: Duration::from_millis(limits.arrival_wait_ms_max),
            drain: Duration::from_millis(limits.drain_ms_max),
        };
        let (talk, tls, door) = (talk.clone(), tls.clone(), door.clone());
        tasks.spawn(async move {
            let mut draining = leave.draining.clone();
            let opened = tokio::select! {
                opened = open(socket, tls, leave.hello) => opened,
                // Who has not even begun has nothing under way.
                _ = draining.wait_for(|&is_draining| is_draining) => None,
                () = leave.activity.place.gives_way.notified() => None,
            };
            if let Some(stream) = opened {
                let counted = Counted::new(stream, protocol, leave.activity.clone(), door);
                talk(TokioIo::new(counted), leave).await;
            }
        });
    }
    drop(listener);
    drain.send_replace(true);
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn open(socket: TcpStream, tls: Option<TlsAcceptor>, wait: Duration) -> Option<Box<dyn Stream>> {
    socket.set_nodelay(true).ok()?;
    Some(match tls {
        None => Box::new(socket),
        Some(acceptor) => Box::new(timeout(wait, acceptor.accept(socket)).await.ok()?.ok()?),
    })
}
