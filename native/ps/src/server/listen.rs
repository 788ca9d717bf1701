//! Listening: accepts connections and distributes them among threads. Knows nothing of the protocol.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::{ServerCore, connection};
use crate::address::{BoundSocket, Stream};

/// The pause after a failed accept: the missing resource does not return at once.
const REST: Duration = Duration::from_millis(20);

/// An accepted connection on its way to a worker thread.
pub enum Socket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Socket {
    /// Converts it to a stream, on the worker thread.
    pub fn into_stream(self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                Box::new(tokio::net::TcpStream::from_std(socket)?)
            }
            Self::Unix(socket) => Box::new(tokio::net::UnixStream::from_std(socket)?),
        })
    }

    /// Writes bytes without waiting, and closes; errors are ignored.
    pub fn say_last(self, bytes: &[u8]) {
        let _ = match self {
            Self::Tcp(mut socket) => socket.write(bytes),
            Self::Unix(mut socket) => socket.write(bytes),
        };
    }

    /// Returns the peer's address, for logs.
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(socket) => {
                socket.peer_addr().map_or("a disconnected peer".to_owned(), |address| address.to_string())
            }
            Self::Unix(_) => "this host".to_owned(),
        }
    }

    /// Whether it is a TCP connection, to which TLS applies.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    fn new(socket: BoundSocket) -> io::Result<Self> {
        Ok(match socket {
            BoundSocket::Tcp(listener) => Self::Tcp(tokio::net::TcpListener::from_std(listener)?),
            BoundSocket::Unix(listener, _) => Self::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Ok(Socket::Tcp(listener.accept().await?.0.into_std()?)),
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

/// Runs one worker thread until the server stops; the first one also accepts.
pub async fn work(
    core: Arc<ServerCore>,
    first: Option<(Vec<BoundSocket>, Vec<mpsc::Sender<Socket>>)>,
    mut receiver: mpsc::Receiver<Socket>,
    mut stopped: watch::Receiver<bool>,
) {
    if let Some((sockets, senders)) = first {
        let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for socket in sockets {
            let (senders, next, core) = (senders.clone(), next.clone(), core.clone());
            tokio::spawn(async move {
                // The runtime's driver runs, and both are bound to it: only an invalid descriptor could fail.
                let listener = Listener::new(socket).expect("a bound listener registers with the runtime");
                loop {
                    match listener.accept().await {
                        Ok(connection) => {
                            core.meter.accepted.fetch_add(1, Ordering::Relaxed);
                            let sender = &senders[next.fetch_add(1, Ordering::Relaxed) % senders.len()];
                            if sender.send(connection).await.is_err() {
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
            socket = receiver.recv() => match socket {
                Some(socket) => drop(tokio::spawn(connection::serve(core.clone(), socket))),
                None => break,
            },
        }
    }
    // All senders are gone; connections in progress continue until the stop.
    let _ = stopped.wait_for(|&is_stopped| is_stopped).await;
}
