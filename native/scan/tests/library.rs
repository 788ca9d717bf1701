//! Versions of a library: each equals a map with the same changes, whatever was applied before and after.

mod oracle;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oracle::{Arrays, Chance, Library};
use proptest::prelude::*;
use streamlearn_scan::{Blocks, Cells, Changes, ScanError, Search, Training};

/// The size of one change: how many keys are written and how many removed, of `among` possible ones.
#[derive(Debug, Clone, Copy)]
struct Step {
    changed: u64,
    removed: u64,
    among: u64,
    seed: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![2 => Just(0_u64), 3 => 1..4_u64, 3 => 1..150_u64, 2 => 100..600_u64];
    (size(), size(), prop_oneof![Just(20_u64), Just(400), Just(5000)], any::<u64>())
        .prop_map(|(changed, removed, among, seed)| Step { changed, removed, among, seed })
}

fn arrays(step: Step, dim: usize) -> Arrays {
    let mut chance = Chance(step.seed);
    // Some keys differ in few bits, others in many.
    let mut keys = |count: u64| -> BTreeSet<u64> {
        (0..count)
            .map(|_| chance.below(step.among))
            .map(|key| if key % 2 == 0 { key } else { key << 40 })
            .collect()
    };
    let (changed, removed) = (keys(step.changed), keys(step.removed));
    let removed = removed.difference(&changed).copied().collect();
    Arrays { removed, ..Arrays::random(&mut chance, changed.into_iter().collect(), dim) }
}

fn assert_equal(blocks: &Blocks, library: &Library, keys: &BTreeSet<u64>) {
    assert_eq!((blocks.len(), blocks.is_empty()), (library.0.len(), library.0.is_empty()));
    for &key in keys {
        assert_eq!(blocks.get(key).as_ref(), library.0.get(&key), "key {key}");
    }
    let user = Chance(7).numbers(blocks.dim());
    let top = blocks.search(&user, &Search::new(1000)).unwrap();
    let best: Vec<(u64, f32)> = top.keys.into_iter().zip(top.scores).collect();
    assert_eq!(best, library.best(&user, 1000, |_| true));
}

fn cells(dim: usize, count: usize) -> Arc<Cells> {
    let training = Training { cells: count, rounds: 2, seed: 3 };
    Arc::new(Cells::train(dim, &Chance(5).numbers(count * 2 * dim), &training).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_version_equals_a_map_with_its_changes(
        steps in prop::collection::vec(step(), 1..8),
        dim in prop_oneof![Just(4_usize), Just(12), Just(64)],
        count in prop_oneof![Just(0_usize), Just(1), Just(9)],
    ) {
        let first = if count == 0 { Blocks::new(dim).unwrap() } else { Blocks::with_cells(cells(dim, count)) };
        let (mut versions, mut keys) = (vec![(first, Library::default())], BTreeSet::new());
        for step in steps {
            let arrays = arrays(step, dim);
            let (blocks, library) = versions.last().unwrap();
            let next = (blocks.apply(&arrays.changes()).unwrap(), library.with(&arrays.changes(), dim));
            keys.extend(arrays.keys.iter().chain(&arrays.removed));
            versions.push(next);
        }
        versions.iter().for_each(|(blocks, library)| assert_equal(blocks, library, &keys));
    }

    #[test]
    fn blocks_do_not_depend_on_how_changes_are_divided(
        step in step(),
        share in 1..200_usize,
    ) {
        let (dim, arrays) = (8, arrays(step, 8));
        let mut parts = Blocks::new(dim).unwrap();
        let whole = parts.apply(&arrays.changes()).unwrap();
        for (at, keys) in arrays.keys.chunks(share).enumerate() {
            let values = &arrays.values[at * share * dim..][..keys.len() * dim];
            let scales = &arrays.scales[at * share..][..keys.len()];
            parts = parts.apply(&Changes { keys, values, scales, removed: &[] }).unwrap();
        }
        let users = Chance(step.seed).numbers(3 * dim);
        let search = Search::new(50);
        prop_assert_eq!(parts.search(&users, &search).unwrap(), whole.search(&users, &search).unwrap());
    }
}

#[test]
fn a_search_of_a_version_gives_the_same_while_others_are_applied() {
    let (dim, mut chance) = (16, Chance(1));
    let arrays = Arrays::random(&mut chance, (0..3000).collect(), dim);
    let blocks = Blocks::new(dim).unwrap().apply(&arrays.changes()).unwrap();
    let users = chance.numbers(5 * dim);
    let search = |blocks: &Blocks| blocks.search(&users, &Search::new(20)).unwrap();
    let (before, is_over) = (search(&blocks), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    assert_eq!(search(&blocks), before);
                }
            });
        }
        let mut newer = blocks.clone();
        for version in 0..30_u64 {
            let keys = (0..300).map(|at| at * 10 + version % 10).collect();
            let removed = (0..100).map(|at| at * 30 + (version + 1) % 10).collect();
            let arrays = Arrays { removed, ..Arrays::random(&mut chance, keys, dim) };
            newer = newer.apply(&arrays.changes()).unwrap();
        }
        is_over.store(true, Ordering::Release);
        assert_ne!(search(&newer), before);
    });
    assert_eq!(search(&blocks), before);
}

#[test]
fn removed_rows_leave_no_blocks_behind() {
    let (dim, mut chance) = (4, Chance(2));
    let arrays = Arrays::random(&mut chance, (0..1000).collect(), dim);
    let empty = Blocks::new(dim).unwrap();
    let full = empty.apply(&arrays.changes()).unwrap();
    let mut blocks = full.clone();
    for _ in 0..5 {
        let removed = Changes { removed: &arrays.keys, ..Changes::default() };
        blocks = blocks.apply(&removed).unwrap();
        assert!(blocks.is_empty() && blocks.apply(&removed).unwrap().is_empty());
        blocks = blocks.apply(&arrays.changes()).unwrap();
    }
    assert_eq!(blocks.bytes(), full.bytes());
}

#[test]
fn changes_that_do_not_fit_are_refused() {
    let blocks = Blocks::new(4).unwrap();
    let changes = Changes { keys: &[1, 2], values: &[0; 8], scales: &[1.0, 1.0], removed: &[] };
    assert_eq!(blocks.apply(&changes).unwrap().len(), 2);
    for wrong in [
        Changes { values: &[0; 7], ..changes },
        Changes { scales: &[1.0], ..changes },
        Changes { keys: &[1], ..changes },
    ] {
        assert!(matches!(blocks.apply(&wrong), Err(ScanError::Argument(_))));
    }
    for scale in [f32::NAN, f32::INFINITY, -1.0, 1.1e15] {
        let wrong = Changes { scales: &[1.0, scale], ..changes };
        assert_eq!(blocks.apply(&wrong).unwrap_err(), ScanError::Value { vector: 1 });
    }
    let (twice, both) = (Changes { keys: &[7, 7], ..changes }, Changes { removed: &[3, 2], ..changes });
    assert_eq!(blocks.apply(&twice).unwrap_err(), ScanError::Twice { key: 7 });
    assert_eq!(blocks.apply(&both).unwrap_err(), ScanError::Twice { key: 2 });
    for dim in [0, 3, 6, 516] {
        assert!(Blocks::new(dim).unwrap_err().to_string().contains("4 to 512"), "{dim}");
    }
}

#[test]
fn the_same_rows_get_the_same_cells_however_they_came() {
    let (dim, training) = (8, Training { cells: 5, rounds: 3, seed: 1 });
    let step = |seed| Step { changed: 900, removed: 200, among: 1200, seed };
    let (first, second) = (arrays(step(1), dim), arrays(step(2), dim));
    let library = Library::default().with(&first.changes(), dim).with(&second.changes(), dim);
    let blocks = Blocks::new(dim).unwrap().apply(&first.changes()).unwrap();
    let one = blocks.apply(&second.changes()).unwrap().in_cells(&training).unwrap();
    let (keys, rows): (Vec<u64>, Vec<_>) = library.0.iter().rev().unzip();
    let values: Vec<i8> = rows.iter().flat_map(|row| row.values.clone()).collect();
    let scales: Vec<f32> = rows.iter().map(|row| row.scale).collect();
    let all = Changes { keys: &keys, values: &values, scales: &scales, removed: &[] };
    let divided = blocks.in_cells(&training).unwrap().apply(&second.changes()).unwrap();
    let other = Blocks::new(dim).unwrap().apply(&all).unwrap().in_cells(&training).unwrap();
    let keys = keys.into_iter().collect();
    for blocks in [&one, &other, &divided] {
        assert_equal(blocks, &library, &keys);
        assert_eq!(blocks.cells().map(Cells::count), Some(5));
    }
    let centroids = |blocks: &Blocks| (0..5).map(|cell| blocks.cells()?.centroid(cell)).collect::<Vec<_>>();
    assert_eq!(centroids(&one), centroids(&other));
    assert_ne!(centroids(&one), centroids(&divided));
    let (user, probing) = (Chance(9).numbers(dim), Search { probes: Some(2), ..Search::new(40) });
    assert_eq!(one.search(&user, &probing), other.search(&user, &probing));
}

#[test]
fn fewer_rows_than_cells_are_refused() {
    let blocks = Blocks::new(8).unwrap();
    let error = blocks.in_cells(&Training { cells: 2, rounds: 1, seed: 0 }).unwrap_err();
    assert!(matches!(error, ScanError::Argument(text) if text.contains("0 values for 2 cells")));
}
