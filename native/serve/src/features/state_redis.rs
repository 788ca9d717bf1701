//! RedisReader: reads values of a Redis over one connection, many requests at once. It asks for nothing but values, and
//! takes no more memory for an answer than its limits say, whatever the other side sends.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use streamlearn_trust::tls::connector;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::pki_types::ServerName;

/// Requests that wait to be sent, and those that are answered next.
const WAITING_MAX: usize = 1_024;
/// How long after an error a connection is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// The length of a line of the protocol.
const LINE_BYTES_MAX: u64 = 4_096;
/// The bytes of all values of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where a Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisPlace {
    /// A host and a port.
    Host(String, u16),
    /// The same with TLS: the file of the authority that signed its certificate.
    Tls(String, u16, PathBuf),
    /// A socket of this machine.
    Socket(PathBuf),
}

/// A Redis and the limits of its answers.
#[derive(Clone)]
pub struct RedisSettings {
    /// Where it is.
    pub place: RedisPlace,
    /// The user; empty for the default one.
    pub user: String,
    /// The password, if there is one.
    pub password: String,
    /// The number of the database.
    pub database: u32,
    /// A larger value counts as damaged.
    pub value_bytes_max: usize,
    /// The time for a connection, and for an answer before the connection is given up.
    pub reach: Duration,
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisSettings({:?}, database {})", self.place, self.database)
    }
}

/// Values that were asked for; `None` for a key without one, empty bytes for one that is too large.
type Found = Vec<Option<Bytes>>;

struct ReadOrder {
    command: Vec<u8>,
    count: usize,
    reply: oneshot::Sender<Found>,
}

/// One connection, made again whenever it is lost.
#[derive(Debug)]
pub struct RedisReader {
    asks: mpsc::Sender<ReadOrder>,
    is_connected: watch::Receiver<bool>,
    error: Arc<Mutex<String>>,
}

impl RedisReader {
    /// The future keeps the connection, and ends when the reader is dropped.
    pub fn new(settings: RedisSettings) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (asks, waiting) = mpsc::channel(WAITING_MAX);
        let (connection, is_connected) = watch::channel(false);
        let error = Arc::new(Mutex::new("it was not connected yet".to_owned()));
        let reader = Self { asks, is_connected, error: error.clone() };
        (reader, keep(settings, waiting, connection, error))
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        *self.is_connected.borrow()
    }

    /// The error that ended the last connection; empty while there is one.
    pub fn error(&self) -> String {
        if self.is_connected() {
            return String::new();
        }
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until there is a connection.
    pub async fn connected(&self) {
        // It fails only once the future of `new` has ended.
        let _ = self.is_connected.clone().wait_for(|&is_connected| is_connected).await;
    }

    /// Reads values; `None` without a connection, and if it is lost.
    pub async fn read(&self, keys: impl ExactSizeIterator<Item = String>) -> Option<Found> {
        if !self.is_connected() {
            return None;
        }
        let count = keys.len();
        let mut command = Vec::with_capacity(96 * (count + 1));
        write_command(&mut command, "MGET", keys);
        let (reply, found) = oneshot::channel();
        self.asks.try_send(ReadOrder { command, count, reply }).ok()?;
        found.await.ok()
    }
}

/// Appends a command with its arguments.
fn write_command(out: &mut Vec<u8>, name: &str, arguments: impl ExactSizeIterator<Item = String>) {
    out.extend_from_slice(format!("*{}\r\n${}\r\n{name}\r\n", arguments.len() + 1, name.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n{argument}\r\n", argument.len()).as_bytes());
    }
}

async fn keep(
    settings: RedisSettings,
    mut asks: mpsc::Receiver<ReadOrder>,
    connection: watch::Sender<bool>,
    error: Arc<Mutex<String>>,
) {
    while !asks.is_closed() {
        let began = Instant::now();
        let outcome = match timeout(settings.reach, connect(&settings)).await {
            Ok(Ok(stream)) => {
                connection.send_replace(true);
                let outcome = talk(stream, &mut asks, &settings).await;
                connection.send_replace(false);
                outcome
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(failed) = outcome {
            *error.lock().unwrap_or_else(PoisonError::into_inner) = failed.to_string();
        }
        while asks.try_recv().is_ok() {}
        // One that was there for long, and that the other side ended, is made again at once.
        sleep(RETRY.saturating_sub(began.elapsed())).await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn connect(settings: &RedisSettings) -> io::Result<Box<dyn Stream>> {
    let stream: Box<dyn Stream> = match &settings.place {
        RedisPlace::Socket(path) => Box::new(UnixStream::connect(path).await?),
        RedisPlace::Host(host, port) => Box::new(tcp(host, *port).await?),
        RedisPlace::Tls(host, port, authority) => {
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let connector = connector(authority).map_err(io::Error::other)?;
            Box::new(connector.connect(name, tcp(host, *port).await?).await?)
        }
    };
    let mut stream = BufReader::with_capacity(64 << 10, stream);
    let (mut commands, mut count) = (Vec::new(), 0);
    if !settings.password.is_empty() {
        let login = [&settings.user, &settings.password].into_iter().filter(|text| !text.is_empty());
        let login: Vec<String> = login.cloned().collect();
        write_command(&mut commands, "AUTH", login.into_iter());
        count += 1;
    }
    if settings.database > 0 {
        write_command(&mut commands, "SELECT", [settings.database.to_string()].into_iter());
        count += 1;
    }
    stream.write_all(&commands).await?;
    stream.flush().await?;
    for _ in 0..count {
        if line(&mut stream).await? != "+OK" {
            return Err(invalid("it refuses the login or the database"));
        }
    }
    Ok(stream.into_inner())
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends what is asked and reads the answers, which come in the same order, until either fails.
async fn talk(
    stream: Box<dyn Stream>,
    asks: &mut mpsc::Receiver<ReadOrder>,
    settings: &RedisSettings,
) -> io::Result<()> {
    let (mut from, mut to) = tokio::io::split(stream);
    let (sent, mut unanswered) = mpsc::channel::<(usize, oneshot::Sender<Found>)>(WAITING_MAX);
    let send = async move {
        let mut commands = Vec::new();
        while let Some(ask) = asks.recv().await {
            let mut next = Some(ask);
            while let Some(ReadOrder { command, count, reply }) = next {
                // Its request may have timed out.
                if !reply.is_closed() {
                    commands.extend_from_slice(&command);
                    sent.send((count, reply)).await.map_err(io::Error::other)?;
                }
                next = if commands.len() < 64 << 10 { asks.try_recv().ok() } else { None };
            }
            to.write_all(&commands).await?;
            to.flush().await?;
            commands.clear();
        }
        Ok(())
    };
    let receive = async move {
        let mut from = BufReader::with_capacity(64 << 10, &mut from);
        loop {
            // While nothing is asked, a connection that the other side ends is noticed.
            let next = tokio::select! {
                biased;
                next = unanswered.recv() => next,
                read = from.fill_buf() => {
                    let is_over = read?.is_empty();
                    let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(if is_over { ended() } else { invalid("an answer without a request") });
                }
            };
            let Some((count, reply)) = next else { return Ok(()) };
            let found = timeout(settings.reach, values(&mut from, count, settings.value_bytes_max));
            // Its request may have timed out.
            let _ = reply.send(found.await??);
        }
    };
    tokio::select! {
        outcome = send => outcome,
        outcome = receive => outcome,
    }
}

/// Reads the answer to a command for some values.
async fn values(from: &mut (impl AsyncBufRead + Unpin), count: usize, bytes_max: usize) -> io::Result<Found> {
    if line(from).await? != format!("*{count}") {
        return Err(invalid("another answer than was asked for"));
    }
    let (mut found, mut total) = (Vec::with_capacity(count), 0);
    for _ in 0..count {
        let head = line(from).await?;
        if head == "$-1" {
            found.push(None);
            continue;
        }
        let length = head.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
        let length = length.ok_or_else(|| invalid("a value has no length"))?;
        let is_fit = length <= bytes_max;
        total += if is_fit { length } else { 0 };
        if total > ANSWER_BYTES_MAX {
            return Err(invalid("the values are too large"));
        }
        if is_fit {
            let mut value = vec![0; length];
            from.read_exact(&mut value).await?;
            found.push(Some(Bytes::from(value)));
        } else {
            let skipped =
                tokio::io::copy_buf(&mut (&mut *from).take(length as u64), &mut tokio::io::sink()).await?;
            if skipped < length as u64 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            found.push(Some(Bytes::new()));
        }
        let mut end = [0; 2];
        from.read_exact(&mut end).await?;
        if &end != b"\r\n" {
            return Err(invalid("a value does not end"));
        }
    }
    Ok(found)
}

/// Reads a line of the protocol, without its end.
async fn line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    let text = line.strip_suffix(b"\r\n").ok_or_else(|| invalid("a line does not end"))?;
    String::from_utf8(text.to_vec()).map_err(|_| invalid("a line is not a text"))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: &[u8], count: usize) -> io::Result<Found> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut from = BufReader::new(answer);
        runtime.block_on(values(&mut from, count, 8))
    }

    #[test]
    fn values_that_are_missing_or_too_large_are_said_to_be() {
        let found = read(b"*4\r\n$3\r\nabc\r\n$-1\r\n$0\r\n\r\n$9\r\n123456789\r\n", 4).unwrap();
        let expected = [Some("abc"), None, Some(""), Some("")];
        assert_eq!(found, expected.map(|text| text.map(|text| Bytes::from(text.to_owned()))));
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_and_takes_no_memory() {
        for answer in [
            &b"*1\r\n$3\r\nabc\r\n"[..],
            b"-WRONGTYPE no\r\n",
            b"*2\r\n$3\r\nabcd\r\n$-1\r\n",
            b"*2\r\n$99999999999999\r\nabc",
            b"*2\r\n:7\r\n",
            b"*2\r\n$3\r\nab",
            b"",
            &[b'*'; 10_000],
            b"*2\r\n$\xff\r\n",
        ] {
            assert!(read(answer, 2).is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn a_command_has_the_length_of_each_argument() {
        let mut out = Vec::new();
        write_command(&mut out, "MGET", ["a".to_owned(), "größe".to_owned()].into_iter());
        assert_eq!(String::from_utf8(out).unwrap(), "*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$7\r\ngröße\r\n");
    }
}
