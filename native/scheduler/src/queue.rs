//! Queues: waiting requests by version and sequence length, in serving order. Knows no cost and no lane.

use std::collections::VecDeque;

use super::limits::{Key, PRIORITIES};
use super::tickets::{Held, Ticket};

/// A waiting request, or the rest of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub deadline_us: u64,
    pub order: u64,
    pub ticket: Ticket,
    /// The number of waiting candidates.
    pub left: usize,
}

impl Waiting {
    fn turn(&self) -> (u64, u64) {
        (self.deadline_us, self.order)
    }
}

/// The requests of one key, with a deque for each priority, ordered by deadline: requests mostly arrive at
/// the back and leave at the front, so a ring is cheaper than a tree.
#[derive(Debug)]
pub(super) struct Queue {
    pub key: Key,
    lines: [VecDeque<Waiting>; PRIORITIES],
}

impl Queue {
    /// Returns the request to serve first, and its priority.
    pub fn head(&self) -> Option<(usize, &Waiting)> {
        self.lines.iter().enumerate().find_map(|(priority, line)| Some((priority, line.front()?)))
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.lines.iter().flatten()
    }

    /// Takes candidates of the first request; the request leaves with its last ones.
    pub fn take_from_head(&mut self, candidates: usize) -> (usize, Waiting) {
        let found = self.lines.iter_mut().enumerate().find(|(_, line)| !line.is_empty());
        let (priority, line) = found.expect("a served queue is not empty");
        line[0].left -= candidates;
        let waiting = line[0];
        if waiting.left == 0 {
            line.pop_front();
        }
        (priority, waiting)
    }

    fn push(&mut self, priority: usize, waiting: Waiting) {
        let line = &mut self.lines[priority];
        let at = if line.back().is_none_or(|last| last.turn() < waiting.turn()) {
            line.len()
        } else {
            line.partition_point(|one| one.turn() < waiting.turn())
        };
        line.insert(at, waiting);
    }

    fn remove(&mut self, priority: usize, turn: (u64, u64)) {
        let line = &mut self.lines[priority];
        let at = line.partition_point(|one| one.turn() < turn);
        assert!(
            line.get(at).is_some_and(|one| one.turn() == turn),
            "a request with candidates left is in its queue"
        );
        line.remove(at);
    }
}

/// All non-empty queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<Queue>,
}

impl Queues {
    pub fn push(&mut self, key: Key, priority: usize, waiting: Waiting) {
        let at = self.queues.iter().position(|queue| queue.key == key).unwrap_or_else(|| {
            self.queues.push(Queue { key, lines: Default::default() });
            self.queues.len() - 1
        });
        self.queues[at].push(priority, waiting);
    }

    /// Removes what waits of a request.
    pub fn remove(&mut self, held: &Held) {
        let at = self.queues.iter().position(|queue| queue.key == held.key);
        let at = at.expect("a request with candidates left has a queue");
        self.queues[at].remove(held.priority, (held.deadline_us, held.order));
        self.forget_if_empty(at);
    }

    /// Returns the queue whose head is served first: by priority, then by deadline, whatever the version.
    pub fn first(&self) -> Option<usize> {
        let heads = self.queues.iter().enumerate().filter_map(|(at, queue)| Some((at, queue.head()?)));
        heads.min_by_key(|(_, (priority, head))| (*priority, head.turn())).map(|(at, _)| at)
    }

    pub fn at(&self, queue: usize) -> &Queue {
        &self.queues[queue]
    }

    pub fn at_mut(&mut self, queue: usize) -> &mut Queue {
        &mut self.queues[queue]
    }

    /// Drops an empty queue: over time there are many versions.
    pub fn forget_if_empty(&mut self, queue: usize) {
        if self.queues[queue].head().is_none() {
            self.queues.swap_remove(queue);
        }
    }

    /// Returns the waiting request of the lowest priority, and among these of the latest deadline.
    pub fn last(&self) -> Option<((usize, u64, u64), Ticket)> {
        let last = |priority: usize| self.queues.iter().filter_map(move |queue| queue.lines[priority].back());
        (0..PRIORITIES).rev().find_map(|priority| {
            let one = last(priority).max_by_key(|one| one.turn())?;
            Some(((priority, one.deadline_us, one.order), one.ticket))
        })
    }

    /// Returns the requests whose deadline has passed.
    pub fn expired(&self, now_us: u64) -> impl Iterator<Item = Ticket> {
        let lines = self.queues.iter().flat_map(|queue| queue.lines.iter());
        lines
            .flat_map(move |line| line.iter().take_while(move |one| one.deadline_us <= now_us))
            .map(|one| one.ticket)
    }

    /// Returns the next deadline.
    pub fn deadline_us(&self) -> Option<u64> {
        let lines = self.queues.iter().flat_map(|queue| queue.lines.iter());
        lines.filter_map(|line| Some(line.front()?.deadline_us)).min()
    }
}
