//! A fake model: its logits are derived from the request, so that a test can recognise them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use streamlearn_serve::answer::{Answer, Cut, Refusal};
use streamlearn_serve::load::NodeLoad;
use streamlearn_serve::protocol::{Naming, Scoring, Span, State, Statistics};
use streamlearn_serve::request::{Request, Values, Wishes};
use tokio::sync::Semaphore;

/// A model that answers at once, or as configured.
pub struct Fake {
    pub naming: Arc<Naming>,
    pub state: Mutex<State>,
    /// Returned instead of an answer.
    pub refusal: Mutex<Option<Refusal>>,
    /// The last request.
    pub last: Mutex<Option<Request>>,
    /// Each request needs a permit.
    pub gate: Semaphore,
    pub began: AtomicU64,
    /// How many candidates it scores, if not all.
    pub scored: Mutex<Option<usize>>,
    pub load: Mutex<Option<NodeLoad>>,
    /// Whether it reads late: then it refuses requests of a priority above 1, and those worth less than 1, unread.
    pub is_late: AtomicBool,
}

impl Fake {
    pub fn new(naming: Naming) -> Self {
        let statistics = Statistics {
            version: 18,
            candidates: 72,
            batches: 2,
            answered: Span { count: 2, ns: 5000 },
            ..Statistics::default()
        };
        let state = State {
            is_live: true,
            is_ready: true,
            stale: None,
            active: Some(18),
            kept: vec![17, 18],
            statistics: vec![statistics],
        };
        Self {
            naming: Arc::new(naming),
            state: Mutex::new(state),
            refusal: Mutex::default(),
            last: Mutex::default(),
            gate: Semaphore::new(1 << 20),
            began: AtomicU64::new(0),
            scored: Mutex::default(),
            load: Mutex::default(),
            is_late: AtomicBool::new(false),
        }
    }
}

/// The logit of a candidate: derived from its first single-valued slot, plus one for each label.
pub fn logit(request: &Request, candidate: usize, label: usize) -> f32 {
    let first = request.item.iter().find_map(|values| match values {
        Values::Keys(keys) => Some(keys[candidate]),
        _ => None,
    });
    (first.unwrap_or(0) % 1000) as f32 / 250.0 - 2.0 + label as f32
}

impl Scoring for Fake {
    fn naming(&self) -> Arc<Naming> {
        self.naming.clone()
    }

    async fn score(&self, request: Request) -> Result<Answer, Refusal> {
        self.began.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await.map_err(|error| Refusal::Broken(error.to_string()))?;
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let kept = self.state.lock().unwrap().kept.clone();
        let version = request.wishes.pin.unwrap_or(18);
        if !kept.contains(&version) {
            return Err(Refusal::NotKept(format!("this node does not keep version {version}")));
        }
        let labels = request.inputs.labels.len();
        let labels_of = |candidate| (0..labels).map(move |label| (candidate, label));
        let scored = *self.scored.lock().unwrap();
        let is_scored = |candidate| scored.is_none_or(|scored| candidate < scored);
        let scores = (0..request.candidates)
            .flat_map(labels_of)
            .map(
                |(candidate, label)| {
                    if is_scored(candidate) { logit(&request, candidate, label) } else { f32::NAN }
                },
            )
            .collect();
        *self.last.lock().unwrap() = Some(request);
        Ok(Answer {
            version,
            scores,
            cut: Cut { scored, length: None },
            found: None,
            computed: None,
            filled: None,
            order: None,
            arm: None,
        })
    }

    fn is_late(&self) -> bool {
        self.is_late.load(Ordering::SeqCst)
    }

    fn admit_unread(&self, wishes: &Wishes) -> Result<(), Refusal> {
        if wishes.priority > 1 || wishes.value.is_some_and(|value| value < 1.0) {
            return Err(Refusal::Busy { retry_ms: 100, text: "unread".to_owned() });
        }
        Ok(())
    }

    fn state(&self) -> State {
        self.state.lock().unwrap().clone()
    }

    fn load(&self) -> Option<NodeLoad> {
        *self.load.lock().unwrap()
    }

    fn sizes(&self) -> serde_json::Value {
        serde_json::json!({ "lengths": [1] })
    }

    fn shadow(&self) -> serde_json::Value {
        serde_json::json!({ "version": null })
    }

    fn metrics(&self) -> String {
        format!("streamlearn_serving_requests_total {}\n", self.began.load(Ordering::SeqCst))
    }
}
