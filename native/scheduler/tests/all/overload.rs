//! A simulated node under overload keeps nearly its full throughput, with the costs of two models.

use crate::node::{
    self, Callers, Case, DIN, End, Model, Node, Run, SMALL, World, candidates, limits, shapes,
};
use streamlearn_scheduler::{Limits, Reason};

const USERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const DIN_SIZES: [usize; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const SMALL_SIZES: [usize; 9] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048];

fn node(model: Model, lanes: usize) -> Node {
    let candidates: &[usize] = if model.score_us.1 > 1.0 { &DIN_SIZES } else { &SMALL_SIZES };
    Node {
        model,
        shapes: shapes(&USERS, candidates),
        limits: limits(lanes),
        sigma: 0.1,
        slower: 1.0,
        world: World::default(),
    }
}

/// Callers with a deadline of 25 ms.
fn callers(rate: f64) -> Callers {
    Callers { rate, version: 1, priority: 0, within_us: 25_000, from_us: 0 }
}

/// About as many requests at any rate, and long enough for the start and the end not to matter.
fn seconds(rate: f64) -> f64 {
    (10_000.0 / rate).max(0.3)
}

fn at(node: &Node, rate: f64) -> Run {
    node.run(&[callers(rate)], seconds(rate), 7)
}

/// A lane's capacity in requests per second, if all TensorBatches were full and users were free.
fn capacity_of(model: Model, top: usize) -> f64 {
    1e6 / (model.score(top) / top as f64) / 36.0
}

#[test]
fn twice_the_load_leaves_goodput_at_its_peak() {
    for (model, top, lanes) in [(DIN, 256, 1), (DIN, 256, 2), (SMALL, 2048, 1), (SMALL, 2048, 2)] {
        let node = node(model, lanes);
        let capacity = capacity_of(model, top) * lanes as f64;
        let loads = [0.8, 0.95, 1.1, 1.3];
        let peak = loads.iter().map(|load| at(&node, capacity * load).goodput()).fold(0.0, f64::max);
        assert!(peak > 0.8 * capacity, "a peak of {peak} of {capacity} per second");
        for load in [2.0, 3.0] {
            let run = at(&node, peak * load);
            let (goodput, late) = (run.goodput(), run.count(|end| matches!(end, End::Late(_))));
            assert!(
                goodput >= 0.85 * peak,
                "{goodput} of {peak} per second at {load} times the load, {lanes} lanes"
            );
            assert!(
                late * 20 < run.cases.len(),
                "requests that cannot be served are refused at once: {late} were late"
            );
        }
    }
}

#[test]
fn answers_are_in_time_although_requests_wait_where_the_node_does_not_see_them() {
    for (model, top) in [(DIN, 256), (SMALL, 2048)] {
        let capacity = capacity_of(model, top);
        for load in [0.5, 2.0, 4.0] {
            let seen = at(&node(model, 1), capacity * load);
            let unseen = Node { world: World { unseen_us: 8_000, ..World::default() }, ..node(model, 1) };
            let run = unseen.run(&[callers(capacity * load)], 3.0 * seconds(capacity * load), 7);
            // Requests that were admitted before the first late answer are late too.
            let begun_us = (run.seconds * 1e6 / 3.0) as u64;
            let is_admitted = |case: &&Case| !matches!(case.end, Some(End::Refused(_) | End::Shed));
            let later = run.cases.iter().filter(|case| case.at_us >= begun_us).filter(is_admitted);
            let (good, late): (Vec<&Case>, Vec<&Case>) = later.partition(|case| case.is_good());
            assert!(late.len() * 50 < good.len(), "{} late beside {} at {load}", late.len(), good.len());
            let (goodput, whole) = (good.len() as f64 * 1.5 / run.seconds, seen.goodput());
            assert!(goodput >= 0.9 * whole, "{goodput} of {whole} per second at {load}");
        }
    }
}

#[test]
fn merging_doubles_what_a_small_model_does_and_more() {
    for lanes in [1, 2] {
        let merged = node(SMALL, lanes);
        let alone = Node { shapes: shapes(&[1], &SMALL_SIZES), ..node(SMALL, lanes) };
        let rate = 80_000.0 * lanes as f64;
        let (merged, alone) = (at(&merged, rate).goodput(), at(&alone, rate).goodput());
        assert!(merged >= 2.0 * alone, "{merged} merged, {alone} alone");
    }
}

#[test]
fn merging_costs_nobody_time_where_there_is_little_to_do() {
    let merged = node(DIN, 1);
    let alone = Node { shapes: shapes(&[1], &DIN_SIZES), ..node(DIN, 1) };
    let (merged, alone) = (at(&merged, 300.0), at(&alone, 300.0));
    assert!(merged.latency_us(0.5) <= alone.latency_us(0.5) * 11 / 10);
    assert!(merged.latency_us(0.99) <= alone.latency_us(0.99) * 11 / 10);
}

#[test]
fn costs_that_warm_up_did_not_foresee_are_learned() {
    for slower in [0.02, 0.5, 2.0] {
        let node = Node { slower, ..node(DIN, 1) };
        let run = node.run(&[callers(1000.0 / slower)], 12.0 * slower, 7);
        let good = run.goodput() * slower;
        assert!(good > 850.0, "{good} of 1000 requests per second of a node {slower} times as slow");
    }
}

#[test]
fn a_node_whose_costs_look_too_high_for_any_deadline_tries_all_the_same() {
    let node = Node {
        slower: 0.01,
        model: Model { user_us: (3500.0, 50.0), score_us: (14_500.0, 1800.0) },
        ..node(DIN, 1)
    };
    let run = node.run(&[callers(500.0)], 10.0, 7);
    assert!(
        run.good_of(None) * 10 > run.cases.len() * 9,
        "{} of {} were good",
        run.good_of(None),
        run.cases.len()
    );
}

#[test]
fn a_version_with_few_callers_is_served_as_well_as_the_other() {
    for model in [DIN, SMALL] {
        let node = node(model, 1);
        let rate = if model.score_us.1 > 1.0 { 3000.0 } else { 100_000.0 };
        let canary = Callers { version: 2, ..callers(rate * 0.05) };
        let run = node.run(&[callers(rate * 0.95), canary], seconds(rate) * 2.0, 7);
        let share = |group: usize| {
            let all = run.cases.iter().filter(|case| case.callers == group).count();
            run.good_of(Some(group)) as f64 / all as f64
        };
        assert!(share(1) > 0.8 * share(0), "{} of the canary's, {} of the others", share(1), share(0));
        assert!(share(0) > 0.35, "the other version is served too: {}", share(0));
    }
}

#[test]
fn what_is_urgent_is_served_first_and_the_rest_knows_it_at_once() {
    let node = node(DIN, 1);
    let callers_of = |priority, rate| Callers { priority, ..callers(rate) };
    let run = node.run(&[callers_of(0, 600.0), callers_of(1, 1200.0), callers_of(2, 1200.0)], 8.0, 7);
    let all = |group: usize| run.cases.iter().filter(|case| case.callers == group).count();
    assert!(run.good_of(Some(0)) * 100 >= all(0) * 98, "{} of {}", run.good_of(Some(0)), all(0));
    assert!(run.good_of(Some(1)) * 2 > all(1), "the rest of the capacity goes to the second priority");
    let late = run.count(|end| matches!(end, End::Late(_)));
    assert!(late * 20 < run.cases.len(), "{late} of {} waited in vain", run.cases.len());
}

#[test]
fn nobody_waits_longer_than_to_the_deadline_and_one_execution() {
    let longest_us = 4 * 5_000; // a full TensorBatch with random variation
    for lanes in [1, 2] {
        let run = Node { sigma: 0.3, ..node(DIN, lanes) }.run(&[callers(4000.0)], 3.0, 11);
        for case in &run.cases {
            let (Some(End::Answered(after_us)) | Some(End::Late(after_us))) = case.end else { continue };
            assert!(after_us <= 25_000 + longest_us, "a request waited {after_us} us");
        }
    }
}

#[test]
fn a_full_queue_sheds_what_matters_least() {
    let bounds = Limits {
        requests_max: 20,
        candidates_max: 1500,
        reserved_percent: 0,
        wait_us_max: 1_000_000,
        ..limits(1)
    };
    let node = Node { limits: bounds, ..node(DIN, 1) };
    let callers_of = |priority, rate| Callers { priority, within_us: 500_000, ..callers(rate) };
    let run = node.run(&[callers_of(0, 700.0), callers_of(3, 2500.0)], 4.0, 7);
    let ends = |group: usize, is: fn(&End) -> bool| {
        run.cases.iter().filter(|case| case.callers == group && case.end.as_ref().is_some_and(is)).count()
    };
    assert_eq!(ends(0, |end| *end == End::Shed), 0);
    assert!(ends(1, |end| *end == End::Shed) > 0);
    let full = |end: &End| matches!(end, End::Refused(Reason::Requests | Reason::Candidates));
    assert!(ends(1, full) > 20 * ends(0, full).max(1));
}

#[test]
fn a_run_is_made_by_its_seed_alone() {
    let node = node(DIN, 2);
    let ends = |seed: u64| -> Vec<Option<End>> {
        node.run(&[callers(4000.0)], 1.0, seed).cases.iter().map(|case| case.end).collect()
    };
    assert_eq!(ends(3), ends(3));
    assert_ne!(ends(3), ends(4));
}

#[test]
fn candidates_are_as_many_as_was_measured() {
    let mut chance = node::Chance::new(1);
    let sum: usize = (0..100_000).map(|_| candidates(&mut chance)).sum();
    assert!((35.0..37.0).contains(&(sum as f64 / 1e5)));
}

#[test]
fn lasting_overload_serves_the_same_users_wholly_and_as_many_requests() {
    let whole = |by_cohort: bool, seed: u64| {
        let limits = Limits { by_cohort, ..limits(1) };
        let node = Node { limits, ..node(DIN, 1) };
        let run = node.run(&[callers(2.0 * capacity_of(DIN, 256))], 20.0, seed);
        let mut users = vec![(0_u32, 0_u32); node::USERS as usize];
        for (index, case) in run.cases.iter().enumerate().filter(|(_, case)| case.at_us > 5_000_000) {
            let user = &mut users[index % node::USERS as usize];
            *user = (user.0 + 1, user.1 + u32::from(case.is_good()));
        }
        let served = users.iter().filter(|(asked, good)| f64::from(*good) >= 0.9 * f64::from(*asked)).count();
        (served as f64 / users.len() as f64, run.goodput())
    };
    // One run differs from the next by two in a hundred.
    let (runs, mut ratios) = (6, 0.0);
    for seed in 1..=runs {
        let ((mixed, goodput), (served, goodput_by_cohort)) = (whole(false, seed), whole(true, seed));
        assert!(mixed < 0.05 && served > 0.4, "{mixed} of users are served wholly, and {served} by cohorts");
        ratios += goodput_by_cohort / goodput;
    }
    let ratio = ratios / runs as f64;
    assert!(ratio >= 0.97, "{ratio} of the answers");
}
