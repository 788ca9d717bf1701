//! Addresses: `host:port` or `unix:/path`, to listen at or to connect to, and the streams of their
//! connections.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A connection's byte stream, over any transport.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Address {
    /// Parses an address.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("address {text:?}: the path of a unix socket begins with /"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            return Err(format!("address {text:?}: write host:port or unix:/path"));
        }
        Ok(Self::Tcp(text.to_owned()))
    }

    /// Connects. The caller sets the timeout.
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(host) => {
                let stream = TcpStream::connect(host).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        }
    }
}

/// A bound listening socket.
pub enum BoundSocket {
    /// A TCP port.
    Tcp(std::net::TcpListener),
    /// A path in the file system.
    Unix(std::os::unix::net::UnixListener, PathBuf),
}

fn with_address<'a>(problem: &'a str, address: &'a str) -> impl Fn(io::Error) -> String + 'a {
    move |error| format!("{problem} {address:?}: {error}")
}

impl BoundSocket {
    /// Binds an address. Without `may_leave_loopback`, only loopback addresses and unix sockets are allowed.
    pub fn bind(text: &str, may_leave_loopback: bool) -> Result<Self, String> {
        match Address::parse(text)? {
            Address::Tcp(host) => {
                let addresses: Vec<SocketAddr> =
                    host.to_socket_addrs().map_err(with_address("cannot resolve", text))?.collect();
                if !may_leave_loopback && !addresses.iter().all(|address| address.ip().is_loopback()) {
                    return Err(format!(
                        "address {text:?} can be reached from other machines and needs a token"
                    ));
                }
                let listener = std::net::TcpListener::bind(&addresses[..])
                    .map_err(with_address("cannot listen at", text))?;
                listener.set_nonblocking(true).map_err(with_address("cannot listen at", text))?;
                Ok(Self::Tcp(listener))
            }
            Address::Unix(path) => {
                let listener = bind_unix(&path).map_err(with_address("cannot listen at", text))?;
                listener.set_nonblocking(true).map_err(with_address("cannot listen at", text))?;
                Ok(Self::Unix(listener, path))
            }
        }
    }

    /// Returns the bound address, with the actual port.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

/// Binds a unix socket that only its owner can connect to, and replaces a socket file without a listener. The
/// file is created with the socket's own mode, so other users can never connect, not even briefly.
fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::fs::FileTypeExt;

    use rustix::fs::{Mode, fchmod};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_with_ports_or_paths() {
        assert_eq!(Address::parse("[::1]:80"), Ok(Address::Tcp("[::1]:80".to_owned())));
        assert_eq!(Address::parse("unix:/a b"), Ok(Address::Unix("/a b".into())));
        for wrong in ["", "host", "host:", "host:port", "host:65536", "unix:", "unix:a"] {
            assert!(Address::parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn only_loopback_is_listened_at_without_leave() {
        assert!(BoundSocket::bind("0.0.0.0:0", false).err().unwrap().contains("needs a token"));
        assert!(BoundSocket::bind("0.0.0.0:0", true).is_ok());
        let socket = BoundSocket::bind("127.0.0.1:0", false).unwrap();
        assert!(socket.address().starts_with("127.0.0.1:") && !socket.address().ends_with(":0"));
    }

    #[test]
    fn a_unix_socket_is_its_owners_alone_from_its_first_moment() {
        use std::os::unix::fs::PermissionsExt;
        use std::sync::atomic::{AtomicBool, Ordering};
        let path = std::env::temp_dir().join(format!("owned-{}", std::process::id()));
        let is_over = AtomicBool::new(false);
        let modes = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut modes = std::collections::BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    modes.extend(
                        std::fs::metadata(&path).map(|metadata| metadata.permissions().mode() & 0o777),
                    );
                }
                modes
            });
            for _ in 0..20_000 {
                drop(bind_unix(&path).unwrap());
                std::fs::remove_file(&path).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            observer.join().unwrap()
        });
        assert_eq!(modes.into_iter().collect::<Vec<u32>>(), [0o600]);
    }
}
