//! Columns: the values of several requests, concatenated for packing. Knows no table and no tensor.

use std::ops::Range;

use crate::request::Values;

/// One column of all examples; reused for later TensorBatches.
#[derive(Debug, Default)]
pub struct Column {
    /// The keys of a slot.
    pub keys: Vec<u64>,
    /// The offset of each example's keys and the end of the last one's; unused if each example has one key.
    pub offsets: Vec<i32>,
    /// A weight for each key, where the slot takes weights.
    pub weights: Vec<f32>,
    /// The numbers of a dense column.
    pub numbers: Vec<f32>,
}

impl Column {
    /// Clears the column and keeps its memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.offsets.clear();
        self.weights.clear();
        self.numbers.clear();
    }

    /// Appends a range of examples of a request's column; the request has `examples` in all.
    pub fn add(&mut self, values: &Values, examples: usize, range: Range<usize>) {
        match values {
            Values::Keys(keys) => self.keys.extend_from_slice(&keys[range]),
            Values::Numbers(numbers) => {
                let width = numbers.len() / examples.max(1);
                self.numbers.extend_from_slice(&numbers[range.start * width..range.end * width]);
            }
            Values::Lists { keys, offsets, weights } => {
                let (begin, end) = (offsets[range.start], offsets[range.end]);
                // Keys of a message and of a TensorBatch are bounded, far below i32::MAX.
                let shift = i32::try_from(self.keys.len()).expect("merged keys are bounded") - begin;
                if self.offsets.is_empty() {
                    self.offsets.push(0);
                }
                self.offsets.extend(offsets[range.start + 1..=range.end].iter().map(|offset| offset + shift));
                let key_range = begin as usize..end as usize;
                self.keys.extend_from_slice(&keys[key_range.clone()]);
                if let Some(weights) = weights {
                    self.weights.extend_from_slice(&weights[key_range]);
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
