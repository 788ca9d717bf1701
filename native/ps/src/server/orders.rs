//! Orders: opaque bodies on their way to whoever embeds the server, and the answers on their way back.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::epoch::Epoch;
use crate::refusal::{Code, Refusal};

/// What somebody asks of whoever embeds the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// To answer it by.
    pub id: u64,
    /// The epoch of who asks; it was not judged.
    pub epoch: Option<Epoch>,
    /// Whether who asks only reads: nothing may be changed for it.
    pub reads_only: bool,
    /// What is asked.
    pub body: Vec<u8>,
}

/// An answer, for the connection that asked.
pub struct Answer {
    /// The request it answers.
    pub request: u64,
    /// What is answered.
    pub content: Result<Vec<u8>, Refusal>,
    /// When it was asked.
    pub began: Instant,
}

/// Who asked.
pub struct Asker {
    /// The connection.
    pub peer: u64,
    /// Its request.
    pub request: u64,
    /// Whether it only reads.
    pub reads_only: bool,
    /// Where the answer goes. Not bounded by itself, for there are no more answers than orders.
    pub answers: UnboundedSender<Answer>,
}

struct Pending {
    asker: Asker,
    began: Instant,
}

#[derive(Default)]
struct OrdersState {
    queue: VecDeque<(Order, Option<OwnedSemaphorePermit>)>,
    pending: HashMap<u64, Pending>,
    next: u64,
    is_closed: bool,
}

/// Orders that wait, and those that are not answered.
pub struct Orders {
    state: Mutex<OrdersState>,
    ready: Condvar,
    orders_max: usize,
}

impl Orders {
    /// No orders yet, and never more than this that are not answered.
    pub fn new(orders_max: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), orders_max }
    }

    fn lock(&self) -> MutexGuard<'_, OrdersState> {
        self.state.lock().expect("no holder panics")
    }

    /// Put an order into the queue. What its bytes took of what is in flight is given back when it leaves it.
    pub fn put(
        &self,
        asker: Asker,
        (epoch, body): (Option<Epoch>, Vec<u8>),
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Refusal::new(Code::NotReady, "the shard is stopping"));
        }
        if state.pending.len() >= self.orders_max {
            let text = format!("{} orders are not answered, the most there may be", self.orders_max);
            return Err(Refusal::new(Code::Busy, text));
        }
        let (id, reads_only) = (state.next, asker.reads_only);
        state.next += 1;
        state.pending.insert(id, Pending { asker, began: Instant::now() });
        state.queue.push_back((Order { id, epoch, reads_only, body }, permit));
        self.ready.notify_one();
        Ok(())
    }

    /// The next order, if one comes within some time.
    pub fn next(&self, wait: Duration) -> Option<Order> {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if let Some((order, _)) = state.queue.pop_front() {
                return Some(order);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_closed {
                return None;
            }
            state = self.ready.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Answer an order. Gives whether whoever asked was still there.
    pub fn answer(&self, id: u64, content: Result<Vec<u8>, Refusal>) -> bool {
        let Some(Pending { asker, began }) = self.lock().pending.remove(&id) else { return false };
        asker.answers.send(Answer { request: asker.request, content, began }).is_ok()
    }

    /// A connection has gone: what it asked for and nobody took is not asked any more.
    pub fn forget(&self, peer: u64) {
        let mut state = self.lock();
        let OrdersState { queue, pending, .. } = &mut *state;
        queue.retain(|(order, _)| pending.get(&order.id).is_some_and(|pending| pending.asker.peer != peer));
        pending.retain(|_, pending| pending.asker.peer != peer);
    }

    /// Orders that wait or are not answered.
    pub fn count(&self) -> usize {
        self.lock().pending.len()
    }

    /// Take no more, and refuse those that nobody took.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        for (order, _) in queue {
            self.answer(order.id, Err(Refusal::new(Code::NotReady, "the shard is stopping")));
        }
        self.ready.notify_all();
    }
}
