//! Readers, a writer, an exporter and a version keeper at the same time. Every row read must match its
//! version.
//!
//! A row encodes its key and write, so that a torn row is detected. The writer records the content of a
//! version before it seals it, and the next state of a key before it writes it. A reader of a version must
//! find exactly that content. A reader of the newest rows must find a state that the key had during the call.
//!
//! `STRESS_S` is the duration in seconds, `STRESS_SEED` the seed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::plain::{self, key_of_hash};
use streamlearn_table::*;

const KEYS: usize = 1_500;
const PARTS_USED: [u64; 3] = [0, 511, 1023];
/// The first set lives this long and each later one longer by the same; each starts empty, when it grows
/// most.
const WORLD_MS: u64 = 150;
/// The time in which every kind of event must have happened, on any machine.
const HAPPEN_S: u64 = 120;
/// Maximum remembered states of a key.
const STATES_MAX: usize = 4_096;
/// The state of a missing key.
const ABSENT: u32 = 0;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.draw() % count as u64) as usize
    }

    fn is(&mut self, per_cent: usize) -> bool {
        self.below(100) < per_cent
    }

    /// Some key numbers, each once, adjacent or spread.
    fn numbers(&mut self, count_max: usize) -> Vec<usize> {
        let (begin, count) = (self.below(KEYS), self.below(count_max) + 1);
        let stride = [1, 7, 1_009][self.below(3)];
        (0..count).map(|at| (begin + at * stride) % KEYS).collect()
    }
}

fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

fn keys(numbers: &[usize]) -> Vec<u64> {
    let hash = |number: usize| PARTS_USED[number % 3] << 54 | mixed(number as u64) >> 10;
    numbers.iter().map(|&number| key_of_hash(hash(number))).collect()
}

/// The row of one write of a key: whole numbers that any row type stores exactly, and that no two rows share.
fn fill_row(number: usize, write: u32, row: &mut [f32]) {
    let digit = |of: usize, at: usize| ((of >> (6 * at)) & 63) as f32;
    for (at, float) in row.iter_mut().enumerate() {
        *float = match at {
            0..4 => digit(write as usize, at),
            4..6 => digit(number, at - 4),
            // With this number, the scale of an i8 row is 1.
            6 => 127.0,
            _ => (mixed((number as u64) << 40 ^ u64::from(write) << 8 ^ at as u64) % 100) as f32,
        };
    }
}

/// The write of a key that a row comes from.
fn write_of(number: usize, row: &[f32]) -> u32 {
    if row.iter().all(|&float| float == 0.0) {
        return ABSENT;
    }
    let write = row[..4].iter().rev().fold(0, |write, &digit| write << 6 | digit as u32);
    let mut expected = vec![0.0; row.len()];
    fill_row(number, write, &mut expected);
    assert_eq!(row, expected, "the row of key {number} does not match its write");
    write
}

/// The states that a key had; the last may not be written yet.
#[derive(Default)]
struct States {
    dropped: usize,
    last: VecDeque<u32>,
}

impl States {
    fn count(&self) -> usize {
        self.dropped + self.last.len()
    }

    fn push(&mut self, write: u32) {
        self.last.push_back(write);
        if self.last.len() > STATES_MAX {
            self.last.pop_front();
            self.dropped += 1;
        }
    }

    /// Whether a write was the key's state at some time since it had `since` states. Dropped states are not
    /// checked.
    fn had(&self, write: u32, since: usize) -> bool {
        let begin = since.saturating_sub(2);
        begin < self.dropped || self.last.iter().skip(begin - self.dropped).any(|&state| state == write)
    }
}

/// Counts of events, so that a test in which an event never happens fails.
#[derive(Default)]
struct Tally {
    pinned: AtomicU64,
    active: AtomicU64,
    newest: AtomicU64,
    exported: AtomicU64,
    cancelled: AtomicU64,
    committed: AtomicU64,
    discarded: AtomicU64,
    retired: AtomicU64,
    expired: AtomicU64,
}

fn count(of: &AtomicU64, more: usize) {
    of.fetch_add(more as u64, Ordering::Relaxed);
}

/// One set, and its expected contents.
struct World {
    set: TableSet,
    number_of: BTreeMap<u64, usize>,
    tally: Arc<Tally>,
    /// The write of each key in each version, recorded before the version is sealed.
    versions: Mutex<BTreeMap<u64, Arc<Vec<u32>>>>,
    /// Activated versions in order, each recorded before.
    active: Mutex<Vec<u64>>,
    states: Vec<Mutex<States>>,
    is_over: AtomicBool,
}

/// Ends a world when one of its threads fails, so that the others stop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn settings() -> Vec<TableSettings> {
    let learns = TableSettings {
        dim: 8,
        row_type: RowType::F32,
        rule: Some(Rule::new(Optimizer::Sgd { rate: 1.0 })),
        admission: None,
        initial: Initial { seed: 1, range: 0.0 },
        tick_ms: 1,
        rows_max: 1 << 20,
    };
    let serves = TableSettings { rule: None, ..learns };
    vec![
        learns,
        TableSettings { dim: 33, ..learns },
        TableSettings { dim: 21, row_type: RowType::I8, ..serves },
    ]
}

impl World {
    fn new(tally: Arc<Tally>) -> Self {
        Self {
            set: TableSet::new(&settings()).unwrap(),
            number_of: keys(&Vec::from_iter(0..KEYS)).into_iter().zip(0..).collect(),
            tally,
            versions: Mutex::default(),
            active: Mutex::default(),
            states: (0..KEYS).map(|_| Mutex::new(States { dropped: 0, last: [ABSENT].into() })).collect(),
            is_over: AtomicBool::new(false),
        }
    }

    fn table(&self, chance: &mut Chance) -> &Table {
        &self.set.tables()[chance.below(self.set.tables().len())]
    }

    fn content(&self, version: u64) -> Option<Arc<Vec<u32>>> {
        self.versions.lock().unwrap().get(&version).cloned()
    }

    /// A version that is probably retained or sealed.
    fn some_version(&self, chance: &mut Chance) -> Option<u64> {
        let mut versions = self.set.retained();
        versions.extend(self.set.sealed());
        (!versions.is_empty()).then(|| versions[chance.below(versions.len())])
    }

    fn writes(&self, table: &Table, numbers: &[usize], at: At, threads: usize) -> Vec<u32> {
        let mut rows = vec![f32::NAN; numbers.len() * table.settings.dim];
        table.lookup(&keys(numbers), at, &mut rows, threads).unwrap();
        let rows = numbers.iter().zip(rows.chunks(table.settings.dim));
        rows.map(|(&number, row)| write_of(number, row)).collect()
    }

    fn read_pinned(&self, chance: &mut Chance) {
        let Some(version) = self.some_version(chance) else { return };
        // It may have been retired meanwhile.
        let Ok(pin) = self.set.pin(version) else { return };
        let content = self.content(version).expect("recorded before it was sealed");
        for _ in 0..chance.below(20) {
            let numbers = chance.numbers(120);
            let writes = self.writes(self.table(chance), &numbers, pin.at(), 1);
            for (&number, write) in numbers.iter().zip(writes) {
                assert_eq!(write, content[number], "key {number} in pinned version {version}");
            }
            count(&self.tally.pinned, numbers.len());
        }
    }

    fn read_active(&self, chance: &mut Chance) {
        let before = self.active.lock().unwrap().len();
        if self.set.active().is_none() || before == 0 {
            return;
        }
        let numbers = chance.numbers(120);
        let writes = self.writes(self.table(chance), &numbers, At::Active, 1);
        let mut candidates = self.active.lock().unwrap()[before.saturating_sub(2)..].to_vec();
        candidates.dedup();
        let matches = |version: &u64| {
            let content = self.content(*version).expect("recorded before it was sealed");
            numbers.iter().zip(&writes).all(|(&number, &write)| content[number] == write)
        };
        assert!(
            candidates.iter().any(matches),
            "the rows match none of the versions {candidates:?} that were active"
        );
        count(&self.tally.active, numbers.len());
    }

    fn read_newest(&self, chance: &mut Chance) {
        let numbers = chance.numbers(120);
        let before: Vec<usize> =
            numbers.iter().map(|&number| self.states[number].lock().unwrap().count()).collect();
        let writes = self.writes(self.table(chance), &numbers, At::Newest, 1);
        for ((&number, write), before) in numbers.iter().zip(writes).zip(before) {
            let states = self.states[number].lock().unwrap();
            assert!(states.had(write, before), "key {number}: write {write} is outdated or was never made");
        }
        count(&self.tally.newest, numbers.len());
    }

    fn export(&self, chance: &mut Chance) {
        let Some(upto) = self.some_version(chance) else { return };
        let since = self.some_version(chance).filter(|_| chance.is(70));
        let Ok(export) = self.set.changed(since, upto) else { return };
        let mut writes = since.map_or(vec![ABSENT; KEYS], |since| self.content(since).unwrap().to_vec());
        let table = self.table(chance);
        let waits = chance.below(200);
        for part in PARTS_USED {
            // Lets more happen during the export.
            (0..waits).for_each(|_| std::thread::yield_now());
            let changes = match export.read(table, part as usize..part as usize + 1) {
                Ok(changes) => changes,
                Err(TableError::Busy(_)) => return count(&self.tally.cancelled, 1),
                Err(error) => panic!("{error}"),
            };
            for key in &changes.gone {
                let write = std::mem::replace(&mut writes[self.number_of[key]], ABSENT);
                assert_ne!(write, ABSENT, "a removed key existed before");
            }
            for (key, stored) in plain::rows_in(&table.settings, &changes) {
                let number = self.number_of[&key];
                writes[number] = write_of(number, &stored.row(&table.settings));
            }
        }
        assert_eq!(writes, *self.content(upto).unwrap(), "version {upto} since {since:?}");
        count(&self.tally.exported, 1);
    }

    /// Activates versions and retires others.
    fn keep(&self, chance: &mut Chance) {
        let retained = self.set.retained();
        if retained.is_empty() {
            return std::thread::yield_now();
        }
        let newest = retained.len() - 1;
        if chance.is(50) {
            let version = retained[newest - chance.below(retained.len().min(3))];
            self.active.lock().unwrap().push(version);
            self.set.activate(version).unwrap();
        }
        let at = if chance.is(60) { 0 } else { chance.below(retained.len()) };
        let threads = chance.below(2) + 1;
        if retained.len() > 2 && at < newest {
            match self.set.retire(retained[at], chance.below(3) as u64, threads) {
                Ok(_) => count(&self.tally.retired, 1),
                Err(TableError::Busy(_) | TableError::Version(_)) => {}
                Err(error) => panic!("{error}"),
            }
        } else {
            self.set.sweep(0, threads).unwrap();
        }
    }

    fn go_on(&self, seed: u64, step: impl Fn(&Self, &mut Chance)) {
        let _over = Over(&self.is_over);
        let mut chance = Chance(seed);
        while !self.is_over.load(Ordering::Relaxed) {
            step(self, &mut chance);
            // On few cores, the writer gets its turn.
            std::thread::yield_now();
        }
    }
}

/// The writer, with the write and time of use of each key.
struct Writer<'a> {
    world: &'a World,
    chance: Chance,
    open: Vec<(u32, i64)>,
    committed: Vec<(u32, i64)>,
    sealed: Option<(u64, Vec<(u32, i64)>)>,
    write: u32,
    version: u64,
    now_ms: i64,
}

impl<'a> Writer<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let empty = vec![(ABSENT, 0); KEYS];
        let (open, committed) = (empty.clone(), empty);
        let chance = Chance(seed);
        Self { world, chance, open, committed, sealed: None, write: 0, version: 0, now_ms: 1_000 }
    }

    fn note(&self, numbers: &[usize], write: u32) {
        numbers.iter().for_each(|&number| self.world.states[number].lock().unwrap().push(write));
    }

    fn put(&mut self) {
        let numbers = self.chance.numbers(200);
        let (keys, threads) = (keys(&numbers), self.chance.below(2) + 1);
        self.write += 1;
        self.note(&numbers, self.write);
        let used = Use { tick: self.now_ms as u32, count: 1 };
        let is_pushed = self.chance.is(60);
        for table in self.world.set.tables() {
            let dim = table.settings.dim;
            let mut rows = vec![0.0; numbers.len() * dim];
            for (&number, row) in numbers.iter().zip(rows.chunks_mut(dim)) {
                fill_row(number, self.write, row);
            }
            if !is_pushed || table.settings.rule.is_none() {
                let uses = vec![used; numbers.len()];
                let rows = Rows { embeddings: Embeddings::Floats(&rows), state: None, uses: Some(&uses) };
                table.put(&keys, rows, Again::Replaces, threads).unwrap();
                continue;
            }
            // At rate 1, the gradient is subtracted from the row.
            let (mut current, mut gradients) = (vec![0.0; dim], rows);
            for (&number, gradient) in numbers.iter().zip(gradients.chunks_mut(dim)) {
                match self.open[number].0 {
                    ABSENT => current.fill(0.0),
                    write => fill_row(number, write, &mut current),
                }
                gradient.iter_mut().zip(&current).for_each(|(float, current)| *float = current - *float);
            }
            let (admit, counts, now_ms) = (&[], None, self.now_ms);
            let push = Push { keys: &keys, gradients: &gradients, counts, admit, now_ms, rate_scale: 1.0 };
            table.push(push, threads).unwrap();
        }
        numbers.iter().for_each(|&number| self.open[number] = (self.write, self.now_ms));
    }

    fn remove(&mut self) {
        let numbers = self.chance.numbers(80);
        self.note(&numbers, ABSENT);
        let present = numbers.iter().filter(|&&number| self.open[number].0 != ABSENT).count();
        for table in self.world.set.tables() {
            assert_eq!(table.remove(&keys(&numbers), Again::Replaces, 1).unwrap(), present);
        }
        numbers.iter().for_each(|&number| self.open[number].0 = ABSENT);
    }

    fn expire(&mut self) {
        let idle_ms = self.chance.below(60) as i64 + 20;
        let idle: Vec<usize> = (0..KEYS)
            .filter(|&number| self.open[number].0 != ABSENT && self.now_ms - self.open[number].1 > idle_ms)
            .collect();
        self.note(&idle, ABSENT);
        let expiry = Expiry { idle_ms: Some(idle_ms), ..Expiry::default() };
        for table in self.world.set.tables() {
            let expired = table.expire(&expiry, self.now_ms, 10 * KEYS).unwrap();
            assert_eq!(expired.idle, idle.len());
            count(&self.world.tally.expired, expired.idle);
        }
        idle.iter().for_each(|&number| self.open[number].0 = ABSENT);
    }

    fn seal(&mut self) {
        if self.sealed.is_some() {
            return;
        }
        self.version += 1;
        let writes = self.open.iter().map(|entry| entry.0).collect();
        self.world.versions.lock().unwrap().insert(self.version, Arc::new(writes));
        self.world.set.seal(self.version).unwrap();
        self.sealed = Some((self.version, self.open.clone()));
    }

    fn commit(&mut self) {
        let Some((version, content)) = self.sealed.take() else { return };
        self.world.set.commit(version).unwrap();
        self.committed = content;
        count(&self.world.tally.committed, 1);
    }

    fn discard(&mut self) {
        for number in 0..KEYS {
            if self.open[number].0 != self.committed[number].0 {
                self.note(&[number], self.committed[number].0);
            }
        }
        match self.world.set.discard(self.chance.below(2) + 1) {
            Ok(()) => {
                self.open.clone_from(&self.committed);
                self.sealed = None;
                count(&self.world.tally.discarded, 1);
            }
            // A reader holds the sealed version.
            Err(TableError::Busy(_)) => {
                (0..KEYS).for_each(|number| self.note(&[number], self.open[number].0))
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn go_on(&mut self) {
        self.now_ms += 1;
        match self.chance.below(100) {
            0..40 => self.put(),
            40..50 => self.remove(),
            50..54 => self.expire(),
            54..74 => self.seal(),
            74..96 => self.commit(),
            _ => self.discard(),
        }
    }

    /// With only the newest version left, there is one row for each of its keys and no other.
    fn end(&mut self) {
        let set = &self.world.set;
        self.discard();
        assert!(self.sealed.is_none(), "no reader holds a version");
        let retained = set.retained();
        retained.last().into_iter().for_each(|&newest| set.activate(newest).unwrap());
        for &version in retained.iter().rev().skip(1) {
            assert_eq!(set.retire(version, 5_000, 2).unwrap(), 0);
        }
        assert_eq!(set.sweep(5_000, 1).unwrap(), 0);
        set.discard(1).unwrap();
        let keys = self.committed.iter().filter(|entry| entry.0 != ABSENT).count();
        for table in set.tables() {
            let size = table.size();
            assert_eq!((size.parts.keys, size.rows), (keys, keys));
            assert_eq!((size.parts.gone, size.parts.images, size.images_bytes), (0, 0, 0));
            let all = Vec::from_iter(0..KEYS);
            let writes = self.world.writes(table, &all, At::Newest, 2);
            assert!(writes.iter().eq(self.committed.iter().map(|entry| &entry.0)));
        }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// One set from start to end.
fn world(tally: &Arc<Tally>, seed: u64, world_ms: u64) {
    let world = World::new(tally.clone());
    let (open, committed, sealed) = std::thread::scope(|scope| {
        let readers: [fn(&World, &mut Chance); 5] =
            [World::read_pinned, World::read_active, World::read_newest, World::export, World::keep];
        for (number, reader) in readers.into_iter().enumerate() {
            let world = &world;
            scope.spawn(move || world.go_on(seed + number as u64, reader));
        }
        let _over = Over(&world.is_over);
        let mut writer = Writer::new(&world, seed + 100);
        let deadline = Instant::now() + Duration::from_millis(world_ms);
        while Instant::now() < deadline && !world.is_over.load(Ordering::Relaxed) {
            writer.go_on();
        }
        (writer.open, writer.committed, writer.sealed)
    });
    Writer { open, committed, sealed, ..Writer::new(&world, seed) }.end();
}

#[test]
fn every_row_read_is_what_its_version_says_while_everything_goes_on() {
    let (tally, seed) = (Arc::new(Tally::default()), setting("STRESS_SEED", 1));
    let events = [
        (&tally.pinned, "rows of pinned versions"),
        (&tally.active, "rows of the active version"),
        (&tally.newest, "newest rows"),
        (&tally.exported, "exports"),
        (&tally.cancelled, "exports cancelled"),
        (&tally.committed, "versions"),
        (&tally.discarded, "discards"),
        (&tally.retired, "versions retired"),
        (&tally.expired, "keys expired"),
    ];
    let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (begin, stress_s) = (Instant::now(), setting("STRESS_S", 2));
    let mut worlds = 0;
    while begin.elapsed().as_secs() < stress_s || events.iter().any(|(counter, _)| counted(counter) == 0) {
        worlds += 1;
        world(&tally, seed + worlds * 1_000, WORLD_MS * worlds.min(10));
        assert!(begin.elapsed().as_secs() < stress_s + HAPPEN_S, "something never happens");
    }
    events.iter().for_each(|(counter, name)| println!("{} {name}", counted(counter)));
}

#[test]
fn a_row_that_is_written_where_it_is_is_never_read_torn() {
    let settings = TableSettings { dim: 1_024, ..settings()[0] };
    let set = TableSet::new(&[settings]).unwrap();
    let (table, keys) = (&set.tables()[0], keys(&[1, 2, 3]));
    let (is_over, rows_read) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = || {
        let _over = Over(&is_over);
        let mut rows = vec![0.0; keys.len() * settings.dim];
        while !is_over.load(Ordering::Relaxed) {
            table.lookup(&keys, At::Newest, &mut rows, 1).unwrap();
            for row in rows.chunks(settings.dim) {
                assert!(row.iter().all(|&float| float == row[0]), "torn");
            }
            count(&rows_read, keys.len());
        }
    };
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        let threads = [(); 2].map(|()| scope.spawn(read));
        let (mut write, begin) = (0u16, Instant::now());
        let is_enough =
            || begin.elapsed() > Duration::from_millis(400) && rows_read.load(Ordering::Relaxed) > 1_000;
        while !is_enough() && !threads.iter().any(|thread| thread.is_finished()) {
            if write % 64 == 0 {
                table.remove(&keys, Again::Replaces, 1).unwrap();
            }
            write = write.wrapping_add(1);
            let rows = vec![f32::from(write); keys.len() * settings.dim];
            let rows = Rows { embeddings: Embeddings::Floats(&rows), state: None, uses: None };
            table.put(&keys, rows, Again::Replaces, 1).unwrap();
        }
    });
}

#[test]
fn all_of_a_call_is_in_one_version() {
    let (set, numbers) = (TableSet::new(&settings()[..1]).unwrap(), Vec::from_iter(0..KEYS));
    let (table, keys, dim) = (&set.tables()[0], keys(&numbers), settings()[0].dim);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&is_over);
            let mut write = 0u16;
            while !is_over.load(Ordering::Relaxed) {
                write = write.wrapping_add(1);
                let rows = vec![f32::from(write); keys.len() * dim];
                let rows = Rows { embeddings: Embeddings::Floats(&rows), state: None, uses: None };
                table.put(&keys, rows, Again::Replaces, 2).unwrap();
            }
        });
        let _over = Over(&is_over);
        let mut rows = vec![0.0; keys.len() * dim];
        for version in 1..40 {
            set.seal(version).unwrap();
            let pin = set.pin(version).unwrap();
            table.lookup(&keys, pin.at(), &mut rows, 1).unwrap();
            assert!(rows.iter().all(|&float| float == rows[0]), "version {version} is half of a call");
            drop(pin);
            set.commit(version).unwrap();
            if version > 1 {
                set.retire(version - 1, 0, 1).unwrap();
            }
        }
    });
}
