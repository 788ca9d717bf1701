//! Activity: the open requests of one connection, and since when it is idle. Knows nothing of the protocol's
//! content.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::door::{Place, STRANGER_REFUSALS_MAX, STRANGER_REQUESTS_MAX};
use super::traffic::Protocol;

/// The length of HTTP/2's connection preface; no request can arrive before it.
const PREFACE_BYTES: u64 = 24;
/// How often per wait to check whether a request has begun to arrive.
const LOOKS: u32 = 8;

/// The open requests and answers of one connection.
#[derive(Debug)]
pub struct Activity {
    protocol: Protocol,
    /// Its slot at the door.
    pub place: Place,
    /// Requests whose answers have not begun.
    requests: AtomicUsize,
    /// Answers that are being sent.
    answers: AtomicUsize,
    /// Requests that were refused because too many others were open.
    refused: AtomicUsize,
    /// When the last request or answer ended.
    last: Mutex<Instant>,
    received_bytes: AtomicU64,
    /// When a request began to arrive that is not complete yet.
    begun: Mutex<Option<Instant>>,
}

/// An open request; dropping it ends it.
pub struct OpenRequest(Arc<Activity>);

/// An answer that is being sent; dropping it ends it.
pub struct OpenAnswer(Arc<Activity>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.ended();
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.0.ended();
        self.0.answers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OpenRequest {
    /// Marks the connection as admitted: it keeps its slot.
    pub fn admit(&self) {
        self.0.place.admit();
    }

    /// Whether it must be refused, because its connection is not admitted and has more open requests than such a
    /// connection may. A connection that goes on in spite of refusals is closed: it may never read them.
    pub fn must_be_refused(&self) -> bool {
        let is_over_limit = !self.0.place.is_admitted() && self.0.open() > STRANGER_REQUESTS_MAX;
        if is_over_limit && self.0.refused.fetch_add(1, Ordering::SeqCst) == STRANGER_REFUSALS_MAX {
            self.0.place.gives_way.notify_one();
        }
        is_over_limit
    }

    /// Opens another request on its connection.
    pub fn another(&self) -> Self {
        self.0.enter()
    }

    /// Starts its answer.
    pub fn begin_answer(self) -> OpenAnswer {
        self.0.answers.fetch_add(1, Ordering::SeqCst);
        OpenAnswer(self.0.clone())
    }
}

impl Activity {
    /// Creates the activity of a new connection.
    pub fn new(protocol: Protocol, place: Place) -> Self {
        let now = Instant::now();
        Self {
            protocol,
            place,
            requests: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            last: Mutex::new(now),
            received_bytes: AtomicU64::new(0),
            begun: Mutex::new(None),
        }
    }

    /// Starts a request.
    pub fn enter(self: &Arc<Self>) -> OpenRequest {
        self.requests.fetch_add(1, Ordering::SeqCst);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        OpenRequest(self.clone())
    }

    /// Notes received bytes.
    pub fn received(&self, bytes: usize) {
        let bytes_before = self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        // On HTTP/2 later bytes need not be a request: peers answer keepalive pings, and do not do so in the
        // middle of other frames.
        let is_beginning = match self.protocol {
            Protocol::Grpc => bytes_before < PREFACE_BYTES,
            Protocol::Http => self.requests.load(Ordering::SeqCst) == 0,
        };
        if is_beginning {
            let is_begun = self.protocol == Protocol::Http || bytes_before + (bytes as u64) < PREFACE_BYTES;
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            *begun = if is_begun { begun.or(Some(Instant::now())) } else { None };
        }
    }

    /// Waits, and then for ever if a request was admitted meanwhile.
    pub async fn unadmitted(&self, wait: Duration) {
        sleep(wait).await;
        if self.place.is_admitted() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until there was no open request for `wait`.
    pub async fn idle(&self, wait: Duration) {
        self.without(wait, || self.requests.load(Ordering::SeqCst)).await;
    }

    /// Waits until there was no open request and no answer being sent for `wait`.
    pub async fn quiet(&self, wait: Duration) {
        self.without(wait, || self.open()).await;
    }

    fn open(&self) -> usize {
        self.requests.load(Ordering::SeqCst) + self.answers.load(Ordering::SeqCst)
    }

    /// Waits until a request has been arriving for longer than `wait`.
    pub async fn stuck(&self, wait: Duration) {
        loop {
            let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let remaining = begun.map_or(wait / LOOKS, |begun| wait.saturating_sub(begun.elapsed()));
            if remaining.is_zero() {
                return;
            }
            sleep(remaining.max(Duration::from_millis(1))).await;
        }
    }

    async fn without(&self, wait: Duration, open: impl Fn() -> usize) {
        loop {
            let remaining = if open() > 0 {
                wait
            } else {
                let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
                wait.saturating_sub(last.elapsed())
            };
            if remaining.is_zero() {
                return;
            }
            sleep(remaining).await;
        }
    }

    fn ended(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}
