//! The plan of a split: how many pieces a request has, and what is known of peers' load. Pure: no socket and no clock.

use std::ops::Range;

use crate::versions::VersionName;

/// What the network adds to a piece before anything was measured: mean and deviation, in microseconds.
const NETWORK_US: (f64, f64) = (1_000.0, 250.0);
/// How far a measurement moves them.
const NETWORK_WEIGHT: f64 = 1.0 / 8.0;
/// How long a peer that lost a piece gets none at most: the time doubles with each loss in a row.
const REST_US_MAX: u64 = 32_000_000;
const REST_DOUBLINGS: u32 = 20;
/// How long a peer that lacks a version is not asked for it again.
const LACK_US: u64 = 1_000_000;

/// Returns the number of pieces of a request, at least two. `left_us` is the time until its learned margin, and until its
/// deadline: the fewest pieces that are all done before the margin, or else the most that are done before the deadline,
/// because a whole request would be late. `None` if none are.
///
/// `waits_us` are the waits for work to begin at each place: at this node, then at peers, the shortest first.
/// `piece_us` is how long a piece of so many candidates takes.
pub fn pieces(
    candidates: usize,
    left_us: (f64, f64),
    waits_us: &[f64],
    piece_us: impl Fn(usize) -> f64,
) -> Option<usize> {
    let in_time = |pieces: usize, left_us: f64| {
        let until_us = left_us - piece_us(candidates.div_ceil(pieces));
        waits_us[0] <= until_us && waits_us[pieces - 1] <= until_us
    };
    let mut counts = 2..=waits_us.len().min(candidates);
    let fewest = counts.clone().find(|&pieces| in_time(pieces, left_us.0));
    fewest.or_else(|| counts.rfind(|&pieces| in_time(pieces, left_us.1)))
}

/// Returns the candidates of a piece, when a request is split evenly.
pub fn range(candidates: usize, pieces: usize, piece: usize) -> Range<usize> {
    candidates * piece / pieces..candidates * (piece + 1) / pieces
}

/// What is known of a peer, from its answers to pieces. All times are microseconds of one clock.
#[derive(Debug)]
pub struct PeerLoad {
    /// The work that it said to have, and when.
    backlog_us: (f64, u64),
    /// The work of pieces that it has not answered.
    sent_us: f64,
    network_us: (f64, f64),
    losses: u32,
    rests_until_us: u64,
    lacks: Option<(VersionName, u64)>,
}

impl Default for PeerLoad {
    fn default() -> Self {
        let (backlog_us, network_us) = ((0.0, 0), NETWORK_US);
        Self { backlog_us, sent_us: 0.0, network_us, losses: 0, rests_until_us: 0, lacks: None }
    }
}

impl PeerLoad {
    /// Returns what a piece waits for before it begins, and on its way; `None` if the peer should get none.
    pub fn wait_us(&self, now_us: u64, version: VersionName) -> Option<f64> {
        let lacks = self.lacks.is_some_and(|(lacked, until_us)| lacked == version && now_us < until_us);
        if lacks || now_us < self.rests_until_us {
            return None;
        }
        let (said_us, at_us) = self.backlog_us;
        let backlog_us = (said_us - now_us.saturating_sub(at_us) as f64).max(0.0);
        Some(backlog_us + self.sent_us + self.margin_us())
    }

    /// Returns what the network may add to a piece.
    pub fn margin_us(&self) -> f64 {
        self.network_us.0 + 2.0 * self.network_us.1
    }

    /// Counts the work of a piece that is sent, or with a negative time that it has ended.
    pub fn send(&mut self, own_us: f64) {
        self.sent_us = (self.sent_us + own_us).max(0.0);
    }

    /// Learns from an answer that came after `waited_us`, of which the peer says to have used `took_us`.
    pub fn answered(&mut self, now_us: u64, waited_us: f64, took_us: f64, backlog_us: f64) {
        self.losses = 0;
        self.backlog_us = (backlog_us, now_us);
        let network_us = (waited_us - took_us).clamp(0.0, waited_us);
        let (mean, deviation) = &mut self.network_us;
        *deviation += NETWORK_WEIGHT * ((network_us - *mean).abs() - *deviation);
        *mean += NETWORK_WEIGHT * (network_us - *mean);
    }

    /// Learns that it could not answer in the time that was left: it has as much work.
    pub fn busy(&mut self, now_us: u64, left_us: f64) {
        self.backlog_us = (left_us, now_us);
    }

    /// Learns that it does not have a version.
    pub fn lacks(&mut self, now_us: u64, version: VersionName) {
        self.lacks = Some((version, now_us + LACK_US));
    }

    /// Learns that a piece was lost, so that it rests, at first for so long.
    pub fn lost(&mut self, now_us: u64, rest_us: u64) {
        let rest_us = rest_us.clamp(1, REST_US_MAX) << self.losses.min(REST_DOUBLINGS);
        self.rests_until_us = now_us + rest_us.min(REST_US_MAX);
        self.losses += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: VersionName = VersionName { number: 7, identity: 1 };

    fn with_margin(margin_us: f64, left_us: f64, waits_us: &[f64]) -> Option<usize> {
        pieces(1_000, (left_us - margin_us, left_us), waits_us, |candidates| 100.0 + candidates as f64)
    }

    fn of(left_us: f64, waits_us: &[f64]) -> Option<usize> {
        with_margin(0.0, left_us, waits_us)
    }

    #[test]
    fn a_request_has_as_few_pieces_as_are_done_in_time() {
        let idle = [0.0, 10.0, 10.0, 10.0];
        assert_eq!(of(700.0, &idle), Some(2));
        assert_eq!(of(600.0, &idle), Some(3), "two would take 610");
        assert_eq!(of(444.0, &idle), Some(3));
        assert_eq!(of(443.0, &idle), Some(4));
        assert_eq!(of(350.0, &idle), None);
        assert_eq!(of(700.0, &[0.0]), None, "without peers");
        assert_eq!(of(700.0, &[200.0, 10.0, 10.0]), Some(3), "this node is busy");
        assert_eq!(of(700.0, &[0.0, 200.0, 300.0]), None, "peers are");
        assert_eq!(pieces(1, (1e9, 1e9), &idle, |_| 1.0), None, "one candidate cannot be split");
    }

    #[test]
    fn if_a_margin_cannot_be_kept_it_has_as_many_as_are_done_without_it() {
        let idle = [0.0, 10.0, 10.0, 10.0];
        assert_eq!(with_margin(300.0, 650.0, &idle), Some(4), "two would be done as well, but later");
        assert_eq!(with_margin(300.0, 650.0, &[0.0, 10.0, 400.0, 400.0]), Some(2), "some peers are busy");
        assert_eq!(with_margin(5.0, 355.0, &idle), None);
        assert_eq!(with_margin(300.0, 1_000.0, &idle), Some(2), "the margin can be kept");
    }

    #[test]
    fn pieces_cover_a_request_evenly() {
        for (candidates, count) in [(10, 3), (2, 2), (2_000, 7), (5, 4)] {
            let all: Vec<usize> = (0..count).flat_map(|at| range(candidates, count, at)).collect();
            assert_eq!(all, (0..candidates).collect::<Vec<_>>());
            let longest = (0..count).map(|at| range(candidates, count, at).len()).max();
            assert_eq!(longest, Some(candidates.div_ceil(count)));
            assert!((0..count).all(|at| !range(candidates, count, at).is_empty()));
        }
    }

    #[test]
    fn a_peers_backlog_grows_old_and_pieces_under_way_count() {
        let mut load = PeerLoad::default();
        load.answered(1_000, 5_000.0, 4_000.0, 3_000.0);
        let idle_us = load.wait_us(4_000, VERSION).unwrap();
        assert!((load.wait_us(1_000, VERSION).unwrap() - idle_us - 3_000.0).abs() < 1e-9);
        assert!((load.wait_us(9_000, VERSION).unwrap() - idle_us).abs() < 1e-9);
        load.send(500.0);
        assert!((load.wait_us(9_000, VERSION).unwrap() - idle_us - 500.0).abs() < 1e-9);
        load.send(-500.0);
        assert!((load.wait_us(9_000, VERSION).unwrap() - idle_us).abs() < 1e-9);
        load.busy(9_000, 2_000.0);
        assert!((load.wait_us(9_000, VERSION).unwrap() - idle_us - 2_000.0).abs() < 1e-9);
    }

    #[test]
    fn the_margin_is_what_the_network_takes_and_no_lie_makes_it_longer_than_a_piece_took() {
        let mut load = PeerLoad::default();
        (0..200).for_each(|_| load.answered(0, 10_000.0, 9_800.0, 0.0));
        assert!((load.margin_us() - 200.0).abs() < 1.0, "{}", load.margin_us());
        (0..200).for_each(|_| load.answered(0, 10_000.0, f64::MAX, 0.0));
        assert!(load.margin_us() < 1.0);
        (0..200).for_each(|_| load.answered(0, 10_000.0, -5.0, 0.0));
        assert!((load.margin_us() - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn a_peer_that_loses_pieces_rests_for_longer_each_time() {
        let mut load = PeerLoad::default();
        let mut rests = Vec::new();
        for at_us in (0..8).map(|round| round * 100_000_000) {
            load.lost(at_us, 1_000_000);
            let rest_us = (1..=64).find(|s| load.wait_us(at_us + s * 1_000_000, VERSION).is_some());
            rests.push(rest_us.unwrap());
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 32, 32]);
        load.answered(900_000_000, 10.0, 5.0, 0.0);
        load.lost(900_000_000, 1_000_000);
        assert!(load.wait_us(901_000_000, VERSION).is_some());
    }

    #[test]
    fn a_peer_that_lacks_a_version_is_asked_for_others() {
        let mut load = PeerLoad::default();
        load.lacks(0, VERSION);
        assert_eq!(load.wait_us(10, VERSION), None);
        assert!(load.wait_us(10, VersionName { identity: 2, ..VERSION }).is_some());
        assert!(load.wait_us(LACK_US, VERSION).is_some());
    }
}
