//! The front: holds callers' requests until lanes take them as TensorBatches and return scores.
//!
//! It knows no protocol and no model: requests arrive decoded, and lanes decide how to run packed tensors.

mod front_state;
pub mod reader_waits;
mod readers;
mod results;
mod shadow;
mod unread_share;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use streamlearn_table::{PackError, ReadRows, TableSet};
use streamlearn_wire::keys::key_of_bytes;
use tokio::sync::oneshot;

use self::reader_waits::ReaderWaits;
use crate::answer::{Answer, Cut, Refusal};
use crate::inputs::Inputs;
use crate::layout::Layout;
use crate::load::{LoadMeter, NodeLoad};
use crate::measures::Measures;
use crate::protocol::Statistics;
use crate::request::{Request, Wishes};
use crate::sizes::{Rows, Sizes};
use crate::slab::Pool;
use crate::split::{SplitPlan, Splitter};
use crate::statistics;
use crate::tensor_batch::{Packed, Scratch, Shape, pack, slab_floats};
use crate::versions::item_features::ItemFeatures;
use crate::versions::item_index::ItemIndex;
use crate::versions::{Handle, VersionName, Versions};
use front_state::{FrontState, StartedPlan, WaitingRequest};
use shadow::{Shadow, ShadowRequest};
use streamlearn_scheduler::{COHORTS, Figures, Offer, Reason, Refused, Scheduler, Ticket, Worth};

/// Seeds the route of a request without a route key.
const ROUTE_SALT: u64 = 0x0072_6f75_7465;
/// Seeds the hash that mixes requests whose worth is at the margin.
const WORTH_SALT: u64 = 0x0077_6f72_7468;

/// The waiting requests, the servable versions, and the lanes.
pub struct Front {
    inputs: Arc<Inputs>,
    layout: Layout,
    pool: Arc<Pool>,
    limits: Waits,
    began: Instant,
    measures: Arc<Measures>,
    state: Mutex<FrontState>,
    /// Notified when there may be work, or when the front closes.
    work: Condvar,
    /// For whom its lanes rest.
    readers: RwLock<Arc<ReaderWaits>>,
}

/// Bounds of waiting.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The deadline of a request that sets none.
    pub deadline_us: u64,
    /// The longest deadline that a request may set.
    pub deadline_us_max: u64,
    /// How many answered requests may wait for the shadow version.
    pub shadows_max: usize,
    /// The largest value of a request; a larger one counts as this.
    pub value_max: f32,
}

/// A TensorBatch that a lane executes.
pub struct Work {
    /// The version that scores it.
    pub handle: Handle,
    /// The number of that version.
    pub number: u64,
    /// The padded shape.
    pub shape: Shape,
    /// Its tensors.
    pub packed: Packed,
    /// The number of candidates; scores after them are ignored.
    pub candidates: usize,
    lane: usize,
    plan: u64,
    parts: Vec<(Ticket, Range<usize>)>,
    begun: Instant,
    gathering: Duration,
    /// The shadow request that this is a part of; no caller waits for it.
    shadow_request: Option<ShadowRequest>,
    /// The items of the version, if it finds items.
    items: Option<Arc<ItemIndex>>,
    /// Keeps the version's tables alive until the scores arrive.
    _tables: Arc<TableSet>,
}

/// An admitted request, or a piece of one.
pub struct AdmittedRequest {
    ticket: Ticket,
    reply: oneshot::Receiver<Result<Answer, Refusal>>,
    wait_max: Duration,
    is_piece: bool,
}

/// A refusal, and its metric label.
type Reasoned = (&'static str, Refusal);

/// A request that arrived, with the version that scores all of it.
pub struct Arrival {
    pub(crate) request: Arc<Request>,
    pub(crate) version: VersionName,
    /// Assigns it to shares.
    pub(crate) route: u64,
    handle: Handle,
    since: Instant,
    wait_max_us: u64,
    length: usize,
    is_shadowed: bool,
}

impl Arrival {
    /// Returns the time that is left until its deadline, in microseconds.
    pub(crate) fn left_us(&self) -> u64 {
        self.wait_max_us.saturating_sub(self.since.elapsed().as_micros() as u64)
    }
}

/// A request that was admitted, whole or in pieces.
pub(crate) enum Admission {
    /// The whole request.
    Whole(AdmittedRequest),
    /// Its first piece; the others are for other nodes.
    Split(Box<(Arrival, AdmittedRequest, SplitPlan)>),
}

/// Cancels a request when its caller goes away.
struct Caller<'a> {
    front: &'a Front,
    ticket: Option<Ticket>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut state = self.front.lock();
            state.scheduler.cancel(ticket);
            state.hung_up(ticket, self.front.now_us());
        }
    }
}

impl Front {
    /// Creates a front without versions: it refuses requests until one is added.
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
            load: LoadMeter::default(),
            rested_us: HashMap::new(),
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
            readers: RwLock::default(),
        }
    }

    /// Uses shared slabs that other processes can read; `slabs` is the maximum number in use at once.
    pub fn sharing(mut self, slabs: usize) -> io::Result<Self> {
        self.pool = Pool::shared(self.pool.floats(), slabs)?;
        Ok(self)
    }

    /// Returns the slabs for packing.
    pub fn slabs(&self) -> &Pool {
        &self.pool
    }

    /// Returns the inputs that requests are checked against.
    pub fn inputs(&self) -> &Arc<Inputs> {
        &self.inputs
    }

    /// Returns a number that is the same for all nodes whose inputs and layout are.
    pub fn fingerprint(&self) -> u64 {
        let Inputs { user, item, labels, .. } = &*self.inputs;
        key_of_bytes(format!("{user:?} {item:?} {labels:?} {:?}", self.layout).as_bytes(), 0)
    }

    /// Adds a version, with its items if it finds items; it answers requests that pin it.
    pub fn add(&self, name: VersionName, tables: &Arc<TableSet>, items: Option<Arc<ItemIndex>>) -> Handle {
        self.lock().versions.add(name, tables, items)
    }

    /// Gives a version what describes its items; requests may leave it out from now on.
    pub fn describe(&self, handle: Handle, features: Arc<ItemFeatures>) {
        self.lock().versions.describe(handle, features);
    }

    /// Chooses the version of a request, and returns what describes its items. It is scored by that version or refused.
    ///
    /// # Errors
    /// If no version can answer it.
    pub fn choose(&self, request: &mut Request) -> Result<Option<Arc<ItemFeatures>>, Refusal> {
        let state = self.lock();
        let outcome = self.chosen(&state, request, None).map(|handle| {
            let ready = state.versions.get(handle);
            request.version = ready.map(|ready| ready.name);
            ready.and_then(|ready| ready.features.clone())
        });
        drop(state);
        outcome.map_err(|(reason, refusal)| {
            self.measures.refused(reason);
            refusal
        })
    }

    /// Returns the time that a request has from its arrival, in microseconds.
    pub fn wait_us(&self, wishes: &Wishes) -> u64 {
        wishes.deadline_us.unwrap_or(self.limits.deadline_us).min(self.limits.deadline_us_max)
    }

    /// Makes a version answer requests without a pin. Returns false if the version is unknown.
    pub fn activate(&self, handle: Handle) -> bool {
        self.lock().versions.activate(handle)
    }

    /// Makes a version answer a share of the requests without a pin.
    pub fn set_canary(&self, canary: Option<(Handle, f64)>) {
        self.lock().versions.set_canary(canary);
    }

    /// Makes a version score a share of the requests without a pin after they are answered; see `shadow`.
    pub fn set_shadow(&self, shadow: Option<(Handle, f64)>) {
        let mut state = self.lock();
        let version = shadow.and_then(|(handle, share)| {
            state.versions.get(handle).map(|ready| (handle, ready.name.number, share))
        });
        state.shadow.set(version);
    }

    /// Removes a version; requests that wait for it are refused when their turn comes.
    pub fn remove(&self, handle: Handle) {
        let mut state = self.lock();
        state.versions.remove(handle);
        state.shadow.remove(handle);
    }

    /// Returns the number of the active version, and of all versions that can be pinned.
    pub fn versions(&self) -> (Option<u64>, Vec<u64>) {
        let state = self.lock();
        (state.versions.active(), state.versions.numbers())
    }

    /// Returns the active version and its items, if it is the one that answers a request.
    pub fn items_for(&self, request: &Request) -> Option<(VersionName, Arc<ItemIndex>)> {
        let state = self.lock();
        let handle = match request.version {
            Some(name) => state.versions.named(name),
            None => state.versions.choose_for(&request.wishes, route_of(request)).map(|(handle, _)| handle),
        };
        let is_answering = request.wishes.pin.is_none() && state.is_open;
        let handle = handle.ok().filter(|&handle| is_answering && state.versions.is_active(handle))?;
        let ready = state.versions.get(handle)?;
        Some((ready.name, ready.items.clone()?))
    }

    /// Scores a request: waits until a lane has scored it, or it is refused.
    pub fn score(&self, request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send + '_ {
        self.scored(request, None)
    }

    /// Scores a piece of a request, which is neither cut nor counted as a request.
    pub(crate) fn score_piece(
        &self,
        piece: Request,
        version: VersionName,
    ) -> impl Future<Output = Result<Answer, Refusal>> + Send + '_ {
        self.scored(piece, Some(version))
    }

    fn scored(
        &self,
        request: Request,
        of_piece: Option<VersionName>,
    ) -> impl Future<Output = Result<Answer, Refusal>> + Send + '_ {
        let mut state = self.lock();
        let arrival = self.arrive(&mut state, request, of_piece);
        let admission = arrival.and_then(|arrival| {
            let piece = of_piece.map(|_| arrival.request.candidates);
            self.admit(&mut state, &arrival, piece)
        });
        let admission = self.settled(state, admission, of_piece.is_none());
        async move { self.outcome(admission?).await }
    }

    /// Admits a request; one that would be late even on an idle node is split, if other nodes can take pieces.
    pub(crate) fn admit_or_split(&self, request: Request, splitter: &Splitter) -> Result<Admission, Refusal> {
        let mut state = self.lock();
        let begun = self.arrive(&mut state, request, None).and_then(|arrival| {
            let (candidates, left_us) = (arrival.request.candidates, arrival.wait_max_us as f64);
            let kept_us = left_us - state.scheduler.learned_us(left_us);
            let plan = if state.scheduler.predicted_us(candidates, arrival.length) <= kept_us {
                None
            } else {
                let backlog_us = state.scheduler.figures(self.now_us()).backlog_us;
                let piece_us = |candidates| state.scheduler.predicted_us(candidates, arrival.length);
                splitter.plan(candidates, (kept_us, left_us), backlog_us, arrival.version, piece_us)
            };
            let Some(plan) = plan else {
                return self.admit(&mut state, &arrival, None).map(Admission::Whole);
            };
            let first = self.admit(&mut state, &arrival, Some(plan.first))?;
            Ok(Admission::Split(Box::new((arrival, first, plan))))
        });
        self.settled(state, begun, true)
    }

    /// Counts the end of a request that was split, and learns from its scores; `None` if it is refused.
    pub(crate) fn split_ended(&self, whole: &Arrival, scores: Option<&[f32]>) {
        let Arrival { request, version, since, is_shadowed, .. } = whole;
        let mut state = self.lock();
        if let Some(scores) = scores {
            state.answered(request, scores, Cut::default(), *is_shadowed);
            state.load.answered(self.now_us());
            state.statistics.answered(version.number, since.elapsed());
        } else {
            self.measures.refused("split");
            state.statistics.refused(version.number, since.elapsed());
        }
    }

    /// Returns the work that waits here, and the predicted time of a piece, in microseconds.
    pub(crate) fn piece_us(&self, whole: &Arrival, candidates: usize) -> (f64, f64) {
        let now_us = self.now_us();
        let mut state = self.lock();
        let backlog_us = state.scheduler.figures(now_us).backlog_us;
        (backlog_us, state.scheduler.predicted_us(candidates, whole.length))
    }

    /// Waits for the answer to an admitted request.
    pub(crate) async fn outcome(&self, admitted: AdmittedRequest) -> Result<Answer, Refusal> {
        let AdmittedRequest { ticket, reply, wait_max, is_piece } = admitted;
        let mut caller = Caller { front: self, ticket: Some(ticket) };
        // Free lanes look for late requests; this also covers a lane that hangs.
        let Ok(outcome) = tokio::time::timeout(wait_max, reply).await else {
            if !is_piece {
                self.measures.refused("late");
            }
            return Err(Refusal::Late("the deadline passed while the request waited or was scored".into()));
        };
        caller.ticket = None;
        outcome.unwrap_or_else(|_| Err(Refusal::Away("the node is closing".into())))
    }

    /// Waits for a lane's next work; returns `None` after the wait, or if the front is closed.
    pub fn take(&self, lane: usize, wait: Duration, scratch: &mut Scratch) -> Option<Work> {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        // A lane that asks while it still has work has lost that work.
        state.try_alone(lane, &Refusal::Broken("the lane was restarted".into()));
        loop {
            let now_us = self.now_us();
            let next = state.scheduler.next(now_us, lane);
            for ticket in next.late {
                state.refuse_late(ticket, now_us);
            }
            if let Some(plan) = next.plan {
                let started = state.begin(lane, plan, self.layout.user.length > 0);
                drop(state);
                match started.and_then(|started| self.packed(started, scratch)) {
                    Some(work) => return Some(work),
                    None => state = self.lock(),
                }
                continue;
            }
            if let Some(started) = state.begin_shadow(self, lane) {
                drop(state);
                match self.packed(started, scratch) {
                    Some(work) => return Some(work),
                    None => state = self.lock(),
                }
                continue;
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            if !state.is_open || remaining.is_zero() {
                return None;
            }
            state = self.work.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Refuses new requests; waiting ones are still answered.
    pub fn drain(&self) {
        let mut state = self.lock();
        state.is_open = false;
        state.shadow.clear();
        drop(state);
        self.work.notify_all();
        self.readers().end_turn();
    }

    /// Returns the number of requests that wait for an answer.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Returns the statistics by version.
    pub fn statistics(&self) -> Vec<Statistics> {
        self.lock().statistics.all()
    }

    /// Returns queue and lane figures for metrics.
    pub fn figures(&self) -> Figures {
        let now_us = self.now_us();
        self.lock().scheduler.figures(now_us)
    }

    /// Returns how busy it is, for whoever chooses among nodes.
    pub fn load(&self) -> Option<NodeLoad> {
        let now_us = self.now_us();
        let mut state = self.lock();
        let Figures { lanes, backlog_us, .. } = state.scheduler.figures(now_us);
        state.load.load(now_us, lanes, backlog_us / self.limits.deadline_us as f64)
    }

    /// Returns the counts of waits, merges and refusals.
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Returns the observed sizes, for choosing ladders.
    pub fn sizes(&self) -> serde_json::Value {
        let state = self.lock();
        state.sizes.page(&state.scheduler)
    }

    /// Returns how far the shadow version's scores are from the answers.
    pub fn shadow(&self) -> serde_json::Value {
        self.lock().shadow.page()
    }

    /// Returns the rows of the user graph and of the score graph, with their padding.
    pub fn rows(&self) -> (Rows, Rows) {
        self.lock().sizes.rows()
    }

    /// Sets the costs measured in warm-up: microseconds for each bucket, as lists by length.
    pub fn set_costs(&self, user_us: &[Vec<f64>], score_us: &[Vec<f64>]) -> Result<(), String> {
        self.lock().scheduler.set_costs(user_us, score_us)
    }

    /// Tells lanes of what was admitted, and counts what was refused.
    fn settled<T>(
        &self,
        state: MutexGuard<'_, FrontState>,
        outcome: Result<T, Reasoned>,
        is_counted: bool,
    ) -> Result<T, Refusal> {
        drop(state);
        match outcome {
            Ok(admitted) => {
                self.work.notify_one();
                Ok(admitted)
            }
            Err((reason, refusal)) => {
                if is_counted {
                    self.measures.refused(reason);
                }
                Err(refusal)
            }
        }
    }

    /// Chooses the version of a request; a piece names its version.
    fn arrive(
        &self,
        state: &mut FrontState,
        mut request: Request,
        of_piece: Option<VersionName>,
    ) -> Result<Arrival, Reasoned> {
        let (wishes, route, wait_max_us) =
            (request.wishes, route_of(&request), self.wait_us(&request.wishes));
        let handle = self.chosen(state, &mut request, of_piece)?;
        let version = state.versions.get(handle).map_or_else(VersionName::default, |ready| ready.name);
        let is_shadowed = of_piece.is_none() && wishes.pin.is_none() && state.shadow.wants(handle, route);
        let (length, since, request) = (self.length_of(&request), Instant::now(), Arc::new(request));
        Ok(Arrival { request, version, route, handle, since, wait_max_us, length, is_shadowed })
    }

    /// Chooses the version of a request that has none yet.
    fn chosen(
        &self,
        state: &FrontState,
        request: &mut Request,
        of_piece: Option<VersionName>,
    ) -> Result<Handle, Reasoned> {
        if !state.is_open {
            return Err(("closing", Refusal::Away("the node is closing".into())));
        }
        let chosen = match of_piece.or(request.version) {
            Some(name) => state.versions.named(name).map(|handle| (handle, true)),
            None => state.versions.choose_for(&request.wishes, route_of(request)),
        };
        let (handle, is_of_arm) = chosen.map_err(|refusal| ("version", refusal))?;
        request.arm = request.arm.take().filter(|_| is_of_arm);
        if !is_of_arm {
            self.measures.answered_without_arm();
        }
        Ok(handle)
    }

    /// Offers a request to the scheduler, or its first candidates as a piece.
    fn admit(
        &self,
        state: &mut FrontState,
        arrival: &Arrival,
        piece: Option<usize>,
    ) -> Result<AdmittedRequest, Reasoned> {
        let Arrival { request, version, route, handle, since, wait_max_us, length, is_shadowed } = arrival;
        let (now_us, candidates) = (self.now_us(), piece.unwrap_or(request.candidates));
        let offer = Offer {
            version: *handle,
            candidates,
            length: *length,
            deadline_us: now_us + wait_max_us,
            priority: request.wishes.priority,
            cohort: cohort_of(*route),
            worth: Worth {
                value: f64::from(request.wishes.value.unwrap_or(1.0).min(self.limits.value_max)),
                class: request.class(),
                hash: key_of_bytes(&request.id, WORTH_SALT),
                prescores: request.prescores.as_deref().unwrap_or_default(),
            },
        };
        let is_piece = piece.is_some();
        let admitted = match is_piece {
            true => state.scheduler.offer_piece(now_us, &offer),
            false => state.scheduler.offer(now_us, &offer),
        };
        let admitted = admitted.map_err(busy)?;
        state.sizes.admitted(candidates, *length);
        for ticket in admitted.shed {
            let text = "shed for a request of higher priority".into();
            state.refuse(ticket, "shed", Refusal::Busy { retry_ms: 1, text });
        }
        let scored = (admitted.candidates < candidates).then_some(admitted.candidates);
        let (sender, reply) = oneshot::channel();
        let waiting = WaitingRequest {
            request: request.clone(),
            number: version.number,
            since: *since,
            wait_max_us: *wait_max_us,
            is_shadowed: *is_shadowed,
            scores: vec![f32::NAN; candidates * self.inputs.labels.len()],
            cut: Cut { scored, length: admitted.length },
            found: None,
            is_piece,
            reply: sender,
        };
        state.waiting.insert(admitted.ticket, waiting);
        let wait_max = Duration::from_micros(*wait_max_us);
        Ok(AdmittedRequest { ticket: admitted.ticket, reply, wait_max, is_piece })
    }

    /// The length of a request's longest history, up to the model's.
    fn length_of(&self, request: &Request) -> usize {
        let lengths = self.layout.user.sequence.iter().map(|place| match &request.user[place.column] {
            crate::request::Values::Lists { keys, .. } => keys.len(),
            _ => 0,
        });
        lengths.max().unwrap_or(0).min(self.layout.user.length)
    }

    fn packed(&self, started: StartedPlan, scratch: &mut Scratch) -> Option<Work> {
        let packing_began = Instant::now();
        let StartedPlan { handle, number, tables, items, shape, parts, tickets, lane, plan, shadow_request } =
            started;
        let candidates = parts.iter().map(|part| part.range.len()).sum();
        let outcome =
            tables.pin(number).map_err(|error| Refusal::NotKept(error.to_string())).and_then(|pin| {
                let readings =
                    tables.readings(pin.at()).map_err(|error| Refusal::NotKept(error.to_string()))?;
                let readers: Vec<&dyn ReadRows> =
                    readings.iter().map(|reading| reading as &dyn ReadRows).collect();
                pack(&self.layout, &readers, &parts, shape, &self.pool, scratch)
                    .map_err(|error: PackError| Refusal::Broken(error.to_string()))
            });
        match outcome {
            Ok(packed) => {
                let (gathering, _tables) = (packing_began.elapsed(), tables);
                Some(Work {
                    handle,
                    number,
                    shape,
                    packed,
                    candidates,
                    lane,
                    plan,
                    parts: tickets,
                    begun: packing_began,
                    gathering,
                    shadow_request,
                    items,
                    _tables,
                })
            }
            Err(refusal) => {
                let mut state = self.lock();
                state.failed(shadow_request.is_some());
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

/// Assigns a request to shares.
fn route_of(request: &Request) -> u64 {
    request.wishes.route.unwrap_or_else(|| key_of_bytes(&request.id, ROUTE_SALT))
}

/// The cohort of a user: another one each hour, so that nobody is refused for long. All nodes have the same.
fn cohort_of(route: u64) -> u8 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let hour = (now.as_secs() / 3600).to_le_bytes();
    (key_of_bytes(&hour, route) % u64::from(COHORTS)) as u8
}

/// Converts a scheduler's refusal: the metric label, and the caller's text.
fn busy(refused: Refused) -> (&'static str, Refusal) {
    let text = refused.to_string();
    let retry_later = |text| Refusal::Busy { retry_ms: refused.retry_ms(), text };
    match refused.reason {
        Reason::Expired => ("expired", Refusal::Late(text)),
        Reason::Length => ("length", Refusal::Bad(text)),
        Reason::Lanes => ("lanes", Refusal::Away(text)),
        Reason::Requests => ("requests", retry_later(text)),
        Reason::Candidates => ("candidates", retry_later(text)),
        Reason::Backlog => ("backlog", retry_later(text)),
        Reason::Cohort => ("cohort", retry_later(text)),
        Reason::Price => ("price", retry_later(text)),
    }
}
