//! Connections: accepted up to a bound, made private, and left in good order. It knows not what is spoken in them.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::door::Door;
use super::tls;

/// How long accepting rests after it failed, for what it lacks then does not come at once.
const REST: Duration = Duration::from_millis(20);
/// How long a connection that is to be left and has no request may take to end by itself.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A peer, whatever carries its bytes.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A peer, as hyper reads it.
pub type Peer = TokioIo<Box<dyn Stream>>;

/// The requests of one connection: how many there are, and since when there is none.
#[derive(Debug)]
pub struct Activity {
    open: AtomicUsize,
    last: Mutex<Instant>,
}

/// One request of a connection; dropping it ends it.
pub struct Active(Arc<Activity>);

impl Drop for Active {
    fn drop(&mut self) {
        *self.0.last.lock().expect("no holder panics") = Instant::now();
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Activity {
    /// One request more.
    pub fn enter(self: &Arc<Self>) -> Active {
        self.open.fetch_add(1, Ordering::SeqCst);
        Active(self.clone())
    }

    /// Wait until there was no request for so long.
    async fn idle(&self, wait: Duration) {
        loop {
            let left = if self.open.load(Ordering::SeqCst) > 0 {
                wait
            } else {
                wait.saturating_sub(self.last.lock().expect("no holder panics").elapsed())
            };
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

/// When a connection is to be left.
pub struct Leave {
    /// Its requests.
    pub activity: Arc<Activity>,
    draining: watch::Receiver<bool>,
    idle: Duration,
    drain: Duration,
}

impl Leave {
    async fn time(&mut self) {
        tokio::select! {
            _ = self.draining.wait_for(|&is_draining| is_draining) => {}
            () = self.activity.idle(self.idle) => {}
        }
    }

    /// Let a connection work until it ends, or until it is to be left; then it is told so and has a while to end.
    pub async fn ride<C: Future>(mut self, connection: C, tell: fn(Pin<&mut C>)) {
        let mut connection = pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.time() => {}
        }
        tell(connection.as_mut());
        let activity = self.activity;
        let is_over = async {
            sleep(LAST_WAIT).await;
            activity.idle(LAST_WAIT).await;
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
    protocol: &'static [u8],
    shutdown: impl Future<Output = ()> + Send,
    talk: impl Fn(Peer, Leave) -> F + Clone + Send + 'static,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send,
{
    let tls = door.tls.as_ref().map(|files| tls::acceptor(files, protocol)).transpose();
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
        let limits = door.limits;
        let leave = Leave {
            activity: Arc::new(Activity { open: AtomicUsize::new(0), last: Mutex::new(Instant::now()) }),
            draining: draining.clone(),
            idle: Duration::from_millis(limits.idle_ms_max),
            drain: Duration::from_millis(limits.drain_ms_max),
        };
        let (talk, tls) = (talk.clone(), tls.clone());
        tasks.spawn(async move {
            let _place = place;
            let wait = Duration::from_millis(limits.hello_wait_ms_max);
            if let Some(peer) = open(socket, tls, wait).await {
                talk(peer, leave).await;
            }
        });
    }
    drop(listener);
    drain.send_replace(true);
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn open(socket: TcpStream, tls: Option<TlsAcceptor>, wait: Duration) -> Option<Peer> {
    socket.set_nodelay(true).ok()?;
    let stream: Box<dyn Stream> = match tls {
        None => Box::new(socket),
        Some(acceptor) => Box::new(timeout(wait, acceptor.accept(socket)).await.ok()?.ok()?),
    };
    Some(TokioIo::new(stream))
}
