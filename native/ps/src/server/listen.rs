//! Listening: connections as they come, dealt out among threads. Knows nothing of what they say.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::{ServerCore, connection};
use crate::address::{Listening, Stream};

/// How long accepting rests after it failed, for what it lacks then does not come at once.
const REST: Duration = Duration::from_millis(20);

/// A connection on its way to the thread that works on it.
pub enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    /// The stream, on the thread that works on it.
    pub fn into_stream(self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                Box::new(tokio::net::TcpStream::from_std(socket)?)
            }
            Self::Unix(socket) => Box::new(tokio::net::UnixStream::from_std(socket)?),
        })
    }

    /// Say something that fits into a socket's memory, without waiting, and close; whether it is heard is no matter.
    pub fn say_last(self, bytes: &[u8]) {
        let _ = match self {
            Self::Tcp(mut socket) => socket.write(bytes),
            Self::Unix(mut socket) => socket.write(bytes),
        };
    }

    /// Who is at the other end, as logs say it.
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(socket) => {
                socket.peer_addr().map_or("one that has gone".to_owned(), |address| address.to_string())
            }
            Self::Unix(_) => "this host".to_owned(),
        }
    }

    /// Whether it leaves this process' machine, so that TLS is for it.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    fn new(listening: Listening) -> io::Result<Self> {
        Ok(match listening {
            Listening::Tcp(listener) => Self::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Listening::Unix(listener, _) => Self::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0.into_std()?)),
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

/// What one thread does until the server has stopped; the first also accepts.
pub async fn work(
    core: Arc<ServerCore>,
    first: Option<(Vec<Listening>, Vec<mpsc::Sender<Socket>>)>,
    mut hand: mpsc::Receiver<Socket>,
    mut stopped: watch::Receiver<bool>,
) {
    if let Some((listening, deals)) = first {
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for one in listening {
            let (deals, next, core) = (deals.clone(), next.clone(), core.clone());
            tokio::spawn(async move {
                // Both are of this runtime, whose driver runs: only a descriptor that is none could fail.
                let listener = Listener::new(one).expect("a listener that was bound");
                loop {
                    match listener.accept().await {
                        Ok(socket) => {
                            core.meter.accepted.fetch_add(1, Ordering::Relaxed);
                            let to = &deals[next.fetch_add(1, Ordering::Relaxed) % deals.len()];
                            if to.send(socket).await.is_err() {
                                return;
                            }
                        }
                        Err(_) => tokio::time::sleep(REST).await,
                    }
                }
            });
        }
    }
    loop {
        tokio::select! {
            biased;
            _ = stopped.wait_for(|&is_stopped| is_stopped) => return,
            socket = hand.recv() => match socket {
                Some(socket) => drop(tokio::spawn(connection::serve(core.clone(), socket))),
                None => break,
            },
        }
    }
    // Nothing comes any more; those that are here are worked on to the end.
    let _ = stopped.wait_for(|&is_stopped| is_stopped).await;
}
