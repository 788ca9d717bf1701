//! Lanes: which of them are busy, with what, and by when they would be free. They know nothing of what waits.

use super::plan::Plan;

/// What a lane does.
#[derive(Debug)]
enum Lane {
    /// It takes no work: it has not come yet, or it has left.
    Away,
    Idle,
    /// Until when, by prediction.
    Busy {
        plan: Plan,
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
        assert!(!matches!(lane, Lane::Busy { .. }), "a lane that has work asked for more");
        *lane = Lane::Idle;
    }

    pub fn start(&mut self, lane: usize, plan: Plan, until_us: u64) {
        self.lanes[lane] = Lane::Busy { plan, until_us };
    }

    /// What the lane was busy with; it is idle now.
    pub fn end(&mut self, lane: usize) -> Option<Plan> {
        if !matches!(self.lanes[lane], Lane::Busy { .. }) {
            return None;
        }
        match std::mem::replace(&mut self.lanes[lane], Lane::Idle) {
            Lane::Busy { plan, .. } => Some(plan),
            Lane::Away | Lane::Idle => None,
        }
    }

    /// The lane takes no more work until it comes again; what it was busy with.
    pub fn leave(&mut self, lane: usize) -> Option<Plan> {
        let plan = self.end(lane);
        self.lanes[lane] = Lane::Away;
        plan
    }

    /// Whether a lane executes a plan.
    pub fn is_on(&self, lane: usize, plan: u64) -> bool {
        matches!(&self.lanes[lane], Lane::Busy { plan: of_lane, .. } if of_lane.id == plan)
    }

    pub fn busy(&self) -> usize {
        self.lanes.iter().filter(|lane| matches!(lane, Lane::Busy { .. })).count()
    }

    pub fn present(&self) -> usize {
        self.lanes.iter().filter(|lane| !matches!(lane, Lane::Away)).count()
    }

    /// In how many microseconds each lane is free, ascending. One that is over its time is taken to need as long again as
    /// it is over: an execution that hangs soon counts for no lane at all.
    pub fn free_in(&self, now_us: u64, free_in: &mut Vec<u64>) {
        free_in.clear();
        free_in.extend(self.lanes.iter().filter_map(|lane| match lane {
            Lane::Away => None,
            Lane::Idle => Some(0),
            Lane::Busy { until_us, .. } => Some(until_us.abs_diff(now_us)),
        }));
        free_in.sort_unstable();
    }
}

/// In how many microseconds the lanes, free in so many each, have done so much work, shared so that it is done
/// soonest; the next lane that is free, where there is no work.
pub(super) fn done_in(free_in: &[u64], work_us: f64) -> f64 {
    let mut sum = work_us;
    let mut done = f64::INFINITY;
    for (index, free) in free_in.iter().enumerate() {
        let free = *free as f64;
        if free >= done {
            break; // this lane and those after it are not free before the others are done
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
        assert!(done_in(&[], 0.0).is_infinite(), "no lane is ever done");
    }
}
