//! The server: one shard's tables behind sockets. The embedding process provides the tables and the epoch,
//! and carries out orders.

mod connection;
mod listen;
mod notes;
mod orders;
mod peers;
mod settings;
mod slices;
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
use streamlearn_trust::{FileValue, Token};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::address::BoundSocket;
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

/// Larger pooled buffers of floats are not kept.
const POOLED_FLOATS_MAX: usize = 1 << 17;
/// Larger pooled buffers of bytes are not kept.
const POOLED_BYTES_MAX: usize = 2 << 20;
/// How long connections may take to close after a request to close at once.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// State shared by all connections.
struct ServerCore {
    shard: Shard,
    token: Option<Token>,
    tls: Option<FileValue<TlsAcceptor>>,
    limits: Limits,
    stage: Arc<Stage>,
    orders: Orders,
    peers: Peers,
    meter: Meter,
    notes: Notes,
    /// KiB of payloads that may still be taken into flight.
    in_flight: Arc<Semaphore>,
    pool: Pool<f32>,
    /// Buffers for payloads.
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
    /// Binds the addresses and serves them from the server's own threads. Until tables are installed, only
    /// hellos, orders and pings are answered.
    ///
    /// # Errors
    /// If the settings are invalid, if an address cannot be bound, or if an address that other
    /// machines can reach is configured without a token.
    pub fn start(settings: ServerSettings, shard: Shard) -> Result<Self> {
        settings.check(&shard).map_err(|text| PsError::new(Trouble::Settings, text))?;
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let bind = |address: &String| BoundSocket::bind(address, settings.token.is_some());
        let sockets: Vec<BoundSocket> = settings
            .listen
            .iter()
            .map(bind)
            .collect::<std::result::Result<_, _>>()
            .map_err(|text| PsError::new(Trouble::Io, text))?;
        let addresses = sockets.iter().map(BoundSocket::address).collect();
        let path_of = |socket: &BoundSocket| match socket {
            BoundSocket::Unix(_, path) => Some(path.clone()),
            BoundSocket::Tcp(_) => None,
        };
        let paths = sockets.iter().filter_map(path_of).collect();
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
        server.run(sockets, settings.threads)?;
        Ok(server)
    }

    fn run(&self, sockets: Vec<BoundSocket>, threads: usize) -> Result<()> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel(64)).unzip();
        let mut first = Some((sockets, senders));
        for (number, receiver) in receivers.into_iter().enumerate() {
            let (core, stopped, first) = (self.core.clone(), self.stopped.subscribe(), first.take());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let thread = runtime.and_then(|runtime| {
                let work = move || runtime.block_on(listen::work(core, first, receiver, stopped));
                std::thread::Builder::new().name(format!("ps-server-{number}")).spawn(work)
            });
            let thread = thread.map_err(|error| {
                PsError::new(Trouble::Io, format!("cannot start thread {number} of {threads}: {error}"))
            })?;
            self.threads.lock().expect("no holder panics").push(thread);
        }
        Ok(())
    }

    /// Returns the bound addresses.
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Installs tables under a new epoch. Requests of the previous epoch finish first; then connections that
    /// only used older epochs are closed. The record of applied pushes starts empty.
    ///
    /// # Errors
    /// If the epoch is not newer than the last.
    pub fn install(&self, tables: Arc<TableSet>, epoch: Epoch) -> Result<()> {
        let held_bytes_max = self.core.limits.in_flight_bytes_max;
        let installed = self.core.stage.install(tables, epoch, held_bytes_max);
        installed.map_err(|text| PsError::new(Trouble::Settings, text))?;
        self.core.peers.close_older(epoch);
        Ok(())
    }

    /// Releases the tables. Returns once no request uses them: pushes in progress finish, and pulls by slow
    /// peers are aborted.
    pub fn uninstall(&self) {
        self.core.stage.uninstall();
    }

    /// Returns the ids of the connected clients, in ascending order: those whose hello was accepted.
    pub fn clients(&self) -> Vec<u128> {
        self.core.peers.clients().into_iter().collect()
    }

    /// Waits for the next order.
    pub fn next_order(&self, wait: Duration) -> Option<Order> {
        self.core.orders.next(wait)
    }

    /// Answers an order. Returns whether the sender is still connected.
    pub fn answer(&self, id: u64, answer: std::result::Result<Vec<u8>, Refusal>) -> bool {
        self.core.orders.answer(id, answer)
    }

    /// Waits for refused connections, and returns the notes since the last call and the number of refusals
    /// that were not noted.
    pub fn refused(&self, wait: Duration) -> (Vec<Note>, u64) {
        self.core.notes.take(wait)
    }

    /// Returns the statistics since the server started.
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

    /// Stops accepting work, finishes the requests in progress, then closes all connections; after `drain` it
    /// closes them at once. Idempotent.
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
            // A panic was already printed by its own thread; the thread has stopped either way.
            let _ = thread.join();
        }
        for path in &self.paths {
            // An error means that the file is already gone.
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
