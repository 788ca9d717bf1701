//! The chosen ladder is optimal, and reports its padding correctly.

use proptest::prelude::*;
use streamlearn_scheduler::ladder::{Choice, Demand, Ladder};

/// The cost of a histogram, with each size padded to its bucket and split at the top.
fn cost(sizes: &[usize], histogram: &[(usize, u64)], cost_of: impl Fn(usize) -> f64) -> f64 {
    let top = sizes[sizes.len() - 1];
    let padded = |size: usize| sizes.iter().find(|bucket| **bucket >= size).copied();
    let each = |size: usize| {
        let last = padded(size % top).filter(|_| !size.is_multiple_of(top)).map_or(0.0, &cost_of);
        (size / top) as f64 * cost_of(top) + last
    };
    histogram.iter().map(|(size, count)| *count as f64 * each(*size)).sum()
}

/// All ladders within the choice's constraints.
fn sets(choice: Choice) -> impl Iterator<Item = Vec<usize>> {
    let open: Vec<usize> = (1..choice.top).filter(|size| size % choice.multiple == 0).collect();
    let ladders =
        (0..1_u32 << open.len()).filter(move |set| (set.count_ones() as usize) < choice.buckets_max);
    ladders.map(move |set| {
        let mut sizes: Vec<usize> =
            open.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, size)| *size).collect();
        sizes.push(choice.top);
        sizes
    })
}

/// The lowest cost over all ladders, by exhaustive search.
fn least(histogram: &[(usize, u64)], choice: Choice, cost_of: impl Fn(usize) -> f64) -> f64 {
    sets(choice).map(|sizes| cost(&sizes, histogram, &cost_of)).fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_ladder_of_as_many_buckets_costs_less(
        histogram in prop::collection::vec((1_usize..40, 0_u64..1000), 0..12),
        top in 1_usize..12, buckets_max in 1_usize..6, multiple in 1_usize..4,
        fixed in 0.0_f64..200.0, each in 0.0_f64..20.0,
    ) {
        let choice = Choice { top, buckets_max, multiple };
        let cost_of = |size: usize| fixed + each * size as f64;
        let ladder = Ladder::choose(&histogram, choice, cost_of);
        prop_assert_eq!(ladder.top(), top);
        prop_assert!(ladder.sizes().len() <= buckets_max);
        prop_assert!(ladder.sizes().iter().all(|size| *size == top || size % multiple == 0));
        let (chosen, best) = (cost(ladder.sizes(), &histogram, cost_of), least(&histogram, choice, cost_of));
        prop_assert!((chosen - best).abs() <= 1e-9 * best.max(1.0), "{:?} costs {chosen}, the optimum {best}", ladder);
    }

    #[test]
    fn ladders_of_several_demands_cost_least_together_for_any_number_of_buckets(
        first in prop::collection::vec((1_usize..30, 0_u64..1000), 0..8),
        second in prop::collection::vec((1_usize..30, 0_u64..1000), 0..8),
        top in 1_usize..11, buckets_max in 1_usize..6, fixed in 0.0_f64..200.0, each in 0.0_f64..20.0,
    ) {
        let choice = Choice { top, buckets_max, multiple: 1 };
        let (short, long) = (|size: usize| fixed + each * size as f64, |size: usize| fixed + 3.0 * each * size as f64);
        let demands = [Demand { histogram: &first, cost: &short }, Demand { histogram: &second, cost: &long }];
        let together = |sizes: &[usize]| cost(sizes, &first, short) + cost(sizes, &second, long);
        let ladders = Ladder::choices(&demands, choice);
        prop_assert!(!ladders.is_empty() && ladders.len() <= buckets_max);
        for (at, ladder) in ladders.iter().enumerate() {
            prop_assert!(ladder.sizes().len() <= at + 1 && ladder.top() == top);
            let costs = together(ladder.sizes());
            let reported: f64 = demands.iter().map(|demand| ladder.cost(demand)).sum();
            prop_assert!((costs - reported).abs() <= 1e-9 * costs.max(1.0), "{costs}, reported {reported}");
            let bounds = Choice { buckets_max: at + 1, ..choice };
            let best = sets(bounds).map(|sizes| together(&sizes)).fold(f64::INFINITY, f64::min);
            prop_assert!((costs - best).abs() <= 1e-9 * best.max(1.0), "{ladder:?} costs {costs}, the optimum {best}");
        }
    }

    #[test]
    fn a_size_is_held_by_the_smallest_bucket_that_can(sizes in prop::collection::btree_set(1_usize..500, 1..9), size in 0_usize..600) {
        let ladder = Ladder::new(sizes.iter().copied().collect()).unwrap();
        let smallest = sizes.iter().position(|bucket| *bucket >= size);
        prop_assert_eq!(ladder.holds(size), smallest);
    }
}

#[test]
fn sizes_that_are_no_ladder_are_refused() {
    for sizes in [vec![], vec![0, 4], vec![4, 4], vec![8, 4]] {
        let error = Ladder::new(sizes.clone()).unwrap_err().to_string();
        assert!(error.contains(&format!("{sizes:?}")), "{error}");
    }
}

#[test]
fn more_buckets_than_pay_are_not_taken() {
    let choice = Choice { top: 64, buckets_max: 9, multiple: 1 };
    let ladder = Ladder::choose(&[(10, 5), (64, 1)], choice, |size| size as f64);
    assert_eq!(ladder.sizes(), [10, 64]);
    let flat = Ladder::choose(&[(10, 5), (64, 1)], choice, |_| 1.0);
    assert_eq!(flat.sizes(), [64]);
}

#[test]
fn waste_is_the_share_of_padding() {
    let ladder = Ladder::new(vec![4, 10]).unwrap();
    assert!((ladder.waste(&[(3, 1), (8, 1)]) - 3.0 / 14.0).abs() < 1e-12);
    assert!((ladder.waste(&[(23, 2)]) - 1.0 / 24.0).abs() < 1e-12, "two top buckets and a piece of three");
    assert!(ladder.waste(&[]).abs() < 1e-12);
}
