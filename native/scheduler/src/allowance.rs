//! Allowance: how many candidates of a request are worth their time while the node is pressed. Knows no queue
//! and no clock.
//!
//! Time has a price, in value per microsecond. It follows how long requests would wait, and is 0 on an idle
//! node. Each request gets as many first candidates as are worth more than their time; if none are, it is
//! refused. What a candidate is worth is learned from answers that were not cut.

use super::gains::{Gains, Rungs};

/// The share of its time that a request should wait on a pressed node: lanes always have work, and answers
/// are in time.
const PRESSURE: f64 = 0.4;
/// How fast the price follows: at the largest pressure it doubles in about 100 ms.
const FOLLOW_PER_S: f64 = 7.0;
/// How far the pressure of this moment moves the price beside what it has come to.
const AT_ONCE: f64 = 1.5;
/// Prices, as multiples of what a microsecond of an uncut request is worth. Below the lowest, nothing is cut.
const PRICE_MIN: f64 = 0.05;
const PRICE_MAX: f64 = 50.0;
/// The longest time between two requests in which the node counts as pressed as the second finds it. In the rest of a
/// longer one it counts as free.
const GAP_S_MAX: f64 = 0.05;
/// How far the price of one request is from the next one's. Without it, equal requests are all cut or none.
const MIX: f64 = 0.1;
/// One in so many requests is not cut if it is worth its time whole, and one in so many in any case, so that
/// curves stay known.
const UNCUT_ONE_IN: u64 = 50;
const ALWAYS_UNCUT_ONE_IN: u64 = 400;
/// How far a request moves what a microsecond is worth.
const UNIT_WEIGHT: f64 = 1.0 / 256.0;

/// Bounds of what is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowanceLimits {
    /// A request keeps this number of candidates at least.
    pub candidates_min: usize,
    /// How many candidates of an answer are shown: the value of an answer is the sum of its best ones.
    pub shown: usize,
    /// The percentage of an answer's value that remains if histories are cut to the next shorter length; 0 if
    /// they may not be cut.
    pub short_percent: u8,
}

/// What is scored of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Action {
    /// How many candidates, from the first on.
    pub candidates: usize,
    /// Whether its histories are cut to the next shorter length.
    pub is_short: bool,
}

/// What is known of a request's worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth<'a> {
    /// The value of its answer as a multiple of another's, above 0.
    pub value: f64,
    /// Its class, whose own curve is used once it is known; 0 without one.
    pub class: u64,
    /// Mixes requests at the margin.
    pub hash: u64,
    /// What the caller expects of each candidate, best first; empty if it does not say.
    pub prescores: &'a [f32],
}

impl Default for Worth<'_> {
    fn default() -> Self {
        Self { value: 1.0, class: 0, hash: 0, prescores: &[] }
    }
}

/// The maximum number of classes with curves of their own.
const CLASSES_MAX: usize = 16;

/// The time of a request in TensorBatches that are filled with requests like it, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitCosts {
    pub request_us: f64,
    pub candidate_us: f64,
    /// A candidate's share of what a TensorBatch costs in any case.
    pub shared_us: f64,
    /// Below this number of candidates the share does not shrink: the TensorBatch is full of requests.
    pub shared_from: f64,
}

impl UnitCosts {
    pub fn us(&self, candidates: usize) -> f64 {
        let candidates = candidates as f64;
        self.request_us + self.candidate_us * candidates + self.shared_us * candidates.max(self.shared_from)
    }
}

/// The price and the curves.
#[derive(Debug)]
pub(super) struct Allowance {
    limits: AllowanceLimits,
    rungs: Rungs,
    /// The curve of all requests, and those of classes.
    all: Gains,
    classes: Vec<(u64, Gains)>,
    /// The price without the part of this moment, as a multiple of `unit`.
    price: f64,
    changed_us: u64,
    /// What a microsecond of uncut requests is worth: value and time of recent ones.
    offered: (f64, f64),
    value: Value,
}

/// The value of requests since the start, by the curves: what was offered, and what of it was admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Value {
    /// The value of all answers, if none were cut or refused.
    pub offered: f64,
    /// The value of the candidates that were admitted.
    pub admitted: f64,
    /// The price of the last request, as a multiple of what a microsecond of an uncut request is worth.
    pub price: f64,
}

impl Allowance {
    pub fn new(limits: AllowanceLimits, candidates_max: usize) -> Self {
        let rungs = Rungs::upto(candidates_max);
        let all = Gains::unknown(&rungs, limits.shown);
        let (classes, offered, value) = (Vec::new(), (0.0, 0.0), Value::default());
        Self { limits, rungs, all, classes, price: 0.0, changed_us: 0, offered, value }
    }

    /// Moves the price by how long the request would wait, as a share of its time. Returns the price for it.
    pub fn follow(&mut self, now_us: u64, pressure: f64) -> f64 {
        let over = pressure.clamp(0.0, 1.5) - PRESSURE;
        let gap_s = now_us.saturating_sub(self.changed_us) as f64 / 1e6;
        self.changed_us = now_us;
        let moved = over * gap_s.min(GAP_S_MAX) - PRESSURE * (gap_s - GAP_S_MAX).max(0.0);
        self.price = (self.price.max(PRICE_MIN) * (FOLLOW_PER_S * moved).exp()).min(PRICE_MAX);
        if self.price < PRICE_MIN {
            self.price = 0.0;
        }
        let at_once = self.price.max(PRICE_MIN) * (AT_ONCE * over).exp();
        self.value.price = if at_once <= PRICE_MIN { 0.0 } else { at_once };
        self.value.price
    }

    /// Returns what is worth its time at this price; `None` if the request is not. The costs are those with
    /// the histories as they are, and with shorter ones if there is such a length.
    pub fn choose(
        &mut self,
        price: f64,
        candidates: usize,
        worth: &Worth<'_>,
        (costs, short): (UnitCosts, Option<UnitCosts>),
    ) -> Option<Action> {
        let class = self.gains(worth.class);
        let whole = worth.value * class.value_of(&self.rungs, candidates);
        let whole_us = costs.us(candidates);
        self.value.offered += whole;
        self.offered.0 += UNIT_WEIGHT * (whole - self.offered.0);
        self.offered.1 += UNIT_WEIGHT * (whole_us - self.offered.1);
        let mixed = price * (MIX * (2.0 * share_of(worth.hash) - 1.0)).exp();
        let us_price = mixed * self.offered.0 / self.offered.1;
        let (uncut, pays_whole) = (worth.hash >> 32, whole >= us_price * whole_us);
        if price <= 0.0 || (uncut % UNCUT_ONE_IN == 0 && (pays_whole || uncut % ALWAYS_UNCUT_ONE_IN == 0)) {
            return Some(Action { candidates, is_short: false });
        }
        let own = self.best(us_price, candidates, worth, costs);
        let share = self.short_share();
        let short = short.filter(|_| share > 0.0);
        let worth_short = Worth { value: worth.value * share, ..*worth };
        let short = short.and_then(|costs| self.best(us_price, candidates, &worth_short, costs));
        let of = |is_short| move |(net, candidates)| (net, Action { candidates, is_short });
        let both = own.map(of(false)).into_iter().chain(short.map(of(true)));
        both.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, action)| action)
    }

    /// Returns the most value less price, and with how many candidates; `None` if none are worth their time.
    fn best(
        &self,
        us_price: f64,
        candidates: usize,
        worth: &Worth<'_>,
        costs: UnitCosts,
    ) -> Option<(f64, usize)> {
        let class = self.gains(worth.class);
        let least = self.limits.candidates_min.min(candidates);
        let (mut from, mut value, mut best) = (0, 0.0, None);
        for (rung, upto) in self.rungs.iter() {
            let upto = upto.min(candidates);
            let gain = worth.value * class.gain(rung) * class.expected(rung, from, upto, worth.prescores);
            value += (upto - from) as f64 * gain;
            from = upto;
            let net = value - us_price * costs.us(upto);
            if upto >= least && net > best.map_or(0.0, |(most, _)| most) {
                best = Some((net, upto));
            }
            if upto == candidates {
                break;
            }
        }
        best
    }

    fn short_share(&self) -> f64 {
        f64::from(self.limits.short_percent) / 100.0
    }

    /// Counts a request that is admitted.
    pub fn admitted(&mut self, action: Action, worth: &Worth<'_>) {
        let class = self.gains(worth.class);
        let share = if action.is_short { self.short_share() } else { 1.0 };
        self.value.admitted += worth.value * share * class.value_of(&self.rungs, action.candidates);
    }

    /// Returns what was offered and admitted, and the price.
    pub fn value(&self) -> Value {
        self.value
    }

    /// Learns from an answer that was not cut: the value of each candidate, in the request's order.
    pub fn learn(&mut self, class: u64, values: impl Iterator<Item = f64> + Clone, prescores: &[f32]) {
        let was_known = self.all.is_known();
        self.all.learn(&self.rungs, self.limits.shown, values.clone(), prescores);
        if self.all.is_known() && !was_known {
            self.offered = (0.0, 0.0); // what was assumed has another unit than what is learned
        }
        if class == 0 {
            return;
        }
        if let Some(at) = self.place_of(class) {
            self.classes[at].1.learn(&self.rungs, self.limits.shown, values, prescores);
        }
    }

    /// Returns the place of a class. If all are taken, it gets that of the class that is least known, of the later ones
    /// first; `None` if all are known.
    fn place_of(&mut self, class: u64) -> Option<usize> {
        let found = self.classes.iter().position(|(taken, _)| *taken == class);
        if found.is_some() {
            return found;
        }
        let new = (class, Gains::unknown(&self.rungs, self.limits.shown));
        if self.classes.len() < CLASSES_MAX {
            self.classes.push(new);
            return Some(self.classes.len() - 1);
        }
        let unknown = (0..CLASSES_MAX).rev().filter(|&at| !self.classes[at].1.is_known());
        let at = unknown.min_by_key(|&at| self.classes[at].1.requests())?;
        self.classes[at] = new;
        Some(at)
    }

    /// Returns the curve of a class, or that of all requests while its own is not known.
    fn gains(&self, class: u64) -> &Gains {
        let own = self.classes.iter().find(|(known, _)| *known == class);
        own.map(|(_, gains)| gains).filter(|gains| gains.is_known()).unwrap_or(&self.all)
    }
}

/// A number in [0, 1) that the hash decides.
fn share_of(hash: u64) -> f64 {
    f64::from(hash as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COSTS: UnitCosts =
        UnitCosts { candidate_us: 18.0, request_us: 280.0, shared_us: 0.0, shared_from: 4.0 };
    /// Of a model with one length of histories.
    const ALONE: (UnitCosts, Option<UnitCosts>) = (COSTS, None);
    const LIMITS: AllowanceLimits = AllowanceLimits { candidates_min: 4, shown: 8, short_percent: 96 };

    /// An allowance that has seen requests of this size, whose best candidates may stand anywhere.
    fn taught(candidates: usize) -> Allowance {
        let mut allowance = Allowance::new(LIMITS, 4096);
        let expected: Vec<f32> = (0..candidates).map(|at| 1.0 / (1.0 + at as f32)).collect();
        for round in 0..128 {
            let worth = |at: usize| 1.0 / (1.0 + ((at * 7919 + round * 31) % candidates) as f64);
            allowance.learn(0, (0..candidates).map(worth), &expected);
            allowance.choose(0.0, candidates, &Worth::default(), ALONE);
        }
        allowance
    }

    /// A hash of a request that is not among those that stay whole.
    const CUT: u64 = 1 << 32;

    fn worth(value: f64, hash: u64) -> Worth<'static> {
        Worth { value, hash, ..Worth::default() }
    }

    proptest! {
        #[test]
        fn what_is_allowed_is_within_its_bounds_and_never_more_at_a_higher_price(
            candidates in 1_usize..3000,
            seen in 8_usize..300,
            value in 0.01_f64..100.0,
            hash in any::<u64>(),
            price in 0.0_f64..PRICE_MAX,
            more in 1.0_f64..20.0,
        ) {
            let mut allowance = taught(seen);
            let worth = worth(value, hash);
            let at = |allowance: &mut Allowance, price| {
                allowance.choose(price, candidates, &worth, ALONE).map(|action| action.candidates)
            };
            prop_assert_eq!(at(&mut allowance, 0.0), Some(candidates), "without a price nothing is cut");
            // What a microsecond is worth moves with each request: two that have seen the same are compared.
            let (cheap, dear) = (at(&mut taught(seen), price), at(&mut taught(seen), price * more));
            if let Some(allowed) = cheap {
                prop_assert!((4.min(candidates)..=candidates).contains(&allowed));
            }
            prop_assert!(dear.unwrap_or(0) <= cheap.unwrap_or(0), "{:?}, then {:?}", cheap, dear);
        }

        #[test]
        fn any_expectations_and_values_are_survived(
            prescores in prop::collection::vec(prop_oneof![Just(0.0_f32), 0.0_f32..1e30, Just(f32::MIN_POSITIVE)], 1..200),
            values in prop::collection::vec(prop_oneof![Just(0.0_f64), 0.0..1e30], 1..200),
            price in 0.0_f64..PRICE_MAX,
        ) {
            let mut allowance = taught(50);
            for _ in 0..70 {
                allowance.learn(3, values.iter().copied(), &prescores);
                let worth = Worth { class: 3, hash: 1, prescores: &prescores, ..Worth::default() };
                let allowed = allowance.choose(price, prescores.len(), &worth, ALONE);
                prop_assert!(allowed.is_none_or(|allowed| (1..=prescores.len()).contains(&allowed.candidates)));
            }
        }
    }

    #[test]
    fn histories_are_cut_where_that_costs_less_value_than_time() {
        let short = UnitCosts { candidate_us: 9.0, request_us: 140.0, ..COSTS };
        let time = |action: Action| {
            let costs = if action.is_short { short } else { COSTS };
            costs.us(action.candidates)
        };
        let (mut before, mut cut) = (f64::INFINITY, 0);
        for step in 0..60 {
            let price = 0.02 * f64::from(step);
            let action = taught(100).choose(price, 100, &worth(1.0, CUT), (COSTS, Some(short)));
            let taken = action.map_or(0.0, time);
            assert!(taken <= before, "a higher price never takes more time");
            (before, cut) = (taken, cut + usize::from(action.is_some_and(|action| action.is_short)));
            assert!(step > 0 || action == Some(Action { candidates: 100, is_short: false }));
        }
        assert!(cut > 20, "{cut} of 60 prices cut histories");
        let mut never = taught(100);
        never.limits.short_percent = 0;
        let action = never.choose(0.5, 100, &worth(1.0, CUT), (COSTS, Some(short)));
        assert!(action.is_none_or(|action| !action.is_short));
    }

    #[test]
    fn each_class_has_its_own_curve_and_unknown_ones_that_of_all() {
        let mut allowance = Allowance::new(LIMITS, 4096);
        let mut learn = |class, worth: fn(i32) -> f64| allowance.learn(class, (0..100).map(worth), &[]);
        for round in 0..128 {
            // In class 1 the best candidates are the first eight, in class 2 they are anywhere.
            learn(1, |at| if at < 8 { 1.0 } else { 0.0 });
            learn(2, |at| f64::from(1 + at * 37 % 100) / 100.0);
            // In all others only the first one is good. Forty classes come once, and class 3 each time.
            (0..40).for_each(|one| learn(1_000 + round * 40 + one, |at| if at < 1 { 1.0 } else { 0.0 }));
            learn(3, |at| if at < 1 { 1.0 } else { 0.0 });
        }
        let mut kept = |class| {
            allowance.choose(0.0, 100, &Worth { class, ..Worth::default() }, ALONE);
            let worth = Worth { class, ..worth(1.0, CUT) };
            allowance.choose(0.5, 100, &worth, ALONE).map_or(0, |action| action.candidates)
        };
        assert_eq!(kept(1), 8);
        assert!(kept(2) > 16, "{} of 100", kept(2));
        assert!(kept(3) < kept(0) && kept(1_000) == kept(0), "those that came once have the curve of all");
        assert_eq!(allowance.classes.len(), CLASSES_MAX);
    }

    #[test]
    fn the_price_rises_while_requests_wait_long_and_ends_when_they_do_not() {
        let mut allowance = Allowance::new(LIMITS, 100);
        assert_eq!(allowance.follow(0, 0.0), 0.0);
        let mut price = 0.0;
        for step in 1..=100 {
            let next = allowance.follow(step * 10_000, 1.0);
            assert!(next >= price && next.is_finite());
            price = next;
        }
        assert!(price > 5.0, "a second of full queues has a price of {price}");
        let free = (101..400).find(|step| allowance.follow(step * 10_000, 0.0) == 0.0);
        assert!(free.is_some(), "an idle node cuts nothing");
        let again = (401..500).map(|step| allowance.follow(step * 10_000, 1.5)).last();
        assert!(again > Some(5.0));
        assert_eq!(allowance.follow(15_000_000, 0.0), 0.0, "what was long ago has no price");
    }

    #[test]
    fn who_is_worth_more_or_expects_more_gets_more() {
        let price = 0.8;
        let of = |value, hash| {
            taught(100).choose(price, 100, &worth(value, hash), ALONE).map_or(0, |action| action.candidates)
        };
        let hashes = (1..40_u64).map(|at| CUT | at << 26);
        let sum = |value| hashes.clone().map(|hash| of(value, hash)).sum::<usize>();
        let sums = [3.0, 1.0, 0.2].map(sum);
        assert!(sums[0] > sums[1] && sums[1] > sums[2], "{sums:?}");
        let expects = |prescores: &[f32]| {
            let worth = Worth { prescores, hash: CUT, ..Worth::default() };
            taught(100).choose(price, 100, &worth, ALONE).map_or(0, |action| action.candidates)
        };
        let flat: Vec<f32> = vec![0.1; 100];
        let steep: Vec<f32> = (0..100).map(|at| if at < 8 { 1.0 } else { 1e-6 }).collect();
        assert!(expects(&flat) > expects(&steep), "{} and {}", expects(&flat), expects(&steep));
    }

    #[test]
    fn some_are_never_cut_so_that_curves_stay_known() {
        let mut allowance = taught(100);
        let whole = (0..4000_u64)
            .filter(|at| {
                allowance
                    .choose(PRICE_MAX, 100, &worth(1.0, at << 32), ALONE)
                    .is_some_and(|action| action.candidates == 100)
            })
            .count();
        assert_eq!(whole, 4000 / ALWAYS_UNCUT_ONE_IN as usize);
    }
}
