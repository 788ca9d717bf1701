//! A simulated node that is asked for more than it can do keeps most of the value of its answers.

use crate::node::{Callers, DIN, End, Model, Node, Run, World, limits, shapes};
use streamlearn_scheduler::{AllowanceLimits, Limits};

const USERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const SIZES: [usize; 10] = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256];
const DEADLINE_US: u64 = 50_000;
const SECONDS: f64 = 12.0;
/// Price and curves are found in the first seconds.
const FROM_US: u64 = 4_000_000;

/// A model whose user graph costs 30 % of a request of average size.
const USER_HEAVY: Model = Model { user_us: (35.0, 280.0), score_us: (145.0, 18.0) };

fn node(model: Model, world: World, allowance: Option<AllowanceLimits>) -> Node {
    let limits = Limits { allowance, ..limits(1) };
    Node { model, shapes: shapes(&USERS, &SIZES), limits, sigma: 0.1, slower: 1.0, world }
}

fn on() -> Option<AllowanceLimits> {
    Some(AllowanceLimits { candidates_min: 4, shown: crate::node::SHOWN, short_percent: 0 })
}

fn run(node: &Node, rate: f64) -> Run {
    node.run(&[Callers { rate, version: 1, priority: 0, within_us: DEADLINE_US, from_us: 0 }], SECONDS, 7)
}

/// The most requests per second that are all answered whole.
fn capacity(model: Model) -> f64 {
    let top = *SIZES.last().unwrap() as f64;
    let requests = top / 36.0;
    1e6 * requests
        / (model.user_us.0 + model.user_us.1 * requests + model.score_us.0 + model.score_us.1 * top)
}

/// The share of the value of whole answers that a run kept.
fn kept(world: World, run: &Run) -> f64 {
    let (mut kept, mut whole) = (0.0, 0.0);
    for (index, case) in run.cases.iter().enumerate().filter(|(_, case)| case.at_us >= FROM_US) {
        let (value, _, truths) = world.request(index as u64, case.candidates);
        let values = World::values(&truths);
        whole += value * values.last().unwrap();
        if case.is_good() {
            kept += value * values[case.kept - 1];
        }
    }
    kept / whole
}

/// The share that one who knows every value could keep in the same time, by a price that uses all of it.
fn oracle(world: World, run: &Run, model: Model) -> f64 {
    let scored: f64 =
        run.cases.iter().filter(|case| case.is_good()).map(|case| work_us(model, case.kept)).sum();
    let slower = run.busy_us / scored;
    let after: Vec<usize> = (0..run.cases.len()).filter(|index| run.cases[*index].at_us >= FROM_US).collect();
    let budget_us = (SECONDS * 1e6 - FROM_US as f64) / slower;
    let curves: Vec<Vec<f64>> = after
        .iter()
        .map(|index| {
            let (value, _, truths) = world.request(*index as u64, run.cases[*index].candidates);
            World::values(&truths).into_iter().map(|one| value * one).collect()
        })
        .collect();
    let at = |price: f64| {
        let (mut kept, mut spent) = (0.0, 0.0);
        for curve in &curves {
            let net = |upto: usize| curve[upto - 1] - price * work_us(model, upto);
            let best = (1..=curve.len()).max_by(|a, b| net(*a).total_cmp(&net(*b))).unwrap();
            if net(best) > 0.0 {
                (kept, spent) = (kept + curve[best - 1], spent + work_us(model, best));
            }
        }
        (kept, spent)
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..24 {
        let middle = (low + high) / 2.0;
        if at(middle).1 > budget_us { low = middle } else { high = middle }
    }
    at(high).0 / curves.iter().map(|curve| curve.last().unwrap()).sum::<f64>()
}

fn work_us(model: Model, candidates: usize) -> f64 {
    model.user_us.1 + model.score_us.1 * candidates as f64
}

/// The share that the best fixed cut keeps.
fn uniform(model: Model, world: World, rate: f64) -> f64 {
    let cuts = [4, 6, 8, 10, 12, 14, 16, 20, 24];
    let at = |cut: &usize| {
        let world = World { cut: Some(*cut), ..world };
        kept(world, &run(&node(model, world, None), rate))
    };
    cuts.iter().map(at).fold(0.0, f64::max)
}

/// What a run at a multiple of the capacity kept: without an allowance, with one, and the most that could be.
fn kept_at(load: f64, model: Model, world: World) -> (f64, f64, f64) {
    let rate = capacity(model) * load;
    let shed = kept(world, &run(&node(model, world, None), rate));
    let own = run(&node(model, world, on()), rate);
    (shed, kept(world, &own), oracle(world, &own, model))
}

const KNOWN: World = World { spread: 0.7, has_prescores: true, cut: None, unseen_us: 0 };

#[test]
fn twice_the_load_keeps_most_of_the_value_and_as_much_as_the_best_fixed_cut_where_requests_are_alike() {
    let (shed, kept_own, most) = kept_at(2.0, USER_HEAVY, KNOWN);
    assert!(kept_own >= 0.94 * most && kept_own >= 1.7 * shed, "{kept_own} of {most}, {shed} by shedding");
    let alike = World::default();
    let (_, kept_own, _) = kept_at(2.0, DIN, alike);
    let uniform = uniform(DIN, alike, 2.0 * capacity(DIN));
    assert!(kept_own >= uniform - 0.005, "{kept_own}, and {uniform} by a fixed cut");
}

#[test]
fn four_times_the_load_goes_to_the_requests_that_are_worth_most() {
    let (shed, kept_own, most) = kept_at(4.0, USER_HEAVY, KNOWN);
    assert!(kept_own >= 0.92 * most && kept_own >= 2.0 * shed, "{kept_own} of {most}, {shed} by shedding");
    let uniform = uniform(USER_HEAVY, KNOWN, 4.0 * capacity(USER_HEAVY));
    assert!(kept_own >= 1.2 * uniform, "{kept_own}, and {uniform} by a fixed cut");
}

#[test]
fn where_an_execution_costs_the_same_whatever_it_holds_requests_are_cut_so_that_more_fit() {
    let model = Model { user_us: (550.0, 1.0), score_us: (10.0, 0.2) };
    let alike = World::default();
    let rate = 3.0 * 1e6 * (32.0 / 36.0) / (model.user(1) + model.score(32));
    let of = |allowance| Node { shapes: shapes(&[4, 16], &[8, 32]), ..node(model, alike, allowance) };
    let (shed, own) = (kept(alike, &run(&of(None), rate)), kept(alike, &run(&of(on()), rate)));
    assert!(own >= 1.9 * shed, "{own}, and {shed} by shedding");
}

#[test]
fn below_its_capacity_a_node_cuts_nothing() {
    let run = run(&node(DIN, KNOWN, on()), 0.6 * capacity(DIN));
    let cut = run.cases.iter().filter(|case| case.kept < case.candidates).count();
    assert!(cut * 1000 <= run.cases.len(), "{cut} of {} were cut or refused", run.cases.len());
}

#[test]
fn a_step_from_once_to_four_times_the_load_makes_nobody_late_and_settles() {
    let rate = capacity(USER_HEAVY);
    let base = Callers { rate, version: 1, priority: 0, within_us: DEADLINE_US, from_us: 0 };
    let more = Callers { rate: 3.0 * rate, from_us: 4_000_000, ..base };
    let run = node(USER_HEAVY, KNOWN, on()).run(&[base, more], SECONDS, 7);
    let within = |from_s: f64, upto_s: f64| {
        let span = (from_s * 1e6) as u64..(upto_s * 1e6) as u64;
        run.cases.iter().enumerate().filter(move |(_, case)| span.contains(&case.at_us))
    };
    let late = within(5.0, 12.0).filter(|(_, case)| matches!(case.end, Some(End::Late(_)))).count();
    let answered = within(5.0, 12.0).filter(|(_, case)| case.is_good()).count();
    assert!(late * 100 <= answered, "{late} were late, and {answered} were not");
    let rates: Vec<f64> = (0..10)
        .map(|step| {
            let good = within(7.0 + 0.5 * f64::from(step), 7.5 + 0.5 * f64::from(step));
            good.filter(|(_, case)| case.is_good()).map(|(_, case)| work_us(USER_HEAVY, case.kept)).sum()
        })
        .collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    assert!(
        rates.iter().all(|rate| (rate / mean - 1.0).abs() <= 0.1),
        "work done each half second: {rates:?}"
    );
}

#[test]
fn costs_that_double_at_once_make_few_late() {
    for slower in [0.5, 2.0] {
        let slow = Node { slower, ..node(USER_HEAVY, KNOWN, on()) };
        let run = run(&slow, 2.0 * capacity(USER_HEAVY) / slower);
        let late = run.count(|end| matches!(end, End::Late(_)));
        assert!(late * 100 <= run.cases.len(), "{late} of {} were late", run.cases.len());
    }
}
