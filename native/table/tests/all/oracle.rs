//! Every operation in any order, compared with tables of plain maps.

use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use crate::plain::*;
use proptest::prelude::*;
use streamlearn_table::*;

#[derive(Debug, Clone)]
enum Step {
    Put { numbers: Vec<u64>, seed: u32, again: bool },
    Remove { numbers: Vec<u64>, again: bool },
    Push { numbers: Vec<u64>, seed: u32 },
    Expire { expiry: Expiry, budget_keys: usize },
    ExpireAll(Expiry),
    Pass(i64),
    Seal,
    Commit,
    Abandon,
    Discard,
    Retire(usize),
    Activate(usize),
    Pin(usize),
    Unpin,
    Export(usize, usize),
    ReadExport,
    Changed,
}

/// An export during other writes, and its expected content.
struct Going {
    export: Export,
    since: Option<Version>,
    upto: Version,
    is_over: bool,
}

/// The tables, and their expected state.
struct Run {
    set: TableSet,
    plain: Vec<Plain>,
    sealed: Option<Version>,
    /// Versions sealed and abandoned since the newest commit: their images exist until the next commit.
    abandoned: Vec<Version>,
    retained: Vec<Version>,
    active: Option<u64>,
    pins: Vec<(Pin, u64)>,
    going: Option<Going>,
    number: u64,
    now_ms: i64,
    threads: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let few = || prop::collection::vec(0..KEYS, 1..12);
    let keys = || prop_oneof![3 => few(), 1 => prop::collection::vec(0..KEYS, 40..90)];
    let expiry = || {
        let limits = [None, Some(0), Some(3_000), Some(20_480), Some(61_440)];
        // Whole ticks, so that some keys are just not idle for long enough.
        let idle = prop::option::of((0i64..40).prop_map(|ticks| ticks * 1_000));
        (idle, 0u8..5, 0i64..20, prop::sample::select(limits.to_vec())).prop_map(
            |(idle_ms, count_min, rare, keys_max)| Expiry {
                idle_ms,
                count_min,
                rare_idle_ms: rare * 1_000,
                keys_max,
            },
        )
    };
    let step = prop_oneof![
        6 => (keys(), any::<u32>(), prop::bool::weighted(0.2))
            .prop_map(|(numbers, seed, again)| Step::Put { numbers, seed, again }),
        3 => (keys(), prop::bool::weighted(0.2)).prop_map(|(numbers, again)| Step::Remove { numbers, again }),
        5 => (keys(), any::<u32>()).prop_map(|(numbers, seed)| Step::Push { numbers, seed }),
        2 => (expiry(), 1usize..60).prop_map(|(expiry, budget_keys)| Step::Expire { expiry, budget_keys }),
        1 => expiry().prop_map(Step::ExpireAll),
        3 => (0i64..15_000).prop_map(Step::Pass),
        4 => Just(Step::Seal),
        4 => Just(Step::Commit),
        2 => Just(Step::Abandon),
        2 => Just(Step::Discard),
        5 => prop_oneof![Just(0), 0..4usize].prop_map(Step::Retire),
        2 => (0..4usize).prop_map(Step::Activate),
        3 => prop_oneof![Just(0), 0..5usize].prop_map(Step::Pin),
        2 => Just(Step::Unpin),
        2 => (0..4usize, 0..5usize).prop_map(|(since, upto)| Step::Export(since, upto)),
        2 => Just(Step::ReadExport),
        1 => Just(Step::Changed),
    ];
    prop::collection::vec(step, 1..140)
}

/// Numbers between -4 and 4, never zero.
fn numbers_of(seed: u32, count: usize) -> Vec<f32> {
    let number = |at: usize| (seed ^ at as u32).wrapping_mul(0x9E37_79B1) >> 20;
    (0..count).map(|at| (number(at) as f32 - 2_048.5) / 512.0).collect()
}

impl Run {
    fn new(threads: usize) -> Self {
        let set = TableSet::new(&settings()).unwrap();
        let plain = settings().into_iter().map(Plain::new).collect();
        let (sealed, retained, active, pins, going) = (None, Vec::new(), None, Vec::new(), None);
        let abandoned = Vec::new();
        Self {
            set,
            plain,
            sealed,
            abandoned,
            retained,
            active,
            pins,
            going,
            number: 0,
            now_ms: 50_000,
            threads,
        }
    }

    fn is_versioned(&self) -> bool {
        self.sealed.is_some() || !self.abandoned.is_empty() || !self.retained.is_empty()
    }

    fn versions(&self) -> Vec<&Version> {
        self.retained.iter().chain(&self.sealed).collect()
    }

    fn contents(&self) -> Vec<Content> {
        self.plain.iter().map(|plain| plain.open.clone()).collect()
    }

    fn is_held(&self, number: u64) -> bool {
        let is_exported = |going: &Going| {
            let since = going.since.as_ref().map(|since| since.number);
            !going.is_over && (going.upto.number == number || since == Some(number))
        };
        self.pins.iter().any(|pin| pin.1 == number) || self.going.as_ref().is_some_and(is_exported)
    }

    fn may_discard(&self) -> bool {
        !self.sealed.as_ref().is_some_and(|sealed| self.pins.iter().any(|pin| pin.1 == sealed.number))
    }

    /// Whether a key is written a second time where that is not allowed.
    fn is_twice(&self, at: usize, numbers: &[u64], is_put: bool) -> bool {
        let (plain, is_versioned) = (&self.plain[at], self.is_versioned());
        let mut seen = HashSet::new();
        numbers.iter().any(|&number| {
            let was_seen = !seen.insert(number) && (is_put || is_versioned);
            was_seen || plain.is_written(number, is_versioned)
        })
    }

    /// Whether the writes failed as required for a repeated key; everything is discarded then.
    fn refused(&mut self, numbers: &[u64], is_put: bool, write: impl Fn(&Table) -> Result<()>) -> bool {
        let twice: Vec<bool> = (0..self.plain.len()).map(|at| self.is_twice(at, numbers, is_put)).collect();
        if !twice.contains(&true) || !self.may_discard() {
            return false;
        }
        for (table, &is_twice) in self.set.tables().iter().zip(&twice) {
            match write(table) {
                Ok(()) => assert!(!is_twice, "{numbers:?} are written twice"),
                Err(TableError::Twice { key: twice }) => {
                    assert!(is_twice && keys(numbers).contains(&twice), "{numbers:?} are not written twice");
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.discard();
        true
    }

    fn put(&mut self, numbers: &[u64], seed: u32, again: bool) {
        let (keys, threads) = (keys(numbers), self.threads);
        let again = if again { Again::Refused } else { Again::Replaces };
        if again == Again::Refused {
            let zeros = |settings: &TableSettings| vec![0.0; numbers.len() * settings.dim];
            let write = |table: &Table| {
                let embeddings = zeros(&table.settings);
                let rows = Rows { embeddings: Embeddings::Floats(&embeddings), state: None, uses: None };
                table.put(&keys, rows, again, threads)
            };
            if self.refused(numbers, true, write) || !self.may_discard() {
                return;
            }
        }
        let uses: Vec<Use> = (0..numbers.len() as u32)
            .map(|at| Use { tick: tick(self.now_ms) - (seed ^ at) % 40, count: (seed >> (at % 8)) as u8 })
            .collect();
        let uses = (seed & 1 == 0).then_some(&uses[..]);
        for (table, plain) in self.set.tables().iter().zip(&mut self.plain) {
            let settings = plain.settings;
            let (dim, state_floats) = (settings.dim, settings.state());
            let rows = numbers_of(seed, numbers.len() * dim);
            let mut initial_state = vec![0.0; state_floats];
            settings.rule.inspect(|rule| rule.begin(&mut initial_state));
            let state = numbers_of(!seed, numbers.len() * state_floats);
            let state = (seed & 2 == 0).then_some(&state[..]);
            let (mut wire, mut scales) = (Vec::new(), Vec::new());
            for (at, &number) in numbers.iter().enumerate() {
                let embedding = encode(&settings, &rows[at * dim..][..dim]);
                let begin = wire.len();
                wire.resize(begin + dim * settings.row_type.number_bytes(), 0);
                scales.extend(settings.row_type.to_wire(&embedding, &mut wire[begin..]));
                let state =
                    bits(state.map_or(&initial_state, |state| &state[at * state_floats..][..state_floats]));
                let kept = plain.row(number).filter(|_| settings.rule.is_some());
                let kept = kept.map_or(Use::default(), |stored| stored.used);
                let used = uses.map_or(kept, |uses| uses[at]);
                plain.put(number, Stored { embedding, state, used });
            }
            let embeddings = match seed & 4 {
                0 => Embeddings::Floats(&rows),
                _ => Embeddings::Wire(&wire, settings.row_type.has_scale().then_some(&scales[..])),
            };
            table.put(&keys, Rows { embeddings, state, uses }, again, threads).unwrap();
        }
    }

    fn remove(&mut self, numbers: &[u64], again: bool) {
        let (keys, threads, is_versioned) = (keys(numbers), self.threads, self.is_versioned());
        let again = if again { Again::Refused } else { Again::Replaces };
        if again == Again::Refused {
            let write = |table: &Table| table.remove(&keys, again, threads).map(drop);
            // Before the first version no key can be removed.
            if !is_versioned || self.refused(numbers, false, write) || !self.may_discard() {
                return;
            }
        }
        for (table, plain) in self.set.tables().iter().zip(&mut self.plain) {
            let mut present = 0;
            for &number in numbers {
                let was_present = plain.remove(number, is_versioned);
                present += usize::from(was_present);
                if !was_present && again == Again::Refused {
                    plain.bury(number);
                }
            }
            assert_eq!(table.remove(&keys, again, threads).unwrap(), present);
        }
    }

    fn push(&mut self, numbers: &[u64], seed: u32) {
        let keys = keys(numbers);
        let counts: Vec<u32> = (0..numbers.len() as u32).map(|at| (seed >> (at % 16)) % 4).collect();
        let half = numbers.len() / 2;
        let runs = [
            Admit { end: half, threshold: seed % 5 },
            Admit { end: half, threshold: 9 },
            Admit { end: numbers.len() - half / 2, threshold: 2 },
        ];
        for (table, plain) in self.set.tables().iter().zip(&mut self.plain) {
            let gradients = numbers_of(seed, numbers.len() * plain.settings.dim);
            let push = Push {
                keys: &keys,
                gradients: &gradients,
                counts: (seed & 8 == 0).then_some(&counts[..]),
                admit: if plain.settings.admission.is_some() { &runs } else { &[] },
                now_ms: self.now_ms,
                rate_scale: (seed % 3) as f32 * 0.5 + 0.5,
            };
            if plain.settings.rule.is_none() {
                assert!(matches!(table.push(push, self.threads), Err(TableError::Argument(_))));
                continue;
            }
            assert_eq!(table.push(push, self.threads).unwrap(), plain.push(numbers, &push));
        }
    }

    /// Checks that the removed keys were allowed to leave; returns how many left.
    fn expire(&mut self, expiry: &Expiry, budget_keys: usize) -> usize {
        let (is_versioned, now_ms) = (self.is_versioned(), self.now_ms);
        let mut left_total = 0;
        for (table, plain) in self.set.tables().iter().zip(&mut self.plain) {
            let expired = table.expire(expiry, now_ms, budget_keys).unwrap();
            let before: Vec<u64> = (0..KEYS).filter(|&number| plain.row(number).is_some()).collect();
            let removed: Vec<u64> =
                before.iter().copied().filter(|&number| has_left(table, plain, number)).collect();
            let mut counts = [0; 3];
            for &number in &removed {
                match qualifies(plain.row(number).unwrap().used, expiry, now_ms) {
                    [true, _] => counts[0] += 1,
                    [_, true] => counts[1] += 1,
                    _ => counts[2] += 1,
                }
            }
            assert_eq!([expired.idle, expired.rare, expired.over], counts, "{expiry:?} at {now_ms}");
            if counts[2] > 0 {
                let keys_max = expiry.keys_max.expect("only a limit removes keys as too many");
                assert!(before.len() - removed.len() >= keys_max, "more keys left than exceeded the limit");
            }
            removed.iter().for_each(|&number| assert!(plain.remove(number, is_versioned)));
            left_total += removed.len();
        }
        left_total
    }

    fn expire_all(&mut self, expiry: &Expiry) {
        let mut calls = 0;
        while self.expire(expiry, usize::MAX) > 0 {
            calls += 1;
            assert!(calls < 60, "expiry ends");
        }
        for plain in &self.plain {
            let present: Vec<u64> = (0..KEYS).filter(|&number| plain.row(number).is_some()).collect();
            for &number in &present {
                let reasons = qualifies(plain.row(number).unwrap().used, expiry, self.now_ms);
                assert_eq!(reasons, [false; 2], "key {number} stays: {expiry:?}");
            }
            assert!(expiry.keys_max.is_none_or(|keys_max| present.len() <= keys_max));
        }
    }

    fn seal(&mut self) {
        self.number += 1;
        let sealed = self.set.seal(self.number);
        assert_eq!(sealed.is_ok(), self.sealed.is_none());
        if sealed.is_ok() {
            self.sealed = Some(Version { number: self.number, tables: self.contents() });
            self.plain.iter_mut().for_each(|plain| plain.written.clear());
        }
        let sealed = self.sealed.as_ref().unwrap().number;
        assert_eq!(self.set.sealed(), Some(sealed));
        self.set.seal(sealed).unwrap();
    }

    fn commit(&mut self) {
        if let Some(sealed) = self.sealed.take() {
            assert!(self.set.commit(sealed.number + 1).is_err());
            self.set.commit(sealed.number).unwrap();
            self.set.sweep(1_000, self.threads).unwrap();
            self.retained.push(sealed);
            if !std::mem::take(&mut self.abandoned).is_empty() && self.retained.len() == 1 {
                self.leave_for_good();
            }
        } else {
            assert!(self.set.commit(self.number + 1).is_err());
        }
        let retained: Vec<u64> = self.retained.iter().map(|version| version.number).collect();
        assert_eq!(self.set.retained(), retained);
        // Something may have been written since the version was sealed.
        let staged = self.set.check_parent(retained.last().copied());
        assert!(matches!(staged, Ok(()) | Err(TableError::Busy(_))), "{staged:?}");
        assert!(self.set.check_parent(Some(u64::MAX)).is_err());
    }

    /// A held sealed version cannot be abandoned; otherwise it is as if it had not been sealed.
    fn abandon(&mut self) {
        let Some(sealed) = &self.sealed else {
            assert!(self.set.abandon(self.number + 1).is_err());
            return;
        };
        let number = sealed.number;
        let is_exported = self.going.as_ref().is_some_and(|going| going.upto.number == number);
        let abandoned = self.set.abandon(number);
        assert_eq!(abandoned.is_ok(), !is_exported && !self.is_held(number), "{abandoned:?}");
        if abandoned.is_ok() {
            // The last abandoned version includes the writes of the earlier ones.
            let was_first = self.retained.is_empty() && !self.abandoned.is_empty();
            self.set.sweep(1_000, self.threads).unwrap();
            self.abandoned = self.sealed.take().into_iter().collect();
            if was_first {
                self.leave_for_good();
            }
            self.set.abandon(number).unwrap();
            let newest = self.retained.last().map(|last| last.number);
            assert!(self.set.check_parent(newest).is_err(), "the open version contains its writes");
        }
    }

    fn discard(&mut self) {
        let discarded = self.set.discard(self.threads);
        assert_eq!(discarded.is_ok(), self.may_discard());
        if discarded.is_err() {
            return;
        }
        self.sealed = None;
        self.abandoned.clear();
        self.going.iter_mut().for_each(|going| going.is_over = true);
        self.going.iter().for_each(|going| self.check_export(going));
        for (at, plain) in self.plain.iter_mut().enumerate() {
            plain.open = self.retained.last().map(|last| last.tables[at].clone()).unwrap_or_default();
            plain.written.clear();
        }
    }

    fn retire(&mut self, at: usize) {
        let Some(number) = self.retained.get(at).map(|version| version.number) else { return };
        let may_retire = at + 1 < self.retained.len() && self.active != Some(number) && !self.is_held(number);
        // A version of a cancelled export is held while the export exists.
        let is_exported = self.going.as_ref().is_some_and(|going| {
            going.upto.number == number || going.since.as_ref().is_some_and(|since| since.number == number)
        });
        if is_exported && may_retire {
            self.going = None;
        }
        let retired = self.set.retire(number, 1_000, self.threads);
        assert_eq!(retired.is_ok(), may_retire, "{retired:?}");
        let Ok(remaining) = retired else { return };
        assert_eq!((remaining, self.set.retiring()), (0, 0));
        self.retained.remove(at);
        if at == 0 {
            self.leave_for_good();
        }
    }

    fn leave_for_good(&mut self) {
        // A key that is gone in the oldest version is gone for all readers, and is removed for good.
        let oldest = self.retained.first().or(self.abandoned.first()).expect("there is one");
        for (at, oldest) in oldest.tables.clone().iter().enumerate() {
            for (number, image) in oldest.iter().filter(|(_, image)| image.is_none()) {
                let versions = self.retained.iter_mut().chain(&mut self.abandoned).chain(&mut self.sealed);
                let contents = versions.map(|version| &mut version.tables[at]);
                for content in contents.chain([&mut self.plain[at].open]) {
                    if content.get(number).is_some_and(|other| Rc::ptr_eq(other, image)) {
                        content.remove(number);
                    }
                }
            }
        }
    }

    fn export(&mut self, since: usize, upto: usize) {
        let versions: Vec<Version> = self.versions().into_iter().cloned().collect();
        let Some(upto) = versions.get(upto).cloned() else { return };
        let since = versions.get(since).filter(|since| since.number < upto.number).cloned();
        let export = self.set.changed(since.as_ref().map(|since| since.number), upto.number).unwrap();
        assert!(self.set.changed(Some(upto.number), upto.number).is_err());
        self.going = Some(Going { export, since, upto, is_over: false });
    }

    fn check_export(&self, going: &Going) {
        for (at, table) in self.set.tables().iter().enumerate() {
            for part in PARTS_USED {
                let changes = going.export.read(table, part..part + 1);
                if going.is_over {
                    assert!(matches!(changes, Err(TableError::Busy(_))), "discarded: {changes:?}");
                    continue;
                }
                let of_part = |content: &Content| -> Content {
                    let of_part = content.iter().filter(|(number, _)| part_of(**number) == part);
                    of_part.map(|(&number, image)| (number, image.clone())).collect()
                };
                let since =
                    going.since.as_ref().map_or_else(Content::new, |since| of_part(&since.tables[at]));
                check_changes(&table.settings, &since, &of_part(&going.upto.tables[at]), &changes.unwrap());
            }
        }
    }

    fn changed(&self) {
        let versions = self.versions();
        for (at, &upto) in versions.iter().enumerate() {
            for since in [None].into_iter().chain(versions[..at].iter().map(|&since| Some(since.clone()))) {
                let export = self.set.changed(since.as_ref().map(|since| since.number), upto.number).unwrap();
                self.check_export(&Going { export, since, upto: upto.clone(), is_over: false });
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Put { numbers, seed, again } => self.put(numbers, *seed, *again),
            Step::Remove { numbers, again } => self.remove(numbers, *again),
            Step::Push { numbers, seed } => self.push(numbers, *seed),
            Step::Expire { expiry, budget_keys } => drop(self.expire(expiry, *budget_keys)),
            Step::ExpireAll(expiry) => self.expire_all(expiry),
            Step::Pass(ms) => self.now_ms += ms,
            Step::Seal => self.seal(),
            Step::Commit => self.commit(),
            Step::Abandon => self.abandon(),
            Step::Discard => self.discard(),
            Step::Retire(at) => self.retire(*at),
            Step::Activate(at) => {
                if let Some(version) = self.retained.get(*at) {
                    self.set.activate(version.number).unwrap();
                    self.active = Some(version.number);
                }
                assert_eq!(self.set.active(), self.active);
            }
            Step::Pin(at) => {
                let number = self.versions().get(*at).map(|version| version.number);
                self.pins.extend(number.map(|number| (self.set.pin(number).unwrap(), number)));
            }
            Step::Unpin => drop(self.pins.pop()),
            Step::Export(since, upto) => self.export(*since, *upto),
            Step::ReadExport => {
                if let Some(going) = self.going.take() {
                    self.check_export(&going);
                }
            }
            Step::Changed => self.changed(),
        }
    }

    fn check_content(&self, at: At, contents: &[Content], repeated: usize) {
        let all: Vec<u64> = (0..KEYS).collect();
        let keys = keys(&all).repeat(repeated);
        for (table, content) in self.set.tables().iter().zip(contents) {
            let settings = &table.settings;
            let mut rows = vec![0.0; keys.len() * settings.dim];
            table.lookup(&keys, at, &mut rows, self.threads).unwrap();
            for (place, row) in rows.chunks(settings.dim).enumerate() {
                let number = place as u64 % KEYS;
                let mut expected = vec![0.0; settings.dim];
                match content.get(&number).and_then(|image| (**image).as_ref()) {
                    Some(stored) => expected = stored.row(settings),
                    None => settings.initial.fill(keys[place], &mut expected),
                }
                assert_eq!(bits(row), bits(&expected), "key {number} at {at:?}");
            }
        }
    }

    fn check(&self, repeated: usize) {
        self.check_content(At::Newest, &self.contents(), repeated);
        for version in self.versions() {
            let pin = self.set.pin(version.number).unwrap();
            self.check_content(pin.at(), &version.tables, repeated);
        }
        self.check_active(repeated);
        self.check_size();
    }

    /// Checks a part of the content, since checking everything takes longer than all the rest.
    fn check_some(&self, step: usize) {
        self.check_content(At::Newest, &self.contents(), 1);
        let versions = self.versions();
        if let Some(version) = versions.get(step % versions.len().max(1)) {
            let pin = self.set.pin(version.number).unwrap();
            self.check_content(pin.at(), &version.tables, 1);
        }
        if step.is_multiple_of(4) {
            self.check_active(1);
            self.check_size();
        }
    }

    fn check_active(&self, repeated: usize) {
        match self.retained.iter().find(|version| Some(version.number) == self.active) {
            Some(active) => self.check_content(At::Active, &active.tables, repeated),
            None => assert!(self.set.tables()[0].lookup(&[], At::Active, &mut [], 1).is_err()),
        }
    }

    /// There is one row for each content of a key that someone may still read, and no other row.
    fn check_size(&self) {
        for (at, (table, plain)) in self.set.tables().iter().zip(&self.plain).enumerate() {
            let versions = self.retained.iter().chain(&self.abandoned).chain(&self.sealed);
            let versions = versions.map(|version| &version.tables[at]);
            let contents: Vec<&Content> = versions.chain([&plain.open]).collect();
            let images: BTreeSet<_> =
                contents.iter().flat_map(|content| content.values()).map(Rc::as_ptr).collect();
            let size = table.size();
            let gone = plain.open.values().filter(|image| image.is_none()).count();
            assert_eq!((size.parts.keys, size.parts.gone), (plain.open.len() - gone, gone));
            assert_eq!(size.rows, images.len(), "rows");
            assert_eq!(size.parts.images, images.len() - contents[0].len(), "images");
        }
    }

    /// With one version left and nothing open, nothing of the others remains.
    fn end(&mut self) {
        self.pins.clear();
        self.going = None;
        if let Some(newest) = self.retained.last().map(|version| version.number) {
            self.set.activate(newest).unwrap();
            self.active = Some(newest);
        }
        while self.retained.len() > 1 {
            self.retire(0);
        }
        self.discard();
        for table in self.set.tables() {
            let size = table.size();
            assert_eq!((size.parts.gone, size.parts.images, size.parts.touched_bytes), (0, 0, 0));
            assert_eq!((size.rows, size.images_bytes), (size.parts.keys, 0));
        }
        self.check(1);
        // Nor of earlier keys.
        self.put(&Vec::from_iter(0..KEYS), 0, false);
        self.check(1);
    }
}

fn has_left(table: &Table, plain: &Plain, number: u64) -> bool {
    let settings = &plain.settings;
    let (mut row, mut initial) = (vec![0.0; settings.dim], vec![0.0; settings.dim]);
    table.lookup(&[key(number)], At::Newest, &mut row, 1).unwrap();
    settings.initial.fill(key(number), &mut initial);
    let stored = plain.row(number).unwrap().row(settings);
    assert_ne!(bits(&stored), bits(&initial), "a stored row differs from the initial row");
    bits(&row) == bits(&initial)
}

/// An export contains the differences, each key once, and turns one content into the other.
fn check_changes(settings: &TableSettings, since: &Content, upto: &Content, changes: &Changes) {
    let rows = rows_in(settings, changes);
    let gone: BTreeSet<u64> = changes.gone.iter().copied().collect();
    assert_eq!(gone.len(), changes.gone.len(), "a key is gone once");
    let differs = |number: &u64| match (since.get(number), upto.get(number)) {
        (Some(earlier), Some(later)) => !Rc::ptr_eq(earlier, later),
        (earlier, later) => earlier.is_some() || later.is_some(),
    };
    let is_there = |content: &Content, number: u64| content.get(&number).is_some_and(|image| image.is_some());
    let changed: Vec<u64> = (0..KEYS).filter(differs).collect();
    let present = changed.iter().filter(|&&number| is_there(upto, number));
    let removed = changed.iter().filter(|&&number| is_there(since, number) && !is_there(upto, number));
    assert!(present.map(|&number| key(number)).collect::<BTreeSet<_>>().iter().eq(rows.keys()));
    assert_eq!(removed.map(|&number| key(number)).collect::<BTreeSet<_>>(), gone);
    let mut applied = rows_of(since);
    applied.retain(|key, _| !gone.contains(key));
    applied.extend(rows);
    assert_eq!(applied, rows_of(upto));
}

proptest! {
    #![proptest_config(cases(30))]
    #[test]
    fn a_set_of_tables_is_what_plain_maps_by_version_are(steps in steps(), threads in 1usize..3) {
        let mut run = Run::new(threads);
        for (number, step) in steps.iter().enumerate() {
            run.apply(step);
            run.check_some(number);
        }
        run.check(24);
        run.changed();
        run.end();
    }
}
