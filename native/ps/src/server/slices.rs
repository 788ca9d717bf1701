//! Slices: parts of steps, which are applied when they come or held until a step has all of them, and the sums of
//! dense vectors.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use streamlearn_table::{ByPart, PARTS, Push, Pushed, Table};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::ServerCore;
use super::connection::{Connection, End};
use super::peers::{Ending, Peer};
use super::stage::{InUse, Outcome};
use super::work::{LEARN_KEYS_MAX, add, check_gradients, checked, learn, push_of};
use crate::dense_sum::{DenseSums, Progress};
use crate::frame::{Kind, REPLY, begin, finish};
use crate::merge::{Joined, Met, Summed, block_end, runs};
use crate::message::{PartAsk, PartHead, PushAsk, ReduceAsk, ReduceHead, ReduceReply};
use crate::open_steps::{CompleteStep, OpenSteps, Terms};
use crate::refusal::{Code, Refusal};
use crate::stats::Verb;

/// The longest wait of one reduce.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The maximum number of reduces of one connection that wait.
const PARKED_MAX: usize = 64;

/// Bytes or numbers with their share of the bytes that may be held.
pub struct Held<T> {
    content: Vec<T>,
    _room: OwnedSemaphorePermit,
}

impl<T> Deref for Held<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.content
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.content
    }
}

/// What is held in one epoch.
pub struct Slices {
    /// By table. The task that holds the lock applies what is due, so steps are applied in order, and what is here
    /// already was applied.
    steps: Vec<AsyncMutex<OpenSteps<Held<u8>>>>,
    sums: Mutex<DenseSums<Held<f32>>>,
    /// Notified when a sum is settled.
    settled: watch::Sender<()>,
    /// KiB that may still be held.
    room: Arc<Semaphore>,
}

/// A reduce that waited until its answer might have changed.
pub struct Parked {
    request: u64,
    head: ReduceHead,
    began: Instant,
    bytes_in: u64,
}

impl Slices {
    /// Holds nothing of any table yet.
    pub fn new(tables: usize, bytes_max: usize) -> Self {
        Self {
            steps: (0..tables).map(|_| AsyncMutex::default()).collect(),
            sums: Mutex::default(),
            settled: watch::Sender::default(),
            room: Arc::new(Semaphore::new(bytes_max >> 10)),
        }
    }

    fn sums(&self) -> MutexGuard<'_, DenseSums<Held<f32>>> {
        self.sums.lock().expect("no holder panics")
    }

    /// Copies what must be held, if there is room.
    fn hold<T: Copy>(&self, content: &[T]) -> Result<Held<T>, Refusal> {
        let bytes = size_of_val(content);
        let permits = u32::try_from((bytes >> 10) + 1).unwrap_or(u32::MAX);
        match self.room.clone().try_acquire_many_owned(permits) {
            Ok(room) => Ok(Held { content: content.to_vec(), _room: room }),
            Err(_) => {
                let left = self.room.available_permits();
                let text = format!(
                    "{bytes} bytes of a slice: {left} KiB of in_flight_bytes_max are left for slices"
                );
                Err(Refusal::new(Code::Full, text))
            }
        }
    }

    /// Gives a slice to a sum, or only asks.
    fn reduce(&self, ask: &ReduceAsk<'_>) -> Result<Progress<Held<f32>>, Refusal> {
        let progress = self.sums().give(&ask.head, &ask.values, |values| self.hold(values));
        if ask.head.slice.is_some() && !matches!(progress, Ok(Progress::Open)) {
            self.settled.send_replace(());
        }
        progress
    }
}

/// Takes a block of a slice, and applies what is then due.
pub async fn give(
    core: &ServerCore,
    in_use: &InUse,
    (head, ask): (&PartHead, &PushAsk<'_>),
    payload: &[u8],
) -> Outcome {
    let (table, gradients) = checked(core, in_use, ask)?;
    let slices = &in_use.installed().slices;
    let terms = Terms { now_ms: ask.now_ms, rate_scale: ask.rate_scale };
    let hold = || slices.hold(if head.at_once { &[] } else { payload });
    let mut steps = slices.steps[usize::from(ask.table)].lock().await;
    let due = steps.give(head, terms, ask.columns.keys.len(), hold)?;
    let mut outcomes = Vec::new();
    if due.block {
        outcomes.push(learn(table, &push_of(ask, &gradients)).await);
    }
    for step in due.steps {
        // Slices of the steps after one that fails were taken long ago, so these are applied all the same.
        outcomes.push(learn_step(table, step).await);
    }
    let mut total = Pushed::default();
    for outcome in outcomes {
        match outcome {
            Ok(pushed) => add(&mut total, pushed),
            Err(refusal) => {
                if head.may_repeat {
                    steps.fail(refusal.clone());
                }
                return Err(refusal);
            }
        }
    }
    Ok(total)
}

/// Applies a complete step: all of it, or nothing if a sum is too large.
async fn learn_step(table: &Table, step: CompleteStep<Held<u8>>) -> Outcome {
    let dim = table.settings.dim;
    let asks: Vec<PushAsk<'_>> = step
        .blocks
        .iter()
        .map(|block| PartAsk::decode(block).map(|part| part.push))
        .collect::<Result<_, _>>()?;
    let numbers = |ask: &'_ PushAsk<'_>| ask.columns.keys.len() * dim;
    let gradients: Vec<_> = asks
        .iter()
        .map(|ask| ask.encoding.numbers(&ask.columns.gradients, numbers(ask)).expect("the block was checked"))
        .collect();
    let mut joined = Joined::default();
    asks.iter().zip(&gradients).for_each(|(ask, gradients)| joined.append(&ask.columns, gradients, dim));
    let by_part = ByPart::new(&joined.keys);
    let (mut members, mut met, mut summed) = (by_part.of(0..PARTS), Met::default(), Summed::default());
    let mut paused_at = 0;
    while !members.is_empty() {
        let block;
        (block, members) = members.split_at(block_end(members));
        summed.add(&joined, dim, block, &mut met);
        if summed.keys.len() >= paused_at + LEARN_KEYS_MAX {
            paused_at = summed.keys.len();
            yield_now().await;
        }
    }
    check_gradients(&summed.keys, &summed.sums, dim)?;
    let push = Push {
        keys: &summed.keys,
        gradients: &summed.sums,
        counts: Some(&summed.counts),
        admit: &runs(&summed.thresholds),
        now_ms: step.terms.now_ms,
        rate_scale: step.terms.rate_scale,
    };
    learn(table, &push).await
}

/// Waits until the answer to a question about a sum may have changed.
async fn wait(in_use: InUse, mut settled: watch::Receiver<()>, peer: Arc<Peer>, parked: Parked) -> Parked {
    let is_open = || in_use.installed().slices.sums().is_open(parked.head.step);
    let settles = async { while is_open() && settled.changed().await.is_ok() {} };
    tokio::select! {
        () = settles => {}
        () = in_use.is_over() => {}
        () = peer.ends(Ending::Drain) => {}
        () = sleep(WAIT_MAX.min(Duration::from_millis(parked.head.wait_ms.into()))) => {}
    }
    parked
}

impl Connection<'_> {
    /// Handles a reduce. Returns the bytes of the reply; `None` if it waits for other slices.
    pub(super) async fn reduce(
        &mut self,
        request: u64,
        payload: &[u8],
        began: Instant,
    ) -> Result<Option<u64>, End> {
        let ask = ReduceAsk::decode(payload)?;
        let head = ask.head;
        self.entry.peer.used_epoch(head.epoch);
        if head.wait_ms > 0 && self.parked.len() >= PARKED_MAX {
            let text = format!("the limit of {PARKED_MAX} reduces of one connection that wait is reached");
            return Err(Refusal::new(Code::Busy, text).into());
        }
        let in_use = self.core.stage.take(head.epoch)?;
        let slices = &in_use.installed().slices;
        // Subscribed before the slice is given, so that no change is missed.
        let settled = slices.settled.subscribe();
        let progress = slices.reduce(&ask)?;
        if head.wait_ms > 0 && matches!(progress, Progress::Open) {
            let parked = Parked { request, head, began, bytes_in: payload.len() as u64 };
            self.parked.spawn(wait(in_use, settled, self.entry.peer.clone(), parked));
            return Ok(None);
        }
        drop(in_use);
        self.send_sum((request, head), &progress).await.map(Some)
    }

    /// Answers a reduce that has waited.
    pub(super) async fn unpark(&mut self, parked: Parked) -> Result<(), End> {
        let Parked { request, head, began, bytes_in } = parked;
        let ask = ReduceAsk { head: ReduceHead { slice: None, ..head }, values: (&[]).into() };
        // The tables may have changed meanwhile.
        let in_use = self.core.stage.take(head.epoch);
        let progress = in_use.and_then(|in_use| in_use.installed().slices.reduce(&ask));
        let result = match progress {
            Ok(progress) => self.send_sum((request, head), &progress).await,
            Err(refusal) => Err(refusal.into()),
        };
        self.conclude((Verb::Reduce, request), result.map(|bytes_out| (0, bytes_out)), began, bytes_in).await
    }

    /// Sends the progress of a sum, and returns the bytes of the frame.
    async fn send_sum(
        &mut self,
        (request, head): (u64, ReduceHead),
        progress: &Progress<Held<f32>>,
    ) -> Result<u64, End> {
        let sums = match progress {
            Progress::Finite(sum) if head.wants_sums => &sum[..],
            _ => &[],
        };
        let reply = ReduceReply {
            is_complete: !matches!(progress, Progress::Open),
            is_finite: !matches!(progress, Progress::NotFinite),
            sums: sums.into(),
        };
        let mut frame = self.core.payloads.take();
        begin(&mut frame);
        reply.append(&mut frame);
        finish(&mut frame, Kind::Reduce, REPLY, request);
        let sent = self.write(&frame).await;
        let bytes_out = frame.len() as u64;
        self.core.payloads.give(frame);
        sent.map(|()| bytes_out)
    }
}
