//! A library as a map, and the best rows by the scores of all rows.

use std::collections::BTreeMap;

use streamlearn_scan::{Changes, Row};

/// Rows by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Library(pub BTreeMap<u64, Row>);

impl Library {
    /// The library with changes.
    pub fn with(&self, changes: &Changes<'_>, dim: usize) -> Self {
        let mut next = self.clone();
        changes.removed.iter().for_each(|key| drop(next.0.remove(key)));
        for (at, &key) in changes.keys.iter().enumerate() {
            let values = changes.values[at * dim..][..dim].to_vec();
            next.0.insert(key, Row { values, scale: changes.scales[at] });
        }
        next
    }

    /// The best `k` of the rows that `is_wanted` accepts.
    pub fn best(&self, user: &[f32], k: usize, is_wanted: impl Fn(u64) -> bool) -> Vec<(u64, f32)> {
        let wanted = self.0.iter().filter(|(key, _)| is_wanted(**key));
        let mut all: Vec<(u64, f32)> = wanted.map(|(&key, row)| (key, score(user, row))).collect();
        all.sort_by(|one, other| other.1.partial_cmp(&one.1).expect("a number").then(one.0.cmp(&other.0)));
        all.truncate(k);
        all
    }
}

/// The score of a row: 16 sums, added as a tree.
pub fn score(user: &[f32], row: &Row) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (at, (number, value)) in user.iter().zip(&row.values).enumerate() {
        sums[at % 16] += f32::from(*value) * number;
    }
    let eight: [f32; 8] = std::array::from_fn(|at| sums[at] + sums[at + 8]);
    let four: [f32; 4] = std::array::from_fn(|at| eight[at] + eight[at + 4]);
    ((four[0] + four[2]) + (four[1] + four[3])) * row.scale
}

/// Random numbers from a seed.
pub struct Chance(pub u64);

impl Chance {
    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 29) % bound
    }

    /// A number from -1 to 1.
    pub fn number(&mut self) -> f32 {
        self.below(2_000_001) as f32 / 1e6 - 1.0
    }

    /// Numbers from -1 to 1.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Arrays of changes.
#[derive(Debug, Clone, Default)]
pub struct Arrays {
    pub keys: Vec<u64>,
    pub values: Vec<i8>,
    pub scales: Vec<f32>,
    pub removed: Vec<u64>,
}

impl Arrays {
    /// Random rows of keys.
    pub fn random(chance: &mut Chance, keys: Vec<u64>, dim: usize) -> Self {
        let values = (0..keys.len() * dim).map(|_| (chance.below(255) as i64 - 127) as i8).collect();
        let scales = keys.iter().map(|_| chance.number().abs()).collect();
        Self { keys, values, scales, removed: Vec::new() }
    }

    /// The changes.
    pub fn changes(&self) -> Changes<'_> {
        let Self { keys, values, scales, removed } = self;
        Changes { keys, values, scales, removed }
    }
}
