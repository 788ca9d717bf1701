//! Merging: how many requests of a queue to execute in one TensorBatch. Pure: it sees sizes, deadlines and
//! costs, and changes nothing.

use super::costs::Costs;
use super::limits::Shapes;
use super::plan::Places;
use super::queue::Waiting;

/// The first requests of a queue, taken together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Group {
    pub requests: usize,
    /// Fewer than the requests have, if the last one is cut at the top bucket.
    pub candidates: usize,
    pub places: Places,
    pub cost_us: f64,
    /// Whether more waits than one TensorBatch can take.
    pub is_full: bool,
}

/// The inputs of a merge beside the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge<'a> {
    pub shapes: &'a Shapes,
    pub costs: &'a Costs,
    pub now_us: u64,
    pub length: usize,
}

impl Merge<'_> {
    /// Returns the group to execute next; the first request is always in it. `groups` is scratch space.
    ///
    /// Requests join in order while all meet their deadlines. If more waits than fits, the group with the
    /// lowest cost per candidate is taken: the rest will find company. If everything fits, nothing may arrive
    /// later to merge with, so all of it is taken, unless two executions with less padding cost less than
    /// one.
    pub fn choose<'w>(&self, waiting: impl Iterator<Item = &'w Waiting>, groups: &mut Vec<Group>) -> Group {
        let is_full = self.grow(waiting, groups);
        let all = groups[groups.len() - 1];
        let weigh = |group: &Group| {
            if is_full {
                group.cost_us / group.candidates as f64
            } else {
                group.cost_us + self.rest_us(&all, group)
            }
        };
        let mut best = (weigh(&all), all);
        for group in groups.iter().rev().skip(1) {
            let weight = weigh(group);
            if weight < best.0 {
                best = (weight, *group);
            }
        }
        Group { is_full, ..best.1 }
    }

    /// Collects every group that starts with the first request and meets all deadlines. Returns whether more
    /// waits than the last group holds.
    fn grow<'w>(&self, waiting: impl Iterator<Item = &'w Waiting>, groups: &mut Vec<Group>) -> bool {
        groups.clear();
        let (users_max, top) = (self.shapes.users.top(), self.shapes.candidates.top());
        let (mut candidates, mut until_us) = (0, f64::INFINITY);
        let mut places = Places { users: 0, candidates: 0, length: self.length };
        for (index, one) in waiting.enumerate() {
            if index == users_max || candidates == top {
                return true;
            }
            let taken = one.left.min(top - candidates);
            let group = self.group(index + 1, candidates + taken, &mut places);
            let done_us = self.now_us as f64 + group.cost_us;
            if index > 0 && done_us > until_us.min(one.deadline_us as f64) {
                return true;
            }
            // If the first request is late even alone, its deadline is ignored.
            if index > 0 || done_us <= one.deadline_us as f64 {
                until_us = until_us.min(one.deadline_us as f64);
            }
            candidates += taken;
            groups.push(group);
            if taken < one.left {
                return true;
            }
        }
        false
    }

    /// Returns the group of a single request.
    pub fn alone(&self, candidates: usize) -> Group {
        self.group(1, candidates, &mut Places { users: 0, candidates: 0, length: self.length })
    }

    /// Returns a group; its buckets are searched upwards from those of a smaller one.
    fn group(&self, requests: usize, candidates: usize, places: &mut Places) -> Group {
        let (users, sizes) = (self.shapes.users.sizes(), self.shapes.candidates.sizes());
        while users[places.users] < requests {
            places.users += 1;
        }
        while sizes[places.candidates] < candidates {
            places.candidates += 1;
        }
        let cost_us = self.costs.us(places.users, places.candidates, self.length);
        Group { requests, candidates, places: *places, cost_us, is_full: false }
    }

    /// Returns the cost of executing the rest of `all` after `group`.
    fn rest_us(&self, all: &Group, group: &Group) -> f64 {
        if all.requests == group.requests {
            return 0.0;
        }
        let mut places = Places { users: 0, candidates: 0, length: self.length };
        self.group(all.requests - group.requests, all.candidates - group.candidates, &mut places).cost_us
    }
}

/// Returns the cost of a request that runs alone, with its pieces in parallel on the lanes.
pub(super) fn alone_us(
    shapes: &Shapes,
    costs: &Costs,
    candidates: usize,
    length: usize,
    lanes: usize,
) -> f64 {
    let ladder = &shapes.candidates;
    let cost = |bucket: usize| costs.us(0, bucket, length);
    let (tops, rest) = (candidates / ladder.top(), candidates % ladder.top());
    let last = if rest == 0 { 0.0 } else { ladder.holds(rest).map_or(0.0, cost) };
    if tops == 0 {
        return last;
    }
    let top = cost(ladder.sizes().len() - 1);
    top.max(tops as f64 * top / lanes.max(1) as f64 + last)
}

/// Returns the cost of a full TensorBatch, of the largest bucket that takes at most `us_max`; 0 if there is
/// none.
pub(super) fn full_us(shapes: &Shapes, costs: &Costs, length: usize, us_max: f64) -> f64 {
    let cost = |bucket: usize| costs.us(0, bucket, length);
    (0..shapes.candidates.sizes().len()).rev().map(cost).find(|us| *us <= us_max).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::limits::Key;
    use super::super::tickets::{Held, Tickets};
    use super::*;
    use crate::ladder::Ladder;

    const FAR_US: u64 = 1_000_000;

    /// Returns how many requests and candidates are taken, for waiting (candidates, deadline) pairs and a
    /// cost of `fixed_us` plus one per candidate.
    fn taken(waiting: &[(usize, u64)], fixed_us: f64) -> (usize, usize, bool) {
        let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
        let shapes = Shapes {
            users: ladder(&[1, 2, 4]),
            candidates: ladder(&[10, 20, 40, 80]),
            lengths: ladder(&[1]),
        };
        let costs = Costs::measured(&shapes, |_, _| 0.001, |candidates, _| fixed_us + candidates as f64);
        let key = Key { version: 1, length: 0 };
        let mut tickets = Tickets::default();
        let waiting: Vec<Waiting> = waiting
            .iter()
            .map(|&(left, deadline_us)| {
                let (priority, order, given, running, is_gone) = (0, 0, 0, 0, false);
                let held =
                    Held { key, priority, deadline_us, order, candidates: left, given, running, is_gone };
                Waiting { deadline_us, order, ticket: tickets.put(held), left }
            })
            .collect();
        let merge = Merge { shapes: &shapes, costs: &costs, now_us: 0, length: 0 };
        let group = merge.choose(waiting.iter(), &mut Vec::new());
        (group.requests, group.candidates, group.is_full)
    }

    #[test]
    fn what_waits_is_taken_whole_where_one_execution_costs_less_than_two() {
        assert_eq!(taken(&[(10, FAR_US), (10, FAR_US), (11, FAR_US)], 30.0), (3, 31, false));
    }

    #[test]
    fn what_would_mostly_be_padding_is_left_for_an_execution_of_its_own() {
        assert_eq!(taken(&[(20, FAR_US), (20, FAR_US), (1, FAR_US)], 1.0), (2, 40, false));
        assert_eq!(taken(&[(20, FAR_US), (20, FAR_US), (1, FAR_US)], 100.0), (3, 41, false));
    }

    #[test]
    fn where_more_waits_than_fits_a_candidate_costs_least() {
        let five = [(10, FAR_US), (9, FAR_US), (10, FAR_US), (11, FAR_US), (10, FAR_US)];
        assert_eq!(taken(&five, 30.0), (4, 40, true));
        let padded = [(10, FAR_US), (10, FAR_US), (10, FAR_US), (1, FAR_US), (10, FAR_US)];
        assert_eq!(taken(&padded, 5.0), (2, 20, true));
    }

    #[test]
    fn the_last_is_cut_at_the_top_bucket() {
        assert_eq!(taken(&[(50, FAR_US), (50, FAR_US)], 30.0), (2, 80, true));
        assert_eq!(taken(&[(200, FAR_US)], 30.0), (1, 80, true));
        assert_eq!(taken(&[(80, FAR_US)], 30.0), (1, 80, false));
    }

    #[test]
    fn nobody_joins_who_would_make_another_late_or_be_late() {
        assert_eq!(taken(&[(20, 60), (20, FAR_US)], 30.0), (1, 20, true));
        assert_eq!(taken(&[(20, FAR_US), (20, 60)], 30.0), (1, 20, true));
        // The first one is late even alone, so its deadline is ignored.
        assert_eq!(taken(&[(20, 40), (20, FAR_US)], 30.0), (2, 40, false));
    }
}
