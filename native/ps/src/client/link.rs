//! A link: the requests to one shard, in order, from submission to answer, across reconnects. Knows no
//! socket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ShardOf;
use super::call::{Call, Event};
use super::figures::LinkMeter;
use super::settings::ClientSettings;
use crate::address::Address;
use crate::epoch::{Epoch, name};
use crate::error::{PsError, Result, Trouble};
use crate::frame::{Kind, MORE, readdress};
use crate::intake::Frame;
use crate::message::{HelloReply, SliceHead, refusal_of};

/// One request.
struct Pending {
    call: Arc<Call>,
    block: u32,
    kind: Kind,
    epoch: Option<Epoch>,
    frame: Arc<Vec<u8>>,
    /// The keys of a pull, and the rows received so far.
    keys: usize,
    rows: usize,
    submitted: Instant,
    is_again: bool,
}

#[derive(Default)]
struct LinkState {
    /// Requests not sent yet, by number.
    queue: VecDeque<(u64, Pending)>,
    /// Requests sent but not answered, by number.
    waiting: BTreeMap<u64, Pending>,
    next: u64,
    hello: Option<HelloReply>,
    /// The shard's epoch in this connection's hello; `None` while disconnected.
    epoch: Option<Epoch>,
    /// Whether a caller waits for a connection but has no request yet.
    is_wanted: bool,
    /// The last connection error, while disconnected.
    trouble: Option<PsError>,
    /// Whether the shard refused the client, so that the error is not temporary.
    is_refused: bool,
    is_closed: bool,
}

/// The request queue of one shard.
pub struct Link {
    number: u32,
    text: String,
    /// The shard's address.
    pub address: Address,
    /// The live counters.
    pub meter: LinkMeter,
    state: Mutex<LinkState>,
    /// Notified when there is something to send.
    pub wakeup: Notify,
    news: Condvar,
}

impl Link {
    /// Creates the links to all shards of a client.
    pub fn of_all(settings: &ClientSettings) -> Result<Vec<Arc<Self>>> {
        let link = |(number, text): (usize, &String)| {
            let address = Address::parse(text).map_err(|text| PsError::new(Trouble::Settings, text))?;
            Ok(Arc::new(Self {
                number: number as u32,
                text: text.clone(),
                address,
                meter: LinkMeter::default(),
                state: Mutex::new(LinkState { next: 1, ..LinkState::default() }),
                wakeup: Notify::new(),
                news: Condvar::new(),
            }))
        };
        settings.addresses.iter().enumerate().map(link).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("no holder panics")
    }

    /// Returns the shard's number and address, as errors name it.
    pub fn name(&self) -> (u32, &str) {
        (self.number, &self.text)
    }

    /// Returns the shard as its last hello described it.
    pub fn shard(&self) -> ShardOf {
        let state = self.lock();
        let parts =
            state.hello.as_ref().map_or(0..0, |hello| hello.parts.start as usize..hello.parts.end as usize);
        ShardOf {
            address: self.text.clone(),
            parts,
            epoch: state.hello.as_ref().and_then(|hello| hello.epoch),
        }
    }

    /// Returns the connection error as the end of a sentence, or nothing.
    pub fn trouble_text(&self) -> String {
        self.lock().trouble.as_ref().map_or(String::new(), |error| format!("; {}", error.text))
    }

    /// Waits until the shard has answered a first hello.
    pub fn wait_hello(&self, deadline: Instant) -> Result<HelloReply> {
        let mut state = self.lock();
        loop {
            if let Some(hello) = &state.hello {
                return Ok(hello.clone());
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            match &state.trouble {
                Some(error) if state.is_refused => return Err(error.clone()),
                Some(error) if remaining.is_zero() => return Err(error.clone()),
                None if remaining.is_zero() => {
                    return Err(PsError::at(
                        Trouble::Unreachable,
                        self.name(),
                        "no hello before the deadline",
                    ));
                }
                _ => state = self.news.wait_timeout(state, remaining).expect("no holder panics").0,
            }
        }
    }

    /// Queues a request. The frame is sent as it is, except for its request number.
    pub fn submit(
        &self,
        call: &Arc<Call>,
        block: u32,
        (kind, epoch): (Kind, Option<Epoch>),
        mut frame: Vec<u8>,
        keys: usize,
    ) -> Result<()> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(PsError::at(Trouble::Closed, self.name(), "the client is closed"));
        }
        let request = state.next;
        state.next += 1;
        readdress(&mut frame, request);
        let (call, frame, submitted) = (call.clone(), Arc::new(frame), Instant::now());
        let pending = Pending { call, block, kind, epoch, frame, keys, rows: 0, submitted, is_again: false };
        state.queue.push_back((request, pending));
        self.count(&state);
        drop(state);
        self.wakeup.notify_one();
        Ok(())
    }

    fn count(&self, state: &LinkState) {
        self.meter.set_in_flight(state.queue.len() + state.waiting.len());
    }

    /// Whether there is something to send, or a caller waits for the shard.
    pub fn has_work(&self) -> bool {
        let state = self.lock();
        state.is_wanted || !state.queue.is_empty()
    }

    /// Waits until the shard is connected at an epoch no older than `least`, and returns that epoch.
    pub fn wait_epoch(&self, least: Option<Epoch>, deadline: Instant) -> Result<Epoch> {
        let mut state = self.lock();
        if state.is_refused {
            // The shard may accept the client now: let the lane try again.
            (state.is_refused, state.is_wanted) = (false, true);
            self.wakeup.notify_one();
        }
        loop {
            if let Some(epoch) = state.epoch.filter(|&epoch| Some(epoch) >= least) {
                return Ok(epoch);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            match &state.trouble {
                _ if state.is_closed => {
                    return Err(PsError::at(Trouble::Closed, self.name(), "the client is closed"));
                }
                Some(error) if state.is_refused || remaining.is_zero() => return Err(error.clone()),
                _ if remaining.is_zero() => {
                    let text = match state.epoch {
                        None => "it has no tables".to_owned(),
                        Some(_) => {
                            format!("it is at epoch {}, another shard at {}", name(state.epoch), name(least))
                        }
                    };
                    return Err(PsError::at(Trouble::NotReady, self.name(), text));
                }
                _ => state = self.news.wait_timeout(state, remaining).expect("no holder panics").0,
            }
        }
    }

    /// Waits until the state of the connection changes, or the wait is over.
    pub fn wait_news(&self, wait: Duration) {
        drop(self.news.wait_timeout(self.lock(), wait).expect("no holder panics"));
    }

    /// Takes the next frame to send, and counts its request as sent.
    pub fn next(&self) -> Option<Arc<Vec<u8>>> {
        let mut state = self.lock();
        let (request, pending) = state.queue.pop_front()?;
        let frame = pending.frame.clone();
        self.meter.send(pending.kind, frame.len(), pending.is_again);
        state.waiting.insert(request, pending);
        Some(frame)
    }

    /// Returns a request number for a ping.
    pub fn number(&self) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        state.next - 1
    }

    /// Whether the shard owes an answer. Orders do not count: the embedding process answers them.
    pub fn is_owed(&self) -> bool {
        self.lock().waiting.values().any(|pending| pending.kind != Kind::Order)
    }

    /// Takes the hello of a new connection. A shard must not change its number, count or parts.
    pub fn hello(&self, hello: HelloReply) -> Result<()> {
        let mut state = self.lock();
        let identity = |hello: &HelloReply| (hello.number, hello.count, hello.parts.clone());
        if let Some(previous) = state.hello.as_ref().filter(|previous| identity(previous) != identity(&hello))
        {
            let text = format!("it is now shard {:?} but was {:?}", identity(&hello), identity(previous));
            return Err(PsError::at(Trouble::Settings, self.name(), text));
        }
        state.epoch = hello.epoch;
        state.hello = Some(hello);
        (state.trouble, state.is_refused, state.is_wanted) = (None, false, false);
        self.meter.connect();
        self.news.notify_all();
        Ok(())
    }

    /// Handles a lost connection: unanswered requests are queued again in order, except orders, which may
    /// have been carried out and fail.
    pub fn lost(&self, error: PsError) {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting);
        for (request, mut pending) in waiting.into_iter().rev() {
            if pending.kind == Kind::Order {
                let text = format!("the connection was lost before an order was answered: {}", error.text);
                self.fail(pending, PsError::at(Trouble::Lost, self.name(), text));
            } else {
                (pending.rows, pending.is_again) = (0, true);
                state.queue.push_front((request, pending));
            }
        }
        (state.trouble, state.is_refused, state.epoch) = (Some(error), false, None);
        self.count(&state);
        self.news.notify_all();
    }

    /// Handles a refusal of this client: its queued requests fail. If `epoch`, the one that the client sent,
    /// is stale, only the requests of that epoch fail.
    pub fn refused(&self, epoch: Option<Epoch>, error: PsError) {
        let mut state = self.lock();
        for (request, pending) in std::mem::take(&mut state.queue) {
            if error.trouble == Trouble::StaleEpoch && pending.epoch != epoch {
                state.queue.push_back((request, pending));
            } else {
                self.fail(pending, error.clone());
            }
        }
        (state.trouble, state.is_refused, state.is_wanted) = (Some(error), true, false);
        state.epoch = None;
        self.count(&state);
        self.news.notify_all();
    }

    fn fail(&self, pending: Pending, error: PsError) {
        self.meter.end(pending.kind, pending.submitted.elapsed(), true);
        pending.call.give(Event::Failed { block: pending.block, error });
    }

    /// Fails all requests of other epochs, except orders.
    pub fn end_epochs_but(&self, epoch: Epoch) {
        self.end_where(
            |pending| pending.kind != Kind::Order && pending.epoch != Some(epoch),
            |pending| {
                let text =
                    format!("the call belongs to epoch {}, the client is at {epoch}", name(pending.epoch));
                Some(PsError::new(Trouble::StaleEpoch, text))
            },
        );
    }

    /// Drops the requests of a call that has ended.
    pub fn forget(&self, call: &Arc<Call>) {
        self.end_where(|pending| Arc::ptr_eq(&pending.call, call), |_| None);
    }

    /// Fails all requests: the client is closed.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
        let error = PsError::at(Trouble::Closed, self.name(), "the client was closed");
        self.end_where(|_| true, |_| Some(error.clone()));
    }

    fn end_where(&self, ends: impl Fn(&Pending) -> bool, error: impl Fn(&Pending) -> Option<PsError>) {
        let mut state = self.lock();
        let mut ended = Vec::new();
        for (request, pending) in std::mem::take(&mut state.queue) {
            if ends(&pending) {
                ended.push(pending);
            } else {
                state.queue.push_back((request, pending));
            }
        }
        for (request, pending) in std::mem::take(&mut state.waiting) {
            if ends(&pending) {
                ended.push(pending);
            } else {
                state.waiting.insert(request, pending);
            }
        }
        self.count(&state);
        drop(state);
        for pending in ended {
            match error(&pending) {
                Some(error) => self.fail(pending, error),
                None => self.meter.end(pending.kind, pending.submitted.elapsed(), true),
            }
        }
    }

    /// Handles a frame of an answer. Returns an error text if it answers no request.
    pub fn answered(&self, frame: Frame) -> std::result::Result<(), String> {
        let Frame { header, payload } = frame;
        let mut state = self.lock();
        if header.kind == Kind::Error && header.request == 0 {
            return Err(refusal_of(&payload).to_string());
        }
        let Some(pending) = state.waiting.get_mut(&header.request) else {
            // The call may have ended before its answer arrived.
            let is_old = header.request > 0 && header.request < state.next;
            let unknown = || format!("an answer to the unknown request {}", header.request);
            return if is_old { Ok(()) } else { Err(unknown()) };
        };
        self.meter.receive(pending.kind, payload.len());
        let (kind, is_last, block, call) =
            (header.kind, header.flags & MORE == 0, pending.block, pending.call.clone());
        let event = match kind {
            Kind::Error => {
                Event::Failed { block, error: PsError::refused(self.name(), &refusal_of(&payload)) }
            }
            Kind::Pull if pending.kind == Kind::Pull => {
                let head = SliceHead::decode(&payload).map_err(|refusal| refusal.to_string())?.0;
                let (first, count) = (head.first as usize, head.count as usize);
                if first != pending.rows || count == 0 || is_last != (first + count == pending.keys) {
                    let (rows, keys) = (pending.rows, pending.keys);
                    return Err(format!("rows {first}..+{count} after {rows} of {keys} rows"));
                }
                pending.rows += count;
                Event::Rows { block, head, payload, is_last }
            }
            kind if kind == pending.kind && is_last => Event::Done { block, payload },
            kind => {
                return Err(format!(
                    "a {kind:?} frame answers {:?}, flags {:#06x}",
                    pending.kind, header.flags
                ));
            }
        };
        let is_error = kind == Kind::Error;
        if is_last {
            if let Some(pending) = state.waiting.remove(&header.request) {
                self.meter.end(pending.kind, pending.submitted.elapsed(), is_error);
            }
            self.count(&state);
        }
        drop(state);
        call.give(event);
        Ok(())
    }

    /// Returns the interval between pings: a third of the time after which the shard drops a silent client.
    pub fn idle_wait(&self) -> Duration {
        let idle_ms_max = self.lock().hello.as_ref().map_or(60_000, |hello| hello.idle_ms_max);
        Duration::from_millis(u64::from(idle_ms_max) / 3 + 1)
    }
}
