//! Arrivals: the seeded schedule of requests: when each is due, and which message it sends. Knows no clock
//! and no network.

use super::chance::Chance;

/// The parameters of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    /// The distribution of arrival times.
    pub shape: Shape,
    /// Requests per second; the rate between bursts, if there are bursts.
    pub rate: f64,
    /// The seed; equal seeds give equal schedules.
    pub seed: u64,
}

/// The distribution of arrival times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// A Poisson process, as of many independent callers.
    Poisson,
    /// A Poisson process with bursts of a higher rate.
    Bursts(Bursts),
    /// Constant intervals.
    Constant,
}

/// The bursts of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// The factor on the rate.
    pub times: f64,
    /// The duration of a burst in seconds.
    pub lasts_s: f64,
    /// The time from the end of one burst to the end of the next, in seconds.
    pub every_s: f64,
}

/// A request of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When it is due, in nanoseconds since the start.
    pub at_ns: u64,
    /// The index of its message.
    pub message: usize,
}

impl Arrivals {
    /// Checks the parameters.
    ///
    /// # Errors
    /// A text that names the invalid parameter and its value.
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
                    "a burst lasts {} s, longer than the interval of {} s",
                    bursts.lasts_s, bursts.every_s
                ));
            }
        }
        Ok(())
    }

    /// Returns the mean rate in requests per second.
    #[must_use]
    pub fn mean_rate(&self) -> f64 {
        match self.shape {
            Shape::Bursts(bursts) => {
                self.rate * (1.0 + (bursts.times - 1.0) * bursts.lasts_s / bursts.every_s)
            }
            Shape::Poisson | Shape::Constant => self.rate,
        }
    }
}

/// An endless iterator over the arrivals.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    messages: usize,
    times: Chance,
    picks: Chance,
    count: u64,
    at_s: f64,
    /// The number of the current phase; even phases are calm, odd ones bursts.
    stretch: u64,
}

impl Schedule {
    /// Creates a schedule over `messages` messages; `arrivals` must be checked.
    #[must_use]
    pub fn new(arrivals: Arrivals, messages: usize) -> Self {
        let (times, picks) = (Chance::new(arrivals.seed, 0), Chance::new(arrivals.seed, 1));
        Self { arrivals, messages, times, picks, count: 0, at_s: 0.0, stretch: 0 }
    }

    /// Returns the time at which the varying rate has produced another request.
    fn after_bursts(&mut self, bursts: Bursts, mut need: f64) -> f64 {
        loop {
            let is_burst = self.stretch % 2 == 1;
            let rate = self.arrivals.rate * if is_burst { bursts.times } else { 1.0 };
            let phase_start = (self.stretch / 2) as f64 * bursts.every_s;
            let phase_end =
                phase_start + if is_burst { bursts.every_s } else { bursts.every_s - bursts.lasts_s };
            let remaining_s = (phase_end - self.at_s).max(0.0);
            if need < remaining_s * rate {
                return self.at_s + need / rate;
            }
            need -= remaining_s * rate;
            self.at_s = phase_end;
            self.stretch += 1;
        }
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.count += 1;
        self.at_s = match self.arrivals.shape {
            // Multiplied rather than accumulated, so that rounding errors do not add up.
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
        schedule.take(count).map(|arrival| arrival.at_ns as f64 / 1e9).collect()
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
        // The largest distance between the two distributions; it exceeds 1.63 / sqrt(n) with probability 1 %.
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
        for arrival in Schedule::new(Arrivals { shape: Shape::Constant, rate: 1.0, seed: 8 }, 7).take(70_000)
        {
            counts[arrival.message] += 1;
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
