//! Outputs: the columns of an answer that a caller requests, and their form. Knows no protocol.

pub mod item_answer;
pub mod load_headers;

use super::infer::Form;
use super::input_names::Naming;
use super::values::tensor::cut;
use crate::answer::{Answer, Refusal};
use crate::inputs::Label;

/// The reply parameter with the computed columns, and the name of their parameter in a request.
pub const FEATURES: &str = "features";
/// The suffix of a label's logit output.
pub const LOGIT: &str = ".logit";

/// One column of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// The index of the label.
    pub label: usize,
    /// Whether its logits are requested; otherwise its probabilities or numbers.
    pub is_logit: bool,
}

impl Output {
    /// All that labels have, scores first: those that are numbers have no logit.
    pub fn all(labels: &[Label]) -> impl Iterator<Item = Self> + '_ {
        let forms = [false, true].into_iter();
        let of_form = |is_logit| (0..labels.len()).map(move |label| Self { label, is_logit });
        forms.flat_map(of_form).filter(|output| !(output.is_logit && labels[output.label].is_number))
    }

    /// Its name.
    pub fn name(self, labels: &[Label]) -> String {
        let suffix = if self.is_logit { LOGIT } else { "" };
        format!("{}{suffix}", labels[self.label].name)
    }

    /// Its values, one for each candidate.
    pub fn values<'a>(self, answer: &'a Answer, labels: &'a [Label]) -> impl Iterator<Item = f32> + 'a {
        answer.scores.chunks_exact(labels.len()).map(move |predicted| self.of(predicted, labels))
    }

    /// Its value for a candidate with these predictions, one for each label.
    pub fn of(self, predicted: &[f32], labels: &[Label]) -> f32 {
        let one = predicted[self.label];
        if self.is_logit { one } else { labels[self.label].score(one) }
    }
}

/// The requested columns; by default the probabilities or numbers of all labels.
#[derive(Debug, Default, PartialEq)]
pub struct Wanted(Vec<Output>);

impl Wanted {
    /// Adds an output by name.
    pub fn add(&mut self, name: &str, labels: &[Label]) -> Result<(), Refusal> {
        let Some(output) = Output::all(labels).find(|output| output.name(labels) == name) else {
            let names: Vec<_> = Output::all(labels).map(|output| output.name(labels)).collect();
            let (cut, known) = (cut(name), names.join(", "));
            return Err(Refusal::Bad(format!("unknown output {cut:?}; help: outputs are {known}")));
        };
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

/// Returns the computed columns of an answer as JSON, if the caller wants them.
pub fn features(form: &Form, answer: &Answer, naming: &Naming) -> Option<serde_json::Value> {
    let inputs = naming.inputs();
    form.features.then(|| answer.computed.as_ref().map(|computed| computed.json(inputs, form.candidates)))?
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
    use crate::answer::Cut;

    #[test]
    fn a_number_is_answered_as_it_is_and_has_no_logit() {
        let labels = [Label::from("click"), Label { is_number: true, ..Label::from("stars") }];
        let answer = Answer {
            version: 3,
            scores: vec![0.0, 4.5, 0.0, -2.0],
            cut: Cut::default(),
            found: None,
            computed: None,
            filled: None,
            order: None,
            arm: None,
        };
        let names: Vec<_> = Output::all(&labels).map(|output| output.name(&labels)).collect();
        assert_eq!(names, ["click", "stars", "click.logit"]);
        let stars = Wanted::default().outputs(2)[1];
        assert_eq!(stars.values(&answer, &labels).collect::<Vec<_>>(), [4.5, -2.0]);
        let text = Wanted::default().add("stars.logit", &labels).unwrap_err().to_string();
        assert!(text.contains("outputs are click, stars, click.logit"), "{text}");
    }

    #[test]
    fn columns_are_probabilities_unless_logits_are_named() {
        let labels = [Label::from("click"), Label::from("like")];
        let answer = Answer {
            version: 3,
            scores: vec![0.0, 10.0, f32::INFINITY, -100.0],
            cut: Cut::default(),
            found: None,
            computed: None,
            filled: None,
            order: None,
            arm: None,
        };
        let mut wanted = Wanted::default();
        wanted.add("like.logit", &labels).unwrap();
        wanted.add("click", &labels).unwrap();
        assert!(wanted.add("click", &labels).unwrap_err().to_string().contains("twice"));
        let text = wanted.add("clicks", &labels).unwrap_err().to_string();
        assert!(text.contains("\"clicks\"") && text.contains("click, like"), "{text}");
        let named = wanted.outputs(2);
        assert_eq!(named[0].values(&answer, &labels).collect::<Vec<_>>(), [10.0, -100.0]);
        assert_eq!(named[1].values(&answer, &labels).collect::<Vec<_>>(), [0.5, 1.0]);
        let all: Vec<_> = Wanted::default().outputs(2).iter().map(|output| output.name(&labels)).collect();
        assert_eq!(all, ["click", "like"]);
        assert!(check(&answer, 2, 2).is_ok() && check(&answer, 3, 2).is_err());
    }
}
