//! The client: pulls and pushes rows of all shards as if they were one table, from many threads at once.

mod call;
mod cut;
mod driver;
mod fetched_rows;
mod figures;
mod lane;
mod link;
mod pull;
mod push;
mod reduce;
mod settings;

pub use fetched_rows::{Fetched, FetchedRows};
pub use figures::{ClientStats, ClientVerb, LinkStats};
pub use push::{PartOf, PushOf};
pub use reduce::ReduceOf;
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

/// Larger receive buffers are not kept for reuse.
const POOLED_BYTES_MAX: usize = 1 << 20;

/// The version that a pull reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullAt {
    /// The latest writes.
    Newest,
    /// A version that the shards retain or have sealed.
    Version(u64),
}

/// One shard, as its last hello described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOf {
    /// Its address.
    pub address: String,
    /// Its range of parts.
    pub parts: Range<usize>,
    /// The shard's epoch at its last hello; `None` if it had no tables.
    pub epoch: Option<Epoch>,
}

/// State of the current epoch; a new epoch replaces it.
struct Term {
    epoch: Option<Epoch>,
    /// The next push sequence number of each shard.
    sequences: Vec<u64>,
    /// Why pushes are blocked: a push failed and may have been applied in part.
    unsure: Option<String>,
}

/// The shards' part ranges and frame limit.
struct Plan {
    /// The first part of each shard, then the end of the last range.
    bounds: Vec<usize>,
    /// The largest payload that every shard accepts.
    frame_bytes_max: usize,
}

/// State shared by the callers and the I/O thread.
struct ClientCore {
    settings: ClientSettings,
    links: Vec<Arc<Link>>,
    term: Mutex<Term>,
    /// Set when the client is opened.
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

/// A slot among the `calls_max` concurrent calls; dropping it frees the slot.
struct CallSlot<'a>(&'a ClientCore);

impl Drop for CallSlot<'_> {
    fn drop(&mut self) {
        *self.0.calls.lock().expect("no holder panics") -= 1;
        self.0.call_ended.notify_one();
    }
}

impl Client {
    /// Connects to every shard and checks that the shards' ranges cover all parts exactly once. A client with
    /// `Role::Asks` does not wait for any shard.
    ///
    /// # Errors
    /// If the settings are invalid, if a shard is not reached within `retry_wait_ms_max` or refuses
    /// the client, or if parts are missing.
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
        let worker_core = core.clone();
        let work = move || runtime.block_on(lane::carry(worker_core, is_closed));
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

    /// Returns the client's epoch, if one is set.
    pub fn epoch(&self) -> Option<Epoch> {
        self.core.term().epoch
    }

    /// Starts an epoch: sequences start again at 0, and calls of the previous epoch fail as stale. Set the
    /// epoch here before you send the order that installs it: a shard closes the connections of an older
    /// epoch, before it answers the order.
    ///
    /// # Errors
    /// If the epoch is older than the current one, because its sequences would then be taken for
    /// earlier ones; or if this client does not train.
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

    /// Returns the shards as their last hellos described them.
    pub fn shards(&self) -> Vec<ShardOf> {
        self.core.links.iter().map(|link| link.shard()).collect()
    }

    /// Reads the rows of `keys` from one table into `out`, in the order of the keys. `is_distinct` promises
    /// that no key repeats, so repeats are not looked for. After an error the content of `out` is undefined.
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

    /// Fetches the distinct rows of keys of several tables, for packing.
    pub fn fetch(&self, wanted: &[(u16, &[u64])], at: PullAt) -> Result<Fetched> {
        self.core.read(|epoch, deadline| fetched_rows::fetch(&self.core, wanted, (at, epoch, deadline)))
    }

    /// Applies gradients to rows, exactly once even if connections are lost. Gradients of one key are summed
    /// in the given order.
    ///
    /// # Errors
    /// Unless the push was refused before it started, a failed push may have updated some of its
    /// keys: the client then pushes nothing more in this epoch, and the caller must discard the
    /// changes since the last commit.
    pub fn push(&self, push: PushOf<'_>) -> Result<Pushed> {
        self.core.check_trains("push")?;
        push::push(&self.core, &push, None)
    }

    /// Gives the shards one slice's gradients of a step, exactly once. The shards apply the step when they have
    /// all slices, as one push of the slices' sums in the order of slices.
    ///
    /// Returns what the shards applied with this slice, which is nothing while they hold it.
    ///
    /// # Errors
    /// As `push`.
    pub fn push_part(&self, part: PartOf, push: PushOf<'_>) -> Result<Pushed> {
        self.core.check_trains("push a part")?;
        push::push(&self.core, &push, Some(part))
    }

    /// Gives a slice's values of a dense vector to the shards, or asks for the sum over all slices of a step.
    /// Returns `None` while slices are missing, then whether all slices were finite; if they were, `out` holds
    /// the sum. Otherwise the content of `out` is undefined. An answer of `None` may come before the wait is over.
    ///
    /// # Errors
    /// `Code::WeightsDiffer` if two slices of the step began at different weights. After any error, the slice
    /// may be given again.
    pub fn reduce(&self, reduce: ReduceOf, values: &[f32], out: Option<&mut [f32]>) -> Result<Option<bool>> {
        self.core.check_trains("reduce")?;
        reduce::reduce(&self.core, &reduce, values, out)
    }

    /// Sends an order to the process that embeds the shard, and waits for the answer. It is sent once: if the
    /// connection is lost before the answer arrives, the order may have been carried out.
    pub fn order(&self, shard: usize, body: &[u8], wait: Duration) -> Result<Vec<u8>> {
        if shard >= self.core.links.len() {
            let text = format!("shard {shard}: there are {}", self.core.links.len());
            return Err(PsError::new(Trouble::Settings, text));
        }
        self.core.order(&[(shard, body)], wait).remove(0)
    }

    /// Sends orders to all shards concurrently: body i goes to shard i.
    pub fn order_all(&self, bodies: &[Vec<u8>], wait: Duration) -> Vec<Result<Vec<u8>>> {
        if bodies.len() != self.core.links.len() {
            let text = format!("{} bodies for {} shards", bodies.len(), self.core.links.len());
            return bodies.iter().map(|_| Err(PsError::new(Trouble::Settings, text.clone()))).collect();
        }
        let orders: Vec<(usize, &[u8])> = bodies.iter().map(Vec::as_slice).enumerate().collect();
        self.core.order(&orders, wait)
    }

    /// Returns the counters since the client was opened.
    pub fn stats(&self) -> ClientStats {
        ClientStats { shards: self.core.links.iter().map(|link| link.meter.stats()).collect() }
    }

    /// Closes all connections; waiting calls fail. Idempotent.
    pub fn close(&self) {
        self.core.closed.send_replace(true);
        if let Some(thread) = self.thread.lock().expect("no holder panics").take() {
            // A panic was already printed by its own thread.
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

    /// The deadline of a call that starts now.
    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.settings.limits.retry_wait_ms_max)
    }

    fn epoch(&self) -> Result<Epoch> {
        let none = || PsError::new(Trouble::StaleEpoch, "the client has no epoch: set one first");
        self.term().epoch.ok_or_else(none)
    }

    /// Fails unless this client trains.
    fn check_trains(&self, action: &str) -> Result<()> {
        match self.settings.role {
            Role::Trains => Ok(()),
            Role::Reads | Role::Asks => {
                Err(PsError::new(Trouble::Settings, format!("this client only reads: it cannot {action}")))
            }
        }
    }

    /// Reads in the client's epoch. A client that only reads uses the epoch all shards share, and tries again
    /// if that epoch ends during the read.
    fn read<T>(&self, mut read: impl FnMut(Epoch, Instant) -> Result<T>) -> Result<T> {
        let (deadline, limits) = (self.deadline(), &self.settings.limits);
        match self.settings.role {
            Role::Trains => return read(self.epoch()?, deadline),
            Role::Asks => {
                return Err(PsError::new(
                    Trouble::Settings,
                    "this client only queries the shards' state: it cannot pull",
                ));
            }
            Role::Reads => {}
        }
        let (mut wait_ms, mut last_error) = (limits.backoff_first_ms, None);
        loop {
            let error = match self.epoch_of_shards(deadline).and_then(|epoch| read(epoch, deadline)) {
                Err(error) if matches!(error.trouble, Trouble::StaleEpoch | Trouble::NotReady) => error,
                // The deadline passed during a further attempt: the error of the attempt before it is more
                // specific.
                Err(error) if error.trouble == Trouble::Unreachable => {
                    return Err(last_error.unwrap_or(error));
                }
                result => return result,
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Some((shard, _)) = error.shard.as_ref().filter(|_| !remaining.is_zero()) else {
                return Err(error);
            };
            // The connection belongs to an ended epoch and is about to be closed, or the shard has no tables
            // yet.
            self.links[*shard as usize].wait_news(remaining.min(Duration::from_millis(wait_ms)));
            wait_ms = (2 * wait_ms).min(limits.backoff_ms_max);
            last_error = Some(error);
        }
    }

    /// Waits until all shards are at the same epoch, and returns it.
    fn epoch_of_shards(&self, deadline: Instant) -> Result<Epoch> {
        let mut newest = None;
        loop {
            let previous = newest;
            for link in &self.links {
                newest = newest.max(Some(link.wait_epoch(newest, deadline)?));
            }
            if let Some(epoch) = newest.filter(|_| newest == previous) {
                return Ok(epoch);
            }
        }
    }

    /// Waits for a free call slot.
    fn enter(&self, deadline: Instant) -> Result<CallSlot<'_>> {
        let calls_max = self.settings.limits.calls_max;
        let mut calls = self.calls.lock().expect("no holder panics");
        while *calls >= calls_max {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                let text = format!("{calls_max} calls are under way, the most there may be");
                return Err(PsError::new(Trouble::Unreachable, text));
            }
            calls = self.call_ended.wait_timeout(calls, remaining).expect("no holder panics").0;
        }
        *calls += 1;
        Ok(CallSlot(self))
    }

    /// Checks that the shards' ranges cover all parts, and returns the plan's bounds.
    fn check_hellos(&self, hellos: &[HelloReply]) -> Result<Vec<usize>> {
        let mut bounds = vec![0];
        for (number, hello) in hellos.iter().enumerate() {
            let link = &self.links[number];
            let (begin, end) = (hello.parts.start as usize, hello.parts.end as usize);
            if begin != bounds[number] || end <= begin {
                let text = format!(
                    "it has parts [{begin}, {end}), expected a range that starts at {}",
                    bounds[number]
                );
                return Err(PsError::at(Trouble::Settings, link.name(), text));
            }
            bounds.push(end);
        }
        if bounds.last() != Some(&PARTS) {
            let text = format!("the shards' parts end at {:?}, expected {PARTS}", bounds.last());
            return Err(PsError::new(Trouble::Settings, text));
        }
        Ok(bounds)
    }

    fn plan(&self) -> &Plan {
        self.plan.get().expect("open() sets the plan")
    }

    /// The dim of a table.
    fn dim(&self, table: u16) -> Result<usize> {
        let dims = &self.settings.dims;
        dims.get(usize::from(table)).copied().ok_or_else(|| {
            PsError::new(Trouble::Settings, format!("table {table}: there are {}", dims.len()))
        })
    }

    fn order(&self, orders: &[(usize, &[u8])], wait: Duration) -> Vec<Result<Vec<u8>>> {
        let deadline = Instant::now() + wait;
        let timeout_error = |shard: usize| {
            let link = &self.links[shard];
            let (waited_ms, trouble) = (wait.as_millis(), link.trouble_text());
            let text = format!("an order was not answered within {waited_ms} ms{trouble}");
            PsError::at(Trouble::Unreachable, link.name(), text)
        };
        let slot = self.enter(deadline);
        if let Err(error) = slot {
            return orders.iter().map(|_| Err(error.clone())).collect();
        }
        let (call, epoch) = (Call::new(), self.term().epoch);
        let mut answers: Vec<Option<Result<Vec<u8>>>> = orders.iter().map(|_| None).collect();
        for (block, &(shard, body)) in orders.iter().enumerate() {
            let payload = order_payload(epoch, body);
            if payload.len() > self.plan().frame_bytes_max {
                let (bytes, bytes_max) = (payload.len(), self.plan().frame_bytes_max);
                let text = format!("an order of {bytes} bytes: shards accept {bytes_max}");
                answers[block] = Some(Err(PsError::new(Trouble::Settings, text)));
                continue;
            }
            let frame = frame::encode(Kind::Order, 0, 0, &payload);
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
        orders.iter().for_each(|&(shard, _)| self.links[shard].forget(&call));
        let results = answers.into_iter().zip(orders);
        results.map(|(answer, &(shard, _))| answer.unwrap_or_else(|| Err(timeout_error(shard)))).collect()
    }

    /// The error of a call whose epoch has ended.
    fn stale(&self, epoch: Option<Epoch>) -> PsError {
        let text = format!(
            "the call belongs to epoch {}, the client is at {}",
            name(epoch),
            name(self.term().epoch)
        );
        PsError::new(Trouble::StaleEpoch, text)
    }
}
