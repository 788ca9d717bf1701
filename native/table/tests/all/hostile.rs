//! Hostile calls: nothing panics, and rejected writes leave no trace after a discard.
//!
//! Bytes are read as calls, so that any bytes are valid; `PROPTEST_CASES=200000` runs a campaign.

use std::collections::{BTreeMap, BTreeSet};

use crate::plain::*;
use proptest::prelude::*;
use streamlearn_table::*;

/// Bytes that are read as calls; zeros follow their end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, tail)) = self.0.split_first() else { return 0 };
        self.0 = tail;
        first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// Mostly keys that other calls use too, and some that only these bytes have.
    fn keys(&mut self) -> Vec<u64> {
        let count = self.below(40);
        (0..count)
            .map(|_| match self.byte() {
                byte @ 0..240 => key(u64::from(byte) % KEYS),
                240..248 => self.word(),
                byte => [0, 1, u64::MAX, 1 << 63][usize::from(byte) % 4],
            })
            .collect()
    }

    fn float(&mut self) -> f32 {
        match self.byte() {
            byte @ 0..200 => f32::from(byte) / 16.0 - 6.0,
            byte => [f32::NAN, f32::INFINITY, f32::MIN, f32::MIN_POSITIVE / 4.0, -0.0][usize::from(byte) % 5],
        }
    }

    /// The right number, or sometimes a few more or less.
    fn count(&mut self, right: usize) -> usize {
        match self.byte() {
            0..230 => right,
            byte @ 230..240 => right + usize::from(byte) - 229,
            byte @ 240..250 => right.saturating_sub(usize::from(byte) - 239),
            _ => 0,
        }
    }

    fn floats(&mut self, right: usize) -> Vec<f32> {
        let count = self.count(right);
        let few: Vec<f32> = (0..8).map(|_| self.float()).collect();
        (0..count).map(|at| few[at % 8] + (at / 8) as f32).collect()
    }

    fn threads(&mut self) -> usize {
        match self.byte() {
            byte @ 0..250 => usize::from(byte) % 4,
            _ => usize::MAX,
        }
    }

    fn again(&mut self) -> Again {
        if self.below(3) == 0 { Again::Replaces } else { Again::Refused }
    }
}

/// The full content of one version, bit for bit.
#[derive(PartialEq, Debug)]
struct Snapshot {
    keys: Vec<Vec<u64>>,
    rows: Vec<Vec<Vec<u32>>>,
    exports: Vec<BTreeMap<u64, Stored>>,
}

fn snapshot_of(set: &TableSet, version: u64) -> Snapshot {
    let pin = set.pin(version).unwrap();
    let export = set.changed(None, version).unwrap();
    let (mut keys, mut rows, mut exports) = (Vec::new(), Vec::new(), Vec::new());
    for table in set.tables() {
        let changes = export.read(table, 0..PARTS).unwrap();
        assert!(changes.gone.is_empty());
        let stored = rows_in(&table.settings, &changes);
        let keys_read: Vec<u64> = stored.keys().copied().chain((0..KEYS).map(key)).collect();
        let dim = table.settings.dim;
        let mut rows_read = vec![0.0; keys_read.len() * dim];
        table.lookup(&keys_read, pin.at(), &mut rows_read, 1).unwrap();
        rows.push(rows_read.chunks(dim).map(bits).collect());
        exports.push(stored);
        keys.push(keys_read);
    }
    Snapshot { keys, rows, exports }
}

/// The newest rows of the tables.
fn newest(set: &TableSet, keys: &[Vec<u64>]) -> Vec<Vec<Vec<u32>>> {
    let tables = set.tables().iter().zip(keys);
    let read = |(table, keys): (&Table, &Vec<u64>)| {
        let mut rows_read = vec![0.0; keys.len() * table.settings.dim];
        table.lookup(keys, At::Newest, &mut rows_read, 1).unwrap();
        rows_read.chunks(table.settings.dim).map(bits).collect()
    };
    tables.map(read).collect()
}

/// One call that may fail. Returns whether it failed.
fn call(set: &TableSet, bytes: &mut Bytes<'_>, version: u64) -> bool {
    let table = &set.tables()[bytes.below(set.tables().len())];
    let settings = table.settings;
    let some_version = [version, version + 1, version.saturating_sub(1), 0, u64::MAX][bytes.below(5)];
    match bytes.below(16) {
        0..6 => put(table, bytes).is_err(),
        6..8 => {
            let (keys, again, threads) = (bytes.keys(), bytes.again(), bytes.threads());
            table.remove(&keys, again, threads).is_err()
        }
        8 | 9 => {
            let keys = bytes.keys();
            let gradients = bytes.floats(keys.len() * settings.dim);
            let counts = vec![u32::MAX / 2; bytes.count(keys.len())];
            let mut run = || Admit { end: bytes.count(keys.len()), threshold: u32::from(bytes.byte()) % 20 };
            let admit = [run(), run()];
            let push = Push {
                keys: &keys,
                gradients: &gradients,
                counts: (bytes.below(2) == 0).then_some(&counts),
                admit: &admit[..bytes.below(3)],
                now_ms: bytes.word() as i64,
                rate_scale: bytes.float(),
            };
            table.push(push, bytes.threads()).is_err()
        }
        10 => set.seal(some_version).is_err(),
        11 => set.activate(some_version).is_err() && set.retire(some_version, 0, bytes.threads()).is_err(),
        12 => set.check_parent([None, Some(some_version)][bytes.below(2)]).is_err(),
        13 => {
            let since = [None, Some(some_version), Some(version)][bytes.below(3)];
            let parts = bytes.below(4) * 400..bytes.below(4) * 400;
            set.changed(since, some_version).and_then(|export| export.read(table, parts)).is_err()
        }
        14 => {
            let keys = bytes.keys();
            let mut out = vec![0.0; bytes.count(keys.len() * settings.dim)];
            table.lookup(&keys, [At::Newest, At::Active][bytes.below(2)], &mut out, bytes.threads()).is_err()
        }
        _ => {
            let idle_ms = [None, Some(i64::MIN), Some(0), Some(i64::MAX)][bytes.below(4)];
            let keys_max = [None, Some(0), Some(usize::MAX)][bytes.below(3)];
            let (count_min, rare_idle_ms) = (bytes.byte(), bytes.word() as i64);
            let expiry = Expiry { idle_ms, count_min, rare_idle_ms, keys_max };
            table.expire(&expiry, bytes.word() as i64, bytes.below(200)).is_err()
        }
    }
}

fn put(table: &Table, bytes: &mut Bytes<'_>) -> Result<()> {
    let (settings, keys) = (table.settings, bytes.keys());
    let floats = bytes.floats(keys.len() * settings.dim);
    let numbers: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
    let numbers = &numbers
        [..bytes.count(keys.len() * settings.dim * settings.row_type.number_bytes()).min(numbers.len())];
    let scales = bytes.floats(keys.len());
    let is_scaled =
        if bytes.below(10) == 0 { !settings.row_type.has_scale() } else { settings.row_type.has_scale() };
    let state = bytes.floats(keys.len() * settings.state());
    let uses = vec![Use { tick: bytes.word() as u32, count: bytes.byte() }; bytes.count(keys.len())];
    let rows = Rows {
        embeddings: match bytes.below(2) {
            0 => Embeddings::Floats(&floats),
            _ => Embeddings::Wire(numbers, is_scaled.then_some(&scales)),
        },
        state: (bytes.below(2) == 0).then_some(&state),
        uses: (bytes.below(2) == 0).then_some(&uses),
    };
    table.put(&keys, rows, bytes.again(), bytes.threads())
}

/// Stages a valid version, so that later ones have a parent.
fn stage(set: &TableSet, version: u64) {
    for table in set.tables() {
        let keys: Vec<u64> =
            (0..KEYS).filter(|number| !(number ^ version).is_multiple_of(3)).map(key).collect();
        let gone: Vec<u64> =
            (0..KEYS).filter(|number| (number ^ version).is_multiple_of(3)).map(key).collect();
        let floats: Vec<f32> =
            (0..keys.len() * table.settings.dim).map(|at| (at as u64 + version) as f32).collect();
        let rows = Rows { embeddings: Embeddings::Floats(&floats), state: None, uses: None };
        table.put(&keys, rows, Again::Refused, 2).unwrap();
        // In a first version, removed keys have no earlier version.
        let removed = table.remove(&gone, Again::Refused, 2);
        assert_eq!(removed.is_ok(), !set.retained().is_empty());
        let mut rows_read = vec![0.0; floats.len()];
        table.lookup(&keys, At::Newest, &mut rows_read, 1).unwrap();
        if table.settings.row_type == RowType::F32 {
            assert_eq!(rows_read, floats);
        }
    }
    set.seal(version).unwrap();
    set.commit(version).unwrap();
}

/// Repeats: arbitrary calls, a discard, and a valid staged version.
fn run(bytes: &[u8]) {
    let set = TableSet::new(&settings()).unwrap();
    let (mut bytes, mut version) = (Bytes(bytes), 1);
    stage(&set, version);
    while !bytes.0.is_empty() {
        let newest_version = *set.retained().last().unwrap();
        let before = snapshot_of(&set, newest_version);
        let sizes: Vec<TableSize> = set.tables().iter().map(Table::size).collect();
        let retained = set.retained();
        for _ in 0..bytes.below(6) + 1 {
            call(&set, &mut bytes, version);
        }
        set.discard(bytes.threads()).unwrap();
        assert_eq!(set.sealed(), None);
        assert_eq!(set.retained().last(), Some(&newest_version));
        assert_eq!(snapshot_of(&set, newest_version), before);
        assert_eq!(newest(&set, &before.keys), before.rows);
        let is_same = set.retained() == retained;
        for (table, before) in set.tables().iter().zip(sizes) {
            let size = table.size();
            assert_eq!((size.parts.keys, size.parts.gone), (before.parts.keys, before.parts.gone));
            assert!(!is_same || (size.rows, size.parts.images) == (before.rows, before.parts.images));
        }
        version += 1;
        stage(&set, version);
        let retained = BTreeSet::from_iter(set.retained());
        assert!(retained.contains(&version) && retained.contains(&newest_version));
    }
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn what_was_refused_leaves_no_trace(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        run(&bytes);
    }
}

#[test]
fn what_a_version_says_of_a_key_it_says_once() {
    let set = TableSet::new(&settings()).unwrap();
    stage(&set, 1);
    let table = &set.tables()[0];
    let keys: Vec<u64> = (0..KEYS).map(key).chain([7]).collect();
    let floats = vec![1.0; keys.len() * table.settings.dim];
    let put = |keys: &[u64]| {
        let embeddings = Embeddings::Floats(&floats[..keys.len() * table.settings.dim]);
        table.put(keys, Rows { embeddings, state: None, uses: None }, Again::Refused, 2)
    };
    let remove = |keys: &[u64]| table.remove(keys, Again::Refused, 2);
    let is_twice = |error: TableError| matches!(error, TableError::Twice { key } if keys.contains(&key));
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let present: Vec<u64> = (0..KEYS).filter(|number| (number ^ 1) % 3 > 0).map(key).collect();
        let absent: Vec<u64> = (0..KEYS).filter(|number| (number ^ 1) % 3 == 0).map(key).collect();
        for keys in [&present[..1], &present, &absent[..1], &absent] {
            let write = |which| if which == 0 { put(keys) } else { remove(keys).map(drop) };
            write(first).unwrap();
            assert!(is_twice(write(second).unwrap_err()), "{first} and {second}");
            set.discard(1).unwrap();
        }
    }
    assert!(is_twice(put(&[keys[3], 7, keys[3]]).unwrap_err()));
}
