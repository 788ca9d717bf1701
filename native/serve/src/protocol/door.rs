//! The door: who may come in, how many at once, and how it is counted. It knows no protocol.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use streamlearn_trust::{Secret, TlsFiles};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::traffic::Traffic;
use crate::answer::Refusal;

/// When to come again to a node that has as many requests as it may have, in milliseconds.
const RETRY_MS: u64 = 50;

/// Requests at once of a gRPC connection none of whose requests was let in, with answers that it did not read yet.
pub(super) const STRANGER_REQUESTS_MAX: usize = 8;

/// Who may come, and bounds.
#[derive(Debug, Clone, Default)]
pub struct DoorSettings {
    /// What callers must say; must be there when another machine can reach the address, which is the caller's to see to.
    pub token: Option<Secret>,
    /// What makes connections private.
    pub tls: Option<TlsFiles>,
    /// Bounds.
    pub limits: DoorLimits,
}

/// Bounds of what comes in. Every one is met by refusing or closing, as each says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorLimits {
    /// Connections at once. For one more the oldest that had no request let in is closed; without any, it is closed itself.
    pub connections_max: usize,
    /// Requests of one gRPC connection at once; its client keeps others back. HTTP/1.1 has one.
    pub streams_max: u32,
    /// Requests at once; one more is refused as busy. Each may hold a message of the largest size.
    pub requests_max: usize,
    /// Bytes of a request's headers; one with more is refused.
    pub header_bytes_max: u32,
    /// Bytes of a body of HTTP, if the model's own limit is not lower; one with more is refused.
    pub http_bytes_max: usize,
    /// How long TLS may take to begin, and after it the first request that is let in; then the connection is closed.
    pub hello_wait_ms_max: u64,
    /// How long a request may take to arrive whole; then it is refused, or its connection is closed where it is none yet.
    pub arrival_wait_ms_max: u64,
    /// How long a connection that had a request let in may have none; then it is closed.
    pub idle_ms_max: u64,
    /// After how long a gRPC client is asked whether it is still there.
    pub alive_ms: u64,
    /// How long it may take to say so; then its connection is closed.
    pub alive_wait_ms_max: u64,
    /// How long whoever says a wrong token waits for its refusal.
    pub token_wait_ms: u64,
    /// How long requests may take that were begun before the end; then their connections are closed.
    pub drain_ms_max: u64,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            streams_max: 128,
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

/// A door. Several servers may share one, and its bounds then hold for all of them together.
#[derive(Debug)]
pub struct Door {
    token: Option<Secret>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) limits: DoorLimits,
    guests: Mutex<Guests>,
    requests: Arc<Semaphore>,
    connections_refused: AtomicU64,
    requests_refused: AtomicU64,
    tokens_refused: AtomicU64,
    pub(super) traffic: Traffic,
}

/// Figures of a door since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorStats {
    /// Connections now.
    pub connections: usize,
    /// Requests now.
    pub requests: usize,
    /// Connections that were one too many, or gave way to a new one.
    pub connections_refused: u64,
    /// Requests that were one too many.
    pub requests_refused: u64,
    /// Requests with a wrong token or none.
    pub tokens_refused: u64,
}

impl Door {
    /// A door.
    ///
    /// # Errors
    /// When a bound is none.
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
        })
    }

    /// Its bounds.
    pub fn limits(&self) -> &DoorLimits {
        &self.limits
    }

    /// What came and went.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Figures.
    pub fn stats(&self) -> DoorStats {
        DoorStats {
            connections: self.guests().count,
            requests: self.limits.requests_max - self.requests.available_permits(),
            connections_refused: self.connections_refused.load(Ordering::Relaxed),
            requests_refused: self.requests_refused.load(Ordering::Relaxed),
            tokens_refused: self.tokens_refused.load(Ordering::Relaxed),
        }
    }

    /// A place for a connection, if there is one or a stranger has one.
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

    /// A place for a request, if there is one.
    pub(super) fn request(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.requests.clone().try_acquire_owned().map_err(|_| {
            self.requests_refused.fetch_add(1, Ordering::Relaxed);
            let said = format!("{} requests at once, the most there may be", self.limits.requests_max);
            Refusal::Busy { retry_ms: RETRY_MS, said }
        })
    }

    /// Refuse a request of a stranger who has as many as it may have.
    pub(super) fn crowd(&self) -> Refusal {
        self.requests_refused.fetch_add(1, Ordering::Relaxed);
        let said = format!("{STRANGER_REQUESTS_MAX} requests at once, the most without the token");
        Refusal::Busy { retry_ms: RETRY_MS, said }
    }

    /// Whether a request says the token, if there is one.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(AUTHORIZATION).and_then(|header| {
            let (scheme, given) = header.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(given)
        });
        token.is(given.unwrap_or_default())
    }

    /// Let whoever did not say the token wait for its refusal. Its request should be dropped before: it holds memory.
    pub(super) async fn refuse_token(&self) {
        self.tokens_refused.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(self.limits.token_wait_ms)).await;
    }
}

/// Connections that have a place.
#[derive(Debug, Default)]
struct Guests {
    count: usize,
    /// The number of the last that came.
    last: u64,
    /// Connections without an admitted request, oldest first, each with its signal to close.
    strangers: BTreeMap<u64, Arc<Notify>>,
}

/// The place of a connection; dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    door: Arc<Door>,
    number: u64,
    /// Told when it must give way to a new connection.
    pub gives_way: Arc<Notify>,
    is_admitted: AtomicBool,
}

impl Place {
    /// A request of it was let in: it keeps its place from now on.
    pub fn admit(&self) {
        if !self.is_admitted() && self.door.guests().strangers.remove(&self.number).is_some() {
            self.is_admitted.store(true, Ordering::Release);
        }
    }

    /// Whether it keeps its place.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guests = self.door.guests();
        // Another connection has the place of one that gave way.
        if *self.is_admitted.get_mut() || guests.strangers.remove(&self.number).is_some() {
            guests.count -= 1;
        }
    }
}

/// A day: no wait is longer.
const WAIT_MS_MOST: u64 = 86_400_000;
/// What hyper needs at least to read headers into.
const HEADER_BYTES_LEAST: usize = 8 << 10;

/// What is said to whoever does not say the token.
pub const NO_TOKEN: &str =
    "the token is missing or wrong; help: send the header `authorization: Bearer TOKEN`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_are_none_are_refused_by_name() {
        let wrong = |limits| Door::new(DoorSettings { limits, ..DoorSettings::default() }).unwrap_err();
        let good = DoorLimits::default();
        assert!(Door::new(DoorSettings::default()).is_ok());
        for (limits, says) in [
            (DoorLimits { connections_max: 0, ..good }, "connections_max is 0"),
            (DoorLimits { requests_max: usize::MAX, ..good }, "requests_max is 18446744073709551615"),
            (DoorLimits { header_bytes_max: 100, ..good }, "header_bytes_max is 100: at least 8192"),
            (DoorLimits { idle_ms_max: 0, ..good }, "idle_ms_max is not from 1"),
        ] {
            assert!(wrong(limits).contains(says), "{says}");
        }
    }
}
