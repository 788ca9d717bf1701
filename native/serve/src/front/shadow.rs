//! Shadow: a version that scores requests that another version has answered, for comparison. Callers are not
//! affected.
//!
//! Shadow requests wait in a bounded queue apart from other requests; beyond the bound they are dropped. A
//! lane takes them one at a time, when it has nothing else to do.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::inputs::Label;
use crate::request::Request;
use crate::versions::Handle;

/// The number of top candidates whose order is compared.
const TOP: usize = 10;

/// An answered request that the shadow version scores.
#[derive(Debug)]
pub struct ShadowRequest {
    /// The request.
    pub request: Arc<Request>,
    /// The answer: the logit of every candidate and label.
    pub answered: Vec<f32>,
    /// The shadow's scores of the first candidates.
    pub scores: Vec<f32>,
    /// The shadow version.
    pub handle: Handle,
}

/// The difference between the shadow's scores and the answers, for one label.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Compared candidates.
    pub candidates: u64,
    /// The sum of absolute differences of probabilities or numbers.
    pub sum: f64,
    /// The largest.
    pub largest: f64,
    /// Requests whose top candidates differ, or are in another order.
    pub reordered: u64,
}

/// Outcomes of shadow requests since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Answered requests in the shadow's share.
    pub asked: u64,
    /// Requests scored and compared.
    pub scored: u64,
    /// Requests dropped because of the queue's bound, a drain or the removal of the version.
    pub dropped: u64,
    /// Requests that could not be scored.
    pub failed: u64,
}

/// The shadow version and its statistics.
#[derive(Debug)]
pub struct Shadow {
    /// The version, its number, and its share of requests.
    version: Option<(Handle, u64, f64)>,
    requests_max: usize,
    waiting: VecDeque<ShadowRequest>,
    outcomes: Outcomes,
    labels: Vec<Label>,
    /// Differences by label of this version, and the number of compared requests.
    differences: Vec<Difference>,
    compared: u64,
}

impl Shadow {
    /// Starts without a shadow version.
    pub fn new(labels: Vec<Label>, requests_max: usize) -> Self {
        Self {
            version: None,
            requests_max,
            waiting: VecDeque::new(),
            outcomes: Outcomes::default(),
            differences: vec![Difference::default(); labels.len()],
            labels,
            compared: 0,
        }
    }

    /// Sets the shadow version and its share of requests without a pin; `None` disables shadowing. The
    /// statistics are kept if the number is the same.
    pub fn set(&mut self, version: Option<(Handle, u64, f64)>) {
        if let Some((_, number, _)) = version
            && self.version.is_none_or(|(_, previous, _)| previous != number)
        {
            self.differences.fill(Difference::default());
            self.compared = 0;
        }
        if version.map(|(handle, ..)| handle) != self.version.map(|(handle, ..)| handle) {
            self.clear();
        }
        self.version = version;
    }

    /// Handles the removal of a version.
    pub fn remove(&mut self, handle: Handle) {
        if self.version.is_some_and(|(own, ..)| own == handle) {
            self.set(None);
        }
    }

    /// Whether a request is in the shadow's share, by its route; never if the shadow version itself answers
    /// it.
    pub fn wants(&self, answering: Handle, route: u64) -> bool {
        self.version.is_some_and(|(handle, _, share)| handle != answering && is_below(route, share))
    }

    /// Queues an answered request. Returns false if it was dropped.
    pub fn put(&mut self, request: Arc<Request>, answered: Vec<f32>) -> bool {
        let Some((handle, ..)) = self.version else { return false };
        self.outcomes.asked += 1;
        let has_room = self.waiting.len() < self.requests_max;
        if has_room {
            self.waiting.push_back(ShadowRequest { request, answered, scores: Vec::new(), handle });
        } else {
            self.outcomes.dropped += 1;
        }
        has_room
    }

    /// Takes the next shadow request.
    pub fn take(&mut self) -> Option<ShadowRequest> {
        self.waiting.pop_front()
    }

    /// Puts back a request that cannot be scored yet; it is next again.
    pub fn wait(&mut self, shadow_request: ShadowRequest) {
        self.waiting.push_front(shadow_request);
    }

    /// Takes the scores of a part of a request: it is next again, or is compared if complete.
    pub fn give(&mut self, shadow_request: ShadowRequest) {
        if self.version.is_none_or(|(handle, ..)| handle != shadow_request.handle) {
            self.outcomes.dropped += 1;
        } else if shadow_request.scores.len() < shadow_request.answered.len() {
            self.wait(shadow_request);
        } else {
            self.outcomes.scored += 1;
            self.compared += 1;
            self.compare(&shadow_request);
        }
    }

    /// Counts a request that could not be scored.
    pub fn fail(&mut self) {
        self.outcomes.failed += 1;
    }

    /// Drops all waiting requests.
    pub fn clear(&mut self) {
        self.outcomes.dropped += self.waiting.len() as u64;
        self.waiting.clear();
    }

    /// The labels with their differences.
    fn differences(&self) -> impl Iterator<Item = (&str, &Difference)> {
        self.labels.iter().map(|label| label.name.as_str()).zip(&self.differences)
    }

    /// Returns the statistics as JSON.
    pub fn page(&self) -> Value {
        let outputs = self.differences().map(|(label, difference)| {
            let mean = difference.sum / difference.candidates.max(1) as f64;
            let values = json!({
                "candidates": difference.candidates, "mean_difference": mean, "max_difference": difference.largest,
                "reordered": difference.reordered,
            });
            (label.to_owned(), values)
        });
        let outcomes = self.outcomes;
        json!({
            "version": self.version.map(|(_, number, _)| number),
            "share": self.version.map(|(.., share)| share),
            "waiting": self.waiting.len(),
            "asked": outcomes.asked, "scored": outcomes.scored, "dropped": outcomes.dropped, "failed": outcomes.failed,
            "compared": self.compared,
            "top": TOP,
            "outputs": outputs.collect::<serde_json::Map<String, Value>>(),
        })
    }

    fn compare(&mut self, shadow_request: &ShadowRequest) {
        let labels = self.differences.len();
        for (label, (described, difference)) in self.labels.iter().zip(&mut self.differences).enumerate() {
            let label_scores =
                |scores: &[f32]| -> Vec<f32> { scores.iter().skip(label).step_by(labels).copied().collect() };
            let (mut answered, mut shadowed) =
                (label_scores(&shadow_request.answered), label_scores(&shadow_request.scores));
            // Candidates left out by a cut answer have no score.
            let scored = answered.iter().position(|logit| logit.is_nan()).unwrap_or(answered.len());
            answered.truncate(scored);
            shadowed.truncate(scored);
            for (answered_one, shadow_one) in answered.iter().zip(&shadowed) {
                let [answered_score, shadow_score] =
                    [*answered_one, *shadow_one].map(|one| f64::from(described.score(one)));
                let distance = (answered_score - shadow_score).abs();
                difference.sum += distance;
                difference.largest = difference.largest.max(distance);
            }
            difference.candidates += scored as u64;
            difference.reordered += u64::from(best(&answered) != best(&shadowed));
        }
    }
}

/// Whether a route is in a share; 1.0 is everything.
fn is_below(route: u64, share: f64) -> bool {
    share >= 1.0 || route < (share.clamp(0.0, 1.0) * 2f64.powi(64)) as u64
}

/// The indices of the best candidates, best first; ties in original order.
fn best(scores: &[f32]) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..scores.len()).collect();
    indices.sort_by(|first, second| scores[*second].total_cmp(&scores[*first]));
    indices.truncate(TOP);
    indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Inputs, Limits};

    fn request(candidates: usize) -> Arc<Request> {
        let limits = Limits { candidates_max: 64, values_max: 64, message_bytes_max: 1 << 10 };
        let labels = vec![Label::from("click"), Label::from("buy")];
        let inputs = Arc::new(Inputs {
            user: Vec::new(),
            item: Vec::new(),
            labels,
            segments: Vec::new(),
            class_segment: String::new(),
            items: None,
            library: None,
            limits,
        });
        Arc::new(Request::new(inputs, candidates, Vec::new(), Vec::new()))
    }

    fn shadow(requests_max: usize) -> Shadow {
        Shadow::new(vec![Label::from("click"), Label::from("buy")], requests_max)
    }

    #[test]
    fn a_share_is_of_routes_and_never_of_what_the_version_itself_answers() {
        let mut shadow = shadow(1);
        assert!(!shadow.wants(1, 0));
        shadow.set(Some((7, 70, 0.25)));
        assert!(shadow.wants(1, u64::MAX / 8) && !shadow.wants(1, u64::MAX / 2) && !shadow.wants(7, 0));
        shadow.set(Some((7, 70, 1.0)));
        assert!(shadow.wants(1, u64::MAX));
        shadow.remove(7);
        assert!(!shadow.wants(1, 0));
    }

    #[test]
    fn differences_are_of_probabilities_by_label_and_of_the_order() {
        let mut shadow = shadow(4);
        shadow.set(Some((7, 70, 1.0)));
        assert!(shadow.put(request(2), vec![0.0, 1.0, 2.0, 1.0]));
        let mut shadow_request = shadow.take().unwrap();
        shadow_request.scores.extend([0.0, 1.0]);
        shadow.give(shadow_request);
        assert_eq!(shadow.outcomes.scored, 0, "its second candidate is next");
        let mut shadow_request = shadow.take().unwrap();
        shadow_request.scores.extend([-2.0, 1.0]);
        shadow.give(shadow_request);
        let page = shadow.page();
        let [one, other] = [2.0, -2.0].map(|logit| f64::from(Label::from("click").score(logit)));
        let moved = one - other;
        let click = &page["outputs"]["click"];
        assert!((click["max_difference"].as_f64().unwrap() - moved).abs() < 1e-6, "{page}");
        assert!((click["mean_difference"].as_f64().unwrap() - moved / 2.0).abs() < 1e-6, "{page}");
        assert_eq!((&click["reordered"], &click["candidates"]), (&json!(1), &json!(2)));
        assert_eq!(page["outputs"]["buy"]["reordered"], json!(0), "equals keep their order");
        assert_eq!((&page["asked"], &page["scored"], &page["compared"]), (&json!(1), &json!(1), &json!(1)));
        shadow.set(Some((8, 70, 0.5)));
        assert_eq!(shadow.page()["compared"], json!(1), "the same version in other tables");
        shadow.set(Some((9, 71, 0.5)));
        assert_eq!(shadow.page()["compared"], json!(0), "another version");
    }

    #[test]
    fn what_was_not_scored_for_the_caller_is_not_compared() {
        let mut shadow = shadow(4);
        shadow.set(Some((7, 70, 1.0)));
        shadow.put(request(2), vec![0.0, 1.0, f32::NAN, f32::NAN]);
        let mut shadow_request = shadow.take().unwrap();
        shadow_request.scores.extend([0.0, 1.0, 9.0, 9.0]);
        shadow.give(shadow_request);
        assert!(
            shadow
                .differences()
                .all(|(_, difference)| difference.candidates == 1 && difference.largest < 1e-12)
        );
    }

    #[test]
    fn what_there_is_no_room_for_or_whose_version_went_is_dropped_and_counted() {
        let mut shadow = shadow(1);
        shadow.set(Some((7, 70, 1.0)));
        assert!(shadow.put(request(1), vec![0.0, 0.0]));
        assert!(!shadow.put(request(1), vec![0.0, 0.0]));
        assert_eq!(shadow.outcomes, Outcomes { asked: 2, dropped: 1, ..Outcomes::default() });
        let mut shadow_request = shadow.take().unwrap();
        assert!(shadow.put(request(1), vec![0.0, 0.0]));
        shadow.set(None);
        assert!(shadow.take().is_none());
        shadow_request.scores.extend([0.0, 0.0]);
        shadow.give(shadow_request);
        assert_eq!(shadow.outcomes, Outcomes { asked: 3, dropped: 3, ..Outcomes::default() });
    }
}
