//! Peers: the open connections, the newest epoch of each, and the requests to end them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;

use crate::epoch::Epoch;

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ending {
    /// After the request in progress.
    Drain = 1,
    /// At once, except for a push in progress.
    Close = 2,
    /// At once: a new connection takes its place.
    GiveWay = 3,
}

/// The shared state of one connection.
#[derive(Default)]
pub struct Peer {
    /// The newest epoch it has used.
    epoch: Mutex<Option<Epoch>>,
    /// Whether it uses the shard's current epoch: it is closed when the epoch changes.
    follows: AtomicBool,
    /// The client's id, since its hello was accepted.
    client: OnceLock<u128>,
    ending: AtomicU8,
    ending_changed: Notify,
}

impl Peer {
    /// Records that the peer used an epoch.
    pub fn used_epoch(&self, epoch: Epoch) {
        let mut newest = self.epoch.lock().expect("no holder panics");
        *newest = (*newest).max(Some(epoch));
    }

    /// Makes the peer follow the shard's epoch. Call it before the epoch is read.
    pub fn follow(&self) {
        self.follows.store(true, Ordering::SeqCst);
    }

    /// Whether its newest epoch is older than `epoch`.
    fn is_older_than(&self, epoch: Epoch) -> bool {
        match *self.epoch.lock().expect("no holder panics") {
            Some(used) => used < epoch,
            None => self.follows.load(Ordering::SeqCst),
        }
    }

    /// Waits until it must end in this way or faster.
    pub async fn ends(&self, ending: Ending) {
        loop {
            let changed = self.ending_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_ending(ending) {
                return;
            }
            changed.await;
        }
    }

    /// Whether it must end in this way or faster.
    pub fn is_ending(&self, ending: Ending) -> bool {
        self.ending.load(Ordering::SeqCst) >= ending as u8
    }

    fn end(&self, ending: Ending) {
        self.ending.fetch_max(ending as u8, Ordering::SeqCst);
        self.ending_changed.notify_waiters();
    }
}

#[derive(Default)]
struct PeersState {
    peers: HashMap<u64, Arc<Peer>>,
    /// Connections before their hello; the oldest has the lowest number.
    strangers: BTreeSet<u64>,
    next: u64,
    ending: Option<Ending>,
}

/// All connections.
#[derive(Default)]
pub struct Peers {
    state: Mutex<PeersState>,
    departed: Condvar,
}

/// One connection's entry; dropping it removes the connection.
pub struct Entry<'a> {
    peers: &'a Peers,
    /// Its number.
    pub id: u64,
    /// Its shared state.
    pub peer: Arc<Peer>,
}

impl Entry<'_> {
    /// Marks the hello of a client as accepted: its connection is no longer closed to make room.
    pub fn admit(&self, client: u128) {
        self.peer.client.get_or_init(|| client);
        self.peers.state.lock().expect("no holder panics").strangers.remove(&self.id);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut state = self.peers.state.lock().expect("no holder panics");
        state.peers.remove(&self.id);
        state.strangers.remove(&self.id);
        self.peers.departed.notify_all();
    }
}

impl Peers {
    /// Adds a connection, unless the server is ending. If the limit is reached, closes the oldest connection
    /// without a hello; returns `None` if there is none.
    pub fn enter(&self, peers_max: usize) -> Option<Entry<'_>> {
        let mut guard = self.state.lock().expect("no holder panics");
        let state = &mut *guard;
        if state.ending.is_some() {
            return None;
        }
        if state.peers.len() >= peers_max {
            let oldest = state.strangers.pop_first()?;
            state.peers.remove(&oldest)?.end(Ending::GiveWay);
        }
        let (id, peer) = (state.next, Arc::<Peer>::default());
        state.next += 1;
        state.peers.insert(id, peer.clone());
        state.strangers.insert(id);
        Some(Entry { peers: self, id, peer })
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        self.state.lock().expect("no holder panics").peers.len()
    }

    /// Returns the ids of the clients whose hello was accepted, in ascending order.
    pub fn clients(&self) -> BTreeSet<u128> {
        let state = self.state.lock().expect("no holder panics");
        state.peers.values().filter_map(|peer| peer.client.get().copied()).collect()
    }

    /// Closes the connections that only used older epochs, and those that follow the shard's epoch. Other
    /// connections without an epoch have requested nothing that depends on one.
    pub fn close_older(&self, epoch: Epoch) {
        for peer in self.state.lock().expect("no holder panics").peers.values() {
            if peer.is_older_than(epoch) {
                peer.end(Ending::Close);
            }
        }
    }

    /// Tells all connections to end, and admits no new ones.
    pub fn end(&self, ending: Ending) {
        let mut state = self.state.lock().expect("no holder panics");
        state.ending = Some(ending);
        state.peers.values().for_each(|peer| peer.end(ending));
    }

    /// Waits until no connection is left. Returns false at the deadline.
    pub fn wait_empty(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock().expect("no holder panics");
        while !state.peers.is_empty() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return false;
            }
            state = self.departed.wait_timeout(state, remaining).expect("no holder panics").0;
        }
        true
    }
}
