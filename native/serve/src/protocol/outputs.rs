//! Outputs: the columns of an answer that a caller requests, and their form. Knows no protocol.

use super::values::tensor::cut;
use crate::answer::{Answer, Refusal};

/// The reply parameter with the number of scored candidates, if not all were scored.
pub const DEGRADED: &str = "degraded_candidates";
/// The suffix of a label's logit output.
pub const LOGIT: &str = ".logit";

/// One column of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// The index of the label.
    pub label: usize,
    /// Whether its logits are requested; otherwise its probabilities.
    pub is_logit: bool,
}

impl Output {
    /// Its name.
    pub fn name(self, labels: &[String]) -> String {
        let suffix = if self.is_logit { LOGIT } else { "" };
        format!("{}{suffix}", labels[self.label])
    }

    /// Its values, one for each candidate.
    pub fn values(self, answer: &Answer, labels: usize) -> impl Iterator<Item = f32> {
        let logits = answer.scores.iter().skip(self.label).step_by(labels);
        logits.map(move |&logit| if self.is_logit { logit } else { probability(logit) })
    }
}

/// The probability of a logit.
pub fn probability(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// The requested columns; by default the probabilities of all labels.
#[derive(Debug, Default, PartialEq)]
pub struct Wanted(Vec<Output>);

impl Wanted {
    /// Adds an output by name.
    pub fn add(&mut self, name: &str, labels: &[String]) -> Result<(), Refusal> {
        let (base, is_logit) = match name.strip_suffix(LOGIT) {
            Some(base) => (base, true),
            None => (name, false),
        };
        let Some(label) = labels.iter().position(|label| label == base) else {
            let cut = cut(name);
            return Err(Refusal::Bad(format!(
                "unknown output {cut:?}; help: outputs are {}, each also with the suffix {LOGIT:?}",
                labels.join(", ")
            )));
        };
        let output = Output { label, is_logit };
        if self.0.contains(&output) {
            return Err(Refusal::Bad(format!("output {name:?} is requested twice")));
        }
        self.0.push(output);
        Ok(())
    }

    /// Returns the columns in the order of their names.
    pub fn outputs(self, labels: usize) -> Vec<Output> {
        if self.0.is_empty() {
            return (0..labels).map(|label| Output { label, is_logit: false }).collect();
        }
        self.0
    }
}

/// Checks that an answer has a score for every candidate and label.
pub fn check(answer: &Answer, candidates: usize, labels: usize) -> Result<(), Refusal> {
    if answer.scores.len() == candidates * labels {
        return Ok(());
    }
    Err(Refusal::Broken(format!(
        "version {} returned {} scores for {candidates} candidates and {labels} labels",
        answer.version,
        answer.scores.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_probabilities_unless_logits_are_named() {
        let labels = ["click".to_owned(), "like".to_owned()];
        let answer = Answer { version: 3, scores: vec![0.0, 10.0, f32::INFINITY, -100.0], degraded: None };
        let mut wanted = Wanted::default();
        wanted.add("like.logit", &labels).unwrap();
        wanted.add("click", &labels).unwrap();
        assert!(wanted.add("click", &labels).unwrap_err().to_string().contains("twice"));
        let text = wanted.add("clicks", &labels).unwrap_err().to_string();
        assert!(text.contains("\"clicks\"") && text.contains("click, like"), "{text}");
        let named = wanted.outputs(2);
        assert_eq!(named[0].values(&answer, 2).collect::<Vec<_>>(), [10.0, -100.0]);
        assert_eq!(named[1].values(&answer, 2).collect::<Vec<_>>(), [0.5, 1.0]);
        let all: Vec<_> = Wanted::default().outputs(2).iter().map(|output| output.name(&labels)).collect();
        assert_eq!(all, labels);
        assert!(check(&answer, 2, 2).is_ok() && check(&answer, 3, 2).is_err());
    }
}
