//! Gains: what each next candidate of a request adds to the value of its answer, learned from whole answers.
//! Knows no price.

/// Up to here each number of candidates is a rung of its own; beyond it there are eight rungs a doubling.
const SINGLE_RUNGS: usize = 8;
/// How many requests a rung has to see until what was assumed no longer counts.
const KNOWN_AFTER: u32 = 16;
/// How far a request moves a gain.
const WEIGHT_MIN: f64 = 1.0 / 512.0;
/// After so many requests the slopes are made anew.
const REQUESTS_A_FIT: u32 = 64;
/// How far a request's own expectation may be from the mean one.
const EXPECTED_MAX: f64 = 10.0;

/// Numbers of candidates at which a curve may change its slope.
#[derive(Debug)]
pub(super) struct Rungs(Vec<usize>);

impl Rungs {
    pub fn upto(candidates_max: usize) -> Self {
        let mut sizes: Vec<usize> = (1..=SINGLE_RUNGS.min(candidates_max)).collect();
        let mut last = SINGLE_RUNGS as f64;
        while sizes.last().is_some_and(|size| *size < candidates_max) {
            last *= 2_f64.powf(1.0 / 8.0);
            let size = (last.round() as usize).min(candidates_max);
            if sizes.last().is_some_and(|before| *before < size) {
                sizes.push(size);
            }
        }
        Self(sizes)
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().copied().enumerate()
    }

    fn width(&self, rung: usize) -> usize {
        self.0[rung] - if rung == 0 { 0 } else { self.0[rung - 1] }
    }
}

/// The mean value that a candidate of each rung adds.
#[derive(Debug)]
pub(super) struct Gains {
    /// Learned gains, and of how many requests.
    means: Vec<f64>,
    seen: Vec<u32>,
    /// What callers expected of the candidates, and of how many requests.
    expected: Vec<f64>,
    expecting: u32,
    /// The gains in use: they never rise, so that more candidates are never worth less each.
    slopes: Vec<f64>,
    is_known: bool,
    unfitted: u32,
}

impl Gains {
    /// Before anything is learned, each candidate is as likely as another to be among the best.
    pub fn unknown(rungs: &Rungs, shown: usize) -> Self {
        let slopes = rungs.iter().map(|(_, upto)| (shown as f64 / upto as f64).min(1.0)).collect();
        let (means, expected) = (vec![0.0; rungs.0.len()], vec![0.0; rungs.0.len()]);
        Self {
            means,
            seen: vec![0; rungs.0.len()],
            expected,
            expecting: 0,
            slopes,
            is_known: false,
            unfitted: 0,
        }
    }

    /// Returns whether the gains are learned, and no longer assumed.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns how many requests it has learned from.
    pub fn requests(&self) -> u32 {
        self.seen[0]
    }

    pub fn gain(&self, rung: usize) -> f64 {
        self.slopes[rung]
    }

    /// Returns the mean value of an answer with this number of candidates.
    pub fn value_of(&self, rungs: &Rungs, candidates: usize) -> f64 {
        let (mut value, mut from) = (0.0, 0);
        for (rung, upto) in rungs.iter() {
            let upto = upto.min(candidates);
            value += (upto - from) as f64 * self.slopes[rung];
            from = upto;
            if upto == candidates {
                break;
            }
        }
        value
    }

    /// Returns by how much a request expects more of these candidates than others do.
    pub fn expected(&self, rung: usize, from: usize, upto: usize, prescores: &[f32]) -> f64 {
        let own = prescores.get(from..upto).filter(|own| !own.is_empty());
        let Some(own) = own.filter(|_| self.expecting >= KNOWN_AFTER && self.expected[rung] > 0.0) else {
            return 1.0;
        };
        let mean = own.iter().map(|expected| f64::from(*expected)).sum::<f64>() / own.len() as f64;
        (mean / self.expected[rung]).clamp(1.0 / EXPECTED_MAX, EXPECTED_MAX)
    }

    pub fn learn(
        &mut self,
        rungs: &Rungs,
        shown: usize,
        values: impl Iterator<Item = f64>,
        prescores: &[f32],
    ) {
        let mut best = Best::of(shown);
        let (mut rung, mut before, mut left) = (0, 0.0, rungs.width(0));
        for value in values {
            best.add(if value.is_finite() { value.max(0.0) } else { 0.0 });
            left -= 1;
            if left > 0 {
                continue;
            }
            let gain = (best.sum - before) / rungs.width(rung) as f64;
            self.seen[rung] = self.seen[rung].saturating_add(1);
            self.means[rung] += weight(self.seen[rung]) * (gain - self.means[rung]);
            (rung, before) = (rung + 1, best.sum);
            if rung == rungs.0.len() {
                break;
            }
            left = rungs.width(rung);
        }
        if !prescores.is_empty() {
            self.learn_expected(rungs, prescores);
        }
        self.unfitted += 1;
        if self.unfitted >= REQUESTS_A_FIT {
            self.unfitted = 0;
            self.fit(rungs);
        }
    }

    fn learn_expected(&mut self, rungs: &Rungs, prescores: &[f32]) {
        self.expecting = self.expecting.saturating_add(1);
        let mut from = 0;
        for (rung, upto) in rungs.iter() {
            let Some(own) = prescores.get(from..upto) else { break };
            let mean = own.iter().map(|expected| f64::from(*expected)).sum::<f64>() / own.len() as f64;
            self.expected[rung] += weight(self.seen[rung].max(1)) * (mean - self.expected[rung]);
            from = upto;
        }
    }

    /// Makes the slopes anew: rungs that are not known go on from the last known one as if each candidate
    /// were as likely to be among the best, and a slope above the one before it is made one with it.
    fn fit(&mut self, rungs: &Rungs) {
        let (mut pools, mut last): (Vec<(f64, f64, usize)>, _) = (Vec::new(), None);
        for (rung, upto) in rungs.iter() {
            let gain = match last {
                _ if self.seen[rung] >= KNOWN_AFTER => self.means[rung],
                Some((gain, size)) => gain * size as f64 / upto as f64,
                None => return,
            };
            last = Some((gain, upto));
            let width = rungs.width(rung) as f64;
            let mut pool = (gain * width, width, 1);
            while let Some(before) = pools.last().copied().filter(|one| one.0 / one.1 <= pool.0 / pool.1) {
                pools.pop();
                pool = (pool.0 + before.0, pool.1 + before.1, pool.2 + before.2);
            }
            pools.push(pool);
        }
        self.is_known = true;
        self.slopes.clear();
        for (value, width, rungs) in pools {
            self.slopes.extend(std::iter::repeat_n(value / width, rungs));
        }
    }
}

fn weight(seen: u32) -> f64 {
    (1.0 / f64::from(seen)).max(WEIGHT_MIN)
}

/// The sum of the best values so far.
struct Best {
    kept: Vec<f64>,
    most: usize,
    lowest: usize,
    sum: f64,
}

impl Best {
    fn of(most: usize) -> Self {
        Self { kept: Vec::with_capacity(most), most, lowest: 0, sum: 0.0 }
    }

    fn add(&mut self, value: f64) {
        if self.kept.len() < self.most {
            self.kept.push(value);
            self.sum += value;
        } else if value > self.kept[self.lowest] {
            self.sum += value - self.kept[self.lowest];
            self.kept[self.lowest] = value;
        } else {
            return;
        }
        let lowest = self.kept.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        self.lowest = lowest.expect("it keeps a value at least").0;
    }
}
