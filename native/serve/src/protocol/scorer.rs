//! Scoring: the interface between the protocols and the node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::infer;
use super::input_names::Naming;
use crate::answer::{Answer, Refusal};
use crate::impression_log::Shown;
use crate::load::NodeLoad;
use crate::request::{Request, Wishes};
use crate::split::PieceAnswer;

/// Scores requests.
pub trait Scoring: Send + Sync + 'static {
    /// Returns the names of the model and its inputs. Called for every request, so it must be cheap.
    fn naming(&self) -> Arc<Naming>;

    /// Answers a request by its deadline, with scores or a refusal. The future is dropped if the caller goes
    /// away.
    fn score(&self, request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send;

    /// Returns the names of the model that finds items, if the node has one.
    fn retrieval(&self) -> Option<Arc<Naming>> {
        None
    }

    /// Answers a request for items by its deadline. The future is dropped if the caller goes away.
    fn retrieve(&self, _request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send {
        async { Err(no_retrieval()) }
    }

    /// Returns the names of requests whose candidates are retrieved, if the node retrieves.
    fn recommending(&self) -> Option<Arc<Naming>> {
        None
    }

    /// Retrieves candidates for a request and ranks them, by its deadline. The future is dropped if the caller goes away.
    fn recommend(&self, _request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send {
        async { Err(no_retrieval()) }
    }

    /// Returns the state of the model that finds items.
    fn retrieval_state(&self) -> State {
        State::default()
    }

    /// Scores a piece of a request of another node, whose head arrived then; see `split`.
    fn score_piece(
        &self,
        _bytes: Bytes,
        _arrived: Instant,
    ) -> impl Future<Output = Result<PieceAnswer, Refusal>> + Send {
        async { Err(no_pieces()) }
    }

    /// Notes that a request was read, so long after its head.
    fn read(&self, _lag: Duration) {}

    /// Notes that a request that was read has its answer.
    fn answered(&self) {}

    /// Whether requests are read so late that some may have to be refused before they are read.
    fn is_late(&self) -> bool {
        false
    }

    /// Refuses a request with such wishes before it is read, if the node cannot read all.
    ///
    /// # Errors
    /// If it is refused.
    fn admit_unread(&self, _wishes: &Wishes) -> Result<(), Refusal> {
        Ok(())
    }

    /// Returns the log of answered requests, if impressions are written.
    fn shown(&self) -> Option<&Shown> {
        None
    }

    /// Returns the node's state.
    fn state(&self) -> State;

    /// Returns how busy the node is; `None` if it does not say.
    fn load(&self) -> Option<NodeLoad> {
        None
    }

    /// Renders the metrics in the Prometheus text format.
    fn metrics(&self) -> String;

    /// Returns the observed sizes and the costs of buckets.
    fn sizes(&self) -> serde_json::Value;

    /// Returns how far the shadow version's scores are from the answers.
    fn shadow(&self) -> serde_json::Value;
}

/// The refusal of a piece by a node that splits no requests.
pub fn no_pieces() -> Refusal {
    Refusal::Unknown("this node takes no pieces of requests; help: set front.split_pieces_max".to_owned())
}

/// The refusal of a request for items by a node that finds none.
pub fn no_retrieval() -> Refusal {
    Refusal::Unknown("this node finds no items; help: declare App(retrieval=...)".to_owned())
}

/// The kind of answer that a request asks for, with the names of its inputs.
pub enum Asked {
    /// Scores of its candidates.
    Scores(Arc<Naming>),
    /// Items.
    Items(Arc<Naming>),
    /// Items that are then ranked.
    Ranked(Arc<Naming>),
}

impl Asked {
    /// Returns what a model of the Open Inference Protocol is asked for.
    ///
    /// # Errors
    /// If the node has no such model.
    pub fn of(scoring: &impl Scoring, model: &str) -> Result<Self, Refusal> {
        let has_name = |naming: &Arc<Naming>| naming.model() == model;
        let items = || scoring.retrieval().filter(has_name).map(Self::Items);
        let ranked = || scoring.recommending().filter(has_name).map(Self::Ranked);
        let scores = scoring.naming();
        if has_name(&scores) {
            return Ok(Self::Scores(scores));
        }
        items().or_else(ranked).ok_or_else(|| unknown_model(scoring, model))
    }

    /// The names of its inputs.
    pub fn naming(&self) -> &Arc<Naming> {
        let (Self::Scores(naming) | Self::Items(naming) | Self::Ranked(naming)) = self;
        naming
    }

    /// Returns the log that its answer goes to, if impressions are written.
    pub fn shown<'a>(&self, scoring: &'a impl Scoring) -> Option<&'a Shown> {
        scoring.shown().filter(|_| !matches!(self, Self::Items(_)))
    }

    /// Has a request answered.
    pub async fn answer(&self, scoring: &impl Scoring, request: Request) -> Result<Answer, Refusal> {
        match self {
            Self::Scores(_) => scoring.score(request).await,
            Self::Items(_) => scoring.retrieve(request).await,
            Self::Ranked(_) => scoring.recommend(request).await,
        }
    }
}

/// Returns the models of a node with their states; the first is the one that scores candidates. Requests for ranked items
/// count in the statistics of the other two.
pub fn models<S: Scoring>(scoring: &S) -> Vec<(Arc<Naming>, State)> {
    let retrieval = scoring.retrieval().map(|naming| (naming, scoring.retrieval_state()));
    let ranked = |naming| (naming, State { statistics: Vec::new(), ..scoring.state() });
    let others = retrieval.into_iter().chain(scoring.recommending().map(ranked));
    [(scoring.naming(), scoring.state())].into_iter().chain(others).collect()
}

/// Returns the names and the state of the model of a name.
///
/// # Errors
/// If the node has no such model.
pub fn served<S: Scoring>(scoring: &S, model: &str) -> Result<(Arc<Naming>, State), Refusal> {
    let named = models(scoring).into_iter().find(|(naming, _)| naming.model() == model);
    named.ok_or_else(|| unknown_model(scoring, model))
}

fn unknown_model<S: Scoring>(scoring: &S, model: &str) -> Refusal {
    let namings = [Some(scoring.naming()), scoring.retrieval(), scoring.recommending()];
    let names: Vec<&str> = namings.iter().flatten().map(|naming| naming.model()).collect();
    infer::unknown_model(model, &names)
}

/// The state of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Whether the node is alive.
    pub is_live: bool,
    /// Whether it answers requests.
    pub is_ready: bool,
    /// Why the active version is older than it should be, if it is.
    pub stale: Option<String>,
    /// The version that answers requests without a pin.
    pub active: Option<u64>,
    /// Versions that can be pinned, including the active one.
    pub kept: Vec<u64>,
    /// Statistics of the versions.
    pub statistics: Vec<Statistics>,
}

impl State {
    /// Whether a version can be used; without a version, whether there is an active one.
    pub fn has(&self, version: Option<u64>) -> bool {
        match version {
            None => self.active.is_some(),
            Some(version) => self.kept.contains(&version),
        }
    }
}

/// Statistics of one version since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The version.
    pub version: u64,
    /// The time of its last answer, in milliseconds since 1970.
    pub last_ms: u64,
    /// Scored candidates.
    pub candidates: u64,
    /// Executed TensorBatches.
    pub batches: u64,
    /// Answered requests, from arrival to reply.
    pub answered: Span,
    /// Refused requests, from arrival to reply.
    pub refused: Span,
    /// Requests waiting for a lane.
    pub waiting: Span,
    /// TensorBatches being gathered.
    pub gathering: Span,
    /// TensorBatches being executed.
    pub executing: Span,
    /// TensorBatches being handed out.
    pub replying: Span,
}

/// A count with a total duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The count.
    pub count: u64,
    /// The total in nanoseconds.
    pub ns: u64,
}
