//! Orders: opaque requests to the embedding process, and its answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::epoch::Epoch;
use crate::refusal::{Code, Refusal};

/// A request to the embedding process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Identifies the order in its answer.
    pub id: u64,
    /// The sender's epoch; the server does not check it.
    pub epoch: Option<Epoch>,
    /// Whether the sender only reads: the order must change nothing.
    pub reads_only: bool,
    /// The content.
    pub body: Vec<u8>,
}

/// An answer, for the sender's connection.
pub struct Answer {
    /// The number of the request.
    pub request: u64,
    /// The content.
    pub content: Result<Vec<u8>, Refusal>,
    /// When the order arrived.
    pub began: Instant,
}

/// The sender of an order.
pub struct OrderSender {
    /// The number of its connection.
    pub peer: u64,
    /// The number of the request.
    pub request: u64,
    /// Whether the client only reads.
    pub reads_only: bool,
    /// Where the answer goes. Unbounded, because there are never more answers than orders.
    pub answers: UnboundedSender<Answer>,
}

struct Pending {
    sender: OrderSender,
    began: Instant,
}

#[derive(Default)]
struct OrdersState {
    queue: VecDeque<(Order, Option<OwnedSemaphorePermit>)>,
    pending: HashMap<u64, Pending>,
    next: u64,
    is_closed: bool,
}

/// Orders that are queued or not answered.
pub struct Orders {
    state: Mutex<OrdersState>,
    ready: Condvar,
    orders_max: usize,
}

impl Orders {
    /// Creates a queue of at most `orders_max` unanswered orders.
    pub fn new(orders_max: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), orders_max }
    }

    fn lock(&self) -> MutexGuard<'_, OrdersState> {
        self.state.lock().expect("no holder panics")
    }

    /// Queues an order. Its permit is released when the order leaves the queue.
    pub fn put(
        &self,
        sender: OrderSender,
        (epoch, body): (Option<Epoch>, Vec<u8>),
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(Refusal::new(Code::NotReady, "the shard is stopping"));
        }
        if state.pending.len() >= self.orders_max {
            let text = format!("the limit of {} unanswered orders is reached", self.orders_max);
            return Err(Refusal::new(Code::Busy, text));
        }
        let (id, reads_only) = (state.next, sender.reads_only);
        state.next += 1;
        state.pending.insert(id, Pending { sender, began: Instant::now() });
        state.queue.push_back((Order { id, epoch, reads_only, body }, permit));
        self.ready.notify_one();
        Ok(())
    }

    /// Waits for the next order.
    pub fn next(&self, wait: Duration) -> Option<Order> {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if let Some((order, _)) = state.queue.pop_front() {
                return Some(order);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() || state.is_closed {
                return None;
            }
            state = self.ready.wait_timeout(state, remaining).expect("no holder panics").0;
        }
    }

    /// Answers an order. Returns whether the sender is still connected.
    pub fn answer(&self, id: u64, content: Result<Vec<u8>, Refusal>) -> bool {
        let Some(Pending { sender, began }) = self.lock().pending.remove(&id) else { return false };
        sender.answers.send(Answer { request: sender.request, content, began }).is_ok()
    }

    /// Drops the orders of a closed connection that were not taken yet.
    pub fn forget(&self, peer: u64) {
        let mut state = self.lock();
        let OrdersState { queue, pending, .. } = &mut *state;
        queue.retain(|(order, _)| pending.get(&order.id).is_some_and(|pending| pending.sender.peer != peer));
        pending.retain(|_, pending| pending.sender.peer != peer);
    }

    /// Returns the number of orders that are queued or not answered.
    pub fn count(&self) -> usize {
        self.lock().pending.len()
    }

    /// Stops accepting orders, and refuses those not taken yet.
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
