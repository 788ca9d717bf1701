//! The client: rows of all shards as if they were one table, pulled and pushed by many threads at once.

mod call;
mod cut;
mod driver;
mod fetched_rows;
mod figures;
mod lane;
mod link;
mod pull;
mod push;
mod settings;

pub use fetched_rows::{Fetched, FetchedRows};
pub use figures::{ClientStats, ClientVerb, LinkStats};
pub use push::PushOf;
pub use settings::{ClientLimits, ClientSettings, Role, TlsTrust};

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use streamlearn_table::{PARTS, Pushed};
use tokio::sync::watch;

use crate::epoch::{Epoch, name};
use crate::error::{PsError, Result, Trouble};
use crate::frame::{self, Kind};
use crate::message::{HelloReply, order_payload};
use crate::pool::Pool;
use call::{Call, Event};
use link::Link;

/// Bytes of a receive buffer that is kept for the next.
const POOLED_BYTES_MAX: usize = 1 << 20;

/// Which version is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullAt {
    /// What was written last.
    Newest,
    /// A version that the shards retain or have sealed.
    Version(u64),
}

/// What a shard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOf {
    /// Its address.
    pub address: String,
    /// The parts it has.
    pub parts: Range<usize>,
    /// The epoch it stood at when it was last said hello to; none while it had no tables.
    pub epoch: Option<Epoch>,
}

/// What belongs to an epoch and goes with it.
struct Term {
    epoch: Option<Epoch>,
    /// The next sequence of each shard.
    sequences: Vec<u64>,
    /// Why nothing more is pushed.
    unsure: Option<String>,
}

/// How the shards share the parts, and what they take.
struct Plan {
    /// Where each shard's parts begin, and the end of all.
    bounds: Vec<usize>,
    /// Largest payload that all shards take.
    frame_bytes_max: usize,
}

/// What callers and the thread that carries bytes share.
struct ClientCore {
    settings: ClientSettings,
    links: Vec<Arc<Link>>,
    term: Mutex<Term>,
    /// What was found when it was opened.
    plan: OnceLock<Plan>,
    calls: Mutex<usize>,
    call_ended: Condvar,
    pool: Pool<u8>,
    closed: watch::Sender<bool>,
}

/// A client of all shards of a model. Dropping it closes it.
pub struct Client {
    core: Arc<ClientCore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A call's place among those there may be at once.
struct Place<'a>(&'a ClientCore);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.calls.lock().expect("no holder panics") -= 1;
        self.0.call_ended.notify_one();
    }
}

impl Client {
    /// Say hello to every shard, and see that together they have every part once; one that only asks waits for nobody.
    ///
    /// # Errors
    /// When settings cannot be, a shard cannot be reached within `retry_wait_ms_max` or refuses, or parts are missing.
    pub fn open(settings: ClientSettings) -> Result<Self> {
        settings.check().map_err(|text| PsError::new(Trouble::Settings, text))?;
        let links = Link::of_all(&settings)?;
        let shards = links.len();
        let (closed, is_closed) = watch::channel(false);
        let core = Arc::new(ClientCore {
            pool: Pool::new(2 * settings.limits.in_flight_max * shards + 4, POOLED_BYTES_MAX),
            links,
            term: Mutex::new(Term { epoch: None, sequences: vec![0; shards], unsure: None }),
            plan: OnceLock::new(),
            calls: Mutex::new(0),
            call_ended: Condvar::new(),
            closed,
            settings,
        });
        let failed = |error| PsError::new(Trouble::Io, format!("cannot start a thread: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let carried = core.clone();
        let work = move || runtime.block_on(lane::carry(carried, is_closed));
        let thread = std::thread::Builder::new().name("ps-client".to_owned()).spawn(work).map_err(failed)?;
        let client = Self { core, thread: Mutex::new(Some(thread)) };
        if client.core.settings.role == Role::Asks {
            let frame_bytes_max = client.core.settings.limits.frame_bytes_max as usize;
            client.core.plan.get_or_init(|| Plan { bounds: Vec::new(), frame_bytes_max });
            return Ok(client);
        }
        let deadline = client.core.deadline();
        let hellos: Vec<HelloReply> =
            client.core.links.iter().map(|link| link.wait_hello(deadline)).collect::<Result<_>>()?;
        let bounds = client.core.check_hellos(&hellos)?;
        let frame_bytes_max = hellos.iter().map(|hello| hello.frame_bytes_max as usize).min().unwrap_or(0);
        client.core.plan.get_or_init(|| Plan { bounds, frame_bytes_max });
        Ok(client)
    }

    /// The epoch it is in, if any yet.
    pub fn epoch(&self) -> Option<Epoch> {
        self.core.term().epoch
    }

    /// Begin an epoch: sequences begin again, and calls of the one before fail as stale. Orders that install an epoch
    /// are to be given after it was set here, or the connection they came by is closed before they are answered.
    ///
    /// # Errors
    /// When it is older than the one before: its sequences would be taken for those that were. Or when this client does
    /// not train.
    pub fn set_epoch(&self, epoch: Epoch) -> Result<()> {
        self.core.check_trains("set an epoch")?;
        {
            let mut term = self.core.term();
            if term.epoch == Some(epoch) {
                return Ok(());
            }
            if term.epoch > Some(epoch) {
                let text = format!("epoch {epoch} cannot follow {}: epochs only grow", name(term.epoch));
                return Err(PsError::new(Trouble::Settings, text));
            }
            *term = Term { epoch: Some(epoch), sequences: vec![0; self.core.links.len()], unsure: None };
        }
        for link in &self.core.links {
            link.end_epochs_but(epoch);
        }
        Ok(())
    }

    /// The shards, as they were when they were last said hello to.
    pub fn shards(&self) -> Vec<ShardOf> {
        self.core.links.iter().map(|link| link.shard()).collect()
    }

    /// Rows of keys of one table, in the order of the keys, into `out`. When keys are said to be distinct nothing
    /// looks for repeats. After an error `out` holds anything.
    pub fn pull(
        &self,
        table: u16,
        keys: &[u64],
        at: PullAt,
        is_distinct: bool,
        out: &mut [f32],
    ) -> Result<()> {
        self.core.read(|epoch, deadline| {
            pull::pull(&self.core, (table, keys), (at, epoch, deadline), is_distinct, out)
        })
    }

    /// Distinct rows of keys of several tables, to be packed from.
    pub fn fetch(&self, wanted: &[(u16, &[u64])], at: PullAt) -> Result<Fetched> {
        self.core.read(|epoch, deadline| fetched_rows::fetch(&self.core, wanted, (at, epoch, deadline)))
    }

    /// Let rows learn, exactly once whatever happens to connections. Gradients of a key are summed in the order given.
    ///
    /// # Errors
    /// When a push fails otherwise than by a refusal before it began, some of its keys may have learned: nothing more
    /// is pushed in this epoch, and what is not committed is to be discarded.
    pub fn push(&self, push: PushOf<'_>) -> Result<Pushed> {
        self.core.check_trains("push")?;
        push::push(&self.core, &push)
    }

    /// Have whoever embeds a shard do something, and wait for the answer. It is sent once: when the connection is lost
    /// meanwhile it may have been obeyed.
    pub fn order(&self, shard: usize, body: &[u8], wait: Duration) -> Result<Vec<u8>> {
        if shard >= self.core.links.len() {
            let text = format!("shard {shard}: there are {}", self.core.links.len());
            return Err(PsError::new(Trouble::Settings, text));
        }
        self.core.order(&[(shard, body)], wait).remove(0)
    }

    /// Have all shards do something at once: body i is for shard i.
    pub fn order_all(&self, bodies: &[Vec<u8>], wait: Duration) -> Vec<Result<Vec<u8>>> {
        if bodies.len() != self.core.links.len() {
            let text = format!("{} bodies for {} shards", bodies.len(), self.core.links.len());
            return bodies.iter().map(|_| Err(PsError::new(Trouble::Settings, text.clone()))).collect();
        }
        let asked: Vec<(usize, &[u8])> = bodies.iter().map(Vec::as_slice).enumerate().collect();
        self.core.order(&asked, wait)
    }

    /// Figures since it was opened.
    pub fn stats(&self) -> ClientStats {
        ClientStats { shards: self.core.links.iter().map(|link| link.meter.stats()).collect() }
    }

    /// Close all connections; calls that wait fail. Doing it again changes nothing.
    pub fn close(&self) {
        self.core.closed.send_replace(true);
        if let Some(thread) = self.thread.lock().expect("no holder panics").take() {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
        for link in &self.core.links {
            link.close();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl ClientCore {
    fn term(&self) -> MutexGuard<'_, Term> {
        self.term.lock().expect("no holder panics")
    }

    /// The end of the budget of a call that begins now.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.settings.limits.retry_wait_ms_max)
    }

    fn epoch(&self) -> Result<Epoch> {
        let none = || PsError::new(Trouble::StaleEpoch, "the client is in no epoch yet: set one first");
        self.term().epoch.ok_or_else(none)
    }

    /// A client that does not train changes nothing.
    fn check_trains(&self, what: &str) -> Result<()> {
        match self.settings.role {
            Role::Trains => Ok(()),
            Role::Reads | Role::Asks => {
                Err(PsError::new(Trouble::Settings, format!("this client only reads: it cannot {what}")))
            }
        }
    }

    /// Read in the client's epoch; or, of one that only reads, in the one that all shards stand at, again when that has
    /// ended meanwhile.
    fn read<T>(&self, mut read: impl FnMut(Epoch, Instant) -> Result<T>) -> Result<T> {
        let (deadline, limits) = (self.deadline(), &self.settings.limits);
        match self.settings.role {
            Role::Trains => return read(self.epoch()?, deadline),
            Role::Asks => {
                return Err(PsError::new(
                    Trouble::Settings,
                    "this client only asks how shards are: it cannot pull",
                ));
            }
            Role::Reads => {}
        }
        let (mut wait_ms, mut before) = (limits.backoff_first_ms, None);
        loop {
            let error = match self.epoch_of_shards(deadline).and_then(|epoch| read(epoch, deadline)) {
                Err(error) if matches!(error.trouble, Trouble::StaleEpoch | Trouble::NotReady) => error,
                // The time was over in the midst of another attempt: what was said to the one before tells more.
                Err(error) if error.trouble == Trouble::Unreachable => return Err(before.unwrap_or(error)),
                done => return done,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((shard, _)) = error.shard.as_ref().filter(|_| !left.is_zero()) else {
                return Err(error);
            };
            // Its connection is of an epoch that is over, and is about to be closed; or it has no tables yet.
            self.links[*shard as usize].wait_news(left.min(Duration::from_millis(wait_ms)));
            wait_ms = (2 * wait_ms).min(limits.backoff_ms_max);
            before = Some(error);
        }
    }

    /// The epoch that all shards stand at, once they do.
    fn epoch_of_shards(&self, deadline: Instant) -> Result<Epoch> {
        let mut newest = None;
        loop {
            let before = newest;
            for link in &self.links {
                newest = newest.max(Some(link.wait_epoch(newest, deadline)?));
            }
            if let Some(epoch) = newest.filter(|_| newest == before) {
                return Ok(epoch);
            }
        }
    }

    /// Take a place among the calls there may be at once.
    fn enter(&self, deadline: Instant) -> Result<Place<'_>> {
        let calls_max = self.settings.limits.calls_max;
        let mut calls = self.calls.lock().expect("no holder panics");
        while *calls >= calls_max {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("{calls_max} calls are under way, the most there may be");
                return Err(PsError::new(Trouble::Unreachable, text));
            }
            calls = self.call_ended.wait_timeout(calls, left).expect("no holder panics").0;
        }
        *calls += 1;
        Ok(Place(self))
    }

    /// Where each shard's parts begin, if together they are all parts.
    fn check_hellos(&self, hellos: &[HelloReply]) -> Result<Vec<usize>> {
        let mut bounds = vec![0];
        for (number, hello) in hellos.iter().enumerate() {
            let link = &self.links[number];
            let (begin, end) = (hello.parts.start as usize, hello.parts.end as usize);
            if begin != bounds[number] || end <= begin {
                let text = format!("it has parts [{begin}, {end}), expected from {} on", bounds[number]);
                return Err(PsError::at(Trouble::Settings, link.name(), text));
            }
            bounds.push(end);
        }
        if bounds.last() != Some(&PARTS) {
            let text = format!("the shards have {:?} of {PARTS} parts", bounds.last());
            return Err(PsError::new(Trouble::Settings, text));
        }
        Ok(bounds)
    }

    fn plan(&self) -> &Plan {
        self.plan.get().expect("it is made before there is a client to call")
    }

    /// The dim of a table.
    fn dim(&self, table: u16) -> Result<usize> {
        let dims = &self.settings.dims;
        dims.get(usize::from(table)).copied().ok_or_else(|| {
            PsError::new(Trouble::Settings, format!("table {table}: there are {}", dims.len()))
        })
    }

    fn order(&self, asked: &[(usize, &[u8])], wait: Duration) -> Vec<Result<Vec<u8>>> {
        let deadline = Instant::now() + wait;
        let late = |shard: usize| {
            let link = &self.links[shard];
            let (waited_ms, trouble) = (wait.as_millis(), link.trouble_text());
            let text = format!("an order was not answered within {waited_ms} ms{trouble}");
            PsError::at(Trouble::Unreachable, link.name(), text)
        };
        let place = self.enter(deadline);
        if let Err(error) = place {
            return asked.iter().map(|_| Err(error.clone())).collect();
        }
        let (call, epoch) = (Call::new(), self.term().epoch);
        let mut answers: Vec<Option<Result<Vec<u8>>>> = asked.iter().map(|_| None).collect();
        for (block, &(shard, body)) in asked.iter().enumerate() {
            let payload = order_payload(epoch, body);
            if payload.len() > self.plan().frame_bytes_max {
                let (bytes, most) = (payload.len(), self.plan().frame_bytes_max);
                let text = format!("an order of {bytes} bytes: shards take {most}");
                answers[block] = Some(Err(PsError::new(Trouble::Settings, text)));
                continue;
            }
            let frame = frame::whole(Kind::Order, 0, 0, &payload);
            if let Err(error) = self.links[shard].submit(&call, block as u32, (Kind::Order, epoch), frame, 0)
            {
                answers[block] = Some(Err(error));
            }
        }
        while answers.iter().any(Option::is_none) {
            let Some(event) = call.wait(deadline) else { break };
            match event {
                Event::Done { block, payload } => answers[block as usize] = Some(Ok(payload)),
                Event::Failed { block, error } => answers[block as usize] = Some(Err(error)),
                Event::Rows { .. } => {}
            }
        }
        call.end();
        asked.iter().for_each(|&(shard, _)| self.links[shard].forget(&call));
        let each = answers.into_iter().zip(asked);
        each.map(|(answer, &(shard, _))| answer.unwrap_or_else(|| Err(late(shard)))).collect()
    }

    /// Why a call of an epoch that is over fails.
    fn stale(&self, epoch: Option<Epoch>) -> PsError {
        let text =
            format!("the call is of epoch {}, the client's is {}", name(epoch), name(self.term().epoch));
        PsError::new(Trouble::StaleEpoch, text)
    }
}
