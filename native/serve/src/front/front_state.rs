//! FrontState: what a front keeps under its lock: the waiting requests, the versions and the figures.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamlearn_table::TableSet;
use tokio::sync::oneshot;

use super::Front;
use super::shadow::{Shadow, ShadowRequest};
use crate::answer::{Answer, Cut, Refusal};
use crate::load::LoadMeter;
use crate::measures::Measures;
use crate::request::Request;
use crate::sizes::Sizes;
use crate::statistics;
use crate::tensor_batch::{Part, Shape};
use crate::versions::item_index::{FoundItems, ItemIndex};
use crate::versions::{Handle, Versions};
use streamlearn_scheduler::{Idle, Plan, Scheduler, Ticket};

/// The state behind the lock of a front.
pub(super) struct FrontState {
    pub scheduler: Scheduler,
    pub versions: Versions,
    pub waiting: HashMap<Ticket, WaitingRequest>,
    pub statistics: statistics::Figures,
    pub measures: Arc<Measures>,
    pub sizes: Sizes,
    pub shadow: Shadow,
    pub load: LoadMeter,
    /// How long lanes rested since their last work, in microseconds.
    pub rested_us: HashMap<usize, f64>,
    pub is_open: bool,
}

/// A request, or a piece of one, that lanes score.
pub(super) struct WaitingRequest {
    pub request: Arc<Request>,
    pub number: u64,
    pub since: Instant,
    pub wait_max_us: u64,
    pub is_shadowed: bool,
    pub scores: Vec<f32>,
    pub found: Option<Box<FoundItems>>,
    pub cut: Cut,
    /// Whether it is a piece: then its request is counted and learned from, and it is not.
    pub is_piece: bool,
    pub reply: oneshot::Sender<Result<Answer, Refusal>>,
}

/// A plan with its version's tables and its requests.
pub(super) struct StartedPlan {
    pub handle: Handle,
    pub number: u64,
    pub tables: Arc<TableSet>,
    pub items: Option<Arc<ItemIndex>>,
    pub shape: Shape,
    pub parts: Vec<Part>,
    pub tickets: Vec<(Ticket, Range<usize>)>,
    pub lane: usize,
    pub plan: u64,
    pub shadow_request: Option<ShadowRequest>,
}

impl FrontState {
    /// Starts a part of a shadow request, if the lane has nothing else to do.
    pub fn begin_shadow(&mut self, front: &Front, lane: usize) -> Option<StartedPlan> {
        while let Some(shadow_request) = self.shadow.take() {
            let ready = self.versions.get(shadow_request.handle).cloned();
            let tables = ready.as_ref().and_then(|ready| ready.tables.upgrade());
            let (Some(ready), Some(tables)) = (ready, tables) else {
                self.shadow.fail();
                continue;
            };
            let first = shadow_request.scores.len() / front.inputs.labels.len();
            let top = self.scheduler.shapes().candidates.top();
            let range = first..(first + top).min(shadow_request.request.candidates);
            let length = front.length_of(&shadow_request.request);
            let idle = Idle { version: shadow_request.handle, candidates: range.len(), length };
            let Some(plan) = self.scheduler.lend(front.now_us(), lane, idle) else {
                self.shadow.wait(shadow_request);
                return None;
            };
            let length = if front.layout.user.length > 0 { plan.length } else { 0 };
            return Some(StartedPlan {
                handle: plan.version,
                number: ready.name.number,
                tables,
                items: None,
                shape: Shape { users: plan.users_bucket, candidates: plan.candidates_bucket, length },
                parts: vec![Part { request: shadow_request.request.clone(), range }],
                tickets: Vec::new(),
                lane,
                plan: plan.id,
                shadow_request: Some(shadow_request),
            });
        }
        None
    }

    /// Starts a plan. Returns `None` if its version has gone; its requests are then refused.
    pub fn begin(&mut self, lane: usize, plan: Plan, has_sequences: bool) -> Option<StartedPlan> {
        let ready = self.versions.get(plan.version).cloned();
        let tables = ready.as_ref().and_then(|ready| ready.tables.upgrade());
        let (Some(ready), Some(tables)) = (ready, tables) else {
            self.give_up(lane, &Refusal::Away("the request's version was removed while it waited".into()));
            return None;
        };
        self.sizes.merged(&plan);
        let tickets: Vec<(Ticket, Range<usize>)> =
            plan.pieces.iter().map(|piece| (piece.ticket, piece.from..piece.upto)).collect();
        let mut parts = Vec::with_capacity(tickets.len());
        for (ticket, range) in &tickets {
            let waiting = &self.waiting[ticket];
            if range.start == 0 && !plan.is_again {
                let wait = waiting.since.elapsed();
                self.statistics.waited(waiting.number, wait);
                self.measures.waited(wait);
            }
            parts.push(Part { request: waiting.request.clone(), range: range.clone() });
        }
        self.measures.merged(plan.pieces.len(), plan.candidates());
        let length = if has_sequences { plan.length } else { 0 };
        let shape = Shape { users: plan.users_bucket, candidates: plan.candidates_bucket, length };
        Some(StartedPlan {
            handle: plan.version,
            number: ready.name.number,
            tables,
            items: ready.items,
            shape,
            parts,
            tickets,
            lane,
            plan: plan.id,
            shadow_request: None,
        })
    }

    /// Counts a failure of shadow work; other failures are counted with their requests.
    pub fn failed(&mut self, is_shadow: bool) {
        if is_shadow {
            self.shadow.fail();
        }
    }

    /// Handles the failure of a lane's work: merged requests are retried once, each alone; the others are
    /// refused.
    pub fn try_alone(&mut self, lane: usize, refusal: &Refusal) {
        let retries_before = self.scheduler.tried_again();
        for ticket in self.scheduler.try_alone(lane) {
            self.refuse(ticket, "failed", refusal.clone());
        }
        self.measures.tried_again(self.scheduler.tried_again() - retries_before);
    }

    /// Refuses all requests of a lane's work, which no lane can do.
    pub fn give_up(&mut self, lane: usize, refusal: &Refusal) {
        for ticket in self.scheduler.failed(lane) {
            self.refuse(ticket, "given_up", refusal.clone());
        }
    }

    pub fn answer(&mut self, ticket: Ticket, now_us: u64) {
        let Some(waiting) = self.waiting.remove(&ticket) else { return };
        let WaitingRequest {
            request,
            number,
            since,
            wait_max_us,
            is_shadowed,
            scores,
            found,
            cut,
            is_piece,
            reply,
        } = waiting;
        if !is_piece {
            let took = since.elapsed();
            self.scheduler.learn_slack(now_us, wait_max_us, took > Duration::from_micros(wait_max_us));
            self.answered(&request, &scores, cut, is_shadowed);
            self.load.answered(now_us);
            self.statistics.answered(number, took);
        }
        let arm = request.arm.clone();
        let filled = request.left_out.is_some().then_some(request);
        let (version, computed, order) = (number, None, None);
        // A caller that has gone needs no answer.
        let _ = reply.send(Ok(Answer { version, scores, cut, found, computed, filled, order, arm }));
    }

    /// Learns from the answer to a request.
    pub fn answered(&mut self, request: &Arc<Request>, scores: &[f32], cut: Cut, is_shadowed: bool) {
        if cut != Cut::default() {
            return;
        }
        let labels = &request.inputs.labels;
        let values = scores.iter().step_by(labels.len()).map(|one| f64::from(labels[0].score(*one)));
        let prescores = request.prescores.as_deref().unwrap_or_default();
        self.scheduler.learn_worth(request.class(), values, prescores);
        if is_shadowed && self.is_open {
            self.shadow.put(request.clone(), scores.to_vec());
        }
    }

    /// Forgets a request whose caller has hung up.
    pub fn hung_up(&mut self, ticket: Ticket, now_us: u64) {
        let Some(waiting) = self.waiting.remove(&ticket) else { return };
        if !waiting.is_piece {
            let took_us = waiting.since.elapsed().as_micros() as u64;
            let left_us = waiting.wait_max_us.saturating_sub(took_us);
            self.scheduler.hung_up(now_us, waiting.wait_max_us, left_us);
        }
    }

    /// Refuses a request because it is late.
    pub fn refuse_late(&mut self, ticket: Ticket, now_us: u64) {
        if let Some(waiting) = self.waiting.get(&ticket).filter(|waiting| !waiting.is_piece) {
            self.scheduler.learn_slack(now_us, waiting.wait_max_us, true);
        }
        self.refuse(ticket, "late", Refusal::Late("the deadline passed before a lane was free".into()));
    }

    pub fn refuse(&mut self, ticket: Ticket, reason: &'static str, refusal: Refusal) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            if !waiting.is_piece {
                self.measures.refused(reason);
                self.statistics.refused(waiting.number, waiting.since.elapsed());
            }
            let _ = waiting.reply.send(Err(refusal));
        }
    }
}
