//! Simulates callers of the scheduler, compares ladders by padding, and measures the scheduler's own calls.
//!
//! `cargo run --release -p streamlearn-scheduler --example scheduler [goodput|ladders|calls]`

#[allow(dead_code, reason = "tests use more of a run")]
#[path = "../tests/all/node/mod.rs"]
mod node;

use std::collections::BTreeMap;
use std::time::Instant;

use node::{Callers, Chance, DIN, End, Model, Node, Run, SMALL, World, candidates, limits, shapes};
use streamlearn_scheduler::ladder::{Choice, Ladder};
use streamlearn_scheduler::{Limits, Offer, Scheduler, Shapes, Took, Worth};

const USERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const REQUESTS: f64 = 60_000.0;
/// Shares of a lane's capacity.
const LOADS: [f64; 3] = [0.3, 0.6, 0.8];

fn main() {
    let wanted = std::env::args().nth(1);
    let parts: [(&str, fn()); 3] = [("goodput", goodput), ("ladders", ladders), ("calls", calls)];
    for (name, part) in parts {
        if wanted.as_ref().is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}

/// The counts of candidates of random requests.
fn single() -> Vec<(usize, u64)> {
    let mut chance = Chance::new(1);
    let mut counts = BTreeMap::new();
    (0..200_000).for_each(|_| *counts.entry(candidates(&mut chance)).or_default() += 1);
    counts.into_iter().collect()
}

fn ladder(model: Model, top: usize, buckets_max: usize, histogram: &[(usize, u64)]) -> Ladder {
    Ladder::choose(histogram, Choice { top, buckets_max, multiple: 8 }, |size| model.score(size))
}

fn run(model: Model, lanes: usize, users: &[usize], ladder: &Ladder, rate: f64) -> Run {
    let shapes = shapes(users, ladder.sizes());
    let node =
        Node { model, shapes, limits: limits(lanes), sigma: 0.1, slower: 1.0, world: World::default() };
    let callers = Callers { rate, version: 1, priority: 0, within_us: 25_000, from_us: 0 };
    node.run(&[callers], (REQUESTS / rate).max(2.0), 7)
}

fn goodput() {
    let models = [("din", DIN, 256, 1200.0), ("small", SMALL, 2048, 40_000.0)];
    for ((name, model, top, rate), lanes) in models.into_iter().flat_map(|case| [(case, 1), (case, 2)]) {
        let ladder = ladder(model, top, 10, &single());
        println!("{name}, {lanes} lanes, buckets {:?}, deadline 25 ms", ladder.sizes());
        for (merges, users) in [("merged", &USERS[..]), ("alone", &USERS[..1])] {
            for share in [0.25, 0.5, 0.75, 1.0, 1.25, 2.5, 5.0] {
                let run = run(model, lanes, users, &ladder, rate * lanes as f64 * share);
                print(merges, rate * lanes as f64 * share, &run);
            }
        }
    }
}

fn print(name: &str, rate: f64, run: &Run) {
    let answered = run.count(|end| matches!(end, End::Answered(_)));
    println!(
        "  {name:6} {rate:7.0}/s: goodput {:7.0}/s, p50 {:5.1} ms, p99 {:5.1} ms, {:6.1} candidates each, padding {:.3}, \
         answered late {:.4}, dropped late {:.4}, refused {:.3}",
        run.goodput(),
        run.latency_us(0.5) as f64 / 1000.0,
        run.latency_us(0.99) as f64 / 1000.0,
        run.scored as f64 / run.plans as f64,
        run.waste(),
        (answered - run.good_of(None)) as f64 / run.cases.len() as f64,
        run.count(|end| matches!(end, End::Late(_))) as f64 / run.cases.len() as f64,
        run.count(|end| matches!(end, End::Refused(_))) as f64 / run.cases.len() as f64,
    );
}

fn ladders() {
    let single = single();
    for (name, model, top, rate) in [("din", DIN, 256, 1500.0), ("small", SMALL, 2048, 52_000.0)] {
        println!("{name}: padding of single requests, and of TensorBatches at shares of a lane's capacity");
        // The sizes of TensorBatches without padding: a ladder's own buckets would bias the observed sizes.
        let fine = Ladder::new((8..=top).step_by(8).collect()).expect("it ascends");
        let mut sizes = BTreeMap::<usize, u64>::new();
        for load in LOADS {
            let sizes_at_load = run(model, 1, &USERS, &fine, rate * load).sizes;
            sizes_at_load.into_iter().for_each(|(size, count)| *sizes.entry(size).or_default() += count);
        }
        let sizes: Vec<_> = sizes.into_iter().collect();
        for buckets_max in [4, 6, 8, 10, 11, 12, 16] {
            for (source, histogram) in [("requests", &single), ("formed", &sizes)] {
                let ladder = ladder(model, top, buckets_max, histogram);
                let runs = LOADS.map(|load| run(model, 1, &USERS, &ladder, rate * load));
                let merged = runs
                    .map(|run| format!("{:.3} p99 {:.1} ms", run.waste(), run.latency_us(0.99) as f64 / 1e3));
                let (alone, sizes) = (ladder.waste(&single), ladder.sizes());
                println!(
                    "  {buckets_max:2} from {source:8}: alone {alone:.3}, merged {} {sizes:?}",
                    merged.join(", ")
                );
            }
        }
    }
}

/// The duration of `offer`, `next` and `done` with a number of waiting requests.
fn calls() {
    for waiting in [10, 100, 1000, 10_000] {
        for (name, within_us) in [("one deadline", 0), ("mixed deadlines", 20_000_000)] {
            let shapes = shapes(&USERS, &[8, 16, 32, 64, 128, 256, 512, 1024, 2048]);
            let bounds = Limits {
                requests_max: 20_000,
                candidates_max: 10_000_000,
                wait_us_max: 60_000_000,
                ..limits(1)
            };
            let (offer_ns, next_ns, done_ns, taken) = time(&shapes, bounds, waiting, within_us);
            println!(
                "{waiting:6} waiting, {name:15}: offer {offer_ns:5.0} ns, next {next_ns:6.0} ns, done {done_ns:6.0} ns, \
                 {taken:.0} requests a TensorBatch"
            );
        }
    }
}

/// The median nanoseconds of each call, and the mean number of requests in a TensorBatch.
fn time(shapes: &Shapes, bounds: Limits, waiting: usize, within_us: u64) -> (f64, f64, f64, f64) {
    let mut scheduler = Scheduler::new(bounds, shapes.clone(), SMALL.costs(shapes));
    let mut chance = Chance::new(5);
    let (mut offers, mut nexts, mut dones, mut taken) = (Vec::new(), Vec::new(), Vec::new(), 0);
    scheduler.next(0, 0);
    for round in 0..4000_u64 {
        let now_us = round * 1000;
        let missing = waiting - scheduler.figures(now_us).requests.min(waiting);
        let mut offer = || {
            let within_us = 30_000_000 + (chance.share() * within_us as f64) as u64;
            let (deadline_us, candidates) = (now_us + within_us, candidates(&mut chance));
            Offer {
                version: 1,
                candidates,
                length: 1,
                deadline_us,
                priority: 0,
                cohort: 0,
                worth: Worth::default(),
            }
        };
        let offers_of_round: Vec<Offer> = (0..missing).map(|_| offer()).collect();
        let started = Instant::now();
        for offer in &offers_of_round {
            assert!(scheduler.offer(now_us, offer).is_ok(), "the deadlines leave enough time");
        }
        offers.push(started.elapsed().as_secs_f64() / missing.max(1) as f64);
        let started = Instant::now();
        let plan = scheduler.next(now_us, 0).plan.expect("something waits");
        nexts.push(started.elapsed().as_secs_f64());
        let duration = Took { user_us: 20.0, score_us: plan.cost_us - 20.0 };
        let started = Instant::now();
        scheduler.done(0, duration);
        dones.push(started.elapsed().as_secs_f64());
        taken += plan.pieces.len();
    }
    let median_ns = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e9
    };
    (median_ns(offers), median_ns(nexts), median_ns(dones), taken as f64 / 4000.0)
}
