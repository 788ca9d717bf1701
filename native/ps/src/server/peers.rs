//! Peers: the connections there are, which epoch each speaks of, and telling them to end.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use tokio::sync::Notify;

use crate::epoch::Epoch;

/// How a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ending {
    /// After what it is at.
    Drain = 1,
    /// Now, but for a push that was begun.
    Close = 2,
    /// Now: a new connection has its place.
    GiveWay = 3,
}

/// One connection, as the others know it.
#[derive(Default)]
pub struct Peer {
    /// The newest epoch it spoke of.
    epoch: Mutex<Option<Epoch>>,
    /// Whether it is of whatever epoch there is: it hears of the next one by being closed.
    follows: AtomicBool,
    ending: AtomicU8,
    told: Notify,
}

impl Peer {
    /// It spoke of an epoch.
    pub fn speaks_of(&self, epoch: Epoch) {
        let mut newest = self.epoch.lock().expect("no holder panics");
        *newest = (*newest).max(Some(epoch));
    }

    /// It is of whatever epoch there is, and must be told this before it hears which one that is.
    pub fn follow(&self) {
        self.follows.store(true, Ordering::SeqCst);
    }

    /// Whether it is of an epoch before this one.
    fn is_older_than(&self, epoch: Epoch) -> bool {
        match *self.epoch.lock().expect("no holder panics") {
            Some(spoken) => spoken < epoch,
            None => self.follows.load(Ordering::SeqCst),
        }
    }

    /// Wait until it is to end in this way, or sooner.
    pub async fn ends(&self, ending: Ending) {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if self.is_ending(ending) {
                return;
            }
            told.await;
        }
    }

    /// Whether it is to end in this way, or sooner.
    pub fn is_ending(&self, ending: Ending) -> bool {
        self.ending.load(Ordering::SeqCst) >= ending as u8
    }

    fn end(&self, ending: Ending) {
        self.ending.fetch_max(ending as u8, Ordering::SeqCst);
        self.told.notify_waiters();
    }
}

#[derive(Default)]
struct PeersState {
    peers: HashMap<u64, Arc<Peer>>,
    /// Those whose hello was not heard yet; the oldest has the lowest number.
    strangers: BTreeSet<u64>,
    next: u64,
    ending: Option<Ending>,
}

/// All connections.
#[derive(Default)]
pub struct Peers {
    state: Mutex<PeersState>,
    left: Condvar,
}

/// One connection's entry; dropping it leaves.
pub struct Entry<'a> {
    peers: &'a Peers,
    /// Its number.
    pub id: u64,
    /// What others know of it.
    pub peer: Arc<Peer>,
}

impl Entry<'_> {
    /// Its hello was good: it keeps its place from now on.
    pub fn admit(&self) {
        self.peers.state.lock().expect("no holder panics").strangers.remove(&self.id);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut state = self.peers.state.lock().expect("no holder panics");
        state.peers.remove(&self.id);
        state.strangers.remove(&self.id);
        self.peers.left.notify_all();
    }
}

impl Peers {
    /// Come in, if nobody was told to end and there is room, or one whose hello was not heard yet to make some.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.state.lock().expect("no holder panics").peers.len()
    }

    /// Close those that speak of an older epoch and none newer, and those that follow. Others that spoke of none have
    /// asked for nothing that an epoch matters to.
    pub fn close_older(&self, epoch: Epoch) {
        for peer in self.state.lock().expect("no holder panics").peers.values() {
            if peer.is_older_than(epoch) {
                peer.end(Ending::Close);
            }
        }
    }

    /// Tell all to end, and let nobody in.
    pub fn end(&self, ending: Ending) {
        let mut state = self.state.lock().expect("no holder panics");
        state.ending = Some(ending);
        state.peers.values().for_each(|peer| peer.end(ending));
    }

    /// Wait until nobody is left. Gives whether that came before the deadline.
    pub fn wait_empty(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock().expect("no holder panics");
        while !state.peers.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.left.wait_timeout(state, left).expect("no holder panics").0;
        }
        true
    }
}
