//! Admission: whether an offered request can be answered in time, and which requests are shed for it.

use super::Scheduler;
use super::demand::Load;
use super::lanes::done_in;
use super::limits::{Key, PRIORITIES};
use super::merge::full_us;
use super::offer::{Offer, Reason, Refused};
use super::slack::Slack;
use super::tickets::Ticket;

/// A request does not wait for a full TensorBatch that takes more than this share of its time: it will run in
/// a smaller one.
const FULL_SHARE: f64 = 0.25;

/// An offered request, in the scheduler's terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Applicant {
    pub key: Key,
    pub priority: usize,
    pub deadline_us: u64,
    pub candidates: usize,
    /// Whether its histories are cut to a shorter length than they have.
    pub is_short: bool,
    /// The margin that it needs before its deadline.
    pub slack: Slack,
}

/// The work that is served before a request.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    work_us: f64,
    /// The share of the lanes' time that more urgent requests will leave, at their recent rate.
    left: f64,
    /// When the work would be done, from now.
    starts_us: f64,
}

impl Scheduler {
    /// Returns the request as it is admitted, with as many candidates as are worth their time.
    pub(super) fn admit(
        &mut self,
        now_us: u64,
        offer: &Offer<'_>,
        slack: Slack,
    ) -> Result<Applicant, Refused> {
        assert!(offer.candidates > 0, "a request has a candidate at least");
        let deadline_us = offer.deadline_us.min(now_us.saturating_add(self.limits.wait_us_max));
        if deadline_us <= now_us {
            return Err(Refused::never(Reason::Expired));
        }
        let length = self.shapes.lengths.holds(offer.length).ok_or(Refused::never(Reason::Length))?;
        let key = Key { version: offer.version, length };
        let priority = usize::from(offer.priority).min(PRIORITIES - 1);
        self.lanes.free_in(now_us, &mut self.free_in);
        if self.free_in.is_empty() {
            return Err(Refused::after(Reason::Lanes, self.limits.wait_us_max as f64));
        }
        let candidates = offer.candidates;
        let asked = Applicant { key, priority, deadline_us, candidates, is_short: false, slack };
        let Some(mut cohorts) = self.cohorts.take() else { return self.fits(now_us, offer, asked) };
        let outcome = match cohorts.check(priority, offer.cohort) {
            Err(retry_us) => Err(Refused::after(Reason::Cohort, retry_us)),
            Ok(()) => {
                let outcome = self.fits(now_us, offer, asked);
                cohorts.count(now_us, priority, outcome.is_err());
                outcome
            }
        };
        self.cohorts = Some(cohorts);
        outcome
    }

    /// Returns the request with as many candidates as are worth their time, if there is room and time for them.
    fn fits(&mut self, now_us: u64, offer: &Offer<'_>, asked: Applicant) -> Result<Applicant, Refused> {
        let ahead = self.ahead(now_us, &asked);
        let asked = self.allowed(now_us, offer, asked, ahead.starts_us)?;
        self.has_room(&asked)?;
        self.has_time(now_us, &asked, ahead)?;
        Ok(asked)
    }

    /// Returns the request with what is worth its time.
    fn allowed(
        &mut self,
        now_us: u64,
        offer: &Offer<'_>,
        mut asked: Applicant,
        starts_us: f64,
    ) -> Result<Applicant, Refused> {
        let Some(mut allowance) = self.allowance.take() else { return Ok(asked) };
        let left_us = (asked.deadline_us - now_us) as f64;
        let followed =
            allowance.follow(now_us, starts_us / (left_us - self.slack.us_of(left_us)).max(left_us / 2.0));
        let price = if self.is_idle() { 0.0 } else { followed };
        let own = self.costs.units(asked.key.length);
        let short = asked.key.length.checked_sub(1).map(|length| self.costs.units(length));
        let allowed = allowance.choose(price, asked.candidates, &offer.worth, (own, short));
        self.allowance = Some(allowance);
        let action = allowed.ok_or_else(|| Refused::after(Reason::Price, starts_us))?;
        (asked.candidates, asked.is_short) = (action.candidates, action.is_short);
        asked.key.length -= usize::from(action.is_short);
        Ok(asked)
    }

    /// Returns whether nothing waits and nothing runs.
    fn is_idle(&self) -> bool {
        self.demand.sum().requests() == 0 && self.lanes.busy() == 0
    }

    /// Checks the bounds, as if requests of lower priority were shed.
    fn has_room(&self, asked: &Applicant) -> Result<(), Refused> {
        let (all, lower) = (self.demand.sum(), self.demand.below(asked.priority + 1));
        let (requests_max, candidates_max) = self.open_to(asked.priority);
        let reason = if all.requests() - lower.requests() + 1 > requests_max {
            Reason::Requests
        } else if all.candidates() - lower.candidates() + asked.candidates > candidates_max {
            Reason::Candidates
        } else {
            return Ok(());
        };
        Err(Refused::after(reason, done_in(&self.free_in, self.work_us(&all))))
    }

    /// Returns the work that is served before it.
    fn ahead(&self, now_us: u64, asked: &Applicant) -> Ahead {
        let work_us = self.work_us(&self.demand.ahead(asked.priority, asked.deadline_us));
        let left = self.arrivals.left_by_better(now_us, asked.priority, self.free_in.len());
        Ahead { work_us, left, starts_us: done_in(&self.free_in, work_us) / left }
    }

    /// Checks that it would be done by its deadline, and that all requests of its priority that are served
    /// after it would meet theirs: a later request does not make an admitted one late, unless its priority is
    /// better.
    fn has_time(&self, now_us: u64, asked: &Applicant, ahead: Ahead) -> Result<(), Refused> {
        if self.is_idle() {
            return Ok(()); // it tries, or costs predicted too high would never be corrected
        }
        let left_us = (asked.deadline_us - now_us) as f64;
        let length = asked.key.length;
        let alone_us = self.alone_us(asked.candidates, length);
        let Ahead { mut work_us, left, starts_us } = ahead;
        // Behind others it runs in a full TensorBatch, possibly as the first request in it.
        let full_us = full_us(&self.shapes, &self.costs, length, left_us * FULL_SHARE);
        let own_us = if work_us > 0.0 { alone_us.max(full_us) } else { alone_us };
        let over_us = starts_us + own_us + asked.slack.us_of(left_us) - left_us;
        if over_us > 0.0 {
            return Err(Refused::after(Reason::Backlog, over_us));
        }
        work_us += self.work_us(&Load::one(asked.candidates, length));
        for (until_us, load) in self.demand.behind(asked.priority, asked.deadline_us) {
            work_us += self.work_us(load);
            let left_us = until_us.saturating_sub(now_us) as f64;
            let over_us = done_in(&self.free_in, work_us) / left + self.slack.us_of(left_us) - left_us;
            if over_us > 0.0 {
                return Err(Refused::after(Reason::Backlog, over_us));
            }
        }
        Ok(())
    }

    /// Sheds waiting requests of the lowest priority and latest deadline until the bounds hold with the new
    /// request.
    pub(super) fn shed_for(&mut self, asked: &Applicant) -> Vec<Ticket> {
        let (requests_max, candidates_max) = self.open_to(asked.priority);
        let mut shed = Vec::new();
        loop {
            let all = self.demand.sum();
            if all.requests() < requests_max && all.candidates() + asked.candidates <= candidates_max {
                return shed;
            }
            let last = self.last().expect("what is over a bound waits");
            shed.push(last);
            self.give_up(last);
        }
    }

    /// Returns the waiting request of the lowest priority, and among these of the latest deadline.
    fn last(&self) -> Option<Ticket> {
        let again = self.again.last().map(|alone| (alone.turn(), alone.piece.ticket));
        self.queues.last().into_iter().chain(again).max_by_key(|(turn, _)| *turn).map(|(_, ticket)| ticket)
    }

    fn open_to(&self, priority: usize) -> (usize, usize) {
        let limits = &self.limits;
        (limits.open_to(priority, limits.requests_max), limits.open_to(priority, limits.candidates_max))
    }
}
