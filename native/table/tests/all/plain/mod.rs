//! A set of tables as plain maps, one map per version, as the expected result of every operation. Knows no
//! lines and no rows.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use proptest::prelude::ProptestConfig;
use streamlearn_table::*;

/// The number of keys in the cases.
pub const KEYS: u64 = 96;
/// The parts of these keys: most are in the first, so that its lines overflow and grow.
pub const PARTS_USED: [usize; 3] = [0, 517, 1023];
const TICK_MS: i64 = 1_000;

/// A stored row.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub embedding: Vec<u8>,
    pub state: Vec<u32>,
    pub used: Use,
}

/// The result of a write: a row, or a removal. One allocation is one image.
pub type Image = Rc<Option<Stored>>;
pub type Content = BTreeMap<u64, Image>;

/// One table.
pub struct Plain {
    pub settings: TableSettings,
    pub open: Content,
    /// Keys written since the version was opened.
    pub written: BTreeSet<u64>,
    pub sketches: BTreeMap<usize, Sketch>,
}

/// One version of all tables.
#[derive(Clone)]
pub struct Version {
    pub number: u64,
    pub tables: Vec<Content>,
}

/// This number of cases, unless `PROPTEST_CASES` sets another.
pub fn cases(cases: u32) -> ProptestConfig {
    let settings = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { settings } else { ProptestConfig { cases, ..settings } }
}

/// The inverse of an odd factor: multiplication with it, modulo 2^64, undoes the mixing.
const fn inverse(of: u64) -> u64 {
    let (mut inverse, mut step) = (1u64, 0);
    while step < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(of.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// The key whose mixed form is `hash`.
pub fn key_of_hash(hash: u64) -> u64 {
    let mut key = hash ^ hash >> 33;
    key = key.wrapping_mul(const { inverse(0xc4ce_b9fe_1a85_ec53) });
    key ^= key >> 33;
    key = key.wrapping_mul(const { inverse(0xff51_afd7_ed55_8ccd) });
    key ^ key >> 33
}

pub fn part_of(number: u64) -> usize {
    PARTS_USED[if number % 3 < 2 { 0 } else { number as usize % 2 + 1 }]
}

/// The mixed key: its part, one of few lines, then the number itself.
pub fn hash(number: u64) -> u64 {
    (part_of(number) as u64) << 54 | (number % 7) << 51 | number << 20
}

pub fn key(number: u64) -> u64 {
    key_of_hash(hash(number))
}

pub fn keys(numbers: &[u64]) -> Vec<u64> {
    numbers.iter().map(|&number| key(number)).collect()
}

/// Tables of each row type, wide and narrow, with different learning rules or none.
pub fn settings() -> Vec<TableSettings> {
    let rule = Rule::new(Optimizer::RowwiseAdagrad { rate: 0.1, initial_accumulator: 0.5, epsilon: 0.0 });
    let first = TableSettings {
        dim: 3,
        row_type: RowType::F32,
        rule: Some(rule),
        admission: Some(SketchSettings { width_counters: 64, window_ms: 20_000 }),
        initial: Initial { seed: 5, range: 0.5 },
        tick_ms: TICK_MS,
        rows_max: 1 << 16,
    };
    let adam = Optimizer::Adam { rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let adam = Rule { weight_decay: 0.01, clip_norm: Some(2.0), clip_value: Some(1.0), ..Rule::new(adam) };
    let serves = TableSettings { rule: None, admission: None, ..first };
    vec![
        first,
        TableSettings { dim: 8, rule: Some(adam), admission: None, ..first },
        TableSettings { dim: 5, row_type: RowType::I8, ..serves },
        TableSettings { dim: 4, row_type: RowType::F16, ..serves },
    ]
}

pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(bits)).collect()
}

impl Stored {
    pub fn row(&self, settings: &TableSettings) -> Vec<f32> {
        let mut row = vec![0.0; settings.dim];
        settings.row_type.decode(&self.embedding, &mut row);
        row
    }
}

pub fn encode(settings: &TableSettings, row: &[f32]) -> Vec<u8> {
    let mut embedding = vec![0; settings.row_type.row_bytes(settings.dim)];
    settings.row_type.encode(row, &mut embedding);
    embedding
}

impl Plain {
    pub fn new(settings: TableSettings) -> Self {
        Self { settings, open: Content::new(), written: BTreeSet::new(), sketches: BTreeMap::new() }
    }

    /// The current row of a key.
    pub fn row(&self, number: u64) -> Option<&Stored> {
        self.open.get(&number).and_then(|image| (**image).as_ref())
    }

    /// Whether a key was written in the open version; before the first version, all present keys count as
    /// written.
    pub fn is_written(&self, number: u64, is_versioned: bool) -> bool {
        if is_versioned { self.written.contains(&number) } else { self.row(number).is_some() }
    }

    pub fn put(&mut self, number: u64, stored: Stored) {
        self.open.insert(number, Rc::new(Some(stored)));
        self.written.insert(number);
    }

    /// Removes a key. Returns whether it was present.
    pub fn remove(&mut self, number: u64, is_versioned: bool) -> bool {
        if self.row(number).is_none() {
            return false;
        }
        if is_versioned {
            self.open.insert(number, Rc::new(None));
            self.written.insert(number);
        } else {
            self.open.remove(&number);
        }
        true
    }

    /// Records a missing key as gone.
    pub fn bury(&mut self, number: u64) {
        self.open.insert(number, Rc::new(None));
        self.written.insert(number);
    }

    /// Learns from the sums of gradients by key, in the order of first occurrence.
    pub fn push(&mut self, numbers: &[u64], push: &Push<'_>) -> Pushed {
        let (dim, rule) = (self.settings.dim, self.settings.rule.expect("the table learns"));
        let mut sums: Vec<(u64, usize, u32, Vec<f32>)> = Vec::new();
        for (at, &number) in numbers.iter().enumerate() {
            let gradient = &push.gradients[at * dim..][..dim];
            let count = push.counts.map_or(1, |counts| counts[at]);
            match sums.iter_mut().find(|sum| sum.0 == number) {
                Some((_, _, counted, sum)) => {
                    *counted = counted.saturating_add(count);
                    sum.iter_mut().zip(gradient).for_each(|(sum, float)| *sum += float);
                }
                None => sums.push((number, at, count, gradient.to_vec())),
            }
        }
        let mut pushed = Pushed::default();
        for (number, at, count, mut gradient) in sums {
            let (mut row, mut state) = (vec![0.0; dim], vec![0.0; self.settings.state()]);
            let mut used = Use::default();
            if let Some(stored) = self.row(number) {
                (row, state, used) = (stored.row(&self.settings), floats(&stored.state), stored.used);
            } else if self.is_admitted(number, at, count, push) {
                self.settings.initial.fill(key(number), &mut row);
                rule.begin(&mut state);
                pushed.created += 1;
            } else {
                pushed.waiting += 1;
                continue;
            }
            rule.apply(push.rate_scale, &mut row, &mut state, &mut gradient);
            used.tick = tick(push.now_ms);
            used.count = u64::from(used.count).saturating_add(u64::from(count)).min(255) as u8;
            pushed.learned += 1;
            let (embedding, state) = (encode(&self.settings, &row), bits(&state));
            self.put(number, Stored { embedding, state, used });
        }
        pushed
    }

    fn is_admitted(&mut self, number: u64, at: usize, count: u32, push: &Push<'_>) -> bool {
        let Some(settings) = self.settings.admission else { return true };
        let threshold = push.admit.iter().find(|run| at < run.end).map_or(1, |run| run.threshold);
        if threshold <= 1 {
            return true;
        }
        let sketch = self.sketches.entry(part_of(number)).or_insert_with(|| Sketch::new(settings));
        sketch.tick(push.now_ms);
        sketch.count(hash(number), count) >= threshold
    }
}

pub fn tick(now_ms: i64) -> u32 {
    now_ms.div_euclid(TICK_MS).rem_euclid(1 << 24) as u32
}

/// The reasons for which a key may leave: idle, rare.
pub fn qualifies(used: Use, expiry: &Expiry, now_ms: i64) -> [bool; 2] {
    let age_ms = i64::from(tick(now_ms).wrapping_sub(used.tick) & 0xff_ffff) * TICK_MS;
    let is_idle = expiry.idle_ms.is_some_and(|idle_ms| age_ms > idle_ms);
    if used.tick == 0 && used.count == 0 {
        return [false; 2]; // it was never used
    }
    [is_idle, used.count < expiry.count_min && age_ms > expiry.rare_idle_ms]
}

/// The rows of a version by key.
pub fn rows_of(content: &Content) -> BTreeMap<u64, Stored> {
    let rows = content.iter().filter_map(|(&number, image)| Some((key(number), (**image).clone()?)));
    rows.collect()
}

/// The rows of an export by key, each once.
pub fn rows_in(settings: &TableSettings, changes: &Changes) -> BTreeMap<u64, Stored> {
    let (number_bytes, state) = (settings.dim * settings.row_type.number_bytes(), settings.state());
    let scaled = if settings.row_type.has_scale() { changes.keys.len() } else { 0 };
    assert_eq!(changes.numbers.len(), changes.keys.len() * number_bytes);
    assert_eq!((changes.scales.len(), changes.uses.len()), (scaled, changes.keys.len()));
    assert_eq!(changes.state.len(), changes.keys.len() * state);
    let mut rows = BTreeMap::new();
    for (at, &key) in changes.keys.iter().enumerate() {
        let mut embedding = vec![0; settings.row_type.row_bytes(settings.dim)];
        let numbers = &changes.numbers[at * number_bytes..][..number_bytes];
        settings.row_type.from_wire(numbers, changes.scales.get(at).copied(), &mut embedding);
        let state = bits(&changes.state[at * state..][..state]);
        let twice = rows.insert(key, Stored { embedding, state, used: changes.uses[at] });
        assert!(twice.is_none(), "key {key} is exported once");
    }
    rows
}
