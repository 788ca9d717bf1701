//! Shadow: a version that scores what another has answered, so that both can be compared. No caller hears of it.
//!
//! What is to be scored waits here, apart from requests, in order and at most so many; beyond them it is dropped. A lane
//! takes it alone, when it has nothing else to do.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::request::Request;
use crate::versions::Handle;

/// Places at the top whose order is compared.
const TOP: usize = 10;

/// An answered request that is to be scored again.
#[derive(Debug)]
pub struct Echo {
    /// The request.
    pub request: Arc<Request>,
    /// What was answered: the logit of every candidate and label.
    pub answered: Vec<f32>,
    /// What the shadow made of its first candidates.
    pub scores: Vec<f32>,
    /// The version that is to score it.
    pub handle: Handle,
}

/// How far the shadow is from what was answered, for one label.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Candidates that were compared.
    pub candidates: u64,
    /// Of probabilities, absolute, all together.
    pub sum: f64,
    /// The largest.
    pub largest: f64,
    /// Requests whose first candidates, best first, are others or in another order.
    pub reordered: u64,
}

/// What became of shadow work, since the node started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Answered requests of its share.
    pub asked: u64,
    /// Those that were scored and compared.
    pub scored: u64,
    /// Those that there was no room or no time for, or whose version went.
    pub dropped: u64,
    /// Those that could not be scored.
    pub failed: u64,
}

/// The version that shadows, and what is known of it.
#[derive(Debug)]
pub struct Shadow {
    /// The version, its number, and the share of requests that it scores.
    version: Option<(Handle, u64, f64)>,
    requests_max: usize,
    waiting: VecDeque<Echo>,
    outcomes: Outcomes,
    labels: Vec<String>,
    /// By label, of this version; and requests that were compared.
    differences: Vec<Difference>,
    compared: u64,
}

impl Shadow {
    /// No version shadows yet.
    pub fn new(labels: Vec<String>, requests_max: usize) -> Self {
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

    /// Let a version shadow a share of the requests that name none; without one, none does. What is known of it is kept
    /// where its number is the same.
    pub fn set(&mut self, version: Option<(Handle, u64, f64)>) {
        if let Some((_, number, _)) = version
            && self.version.is_none_or(|(_, before, _)| before != number)
        {
            self.differences.fill(Difference::default());
            self.compared = 0;
        }
        if version.map(|(handle, ..)| handle) != self.version.map(|(handle, ..)| handle) {
            self.clear();
        }
        self.version = version;
    }

    /// A version has gone.
    pub fn remove(&mut self, handle: Handle) {
        if self.version.is_some_and(|(own, ..)| own == handle) {
            self.set(None);
        }
    }

    /// Whether a request is of the share, by its route; never one that the version itself answers.
    pub fn wants(&self, answering: Handle, route: u64) -> bool {
        self.version.is_some_and(|(handle, _, share)| handle != answering && is_below(route, share))
    }

    /// A request of the share was answered; whether it waits now, or was dropped.
    pub fn put(&mut self, request: Arc<Request>, answered: Vec<f32>) -> bool {
        let Some((handle, ..)) = self.version else { return false };
        self.outcomes.asked += 1;
        let has_room = self.waiting.len() < self.requests_max;
        if has_room {
            self.waiting.push_back(Echo { request, answered, scores: Vec::new(), handle });
        } else {
            self.outcomes.dropped += 1;
        }
        has_room
    }

    /// What is scored next.
    pub fn take(&mut self) -> Option<Echo> {
        self.waiting.pop_front()
    }

    /// It could not be scored yet, and is next.
    pub fn wait(&mut self, echo: Echo) {
        self.waiting.push_front(echo);
    }

    /// A part of it was scored: the rest is next, or it is compared.
    pub fn give(&mut self, echo: Echo) {
        if self.version.is_none_or(|(handle, ..)| handle != echo.handle) {
            self.outcomes.dropped += 1;
        } else if echo.scores.len() < echo.answered.len() {
            self.wait(echo);
        } else {
            self.outcomes.scored += 1;
            self.compared += 1;
            self.compare(&echo);
        }
    }

    /// It could not be scored.
    pub fn fail(&mut self) {
        self.outcomes.failed += 1;
    }

    /// Nothing that waits is scored any more.
    pub fn clear(&mut self) {
        self.outcomes.dropped += self.waiting.len() as u64;
        self.waiting.clear();
    }

    /// The labels, each with how far the version is from what was answered.
    fn differences(&self) -> impl Iterator<Item = (&str, &Difference)> {
        self.labels.iter().map(String::as_str).zip(&self.differences)
    }

    /// All that is known.
    pub fn page(&self) -> Value {
        let outputs = self.differences().map(|(label, one)| {
            let mean = one.sum / one.candidates.max(1) as f64;
            let told = json!({
                "candidates": one.candidates, "mean_difference": mean, "max_difference": one.largest,
                "reordered": one.reordered,
            });
            (label.to_owned(), told)
        });
        let all = self.outcomes;
        json!({
            "version": self.version.map(|(_, number, _)| number),
            "share": self.version.map(|(.., share)| share),
            "waiting": self.waiting.len(),
            "asked": all.asked, "scored": all.scored, "dropped": all.dropped, "failed": all.failed,
            "compared": self.compared,
            "top": TOP,
            "outputs": outputs.collect::<serde_json::Map<String, Value>>(),
        })
    }

    fn compare(&mut self, echo: &Echo) {
        let labels = self.differences.len();
        for (label, found) in self.differences.iter_mut().enumerate() {
            let of =
                |scores: &[f32]| -> Vec<f32> { scores.iter().skip(label).step_by(labels).copied().collect() };
            let (mut answered, mut shadowed) = (of(&echo.answered), of(&echo.scores));
            // What a degraded answer left out has no score.
            let whole = answered.iter().position(|one| one.is_nan()).unwrap_or(answered.len());
            answered.truncate(whole);
            shadowed.truncate(whole);
            for (one, other) in answered.iter().zip(&shadowed) {
                let difference = (probability(*one) - probability(*other)).abs();
                found.sum += difference;
                found.largest = found.largest.max(difference);
            }
            found.candidates += whole as u64;
            found.reordered += u64::from(best(&answered) != best(&shadowed));
        }
    }
}

/// Whether a route is of a share; 1.0 is all of them.
fn is_below(route: u64, share: f64) -> bool {
    share >= 1.0 || route < (share.clamp(0.0, 1.0) * 2f64.powi(64)) as u64
}

fn probability(logit: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(logit)).exp())
}

/// The places of the best, best first; of equals the first.
fn best(scores: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]));
    places.truncate(TOP);
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Inputs, Limits};
    use crate::request::Wishes;

    fn request(candidates: usize) -> Arc<Request> {
        let limits = Limits { candidates_max: 64, values_max: 64, message_bytes_max: 1 << 10 };
        let labels = vec!["click".to_owned(), "buy".to_owned()];
        let inputs = Arc::new(Inputs { user: Vec::new(), item: Vec::new(), labels, limits });
        Arc::new(Request {
            id: bytes::Bytes::new(),
            inputs,
            candidates,
            user: Vec::new(),
            item: Vec::new(),
            shown: None,
            wishes: Wishes::default(),
        })
    }

    fn shadow(requests_max: usize) -> Shadow {
        Shadow::new(vec!["click".to_owned(), "buy".to_owned()], requests_max)
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
        let mut echo = shadow.take().unwrap();
        echo.scores.extend([0.0, 1.0]);
        shadow.give(echo);
        assert_eq!(shadow.outcomes.scored, 0, "its second candidate is next");
        let mut echo = shadow.take().unwrap();
        echo.scores.extend([-2.0, 1.0]);
        shadow.give(echo);
        let page = shadow.page();
        let moved = probability(2.0) - probability(-2.0);
        let click = &page["outputs"]["click"];
        assert!((click["max_difference"].as_f64().unwrap() - moved).abs() < 1e-9, "{page}");
        assert!((click["mean_difference"].as_f64().unwrap() - moved / 2.0).abs() < 1e-9, "{page}");
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
        let mut echo = shadow.take().unwrap();
        echo.scores.extend([0.0, 1.0, 9.0, 9.0]);
        shadow.give(echo);
        assert!(shadow.differences().all(|(_, one)| one.candidates == 1 && one.largest < 1e-12));
    }

    #[test]
    fn what_there_is_no_room_for_or_whose_version_went_is_dropped_and_counted() {
        let mut shadow = shadow(1);
        shadow.set(Some((7, 70, 1.0)));
        assert!(shadow.put(request(1), vec![0.0, 0.0]));
        assert!(!shadow.put(request(1), vec![0.0, 0.0]));
        assert_eq!(shadow.outcomes, Outcomes { asked: 2, dropped: 1, ..Outcomes::default() });
        let mut echo = shadow.take().unwrap();
        assert!(shadow.put(request(1), vec![0.0, 0.0]));
        shadow.set(None);
        assert!(shadow.take().is_none());
        echo.scores.extend([0.0, 0.0]);
        shadow.give(echo);
        assert_eq!(shadow.outcomes, Outcomes { asked: 3, dropped: 3, ..Outcomes::default() });
    }
}
