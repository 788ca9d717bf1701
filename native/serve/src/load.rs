//! Load: how busy a node has been lately, as its answers say it. Knows no protocol and no scheduler.

/// The time in microseconds after which what happened counts a third: long beside an answer, short beside an hour.
const MEMORY_US: f64 = 2e6;
/// Answers a second below which nothing can be said of what an answer costs.
const ANSWERS_MIN: f64 = 0.001;

/// What a node did lately: the older an event is, the less it counts.
#[derive(Debug, Default)]
pub struct LoadMeter {
    at_us: u64,
    read_us: u64,
    busy_us: f64,
    answered: f64,
    failed: f64,
    waited: f64,
}

/// The load of a node, in the terms of Open Request Cost Aggregation (ORCA).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeLoad {
    /// The share of its lanes' time that was used, and the wait for them as a share of the default deadline: 0 is
    /// idle; above 1 more comes than it can answer.
    pub utilization: f64,
    /// Answers a second.
    pub answers: f64,
    /// Failures a second; a refusal for lack of time is none.
    pub failures: f64,
}

impl LoadMeter {
    /// Counts the time for which a lane was busy.
    pub fn busy(&mut self, now_us: u64, busy_us: f64) {
        self.fade(now_us);
        self.busy_us += busy_us;
    }

    /// Counts an answered request.
    pub fn answered(&mut self, now_us: u64) {
        self.fade(now_us);
        self.answered += 1.0;
    }

    /// Counts a failed request.
    pub fn failed(&mut self, now_us: u64) {
        self.fade(now_us);
        self.failed += 1.0;
    }

    /// Returns the load, given the share of the default deadline for which a new request would wait; `None` if
    /// nothing was answered lately.
    pub fn load(&mut self, now_us: u64, lanes: usize, wait_share: f64) -> Option<NodeLoad> {
        let since_us = now_us.saturating_sub(self.read_us) as f64;
        self.read_us = now_us;
        self.fade(now_us);
        let weight = 1.0 - (-since_us / MEMORY_US).exp();
        self.waited += weight * (wait_share.clamp(0.0, 1.0) - self.waited);
        let a_second = 1e6 / MEMORY_US;
        let load = NodeLoad {
            utilization: self.busy_us / MEMORY_US / lanes.max(1) as f64 + self.waited,
            answers: self.answered * a_second,
            failures: self.failed * a_second,
        };
        (load.answers >= ANSWERS_MIN).then_some(load)
    }

    fn fade(&mut self, now_us: u64) {
        let since_us = now_us.saturating_sub(self.at_us);
        if since_us > 0 {
            let left = (-(since_us as f64) / MEMORY_US).exp();
            self.busy_us *= left;
            self.answered *= left;
            self.failed *= left;
            self.at_us = now_us;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of equal distance, each busy for so long.
    fn steady(seconds: u64, each_us: u64, busy_us: f64) -> (LoadMeter, u64) {
        let mut meter = LoadMeter::default();
        let mut now_us = 0;
        while now_us < seconds * 1_000_000 {
            now_us += each_us;
            meter.busy(now_us, busy_us);
            meter.answered(now_us);
            let _ = meter.load(now_us, 1, 0.0);
        }
        (meter, now_us)
    }

    #[test]
    fn a_steady_load_is_the_share_of_time_and_the_rate() {
        let (mut meter, now_us) = steady(30, 2_000, 500.0);
        let load = meter.load(now_us, 1, 0.0).unwrap();
        assert!((load.utilization - 0.25).abs() < 0.01 && (load.answers - 500.0).abs() < 2.0, "{load:?}");
        assert!((meter.load(now_us, 2, 0.0).unwrap().utilization - 0.125).abs() < 0.01);
    }

    #[test]
    fn answers_over_utilization_is_what_a_node_could_answer_however_young_or_quiet_it_is() {
        for (seconds, each_us) in [(1, 10_000), (1, 100_000), (20, 1_000_000), (20, 1_000)] {
            let (mut meter, now_us) = steady(seconds, each_us, 500.0);
            let load = meter.load(now_us, 1, 0.0).unwrap();
            assert!((load.answers / load.utilization - 2_000.0).abs() < 1.0, "{load:?}");
        }
    }

    #[test]
    fn waiting_adds_to_it_up_to_the_deadline_and_is_forgotten() {
        let mut meter = LoadMeter::default();
        for now_us in (0..20_000_000).step_by(10_000) {
            meter.answered(now_us);
            meter.load(now_us, 1, 7.0);
        }
        let load = meter.load(20_000_000, 1, f64::INFINITY).unwrap();
        assert!((load.utilization - 1.0).abs() < 0.01, "{load:?}");
        assert!(meter.load(32_000_000, 1, 0.0).unwrap().utilization < 0.01);
    }

    #[test]
    fn failures_count_apart_and_who_answers_nothing_says_nothing() {
        let mut meter = LoadMeter::default();
        meter.failed(1_000);
        assert_eq!(meter.load(1_000, 0, f64::NAN), None);
        meter.answered(2_000);
        let load = meter.load(2_000, 1, 0.0).unwrap();
        assert!(load.failures > 0.0 && load.answers > load.failures, "{load:?}");
        assert_eq!(meter.load(60_000_000, 1, 0.0), None);
    }
}
