//! The window: the applied pushes of one client, and the answers to them. Decides; applies nothing.
//!
//! All sequences below `low` are applied, and a bounded set above it. A shard applies each push exactly once
//! if it applies and notes one push before it decides on another.

use std::collections::{BTreeMap, VecDeque};

/// The decision about a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<R> {
    /// Apply it, then note it.
    Apply,
    /// It is already applied: send this answer again.
    Again(R),
    /// It was applied so long ago that its answer is no longer stored.
    Forgotten,
    /// It is too far ahead of the first missing sequence, which is this.
    TooFar(u64),
}

/// The window of one client.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub struct Window<R> {
    low: u64,
    above: BTreeMap<u64, R>,
    /// The last answers below `low`, the newest at the back.
    below: VecDeque<R>,
    window_max: u64,
}

impl<R: Clone> Window<R> {
    /// Creates an empty window that accepts `window_max` sequences from the first missing one on.
    pub fn new(window_max: u32) -> Self {
        Self { low: 0, above: BTreeMap::new(), below: VecDeque::new(), window_max: window_max.max(1).into() }
    }

    /// Decides about a sequence.
    pub fn decide(&self, sequence: u64) -> Decision<R> {
        if sequence < self.low {
            let age = (self.low - 1 - sequence) as usize;
            let answer = self.below.len().checked_sub(age + 1).map(|at| self.below[at].clone());
            return answer.map_or(Decision::Forgotten, Decision::Again);
        }
        if let Some(answer) = self.above.get(&sequence) {
            return Decision::Again(answer.clone());
        }
        if sequence - self.low >= self.window_max { Decision::TooFar(self.low) } else { Decision::Apply }
    }

    /// Notes the answer to an applied sequence.
    ///
    /// # Panics
    /// If the decision about the sequence is not `Apply`.
    pub fn note(&mut self, sequence: u64, answer: R) {
        assert!(matches!(self.decide(sequence), Decision::Apply), "sequence {sequence} must not be applied");
        self.above.insert(sequence, answer);
        while let Some(answer) = self.above.remove(&self.low) {
            self.below.push_back(answer);
            self.low += 1;
            if self.below.len() as u64 > self.window_max {
                self.below.pop_front();
            }
        }
    }

    /// Returns the first missing sequence.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Returns the number of stored answers.
    pub fn answers(&self) -> usize {
        self.above.len() + self.below.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_window_is_a_plain_set_of_what_was_applied(
            steps in prop::collection::vec(-20i64..20, 1..300), window_max in 1u32..12,
        ) {
            let (mut window, mut applied) = (Window::new(window_max), BTreeMap::new());
            for (answer, step) in steps.into_iter().enumerate() {
                let low = (0..).find(|sequence| !applied.contains_key(sequence)).unwrap();
                prop_assert_eq!(window.low(), low);
                let sequence = low.saturating_add_signed(step);
                match window.decide(sequence) {
                    Decision::Apply => {
                        prop_assert!(sequence < low + u64::from(window_max));
                        prop_assert_eq!(applied.insert(sequence, answer), None);
                        window.note(sequence, answer);
                    }
                    Decision::Again(answer) => prop_assert_eq!(applied.get(&sequence), Some(&answer)),
                    Decision::Forgotten => prop_assert!(sequence + u64::from(window_max) < low),
                    Decision::TooFar(missing) => {
                        prop_assert_eq!(missing, low);
                        prop_assert!(sequence >= low + u64::from(window_max));
                    }
                }
                prop_assert!(window.answers() <= 2 * window_max as usize);
            }
        }
    }

    #[test]
    fn what_is_noted_is_answered_again_until_it_is_forgotten() {
        let mut window = Window::new(3);
        window.note(1, 'b');
        assert_eq!((window.low(), window.decide(1)), (0, Decision::Again('b')));
        assert_eq!(window.decide(3), Decision::TooFar(0));
        window.note(0, 'a');
        assert_eq!((window.low(), window.decide(0)), (2, Decision::Again('a')));
        for sequence in 2..5 {
            assert_eq!(window.decide(sequence), Decision::Apply);
            window.note(sequence, 'c');
        }
        assert_eq!((window.decide(1), window.decide(2)), (Decision::Forgotten, Decision::Again('c')));
        assert_eq!(window.decide(u64::MAX), Decision::TooFar(5));
    }
}
