//! Repeats: which interactions of a log were there before. Ingest repeats some after a restart.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Identities are hashes already.
#[derive(Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The identities of the last interactions of a log, in its order.
pub struct Repeats {
    known: HashSet<u64, BuildHasherDefault<Plain>>,
    order: VecDeque<u64>,
    most: usize,
}

impl Repeats {
    /// Keeps at most `most` identities.
    pub fn new(most: usize) -> Self {
        Self { known: HashSet::default(), order: VecDeque::new(), most }
    }

    /// Notes an interaction, and returns whether it is new.
    pub fn note(&mut self, identity: u64) -> bool {
        if !self.known.insert(identity) {
            return false;
        }
        self.order.push_back(identity);
        if self.order.len() > self.most
            && let Some(first) = self.order.pop_front()
        {
            self.known.remove(&first);
        }
        true
    }

    /// The number of identities.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interaction_is_new_once_for_as_long_as_its_identity_is_kept() {
        let mut repeats = Repeats::new(2);
        assert!(repeats.note(7) && repeats.note(8));
        assert!(!repeats.note(7) && !repeats.note(8));
        assert!(repeats.note(9));
        assert_eq!((repeats.len(), repeats.note(8), repeats.note(7)), (2, false, true));
        assert!(Repeats::new(0).note(7));
    }
}
