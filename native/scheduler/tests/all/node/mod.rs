//! A simulated serving node: random requests, lanes that take as long as their buckets cost, and checks of
//! all that the scheduler returns. A run depends only on its seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{
    COHORTS, Costs, Limits, Next, Offer, Reason, Refused, Scheduler, Shapes, Ticket, Took, Worth,
};

/// Seeded random numbers.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number in (0, 1].
    pub fn share(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.share().ln()).sqrt() * (std::f64::consts::TAU * self.share()).cos()
    }

    /// A lognormal number with this mean.
    pub fn lognormal(&mut self, mean: f64, sigma: f64) -> f64 {
        mean * (sigma * self.normal() - sigma * sigma / 2.0).exp()
    }

    /// A random gap between events with this rate per second, in microseconds.
    pub fn gap_us(&mut self, rate: f64) -> f64 {
        -self.share().ln() / rate * 1e6
    }
}

/// A random number of candidates: lognormal, with a mean of 36.
pub fn candidates(chance: &mut Chance) -> usize {
    (chance.lognormal(36.0, 0.8).round() as usize).clamp(1, 2000)
}

/// The cost of a graph: a fixed part and a part per unit of its bucket.
#[derive(Clone, Copy)]
pub struct Model {
    pub user_us: (f64, f64),
    pub score_us: (f64, f64),
}

/// 180 us, plus 18 us for each candidate.
pub const DIN: Model = Model { user_us: (35.0, 0.5), score_us: (145.0, 18.0) };
/// 60 us, plus half a microsecond for each candidate.
pub const SMALL: Model = Model { user_us: (15.0, 0.2), score_us: (45.0, 0.5) };

impl Model {
    pub fn user(&self, users: usize) -> f64 {
        self.user_us.0 + self.user_us.1 * users as f64
    }

    pub fn score(&self, candidates: usize) -> f64 {
        self.score_us.0 + self.score_us.1 * candidates as f64
    }

    pub fn costs(&self, shapes: &Shapes) -> Costs {
        Costs::measured(shapes, |users, _| self.user(users), |candidates, _| self.score(candidates))
    }
}

pub fn shapes(users: &[usize], candidates: &[usize]) -> Shapes {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
    Shapes { users: ladder(users), candidates: ladder(candidates), lengths: ladder(&[1]) }
}

pub fn limits(lanes: usize) -> Limits {
    Limits {
        lanes,
        requests_max: 4096,
        candidates_max: 200_000,
        reserved_percent: 10,
        wait_us_max: 100_000,
        slack_us: 1000,
        allowance: None,
        by_cohort: false,
    }
}

/// A group of callers: rate per second, version, priority and time limit, and when they begin.
#[derive(Clone, Copy)]
pub struct Callers {
    pub rate: f64,
    pub version: u64,
    pub priority: u8,
    pub within_us: u64,
    pub from_us: u64,
}

pub struct Node {
    pub model: Model,
    pub shapes: Shapes,
    pub limits: Limits,
    /// The relative variation of executions.
    pub sigma: f64,
    /// How many times more executions cost than in warm-up.
    pub slower: f64,
    /// What requests are worth.
    pub world: World,
}

/// What requests and their candidates are worth: how far values of requests differ, and whether callers say
/// what they expect of candidates.
#[derive(Clone, Copy, Default)]
pub struct World {
    pub spread: f64,
    pub has_prescores: bool,
    /// How many candidates are scored at most, whatever the scheduler would allow.
    pub cut: Option<usize>,
    /// The time that a request waits before the node knows of it.
    pub unseen_us: u64,
}

/// How many users ask, in turn.
pub const USERS: u64 = 500;

/// How many candidates of an answer are shown in a simulated world.
pub const SHOWN: usize = 8;

impl World {
    /// Returns the value of a request, and its candidates: what is expected of each, best first, and what it
    /// is worth. What is expected and what is true correlate by half.
    pub fn request(&self, seed: u64, candidates: usize) -> (f64, Vec<f32>, Vec<f64>) {
        let mut chance = Chance::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x5EED);
        let value = chance.lognormal(1.0, self.spread);
        let mut known: Vec<f64> = (0..candidates).map(|_| chance.normal()).collect();
        known.sort_by(|a, b| b.total_cmp(a));
        let worth = |known: f64, chance: &mut Chance| {
            let whole = 0.5 * known + 0.75_f64.sqrt() * chance.normal();
            (0.1 * (0.7 * whole).exp()).min(1.0)
        };
        let truths = known.iter().map(|known| worth(*known, &mut chance)).collect();
        let expected = known.iter().map(|known| (0.1 * (0.35 * known).exp()) as f32).collect();
        (value, if self.has_prescores { expected } else { Vec::new() }, truths)
    }

    /// The values of answers with the first candidate, the first two, and so on: the sums of the best of them.
    pub fn values(truths: &[f64]) -> Vec<f64> {
        let (mut best, mut sum) = ([0.0; SHOWN], 0.0);
        let with = |truth: &f64| {
            let mut least = 0;
            for at in 1..SHOWN {
                if best[at] < best[least] {
                    least = at;
                }
            }
            if best[least] < *truth {
                sum += truth - best[least];
                best[least] = *truth;
            }
            sum
        };
        truths.iter().map(with).collect()
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After this many microseconds.
    Answered(u64),
    Late(u64),
    Shed,
    Refused(Reason),
}

/// A request and its outcome.
pub struct Case {
    pub callers: usize,
    pub at_us: u64,
    pub candidates: usize,
    /// How many of them are to be scored.
    pub kept: usize,
    pub deadline_us: u64,
    /// The scored ranges.
    covered: Vec<(usize, usize)>,
    pub end: Option<End>,
}

impl Case {
    pub fn is_good(&self) -> bool {
        matches!(self.end, Some(End::Answered(after_us)) if self.at_us + after_us <= self.deadline_us)
    }
}

/// The results of a run.
pub struct Run {
    pub cases: Vec<Case>,
    pub seconds: f64,
    pub plans: usize,
    /// TensorBatches by number of candidates.
    pub sizes: BTreeMap<usize, u64>,
    pub scored: usize,
    pub padded: usize,
    pub busy_us: f64,
}

impl Run {
    pub fn good_of(&self, callers: Option<usize>) -> usize {
        self.cases
            .iter()
            .filter(|case| case.is_good() && callers.is_none_or(|group| case.callers == group))
            .count()
    }

    /// Requests answered in time, per second.
    pub fn goodput(&self) -> f64 {
        self.good_of(None) as f64 / self.seconds
    }

    pub fn count(&self, is: impl Fn(&End) -> bool) -> usize {
        self.cases.iter().filter(|case| case.end.as_ref().is_some_and(&is)).count()
    }

    pub fn waste(&self) -> f64 {
        1.0 - self.scored as f64 / self.padded as f64
    }

    /// The latency quantile of the answers.
    pub fn latency_us(&self, share: f64) -> u64 {
        let answered = self.cases.iter().filter_map(|case| match case.end {
            Some(End::Answered(after_us)) => Some(after_us),
            _ => None,
        });
        let mut sorted: Vec<u64> = answered.collect();
        sorted.sort_unstable();
        sorted
            .get(((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(usize),
    Comes(usize),
    /// A deadline of a waiting request, in case no lane asks before it.
    Look,
}

struct Sim<'a> {
    node: &'a Node,
    scheduler: Scheduler,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// The case of a ticket, by its index.
    cases_by_ticket: Vec<usize>,
    idle: Vec<usize>,
    running: Vec<Option<(streamlearn_scheduler::Plan, Took)>>,
    chance: Chance,
    callers: Vec<Callers>,
    run: Run,
}

impl Node {
    /// Runs callers for a number of seconds, then finishes the remaining work.
    pub fn run(&self, callers: &[Callers], seconds: f64, seed: u64) -> Run {
        let lanes = self.limits.lanes;
        let scheduler = Scheduler::new(self.limits, self.shapes.clone(), self.model.costs(&self.shapes));
        let mut sim = Sim {
            node: self,
            scheduler,
            events: BinaryHeap::new(),
            cases_by_ticket: Vec::new(),
            idle: Vec::new(),
            running: vec![None; lanes],
            chance: Chance::new(seed),
            callers: callers.to_vec(),
            run: Run {
                cases: Vec::new(),
                seconds,
                plans: 0,
                sizes: BTreeMap::new(),
                scored: 0,
                padded: 0,
                busy_us: 0.0,
            },
        };
        sim.arrange();
        for lane in 0..lanes {
            sim.ask(0, lane);
        }
        while let Some(Reverse((now_us, event))) = sim.events.pop() {
            sim.step(now_us, event);
        }
        sim.check();
        sim.run
    }
}

impl Sim<'_> {
    fn arrange(&mut self) {
        for (index, callers) in self.callers.clone().into_iter().enumerate() {
            let mut at = callers.from_us as f64 + self.chance.gap_us(callers.rate);
            while at < self.run.seconds * 1e6 {
                let candidates = candidates(&mut self.chance);
                let (at_us, kept) = (at as u64, 0);
                let deadline_us = at_us + callers.within_us;
                let case = Case {
                    callers: index,
                    at_us,
                    candidates,
                    kept,
                    deadline_us,
                    covered: Vec::new(),
                    end: None,
                };
                self.events.push(Reverse((at_us, Event::Comes(self.run.cases.len()))));
                self.run.cases.push(case);
                at += self.chance.gap_us(callers.rate);
            }
        }
    }

    fn step(&mut self, now_us: u64, event: Event) {
        match event {
            Event::Comes(case) => self.offer(now_us, case),
            Event::Done(lane) => {
                let (plan, duration) = self.running[lane].take().unwrap();
                for piece in &plan.pieces {
                    let case = self.cases_by_ticket[piece.ticket.place()];
                    self.run.cases[case].covered.push((piece.from, piece.upto));
                }
                for ticket in self.scheduler.done(lane, duration) {
                    let (at_us, deadline_us) = (self.case(ticket).at_us, self.case(ticket).deadline_us);
                    self.learn(ticket);
                    self.learn_slack(now_us, ticket, now_us > deadline_us);
                    self.end(ticket, End::Answered(now_us - at_us));
                }
                self.ask(now_us, lane);
            }
            Event::Look => {
                let late = self.scheduler.late(now_us);
                self.late(now_us, late);
            }
        }
    }

    fn offer(&mut self, now_us: u64, case: usize) {
        let (request, callers) = (&self.run.cases[case], &self.callers[self.run.cases[case].callers]);
        let (version, priority) = (callers.version, callers.priority);
        let deadline_us = request.deadline_us + self.node.world.unseen_us;
        let candidates = request.candidates;
        let candidates = self.node.world.cut.map_or(candidates, |cut| cut.min(candidates));
        let cohort = (Chance::new(case as u64 % USERS).bits() % u64::from(COHORTS)) as u8;
        let hash = Chance::new(case as u64).bits();
        let (value, prescores, _) = self.node.world.request(case as u64, request.candidates);
        let worth = Worth { value, class: 0, hash, prescores: &prescores };
        let offer = Offer { version, candidates, length: 1, deadline_us, priority, cohort, worth };
        match self.scheduler.offer(now_us, &offer) {
            Ok(admitted) => {
                for ticket in admitted.shed {
                    self.end(ticket, End::Shed);
                }
                let place = admitted.ticket.place();
                self.cases_by_ticket.resize(self.cases_by_ticket.len().max(place + 1), usize::MAX);
                self.cases_by_ticket[place] = case;
                self.run.cases[case].kept = admitted.candidates;
                self.events.push(Reverse((deadline_us, Event::Look)));
                if let Some(lane) = self.idle.pop() {
                    self.ask(now_us, lane);
                }
            }
            Err(Refused { reason, .. }) => self.run.cases[case].end = Some(End::Refused(reason)),
        }
    }

    /// Tells the scheduler the values of an answer that was not cut.
    fn learn(&mut self, ticket: Ticket) {
        let index = self.cases_by_ticket[ticket.place()];
        let case = &self.run.cases[index];
        if self.node.limits.allowance.is_some() && case.kept == case.candidates {
            let (_, prescores, truths) = self.node.world.request(index as u64, case.candidates);
            self.scheduler.learn_worth(0, truths.into_iter(), &prescores);
        }
    }

    fn ask(&mut self, now_us: u64, lane: usize) {
        let Next { plan, late } = self.scheduler.next(now_us, lane);
        self.late(now_us, late);
        let Some(plan) = plan else {
            assert_eq!(
                self.scheduler.figures(now_us).requests,
                0,
                "a lane must not be idle while a request waits"
            );
            self.idle.push(lane);
            return;
        };
        let scored = plan.candidates();
        assert!(scored <= plan.candidates_bucket && plan.pieces.len() <= plan.users_bucket);
        for piece in &plan.pieces {
            let case = self.case(piece.ticket);
            assert_eq!(self.callers[case.callers].version, plan.version, "versions never mix");
            assert!(
                case.end.is_none() && now_us < case.deadline_us + self.node.world.unseen_us,
                "ended or late requests must not be executed"
            );
        }
        let vary = |chance: &mut Chance| self.node.slower * chance.lognormal(1.0, self.node.sigma);
        let user_us = self.node.model.user(plan.users_bucket) * vary(&mut self.chance);
        let score_us = self.node.model.score(plan.candidates_bucket) * vary(&mut self.chance);
        let run = &mut self.run;
        run.plans += 1;
        *run.sizes.entry(scored).or_default() += 1;
        (run.scored, run.padded) = (run.scored + scored, run.padded + plan.candidates_bucket);
        run.busy_us += user_us + score_us;
        self.events.push(Reverse((now_us + (user_us + score_us) as u64, Event::Done(lane))));
        self.running[lane] = Some((plan, Took { user_us, score_us }));
    }

    fn case(&self, ticket: Ticket) -> &Case {
        &self.run.cases[self.cases_by_ticket[ticket.place()]]
    }

    fn late(&mut self, now_us: u64, tickets: Vec<Ticket>) {
        for ticket in tickets {
            let after_us = now_us - self.case(ticket).at_us;
            self.learn_slack(now_us, ticket, true);
            self.end(ticket, End::Late(after_us));
        }
    }

    /// Tells the scheduler whether an answer is late: then its caller has hung up.
    fn learn_slack(&mut self, now_us: u64, ticket: Ticket, is_late: bool) {
        let case = self.case(ticket);
        let time_us = case.deadline_us + self.node.world.unseen_us - case.at_us;
        self.scheduler.learn_slack(now_us, time_us, is_late);
    }

    fn end(&mut self, ticket: Ticket, end: End) {
        let case = &mut self.run.cases[self.cases_by_ticket[ticket.place()]];
        assert!(case.end.is_none(), "a request ends once: {:?}, then {end:?}", case.end);
        case.end = Some(end);
    }

    /// Checks that nothing is lost, and that answers were scored from the first candidate to the last.
    fn check(&mut self) {
        let figures = self.scheduler.figures(u64::MAX / 2);
        assert_eq!((figures.held, figures.requests, figures.candidates, figures.lanes_busy), (0, 0, 0, 0));
        for case in &mut self.run.cases {
            let end = case.end.expect("every request ends");
            if matches!(end, End::Answered(_)) {
                case.covered.sort_unstable();
                let upto = case.covered.iter().fold(0, |upto, (from, next)| {
                    assert_eq!(*from, upto, "pieces cover every candidate once");
                    *next
                });
                assert_eq!(upto, case.kept);
            }
        }
    }
}
