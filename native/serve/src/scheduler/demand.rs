//! Demand: how much work waits, by priority and deadline, so that admission can say by when there is room. It knows no request.

use std::collections::BTreeMap;

use super::costs::Costs;
use super::limits::{LENGTHS_MAX, PRIORITIES};

/// Deadlines are told apart by this share of the longest wait: more would make each offer dearer.
const SLOTS: u64 = 128;

/// So many requests and candidates, by sequence length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    requests: [usize; LENGTHS_MAX],
    candidates: [usize; LENGTHS_MAX],
}

impl Load {
    /// A request with all its candidates that wait.
    pub fn one(candidates: usize, length: usize) -> Self {
        Self::part(candidates, true, length)
    }

    /// Candidates of a request; they are its last, or more of it waits.
    pub fn part(candidates: usize, is_last: bool, length: usize) -> Self {
        let mut load = Self::default();
        (load.requests[length], load.candidates[length]) = (usize::from(is_last), candidates);
        load
    }

    pub fn requests(&self) -> usize {
        self.requests.iter().sum()
    }

    pub fn candidates(&self) -> usize {
        self.candidates.iter().sum()
    }

    pub fn add(&mut self, other: &Self) {
        for length in 0..LENGTHS_MAX {
            self.requests[length] += other.requests[length];
            self.candidates[length] += other.candidates[length];
        }
    }

    fn take(&mut self, other: &Self) {
        for length in 0..LENGTHS_MAX {
            self.requests[length] -= other.requests[length];
            self.candidates[length] -= other.candidates[length];
        }
    }

    /// How long it takes in full TensorBatches, which is the least it can take.
    pub fn us(&self, costs: &Costs, lengths: usize) -> f64 {
        let of = |length: usize| {
            let (candidate_us, user_us) = costs.rates(length);
            self.candidates[length] as f64 * candidate_us + self.requests[length] as f64 * user_us
        };
        (0..lengths).map(of).sum()
    }
}

/// What waits.
#[derive(Debug)]
pub(super) struct QueuedDemand {
    slot_us: u64,
    slots: [BTreeMap<u64, Load>; PRIORITIES],
    sums: [Load; PRIORITIES],
}

impl QueuedDemand {
    pub fn new(wait_us_max: u64) -> Self {
        Self { slot_us: (wait_us_max / SLOTS).max(1), slots: Default::default(), sums: Default::default() }
    }

    pub fn add(&mut self, priority: usize, deadline_us: u64, load: &Load) {
        let slot = self.slot(deadline_us);
        self.slots[priority].entry(slot).or_default().add(load);
        self.sums[priority].add(load);
    }

    /// So much that waited with this priority, until about this deadline, no longer does.
    pub fn take(&mut self, priority: usize, deadline_us: u64, load: &Load) {
        let slot = self.slot(deadline_us);
        let there = self.slots[priority].get_mut(&slot).expect("what no longer waits did wait");
        there.take(load);
        if *there == Load::default() {
            self.slots[priority].remove(&slot);
        }
        self.sums[priority].take(load);
    }

    /// Deadlines of one slot are one to it.
    pub fn slot(&self, deadline_us: u64) -> u64 {
        deadline_us / self.slot_us
    }

    pub fn sum(&self) -> Load {
        self.below(0)
    }

    /// What waits of this priority and of those served after it.
    pub fn below(&self, priority: usize) -> Load {
        let mut sum = Load::default();
        self.sums[priority..].iter().for_each(|load| sum.add(load));
        sum
    }

    /// What is served before a request of this priority and deadline; those of the same slot are taken to be.
    pub fn ahead(&self, priority: usize, deadline_us: u64) -> Load {
        let mut sum = Load::default();
        self.sums[..priority].iter().for_each(|load| sum.add(load));
        self.slots[priority].range(..=self.slot(deadline_us)).for_each(|(_, load)| sum.add(load));
        sum
    }

    /// What of the same priority is served after such a request: by when it must be done, and how much it is.
    pub fn behind(&self, priority: usize, deadline_us: u64) -> impl Iterator<Item = (u64, &Load)> {
        let slot = deadline_us / self.slot_us;
        self.slots[priority]
            .range(slot + 1..)
            .map(|(slot, load)| ((slot + 1).saturating_mul(self.slot_us), load))
    }
}
