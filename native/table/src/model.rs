//! The model check: runs the real table with the checker's atomics and locks, with one or two readers and
//! writers.
//!
//! The checker tries every order of their steps up to a number of preemptions, and every value that a load
//! may return. A row is four floats, two words. It is consistent if all are equal, and absent if they are 0.

pub mod cells;

use std::sync::Arc;

use loom::thread::JoinHandle;

use crate::put::{Again, Embeddings, Rows};
use crate::set::TableSet;
use crate::storage::grace::Grace;
use crate::storage::index::{mix, part_of};
use crate::storage::initial::Initial;
use crate::storage::row_type::RowType;
use crate::table::TableSettings;
use crate::table_set::At;

const DIM: usize = 4;
/// Maximum words that one check may access.
const WORDS_MAX: usize = 400;
/// Unoptimised stack frames are larger than the checker's default.
const STACK_BYTES: usize = 1 << 18;
/// The number of preemptions unless the environment sets one.
const PREEMPTIONS: usize = 2;

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    loom::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("the checker starts threads")
}

/// Tries the orders of the operations of `threads` after its `begin`, with the preemption bound of the
/// environment.
fn check(threads: impl Fn() + Send + Sync + 'static) {
    let preemption_bound = loom::model::Builder::new().preemption_bound;
    check_with(preemption_bound.unwrap_or(PREEMPTIONS), threads);
}

/// Tries the orders with at most this many preemptions.
fn check_with(preemptions: usize, threads: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let (threads, tried) = (Arc::new(threads), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let counted = tried.clone();
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        cells::reset();
        let threads = threads.clone();
        spawn(move || threads()).join().expect("the first thread ends");
    });
    println!("{} orders", tried.load(std::sync::atomic::Ordering::Relaxed));
}

/// A table and operations on it.
struct Case {
    set: TableSet,
}

/// A key of the first part; keys of one line come first.
fn key(number: usize) -> u64 {
    (0..u64::MAX).filter(|&key| part_of(mix(key)) == 0).nth(number).expect("there are many")
}

impl Case {
    fn new() -> Arc<Self> {
        let settings = TableSettings {
            dim: DIM,
            row_type: RowType::F32,
            rule: None,
            admission: None,
            initial: Initial { seed: 0, range: 0.0 },
            tick_ms: 1,
            rows_max: 64,
        };
        Arc::new(Self { set: TableSet::new(&[settings]).expect("small tables fit") })
    }

    /// A table with versions 1, 2, ... of one key, whose value is the version's number.
    fn with_versions(versions: u64) -> Arc<Self> {
        let case = Self::new();
        for version in 1..=versions {
            case.put(0, version as f32);
            case.keep(version);
        }
        case
    }

    fn put(&self, number: usize, value: f32) {
        let rows = Rows { embeddings: Embeddings::Floats(&[value; DIM]), state: None, uses: None };
        self.set.tables()[0].put(&[key(number)], rows, Again::Replaces, 1).expect("there is room");
    }

    fn remove(&self, number: usize) {
        self.set.tables()[0].remove(&[key(number)], Again::Replaces, 1).expect("there is room");
    }

    fn keep(&self, version: u64) {
        self.set.seal(version).and_then(|()| self.set.commit(version)).expect("it is the next");
    }

    /// Retires a version; gives up if a reader is in the way, as a caller would.
    fn retire(&self, version: u64) {
        self.set.retire(version, 0, 1).expect("it may be retired");
    }

    /// Retires a version whose images wait for a reader.
    fn retire_under_a_reader(&self, version: u64) {
        let _reading = self.set.readings(At::Newest).expect("there is always a newest");
        self.retire(version);
    }

    /// Frees images whose readers have passed.
    fn sweep(&self) {
        self.set.sweep(0, 1).expect("rows go");
    }

    fn read(&self, number: usize, at: At) -> f32 {
        let mut row = [-1.0; DIM];
        self.set.tables()[0].lookup(&[key(number)], at, &mut row, 1).expect("there is such a version");
        assert!(row.iter().all(|&float| float == row[0]), "a torn row: {row:?}");
        row[0]
    }
}

/// The values that a reader sees must follow the order of `values`, never going back.
fn follows(values: &[f32], seen: &[f32]) {
    let mut remaining = values.iter();
    let mut last_value = None;
    for value in seen {
        if last_value == Some(value) {
            continue;
        }
        assert!(remaining.any(|next| next == value), "{seen:?} of what was {values:?}");
        last_value = Some(value);
    }
}

/// Lets a reader read a key while a writer works, twice if the value may change; the values must follow
/// `values`.
fn reads(case: &Arc<Case>, at: At, values: &'static [f32], write: fn(&Case)) {
    cells::begin(WORDS_MAX);
    // Both get a thread of their own, so that either order costs no preemption.
    let (reader_case, writer_case) = (case.clone(), case.clone());
    let looks = values.len().min(2);
    let reader = spawn(move || {
        let seen: Vec<f32> = (0..looks).map(|_| reader_case.read(0, at)).collect();
        follows(values, &seen);
    });
    spawn(move || write(&writer_case)).join().expect("the writer ends");
    reader.join().expect("the reader saw whole rows");
    cells::end();
}

#[test]
fn a_row_changed_in_place_is_read_whole() {
    check(|| {
        let case = Case::new();
        case.put(0, 1.0);
        reads(&case, At::Newest, &[1.0, 2.0], |case| case.put(0, 2.0));
    });
}

#[test]
fn a_row_is_there_before_its_key_leads_to_it() {
    check(|| {
        let case = Case::new();
        case.put(1, 9.0);
        reads(&case, At::Newest, &[0.0, 1.0], |case| case.put(0, 1.0));
    });
}

#[test]
fn a_row_is_used_again_after_its_readers_have_passed() {
    check(|| {
        let case = Case::new();
        case.put(0, 1.0);
        reads(&case, At::Newest, &[1.0, 0.0, 3.0], |case| {
            case.remove(0);
            case.put(1, 9.0);
            case.put(0, 3.0);
        });
    });
}

#[test]
fn a_pinned_reader_sees_its_version_while_images_take_its_place() {
    check(|| {
        let case = Case::with_versions(1);
        let pin = case.set.pin(1).expect("it is retained");
        reads(&case, pin.at(), &[1.0], |case| {
            case.put(0, 2.0);
            case.put(0, 3.0);
        });
    });
}

#[test]
fn a_reader_of_the_newest_follows_images_and_tombstones() {
    check(|| {
        let case = Case::with_versions(1);
        reads(&case, At::Newest, &[1.0, 2.0, 0.0, 3.0], |case| {
            case.put(0, 2.0);
            case.remove(0);
            case.put(0, 3.0);
        });
    });
}

#[test]
fn a_retired_versions_rows_are_used_again_after_its_readers_have_passed() {
    check(|| {
        let case = Case::with_versions(2);
        case.set.activate(1).expect("it is retained");
        reads(&case, At::Active, &[1.0, 2.0], |case| {
            case.set.activate(2).expect("it is retained");
            case.retire(1);
            case.put(1, 8.0);
            case.put(2, 9.0);
        });
    });
}

#[test]
fn a_pinned_reader_sees_its_version_while_an_older_one_is_retired() {
    check(|| {
        let case = Case::with_versions(2);
        let pin = case.set.pin(2).expect("it is retained");
        case.put(0, 3.0);
        case.retire_under_a_reader(1);
        reads(&case, pin.at(), &[2.0], |case| {
            case.sweep();
            case.put(1, 8.0);
            case.put(2, 9.0);
        });
    });
}

#[test]
fn a_pinned_reader_sees_its_version_while_a_middle_one_is_retired() {
    check(|| {
        let case = Case::with_versions(3);
        let pin = case.set.pin(1).expect("it is retained");
        case.retire_under_a_reader(2);
        reads(&case, pin.at(), &[1.0], |case| {
            case.sweep();
            case.put(1, 8.0);
            case.put(2, 9.0);
        });
    });
}

#[test]
fn a_key_that_is_gone_leaves_its_line_when_its_version_is_retired() {
    check(|| {
        let case = Case::with_versions(1);
        case.remove(0);
        case.keep(2);
        case.set.activate(1).expect("it is retained");
        reads(&case, At::Active, &[1.0, 0.0], |case| {
            case.set.activate(2).expect("it is retained");
            case.retire(1);
            case.put(1, 8.0);
            case.put(0, 9.0);
        });
    });
}

#[test]
fn a_reader_of_the_newest_sees_what_is_discarded_or_what_was_before() {
    check(|| {
        let case = Case::with_versions(1);
        case.put(0, 2.0);
        reads(&case, At::Newest, &[2.0, 1.0, 3.0], |case| {
            case.set.discard(1).expect("nothing is pinned");
            case.put(1, 9.0);
            case.put(0, 3.0);
        });
    });
}

#[test]
fn a_reader_of_the_newest_sees_its_key_go_when_nothing_was_ever_kept() {
    check(|| {
        let case = Case::new();
        case.put(0, 1.0);
        reads(&case, At::Newest, &[1.0, 0.0, 3.0], |case| {
            case.set.discard(1).expect("nothing is pinned");
            case.put(1, 9.0);
            case.put(0, 3.0);
        });
    });
}

#[test]
fn a_pinned_reader_sees_its_version_while_what_came_after_is_discarded() {
    check(|| {
        let case = Case::with_versions(1);
        case.put(0, 2.0);
        let pin = case.set.pin(1).expect("it is retained");
        reads(&case, pin.at(), &[1.0], |case| {
            case.set.discard(1).expect("nothing that goes is pinned");
            case.put(1, 8.0);
            case.put(0, 9.0);
        });
    });
}

/// Lets a reader read a key while two writers work; it must see one of `values`.
fn reads_of_two(case: &Arc<Case>, at: At, values: &'static [f32], writes: [fn(&Case); 2]) {
    cells::begin(WORDS_MAX);
    let (reader_case, first_case, second_case) = (case.clone(), case.clone(), case.clone());
    let reader = spawn(move || {
        let seen = reader_case.read(0, at);
        assert!(values.contains(&seen), "{seen} is none of {values:?}");
    });
    let writer = spawn(move || writes[0](&first_case));
    spawn(move || writes[1](&second_case)).join().expect("the other writer ends");
    writer.join().expect("the writer ends");
    reader.join().expect("the reader saw whole rows");
    cells::end();
}

#[test]
fn a_row_that_one_writer_let_go_of_and_another_wrote_is_read_whole() {
    check(|| {
        let case = Case::with_versions(1);
        case.put(0, 2.0);
        let writes: [fn(&Case); 2] = [|case| case.remove(0), |case| case.put(0, 3.0)];
        reads_of_two(&case, At::Newest, &[2.0, 0.0, 3.0], writes);
    });
}

#[test]
fn an_image_that_one_writer_took_out_is_not_taken_for_what_another_entered() {
    check(|| {
        let case = Case::with_versions(2);
        let pin = case.set.pin(2).expect("it is retained");
        case.retire_under_a_reader(1);
        let writes: [fn(&Case); 2] = [Case::sweep, |case| case.put(1, 9.0)];
        reads_of_two(&case, pin.at(), &[2.0], writes);
    });
}

/// A part whose lines are full.
fn full() -> Arc<Case> {
    let case = Case::new();
    (0..8).for_each(|number| case.put(number, 1.0));
    case
}

#[test]
fn a_reader_finds_its_key_while_the_lines_grow() {
    check(|| {
        reads(&full(), At::Newest, &[1.0, 2.0], |case| {
            case.put(8, 9.0);
            case.put(0, 2.0);
        });
    });
}

#[test]
fn lines_are_given_back_after_their_readers_have_passed() {
    check(|| {
        // The other writer's knowledge of readers may date from before the lines grew.
        let writes: [fn(&Case); 2] = [|case| case.put(8, 9.0), |case| case.put(1, 9.0)];
        reads_of_two(&full(), At::Newest, &[1.0], writes);
    });
}

#[test]
fn nothing_has_passed_that_a_reader_may_still_see() {
    // A small case, so more preemptions are affordable; fewer than four would not reveal a bug.
    check_with(5, || {
        struct Linked {
            grace: Grace,
            is_linked: cells::AtomicU64,
            is_used_again: cells::AtomicU64,
            waiting: loom::sync::Mutex<Option<u64>>,
        }
        let linked = Arc::new(Linked {
            grace: Grace::default(),
            is_linked: cells::AtomicU64::new(1),
            is_used_again: cells::AtomicU64::new(0),
            waiting: loom::sync::Mutex::default(),
        });
        use std::sync::atomic::Ordering::Relaxed;
        cells::begin(WORDS_MAX);
        let reads = linked.clone();
        let reader = spawn(move || {
            let _stay = reads.grace.enter();
            if reads.is_linked.load(Relaxed) == 1 {
                assert_eq!(reads.is_used_again.load(Relaxed), 0, "used again under a reader");
            }
        });
        let collects = linked.clone();
        let other = spawn(move || {
            let passed = collects.grace.passed();
            if collects.waiting.lock().expect("no holder panics").is_some_and(|stamp| stamp < passed) {
                collects.is_used_again.store(1, Relaxed);
            }
        });
        {
            let mut waiting = linked.waiting.lock().expect("no holder panics");
            linked.is_linked.store(0, Relaxed);
            *waiting = Some(linked.grace.stamp());
        }
        reader.join().expect("the reader ends");
        other.join().expect("the other writer ends");
        cells::end();
    });
}
