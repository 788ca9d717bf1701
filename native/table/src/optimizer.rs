//! Optimizers: how a row learns, the optimizers' state, and the order of every operation. Knows neither keys
//! nor tables.
//!
//! Everything is f32 and uses only `+ - * /` and the square root, each rounded on its own as in IEEE 754 (no
//! fused operations), so that any machine, and NumPy, computes the same bits. One call of [`Rule::apply`],
//! for the gradient `g` and the row `w`, executes in this order:
//!
//! 1. `clip_value` c: every `g = max(-c, min(g, c))`.
//! 2. `clip_norm` c: `n = sqrt(S(g))`; if `n > c`, every `g = g * (c / n)`. As `tf.clip_by_norm`.
//! 3. `rate = kind.rate * rate_scale`.
//! 4. `weight_decay` d, if not 0: every `w = w - (rate * d) * w`. Decoupled from the gradient for every
//!    optimizer, as in Keras (and AdamW), and applied only when the key has a gradient. FTRL has `l2`
//!    instead.
//! 5. The step of the optimizer, as [`Optimizer`] describes it.
//!
//! `S(x)`, the sum of squares, adds in eight lanes: lane j sums `x[j]^2, x[j+8]^2, ...` in this order, then
//! `((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))`.
//!
//! NaN and infinite gradients reach the row and its state; the caller has to reject them.

/// The optimizer and its settings. `w` is the row, `g` the clipped gradient; every line applies to each
/// float.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// `w = w - rate * g`. No state.
    Sgd {
        /// Learning rate.
        rate: f32,
    },
    /// As PyTorch's Adagrad and TensorFlow's `ResourceApplyAdagradV2` (Keras adds epsilon under the root
    /// instead): `a = a + g * g; w = w - (rate * g) / (sqrt(a) + epsilon)`. State: `a` for each float.
    Adagrad {
        /// Learning rate.
        rate: f32,
        /// The initial `a`.
        initial_accumulator: f32,
        /// Keeps the divisor above zero.
        epsilon: f32,
    },
    /// As FBGEMM's exact row-wise Adagrad, with one accumulator per row: `a = a + S(g) / dim`, then with
    /// `m = rate / (sqrt(a) + epsilon)`: `w = w - m * g`. State: `a`.
    RowwiseAdagrad {
        /// Learning rate.
        rate: f32,
        /// The initial `a`.
        initial_accumulator: f32,
        /// Keeps the divisor above zero.
        epsilon: f32,
    },
    /// As Keras's Adam, but lazy: each row has its own step count, and nothing happens to it between its steps.
    /// `t = t + 1; alpha = (rate * sqrt(1 - P(beta2, t))) / (1 - P(beta1, t))`, then
    /// `m = m + (g - m) * (1 - beta1); v = v + (g * g - v) * (1 - beta2); w = w - (m * alpha) / (sqrt(v) + epsilon)`.
    /// `P(b, t)` multiplies `b, b^2, b^4, ...`, each the square of the one before, for the bits set in t from
    /// the lowest, starting with 1. State: every `m`, every `v`, then `t`, which stops at 2^24.
    Adam {
        /// Learning rate.
        rate: f32,
        /// The decay of the gradients' mean.
        beta1: f32,
        /// The decay of the squared gradients' mean.
        beta2: f32,
        /// Keeps the divisor above zero.
        epsilon: f32,
    },
    /// As TensorFlow's FTRL-Proximal with `learning_rate_power = -0.5`, the only supported power. With
    /// `i = 1 / rate` and `c = beta * i + 2 * l2`:
    /// `b = a + g * g; z = z + (g - ((sqrt(b) - sqrt(a)) * i) * w); a = b;`
    /// `w = (max(-l1, min(z, l1)) - z) / (sqrt(b) * i + c)`. State: every `a`, then every `z`.
    /// The first step forgets the initial row, as in TensorFlow, so such rows should start at zero. At rate
    /// 0, where the formula is undefined, nothing changes.
    Ftrl {
        /// Learning rate.
        rate: f32,
        /// Rows whose gradient sum stays within this are zero.
        l1: f32,
        /// Pulls rows to zero; counted twice, as in TensorFlow.
        l2: f32,
        /// Slows the first steps.
        beta: f32,
        /// The initial `a`.
        initial_accumulator: f32,
    },
}

impl Optimizer {
    /// The number of state floats of a row of `dim` floats.
    pub fn state_floats(&self, dim: usize) -> usize {
        match self {
            Self::Sgd { .. } => 0,
            Self::Adagrad { .. } => dim,
            Self::RowwiseAdagrad { .. } => 1,
            Self::Adam { .. } => 2 * dim + 1,
            Self::Ftrl { .. } => 2 * dim,
        }
    }

    /// The settings by name with their bounds: `(name, value, at least, below)`.
    fn bounds(&self) -> Vec<(&'static str, f32, f32, f32)> {
        let unbounded = f32::INFINITY;
        let rate = |rate| ("rate", rate, f32::MIN_POSITIVE, unbounded);
        match *self {
            Self::Sgd { rate: value } => vec![rate(value)],
            Self::Adagrad { rate: value, initial_accumulator, epsilon }
            | Self::RowwiseAdagrad { rate: value, initial_accumulator, epsilon } => vec![
                rate(value),
                ("initial_accumulator", initial_accumulator, 0.0, unbounded),
                ("epsilon", epsilon, 0.0, unbounded),
                // A row whose first gradient is zero would divide zero by zero.
                (
                    "initial_accumulator + epsilon",
                    initial_accumulator + epsilon,
                    f32::MIN_POSITIVE,
                    unbounded,
                ),
            ],
            Self::Adam { rate: value, beta1, beta2, epsilon } => vec![
                rate(value),
                ("beta1", beta1, 0.0, 1.0),
                ("beta2", beta2, 0.0, 1.0),
                ("epsilon", epsilon, f32::MIN_POSITIVE, unbounded),
            ],
            Self::Ftrl { rate: value, l1, l2, beta, initial_accumulator } => vec![
                rate(value),
                ("l1", l1, 0.0, unbounded),
                ("l2", l2, 0.0, unbounded),
                ("beta", beta, 0.0, unbounded),
                ("initial_accumulator", initial_accumulator, 0.0, unbounded),
                (
                    "initial_accumulator + beta + l2",
                    initial_accumulator + beta + l2,
                    f32::MIN_POSITIVE,
                    unbounded,
                ),
            ],
        }
    }
}

/// The learning rule of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The optimizer.
    pub kind: Optimizer,
    /// The share of a row, times the rate, that is subtracted before each step; 0 for none.
    pub weight_decay: f32,
    /// The gradient of a key is scaled down to at most this L2 norm.
    pub clip_norm: Option<f32>,
    /// Each float of a gradient is limited to plus and minus this, before `clip_norm`.
    pub clip_value: Option<f32>,
}

impl Rule {
    /// An optimizer alone: no decay, no clipping.
    pub fn new(kind: Optimizer) -> Self {
        Self { kind, weight_decay: 0.0, clip_norm: None, clip_value: None }
    }

    /// Checks the settings; the error names the setting, its value and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let mut bounds = self.kind.bounds();
        bounds.push(("weight_decay", self.weight_decay, 0.0, f32::INFINITY));
        bounds.extend(self.clip_norm.map(|norm| ("clip_norm", norm, f32::MIN_POSITIVE, f32::INFINITY)));
        bounds.extend(self.clip_value.map(|value| ("clip_value", value, f32::MIN_POSITIVE, f32::INFINITY)));
        for (name, value, least, below) in bounds {
            // Negated, so that NaN is rejected too.
            let is_good = value >= least && value < below;
            if !is_good {
                return Err(format!("{name} is {value}, but must be at least {least:e} and below {below}"));
            }
        }
        if matches!(self.kind, Optimizer::Ftrl { .. }) && self.weight_decay != 0.0 {
            return Err(format!(
                "weight_decay is {}, but FTRL does not support it; set l2",
                self.weight_decay
            ));
        }
        Ok(())
    }

    /// The number of state floats of a row of `dim` floats.
    pub fn state_floats(&self, dim: usize) -> usize {
        self.kind.state_floats(dim)
    }

    /// Writes the state of a new row.
    pub fn begin(&self, state: &mut [f32]) {
        state.fill(0.0);
        match self.kind {
            Optimizer::Sgd { .. } | Optimizer::Adam { .. } => {}
            Optimizer::Adagrad { initial_accumulator, .. }
            | Optimizer::RowwiseAdagrad { initial_accumulator, .. } => state.fill(initial_accumulator),
            Optimizer::Ftrl { initial_accumulator, .. } => {
                let dim = state.len() / 2;
                state[..dim].fill(initial_accumulator);
            }
        }
    }

    /// Applies a gradient to a row, at the optimizer's rate times `rate_scale` (a schedule's factor; 1
    /// without one). Clipping changes the gradient in place.
    ///
    /// # Panics
    /// If the gradient is not as long as the row, or the state not [`Self::state_floats`] long.
    // When inlined, the compiler no longer knows that the slices do not overlap, and the loop takes three
    // times as long.
    #[inline(never)]
    pub fn apply(&self, rate_scale: f32, row: &mut [f32], state: &mut [f32], gradient: &mut [f32]) {
        assert_eq!(gradient.len(), row.len(), "floats of a gradient and of its row");
        assert_eq!(state.len(), self.state_floats(row.len()), "floats of a row's state");
        // A length known at compile time gives a loop without a tail; more lengths bring no gain.
        match row.len() {
            8 => self.learn(rate_scale, &mut row[..8], state, &mut gradient[..8]),
            16 => self.learn(rate_scale, &mut row[..16], state, &mut gradient[..16]),
            _ => self.learn(rate_scale, row, state, gradient),
        }
    }

    #[inline(always)]
    fn learn(&self, rate_scale: f32, row: &mut [f32], state: &mut [f32], gradient: &mut [f32]) {
        if let Some(limit) = self.clip_value {
            gradient.iter_mut().for_each(|number| *number = within(*number, limit));
        }
        if let Some(limit) = self.clip_norm {
            let norm = squares(gradient).sqrt();
            if norm > limit {
                let share = limit / norm;
                gradient.iter_mut().for_each(|number| *number *= share);
            }
        }
        match self.kind {
            Optimizer::Sgd { rate } => {
                let rate = rate * rate_scale;
                self.decay(rate, row);
                take(row, rate, gradient);
            }
            Optimizer::Adagrad { rate, epsilon, .. } => {
                let rate = rate * rate_scale;
                self.decay(rate, row);
                adagrad(rate, epsilon, row, state, gradient);
            }
            Optimizer::RowwiseAdagrad { rate, epsilon, .. } => {
                let rate = rate * rate_scale;
                self.decay(rate, row);
                state[0] += squares(gradient) / row.len() as f32;
                take(row, rate / (state[0].sqrt() + epsilon), gradient);
            }
            Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                let rate = rate * rate_scale;
                self.decay(rate, row);
                adam(rate, [beta1, beta2], epsilon, row, state, gradient);
            }
            Optimizer::Ftrl { rate, l1, l2, beta, .. } => {
                ftrl(rate * rate_scale, l1, [l2, beta], row, state, gradient);
            }
        }
    }

    #[inline(always)]
    fn decay(&self, rate: f32, row: &mut [f32]) {
        if self.weight_decay != 0.0 {
            let share = rate * self.weight_decay;
            row.iter_mut().for_each(|weight| *weight -= share * *weight);
        }
    }
}

/// A number limited to plus and minus `limit`; NaN stays NaN.
#[inline(always)]
fn within(number: f32, limit: f32) -> f32 {
    let number = if number > limit { limit } else { number };
    if number < -limit { -limit } else { number }
}

/// The sum of squares, in eight lanes for speed and always in the same order for equal results.
#[inline(always)]
fn squares(numbers: &[f32]) -> f32 {
    let (mut lanes, chunks) = ([0.0f32; 8], numbers.chunks_exact(8));
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane += number * number;
        }
    }
    for (lane, number) in lanes.iter_mut().zip(tail) {
        *lane += number * number;
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = lanes;
    ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

#[inline(always)]
fn take(row: &mut [f32], rate: f32, gradient: &[f32]) {
    for (weight, number) in row.iter_mut().zip(gradient) {
        *weight -= rate * number;
    }
}

#[inline(always)]
fn adagrad(rate: f32, epsilon: f32, row: &mut [f32], state: &mut [f32], gradient: &[f32]) {
    for ((weight, sum), number) in row.iter_mut().zip(state).zip(gradient) {
        *sum += number * number;
        *weight -= (rate * number) / (sum.sqrt() + epsilon);
    }
}

/// Two powers at once, by squaring: only multiplications, so that the result is the same everywhere.
#[inline(always)]
fn powers(bases: [f32; 2], mut exponent: u32) -> [f32; 2] {
    // Smaller numbers are lost beside 1, and their powers would soon be denormal, which is slow.
    let flush = |number: f32| if number < f32::EPSILON * f32::EPSILON { 0.0 } else { number };
    let (mut bases, mut powers) = (bases, [1.0f32; 2]);
    while exponent > 0 {
        for (power, base) in powers.iter_mut().zip(&mut bases) {
            *power = if exponent & 1 == 1 { flush(*power * *base) } else { *power };
            *base = flush(*base * *base);
        }
        exponent >>= 1;
    }
    powers
}

#[inline(always)]
fn adam(rate: f32, betas: [f32; 2], epsilon: f32, row: &mut [f32], state: &mut [f32], gradient: &[f32]) {
    let (means, state) = state.split_at_mut(row.len());
    let (variances, steps) = state.split_at_mut(row.len());
    // Above 2^24 adding 1 changes nothing.
    steps[0] += 1.0;
    let [power1, power2] = powers(betas, steps[0] as u32);
    let alpha = (rate * (1.0 - power2).sqrt()) / (1.0 - power1);
    let [toward1, toward2] = betas.map(|beta| 1.0 - beta);
    for (((weight, mean), variance), number) in row.iter_mut().zip(means).zip(variances).zip(gradient) {
        *mean += (number - *mean) * toward1;
        *variance += (number * number - *variance) * toward2;
        *weight -= (*mean * alpha) / (variance.sqrt() + epsilon);
    }
}

#[inline(always)]
fn ftrl(rate: f32, l1: f32, [l2, beta]: [f32; 2], row: &mut [f32], state: &mut [f32], gradient: &[f32]) {
    if rate == 0.0 {
        return;
    }
    let inverse = 1.0 / rate;
    let constant = beta * inverse + 2.0 * l2;
    let (sums, linears) = state.split_at_mut(row.len());
    for (((weight, sum), linear), number) in row.iter_mut().zip(sums).zip(linears).zip(gradient) {
        let next = *sum + number * number;
        let root = next.sqrt();
        *linear += number - ((root - sum.sqrt()) * inverse) * *weight;
        *sum = next;
        *weight = (within(*linear, l1) - *linear) / (root * inverse + constant);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADAGRAD: Optimizer = Optimizer::Adagrad { rate: 0.05, initial_accumulator: 0.1, epsilon: 1e-8 };
    const ROWWISE: Optimizer =
        Optimizer::RowwiseAdagrad { rate: 0.05, initial_accumulator: 0.1, epsilon: 1e-8 };
    const ADAM: Optimizer = Optimizer::Adam { rate: 0.05, beta1: 0.9, beta2: 0.999, epsilon: 1e-7 };
    const FTRL: Optimizer =
        Optimizer::Ftrl { rate: 0.05, l1: 0.01, l2: 0.02, beta: 1.0, initial_accumulator: 0.1 };
    const ALL: [Optimizer; 5] = [Optimizer::Sgd { rate: 0.05 }, ADAGRAD, ROWWISE, ADAM, FTRL];

    /// Exact numbers in [-1, 1), the same that the NumPy reference used.
    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let number = |at: u32| {
            let mut mixed = (at + seed * 1_000).wrapping_mul(2_654_435_761);
            mixed ^= mixed >> 15;
            mixed = mixed.wrapping_mul(2_246_822_519);
            ((mixed >> 8) as i32 - (1 << 23)) as f32 / (1u32 << 23) as f32
        };
        (0..count as u32).map(number).collect()
    }

    /// A row after seven gradients at a falling rate, followed by its state.
    fn learned(rule: Rule, dim: usize) -> Vec<f32> {
        let mut row = numbers(1, dim);
        let mut state = vec![7.0; rule.state_floats(dim)];
        rule.begin(&mut state);
        for step in 0..7 {
            let mut gradient = numbers(2 + step, dim);
            rule.apply(1.0 - step as f32 * 0.125, &mut row, &mut state, &mut gradient);
        }
        row.extend(state);
        row
    }

    fn bits(floats: &[f32]) -> Vec<u32> {
        floats.iter().map(|float| float.to_bits()).collect()
    }

    #[test]
    fn every_bit_is_what_the_numpy_reference_computes() {
        let fold = |floats: &[f32]| {
            bits(floats).into_iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, bits| {
                (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let sgd = Rule::new(ALL[0]);
        let clipped = Rule { clip_norm: Some(0.9), clip_value: Some(0.75), weight_decay: 0.01, ..sgd };
        // Computed by tests/table/optimizer_reference.py: for dims 3, 16, 21 and 64, the first two floats of
        // the row, and a hash of the whole row and its state.
        let golden = [
            (
                sgd,
                [0x3f0b_af48, 0x3efc_69f6, 0x3f0b_af48, 0x3efc_69f6, 0x3f0b_af48, 0x3efc_69f6],
                [0x94c2_6844_539c_efab, 0xc949_59a9_1da3_da7c, 0x2186_3ba8_8cde_6eb8, 0x249c_c68e_5c2a_593c],
            ),
            (
                clipped,
                [0x3f0a_642d, 0x3efd_c882, 0x3f09_5c29, 0x3ef7_f589, 0x3f09_800a, 0x3ef8_043f],
                [0x6b55_7bf1_83cb_1aab, 0x27b7_7688_7968_0ff1, 0x6a2e_89b0_8de1_88e1, 0xf78a_88c4_cab6_5159],
            ),
            (
                Rule::new(ADAGRAD),
                [0x3f0e_c995, 0x3eff_cd61, 0x3f0e_c995, 0x3eff_cd61, 0x3f0e_c995, 0x3eff_cd61],
                [0xda4c_3df5_66b8_4bef, 0x2b60_c221_f90e_f091, 0xfaf9_bcfb_f9a0_8b97, 0x0710_d09e_99d6_6660],
            ),
            (
                Rule::new(ROWWISE),
                [0x3f11_0c70, 0x3f00_a017, 0x3f11_1a58, 0x3eff_d569, 0x3f11_e338, 0x3f00_641b],
                [0xa38b_9a95_d2c2_c98d, 0x01e2_aa51_daf6_8595, 0xdd8f_bb20_1bdb_0cc3, 0xed26_ea63_76b6_6c75],
            ),
            (
                Rule::new(ADAM),
                [0x3f19_b3fc, 0x3f07_09bd, 0x3f19_b3fc, 0x3f07_09bd, 0x3f19_b3fc, 0x3f07_09bd],
                [0x55de_de92_419d_718a, 0x071e_8e2d_d635_3227, 0xfd87_5a18_a170_7d81, 0xe192_865e_cb13_6b87],
            ),
            (
                Rule::new(FTRL),
                [0x3d36_27b7, 0x3d03_2f8b, 0x3d36_27b7, 0x3d03_2f8b, 0x3d36_27b7, 0x3d03_2f8b],
                [0xc40b_4077_c206_9641, 0x8e29_220b_a654_2073, 0x8291_099c_35e6_8363, 0xe47a_1bae_e276_81d1],
            ),
        ];
        for (rule, first, folds) in golden {
            for (pair, dim) in first.chunks(2).zip([3, 16, 21]) {
                assert_eq!(bits(&learned(rule, dim)[..2]), pair, "{rule:?}, dim {dim}");
            }
            let hashes = [3, 16, 21, 64].map(|dim| fold(&learned(rule, dim)));
            assert_eq!(hashes, folds, "{rule:?}");
        }
    }

    /// The documented sum of squares, lane by lane.
    fn lane_sum(numbers: &[f32]) -> f32 {
        let lane =
            |lane: usize| numbers.iter().skip(lane).step_by(8).fold(0.0, |sum, number| sum + number * number);
        let pair = |at: usize| lane(at) + lane(at + 4);
        (pair(0) + pair(2)) + (pair(1) + pair(3))
    }

    fn power(base: f32, exponent: u32) -> f32 {
        let squares = std::iter::successors(Some(base), |base| Some(base * base));
        let bits = (0..32).map(|bit| exponent >> bit & 1 == 1);
        squares.zip(bits).filter(|&(_, is_set)| is_set).fold(1.0, |product, (square, _)| product * square)
    }

    /// One step, float by float, as documented.
    fn step(rule: &Rule, scale: f32, row: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        let (dim, mut g) = (row.len(), gradient.to_vec());
        if let Some(c) = rule.clip_value {
            g = g.iter().map(|&g| if g.is_nan() { g } else { g.min(c).max(-c) }).collect();
        }
        if let Some(c) = rule.clip_norm {
            let n = lane_sum(&g).sqrt();
            g = g.iter().map(|g| if n > c { g * (c / n) } else { *g }).collect();
        }
        for at in 0..dim {
            let (g_all, g) = (&g, g[at]);
            let decayed = |rate: f32| match rule.weight_decay {
                0.0 => row[at],
                decay => row[at] - rate * decay * row[at],
            };
            row[at] = match rule.kind {
                Optimizer::Sgd { rate } => decayed(rate * scale) - rate * scale * g,
                Optimizer::Adagrad { rate, epsilon, .. } => {
                    state[at] += g * g;
                    decayed(rate * scale) - rate * scale * g / (state[at].sqrt() + epsilon)
                }
                Optimizer::RowwiseAdagrad { rate, epsilon, .. } => {
                    state[0] += if at == 0 { lane_sum(g_all) / dim as f32 } else { 0.0 };
                    decayed(rate * scale) - rate * scale / (state[0].sqrt() + epsilon) * g
                }
                Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                    state[2 * dim] += if at == 0 { 1.0 } else { 0.0 };
                    let t = state[2 * dim] as u32;
                    let alpha = rate * scale * (1.0 - power(beta2, t)).sqrt() / (1.0 - power(beta1, t));
                    state[at] += (g - state[at]) * (1.0 - beta1);
                    state[dim + at] += (g * g - state[dim + at]) * (1.0 - beta2);
                    decayed(rate * scale) - state[at] * alpha / (state[dim + at].sqrt() + epsilon)
                }
                Optimizer::Ftrl { rate, l1, l2, beta, .. } => {
                    let (inverse, a, b) = (1.0 / (rate * scale), state[at], state[at] + g * g);
                    state[dim + at] += g - (b.sqrt() - a.sqrt()) * inverse * row[at];
                    state[at] = b;
                    let z = state[dim + at];
                    let clipped = if z.is_nan() { z } else { z.min(l1).max(-l1) };
                    (clipped - z) / (b.sqrt() * inverse + (beta * inverse + 2.0 * l2))
                }
            };
        }
    }

    proptest! {
        #[test]
        fn every_bit_is_what_the_documentation_says(
            (dim, which, seed) in (1usize..70, 0usize..5, 0u32..1_000_000),
            (scale, decay) in (0.01f32..2.0, prop_oneof![Just(0.0f32), 0.0f32..0.1]),
            clip_norm in prop::option::of(0.01f32..5.0),
            clip_value in prop::option::of(0.01f32..1.0),
            (steps, magnitude) in (1u32..40, -20i32..20),
        ) {
            let weight_decay = if which == 4 { 0.0 } else { decay };
            let rule = Rule { kind: ALL[which], weight_decay, clip_norm, clip_value };
            prop_assert_eq!(rule.check(), Ok(()));
            let mut row = numbers(seed, dim);
            let mut state = vec![0.0; rule.state_floats(dim)];
            rule.begin(&mut state);
            let (mut expected_row, mut expected_state) = (row.clone(), state.clone());
            for at in 0..steps {
                let mut gradient = numbers(seed.wrapping_add(at + 1), dim);
                gradient.iter_mut().for_each(|number| *number *= 2f32.powi(magnitude));
                step(&rule, scale, &mut expected_row, &mut expected_state, &gradient);
                rule.apply(scale, &mut row, &mut state, &mut gradient);
            }
            prop_assert_eq!(bits(&row), bits(&expected_row));
            prop_assert_eq!(bits(&state), bits(&expected_state));
        }

        #[test]
        fn a_clipped_gradient_is_within_its_bounds(
            mut gradient in prop::collection::vec(-1e6f32..1e6, 1..70),
            (norm, value) in (0.01f32..10.0, 0.01f32..10.0),
        ) {
            let (kind, length) = (Optimizer::Sgd { rate: 1.0 }, |of: &[f32]| {
                of.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt()
            });
            let rule = Rule { clip_norm: Some(norm), clip_value: Some(value), ..Rule::new(kind) };
            let mut row = vec![0.0; gradient.len()];
            rule.apply(1.0, &mut row, &mut [], &mut gradient);
            prop_assert!(length(&row) <= f64::from(norm) * 1.000_01);
            prop_assert!(row.iter().all(|weight| weight.abs() <= value));
        }
    }

    /// The textbook formulas in f64, for one float.
    fn textbook(kind: Optimizer, gradients: &[f64], start: f64) -> f64 {
        let (mut w, mut first, mut second) = (start, 0.0f64, 0.0f64);
        if let Optimizer::Adagrad { initial_accumulator: begin, .. }
        | Optimizer::RowwiseAdagrad { initial_accumulator: begin, .. }
        | Optimizer::Ftrl { initial_accumulator: begin, .. } = kind
        {
            first = f64::from(begin);
        }
        for (at, g) in gradients.iter().enumerate() {
            match kind {
                Optimizer::Sgd { rate } => w -= f64::from(rate) * g,
                Optimizer::Adagrad { rate, epsilon, .. }
                | Optimizer::RowwiseAdagrad { rate, epsilon, .. } => {
                    first += g * g;
                    w -= f64::from(rate) * g / (first.sqrt() + f64::from(epsilon));
                }
                Optimizer::Adam { rate, beta1, beta2, epsilon } => {
                    let (b1, b2, t) = (f64::from(beta1), f64::from(beta2), at as i32 + 1);
                    first = b1 * first + (1.0 - b1) * g;
                    second = b2 * second + (1.0 - b2) * g * g;
                    let (m, v) = (first / (1.0 - b1.powi(t)), second / (1.0 - b2.powi(t)));
                    w -= f64::from(rate) * m / (v.sqrt() + f64::from(epsilon));
                }
                Optimizer::Ftrl { rate, l1, l2, beta, .. } => {
                    let (rate, l1, l2) = (f64::from(rate), f64::from(l1), f64::from(l2));
                    let sigma = ((first + g * g).sqrt() - first.sqrt()) / rate;
                    second += g - sigma * w;
                    first += g * g;
                    let pull = (f64::from(beta) + first.sqrt()) / rate + 2.0 * l2;
                    w = if second.abs() <= l1 { 0.0 } else { (l1.copysign(second) - second) / pull };
                }
            }
        }
        w
    }

    #[test]
    fn rows_end_where_the_textbook_says() {
        for kind in ALL {
            for (dim, steps) in [(1, 1), (16, 300), (21, 1_500)] {
                let (rule, mut row) = (Rule::new(kind), vec![0.3; dim]);
                let mut state = vec![0.0; rule.state_floats(dim)];
                rule.begin(&mut state);
                // All floats of a row learn the same, so that the mean of squares equals the square.
                let gradients = numbers(5, steps);
                for gradient in &gradients {
                    rule.apply(1.0, &mut row, &mut state, &mut vec![*gradient; dim]);
                }
                let expected = textbook(
                    kind,
                    &gradients.iter().map(|&gradient| f64::from(gradient)).collect::<Vec<_>>(),
                    0.3f32.into(),
                );
                for weight in row {
                    assert!(
                        (f64::from(weight) - expected).abs() < 2e-4,
                        "{kind:?} {steps}: {weight} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn powers_are_right_for_every_age_of_a_row() {
        for exponent in [1, 2, 3, 10, 1_000, 100_000, 1 << 24] {
            let [power1, power2] = powers([0.9, 0.999], exponent);
            let exact = |base: f32| f64::from(base).powf(f64::from(exponent));
            assert!((f64::from(power1) - exact(0.9)).abs() < 1e-4, "{exponent}: {power1}");
            assert!((f64::from(power2) - exact(0.999)).abs() < 1e-4, "{exponent}: {power2}");
            assert_eq!(powers([1.0 - f32::EPSILON, 0.0], exponent)[1], 0.0);
        }
    }

    #[test]
    fn a_row_that_is_as_old_as_can_be_still_learns() {
        let (rule, mut row, mut state) = (Rule::new(ADAM), [0.0], [0.0, 0.0, 16_777_216.0]);
        for _ in 0..100 {
            rule.apply(1.0, &mut row, &mut state, &mut [1.0]);
        }
        assert_eq!(state[2], 16_777_216.0);
        assert!(row[0] < -0.5, "{row:?}");
    }

    #[test]
    fn a_zero_gradient_moves_no_row_that_has_no_momentum() {
        for kind in [ALL[0], ADAGRAD, ROWWISE, ADAM] {
            let (rule, mut row) = (Rule::new(kind), numbers(1, 19));
            let mut state = vec![0.0; rule.state_floats(19)];
            rule.begin(&mut state);
            rule.apply(1.0, &mut row, &mut state, &mut [0.0; 19]);
            assert_eq!(row, numbers(1, 19), "{kind:?}");
            let decayed = Rule { weight_decay: 0.5, ..rule };
            decayed.apply(1.0, &mut row, &mut state, &mut [0.0; 19]);
            assert!(row.iter().zip(numbers(1, 19)).all(|(now, then)| (now / then - 0.975).abs() < 1e-6));
        }
        let (rule, mut row, mut state) = (Rule::new(FTRL), [0.7], [0.1, 0.0]);
        rule.apply(1.0, &mut row, &mut state, &mut [0.0]);
        assert_eq!((row, state), ([0.0], [0.1, 0.0]), "FTRL forgets what it did not learn");
        rule.apply(1.0, &mut row, &mut state, &mut [-1.0]);
        let learned = (row, state);
        rule.apply(0.0, &mut row, &mut state, &mut [-1.0]);
        assert_eq!((row, state), learned, "at rate 0 nothing changes");
    }

    #[test]
    fn gradients_that_are_no_numbers_reach_the_row() {
        for kind in ALL {
            for (clip_norm, clip_value) in [(None, None), (Some(1.0), Some(1.0))] {
                let rule = Rule { clip_norm, clip_value, ..Rule::new(kind) };
                let (mut row, mut state) = ([0.5; 9], vec![0.0; rule.state_floats(9)]);
                rule.begin(&mut state);
                let mut gradient = [0.25; 9];
                gradient[8] = f32::NAN;
                rule.apply(1.0, &mut row, &mut state, &mut gradient);
                assert!(row[8].is_nan(), "{rule:?}");
                assert_eq!(row[0].is_nan(), matches!(kind, Optimizer::RowwiseAdagrad { .. }), "{rule:?}");
            }
        }
    }

    #[test]
    fn settings_that_cannot_teach_are_refused_by_name() {
        let adagrad =
            |initial_accumulator, epsilon| Optimizer::Adagrad { rate: 0.1, initial_accumulator, epsilon };
        let ftrl = |l1, beta| Optimizer::Ftrl { rate: 0.1, l1, l2: 0.0, beta, initial_accumulator: 0.0 };
        let decay = |kind, weight_decay| Rule { weight_decay, ..Rule::new(kind) };
        let refused = [
            (Rule::new(Optimizer::Sgd { rate: 0.0 }), "rate is 0"),
            (Rule::new(Optimizer::Sgd { rate: f32::NAN }), "rate is NaN"),
            (Rule::new(Optimizer::Sgd { rate: f32::INFINITY }), "rate is inf"),
            (Rule::new(adagrad(0.0, 0.0)), "initial_accumulator + epsilon is 0"),
            (Rule::new(adagrad(-1.0, 0.0)), "initial_accumulator is -1"),
            (Rule::new(Optimizer::Adam { rate: 0.1, beta1: 1.0, beta2: 0.9, epsilon: 1e-8 }), "beta1 is 1"),
            (Rule::new(Optimizer::Adam { rate: 0.1, beta1: 0.9, beta2: 0.9, epsilon: 0.0 }), "epsilon is 0"),
            (Rule::new(ftrl(0.1, 0.0)), "initial_accumulator + beta + l2 is 0"),
            (Rule::new(ftrl(-0.1, 1.0)), "l1 is -0.1"),
            (decay(ADAM, -0.1), "weight_decay is -0.1"),
            (decay(FTRL, 0.1), "set l2"),
            (Rule { clip_norm: Some(0.0), ..Rule::new(ADAM) }, "clip_norm is 0"),
            (Rule { clip_value: Some(-1.0), ..Rule::new(ADAM) }, "clip_value is -1"),
        ];
        for (rule, why) in refused {
            let error = rule.check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
