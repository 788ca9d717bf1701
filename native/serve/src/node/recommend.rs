//! Requests that one version answers in several steps: what they left out is taken from its library, and candidates that
//! they do not name are retrieved by its towers. Versions are never mixed.

use std::sync::Arc;
use std::time::Instant;

use super::{Node, Retrieval};
use crate::answer::{Answer, Cut, Refusal};
use crate::features::{Computed, Outcome};
use crate::front::Front;
use crate::inputs::{Input, Inputs};
use crate::list_source::ListSource;
use crate::protocol::no_retrieval;
use crate::request::{ItemWishes, LeftOut, RankWishes, Request, Values};
use crate::versions::item_features::ItemFeatures;
use crate::versions::item_index::FoundItems;

/// How often a request without a pin begins again, because its version was removed between its steps.
const ATTEMPTS: usize = 3;

/// The time of all steps of a request together.
#[derive(Clone, Copy)]
struct Deadline {
    began: Instant,
    wait_us: u64,
}

impl Deadline {
    fn of(front: &Front, request: &Request) -> Self {
        Self { began: Instant::now(), wait_us: front.wait_us(&request.wishes) }
    }

    /// Leaves the rest of the time to the next step.
    fn apply(self, request: &mut Request) -> Result<(), Refusal> {
        match self.wait_us.saturating_sub(self.began.elapsed().as_micros() as u64) {
            0 => Err(Refusal::Late("the deadline passed before the request could be scored".to_owned())),
            left_us => {
                request.wishes.deadline_us = Some(left_us);
                Ok(())
            }
        }
    }
}

/// Whether a request begins again: its version was removed after it was chosen.
fn is_removed(outcome: &Result<Answer, Refusal>, request: &Request, attempt: usize) -> bool {
    matches!(outcome, Err(Refusal::NotKept(_))) && request.wishes.pin.is_none() && attempt < ATTEMPTS
}

impl Node {
    /// Answers a request that left columns of candidates out.
    pub(super) async fn filled_and_scored(&self, request: Request) -> Result<Answer, Refusal> {
        let deadline = Deadline::of(&self.front, &request);
        for attempt in 1.. {
            let mut filled = request.clone();
            let features = self.front.choose(&mut filled)?;
            self.fill(&mut filled, features.as_deref())?;
            deadline.apply(&mut filled)?;
            let outcome = self.computed_and_scored(filled).await;
            if !is_removed(&outcome, &request, attempt) {
                return outcome;
            }
        }
        unreachable!("the attempts are bounded")
    }

    /// Retrieves candidates for a user and ranks them.
    pub(super) async fn retrieved_and_ranked(&self, mut request: Request) -> Result<Answer, Refusal> {
        let retrieval = self.retrieval.get().ok_or_else(no_retrieval)?;
        let wishes = request.items.take().ok_or_else(no_retrieval)?;
        let deadline = Deadline::of(&self.front, &request);
        for attempt in 1.. {
            let outcome = self.ranked(retrieval, &request, &wishes, deadline).await;
            if !is_removed(&outcome, &request, attempt) {
                return outcome;
            }
        }
        unreachable!("the attempts are bounded")
    }

    async fn ranked(
        &self,
        retrieval: &Retrieval,
        asked: &Request,
        wishes: &ItemWishes,
        deadline: Deadline,
    ) -> Result<Answer, Refusal> {
        let rank = wishes.rank.ok_or_else(no_retrieval)?;
        let inputs = self.naming.inputs().clone();
        let mut user = Request { inputs, candidates: 0, shown: None, ..asked.clone() };
        let features = self.front.choose(&mut user)?;
        deadline.apply(&mut user)?;
        let of_user = self.compute_for(&mut user, None).await?;
        deadline.apply(&mut user)?;
        let lists = self.lists.get().map(Arc::as_ref);
        let found = retrieval.candidates(&user, wishes, rank, lists).await?;
        if found.keys.is_empty() {
            let version = user.version.unwrap_or_default().number;
            let (found, order) = (Some(Box::new(found)), Some(Vec::new()));
            let (scores, cut, arm) = (Vec::new(), Cut::default(), user.arm);
            return Ok(Answer { version, scores, cut, found, computed: None, filled: None, order, arm });
        }
        let mut request = with_candidates(user, &found.keys)?;
        self.fill(&mut request, features.as_deref())?;
        let of_items = self.compute_for(&mut request, of_user.as_ref().map(|user| user.at_ms)).await?;
        deadline.apply(&mut request)?;
        let mut answer = self.scored(request).await?;
        let labels = self.naming.inputs().labels.len();
        answer.order = Some(best(&answer, labels, rank.by, wishes.k));
        answer.found = Some(Box::new(found));
        answer.computed = together(of_user, of_items).map(Box::new);
        Ok(answer)
    }

    /// Takes what a request left out from the library of its version.
    fn fill(&self, request: &mut Request, features: Option<&ItemFeatures>) -> Result<(), Refusal> {
        let version = request.version.unwrap_or_default().number;
        let none = || Refusal::Broken(format!("version {version} has no library of items"));
        features.ok_or_else(none)?.fill(request, version)?;
        if let Some(left_out) = &request.left_out {
            let unknown = left_out.unknown();
            self.front.measures().filled(left_out.known.len() - unknown, unknown);
        }
        Ok(())
    }

    /// Computes the columns that a request lacks, if it lacks any.
    async fn compute_for(
        &self,
        request: &mut Request,
        at_ms: Option<i64>,
    ) -> Result<Option<Computed>, Refusal> {
        match self.features.get().filter(|_| !request.lacks.is_empty()) {
            None => Ok(None),
            Some(reader) => reader.fill(request, at_ms).await,
        }
    }
}

impl Retrieval {
    /// Answers a request for items: from the user's list if it may be answered, otherwise by a search.
    pub(super) async fn retrieved(
        &self,
        mut request: Request,
        lists: Option<&ListSource>,
    ) -> Result<Answer, Refusal> {
        let began = Instant::now();
        if let Some(lists) = lists {
            if let Some(answer) = lists.answer(&self.front, &request).await {
                return Ok(answer);
            }
            request.wishes.spend(began.elapsed());
        }
        self.front.score(request).await
    }

    /// Returns the candidates of a user, whose version is chosen and whose columns are those of the model that ranks. They
    /// are of the library of that version, and none is of `exclude`: those of the user's list if it may be answered,
    /// otherwise what a search by the towers finds.
    async fn candidates(
        &self,
        user: &Request,
        wishes: &ItemWishes,
        rank: RankWishes,
        lists: Option<&ListSource>,
    ) -> Result<FoundItems, Refusal> {
        let (_, places) = self.ranking.as_ref().ok_or_else(no_retrieval)?;
        let request = Request {
            inputs: self.front.inputs().clone(),
            candidates: 1,
            user: places.iter().map(|&place| user.user[place].clone()).collect(),
            lacks: Vec::new(),
            segments: None,
            items: Some(Box::new(ItemWishes { k: rank.candidates, rank: None, ..wishes.clone() })),
            ..user.clone()
        };
        let answer = self.retrieved(request, lists).await?;
        let found = answer
            .found
            .ok_or_else(|| Refusal::Broken(format!("version {} returned no items", answer.version)))?;
        Ok(*found)
    }
}

/// Gives a user's request candidates, which lack all but their key.
fn with_candidates(user: Request, keys: &[u64]) -> Result<Request, Refusal> {
    let inputs: Arc<Inputs> = user.inputs.clone();
    let library = inputs.library.as_ref().ok_or_else(no_retrieval)?;
    let blank = |(at, input): (usize, &Input)| match at == library.id {
        true => Ok(Values::Keys(keys.to_vec())),
        false => input.blank(keys.len(), inputs.limits.values_max).map_err(|text| {
            Refusal::Bad(format!("{:?}: {text}; help: ask for fewer candidates", input.name))
        }),
    };
    let computed = inputs.item.iter().enumerate().filter(|(_, input)| input.is_computed);
    let columns = library.columns.iter().map(|&column| (column, None)).collect();
    Ok(Request {
        candidates: keys.len(),
        item: inputs.item.iter().enumerate().map(blank).collect::<Result<_, _>>()?,
        lacks: computed.map(|(at, _)| inputs.user.len() + at).collect(),
        left_out: Some(Box::new(LeftOut { columns, known: Vec::new() })),
        ..user
    })
}

/// The `k` candidates with the highest predictions of a label, best first; of equal ones, the first retrieved.
fn best(answer: &Answer, labels: usize, by: usize, k: usize) -> Vec<u32> {
    let predicted = |at: u32| match answer.scores[at as usize * labels + by] {
        score if score.is_nan() => f32::NEG_INFINITY,
        score => score,
    };
    let scored = answer.cut.scored.unwrap_or(answer.scores.len() / labels);
    let mut order: Vec<u32> = (0..scored as u32).collect();
    order.sort_by(|&one, &other| predicted(other).total_cmp(&predicted(one)));
    order.truncate(k);
    order
}

/// What was computed for a user and then for its candidates.
fn together(user: Option<Computed>, items: Option<Computed>) -> Option<Computed> {
    match (user, items) {
        (Some(user), Some(items)) => {
            let columns = user.columns.into_iter().chain(items.columns).collect();
            let outcome = match items.outcome {
                Outcome::Unavailable => Outcome::Unavailable,
                _ => user.outcome,
            };
            Some(Computed { outcome, item_positions: items.item_positions, columns, ..user })
        }
        (user, items) => user.or(items),
    }
}
