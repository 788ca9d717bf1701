//! A ladder chosen from a node's TensorBatches has little padding: simulated, with the costs of two models.

use std::collections::BTreeMap;

use crate::node::{Callers, DIN, Model, Node, Run, SMALL, World, limits, shapes};
use streamlearn_scheduler::ladder::{Choice, Ladder};

const USERS: [usize; 5] = [1, 4, 8, 16, 32];
const WASTE_MAX: f64 = 0.15;
/// Shares of a lane's capacity.
const LOADS: [f64; 3] = [0.2, 0.7, 1.3];

fn run(model: Model, candidates: &[usize], rate: f64) -> Run {
    let shapes = shapes(&USERS, candidates);
    let node = Node { model, shapes, limits: limits(1), sigma: 0.1, slower: 1.0, world: World::default() };
    let callers = Callers { rate, version: 1, priority: 0, within_us: 25_000, from_us: 0 };
    node.run(&[callers], (6_000.0 / rate).max(0.3), 7)
}

/// The cheapest ladder for the TensorBatches of a node under all loads.
fn tuned(model: Model, present: &[usize], rate: f64) -> Vec<usize> {
    let mut sizes = BTreeMap::<usize, u64>::new();
    for load in LOADS {
        for (size, count) in run(model, present, rate * load).sizes {
            *sizes.entry(size).or_default() += count;
        }
    }
    let sizes: Vec<(usize, u64)> = sizes.into_iter().collect();
    let choice = Choice { top: present[present.len() - 1], buckets_max: 12, multiple: 1 };
    Ladder::choose(&sizes, choice, |size| model.score(size)).sizes().to_vec()
}

#[test]
fn a_ladder_from_what_was_formed_pads_little_of_it_and_at_saturation_and_nowhere_more_than_before() {
    for (model, present, rate) in
        [(DIN, &[8, 16, 32, 64, 128, 256][..], 1_300.0), (SMALL, &[64, 128, 256, 512, 1024][..], 45_000.0)]
    {
        let ladder = tuned(model, present, rate);
        let (mut scored, mut padded) = (0, 0);
        for load in LOADS {
            let (before, after) = (run(model, present, rate * load), run(model, &ladder, rate * load));
            (scored, padded) = (scored + after.scored, padded + after.padded);
            let is_saturated = load > 1.0;
            assert!(!is_saturated || after.waste() <= WASTE_MAX, "{} of {ladder:?}", after.waste());
            assert!(after.waste() < before.waste() + 0.01, "{} before, {}", before.waste(), after.waste());
            assert!(after.goodput() >= 0.97 * before.goodput(), "goodput does not drop");
        }
        let waste = 1.0 - scored as f64 / padded as f64;
        assert!(waste <= WASTE_MAX, "a waste of {waste} with {ladder:?}");
    }
}
