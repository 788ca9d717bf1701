//! Scoring: what stands behind the protocols. They know nothing else of the node.

use std::sync::Arc;

use super::input_names::Naming;
use crate::answer::{Answer, Refusal};
use crate::impression_log::Shown;
use crate::request::Request;

/// Whoever answers requests.
pub trait Scoring: Send + Sync + 'static {
    /// What the model and its inputs are called. Asked for with every request, so it must be cheap.
    fn naming(&self) -> Arc<Naming>;

    /// Answer a request by its deadline, with scores or a refusal. It is dropped when the caller goes away.
    fn score(&self, request: Request) -> impl Future<Output = Result<Answer, Refusal>> + Send;

    /// Where answered requests are noted whose impressions are written back, if any are.
    fn shown(&self) -> Option<&Shown> {
        None
    }

    /// How the node stands.
    fn state(&self) -> State;

    /// Its metrics as Prometheus reads them.
    fn metrics(&self) -> String;

    /// What sizes came, and what executions of each bucket cost.
    fn sizes(&self) -> serde_json::Value;

    /// How far the version that shadows is from what was answered.
    fn shadow(&self) -> serde_json::Value;
}

/// How a node stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Whether it works at all.
    pub is_live: bool,
    /// Whether it answers requests.
    pub is_ready: bool,
    /// Why what it answers with is older than it should be, if it is.
    pub stale: Option<String>,
    /// The version that answers requests that pin none.
    pub active: Option<u64>,
    /// Versions that can be pinned, the active one among them.
    pub kept: Vec<u64>,
    /// Figures of the versions it has figures of.
    pub statistics: Vec<Statistics>,
}

impl State {
    /// Whether a version can be asked for; any, if none is named.
    pub fn has(&self, version: Option<u64>) -> bool {
        match version {
            None => self.active.is_some(),
            Some(version) => self.kept.contains(&version),
        }
    }
}

/// Figures of one version since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The version.
    pub version: u64,
    /// When it last answered, in milliseconds since 1970.
    pub last_ms: u64,
    /// Candidates it scored.
    pub candidates: u64,
    /// TensorBatches that took.
    pub batches: u64,
    /// Requests that were answered, from arrival to reply.
    pub answered: Span,
    /// Requests that were refused, from arrival to reply.
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

/// How often something was done and how long it took together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// How often.
    pub count: u64,
    /// How long.
    pub ns: u64,
}
