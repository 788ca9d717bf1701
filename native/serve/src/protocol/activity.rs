//! Activity: what is under way on one connection, and since when nothing is. It knows not what is spoken there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::door::{Place, STRANGER_REQUESTS_MAX};
use super::traffic::Protocol;

/// Bytes that a connection of HTTP/2 begins with; nothing can be asked before they are there.
const PREFACE_BYTES: u64 = 24;
/// How often a wait looks whether a request has begun to come.
const LOOKS: u32 = 8;

/// What is under way on one connection.
#[derive(Debug)]
pub struct Activity {
    protocol: Protocol,
    /// Its place at the door.
    pub place: Place,
    /// Requests whose answers have not begun.
    asked: AtomicUsize,
    /// Answers that are on their way.
    answered: AtomicUsize,
    /// When the last of either ended.
    last: Mutex<Instant>,
    heard_bytes: AtomicU64,
    /// Since when bytes have come that are no request yet.
    begun: Mutex<Option<Instant>>,
}

/// One request of a connection; dropping it ends it.
pub struct Asked(Arc<Activity>);

/// One answer on its way; dropping it ends it.
pub struct Answering(Arc<Activity>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.ended();
        self.0.asked.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.ended();
        self.0.answered.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Asked {
    /// It was let in, so that its connection keeps its place.
    pub fn admit(&self) {
        self.0.place.admit();
    }

    /// Whether its connection has no place to keep, and more under way than a stranger may.
    pub fn is_crowd(&self) -> bool {
        !self.0.place.is_admitted() && self.0.open() > STRANGER_REQUESTS_MAX
    }

    /// Its answer begins.
    pub fn answered(self) -> Answering {
        self.0.answered.fetch_add(1, Ordering::SeqCst);
        Answering(self.0.clone())
    }
}

impl Activity {
    /// A connection that was just made.
    pub fn new(protocol: Protocol, place: Place) -> Self {
        let now = Instant::now();
        Self {
            protocol,
            place,
            asked: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            last: Mutex::new(now),
            heard_bytes: AtomicU64::new(0),
            begun: Mutex::new(None),
        }
    }

    /// One request more.
    pub fn enter(self: &Arc<Self>) -> Asked {
        self.asked.fetch_add(1, Ordering::SeqCst);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Asked(self.clone())
    }

    /// So many bytes have come.
    pub fn heard(&self, bytes: usize) {
        let before = self.heard_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        // Of HTTP/2 what comes later need be no request: its peers are asked now and then whether they are there, and
        // cannot say so in the middle of something else.
        let is_beginning = match self.protocol {
            Protocol::Grpc => before < PREFACE_BYTES,
            Protocol::Http => self.asked.load(Ordering::SeqCst) == 0,
        };
        if is_beginning {
            let is_begun = self.protocol == Protocol::Http || before + (bytes as u64) < PREFACE_BYTES;
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            *begun = if is_begun { begun.or(Some(Instant::now())) } else { None };
        }
    }

    /// Wait for so long, and for ever where a request was let in by then.
    pub async fn strange(&self, wait: Duration) {
        sleep(wait).await;
        if self.place.is_admitted() {
            std::future::pending::<()>().await;
        }
    }

    /// Wait until nothing was asked for so long.
    pub async fn idle(&self, wait: Duration) {
        self.without(wait, || self.asked.load(Ordering::SeqCst)).await;
    }

    /// Wait until for so long nothing was asked and no answer was on its way.
    pub async fn quiet(&self, wait: Duration) {
        self.without(wait, || self.open()).await;
    }

    fn open(&self) -> usize {
        self.asked.load(Ordering::SeqCst) + self.answered.load(Ordering::SeqCst)
    }

    /// Wait until a request that began to come has taken longer than this and is none yet.
    pub async fn stuck(&self, wait: Duration) {
        loop {
            let begun = *self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let left = begun.map_or(wait / LOOKS, |begun| wait.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                return;
            }
            sleep(left.max(Duration::from_millis(1))).await;
        }
    }

    async fn without(&self, wait: Duration, open: impl Fn() -> usize) {
        loop {
            let left = if open() > 0 {
                wait
            } else {
                let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
                wait.saturating_sub(last.elapsed())
            };
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    fn ended(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}
