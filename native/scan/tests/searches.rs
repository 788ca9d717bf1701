//! Searches: the best rows are those of a search through all scores, for any vectors, bounds and processor.

mod oracle;

use std::collections::BTreeSet;
use std::sync::Arc;

use oracle::{Arrays, Chance, Library, score};
use proptest::prelude::*;
use streamlearn_scan::{
    Blocks, Cells, Excluded, K_MAX, Kernel, Row, ScanError, Search, Top, Training, USERS_MAX,
};

/// How the rows of a library resemble each other.
#[derive(Debug, Clone, Copy)]
enum World {
    /// Not at all.
    Random,
    /// Many have the same vector.
    Same(u64),
    /// All are near one vector.
    Near,
    /// Lengths differ by many orders of magnitude.
    Lengths,
}

fn library(world: World, rows: u64, dim: usize, seed: u64) -> (Blocks, Library) {
    let mut chance = Chance(seed);
    let mut arrays =
        Arrays::random(&mut chance, (0..rows).map(|key| key.wrapping_mul(0x2545_F491)).collect(), dim);
    match world {
        World::Random => {}
        World::Same(kinds) => {
            for (at, scale) in arrays.scales.iter_mut().enumerate() {
                *scale = (at as u64 % kinds) as f32;
            }
            let first = arrays.values.iter().take(dim).copied().collect::<Vec<i8>>();
            arrays.values.chunks_exact_mut(dim).for_each(|values| values.copy_from_slice(&first));
        }
        World::Near => {
            let first = arrays.values.iter().take(dim).copied().collect::<Vec<i8>>();
            for values in arrays.values.chunks_exact_mut(dim) {
                values.copy_from_slice(&first);
                values[chance.below(dim as u64) as usize] = chance.below(127) as i8;
            }
            arrays.scales.fill(0.01);
        }
        World::Lengths => {
            for scale in &mut arrays.scales {
                *scale = 10_f32.powi(chance.below(50) as i32 - 35);
            }
        }
    }
    let blocks = Blocks::new(dim).unwrap().apply(&arrays.changes()).unwrap();
    (blocks, Library::default().with(&arrays.changes(), dim))
}

fn world() -> impl Strategy<Value = World> {
    prop_oneof![
        Just(World::Random),
        (1..4_u64).prop_map(World::Same),
        Just(World::Near),
        Just(World::Lengths),
    ]
}

/// Users of any magnitude, also zero.
fn user(dim: usize) -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        6 => -1.0..1.0_f32,
        1 => Just(0.0_f32),
        1 => -1e-40..1e-40_f32,
        1 => -1e15..1e15_f32,
    ];
    prop_oneof![
        4 => prop::collection::vec(-1.0..1.0_f32, dim),
        1 => Just(vec![0.0; dim]),
        1 => prop::collection::vec(-1e-20..1e-20_f32, dim),
        2 => prop::collection::vec(number, dim),
    ]
}

fn best_of(top: &Top, user: usize) -> Vec<(u64, f32)> {
    let (keys, scores) = top.of(user);
    keys.iter().copied().zip(scores.iter().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn the_result_is_that_of_all_scores_on_every_kernel_and_any_number_of_threads(
        world in world(),
        rows in prop_oneof![Just(0_u64), 1..70_u64, 500..3000_u64],
        (dim, users) in prop_oneof![Just(4_usize), Just(20), Just(64)]
            .prop_flat_map(|dim| (Just(dim), prop::collection::vec(user(dim), 1..7))),
        k in prop_oneof![0..3_usize, 5..30_usize, Just(5000_usize)],
        threads in 1..4_usize,
        seed in any::<u64>(),
    ) {
        let (blocks, library) = library(world, rows, dim, seed);
        let vectors = users.concat();
        for kernel in Kernel::all() {
            let top = blocks.search(&vectors, &Search { kernel, threads, ..Search::new(k) }).unwrap();
            prop_assert_eq!(top.ends.len(), users.len());
            for (at, user) in users.iter().enumerate() {
                prop_assert_eq!(best_of(&top, at), library.best(user, k, |_| true), "{}", kernel.name());
            }
        }
    }

    #[test]
    fn users_get_no_excluded_keys_and_only_allowed_ones(
        world in world(),
        excluded in prop::collection::vec(prop::collection::vec(0..1500_u64, 0..300), 5),
        allowed in prop::option::of(prop::collection::vec(0..1500_u64, 0..500)),
        seed in any::<u64>(),
    ) {
        let (dim, key) = (8, |at: &u64| at.wrapping_mul(0x2545_F491));
        let (blocks, library) = library(world, 1000, dim, seed);
        let users = Chance(seed).numbers(5 * dim);
        let excluded: Vec<Vec<u64>> = excluded.iter().map(|keys| keys.iter().map(key).collect()).collect();
        let allowed: Option<Vec<u64>> = allowed.map(|keys| keys.iter().map(key).collect());
        let ends: Vec<usize> = excluded.iter().scan(0, |end, keys| { *end += keys.len(); Some(*end) }).collect();
        let search = Search {
            excluded: Excluded { keys: &excluded.concat(), ends: &ends },
            allowed: allowed.as_deref(),
            ..Search::new(40)
        };
        let top = blocks.search(&users, &search).unwrap();
        for (at, user) in users.chunks(dim).enumerate() {
            let is_wanted = |key| {
                !excluded[at].contains(&key) && allowed.as_ref().is_none_or(|allowed| allowed.contains(&key))
            };
            prop_assert_eq!(best_of(&top, at), library.best(user, 40, is_wanted));
        }
    }

    #[test]
    fn probes_give_the_best_of_the_nearest_cells(
        count in 1..12_usize,
        probes in 1..14_usize,
        threads in 1..3_usize,
        seed in any::<u64>(),
    ) {
        let (dim, mut chance) = (8, Chance(seed));
        let training = Training { cells: count, rounds: 3, seed };
        let cells = Arc::new(Cells::train(dim, &chance.numbers(40 * dim), &training).unwrap());
        let arrays = Arrays::random(&mut chance, (0..700).collect(), dim);
        let blocks = Blocks::with_cells(cells.clone()).apply(&arrays.changes()).unwrap();
        let library = Library::default().with(&arrays.changes(), dim);
        let centroids = Library((0..count as u64).map(|cell| (cell, cells.centroid(cell as u32).unwrap())).collect());
        let near = |vector: &[f32], probes| -> BTreeSet<u64> {
            centroids.best(vector, probes, |_| true).into_iter().map(|best| best.0).collect()
        };
        let vector = |row: &Row| row.values.iter().map(|&value| f32::from(value)).collect::<Vec<f32>>();
        let users = chance.numbers(6 * dim);
        let search = Search { probes: Some(probes), threads, ..Search::new(30) };
        let top = blocks.search(&users, &search).unwrap();
        let mut scanned = 0;
        for (at, user) in users.chunks(dim).enumerate() {
            let probed = near(user, probes);
            let is_probed = |key| near(&vector(&library.0[&key]), 1).is_subset(&probed);
            scanned += library.0.keys().filter(|key| is_probed(**key)).count() as u64;
            prop_assert_eq!(best_of(&top, at), library.best(user, 30, is_probed));
        }
        prop_assert_eq!(top.scanned, scanned);
    }
}

#[test]
fn many_users_and_rows_are_searched_at_once() {
    let dim = 32;
    let (blocks, library) = library(World::Random, 20_000, dim, 9);
    let users = Chance(3).numbers(150 * dim);
    let top = blocks.search(&users, &Search { threads: 2, ..Search::new(100) }).unwrap();
    assert_eq!(top.scanned, 150 * 20_000);
    for at in [0, 1, 63, 64, 127, 128, 149] {
        let user = &users[at * dim..][..dim];
        assert_eq!(best_of(&top, at), library.best(user, 100, |_| true));
    }
}

#[test]
fn rows_of_the_same_score_are_in_the_order_of_keys() {
    let (blocks, library) = library(World::Same(1), 2000, 8, 4);
    let top = blocks.search(&Chance(1).numbers(8), &Search::new(300)).unwrap();
    assert!(top.scores.iter().all(|score| score.to_bits() == 0));
    assert_eq!(top.keys, library.0.keys().copied().take(300).collect::<Vec<_>>());
}

#[test]
fn scores_are_products_of_users_and_rows() {
    let row = Row { values: vec![127, -127, 1, 0], scale: 0.5 };
    assert_eq!(score(&[1.0, -1.0, 2.0, 9.0], &row), 128.0);
    let blocks = Blocks::new(4).unwrap();
    let values = &row.values;
    let changes = streamlearn_scan::Changes { keys: &[5], values, scales: &[0.5], removed: &[] };
    let top = blocks.apply(&changes).unwrap().search(&[1.0, -1.0, 2.0, 9.0], &Search::new(1)).unwrap();
    assert_eq!(top, Top { keys: vec![5], scores: vec![128.0], ends: vec![1], scanned: 1 });
}

#[test]
fn centroids_are_the_same_for_the_same_seed() {
    let sample = Chance(8).numbers(300 * 8);
    let train = |seed| {
        let cells = Cells::train(8, &sample, &Training { cells: 16, rounds: 4, seed }).unwrap();
        (0..16).map(|cell| cells.centroid(cell).unwrap()).collect::<Vec<Row>>()
    };
    assert_eq!(train(1), train(1));
    assert_ne!(train(1), train(2));
    let lengths = train(1).into_iter().map(|row| {
        row.values.iter().map(|&value| (f32::from(value) * row.scale).powi(2)).sum::<f32>().sqrt()
    });
    assert!(lengths.into_iter().all(|length| (length - 1.0).abs() < 1e-5));
}

#[test]
fn a_cell_without_rows_of_the_sample_gets_another_centroid() {
    let sample = [1.0, 0.0, 0.0, 0.0].repeat(6);
    let cells = Cells::train(4, &sample, &Training { cells: 5, rounds: 3, seed: 0 }).unwrap();
    assert_eq!((cells.count(), cells.dim()), (5, 4));
    assert!((0..5).all(|cell| cells.centroid(cell).unwrap().values == [127, 0, 0, 0]));
    let few = Cells::train(4, &sample, &Training { cells: 7, rounds: 3, seed: 0 });
    assert!(matches!(few, Err(ScanError::Argument(_))));
    assert!(matches!(Cells::new(4, &[], &[]), Err(ScanError::Argument(_))));
}

#[test]
fn searches_that_do_not_fit_are_refused() {
    let (blocks, _) = library(World::Random, 10, 4, 1);
    let users = [0.5; 8];
    assert_eq!(blocks.search(&users, &Search::new(K_MAX)).unwrap().ends, [10, 20]);
    assert_eq!(blocks.search(&users, &Search::new(0)).unwrap().ends, [0, 0]);
    assert_eq!(blocks.search(&[], &Search::new(3)).unwrap(), Top::default());
    let ends = |ends| Excluded { keys: &[1, 2], ends };
    for wrong in [
        Search::new(K_MAX + 1),
        Search { threads: 0, ..Search::new(1) },
        Search { threads: 129, ..Search::new(1) },
        Search { probes: Some(0), ..Search::new(1) },
        Search { excluded: ends(&[]), ..Search::new(1) },
        Search { excluded: ends(&[2]), ..Search::new(1) },
        Search { excluded: ends(&[2, 1]), ..Search::new(1) },
        Search { excluded: ends(&[2, 3]), ..Search::new(1) },
    ] {
        assert!(matches!(blocks.search(&users, &wrong), Err(ScanError::Argument(_))), "{wrong:?}");
    }
    assert!(matches!(blocks.search(&users[..7], &Search::new(1)), Err(ScanError::Argument(_))));
    let many = vec![0.0; 4 * (USERS_MAX + 1)];
    assert!(matches!(blocks.search(&many, &Search::new(1)), Err(ScanError::Argument(_))));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.1e15] {
        let mut users = vec![0.5; 4 * 70];
        users[4 * 66 + 1] = bad;
        for k in [0, 1] {
            assert_eq!(blocks.search(&users, &Search::new(k)).unwrap_err(), ScanError::Value { vector: 66 });
        }
    }
}
