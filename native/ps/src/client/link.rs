//! A link: what is asked of one shard, in order, from asking to the answer, whatever becomes of connections. Knows no
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
struct Asked {
    call: Arc<Call>,
    block: u32,
    kind: Kind,
    epoch: Option<Epoch>,
    frame: Arc<Vec<u8>>,
    /// Keys that a pull wants, and of how many rows have come.
    keys: usize,
    rows: usize,
    asked: Instant,
    is_again: bool,
}

#[derive(Default)]
struct LinkState {
    /// Not yet sent, by request.
    queue: VecDeque<(u64, Asked)>,
    /// Sent and not answered.
    waiting: BTreeMap<u64, Asked>,
    next: u64,
    hello: Option<HelloReply>,
    /// The epoch the shard said this connection's hello in; none while there is no connection.
    epoch: Option<Epoch>,
    /// Whether somebody waits for a connection without asking for anything yet.
    is_wanted: bool,
    /// What is wrong with the connection, if it is not there.
    trouble: Option<PsError>,
    /// Whether the trouble does not pass by itself.
    is_refused: bool,
    is_closed: bool,
}

/// What is asked of one shard.
pub struct Link {
    number: u32,
    text: String,
    /// Where it is.
    pub address: Address,
    /// What counts.
    pub meter: LinkMeter,
    state: Mutex<LinkState>,
    /// Told when there is something to send.
    pub asked: Notify,
    said_hello: Condvar,
}

impl Link {
    /// Links to all shards of a client.
    pub fn of_all(settings: &ClientSettings) -> Result<Vec<Arc<Self>>> {
        let link = |(number, text): (usize, &String)| {
            let address = Address::parse(text).map_err(|text| PsError::new(Trouble::Settings, text))?;
            Ok(Arc::new(Self {
                number: number as u32,
                text: text.clone(),
                address,
                meter: LinkMeter::default(),
                state: Mutex::new(LinkState { next: 1, ..LinkState::default() }),
                asked: Notify::new(),
                said_hello: Condvar::new(),
            }))
        };
        settings.addresses.iter().enumerate().map(link).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().expect("no holder panics")
    }

    /// The shard, as errors name it.
    pub fn name(&self) -> (u32, &str) {
        (self.number, &self.text)
    }

    /// The shard, as it was when it was last said hello to.
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

    /// What is wrong with the connection, as the end of a sentence.
    pub fn trouble_text(&self) -> String {
        self.lock().trouble.as_ref().map_or(String::new(), |error| format!("; {}", error.text))
    }

    /// Wait until the shard has answered a first hello.
    pub fn wait_hello(&self, deadline: Instant) -> Result<HelloReply> {
        let mut state = self.lock();
        loop {
            if let Some(hello) = &state.hello {
                return Ok(hello.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match &state.trouble {
                Some(error) if state.is_refused => return Err(error.clone()),
                Some(error) if left.is_zero() => return Err(error.clone()),
                None if left.is_zero() => {
                    return Err(PsError::at(
                        Trouble::Unreachable,
                        self.name(),
                        "it did not say hello in time",
                    ));
                }
                _ => state = self.said_hello.wait_timeout(state, left).expect("no holder panics").0,
            }
        }
    }

    /// Ask for something. The frame is sent as it is, under a number of its own.
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
        let (call, frame, asked) = (call.clone(), Arc::new(frame), Instant::now());
        let asked = Asked { call, block, kind, epoch, frame, keys, rows: 0, asked, is_again: false };
        state.queue.push_back((request, asked));
        self.count(&state);
        drop(state);
        self.asked.notify_one();
        Ok(())
    }

    fn count(&self, state: &LinkState) {
        self.meter.set_in_flight(state.queue.len() + state.waiting.len());
    }

    /// Whether there is something to send, or somebody waits for the shard.
    pub fn is_asked(&self) -> bool {
        let state = self.lock();
        state.is_wanted || !state.queue.is_empty()
    }

    /// Wait until the shard has said hello in some epoch, or in one no older than this. Gives which.
    pub fn wait_epoch(&self, least: Option<Epoch>, deadline: Instant) -> Result<Epoch> {
        let mut state = self.lock();
        if state.is_refused {
            // Who was not let in before may be now.
            (state.is_refused, state.is_wanted) = (false, true);
            self.asked.notify_one();
        }
        loop {
            if let Some(epoch) = state.epoch.filter(|&epoch| Some(epoch) >= least) {
                return Ok(epoch);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match &state.trouble {
                _ if state.is_closed => {
                    return Err(PsError::at(Trouble::Closed, self.name(), "the client is closed"));
                }
                Some(error) if state.is_refused || left.is_zero() => return Err(error.clone()),
                _ if left.is_zero() => {
                    let text = match state.epoch {
                        None => "it has no tables".to_owned(),
                        Some(_) => format!(
                            "it stands at epoch {}, another shard at {}",
                            name(state.epoch),
                            name(least)
                        ),
                    };
                    return Err(PsError::at(Trouble::NotReady, self.name(), text));
                }
                _ => state = self.said_hello.wait_timeout(state, left).expect("no holder panics").0,
            }
        }
    }

    /// Wait until something becomes of the connection, or the wait is over.
    pub fn wait_news(&self, wait: Duration) {
        drop(self.said_hello.wait_timeout(self.lock(), wait).expect("no holder panics"));
    }

    /// The next thing to send; from here on it counts as sent.
    pub fn next(&self) -> Option<Arc<Vec<u8>>> {
        let mut state = self.lock();
        let (request, asked) = state.queue.pop_front()?;
        let frame = asked.frame.clone();
        self.meter.send(asked.kind, frame.len(), asked.is_again);
        state.waiting.insert(request, asked);
        Some(frame)
    }

    /// A number for a request that no call waits for.
    pub fn number(&self) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        state.next - 1
    }

    /// Whether the shard owes an answer that it can give by itself.
    pub fn is_owed(&self) -> bool {
        self.lock().waiting.values().any(|asked| asked.kind != Kind::Order)
    }

    /// A shard has said hello. What it is must not change.
    pub fn hello(&self, hello: HelloReply) -> Result<()> {
        let mut state = self.lock();
        let what = |hello: &HelloReply| (hello.number, hello.count, hello.parts.clone());
        if let Some(before) = state.hello.as_ref().filter(|before| what(before) != what(&hello)) {
            let text = format!("it is now shard {:?}, and was {:?}", what(&hello), what(before));
            return Err(PsError::at(Trouble::Settings, self.name(), text));
        }
        state.epoch = hello.epoch;
        state.hello = Some(hello);
        (state.trouble, state.is_refused, state.is_wanted) = (None, false, false);
        self.meter.connect();
        self.said_hello.notify_all();
        Ok(())
    }

    /// The connection was lost. What is not answered is asked again in order, but for orders, which may have been
    /// obeyed.
    pub fn lost(&self, error: PsError) {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting);
        for (request, mut asked) in waiting.into_iter().rev() {
            if asked.kind == Kind::Order {
                let text = format!("the connection was lost before an order was answered: {}", error.text);
                self.fail(asked, PsError::at(Trouble::Lost, self.name(), text));
            } else {
                (asked.rows, asked.is_again) = (0, true);
                state.queue.push_front((request, asked));
            }
        }
        (state.trouble, state.is_refused, state.epoch) = (Some(error), false, None);
        self.count(&state);
        self.said_hello.notify_all();
    }

    /// The shard does not let this client in: what is asked fails. When it is for the epoch that the client said it
    /// is in, only what is of that epoch does.
    pub fn refused(&self, said: Option<Epoch>, error: PsError) {
        let mut state = self.lock();
        for (request, asked) in std::mem::take(&mut state.queue) {
            if error.trouble == Trouble::StaleEpoch && asked.epoch != said {
                state.queue.push_back((request, asked));
            } else {
                self.fail(asked, error.clone());
            }
        }
        (state.trouble, state.is_refused, state.is_wanted) = (Some(error), true, false);
        state.epoch = None;
        self.count(&state);
        self.said_hello.notify_all();
    }

    fn fail(&self, asked: Asked, error: PsError) {
        self.meter.end(asked.kind, asked.asked.elapsed(), true);
        asked.call.give(Event::Failed { block: asked.block, error });
    }

    /// What was asked in another epoch fails.
    pub fn end_epochs_but(&self, epoch: Epoch) {
        self.end_where(
            |asked| asked.kind != Kind::Order && asked.epoch != Some(epoch),
            |asked| {
                let text = format!("the call is of epoch {}, the client's is {epoch}", name(asked.epoch));
                Some(PsError::new(Trouble::StaleEpoch, text))
            },
        );
    }

    /// A caller waits no more.
    pub fn forget(&self, call: &Arc<Call>) {
        self.end_where(|asked| Arc::ptr_eq(&asked.call, call), |_| None);
    }

    /// The client is closed.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.said_hello.notify_all();
        let error = PsError::at(Trouble::Closed, self.name(), "the client was closed");
        self.end_where(|_| true, |_| Some(error.clone()));
    }

    fn end_where(&self, ends: impl Fn(&Asked) -> bool, error: impl Fn(&Asked) -> Option<PsError>) {
        let mut state = self.lock();
        let mut ended = Vec::new();
        for (request, asked) in std::mem::take(&mut state.queue) {
            if ends(&asked) {
                ended.push(asked);
            } else {
                state.queue.push_back((request, asked));
            }
        }
        for (request, asked) in std::mem::take(&mut state.waiting) {
            if ends(&asked) {
                ended.push(asked);
            } else {
                state.waiting.insert(request, asked);
            }
        }
        self.count(&state);
        drop(state);
        for asked in ended {
            match error(&asked) {
                Some(error) => self.fail(asked, error),
                None => self.meter.end(asked.kind, asked.asked.elapsed(), true),
            }
        }
    }

    /// A frame of an answer has come. An error: it is none that could have.
    pub fn answered(&self, frame: Frame) -> std::result::Result<(), String> {
        let Frame { header, payload } = frame;
        let mut state = self.lock();
        if header.kind == Kind::Error && header.request == 0 {
            return Err(refusal_of(&payload).to_string());
        }
        let Some(asked) = state.waiting.get_mut(&header.request) else {
            // Somebody may have asked and gone.
            let is_old = header.request > 0 && header.request < state.next;
            let unknown = || format!("an answer to the unknown request {}", header.request);
            return if is_old { Ok(()) } else { Err(unknown()) };
        };
        self.meter.receive(asked.kind, payload.len());
        let (kind, is_last, block, call) =
            (header.kind, header.flags & MORE == 0, asked.block, asked.call.clone());
        let event = match kind {
            Kind::Error => {
                Event::Failed { block, error: PsError::refused(self.name(), &refusal_of(&payload)) }
            }
            Kind::Pull if asked.kind == Kind::Pull => {
                let head = SliceHead::decode(&payload).map_err(|refusal| refusal.to_string())?.0;
                let (first, count) = (head.first as usize, head.count as usize);
                if first != asked.rows || count == 0 || is_last != (first + count == asked.keys) {
                    let (rows, keys) = (asked.rows, asked.keys);
                    return Err(format!("rows {first}..+{count} where {rows} of {keys} have come"));
                }
                asked.rows += count;
                Event::Rows { block, head, payload, is_last }
            }
            kind if kind == asked.kind && is_last => Event::Done { block, payload },
            kind => return Err(format!("{kind:?} answers {:?}, flags {:#06x}", asked.kind, header.flags)),
        };
        let is_error = kind == Kind::Error;
        if is_last {
            if let Some(asked) = state.waiting.remove(&header.request) {
                self.meter.end(asked.kind, asked.asked.elapsed(), is_error);
            }
            self.count(&state);
        }
        drop(state);
        call.give(event);
        Ok(())
    }

    /// How long a shard takes a silent client for one that is there.
    pub fn idle_wait(&self) -> Duration {
        let idle_ms_max = self.lock().hello.as_ref().map_or(60_000, |hello| hello.idle_ms_max);
        Duration::from_millis(u64::from(idle_ms_max) / 3 + 1)
    }
}
