//! Demand: the waiting work by priority and deadline, from which admission predicts when there is room. Knows
//! no request.

use std::collections::BTreeMap;

use super::costs::Costs;
use super::limits::{LENGTHS_MAX, PRIORITIES};

/// The number of deadline slots in the longest wait: more would make each offer more expensive.
const SLOTS: u64 = 128;

/// Numbers of requests and candidates, by sequence length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    requests: [usize; LENGTHS_MAX],
    candidates: [usize; LENGTHS_MAX],
}

impl Load {
    /// The load of a request with all its waiting candidates.
    pub fn one(candidates: usize, length: usize) -> Self {
        Self::part(candidates, true, length)
    }

    /// The load of some candidates of a request; the request counts with its last ones.
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

    /// Returns the duration of this load in full TensorBatches, which is the minimum.
    pub fn us(&self, costs: &Costs, lengths: usize) -> f64 {
        let of = |length: usize| {
            let (candidate_us, user_us) = costs.rates(length);
            self.candidates[length] as f64 * candidate_us + self.requests[length] as f64 * user_us
        };
        (0..lengths).map(of).sum()
    }
}

/// The waiting work.
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

    /// Removes load that no longer waits.
    pub fn take(&mut self, priority: usize, deadline_us: u64, load: &Load) {
        let slot = self.slot(deadline_us);
        let there = self.slots[priority].get_mut(&slot).expect("only waiting load is removed");
        there.take(load);
        if *there == Load::default() {
            self.slots[priority].remove(&slot);
        }
        self.sums[priority].take(load);
    }

    /// Returns the slot of a deadline; deadlines in a slot are treated alike.
    pub fn slot(&self, deadline_us: u64) -> u64 {
        deadline_us / self.slot_us
    }

    pub fn sum(&self) -> Load {
        self.below(0)
    }

    /// Returns the waiting load of this priority and of less urgent ones.
    pub fn below(&self, priority: usize) -> Load {
        let mut sum = Load::default();
        self.sums[priority..].iter().for_each(|load| sum.add(load));
        sum
    }

    /// Returns the load that is served before a request of this priority and deadline, including its own
    /// slot.
    pub fn ahead(&self, priority: usize, deadline_us: u64) -> Load {
        let mut sum = Load::default();
        self.sums[..priority].iter().for_each(|load| sum.add(load));
        self.slots[priority].range(..=self.slot(deadline_us)).for_each(|(_, load)| sum.add(load));
        sum
    }

    /// Returns the load of the same priority that is served after such a request, with its deadlines.
    pub fn behind(&self, priority: usize, deadline_us: u64) -> impl Iterator<Item = (u64, &Load)> {
        let slot = deadline_us / self.slot_us;
        self.slots[priority]
            .range(slot + 1..)
            .map(|(slot, load)| ((slot + 1).saturating_mul(self.slot_us), load))
    }
}
