//! The door: access control and limits of connections and requests, shared by all servers. Knows no protocol.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use streamlearn_trust::{TlsFiles, Token};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::traffic::Traffic;
use crate::answer::Refusal;

/// The retry hint of a node at its request limit, in milliseconds.
const RETRY_MS: u64 = 50;

/// Open requests of a gRPC connection that is not admitted, unread answers included.
pub(super) const STRANGER_REQUESTS_MAX: usize = 8;
/// Refusals beyond that, after which such a connection is closed.
pub(super) const STRANGER_REFUSALS_MAX: usize = 128;

/// Access control and limits.
#[derive(Debug, Clone, Default)]
pub struct DoorSettings {
    /// The access token that callers must send. Configuration must require it if another machine can reach
    /// the address.
    pub token: Option<Token>,
    /// TLS files; without them connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Bounds.
    pub limits: DoorLimits,
}

/// Limits of a door. The door enforces each by refusing a request or closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorLimits {
    /// Concurrent connections. For a further one, the oldest connection without an admitted request is
    /// closed; if there is none, the new connection is closed.
    pub connections_max: usize,
    /// Concurrent requests of one gRPC connection. Its client holds back others, where no node sees them: keep it
    /// above the requests that come within their deadline. HTTP/1.1 has one.
    pub streams_max: u32,
    /// Concurrent requests; further ones are refused as busy. Each may hold a message of the maximum size.
    pub requests_max: usize,
    /// Bytes of a request's headers; larger ones are refused.
    pub header_bytes_max: u32,
    /// Bytes of an HTTP body, unless the model's limit is lower; larger ones are refused.
    pub http_bytes_max: usize,
    /// How long the TLS handshake may take, and then the first admitted request; then the connection is
    /// closed.
    pub hello_wait_ms_max: u64,
    /// How long a request may take to arrive completely; then it is refused, or its connection is closed if
    /// the request is not recognised yet.
    pub arrival_wait_ms_max: u64,
    /// How long an admitted connection may be idle; then it is closed.
    pub idle_ms_max: u64,
    /// The interval of keepalive pings to gRPC clients.
    pub alive_ms: u64,
    /// How long a client may take to answer a ping; then its connection is closed.
    pub alive_wait_ms_max: u64,
    /// How long the refusal of a wrong token is delayed.
    pub token_wait_ms: u64,
    /// How long requests may take to finish during a drain; then their connections are closed.
    pub drain_ms_max: u64,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            streams_max: 512,
            requests_max: 512,
            header_bytes_max: 16 << 10,
            http_bytes_max: 1 << 20,
            hello_wait_ms_max: 5_000,
            arrival_wait_ms_max: 10_000,
            idle_ms_max: 300_000,
            alive_ms: 20_000,
            alive_wait_ms_max: 10_000,
            token_wait_ms: 100,
            drain_ms_max: 10_000,
        }
    }
}

/// A door. Servers may share one; its limits then apply to all of them together.
#[derive(Debug)]
pub struct Door {
    pub(super) token: Option<Token>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) limits: DoorLimits,
    guests: Mutex<Guests>,
    requests: Arc<Semaphore>,
    connections_refused: AtomicU64,
    requests_refused: AtomicU64,
    tokens_refused: AtomicU64,
    pub(super) traffic: Traffic,
    pub(super) aside: watch::Sender<bool>,
    pub(super) leaving: watch::Sender<bool>,
}

/// Counters of a door since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorStats {
    /// Open connections.
    pub connections: usize,
    /// Open requests.
    pub requests: usize,
    /// Connections refused at the limit, or closed to make room for a new one.
    pub connections_refused: u64,
    /// Requests refused at the limit.
    pub requests_refused: u64,
    /// Requests with a wrong or missing token.
    pub tokens_refused: u64,
}

impl Door {
    /// Creates a door.
    ///
    /// # Errors
    /// If a limit is out of range.
    pub fn new(settings: DoorSettings) -> Result<Self, String> {
        let DoorSettings { token, tls, limits } = settings;
        let counts = [
            ("connections_max", limits.connections_max),
            ("streams_max", limits.streams_max as usize),
            ("requests_max", limits.requests_max),
            ("header_bytes_max", limits.header_bytes_max as usize),
            ("http_bytes_max", limits.http_bytes_max),
        ];
        for (name, count) in counts {
            if count == 0 || count > Semaphore::MAX_PERMITS {
                return Err(format!("{name} is {count}: 1 to {}", Semaphore::MAX_PERMITS));
            }
        }
        let waits = [
            ("hello_wait_ms_max", limits.hello_wait_ms_max),
            ("arrival_wait_ms_max", limits.arrival_wait_ms_max),
            ("idle_ms_max", limits.idle_ms_max),
            ("alive_ms", limits.alive_ms),
            ("alive_wait_ms_max", limits.alive_wait_ms_max),
        ];
        if let Some((name, _)) = waits.into_iter().find(|(_, wait_ms)| !(1..=WAIT_MS_MOST).contains(wait_ms))
        {
            return Err(format!("{name} is not from 1 to {WAIT_MS_MOST} ms"));
        }
        if (limits.header_bytes_max as usize) < HEADER_BYTES_LEAST {
            return Err(format!(
                "header_bytes_max is {}: at least {HEADER_BYTES_LEAST}",
                limits.header_bytes_max
            ));
        }
        Ok(Self {
            token,
            tls,
            guests: Mutex::default(),
            requests: Arc::new(Semaphore::new(limits.requests_max)),
            limits,
            connections_refused: AtomicU64::new(0),
            requests_refused: AtomicU64::new(0),
            tokens_refused: AtomicU64::new(0),
            traffic: Traffic::default(),
            aside: watch::Sender::default(),
            leaving: watch::Sender::default(),
        })
    }

    /// Returns the limits.
    pub fn limits(&self) -> &DoorLimits {
        &self.limits
    }

    /// Makes its servers stop accepting, and lets their connections leave; or makes them accept again.
    pub fn stand_aside(&self, is_aside: bool) {
        self.aside.send_if_modified(|value| std::mem::replace(value, is_aside) != is_aside);
    }

    /// Tells callers of HTTP with every answer to leave, on new connections too. Its servers go on answering.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Whether its servers accept no connections.
    pub fn is_aside(&self) -> bool {
        *self.aside.borrow()
    }

    /// Returns the traffic counters.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the counters.
    pub fn stats(&self) -> DoorStats {
        DoorStats {
            connections: self.guests().count,
            requests: self.limits.requests_max - self.requests.available_permits(),
            connections_refused: self.connections_refused.load(Ordering::Relaxed),
            requests_refused: self.requests_refused.load(Ordering::Relaxed),
            tokens_refused: self.tokens_refused.load(Ordering::Relaxed),
        }
    }

    /// Takes a slot for a connection; at the limit, from the oldest connection that is not admitted.
    pub(super) fn connection(self: &Arc<Self>) -> Option<Place> {
        let mut guests = self.guests();
        if guests.count == self.limits.connections_max {
            self.connections_refused.fetch_add(1, Ordering::Relaxed);
            let (_, oldest) = guests.strangers.pop_first()?;
            oldest.notify_one();
            guests.count -= 1;
        }
        guests.count += 1;
        guests.last += 1;
        let (number, gives_way) = (guests.last, Arc::new(Notify::new()));
        guests.strangers.insert(number, gives_way.clone());
        Some(Place { door: self.clone(), number, gives_way, is_admitted: AtomicBool::new(false) })
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a request.
    pub(super) fn request(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.requests.clone().try_acquire_owned().map_err(|_| {
            self.requests_refused.fetch_add(1, Ordering::Relaxed);
            let text = format!("the limit of {} concurrent requests is reached", self.limits.requests_max);
            Refusal::Busy { retry_ms: RETRY_MS, text }
        })
    }

    /// Refuses a request of a connection that is not admitted and at its limit.
    pub(super) fn refuse_unadmitted(&self) -> Refusal {
        self.requests_refused.fetch_add(1, Ordering::Relaxed);
        let text =
            format!("the limit of {STRANGER_REQUESTS_MAX} concurrent requests without a token is reached");
        Refusal::Busy { retry_ms: RETRY_MS, text }
    }

    /// Whether a request has the right token, if one is required.
    pub(super) fn has_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let sent_token = headers.get(AUTHORIZATION).and_then(|header| {
            let (scheme, sent_token) = header.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(sent_token)
        });
        token.is(sent_token.unwrap_or_default())
    }

    /// Delays the refusal of a wrong token. Drop the request first: it holds memory.
    pub(super) async fn refuse_token(&self) {
        self.tokens_refused.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(self.limits.token_wait_ms)).await;
    }
}

/// The open connections.
#[derive(Debug, Default)]
struct Guests {
    count: usize,
    /// The number of the newest connection.
    last: u64,
    /// Connections without an admitted request, oldest first, each with its signal to close.
    strangers: BTreeMap<u64, Arc<Notify>>,
}

/// The slot of a connection; dropping it frees the slot.
#[derive(Debug)]
pub struct Place {
    door: Arc<Door>,
    number: u64,
    /// Notified when the connection must be closed at once.
    pub gives_way: Arc<Notify>,
    is_admitted: AtomicBool,
}

impl Place {
    /// Marks the connection as admitted: it keeps its slot.
    pub fn admit(&self) {
        if !self.is_admitted() && self.door.guests().strangers.remove(&self.number).is_some() {
            self.is_admitted.store(true, Ordering::Release);
        }
    }

    /// Whether the connection is admitted.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = self.door.guests();
        // The slot of a closed connection already belongs to another one.
        if *self.is_admitted.get_mut() || guests.strangers.remove(&self.number).is_some() {
            guests.count -= 1;
        }
    }
}

/// One day, the longest wait.
const WAIT_MS_MOST: u64 = 86_400_000;
/// The smallest header buffer that hyper accepts.
const HEADER_BYTES_LEAST: usize = 8 << 10;

/// The refusal of a missing or wrong token.
pub const NO_TOKEN: &str =
    "the token is missing or wrong; help: send the header `authorization: Bearer TOKEN`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_are_none_are_refused_by_name() {
        let error_of = |limits| Door::new(DoorSettings { limits, ..DoorSettings::default() }).unwrap_err();
        let good = DoorLimits::default();
        assert!(Door::new(DoorSettings::default()).is_ok());
        for (limits, expected) in [
            (DoorLimits { connections_max: 0, ..good }, "connections_max is 0"),
            (DoorLimits { requests_max: usize::MAX, ..good }, "requests_max is 18446744073709551615"),
            (DoorLimits { header_bytes_max: 100, ..good }, "header_bytes_max is 100: at least 8192"),
            (DoorLimits { idle_ms_max: 0, ..good }, "idle_ms_max is not from 1"),
        ] {
            assert!(error_of(limits).contains(expected), "{expected}");
        }
    }
}
