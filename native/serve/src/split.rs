//! Splitting: a request that would be late even on an idle node is scored in pieces, by this node and its peers.
//!
//! A piece is the user and some candidates of a decoded request, pinned to its version. A piece that is lost or refused
//! goes once elsewhere; if that fails too, the request is refused, and its other pieces are cancelled.

mod peers;
mod piece;
mod plan;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use peers::{BACKLOG_US, METHOD, PeerDoor, TOOK_US};
pub use piece::{FRAME_BYTES, PieceHead, decode, encode};

use crate::answer::{Answer, Cut, Refusal};
use crate::front::{Admission, AdmittedRequest, Arrival, Front};
use crate::request::Request;
use crate::versions::VersionName;
use peers::{Failure, Peer};

/// The most peers of a node; it keeps a connection to each.
pub const PEERS_MAX: usize = 16;
/// Among how many peers, in turn, the least busy ones are chosen. Otherwise all nodes would choose the same.
const CHOICES: usize = 4;
/// How long a peer rests that lost a piece otherwise than by being late.
const REST_US: u64 = 1_000_000;

/// Where the pieces of a request go.
pub struct SplitPlan {
    /// The number of candidates of the first piece.
    pub first: usize,
    rest: Vec<PieceJob>,
}

/// A piece and its place: a peer, or this node.
struct PieceJob {
    range: Range<usize>,
    sent: Option<SentWork>,
    is_again: bool,
}

/// The work of a piece at a peer, which counts until it is dropped.
struct SentWork {
    peer: Arc<Peer>,
    own_us: f64,
    /// The predicted time of its answer, from when it is sent.
    answer_us: f64,
}

impl SentWork {
    fn new(peer: Arc<Peer>, wait_us: f64, own_us: f64) -> Self {
        peer.note(|load| load.send(own_us));
        Self { peer, own_us, answer_us: wait_us + own_us }
    }
}

impl Drop for SentWork {
    fn drop(&mut self) {
        self.peer.note(|load| load.send(-self.own_us));
    }
}

/// The end of a piece.
struct PieceEnd {
    job: PieceJob,
    outcome: Result<Vec<f32>, Refusal>,
}

/// The outcomes of pieces that this node sends; `taken` counts those that others send to it.
const OUTCOMES: [&str; 6] = ["sent", "answered", "refused", "lost", "again", "taken"];

/// A peer's answer to a piece, as it is sent.
pub struct PieceAnswer {
    /// The logits, little-endian.
    pub scores: Bytes,
    /// The work that waits at this node, in microseconds.
    pub backlog_us: u64,
    /// How long the piece was here, in microseconds.
    pub took_us: u64,
}

/// Splits the requests of a node, and scores pieces of others.
pub struct Splitter {
    front: Arc<Front>,
    pieces_max: usize,
    fingerprint: u64,
    door: Arc<PeerDoor>,
    peers: Mutex<Vec<Arc<Peer>>>,
    turn: AtomicUsize,
    began: Instant,
    counts: [AtomicU64; OUTCOMES.len()],
}

impl Splitter {
    /// Creates a splitter without peers; `pieces_max` is the most pieces of a request.
    pub fn new(front: Arc<Front>, pieces_max: usize, door: PeerDoor) -> Self {
        Self {
            fingerprint: front.fingerprint(),
            front,
            pieces_max: pieces_max.max(1),
            door: Arc::new(door),
            peers: Mutex::default(),
            turn: AtomicUsize::new(0),
            began: Instant::now(),
            counts: Default::default(),
        }
    }

    /// Sets the peers, the first `PEERS_MAX` of these. Returns the futures that keep connections to new ones.
    pub fn follow(&self, addresses: &[SocketAddr]) -> Vec<impl Future<Output = ()> + Send + 'static> {
        let head = PieceHead {
            fingerprint: self.fingerprint,
            version: VersionName::default(),
            left_us: 0,
            route: 0,
            priority: 0,
        };
        let mut peers = self.peers();
        let mut keepers = Vec::new();
        let next = addresses.iter().take(PEERS_MAX).map(|address| {
            let known = peers.iter().find(|peer| peer.address == *address).cloned();
            known.unwrap_or_else(|| {
                let peer = Peer::new(*address);
                let hello = encode(&head, None, 0..0);
                keepers.push(Peer::keep(Arc::downgrade(&peer), self.door.clone(), hello));
                peer
            })
        });
        *peers = next.collect();
        keepers
    }

    /// Returns how many pieces were sent and what became of them, and how many of other nodes were taken.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        OUTCOMES.into_iter().zip(counts).collect()
    }

    /// Returns the number of peers with a connection, and of all.
    pub fn connected(&self) -> (usize, usize) {
        let peers = self.peers();
        (peers.iter().filter(|peer| peer.with_load(|_| ()).is_some()).count(), peers.len())
    }

    /// Answers a request, whole or in pieces.
    ///
    /// # Errors
    /// As those of `Front::score`.
    pub async fn score(self: &Arc<Self>, request: Request) -> Result<Answer, Refusal> {
        match self.front.admit_or_split(request, self)? {
            Admission::Whole(admitted) => self.front.outcome(admitted).await,
            Admission::Split(split) => self.score_pieces(*split).await,
        }
    }

    /// Scores a piece of another node; `arrived` is when its head came.
    ///
    /// # Errors
    /// If the bytes are not a piece, if this node does not have its version, or if the time is too short.
    pub async fn score_piece(&self, bytes: &[u8], arrived: Instant) -> Result<PieceAnswer, Refusal> {
        let (head, piece) = decode(bytes, self.front.inputs(), self.fingerprint)?;
        let mut scores = Vec::new();
        if let Some(mut piece) = piece {
            self.count("taken");
            let left_us = head.left_us.saturating_sub(arrived.elapsed().as_micros() as u64);
            if left_us == 0 {
                return Err(Refusal::Late("the deadline passed while the piece arrived".to_owned()));
            }
            piece.wishes.deadline_us = Some(left_us);
            let answer = self.front.score_piece(piece, head.version).await?;
            scores.extend(answer.scores.iter().flat_map(|score| score.to_le_bytes()));
        }
        let backlog_us = self.front.figures().backlog_us as u64;
        Ok(PieceAnswer { scores: scores.into(), backlog_us, took_us: arrived.elapsed().as_micros() as u64 })
    }

    /// Plans the pieces of a request; `None` if they would be late as well. `left_us` is the time until its margin
    /// and until its deadline, `backlog_us` the work that waits here.
    pub(crate) fn plan(
        &self,
        candidates: usize,
        left_us: (f64, f64),
        backlog_us: f64,
        version: VersionName,
        piece_us: impl Fn(usize) -> f64,
    ) -> Option<SplitPlan> {
        let known = self.least_busy(version);
        let mut waits_us = vec![backlog_us];
        waits_us.extend(known.iter().take(self.pieces_max - 1).map(|(wait_us, _)| wait_us));
        let pieces = plan::pieces(candidates, left_us, &waits_us, &piece_us)?;
        let jobs = (1..pieces).zip(known).map(|(piece, (wait_us, peer))| {
            let range = plan::range(candidates, pieces, piece);
            let sent = SentWork::new(peer, wait_us, piece_us(range.len()));
            PieceJob { range, sent: Some(sent), is_again: false }
        });
        Some(SplitPlan { rest: jobs.collect(), first: plan::range(candidates, pieces, 0).len() })
    }

    /// Returns some peers that can score a version, the least busy first, with the wait at each.
    fn least_busy(&self, version: VersionName) -> Vec<(f64, Arc<Peer>)> {
        let now_us = self.now_us();
        let peers = self.peers();
        let (all, turn) = (peers.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        let in_turn = (0..all).map(|at| &peers[(turn + at) % all]);
        let mut known: Vec<(f64, Arc<Peer>)> = in_turn
            .filter_map(|peer| Some((peer.with_load(|load| load.wait_us(now_us, version))??, peer.clone())))
            .take(CHOICES.max(self.pieces_max - 1))
            .collect();
        known.sort_by(|one, other| one.0.total_cmp(&other.0));
        known
    }

    async fn score_pieces(
        self: &Arc<Self>,
        (whole, first, plan): (Arrival, AdmittedRequest, SplitPlan),
    ) -> Result<Answer, Refusal> {
        let (whole, mut pieces) = (Arc::new(whole), JoinSet::new());
        let job = PieceJob { range: 0..plan.first, sent: None, is_again: false };
        let front = self.front.clone();
        pieces.spawn(async move {
            let outcome = front.outcome(first).await.map(|answer| answer.scores);
            PieceEnd { job, outcome }
        });
        for job in plan.rest {
            pieces.spawn(self.clone().attempt(whole.clone(), job));
        }
        let outcome = self.gathered(&whole, pieces).await;
        self.front.split_ended(&whole, outcome.as_deref().ok());
        let (version, cut, arm) = (whole.version.number, Cut::default(), whole.request.arm.clone());
        let filled = whole.request.left_out.is_some().then(|| whole.request.clone());
        let (found, computed, order) = (None, None, None);
        Ok(Answer { version, scores: outcome?, cut, found, computed, filled, order, arm })
    }

    /// Returns the scores of all pieces. At its end all pieces that are left are cancelled.
    async fn gathered(
        self: &Arc<Self>,
        whole: &Arc<Arrival>,
        mut pieces: JoinSet<PieceEnd>,
    ) -> Result<Vec<f32>, Refusal> {
        let labels = whole.request.inputs.labels.len();
        let mut scores = vec![f32::NAN; whole.request.candidates * labels];
        while let Some(end) = pieces.join_next().await {
            let PieceEnd { job, outcome } =
                end.map_err(|error| Refusal::Broken(format!("a piece of the request failed: {error}")))?;
            let refusal = match outcome {
                Ok(found) => {
                    scores[job.range.start * labels..job.range.end * labels].copy_from_slice(&found);
                    continue;
                }
                Err(refusal) => refusal,
            };
            let Some(job) = self.elsewhere(whole, job) else { return Err(refusal) };
            self.count("again");
            pieces.spawn(self.clone().attempt(whole.clone(), job));
        }
        Ok(scores)
    }

    /// Returns the piece for another place, where it is done soonest; `None` if it was tried twice or would be late.
    fn elsewhere(&self, whole: &Arrival, job: PieceJob) -> Option<PieceJob> {
        let PieceJob { range, sent, is_again } = job;
        let tried = sent.map(|sent| sent.peer.address);
        let (backlog_us, own_us) = self.front.piece_us(whole, range.len());
        let mut peers = self.least_busy(whole.version).into_iter();
        let peer = peers.find(|(_, peer)| Some(peer.address) != tried);
        // This node failed to score its own piece, if no peer did.
        let here_us = if tried.is_some() { backlog_us } else { f64::INFINITY };
        let there_us = peer.as_ref().map_or(f64::INFINITY, |(wait_us, _)| *wait_us);
        if is_again || here_us.min(there_us) + own_us > whole.left_us() as f64 {
            return None;
        }
        let peer = peer.filter(|_| there_us < here_us);
        let sent = peer.map(|(wait_us, peer)| SentWork::new(peer, wait_us, own_us));
        Some(PieceJob { range, sent, is_again: true })
    }

    async fn attempt(self: Arc<Self>, whole: Arc<Arrival>, job: PieceJob) -> PieceEnd {
        let outcome = match &job.sent {
            Some(sent) => self.ask(&whole, &job, sent).await,
            None => self.score_here(&whole, &job.range).await,
        };
        PieceEnd { job, outcome }
    }

    async fn score_here(&self, whole: &Arrival, range: &Range<usize>) -> Result<Vec<f32>, Refusal> {
        let body = self.encoded(whole, range, whole.left_us());
        let (head, piece) = decode(&body[FRAME_BYTES..], self.front.inputs(), self.fingerprint)?;
        let piece = piece.ok_or_else(|| Refusal::Broken("a piece without candidates".to_owned()))?;
        Ok(self.front.score_piece(piece, head.version).await?.scores)
    }

    /// Sends a piece to a peer and waits, but not so long that the piece could not go elsewhere any more.
    async fn ask(&self, whole: &Arrival, job: &PieceJob, sent: &SentWork) -> Result<Vec<f32>, Refusal> {
        let (began, left_us) = (Instant::now(), whole.left_us());
        let SentWork { peer, own_us, answer_us } = sent;
        let latest_us = left_us as f64 - own_us;
        let can_go_on = !job.is_again && latest_us > *answer_us;
        let wait_us = if can_go_on { latest_us as u64 } else { left_us };
        let margin_us = peer.with_load(|load| load.margin_us()).unwrap_or_default();
        let body = self.encoded(whole, &job.range, left_us.saturating_sub(margin_us as u64).max(1));
        self.count("sent");
        let labels = whole.request.inputs.labels.len();
        let answer = if body.len() > self.front.inputs().limits.message_bytes_max {
            Err(Failure::Busy)
        } else {
            let asked = peer.ask(&self.door, body, job.range.len() * labels);
            timeout(Duration::from_micros(wait_us), asked).await.unwrap_or(Err(Failure::Late))
        };
        let now_us = self.now_us();
        let waited_us = began.elapsed().as_micros() as f64;
        peer.note(|load| match &answer {
            Ok(answer) => load.answered(now_us, waited_us, answer.took_us, answer.backlog_us),
            Err(Failure::Busy) => load.busy(now_us, left_us as f64),
            Err(Failure::Lacks) => load.lacks(now_us, whole.version),
            // Pings tell a peer that hangs from one that is slow.
            Err(Failure::Late) => load.lost(now_us, wait_us),
            Err(Failure::Lost) => load.lost(now_us, REST_US),
        });
        let (outcome, refusal) = match answer {
            Ok(answer) => {
                self.count("answered");
                return Ok(answer.scores);
            }
            // The peer's deadline is that much earlier.
            Err(_) if whole.left_us() as f64 <= margin_us => {
                ("lost", Refusal::Late("the deadline passed at another node".into()))
            }
            Err(Failure::Late | Failure::Lost) => {
                ("lost", Refusal::Away("a piece of the request was lost at another node".into()))
            }
            Err(Failure::Busy | Failure::Lacks) => {
                let text = "a piece of the request was refused by another node".to_owned();
                ("refused", Refusal::Busy { retry_ms: 1, text })
            }
        };
        self.count(outcome);
        Err(refusal)
    }

    fn encoded(&self, whole: &Arrival, range: &Range<usize>, left_us: u64) -> Bytes {
        let (fingerprint, priority) = (self.fingerprint, whole.request.wishes.priority);
        let head = PieceHead { fingerprint, version: whole.version, left_us, route: whole.route, priority };
        encode(&head, Some(&whole.request), range.clone())
    }

    fn count(&self, outcome: &str) {
        let at = OUTCOMES.iter().position(|one| *one == outcome).expect("an outcome");
        self.counts[at].fetch_add(1, Ordering::Relaxed);
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
