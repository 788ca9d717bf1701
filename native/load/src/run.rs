//! A run: executes a plan in the runtime that sends: the thread that finds a request due also sends it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::arrivals::{Arrivals, Schedule};
use super::calls::{Answered, Message};
use super::chance::Chance;
use super::pacer::Pacer;
use super::plan::{Pace, Plan};
use super::tally::{Tally, Times};
use super::way::Way;

/// The interval at which a run checks for a stop.
const LOOK: Duration = Duration::from_millis(20);
/// How long a refused caller waits before its next request, so that it does not flood an unavailable node.
const REFUSED_WAIT: Duration = Duration::from_millis(1);

/// Why a run cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The plan is invalid.
    Plan(String),
    /// The node cannot be reached.
    Unreachable(String),
    /// The machine lacks threads or sockets.
    Machine(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(text) | Self::Unreachable(text) | Self::Machine(text) => formatter.write_str(text),
        }
    }
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Measured requests that were due.
    pub due: u64,
    /// Answered ones among them.
    pub ok: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// Requests open now.
    pub outstanding: usize,
}

/// A running or finished plan.
#[derive(Debug)]
pub struct Run {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    way: Way,
    messages: Arc<[Message]>,
    started_at: Instant,
    tally: Mutex<Tally>,
    outstanding: AtomicUsize,
    /// Notified when no request is open any more.
    all_answered: Notify,
    is_stopped: AtomicBool,
    /// How long measured requests were sent; set at the end of the run.
    ended: Mutex<Option<Duration>>,
    ended_changed: Condvar,
}

impl Run {
    /// Starts a run on `runtime`, which must have a thread of its own.
    ///
    /// # Errors
    /// If the plan is invalid, if there are no messages, or if no timer can be created.
    pub fn start(
        plan: Plan,
        way: impl Into<Way>,
        messages: Arc<[Message]>,
        runtime: Handle,
    ) -> Result<Self, LoadError> {
        plan.check().map_err(LoadError::Plan)?;
        if messages.is_empty() {
            return Err(LoadError::Plan("0 messages, expected at least 1".into()));
        }
        let deadline_ns = plan.deadline.map_or(u64::MAX, nanoseconds);
        let shared = Arc::new(Shared {
            plan,
            way: way.into(),
            messages,
            started_at: Instant::now(),
            tally: Mutex::new(Tally::new(
                nanoseconds(plan.warmup),
                plan.seconds,
                deadline_ns,
                plan.keeps_answers,
            )),
            outstanding: AtomicUsize::new(0),
            all_answered: Notify::new(),
            is_stopped: AtomicBool::new(false),
            ended: Mutex::new(None),
            ended_changed: Condvar::new(),
        });
        let pacer = {
            let _entered = runtime.enter();
            Pacer::new().map_err(|error| LoadError::Machine(format!("cannot create a timer: {error}")))?
        };
        runtime.spawn(Arc::clone(&shared).carry_out(pacer));
        Ok(Self { shared })
    }

    /// Waits for the end of the run; returns whether it has ended.
    #[must_use]
    pub fn wait(&self, wait_max: Duration) -> bool {
        let ended = lock(&self.shared.ended);
        let result = self.shared.ended_changed.wait_timeout_while(ended, wait_max, |ended| ended.is_none());
        result.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// Stops the run: nothing more is sent, and open requests count as unanswered.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let tally = lock(&self.shared.tally);
        let outstanding = self.shared.outstanding.load(Ordering::Relaxed);
        Progress { due: tally.due, ok: tally.ok(), failed: tally.failed(), outstanding }
    }

    /// Returns the duration of the measured part in seconds and its tally; `None` while the run goes on.
    #[must_use]
    pub fn outcome(&self) -> Option<(f64, Tally)> {
        let ended = (*lock(&self.shared.ended))?;
        let mut tally = lock(&self.shared.tally).clone();
        tally.unanswered += tally.due - tally.ok() - tally.failed(); // requests open at the stop
        Some((ended.as_secs_f64(), tally))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A tally stays valid if a thread panicked while changing it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    fn now_ns(&self) -> u64 {
        nanoseconds(self.started_at.elapsed())
    }

    fn end_ns(&self) -> u64 {
        nanoseconds(self.plan.warmup + Duration::from_secs(self.plan.seconds.into()))
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Runs the plan from the first request to the last answer.
    async fn carry_out(self: Arc<Self>, pacer: Pacer) {
        match self.plan.pace {
            Pace::Open(arrivals) => self.send_when_due(arrivals, pacer).await,
            Pace::Closed { callers, seed } => {
                self.outstanding.store(callers, Ordering::Relaxed);
                for caller in 0..callers {
                    tokio::spawn(Arc::clone(&self).ask_again(caller, seed));
                }
            }
        }
        let sent_ns = self.now_ns().min(self.end_ns());
        // Every call ends by itself: all waits are bounded.
        while self.outstanding.load(Ordering::Acquire) > 0 && !self.is_stopped() {
            let _ = timeout(LOOK, self.all_answered.notified()).await;
        }
        let sent_ns = match self.plan.pace {
            Pace::Open(_) => sent_ns,
            Pace::Closed { .. } => self.now_ns().min(self.end_ns()),
        };
        let measured = Duration::from_nanos(sent_ns).saturating_sub(self.plan.warmup);
        *lock(&self.ended) = Some(measured);
        self.ended_changed.notify_all();
    }

    async fn send_when_due(self: &Arc<Self>, arrivals: Arrivals, mut pacer: Pacer) {
        let end_ns = self.end_ns();
        let schedule = Schedule::new(arrivals, self.messages.len());
        for (turn, arrival) in schedule.take_while(|arrival| arrival.at_ns < end_ns).enumerate() {
            if !self.wait_until(arrival.at_ns, &mut pacer).await {
                return;
            }
            lock(&self.tally).due(arrival.at_ns);
            if self.outstanding.load(Ordering::Relaxed) >= self.plan.outstanding_max {
                lock(&self.tally).overrun(arrival.at_ns);
                continue;
            }
            self.outstanding.fetch_add(1, Ordering::Relaxed);
            let shared = Arc::clone(self);
            tokio::spawn(async move {
                let _under_way = UnderWay(&shared);
                shared.ask(turn, arrival.at_ns, arrival.message).await;
            });
        }
        self.wait_until(end_ns, &mut pacer).await;
    }

    /// Waits until a time; returns false if the run was stopped before.
    async fn wait_until(&self, at_ns: u64, pacer: &mut Pacer) -> bool {
        loop {
            if self.is_stopped() {
                return false;
            }
            match Duration::from_nanos(at_ns).checked_sub(self.started_at.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                Some(remaining) => {
                    if pacer.wait(remaining.min(LOOK)).await.is_err() {
                        // Accurate to a millisecond; the lag shows it.
                        tokio::time::sleep(remaining.min(LOOK)).await;
                    }
                }
            }
        }
    }

    /// Sends a request and counts its outcome; returns whether it was answered.
    async fn ask(&self, turn: usize, due: u64, message: usize) -> bool {
        let (sent, request) = (self.now_ns(), self.messages[message].clone());
        let outcome = self.way.call(turn, request, self.plan.deadline, self.plan.answer_wait_max).await;
        let is_answered = matches!(outcome, Answered::With(_));
        let times = Times { due, sent, done: self.now_ns() };
        lock(&self.tally).done(message, times, outcome);
        is_answered
    }

    /// Runs a caller of the closed loop.
    async fn ask_again(self: Arc<Self>, caller: usize, seed: u64) {
        let _under_way = UnderWay(&self);
        let mut chance = Chance::new(seed, caller as u64);
        while !self.is_stopped() {
            let due = self.now_ns();
            if due >= self.end_ns() {
                return;
            }
            lock(&self.tally).due(due);
            let message = chance.below(self.messages.len());
            if !self.ask(caller, due, message).await {
                tokio::time::sleep(REFUSED_WAIT).await;
            }
        }
    }
}

/// Counts an open call or caller; dropping it counts down.
struct UnderWay<'a>(&'a Shared);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.outstanding.fetch_sub(1, Ordering::Release) == 1 {
            self.0.all_answered.notify_one();
        }
    }
}
