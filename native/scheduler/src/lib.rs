//! The scheduler: decides which requests a free lane executes together. A pure state machine without a clock,
//! a thread or a queue of its own.
//!
//! Requests are offered, and admitted or refused at once. A free lane asks for the `next` plan, and reports
//! `done`. A request may be split into pieces in several plans; it is complete when all pieces are done. Each
//! admitted request ends once: complete, late, shed, failed or cancelled. All times are microseconds of the
//! caller's clock.

mod admission;
mod again;
mod allowance;
mod arrivals;
mod cohorts;
mod costs;
mod demand;
mod gains;
pub mod ladder;
mod lanes;
mod limits;
mod merge;
mod offer;
mod plan;
mod queue;
mod slack;
mod tickets;

pub use allowance::{AllowanceLimits, Value, Worth};
pub use cohorts::COHORTS;
pub use costs::{Costs, Took};
pub use limits::{LENGTHS_MAX, Limits, PRIORITIES, Shapes};
pub use offer::{Admitted, Offer, Reason, Refused};
pub use plan::{Idle, Next, Piece, Plan};
pub use tickets::Ticket;

use admission::Applicant;
use again::{Again, Alone};
use allowance::{Action, Allowance};
use arrivals::ArrivalRate;
use cohorts::Cohorts;
use demand::{Load, QueuedDemand};
use lanes::Lanes;
use limits::Key;
use merge::{Group, Merge};
use plan::Places;
use queue::{Queues, Waiting};
use slack::Slack;
use tickets::{Held, Tickets};

/// How far a full TensorBatch moves the pace, and how far one that was not full moves it back.
const PACE_WEIGHT: f64 = 1.0 / 16.0;
const PACE_BACK_WEIGHT: f64 = 1.0 / 128.0;
const PACE_MAX: f64 = 8.0;

/// The waiting and running work of one device.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    shapes: Shapes,
    costs: Costs,
    tickets: Tickets,
    queues: Queues,
    again: Again,
    demand: QueuedDemand,
    arrivals: ArrivalRate,
    lanes: Lanes,
    allowance: Option<Allowance>,
    cohorts: Option<Cohorts>,
    slack: Slack,
    /// How many times longer the waiting work takes than in TensorBatches without padding; learned.
    pace: f64,
    admitted: u64,
    planned: u64,
    tried_again: u64,
    /// Scratch space.
    groups: Vec<Group>,
    free_in: Vec<u64>,
}

/// The request to serve first.
struct QueueHead {
    /// Its queue; `None` for a retry.
    queue: Option<usize>,
    key: Key,
    ticket: Ticket,
    deadline_us: u64,
    left: usize,
}

/// Queue and lane figures for metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Requests with waiting pieces.
    pub requests: usize,
    /// Waiting candidates.
    pub candidates: usize,
    /// Requests that wait or run.
    pub held: usize,
    /// Lanes that execute or rest.
    pub lanes_busy: usize,
    /// Lanes that are present.
    pub lanes: usize,
    /// The predicted time in microseconds until all waiting and running work is done.
    pub backlog_us: f64,
    /// The time in microseconds that requests keep before their deadlines, if they have enough.
    pub slack_us: f64,
    /// The value of requests so far, if there is an allowance.
    pub value: Option<Value>,
}

impl Scheduler {
    /// Creates an empty scheduler; a lane is absent until it first asks for work.
    ///
    /// # Panics
    /// If a bound is zero, or there are more lengths than `LENGTHS_MAX`.
    pub fn new(limits: Limits, shapes: Shapes, costs: Costs) -> Self {
        let bounds = [limits.lanes, limits.requests_max, limits.candidates_max];
        assert!(
            bounds.iter().all(|bound| *bound > 0) && limits.wait_us_max > 0,
            "a bound is above 0: {limits:?}"
        );
        let allowance = limits.allowance.map(|bounds| Allowance::new(bounds, limits.candidates_max));
        assert!(shapes.lengths.sizes().len() <= LENGTHS_MAX, "there are {LENGTHS_MAX} lengths at most");
        Self {
            limits,
            shapes,
            costs,
            tickets: Tickets::default(),
            queues: Queues::default(),
            again: Again::default(),
            demand: QueuedDemand::new(limits.wait_us_max),
            arrivals: ArrivalRate::new(limits.wait_us_max),
            lanes: Lanes::new(limits.lanes),
            allowance,
            cohorts: limits.by_cohort.then(Cohorts::default),
            slack: Slack::new(limits.slack_us),
            pace: 1.0,
            admitted: 0,
            planned: 0,
            tried_again: 0,
            groups: Vec::new(),
            free_in: Vec::new(),
        }
    }

    /// Offers a request. It is refused at once if it could not be answered in time, or if a bound is reached;
    /// requests of lower priority are shed to make room for it.
    ///
    /// # Errors
    /// `Refused`, with the reason and when to try again.
    ///
    /// # Panics
    /// If it has no candidates.
    pub fn offer(&mut self, now_us: u64, offer: &Offer<'_>) -> Result<Admitted, Refused> {
        self.offer_with(now_us, offer, self.slack)
    }

    fn offer_with(&mut self, now_us: u64, offer: &Offer<'_>, slack: Slack) -> Result<Admitted, Refused> {
        let asked = self.admit(now_us, offer, slack)?;
        let Applicant { key, priority, deadline_us, candidates, is_short, .. } = asked;
        if let Some(allowance) = &mut self.allowance {
            allowance.admitted(Action { candidates, is_short }, &offer.worth);
        }
        let shed = self.shed_for(&asked);
        let order = self.admitted;
        self.admitted += 1;
        let (given, running, is_gone) = (0, 0, false);
        let held = Held { key, priority, deadline_us, order, candidates, given, running, is_gone };
        let ticket = self.tickets.put(held);
        self.queues.push(key, priority, Waiting { deadline_us, order, ticket, left: candidates });
        let load = Load::one(candidates, key.length);
        self.demand.add(priority, deadline_us, &load);
        self.arrivals.add(now_us, priority, self.work_us(&load));
        let length = is_short.then(|| self.shapes.lengths.sizes()[key.length]);
        Ok(Admitted { ticket, candidates, length, shed })
    }

    /// As `offer`, for a piece of a request: an allowance neither cuts nor counts it, and it needs no learned margin,
    /// which the plan of its request has kept or given up.
    ///
    /// # Errors
    /// As those of `offer`.
    pub fn offer_piece(&mut self, now_us: u64, offer: &Offer<'_>) -> Result<Admitted, Refused> {
        let allowance = self.allowance.take();
        let outcome = self.offer_with(now_us, offer, Slack::new(self.limits.slack_us));
        self.allowance = allowance;
        outcome
    }

    /// Returns the time in which a request would be done on an idle node by prediction, in microseconds, with the
    /// least margin. 0 if its sequence is too long.
    pub fn predicted_us(&self, candidates: usize, length: usize) -> f64 {
        let length = self.shapes.lengths.holds(length);
        length.map_or(0.0, |length| self.alone_us(candidates, length) + self.limits.slack_us as f64)
    }

    /// Returns how much longer the margin of a request is than the least, if it has `left_us`.
    pub fn learned_us(&self, left_us: f64) -> f64 {
        self.slack.us_of(left_us) - self.limits.slack_us as f64
    }

    /// Returns the next plan of a free lane. There is a plan whenever anything waits: nothing is held back to
    /// be merged with later requests. A lane is present from its first call on.
    ///
    /// Requests that cannot meet their deadline any more are late, and are only executed if nothing else
    /// waits: then the lane has nothing better to do, and a cost that was predicted too high gets corrected.
    ///
    /// # Panics
    /// If the lane does not exist, or has not reported that its plan is done.
    pub fn next(&mut self, now_us: u64, lane: usize) -> Next {
        self.lanes.come(lane);
        let mut late = self.late(now_us);
        while let Some(head) = self.head() {
            let in_us = self.alone_us(head.left, head.key.length);
            let is_in_time = now_us as f64 + in_us <= head.deadline_us as f64;
            if self.demand.sum().requests() > 1 && !is_in_time {
                late.push(head.ticket);
                self.give_up(head.ticket);
                continue;
            }
            let plan = match head.queue {
                Some(queue) => self.plan(now_us, queue),
                None => self.plan_alone(now_us),
            };
            let until_us = now_us + plan.cost_us as u64;
            self.lanes.start(lane, plan.clone(), until_us);
            return Next { plan: Some(plan), late };
        }
        Next { plan: None, late }
    }

    /// Returns a plan for background work, a number of candidates of one user, if the lane is otherwise idle.
    /// Returns `None` if a request waits, if the sequence is too long, or if no other present lane would be
    /// free for new requests. A request that arrives meanwhile waits for at most one such execution.
    ///
    /// # Panics
    /// If the lane has a plan, or there are more candidates than the top bucket holds.
    pub fn lend(&mut self, now_us: u64, lane: usize, idle: Idle) -> Option<Plan> {
        let (present, busy) = (self.lanes.present(), self.lanes.busy());
        if self.demand.sum().requests() > 0 || (present > 1 && present - busy < 2) {
            return None;
        }
        let length = self.shapes.lengths.holds(idle.length)?;
        let candidates = self.shapes.candidates.holds(idle.candidates).expect("no more than the top bucket");
        let places = Places { users: 0, candidates, length };
        let cost_us = self.costs.us(places.users, places.candidates, length);
        let plan = Plan {
            id: self.planned,
            version: idle.version,
            users_bucket: self.shapes.users.sizes()[places.users],
            candidates_bucket: self.shapes.candidates.sizes()[places.candidates],
            length: self.shapes.lengths.sizes()[length],
            pieces: Vec::new(),
            is_again: false,
            cost_us,
            places,
        };
        self.planned += 1;
        self.lanes.come(lane);
        self.lanes.start(lane, plan.clone(), now_us + cost_us as u64);
        Some(plan)
    }

    /// Completes a lane's plan. `took` counts all time for which the lane could do nothing else, over both
    /// graphs. Returns the requests that are now complete, in the plan's order.
    ///
    /// # Panics
    /// If the lane has no plan.
    pub fn done(&mut self, lane: usize, took: Took) -> Vec<Ticket> {
        let plan = self.lanes.end(lane).expect("a lane that is done had work");
        self.completed(&plan, took)
    }

    /// As `done`, if only the total time is known: it is divided between the graphs as predicted.
    ///
    /// # Panics
    /// If the lane has no plan.
    pub fn done_in(&mut self, lane: usize, took_us: f64) -> Vec<Ticket> {
        let plan = self.lanes.end(lane).expect("a lane that is done had work");
        let user_us = self.costs.user_us(plan.places.users, plan.places.length);
        let score_us = self.costs.score_us(plan.places.candidates, plan.places.length);
        let share = took_us / (user_us + score_us);
        self.completed(&plan, Took { user_us: user_us * share, score_us: score_us * share })
    }

    fn completed(&mut self, plan: &Plan, took: Took) -> Vec<Ticket> {
        let places = plan.places;
        self.costs.learn(places.users, places.candidates, places.length, took);
        let mut complete = Vec::with_capacity(plan.pieces.len());
        for piece in &plan.pieces {
            let held = self.tickets.at(piece.ticket);
            held.running -= 1;
            if !held.is_gone && held.running == 0 && held.left() == 0 {
                complete.push(piece.ticket);
            }
            self.tickets.drop_ended(piece.ticket);
        }
        complete
    }

    /// Fails a lane's plan. Returns its requests, which have no answer; nothing else of them is executed.
    ///
    /// # Panics
    /// If the lane has no plan.
    pub fn failed(&mut self, lane: usize) -> Vec<Ticket> {
        let plan = self.lanes.end(lane).expect("a lane that failed had work");
        self.fail(&plan)
    }

    /// Fails a lane's plan, possibly because of one of its requests: if it has several, each is retried once,
    /// alone, if its deadline allows. Returns the requests without an answer; none if the lane had no plan. A
    /// single-request plan is not retried, so one bad request can break at most two executions.
    pub fn try_alone(&mut self, lane: usize) -> Vec<Ticket> {
        let Some(plan) = self.lanes.end(lane) else { return Vec::new() };
        if plan.pieces.len() == 1 {
            return self.fail(&plan);
        }
        for piece in &plan.pieces {
            let held = self.tickets.at(piece.ticket);
            if held.is_gone {
                held.running -= 1;
                self.tickets.drop_ended(piece.ticket);
                continue;
            }
            // It counts as running until it is executed or given up.
            let Held { key, priority, deadline_us, order, .. } = *held;
            let alone = Alone { key, priority, deadline_us, order, piece: *piece };
            self.demand.add(priority, deadline_us, &Load::one(alone.candidates(), key.length));
            self.again.push(alone);
            self.tried_again += 1;
        }
        Vec::new()
    }

    /// Returns how often a request was retried alone.
    pub fn tried_again(&self) -> u64 {
        self.tried_again
    }

    /// Removes a lane, with its plan, until it asks for work again. Returns the requests that fail.
    pub fn leave(&mut self, lane: usize) -> Vec<Ticket> {
        self.lanes.leave(lane).map_or_else(Vec::new, |plan| self.fail(&plan))
    }

    /// Whether a lane still has a plan: not if it left and came back.
    pub fn is_on(&self, lane: usize, plan: u64) -> bool {
        self.lanes.is_on(lane, plan)
    }

    /// Cancels a request whose caller has gone: nothing more of it is executed. Returns false if it had
    /// already ended.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let is_here = self.tickets.find(ticket).is_some_and(|held| !held.is_gone);
        if is_here {
            self.give_up(ticket);
        }
        is_here
    }

    /// Returns the waiting requests whose deadline has passed; they get no answer. `next` does the same: this
    /// is for times when no lane is free.
    pub fn late(&mut self, now_us: u64) -> Vec<Ticket> {
        let mut late: Vec<Ticket> = self.queues.expired(now_us).collect();
        for ticket in self.again.expired(now_us) {
            if !late.contains(&ticket) {
                late.push(ticket);
            }
        }
        late.iter().for_each(|ticket| self.give_up(*ticket));
        late
    }

    /// Returns the next deadline of waiting requests: the next time to call `late`.
    pub fn deadline_us(&self) -> Option<u64> {
        let both = [self.queues.deadline_us(), self.again.deadline_us()];
        both.into_iter().flatten().min()
    }

    /// Returns the queue and lane figures.
    pub fn figures(&mut self, now_us: u64) -> Figures {
        let load = self.demand.sum();
        self.lanes.free_in(now_us, &mut self.free_in);
        let running = self.free_in.last().copied().unwrap_or(0) as f64;
        Figures {
            requests: load.requests(),
            candidates: load.candidates(),
            held: self.tickets.len(),
            lanes_busy: self.lanes.busy(),
            lanes: self.lanes.present(),
            backlog_us: lanes::done_in(&self.free_in, self.work_us(&load)).max(running),
            slack_us: self.slack.us_at(now_us),
            value: self.allowance.as_ref().map(Allowance::value),
        }
    }

    /// Returns how many lanes execute, and how many there are.
    pub fn lanes(&self) -> (usize, usize) {
        (self.lanes.working(), self.lanes.present())
    }

    /// Makes a lane without a plan rest until about that time. It counts as busy until it asks for a plan.
    pub fn rest(&mut self, lane: usize, until_us: u64) {
        self.lanes.rest(lane, until_us);
    }

    /// Learns what candidates are worth from an answer that was not cut: their values, in the request's order,
    /// and what the caller expected.
    pub fn learn_worth(&mut self, class: u64, values: impl Iterator<Item = f64> + Clone, prescores: &[f32]) {
        if let Some(allowance) = &mut self.allowance {
            allowance.learn(class, values, prescores);
        }
    }

    /// Learns whether an admitted request, which had `time_us` until its deadline, was late.
    pub fn learn_slack(&mut self, now_us: u64, time_us: u64, is_late: bool) {
        self.slack.learn(now_us, time_us as f64, is_late);
    }

    /// As `learn_slack`, for a caller that hung up with `left_us` left: it counts as late only near the deadline.
    pub fn hung_up(&mut self, now_us: u64, time_us: u64, left_us: u64) {
        if Slack::is_late(time_us as f64, left_us as f64) {
            self.slack.learn(now_us, time_us as f64, true);
        }
    }

    /// Returns the available shapes.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Replaces the costs by measurements of warm-up: microseconds for each bucket, as lists by length.
    ///
    /// # Errors
    /// If the lists do not match the shapes, or a cost is not above 0.
    pub fn set_costs(&mut self, user_us: &[Vec<f64>], score_us: &[Vec<f64>]) -> Result<(), String> {
        let lengths = self.shapes.lengths.sizes();
        let (users, candidates) = (self.shapes.users.sizes(), self.shapes.candidates.sizes());
        for (name, found, sizes) in [("user", user_us, users), ("score", score_us, candidates)] {
            let fits = found.len() == lengths.len() && found.iter().all(|one| one.len() == sizes.len());
            if !fits || !found.iter().flatten().all(|us| us.is_finite() && *us > 0.0) {
                let (lengths, sizes) = (lengths.len(), sizes.len());
                return Err(format!("costs of {name}: expected {lengths} lists of {sizes} numbers above 0"));
            }
        }
        let place =
            |sizes: &[usize], size| sizes.iter().position(|one| *one == size).expect("a size of its ladder");
        let user_us = |size, length| user_us[place(lengths, length)][place(users, size)];
        let score_us = |size, length| score_us[place(lengths, length)][place(candidates, size)];
        self.costs = Costs::measured(&self.shapes, user_us, score_us);
        Ok(())
    }

    /// Returns the current costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The time one lane needs for the load.
    fn work_us(&self, load: &Load) -> f64 {
        load.us(&self.costs, self.shapes.lengths.sizes().len()) * self.pace
    }

    fn alone_us(&self, candidates: usize, length: usize) -> f64 {
        merge::alone_us(&self.shapes, &self.costs, candidates, length, self.lanes.present())
    }

    /// Returns the request to serve first.
    fn head(&self) -> Option<QueueHead> {
        let queue = self.queues.first().map(|at| {
            let (priority, waiting) = self.queues.at(at).head().expect("no queue is empty");
            let Waiting { deadline_us, order, ticket, left } = *waiting;
            let head = QueueHead { queue: Some(at), key: self.queues.at(at).key, ticket, deadline_us, left };
            ((priority, deadline_us, order), head)
        });
        let again = self.again.head().map(|alone| {
            let Alone { key, deadline_us, piece, .. } = *alone;
            let left = alone.candidates();
            (alone.turn(), QueueHead { queue: None, key, ticket: piece.ticket, deadline_us, left })
        });
        again.into_iter().chain(queue).min_by_key(|(turn, _)| *turn).map(|(_, head)| head)
    }

    /// Plans the first retry.
    fn plan_alone(&mut self, now_us: u64) -> Plan {
        let alone = self.again.take_head().expect("it was the first of all that waits");
        let (length, candidates) = (alone.key.length, alone.candidates());
        self.demand.take(alone.priority, alone.deadline_us, &Load::one(candidates, length));
        let merge = Merge { shapes: &self.shapes, costs: &self.costs, now_us, length };
        let group = merge.alone(candidates);
        Plan { is_again: true, ..self.planned(&group, alone.key, vec![alone.piece]) }
    }

    fn planned(&mut self, group: &Group, key: Key, pieces: Vec<Piece>) -> Plan {
        let id = self.planned;
        self.planned += 1;
        Plan {
            id,
            version: key.version,
            users_bucket: self.shapes.users.sizes()[group.places.users],
            candidates_bucket: self.shapes.candidates.sizes()[group.places.candidates],
            length: self.shapes.lengths.sizes()[key.length],
            pieces,
            cost_us: group.cost_us,
            is_again: false,
            places: group.places,
        }
    }

    /// Merges requests of a queue into a plan, and takes them out.
    fn plan(&mut self, now_us: u64, queue: usize) -> Plan {
        let key = self.queues.at(queue).key;
        let mut groups = std::mem::take(&mut self.groups);
        let merge = Merge { shapes: &self.shapes, costs: &self.costs, now_us, length: key.length };
        let group = merge.choose(self.queues.at(queue).waiting(), &mut groups);
        self.groups = groups;
        let (pieces, taken) = self.take(queue, &group);
        self.learn_pace(&group, &taken);
        self.planned(&group, key, pieces)
    }

    /// Takes a group out of its queue; returns its pieces and its load.
    fn take(&mut self, queue: usize, group: &Group) -> (Vec<Piece>, Load) {
        let length = group.places.length;
        let mut pieces = Vec::with_capacity(group.requests);
        let mut room = group.candidates;
        let (mut taken, mut of_slot) = (Load::default(), Load::default());
        // `of_slot` sums the load of one priority and one deadline slot, which is usually the whole
        // group.
        let (mut slot, mut until_us) = ((0, 0), 0);
        for index in 0..group.requests {
            let queue = self.queues.at_mut(queue);
            let candidates = room.min(queue.head().expect("a group is of what waits").1.left);
            let (priority, rest) = queue.take_from_head(candidates);
            let next = (priority, self.demand.slot(rest.deadline_us));
            if next != slot {
                if index > 0 {
                    self.demand.take(slot.0, until_us, &of_slot);
                    taken.add(&of_slot);
                }
                (slot, until_us, of_slot) = (next, rest.deadline_us, Load::default());
            }
            of_slot.add(&Load::part(candidates, rest.left == 0, length));
            let held = self.tickets.at(rest.ticket);
            let from = held.given;
            held.given += candidates;
            held.running += 1;
            pieces.push(Piece { ticket: rest.ticket, from, upto: held.given });
            room -= candidates;
        }
        self.demand.take(slot.0, until_us, &of_slot);
        taken.add(&of_slot);
        self.queues.forget_if_empty(queue);
        (pieces, taken)
    }

    /// Only full TensorBatches tell how fast a backlog is processed. Others move the pace back a little;
    /// otherwise a pace learned too slow would refuse the requests that would fill TensorBatches, and stay.
    fn learn_pace(&mut self, group: &Group, taken: &Load) {
        if group.is_full {
            let ideal_us = taken.us(&self.costs, self.shapes.lengths.sizes().len());
            self.pace += PACE_WEIGHT * ((group.cost_us / ideal_us).clamp(1.0, PACE_MAX) - self.pace);
        } else {
            self.pace += PACE_BACK_WEIGHT * (1.0 - self.pace);
        }
    }

    /// Gives up a request: its waiting parts are removed, the results of running ones are ignored.
    fn give_up(&mut self, ticket: Ticket) {
        let again = self.again.remove(ticket);
        let held = self.tickets.at(ticket);
        for alone in again {
            held.running -= 1;
            let load = Load::one(alone.candidates(), alone.key.length);
            self.demand.take(alone.priority, alone.deadline_us, &load);
        }
        if held.left() > 0 {
            self.queues.remove(held);
            let load = Load::one(held.left(), held.key.length);
            self.demand.take(held.priority, held.deadline_us, &load);
        }
        held.is_gone = true;
        self.tickets.drop_ended(ticket);
    }

    fn fail(&mut self, plan: &Plan) -> Vec<Ticket> {
        let mut failed = Vec::with_capacity(plan.pieces.len());
        for piece in &plan.pieces {
            let held = self.tickets.at(piece.ticket);
            held.running -= 1;
            if held.is_gone {
                self.tickets.drop_ended(piece.ticket);
            } else {
                failed.push(piece.ticket);
                self.give_up(piece.ticket);
            }
        }
        failed
    }
}
