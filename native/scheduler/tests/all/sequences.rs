//! Random sequences of steps: no request is lost, mixed up, answered twice or held beyond a bound.

use std::collections::BTreeMap;

use proptest::prelude::*;
use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{
    AllowanceLimits, Costs, Limits, Offer, PRIORITIES, Plan, Scheduler, Shapes, Ticket, Took, Worth,
};

const LANES: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    Offer(Offer<'static>),
    Next(usize),
    Done(usize, f64),
    Failed(usize),
    Alone(usize),
    Leave(usize),
    Cancel(usize),
    Late,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worth = (0.01_f64..100.0, 0_u64..20, any::<u64>());
    let offer = (0_u64..3, 1_usize..50, 0_usize..10, 0_u64..4000, 0_u8..6, worth).prop_map(
        |(version, candidates, length, deadline_us, priority, (value, class, hash))| {
            let worth = Worth { value, class, hash, prescores: &[] };
            Step::Offer(Offer {
                version,
                candidates,
                length,
                deadline_us,
                priority,
                cohort: candidates as u8,
                worth,
            })
        },
    );
    let lane = || 0..LANES;
    let step = prop_oneof![
        8 => offer,
        5 => lane().prop_map(Step::Next),
        4 => (lane(), 0.2_f64..5.0).prop_map(|(lane, slower)| Step::Done(lane, slower)),
        1 => lane().prop_map(Step::Failed),
        2 => lane().prop_map(Step::Alone),
        1 => lane().prop_map(Step::Leave),
        1 => (0_usize..100).prop_map(Step::Cancel),
        1 => Just(Step::Late),
        4 => (0_u64..400).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..250)
}

fn shapes() -> Shapes {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
    Shapes { users: ladder(&[1, 2, 6]), candidates: ladder(&[4, 10, 20]), lengths: ladder(&[4, 8]) }
}

fn scheduler(limits: Limits) -> Scheduler {
    let costs = Costs::measured(
        &shapes(),
        |users, length| (10 + users + length) as f64,
        |candidates, length| (50 + 5 * candidates + 3 * length) as f64,
    );
    Scheduler::new(limits, shapes(), costs)
}

/// A request from its caller's point of view.
#[derive(Debug, Clone)]
struct Known {
    order: usize,
    offer: Offer<'static>,
    deadline_us: u64,
    candidates: usize,
    given: usize,
    scored: usize,
    /// Pieces that failed with others and are retried.
    again: Vec<(usize, usize)>,
}

impl Known {
    fn waits(&self) -> bool {
        self.given < self.candidates || !self.again.is_empty()
    }

    fn is_queued(&self) -> bool {
        self.given < self.candidates
    }

    fn priority(&self) -> usize {
        usize::from(self.offer.priority).min(PRIORITIES - 1)
    }

    fn turn(&self) -> (usize, u64, usize) {
        (self.priority(), self.deadline_us, self.order)
    }

    fn key(&self) -> (u64, bool) {
        (self.offer.version, self.offer.length > 4)
    }
}

/// The scheduler, and its callers' and lanes' view of it.
struct Rig {
    limits: Limits,
    scheduler: Scheduler,
    now_us: u64,
    /// Requests that have not ended, and all tickets in their order.
    here: BTreeMap<Ticket, Known>,
    tickets: Vec<Ticket>,
    lanes: Vec<Option<Plan>>,
    /// A log of the run, for comparing runs.
    log: Vec<String>,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let mut scheduler = scheduler(limits);
        assert!((0..LANES).all(|lane| scheduler.next(0, lane).plan.is_none()));
        let (here, lanes) = (BTreeMap::new(), vec![None; LANES]);
        Self { limits, scheduler, now_us: 0, here, tickets: Vec::new(), lanes, log: Vec::new() }
    }

    fn end(&mut self, ticket: Ticket) -> Known {
        self.here.remove(&ticket).expect("a request ends once")
    }

    fn waiting(&self) -> impl Iterator<Item = &Known> {
        self.here.values().filter(|known| known.waits())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Offer(offer) => self.offer(*offer),
            Step::Next(lane) if self.lanes[*lane].is_none() => self.next(*lane),
            Step::Done(lane, slower) if self.lanes[*lane].is_some() => self.done(*lane, *slower),
            Step::Failed(lane) if self.lanes[*lane].is_some() => {
                let failed = self.scheduler.failed(*lane);
                self.failed(*lane, &failed);
            }
            Step::Alone(lane) => self.alone(*lane),
            Step::Leave(lane) => {
                let failed = self.scheduler.leave(*lane);
                self.failed(*lane, &failed);
            }
            Step::Cancel(which) => {
                let Some(ticket) = self.tickets.get(*which).copied() else { return };
                assert_eq!(self.scheduler.cancel(ticket), self.here.remove(&ticket).is_some());
                assert!(!self.scheduler.cancel(ticket), "what has ended cannot be cancelled");
            }
            Step::Late => {
                let late = self.scheduler.late(self.now_us);
                self.late(&late);
                assert!(self.waiting().all(|known| known.deadline_us > self.now_us));
            }
            Step::Pass(us) => self.now_us += us,
            Step::Next(_) | Step::Done(..) | Step::Failed(_) => {}
        }
        self.log.push(format!("{step:?}: {:?}", self.lanes));
        self.check();
    }

    fn offer(&mut self, offer: Offer<'static>) {
        let offer = Offer { deadline_us: self.now_us + offer.deadline_us, ..offer };
        let Ok(admitted) = self.scheduler.offer(self.now_us, &offer) else { return };
        assert!(offer.deadline_us > self.now_us && offer.length <= 8);
        for ticket in &admitted.shed {
            let shed = self.end(*ticket);
            assert!(
                shed.waits() && shed.priority() > usize::from(offer.priority),
                "only requests of lower priority are shed"
            );
        }
        let deadline_us = offer.deadline_us.min(self.now_us + self.limits.wait_us_max);
        let (order, candidates) = (self.tickets.len(), admitted.candidates);
        let least = self.limits.allowance.map_or(offer.candidates, |bounds| bounds.candidates_min);
        assert!((least.min(offer.candidates)..=offer.candidates).contains(&candidates));
        assert!(admitted.length.is_none_or(|length| length < offer.length));
        let offer = Offer { length: admitted.length.unwrap_or(offer.length), ..offer };
        let known = Known { order, offer, deadline_us, candidates, given: 0, scored: 0, again: Vec::new() };
        assert!(self.here.insert(admitted.ticket, known).is_none(), "a ticket names one request");
        assert!(!self.tickets.contains(&admitted.ticket), "a ticket is never reused");
        self.tickets.push(admitted.ticket);
        let (requests, candidates) = (self.waiting().count(), self.left());
        assert!(requests <= self.limits.requests_max && candidates <= self.limits.candidates_max);
    }

    fn next(&mut self, lane: usize) {
        let next = self.scheduler.next(self.now_us, lane);
        self.late(&next.late);
        let Some(plan) = next.plan else {
            assert_eq!(self.waiting().count(), 0, "a lane gets work if any request waits");
            return;
        };
        let head = self.waiting().min_by_key(|known| known.turn()).unwrap();
        let (key, order) = (head.key(), head.order);
        if !head.again.is_empty() {
            return self.next_alone(lane, plan, order);
        }
        assert_eq!(
            self.here[&plan.pieces[0].ticket].order, order,
            "the most urgent request is executed first"
        );
        assert_eq!(plan.length, if key.1 { 8 } else { 4 });
        let mut queue: Vec<_> = self
            .waiting()
            .filter(|known| known.is_queued() && known.key() == key)
            .map(|known| known.turn())
            .collect();
        queue.sort_unstable();
        assert!(plan.candidates() <= plan.candidates_bucket && plan.pieces.len() <= plan.users_bucket);
        for (index, piece) in plan.pieces.iter().enumerate() {
            let known = self.here.get_mut(&piece.ticket).unwrap();
            assert_eq!(known.key(), key, "versions and lengths never mix");
            assert_eq!(known.offer.version, plan.version);
            assert_eq!(known.turn(), queue[index], "no request is passed over");
            assert!(index + 1 == plan.pieces.len() || piece.upto == known.candidates, "only the last is cut");
            assert!(
                piece.upto == known.candidates || plan.candidates() == 20,
                "a request is only cut at the top bucket"
            );
            assert!(piece.from == known.given && piece.upto > piece.from && piece.upto <= known.candidates);
            known.given = piece.upto;
            let done_us = self.now_us as f64 + plan.cost_us;
            assert!(
                index == 0 || done_us <= known.deadline_us as f64,
                "requests only join if they are in time"
            );
        }
        self.lanes[lane] = Some(plan);
    }

    /// A retry is served before the rest of its request.
    fn next_alone(&mut self, lane: usize, plan: Plan, order: usize) {
        let [piece] = plan.pieces[..] else { panic!("a retry is executed alone") };
        let known = self.here.get_mut(&piece.ticket).unwrap();
        assert_eq!(known.order, order, "the most urgent request is executed first");
        assert_eq!((known.offer.version, plan.users_bucket), (plan.version, 1));
        let at = known.again.iter().position(|range| *range == (piece.from, piece.upto)).unwrap();
        known.again.swap_remove(at);
        self.lanes[lane] = Some(plan);
    }

    /// Fails a lane's work as `try_alone` does: its requests are retried alone, once.
    fn alone(&mut self, lane: usize) {
        let before = self.scheduler.tried_again();
        let failed = self.scheduler.try_alone(lane);
        if self.lanes[lane].as_ref().is_none_or(|plan| plan.pieces.len() == 1) {
            return self.failed(lane, &failed);
        }
        assert!(failed.is_empty());
        let plan = self.lanes[lane].take().unwrap();
        let mut retries = 0;
        for piece in &plan.pieces {
            if let Some(known) = self.here.get_mut(&piece.ticket) {
                known.again.push((piece.from, piece.upto));
                retries += 1;
            }
        }
        assert_eq!(self.scheduler.tried_again() - before, retries);
    }

    fn done(&mut self, lane: usize, slower: f64) {
        let plan = self.lanes[lane].take().unwrap();
        let half_us = plan.cost_us * slower / 2.0;
        let complete = self.scheduler.done(lane, Took { user_us: half_us, score_us: half_us });
        for piece in &plan.pieces {
            if let Some(known) = self.here.get_mut(&piece.ticket) {
                known.scored += piece.upto - piece.from;
            }
        }
        for ticket in complete {
            let known = self.end(ticket);
            assert_eq!(known.scored, known.candidates, "a complete request has all scores");
        }
        assert!(
            self.here.values().all(|known| known.scored < known.candidates),
            "completion is reported at once"
        );
    }

    fn failed(&mut self, lane: usize, failed: &[Ticket]) {
        let plan = self.lanes[lane].take();
        let of_plan = plan.iter().flat_map(|plan| &plan.pieces).map(|piece| piece.ticket);
        let expected: Vec<Ticket> = of_plan.filter(|ticket| self.here.contains_key(ticket)).collect();
        assert_eq!(failed, expected);
        for ticket in failed {
            self.end(*ticket);
        }
    }

    fn late(&mut self, late: &[Ticket]) {
        for ticket in late {
            let known = self.end(*ticket);
            assert!(known.waits(), "a request that runs entirely is slow, not late");
        }
    }

    fn left(&self) -> usize {
        let retried_candidates =
            |known: &Known| known.again.iter().map(|(from, upto)| upto - from).sum::<usize>();
        self.here.values().map(|known| known.candidates - known.given + retried_candidates(known)).sum()
    }

    fn check(&mut self) {
        let figures = self.scheduler.figures(self.now_us);
        let pieces_waiting = |known: &Known| usize::from(known.is_queued()) + known.again.len();
        let requests: usize = self.here.values().map(pieces_waiting).sum();
        assert_eq!((figures.requests, figures.candidates), (requests, self.left()));
        assert_eq!(figures.lanes_busy, self.lanes.iter().flatten().count());
        assert!(figures.held >= self.here.len() && figures.backlog_us >= 0.0);
        assert_eq!(self.scheduler.deadline_us(), self.waiting().map(|known| known.deadline_us).min());
    }

    /// Finishes the remaining work.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            for lane in 0..LANES {
                self.now_us += 1;
                if self.lanes[lane].is_some() {
                    self.done(lane, 1.0)
                } else {
                    self.next(lane)
                }
                self.check();
            }
            if self.here.is_empty() && self.lanes.iter().all(Option::is_none) {
                assert_eq!(self.scheduler.figures(self.now_us).held, 0, "nothing remains of ended requests");
                return;
            }
        }
        panic!("the run does not end: {:?}", self.here);
    }
}

fn run(limits: Limits, steps: &[Step]) -> Vec<String> {
    let mut rig = Rig::new(limits);
    steps.iter().for_each(|step| rig.step(step));
    rig.finish();
    rig.log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn everything_ends_once_and_in_order(
        steps in steps(),
        requests_max in 1_usize..30,
        candidates_max in 50_usize..400,
        slack_us in 0_u64..100,
        candidates_min in prop::option::of(1_usize..20),
        by_cohort in any::<bool>(),
    ) {
        let allowance = candidates_min.map(|candidates_min| AllowanceLimits { candidates_min, shown: 4, short_percent: 95 });
        let limits = Limits {
            lanes: LANES, requests_max, candidates_max, reserved_percent: 25, wait_us_max: 3000, slack_us, allowance,
            by_cohort,
        };
        let log = run(limits, &steps);
        prop_assert_eq!(log, run(limits, &steps), "a run is reproducible");
    }
}
