//! The front: where callers' requests wait, and where lanes take TensorBatches and give scores back.
//!
//! It knows no protocol and no model: requests come decoded, and what a lane does with packed tensors is its own.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamlearn_table::{PackError, ReadRows, TableSet};
use streamlearn_wire::keys::key_of_bytes;
use tokio::sync::oneshot;

use crate::answer::{Answer, Refusal};
use crate::inputs::Inputs;
use crate::layout::Layout;
use crate::measures::Measures;
use crate::protocol::Statistics;
use crate::request::Request;
use crate::scheduler::{Figures, Idle, Offer, Plan, Reason, Refused, Scheduler, Ticket};
use crate::shadow::{Echo, Shadow};
use crate::sizes::{Rows, Sizes};
use crate::slab::Pool;
use crate::statistics;
use crate::tensor_batch::{Packed, Part, Scratch, Shape, pack, slab_floats};
use crate::versions::{Handle, Versions};

/// What seeds the route of a request that names none.
const ROUTE_SALT: u64 = 0x0072_6f75_7465;

/// Requests that wait, versions that may answer, and lanes between them.
pub struct Front {
    inputs: Arc<Inputs>,
    layout: Layout,
    pool: Arc<Pool>,
    limits: Waits,
    began: Instant,
    measures: Arc<Measures>,
    state: Mutex<FrontState>,
    /// Told when there may be work, or when the front closes.
    work: Condvar,
}

/// How long requests may wait.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The deadline of a request that names none.
    pub deadline_us: u64,
    /// The longest deadline a request may name.
    pub deadline_us_max: u64,
    /// How many answered requests may wait to be scored by the version that shadows.
    pub shadows_max: usize,
}

struct FrontState {
    scheduler: Scheduler,
    versions: Versions,
    waiting: HashMap<Ticket, WaitingRequest>,
    statistics: statistics::Figures,
    measures: Arc<Measures>,
    sizes: Sizes,
    shadow: Shadow,
    is_open: bool,
}

struct WaitingRequest {
    request: Arc<Request>,
    number: u64,
    since: Instant,
    is_shadowed: bool,
    scores: Vec<f32>,
    /// How many candidates are scored, where it is not all.
    degraded: Option<usize>,
    reply: oneshot::Sender<Result<Answer, Refusal>>,
}

/// A TensorBatch in the hands of a lane.
pub struct Work {
    /// Which version it is to be scored by.
    pub handle: Handle,
    /// The number of that version.
    pub number: u64,
    /// What it is padded to.
    pub shape: Shape,
    /// Its tensors.
    pub packed: Packed,
    /// How many candidates it has; scores of those after them are not looked at.
    pub candidates: usize,
    lane: usize,
    plan: u64,
    parts: Vec<(Ticket, Range<usize>)>,
    begun: Instant,
    gathering: Duration,
    /// What it is a part of, where nobody waits for it.
    echo: Option<Echo>,
    /// Kept until scores are there, so that the version's tables are.
    _tables: Arc<TableSet>,
}

/// A request that was admitted.
struct Offered {
    ticket: Ticket,
    answered: oneshot::Receiver<Result<Answer, Refusal>>,
    within: Duration,
}

/// Lets a request go whose caller went away.
struct Caller<'a> {
    front: &'a Front,
    ticket: Option<Ticket>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.front.lock();
            state.scheduler.cancel(ticket);
            state.waiting.remove(&ticket);
        }
    }
}

impl Front {
    /// A front without versions: it refuses until there is one.
    pub fn new(
        inputs: Inputs,
        layout: Layout,
        scheduler: Scheduler,
        limits: Waits,
        slabs_idle_max: usize,
    ) -> Self {
        let shapes = scheduler.shapes();
        let length = if layout.user.length == 0 { 0 } else { shapes.lengths.top() };
        let top = Shape { users: shapes.users.top(), candidates: shapes.candidates.top(), length };
        let pool = Pool::new(slab_floats(&layout, top), slabs_idle_max);
        let measures = Arc::new(Measures::default());
        let state = FrontState {
            sizes: Sizes::new(shapes),
            shadow: Shadow::new(inputs.labels.clone(), limits.shadows_max),
            scheduler,
            versions: Versions::default(),
            waiting: HashMap::new(),
            statistics: statistics::Figures::default(),
            measures: measures.clone(),
            is_open: true,
        };
        Self {
            inputs: Arc::new(inputs),
            layout,
            pool,
            limits,
            began: Instant::now(),
            measures,
            state: Mutex::new(state),
            work: Condvar::new(),
        }
    }

    /// The same with slabs that other processes read; as many as lanes may have at once.
    pub fn sharing(mut self, slabs: usize) -> io::Result<Self> {
        self.pool = Pool::shared(self.pool.floats(), slabs)?;
        Ok(self)
    }

    /// Where TensorBatches are packed.
    pub fn slabs(&self) -> &Pool {
        &self.pool
    }

    /// What requests are checked against.
    pub fn inputs(&self) -> &Arc<Inputs> {
        &self.inputs
    }

    /// Let a version answer those who name it.
    pub fn add(&self, number: u64, tables: &Arc<TableSet>) -> Handle {
        self.lock().versions.add(number, tables)
    }

    /// Let a version answer those who name none; gives whether it is there.
    pub fn activate(&self, handle: Handle) -> bool {
        self.lock().versions.activate(handle)
    }

    /// Let a version answer a share of those who name none.
    pub fn set_canary(&self, canary: Option<(Handle, f64)>) {
        self.lock().versions.set_canary(canary);
    }

    /// Let a version score a share of those who name none, once they are answered; see `shadow`.
    pub fn set_shadow(&self, shadow: Option<(Handle, f64)>) {
        let mut state = self.lock();
        let found = shadow.and_then(|(handle, share)| {
            state.versions.get(handle).map(|ready| (handle, ready.number, share))
        });
        state.shadow.set(found);
    }

    /// Let a version answer nobody any more; what waits for it is refused when its turn comes.
    pub fn remove(&self, handle: Handle) {
        let mut state = self.lock();
        state.versions.remove(handle);
        state.shadow.remove(handle);
    }

    /// The number of the version that answers, and of all that may be named.
    pub fn versions(&self) -> (Option<u64>, Vec<u64>) {
        let state = self.lock();
        (state.versions.active(), state.versions.numbers())
    }

    /// Score a request; it waits until a lane has done it, or there is a reason not to.
    pub fn score(&self, request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send + '_ {
        let offered = self.offer(request);
        async move {
            let Offered { ticket, answered, within } = offered.map_err(|(why, refusal)| {
                self.measures.refused(why);
                refusal
            })?;
            let mut caller = Caller { front: self, ticket: Some(ticket) };
            // Lanes look for what is late when they are free; a lane that hangs looks for nothing.
            let Ok(outcome) = tokio::time::timeout(within, answered).await else {
                self.measures.refused("late");
                return Err(Refusal::Late("its deadline passed while it waited or was scored".into()));
            };
            caller.ticket = None;
            outcome.unwrap_or_else(|_| Err(Refusal::Away("this node is closing".into())))
        }
    }

    /// The next work of a lane; None when there was none for so long, or the front is closed.
    pub fn take(&self, lane: usize, wait: Duration, scratch: &mut Scratch) -> Option<Work> {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        // A lane that asks while it has work has lost it.
        state.try_alone(lane, &Refusal::Broken("its lane was restarted".into()));
        loop {
            let next = state.scheduler.next(self.now_us(), lane);
            for ticket in next.late {
                let said = "its deadline passed before a lane was free";
                state.refuse(ticket, "late", Refusal::Late(said.into()));
            }
            if let Some(plan) = next.plan {
                let taken = state.begin(lane, plan, self.layout.user.length > 0);
                drop(state);
                match taken.and_then(|begun| self.packed(begun, scratch)) {
                    Some(work) => return Some(work),
                    None => state = self.lock(),
                }
                continue;
            }
            if let Some(begun) = state.begin_shadow(self, lane) {
                drop(state);
                match self.packed(begun, scratch) {
                    Some(work) => return Some(work),
                    None => state = self.lock(),
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !state.is_open || left.is_zero() {
                return None;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A lane takes no more work until it asks for some again; what it had is tried by others.
    pub fn leave(&self, lane: usize) {
        let mut state = self.lock();
        let away = Refusal::Away("its lane is away".into());
        state.try_alone(lane, &away);
        for ticket in state.scheduler.leave(lane) {
            state.refuse(ticket, "given_up", away.clone());
        }
        drop(state);
        self.work.notify_all();
    }

    /// Hand back what a lane made of its work: a row of `labels` logits for every candidate.
    pub fn give(&self, mut work: Work, scores: &[f32]) {
        let labels = self.inputs.labels.len();
        if scores.len() < work.candidates * labels {
            let said =
                format!("{} scores for {} candidates of {labels} labels", scores.len(), work.candidates);
            return self.fail(work, &said);
        }
        let took = work.begun.elapsed();
        let took_us = took.as_secs_f64() * 1e6;
        let mut rows = scores.chunks_exact(labels);
        let mut state = self.lock();
        if !state.scheduler.is_on(work.lane, work.plan) {
            return; // those who waited were told when its lane was restarted
        }
        if let Some(mut echo) = work.echo.take() {
            echo.scores.extend_from_slice(&scores[..work.candidates * labels]);
            state.shadow.give(echo);
            state.scheduler.done_in(work.lane, took_us);
            return;
        }
        for (ticket, some) in &work.parts {
            let waiting = state.waiting.get_mut(ticket);
            let into = waiting.map(|one| &mut one.scores[some.start * labels..some.end * labels]);
            match into {
                Some(into) => {
                    for (row, scored) in into.chunks_exact_mut(labels).zip(&mut rows) {
                        row.copy_from_slice(scored);
                    }
                }
                // Its caller went away meanwhile.
                None => rows.by_ref().take(some.len()).for_each(drop),
            }
        }
        state.statistics.executed(work.number, work.candidates, work.gathering, took - work.gathering);
        for ticket in state.scheduler.done_in(work.lane, took_us) {
            state.answer(ticket);
        }
        drop(state);
        self.work.notify_one();
    }

    /// Say that a lane could not do its work. Requests that were merged in it are tried once more, each alone; one that
    /// was alone is refused.
    pub fn fail(&self, work: Work, said: &str) {
        self.lost(&work, &Refusal::Broken(said.to_owned()));
    }

    /// Say that a lane was lost with its work, which goes on as if it had failed; whoever is refused may ask again.
    pub fn lose(&self, work: Work, said: &str) {
        self.lost(&work, &Refusal::Away(said.to_owned()));
    }

    fn lost(&self, work: &Work, refusal: &Refusal) {
        let mut state = self.lock();
        if state.scheduler.is_on(work.lane, work.plan) {
            state.failed(work.echo.is_some());
            state.try_alone(work.lane, refusal);
        }
        drop(state);
        self.work.notify_all();
    }

    /// Take no more requests; those that wait are still answered.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.is_open = false;
        state.shadow.clear();
        drop(state);
        self.work.notify_all();
    }

    /// How many requests wait for an answer.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// What was answered, by version.
    pub fn statistics(&self) -> Vec<Statistics> {
        self.lock().statistics.all()
    }

    /// What waits and runs, for metrics.
    pub fn figures(&self) -> Figures {
        let now_us = self.now_us();
        self.lock().scheduler.figures(now_us)
    }

    /// How long requests waited, what was merged, and why requests were refused.
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// What sizes came, for ladders to be chosen from.
    pub fn sizes(&self) -> serde_json::Value {
        let state = self.lock();
        state.sizes.page(&state.scheduler)
    }

    /// How far the version that shadows is from what was answered.
    pub fn shadow(&self) -> serde_json::Value {
        self.lock().shadow.page()
    }

    /// Rows of the user graph and of the score graph, and how many of them were padding.
    pub fn rows(&self) -> (Rows, Rows) {
        self.lock().sizes.rows()
    }

    /// What warm-up measured: microseconds of each bucket, lists by length and then by bucket.
    pub fn set_costs(&self, user_us: &[Vec<f64>], score_us: &[Vec<f64>]) -> Result<(), String> {
        self.lock().scheduler.set_costs(user_us, score_us)
    }

    /// Offer a request to the scheduler; where it is not admitted, why in a word, and as its caller is told.
    fn offer(&self, request: Request) -> Result<Offered, (&'static str, Refusal)> {
        let wishes = request.wishes;
        let within_us =
            wishes.deadline_us.unwrap_or(self.limits.deadline_us).min(self.limits.deadline_us_max);
        let route = wishes.route.unwrap_or_else(|| key_of_bytes(&request.id, ROUTE_SALT));
        let length = self.length_of(&request);
        let (sender, answered) = oneshot::channel();
        let mut state = self.lock();
        if !state.is_open {
            return Err(("closing", Refusal::Away("this node is closing".into())));
        }
        let handle = state.versions.choose(wishes.pin, route).map_err(|refusal| ("version", refusal))?;
        let number = state.versions.get(handle).map_or(0, |ready| ready.number);
        let is_shadowed = wishes.pin.is_none() && state.shadow.wants(handle, route);
        let now_us = self.now_us();
        let offer = Offer {
            version: handle,
            candidates: request.candidates,
            length,
            deadline_us: now_us + within_us,
            priority: wishes.priority,
        };
        let admitted = state.scheduler.offer(now_us, &offer).map_err(busy)?;
        state.sizes.asked(request.candidates, length);
        for ticket in admitted.shed {
            let said = "shed for a request of higher priority".into();
            state.refuse(ticket, "shed", Refusal::Busy { retry_ms: 1, said });
        }
        let degraded = (admitted.candidates < request.candidates).then_some(admitted.candidates);
        let scores = vec![f32::NAN; request.candidates * self.inputs.labels.len()];
        let (request, since, reply) = (Arc::new(request), Instant::now(), sender);
        let waiting = WaitingRequest { request, number, since, is_shadowed, scores, degraded, reply };
        state.waiting.insert(admitted.ticket, waiting);
        drop(state);
        self.work.notify_one();
        Ok(Offered { ticket: admitted.ticket, answered, within: Duration::from_micros(within_us) })
    }

    /// How many places of a history a request has.
    fn length_of(&self, request: &Request) -> usize {
        let longest = self.layout.user.sequence.iter().map(|place| match &request.user[place.column] {
            crate::request::Values::Lists { keys, .. } => keys.len(),
            _ => 0,
        });
        longest.max().unwrap_or(0).min(self.layout.user.length)
    }

    fn packed(&self, begun: Begun, scratch: &mut Scratch) -> Option<Work> {
        let began = Instant::now();
        let Begun { handle, number, tables, shape, parts, tickets, lane, plan, echo } = begun;
        let candidates = parts.iter().map(|part| part.some.len()).sum();
        let outcome =
            tables.pin(number).map_err(|error| Refusal::NotKept(error.to_string())).and_then(|pin| {
                let readings =
                    tables.readings(pin.at()).map_err(|error| Refusal::NotKept(error.to_string()))?;
                let readers: Vec<&dyn ReadRows> = readings.iter().map(|one| one as &dyn ReadRows).collect();
                pack(&self.layout, &readers, &parts, shape, &self.pool, scratch)
                    .map_err(|error: PackError| Refusal::Broken(error.to_string()))
            });
        match outcome {
            Ok(packed) => {
                let (gathering, _tables) = (began.elapsed(), tables);
                Some(Work {
                    handle,
                    number,
                    shape,
                    packed,
                    candidates,
                    lane,
                    plan,
                    parts: tickets,
                    begun: began,
                    gathering,
                    echo,
                    _tables,
                })
            }
            Err(refusal) => {
                let mut state = self.lock();
                state.failed(echo.is_some());
                if matches!(refusal, Refusal::Broken(_)) {
                    state.try_alone(lane, &refusal);
                } else {
                    state.give_up(lane, &refusal);
                }
                drop(state);
                self.work.notify_all();
                None
            }
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, FrontState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A plan whose version is held and whose requests are at hand.
struct Begun {
    handle: Handle,
    number: u64,
    tables: Arc<TableSet>,
    shape: Shape,
    parts: Vec<Part>,
    tickets: Vec<(Ticket, Range<usize>)>,
    lane: usize,
    plan: u64,
    echo: Option<Echo>,
}

impl FrontState {
    /// Begin a piece of what the version that shadows is to score, where the lane has nothing else to do.
    fn begin_shadow(&mut self, front: &Front, lane: usize) -> Option<Begun> {
        while let Some(echo) = self.shadow.take() {
            let ready = self.versions.get(echo.handle).cloned();
            let tables = ready.as_ref().and_then(|ready| ready.tables.upgrade());
            let (Some(ready), Some(tables)) = (ready, tables) else {
                self.shadow.fail();
                continue;
            };
            let from = echo.scores.len() / front.inputs.labels.len();
            let top = self.scheduler.shapes().candidates.top();
            let some = from..(from + top).min(echo.request.candidates);
            let length = front.length_of(&echo.request);
            let idle = Idle { version: echo.handle, candidates: some.len(), length };
            let Some(plan) = self.scheduler.lend(front.now_us(), lane, idle) else {
                self.shadow.wait(echo);
                return None;
            };
            let length = if front.layout.user.length > 0 { plan.length } else { 0 };
            return Some(Begun {
                handle: plan.version,
                number: ready.number,
                tables,
                shape: Shape { users: plan.users_bucket, candidates: plan.candidates_bucket, length },
                parts: vec![Part { request: echo.request.clone(), some }],
                tickets: Vec::new(),
                lane,
                plan: plan.id,
                echo: Some(echo),
            });
        }
        None
    }

    /// Begin a plan; None when its version has gone, and whoever waited for it was told.
    fn begin(&mut self, lane: usize, plan: Plan, has_sequences: bool) -> Option<Begun> {
        let ready = self.versions.get(plan.version).cloned();
        let tables = ready.as_ref().and_then(|ready| ready.tables.upgrade());
        let (Some(ready), Some(tables)) = (ready, tables) else {
            self.give_up(lane, &Refusal::Away("its version was given up while it waited".into()));
            return None;
        };
        self.sizes.formed(&plan);
        let tickets: Vec<(Ticket, Range<usize>)> =
            plan.pieces.iter().map(|piece| (piece.ticket, piece.from..piece.upto)).collect();
        let mut parts = Vec::with_capacity(tickets.len());
        for (ticket, some) in &tickets {
            let waiting = &self.waiting[ticket];
            if some.start == 0 && !plan.is_again {
                let waited = waiting.since.elapsed();
                self.statistics.waited(waiting.number, waited);
                self.measures.waited(waited);
            }
            parts.push(Part { request: waiting.request.clone(), some: some.clone() });
        }
        self.measures.merged(plan.pieces.len(), plan.candidates());
        let length = if has_sequences { plan.length } else { 0 };
        let shape = Shape { users: plan.users_bucket, candidates: plan.candidates_bucket, length };
        Some(Begun {
            handle: plan.version,
            number: ready.number,
            tables,
            shape,
            parts,
            tickets,
            lane,
            plan: plan.id,
            echo: None,
        })
    }

    /// Whose work failed: the version's that shadows, or others'.
    fn failed(&mut self, is_shadow: bool) {
        if is_shadow {
            self.shadow.fail();
        }
    }

    /// A lane's work failed: what was merged in it is tried once more alone, the rest is refused.
    fn try_alone(&mut self, lane: usize, refusal: &Refusal) {
        let before = self.scheduler.tried_again();
        for ticket in self.scheduler.try_alone(lane) {
            self.refuse(ticket, "failed", refusal.clone());
        }
        self.measures.tried_again(self.scheduler.tried_again() - before);
    }

    /// A lane's work cannot be done by any lane: whoever waits for any of it is refused.
    fn give_up(&mut self, lane: usize, refusal: &Refusal) {
        for ticket in self.scheduler.failed(lane) {
            self.refuse(ticket, "given_up", refusal.clone());
        }
    }

    fn answer(&mut self, ticket: Ticket) {
        let Some(WaitingRequest { request, number, since, is_shadowed, scores, degraded, reply }) =
            self.waiting.remove(&ticket)
        else {
            return;
        };
        if is_shadowed && self.is_open && degraded.is_none() {
            self.shadow.put(request, scores.clone());
        }
        self.statistics.answered(number, since.elapsed());
        // Whoever does not listen any more needs no answer.
        let _ = reply.send(Ok(Answer { version: number, scores, degraded }));
    }

    fn refuse(&mut self, ticket: Ticket, why: &'static str, refusal: Refusal) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            self.measures.refused(why);
            self.statistics.refused(waiting.number, waiting.since.elapsed());
            let _ = waiting.reply.send(Err(refusal));
        }
    }
}

/// Why it was not admitted, in a word and as its caller is told.
fn busy(refused: Refused) -> (&'static str, Refusal) {
    let said = refused.to_string();
    let later = |said| Refusal::Busy { retry_ms: refused.retry_ms(), said };
    match refused.reason {
        Reason::Expired => ("expired", Refusal::Late(said)),
        Reason::Length => ("length", Refusal::Bad(said)),
        Reason::Lanes => ("lanes", Refusal::Away(said)),
        Reason::Requests => ("requests", later(said)),
        Reason::Candidates => ("candidates", later(said)),
        Reason::Backlog => ("backlog", later(said)),
    }
}
