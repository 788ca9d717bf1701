//! Columns: the values of several requests one after another, as packing takes them. It knows no table and no tensor.

use std::ops::Range;

use crate::request::Values;

/// One column of all examples; kept from one TensorBatch to the next for its memory.
#[derive(Debug, Default)]
pub struct Column {
    /// The keys of a slot.
    pub keys: Vec<u64>,
    /// Where the keys of each example begin, and where the last one's end; of no use where each has one.
    pub offsets: Vec<i32>,
    /// A weight for each key, where the slot takes weights.
    pub weights: Vec<f32>,
    /// The numbers of a dense column.
    pub numbers: Vec<f32>,
}

impl Column {
    /// Forget what is in it.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.offsets.clear();
        self.weights.clear();
        self.numbers.clear();
    }

    /// Add some examples of a request's column, which has `examples` in all.
    pub fn add(&mut self, values: &Values, examples: usize, some: Range<usize>) {
        match values {
            Values::Keys(keys) => self.keys.extend_from_slice(&keys[some]),
            Values::Numbers(numbers) => {
                let width = numbers.len() / examples.max(1);
                self.numbers.extend_from_slice(&numbers[some.start * width..some.end * width]);
            }
            Values::Lists { keys, offsets, weights } => {
                let (begin, end) = (offsets[some.start], offsets[some.end]);
                // Keys of a message are bounded, and so are those of what is merged: far below what 32 bits count.
                let moved = i32::try_from(self.keys.len()).expect("merged keys are bounded") - begin;
                if self.offsets.is_empty() {
                    self.offsets.push(0);
                }
                self.offsets.extend(offsets[some.start + 1..=some.end].iter().map(|offset| offset + moved));
                let held = begin as usize..end as usize;
                self.keys.extend_from_slice(&keys[held.clone()]);
                if let Some(weights) = weights {
                    self.weights.extend_from_slice(&weights[held]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_requests_stand_one_after_another() {
        let lists = |keys: &[u64], offsets: &[i32], weights: &[f32]| Values::Lists {
            keys: keys.to_vec(),
            offsets: offsets.to_vec(),
            weights: Some(weights.to_vec()),
        };
        let mut column = Column::default();
        column.add(&lists(&[1, 2, 3, 4], &[0, 1, 1, 4], &[0.1, 0.2, 0.3, 0.4]), 3, 1..3);
        column.add(&lists(&[5, 6], &[0, 2], &[0.5, 0.6]), 1, 0..1);
        assert_eq!(column.keys, [2, 3, 4, 5, 6]);
        assert_eq!(column.offsets, [0, 0, 3, 5]);
        assert_eq!(column.weights, [0.2, 0.3, 0.4, 0.5, 0.6]);
        column.clear();
        column.add(&Values::Keys(vec![7, 8, 9]), 3, 1..2);
        column.add(&Values::Numbers(vec![1.0, 2.0, 3.0, 4.0]), 2, 1..2);
        assert_eq!((column.keys.as_slice(), column.numbers.as_slice()), (&[8][..], &[3.0, 4.0][..]));
        assert!(column.offsets.is_empty());
    }
}
