//! Arrivals: when each request is due and which one it is, drawn from a seed. It knows no clock and no network.

use super::chance::Chance;

/// What a schedule is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    /// How the times lie.
    pub shape: Shape,
    /// Requests a second; between bursts, where there are any.
    pub rate: f64,
    /// The same seed gives the same schedule.
    pub seed: u64,
}

/// How the times of arrivals lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// As requests of many callers who know nothing of each other.
    Poisson,
    /// Poisson, at a higher rate now and then.
    Bursts(Bursts),
    /// All equally far apart.
    Constant,
}

/// When the rate is higher, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// By what the rate is multiplied.
    pub times: f64,
    /// How long a burst lasts, in seconds.
    pub lasts_s: f64,
    /// From the end of one burst to the end of the next, in seconds.
    pub every_s: f64,
}

/// One request that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, in nanoseconds since the beginning.
    pub at_ns: u64,
    /// Which of the messages.
    pub message: usize,
}

impl Arrivals {
    /// What is wrong with it.
    ///
    /// # Errors
    /// The text names what cannot be, with its value.
    pub fn check(&self) -> Result<(), String> {
        let positive = |name: &str, value: f64| {
            let is_right = value.is_finite() && value > 0.0;
            is_right.then_some(()).ok_or_else(|| format!("{name} is {value}, expected more than 0"))
        };
        positive("rate", self.rate)?;
        if let Shape::Bursts(bursts) = self.shape {
            positive("the bursts' factor", bursts.times)?;
            positive("the bursts' length", bursts.lasts_s)?;
            positive("the time between bursts", bursts.every_s)?;
            if bursts.lasts_s > bursts.every_s {
                return Err(format!(
                    "a burst lasts {} s, and one comes every {} s",
                    bursts.lasts_s, bursts.every_s
                ));
            }
        }
        Ok(())
    }

    /// Requests a second, on average.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        match self.shape {
            Shape::Bursts(one) => self.rate * (1.0 + (one.times - 1.0) * one.lasts_s / one.every_s),
            Shape::Poisson | Shape::Constant => self.rate,
        }
    }
}

/// The arrivals one after another, without an end.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    messages: usize,
    times: Chance,
    picks: Chance,
    count: u64,
    at_s: f64,
    /// Calm and burst by turns; even ones are calm.
    stretch: u64,
}

impl Schedule {
    /// A schedule that picks among so many messages; `arrivals` were checked.
    #[must_use]
    pub fn new(arrivals: Arrivals, messages: usize) -> Self {
        let (times, picks) = (Chance::new(arrivals.seed, 0), Chance::new(arrivals.seed, 1));
        Self { arrivals, messages, times, picks, count: 0, at_s: 0.0, stretch: 0 }
    }

    /// The time at which a rate that changes has brought one request more.
    fn after_bursts(&mut self, bursts: Bursts, mut need: f64) -> f64 {
        loop {
            let is_burst = self.stretch % 2 == 1;
            let rate = self.arrivals.rate * if is_burst { bursts.times } else { 1.0 };
            let begun = (self.stretch / 2) as f64 * bursts.every_s;
            let until = begun + if is_burst { bursts.every_s } else { bursts.every_s - bursts.lasts_s };
            let left = (until - self.at_s).max(0.0);
            if need < left * rate {
                return self.at_s + need / rate;
            }
            need -= left * rate;
            self.at_s = until;
            self.stretch += 1;
        }
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.count += 1;
        self.at_s = match self.arrivals.shape {
            // Multiplied and not added up, so that rounding does not add up either.
            Shape::Constant => (self.count - 1) as f64 / self.arrivals.rate,
            Shape::Poisson => self.at_s - self.times.share().ln() / self.arrivals.rate,
            Shape::Bursts(bursts) => {
                let need = -self.times.share().ln();
                self.after_bursts(bursts, need)
            }
        };
        Some(Arrival { at_ns: (self.at_s * 1e9) as u64, message: self.picks.below(self.messages) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURSTS: Bursts = Bursts { times: 5.0, lasts_s: 0.5, every_s: 2.0 };

    fn times(shape: Shape, seed: u64, count: usize) -> Vec<f64> {
        let schedule = Schedule::new(Arrivals { shape, rate: 1000.0, seed }, 7);
        schedule.take(count).map(|one| one.at_ns as f64 / 1e9).collect()
    }

    #[test]
    fn one_seed_gives_one_schedule() {
        for shape in [Shape::Poisson, Shape::Constant, Shape::Bursts(BURSTS)] {
            let draw =
                |seed| Schedule::new(Arrivals { shape, rate: 900.0, seed }, 7).take(500).collect::<Vec<_>>();
            assert_eq!(draw(3), draw(3));
            assert_ne!(draw(3), draw(4));
        }
    }

    #[test]
    fn gaps_of_poisson_are_exponential() {
        let times = times(Shape::Poisson, 1, 100_000);
        let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_by(f64::total_cmp);
        // The largest distance of the two distributions; 1.63 / sqrt(n) is passed once in a hundred by chance.
        let count = gaps.len() as f64;
        let distance = gaps.iter().enumerate().map(|(at, gap)| {
            let share = 1.0 - (-gap * 1000.0).exp();
            (share - at as f64 / count).abs().max((share - (at + 1) as f64 / count).abs())
        });
        assert!(distance.fold(0.0, f64::max) < 1.63 / count.sqrt());
    }

    #[test]
    fn counts_of_poisson_vary_as_much_as_their_mean() {
        let mut counts = [0.0f64; 400];
        for at in times(Shape::Poisson, 2, 50_000) {
            if let Some(count) = counts.get_mut((at * 10.0) as usize) {
                *count += 1.0;
            }
        }
        let mean = counts.iter().sum::<f64>() / 400.0;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 399.0;
        assert!((mean - 100.0).abs() < 3.0, "{mean}");
        assert!((0.75..1.3).contains(&(variance / mean)), "{}", variance / mean);
    }

    #[test]
    fn constant_arrivals_are_equally_far_apart() {
        assert_eq!(times(Shape::Constant, 9, 4), [0.0, 0.001, 0.002, 0.003]);
    }

    #[test]
    fn bursts_come_when_they_are_due_and_as_strong() {
        let (mut calm, mut burst) = (0.0, 0.0);
        for at in times(Shape::Bursts(BURSTS), 5, 40_000).into_iter().filter(|at| *at < 20.0) {
            *if at % 2.0 < 1.5 { &mut calm } else { &mut burst } += 1.0;
        }
        assert!((calm / 15.0 / 1000.0 - 1.0f64).abs() < 0.05, "{calm}");
        assert!((burst / 5.0 / 5000.0 - 1.0f64).abs() < 0.05, "{burst}");
        let mean = Arrivals { shape: Shape::Bursts(BURSTS), rate: 1000.0, seed: 0 }.mean_rate();
        assert!((mean - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn messages_are_all_picked_alike() {
        let mut counts = [0; 7];
        for one in Schedule::new(Arrivals { shape: Shape::Constant, rate: 1.0, seed: 8 }, 7).take(70_000) {
            counts[one.message] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let of = |shape, rate| Arrivals { shape, rate, seed: 0 }.check();
        assert!(of(Shape::Poisson, 0.0).is_err());
        assert!(of(Shape::Poisson, f64::NAN).is_err());
        assert!(of(Shape::Bursts(Bursts { lasts_s: 3.0, ..BURSTS }), 1.0).is_err());
        assert!(of(Shape::Bursts(BURSTS), 1.0).is_ok());
    }
}
