//! Merging: how many of a queue's requests are worth one TensorBatch. Pure: it sees sizes, deadlines and costs, and takes nothing.

use super::costs::Costs;
use super::limits::Shapes;
use super::plan::Places;
use super::queue::Waiting;

/// The first so many requests of a queue, taken together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Group {
    pub requests: usize,
    /// Fewer than these requests have left where the last one is cut at the top bucket.
    pub candidates: usize,
    pub places: Places,
    pub cost_us: f64,
    /// More waits than one TensorBatch can take.
    pub is_full: bool,
}

/// What a merge depends on beside what waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge<'a> {
    pub shapes: &'a Shapes,
    pub costs: &'a Costs,
    pub now_us: u64,
    pub length: usize,
}

impl Merge<'_> {
    /// The group that is best executed next; its first request is always in it. `groups` is room to work in.
    ///
    /// Requests join in their order while all meet their deadlines. Where more waits than fits, the group whose
    /// candidates cost least each is taken: what is left over finds company. Where all that waits fits, nothing may come
    /// after it, so it is taken whole unless two executions, padded less, together cost less than one.
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

    /// Every group that starts with the first request and meets all deadlines; whether more waits than the last holds.
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
            // Nobody waits for the first where it is too late for it even alone.
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

    /// The group of one request with so many candidates.
    pub fn alone(&self, candidates: usize) -> Group {
        self.group(1, candidates, &mut Places { users: 0, candidates: 0, length: self.length })
    }

    /// The group of so many, its buckets searched upwards from those of a smaller one.
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

    /// What it costs to execute, after `group`, what else is in `all`.
    fn rest_us(&self, all: &Group, group: &Group) -> f64 {
        if all.requests == group.requests {
            return 0.0;
        }
        let mut places = Places { users: 0, candidates: 0, length: self.length };
        self.group(all.requests - group.requests, all.candidates - group.candidates, &mut places).cost_us
    }
}

/// What a request costs that runs alone, its pieces side by side on so many lanes; at least that.
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

/// What a full TensorBatch costs, of the buckets that take no more than so long; 0 where none does.
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

    /// How many requests and candidates are taken of those that wait, each with its candidates and deadline, where an
    /// execution costs `fixed_us` and one for each candidate.
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
        // For the first it is too late even alone: nobody waits for it.
        assert_eq!(taken(&[(20, 40), (20, FAR_US)], 30.0), (2, 40, false));
    }
}
