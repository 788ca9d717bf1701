//! The server: one shard's tables behind sockets. Whoever embeds it gives it tables and an epoch, and obeys orders.

mod connection;
mod listen;
mod notes;
mod orders;
mod peers;
mod settings;
mod stage;
mod work;

pub use notes::Note;
pub use orders::Order;
pub use settings::{Limits, ServerSettings, Shard};
pub use work::CLOCK_MS_MAX;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use streamlearn_table::TableSet;
use streamlearn_trust::Secret;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::address::Listening;
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::pool::Pool;
use crate::refusal::Refusal;
use crate::stats::{Meter, Stats};
use crate::tls;
use notes::Notes;
use orders::Orders;
use peers::{Ending, Peers};
use stage::Stage;

/// Floats that a pooled buffer has at most.
const POOLED_FLOATS_MAX: usize = 1 << 17;
/// Bytes that a pooled buffer has at most.
const POOLED_BYTES_MAX: usize = 2 << 20;
/// How long connections that are told to close now may take for it.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// What all connections share.
struct ServerCore {
    shard: Shard,
    token: Option<Secret>,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    stage: Arc<Stage>,
    orders: Orders,
    peers: Peers,
    meter: Meter,
    notes: Notes,
    /// KiB of payloads that may be in flight.
    in_flight: Arc<Semaphore>,
    pool: Pool<f32>,
    /// For payloads.
    payloads: Pool<u8>,
}

/// A shard's server. Dropping it stops it.
pub struct Server {
    core: Arc<ServerCore>,
    addresses: Vec<String>,
    paths: Vec<PathBuf>,
    stopped: watch::Sender<bool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Listen, and answer from threads of its own. Without tables, all but hellos, orders and pings is refused.
    ///
    /// # Errors
    /// When settings cannot be, when an address cannot be listened at, or when one that other machines can reach is
    /// asked for without a token.
    pub fn start(settings: ServerSettings, shard: Shard) -> Result<Self> {
        settings.check(&shard).map_err(|text| PsError::new(Trouble::Settings, text))?;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let bind = |address: &String| Listening::bind(address, settings.token.is_some());
        let listening: Vec<Listening> = settings
            .listen
            .iter()
            .map(bind)
            .collect::<std::result::Result<_, _>>()
            .map_err(|text| PsError::new(Trouble::Io, text))?;
        let addresses = listening.iter().map(Listening::address).collect();
        let path_of = |one: &Listening| match one {
            Listening::Unix(_, path) => Some(path.clone()),
            Listening::Tcp(_) => None,
        };
        let paths = listening.iter().filter_map(path_of).collect();
        let limits = settings.limits;
        let core = Arc::new(ServerCore {
            shard,
            token: settings.token,
            tls,
            stage: Arc::default(),
            orders: Orders::new(limits.orders_max),
            peers: Peers::default(),
            meter: Meter::default(),
            notes: Notes::default(),
            in_flight: Arc::new(Semaphore::new(limits.in_flight_bytes_max >> 10)),
            pool: Pool::new(2 * settings.threads + 2, POOLED_FLOATS_MAX),
            payloads: Pool::new(2 * settings.threads + 2, POOLED_BYTES_MAX),
            limits,
        });
        let (stopped, _) = watch::channel(false);
        let server = Self { core, addresses, paths, stopped, threads: Mutex::default() };
        server.run(listening, settings.threads)?;
        Ok(server)
    }

    fn run(&self, listening: Vec<Listening>, threads: usize) -> Result<()> {
        let (deals, hands): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel(64)).unzip();
        let mut first = Some((listening, deals));
        for (number, hand) in hands.into_iter().enumerate() {
            let (core, stopped, first) = (self.core.clone(), self.stopped.subscribe(), first.take());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let started = runtime.and_then(|runtime| {
                let work = move || runtime.block_on(listen::work(core, first, hand, stopped));
                std::thread::Builder::new().name(format!("ps-server-{number}")).spawn(work)
            });
            let thread = started.map_err(|error| {
                PsError::new(Trouble::Io, format!("cannot start thread {number} of {threads}: {error}"))
            })?;
            self.threads.lock().expect("no holder panics").push(thread);
        }
        Ok(())
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Take tables under a new epoch. What was begun under the one before ends first; connections that speak of an
    /// older epoch, and none newer, are closed; what was pushed is forgotten.
    ///
    /// # Errors
    /// When the epoch is not newer than the last.
    pub fn install(&self, tables: Arc<TableSet>, epoch: Epoch) -> Result<()> {
        self.core.stage.install(tables, epoch).map_err(|text| PsError::new(Trouble::Settings, text))?;
        self.core.peers.close_older(epoch);
        Ok(())
    }

    /// Let go of the tables. Returns once no request uses them: work on a push ends, and what is read for a peer
    /// that takes its time is given up.
    pub fn uninstall(&self) {
        self.core.stage.uninstall();
    }

    /// The next order there is within some time.
    pub fn next_order(&self, wait: Duration) -> Option<Order> {
        self.core.orders.next(wait)
    }

    /// Answer an order. Gives whether whoever asked was still there.
    pub fn answer(&self, id: u64, answer: std::result::Result<Vec<u8>, Refusal>) -> bool {
        self.core.orders.answer(id, answer)
    }

    /// Connections that were refused and that nobody was told of yet, once there are some or the wait is over; and how
    /// many more there were.
    pub fn refused(&self, wait: Duration) -> (Vec<Note>, u64) {
        self.core.notes.take(wait)
    }

    /// Figures since it started.
    pub fn stats(&self) -> Stats {
        let ServerCore { limits, orders, peers, in_flight, stage, meter, .. } = &*self.core;
        let in_flight_bytes_max = limits.in_flight_bytes_max >> 10 << 10;
        Stats {
            connections: peers.count(),
            connections_max: limits.connections_max,
            orders: orders.count(),
            orders_max: limits.orders_max,
            in_flight_bytes: in_flight_bytes_max - (in_flight.available_permits() << 10),
            in_flight_bytes_max,
            clients: stage.clients(),
            clients_max: limits.clients_max,
            ..meter.stats()
        }
    }

    /// Take nothing new, finish what was begun, then close everything; at the end of `drain` it is closed as it is.
    /// Doing it again changes nothing.
    pub fn stop(&self, drain: Duration) {
        let threads = std::mem::take(&mut *self.threads.lock().expect("no holder panics"));
        if threads.is_empty() {
            return;
        }
        let deadline = Instant::now() + drain;
        self.core.orders.close();
        self.core.peers.end(Ending::Drain);
        if !self.core.peers.wait_empty(deadline) {
            self.core.peers.end(Ending::Close);
            self.core.peers.wait_empty(Instant::now() + CLOSE_WAIT);
        }
        self.stopped.send_replace(true);
        for thread in threads {
            // A thread that panicked has said so itself, and is as stopped as the others.
            let _ = thread.join();
        }
        for path in &self.paths {
            // Whoever removed it already did what is to be done.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl ServerCore {
    fn refuse(&self, refusal: &Refusal) {
        self.meter.refuse(refusal.code);
    }

    fn count_duplicate(&self) {
        self.meter.duplicates.fetch_add(1, Ordering::Relaxed);
    }
}
