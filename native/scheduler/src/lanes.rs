//! Lanes: their state, their plans, and when they are predicted to be free. Knows nothing of waiting
//! requests.

use super::plan::Plan;

/// The state of a lane.
#[derive(Debug)]
enum Lane {
    /// It takes no work: it has not come yet, or has left.
    Away,
    Idle,
    /// Busy until the predicted time.
    Busy {
        plan: Plan,
        until_us: u64,
    },
    /// It takes no work until about then.
    Resting {
        until_us: u64,
    },
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
}

impl Lanes {
    pub fn new(count: usize) -> Self {
        Self { lanes: (0..count).map(|_| Lane::Away).collect() }
    }

    pub fn come(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        assert!(!matches!(lane, Lane::Busy { .. }), "a lane with a plan must not ask for more");
        *lane = Lane::Idle;
    }

    pub fn start(&mut self, lane: usize, plan: Plan, until_us: u64) {
        self.lanes[lane] = Lane::Busy { plan, until_us };
    }

    /// Ends the lane's plan, and returns it; the lane is idle.
    pub fn end(&mut self, lane: usize) -> Option<Plan> {
        if !matches!(self.lanes[lane], Lane::Busy { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.lanes[lane], Lane::Idle) {
            Lane::Busy { plan, .. } => Some(plan),
            Lane::Away | Lane::Idle | Lane::Resting { .. } => None,
        }
    }

    /// Removes the lane until it comes back, and returns its plan.
    pub fn leave(&mut self, lane: usize) -> Option<Plan> {
        let plan = self.end(lane);
        self.lanes[lane] = Lane::Away;
        plan
    }

    /// Makes an idle lane rest until it comes again.
    pub fn rest(&mut self, lane: usize, until_us: u64) {
        if matches!(self.lanes[lane], Lane::Idle) {
            self.lanes[lane] = Lane::Resting { until_us };
        }
    }

    /// Whether a lane executes a plan.
    pub fn is_on(&self, lane: usize, plan: u64) -> bool {
        matches!(&self.lanes[lane], Lane::Busy { plan: of_lane, .. } if of_lane.id == plan)
    }

    /// How many lanes execute a plan.
    pub fn working(&self) -> usize {
        self.lanes.iter().filter(|lane| matches!(lane, Lane::Busy { .. })).count()
    }

    /// How many lanes cannot take work now: those that execute a plan or rest.
    pub fn busy(&self) -> usize {
        self.lanes.iter().filter(|lane| !matches!(lane, Lane::Away | Lane::Idle)).count()
    }

    pub fn present(&self) -> usize {
        self.lanes.iter().filter(|lane| !matches!(lane, Lane::Away)).count()
    }

    /// Returns in how many microseconds each lane is free, ascending. An overdue lane is predicted to need as
    /// much time again as it is overdue: a hanging execution soon counts as no lane.
    pub fn free_in(&self, now_us: u64, free_in: &mut Vec<u64>) {
        free_in.clear();
        free_in.extend(self.lanes.iter().filter_map(|lane| match lane {
            Lane::Away => None,
            Lane::Idle => Some(0),
            Lane::Busy { until_us, .. } => Some(until_us.abs_diff(now_us)),
            Lane::Resting { until_us } => Some(until_us.saturating_sub(now_us)),
        }));
        free_in.sort_unstable();
    }
}

/// Returns in how many microseconds the lanes finish the work, if it is shared so that it ends as soon as
/// possible; without work, when the next lane is free.
pub(super) fn done_in(free_in: &[u64], work_us: f64) -> f64 {
    let mut sum = work_us;
    let mut done = f64::INFINITY;
    for (index, free) in free_in.iter().enumerate() {
        let free = *free as f64;
        if free >= done {
            break; // the remaining lanes are not free before the others are done
        }
        sum += free;
        done = (sum / (index + 1) as f64).max(free);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::done_in;

    #[test]
    fn work_is_shared_so_that_it_is_done_soonest() {
        let close = |free: &[u64], work: f64, done: f64| {
            assert!(
                (done_in(free, work) - done).abs() < 1e-9,
                "{free:?} do {work} in {}",
                done_in(free, work)
            );
        };
        close(&[30], 0.0, 30.0);
        close(&[30], 12.0, 42.0);
        close(&[0, 0], 12.0, 6.0);
        close(&[0, 100], 12.0, 12.0);
        close(&[0, 10], 30.0, 20.0);
        assert!(done_in(&[], 0.0).is_infinite(), "without lanes work is never done");
    }
}
