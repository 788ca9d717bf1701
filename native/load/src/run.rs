//! A run: a plan carried out, all of it in the runtime that sends: what is due is sent by the thread that found it due.

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

/// How soon a run hears that it is to stop.
const LOOK: Duration = Duration::from_millis(20);
/// How long a caller that was refused waits before it asks again: a node that is away is not stormed.
const REFUSED_WAIT: Duration = Duration::from_millis(1);

/// Why there is no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// What is asked for cannot be.
    Plan(String),
    /// The node cannot be reached.
    Unreachable(String),
    /// The machine refuses threads or sockets.
    Machine(String),
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(said) | Self::Unreachable(said) | Self::Machine(said) => formatter.write_str(said),
        }
    }
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests that were due and count.
    pub due: u64,
    /// Of these, how many were answered.
    pub ok: u64,
    /// And how many failed.
    pub failed: u64,
    /// How many are under way now.
    pub outstanding: usize,
}

/// A plan that is being carried out, or was.
#[derive(Debug)]
pub struct Run {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    way: Way,
    messages: Arc<[Message]>,
    begun: Instant,
    tally: Mutex<Tally>,
    outstanding: AtomicUsize,
    /// None is outstanding any more.
    answered: Notify,
    is_stopped: AtomicBool,
    /// How long requests that count were sent, once the run has ended.
    ended: Mutex<Option<Duration>>,
    told: Condvar,
}

impl Run {
    /// Begin; `runtime` carries it out, so it must have a thread of its own.
    ///
    /// # Errors
    /// The plan cannot be, there are no messages, or there is no timer.
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
            begun: Instant::now(),
            tally: Mutex::new(Tally::new(nanoseconds(plan.warmup), plan.seconds, deadline_ns)),
            outstanding: AtomicUsize::new(0),
            answered: Notify::new(),
            is_stopped: AtomicBool::new(false),
            ended: Mutex::new(None),
            told: Condvar::new(),
        });
        let pacer = {
            let _entered = runtime.enter();
            Pacer::new().map_err(|error| LoadError::Machine(format!("no timer: {error}")))?
        };
        runtime.spawn(Arc::clone(&shared).carry_out(pacer));
        Ok(Self { shared })
    }

    /// Whether it has ended, within that time.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        let ended = lock(&self.shared.ended);
        let waited = self.shared.told.wait_timeout_while(ended, at_most, |ended| ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// End it: no more is sent, and what is without an answer counts as that.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let tally = lock(&self.shared.tally);
        let outstanding = self.shared.outstanding.load(Ordering::Relaxed);
        Progress { due: tally.due, ok: tally.ok(), failed: tally.failed(), outstanding }
    }

    /// For how many seconds requests that count were sent, and what came of them; none while it goes on.
    #[must_use]
    pub fn outcome(&self) -> Option<(f64, Tally)> {
        let ended = (*lock(&self.shared.ended))?;
        let mut tally = lock(&self.shared.tally).clone();
        tally.unanswered += tally.due - tally.ok() - tally.failed(); // those under way when it was stopped
        Some((ended.as_secs_f64(), tally))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A tally stays what it is when someone who changed it panicked.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Shared {
    fn now_ns(&self) -> u64 {
        nanoseconds(self.begun.elapsed())
    }

    fn end_ns(&self) -> u64 {
        nanoseconds(self.plan.warmup + Duration::from_secs(self.plan.seconds.into()))
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// All of it, from the first request to the last answer.
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
        // Every call ends by itself: none waits without a bound.
        while self.outstanding.load(Ordering::Acquire) > 0 && !self.is_stopped() {
            let _ = timeout(LOOK, self.answered.notified()).await;
        }
        let sent_ns = match self.plan.pace {
            Pace::Open(_) => sent_ns,
            Pace::Closed { .. } => self.now_ns().min(self.end_ns()),
        };
        let counted = Duration::from_nanos(sent_ns).saturating_sub(self.plan.warmup);
        *lock(&self.ended) = Some(counted);
        self.told.notify_all();
    }

    async fn send_when_due(self: &Arc<Self>, arrivals: Arrivals, mut pacer: Pacer) {
        let end_ns = self.end_ns();
        let schedule = Schedule::new(arrivals, self.messages.len());
        for (turn, arrival) in schedule.take_while(|one| one.at_ns < end_ns).enumerate() {
            if !self.wait_until(arrival.at_ns, &mut pacer).await {
                return;
            }
            lock(&self.tally).due(arrival.at_ns);
            if self.outstanding.load(Ordering::Relaxed) >= self.plan.outstanding_max {
                lock(&self.tally).overrun(arrival.at_ns);
                continue;
            }
            self.outstanding.fetch_add(1, Ordering::Relaxed);
            let (shared, message) = (Arc::clone(self), self.messages[arrival.message].clone());
            tokio::spawn(async move {
                let _under_way = UnderWay(&shared);
                shared.ask(turn, arrival.at_ns, message).await;
            });
        }
        self.wait_until(end_ns, &mut pacer).await;
    }

    /// Whether that time came before the run was stopped.
    async fn wait_until(&self, at_ns: u64, pacer: &mut Pacer) -> bool {
        loop {
            if self.is_stopped() {
                return false;
            }
            match Duration::from_nanos(at_ns).checked_sub(self.begun.elapsed()) {
                None | Some(Duration::ZERO) => return true,
                Some(left) => {
                    if pacer.wait(left.min(LOOK)).await.is_err() {
                        // Good to a millisecond; the lag tells.
                        tokio::time::sleep(left.min(LOOK)).await;
                    }
                }
            }
        }
    }

    /// One request and what comes of it; whether it was answered.
    async fn ask(&self, turn: usize, due: u64, message: Message) -> bool {
        let sent = self.now_ns();
        let answered = self.way.call(turn, message, self.plan.deadline, self.plan.answer_wait_max).await;
        let is_answered = matches!(answered, Answered::With(_));
        let times = Times { due, sent, done: self.now_ns() };
        lock(&self.tally).done(times, answered);
        is_answered
    }

    /// A caller of the closed loop.
    async fn ask_again(self: Arc<Self>, caller: usize, seed: u64) {
        let _under_way = UnderWay(&self);
        let mut chance = Chance::new(seed, caller as u64);
        while !self.is_stopped() {
            let due = self.now_ns();
            if due >= self.end_ns() {
                return;
            }
            lock(&self.tally).due(due);
            let message = self.messages[chance.below(self.messages.len())].clone();
            if !self.ask(caller, due, message).await {
                tokio::time::sleep(REFUSED_WAIT).await;
            }
        }
    }
}

/// A call or caller that is under way; counted down however it ends.
struct UnderWay<'a>(&'a Shared);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.outstanding.fetch_sub(1, Ordering::Release) == 1 {
            self.0.answered.notify_one();
        }
    }
}
