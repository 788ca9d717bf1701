//! UnreadShare: which requests are refused before they are read, because the node cannot read all of them. Knows no
//! protocol.
//!
//! To read and refuse a request costs far more than to refuse it by its first bytes. A node that gets several times as
//! many requests as it can answer would only read, and answer late. So requests of the lowest priority, and among them
//! those of the least value, are refused at a glance: as many as the threads that read cannot follow with.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use streamlearn_scheduler::PRIORITIES;

/// How fast the share rises while reading is far behind, and falls while it is in time, a second.
const UP: f32 = 4.0;
const DOWN: f32 = 0.3;
/// How many requests are read for each that is answered, so that there is a choice. A tenth of all is read in any case.
const READ_FOR_ANSWER: f32 = 2.0;
const SHARE_MAX: f32 = 0.9;
/// Values have four ranks for each doubling, from 1/256 to 256.
const RANKS_OF_DOUBLING: f32 = 4.0;
const VALUE_RANKS: usize = 64;
const RANKS: usize = VALUE_RANKS * PRIORITIES;
/// How often what was seen is halved.
const MEMORY: Duration = Duration::from_millis(200);

/// The share of requests that are refused unread, and those that these are.
#[derive(Debug)]
pub struct UnreadShare {
    share: AtomicU32,
    /// How many requests of each rank came lately; the first rank is refused last.
    seen: Box<[AtomicU32]>,
    /// How many requests were answered meanwhile.
    answered: AtomicU32,
    /// Requests of later ranks are refused, and of this one the share that follows, as the bits of a float.
    limit: AtomicU32,
    share_at_limit: AtomicU32,
    /// Counts requests at the limit.
    at_limit: AtomicU64,
    halved: Mutex<Option<Instant>>,
}

/// How requests were read lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Soon after their heads.
    InTime,
    /// Late.
    Late,
    /// So late that most answers are late.
    FarBehind,
}

impl Default for UnreadShare {
    fn default() -> Self {
        Self {
            share: AtomicU32::default(),
            seen: (0..RANKS).map(|_| AtomicU32::default()).collect(),
            answered: AtomicU32::default(),
            limit: AtomicU32::default(),
            share_at_limit: AtomicU32::default(),
            at_limit: AtomicU64::default(),
            halved: Mutex::default(),
        }
    }
}

impl UnreadShare {
    /// The share of requests that are refused unread.
    pub fn share(&self) -> f32 {
        f32::from_bits(self.share.load(Ordering::Relaxed))
    }

    /// Counts a request that was read and answered.
    pub fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Refuses none from now on.
    pub fn clear(&self) {
        self.share.store(0, Ordering::Relaxed);
        self.seen.iter().chain([&self.answered]).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Counts a request that came, and returns whether it is refused unread.
    pub fn refuses(&self, priority: u8, value: f32) -> bool {
        let rank = rank_of(priority, value);
        self.seen[rank].fetch_add(1, Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed) as usize;
        if self.share() == 0.0 || rank != limit {
            return self.share() > 0.0 && rank > limit;
        }
        // As even as possible: of every ten at the limit, three are refused if the share is 0.3.
        let share = f64::from(f32::from_bits(self.share_at_limit.load(Ordering::Relaxed)));
        let number = self.at_limit.fetch_add(1, Ordering::Relaxed) as f64;
        ((number + 1.0) * share).floor() > (number * share).floor()
    }

    /// Changes the share after a span.
    pub fn follow(&self, now: Instant, span: Duration, reading: Reading) {
        let seen: Vec<u32> = self.seen.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let answered = self.answered.load(Ordering::Relaxed);
        let enough = share_max(seen.iter().map(|&count| u64::from(count)).sum(), answered);
        let (change, share_max) = match reading {
            Reading::InTime => (-DOWN, enough),
            Reading::Late => (0.0, enough),
            Reading::FarBehind => (UP, SHARE_MAX), // answers are late, too
        };
        let share = (self.share() + change * span.as_secs_f32()).clamp(0.0, share_max);
        self.share.store(share.to_bits(), Ordering::Relaxed);
        let (limit, share_at_limit) = limit_of(&seen, share);
        self.limit.store(limit as u32, Ordering::Relaxed);
        self.share_at_limit.store(share_at_limit.to_bits(), Ordering::Relaxed);
        let Ok(mut halved) = self.halved.try_lock() else { return };
        if halved.is_none_or(|at| now.duration_since(at) >= MEMORY) {
            *halved = Some(now);
            let halve = |(count, seen): (&AtomicU32, u32)| count.fetch_sub(seen / 2, Ordering::Relaxed);
            self.seen.iter().zip(seen).map(halve).for_each(drop);
            halve((&self.answered, answered));
        }
    }
}

fn rank_of(priority: u8, value: f32) -> usize {
    let middle = VALUE_RANKS as f32 / 2.0;
    let below = middle - (value.log2() * RANKS_OF_DOUBLING).ceil();
    usize::from(priority).min(PRIORITIES - 1) * VALUE_RANKS
        + below.clamp(0.0, VALUE_RANKS as f32 - 1.0) as usize
}

/// Returns the largest share with which enough requests are still read. `seen` came, and `answered` have their answers.
fn share_max(seen: u64, answered: u32) -> f32 {
    (1.0 - READ_FOR_ANSWER * answered as f32 / seen.max(1) as f32).clamp(0.0, SHARE_MAX)
}

/// Returns a rank and a part. Requests of later ranks, and this part of those of the rank, make up `share` of all requests.
fn limit_of(seen: &[u32], share: f32) -> (usize, f32) {
    let all: f64 = seen.iter().map(|&count| f64::from(count)).sum();
    let mut left = all * f64::from(share);
    for (rank, &count) in seen.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
        if f64::from(count) >= left {
            return (rank, (left / f64::from(count)) as f32);
        }
        left -= f64::from(count);
    }
    (seen.len(), 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_millis(100);

    /// A share of about so much, after requests of these priorities and values.
    fn at(share: f32, requests: &[(u8, f32)]) -> UnreadShare {
        let unread = UnreadShare::default();
        for (priority, value) in requests {
            assert!(!unread.refuses(*priority, *value), "none is refused before reading is late");
        }
        let mut now = Instant::now();
        while unread.share() < share {
            unread.halved.lock().unwrap().replace(now); // it forgets nothing
            unread.follow(now, Duration::from_millis(1), Reading::FarBehind);
            now += Duration::from_micros(1);
        }
        unread
    }

    #[test]
    fn those_of_low_priority_and_then_of_low_value_are_refused() {
        let requests = [(0, 1.0), (0, 4.0), (1, 0.5), (1, 100.0), (9, 8.0)].repeat(100);
        let unread = at(0.5, &requests);
        let refused = |priority, value| (0..100).filter(|_| unread.refuses(priority, value)).count();
        assert_eq!((refused(9, 8.0), refused(3, 300.0), refused(1, 0.5)), (100, 100, 100));
        assert!(refused(1, 100.0).abs_diff(50) <= 2, "a half of these is the rest of the share");
        assert_eq!((refused(0, 1.0), refused(0, 0.001), refused(1, 128.0)), (0, 0, 0));
    }

    #[test]
    fn of_equal_requests_as_many_are_refused_as_the_share_says() {
        for share in [0.1, 0.33, 0.9] {
            let unread = at(share, &[(0, 1.0); 100]);
            let refused = (0..1_000).filter(|_| unread.refuses(0, 1.0)).count();
            assert!((refused as f32 - 1_000.0 * share).abs() < 5.0, "{refused} at {share}");
        }
    }

    #[test]
    fn the_share_rises_while_reading_is_late_and_falls_to_none() {
        let (unread, mut now) = (UnreadShare::default(), Instant::now());
        let mut follow = |spans, reading| {
            for _ in 0..spans {
                now += SPAN;
                unread.follow(now, SPAN, reading);
            }
            unread.share()
        };
        assert_eq!(follow(3, Reading::Late), 0.0);
        assert!(follow(1, Reading::FarBehind) > 0.3);
        assert_eq!(follow(100, Reading::FarBehind), SHARE_MAX);
        assert_eq!(follow(100, Reading::Late), SHARE_MAX);
        assert!(follow(10, Reading::InTime) > 0.5, "it falls more slowly");
        assert_eq!(follow(100, Reading::InTime), 0.0);
        assert!(!unread.refuses(3, 0.001));
    }

    #[test]
    fn two_are_read_for_each_that_is_answered_unless_reading_is_far_behind() {
        let unread = at(0.9, &[(0, 1.0); 1_000]);
        (0..200).for_each(|_| unread.answered());
        let now = Instant::now();
        unread.halved.lock().unwrap().replace(now);
        unread.follow(now, SPAN, Reading::FarBehind);
        assert_eq!(unread.share(), SHARE_MAX);
        unread.follow(now, SPAN, Reading::Late);
        assert!((unread.share() - 0.6).abs() < 1e-3, "{}", unread.share());
        unread.clear();
        assert_eq!((unread.share(), unread.refuses(3, 0.1)), (0.0, false));
    }

    #[test]
    fn what_came_long_ago_no_longer_counts() {
        let unread = at(0.5, &[(0, 8.0); 100]);
        let mut now = Instant::now() + MEMORY;
        for _ in 0..20 {
            let _ = (0..100).filter(|_| unread.refuses(0, 1.0)).count();
            now += MEMORY;
            unread.follow(now, Duration::ZERO, Reading::Late);
        }
        let refused = (0..100).filter(|_| unread.refuses(0, 1.0)).count();
        assert!(refused.abs_diff(50) <= 3, "{refused}: half of those that come now");
    }

    #[test]
    fn every_value_has_a_rank() {
        let values = [f32::MIN_POSITIVE, 1e-9, 0.999, 1.0, 1.001, 2.0, 1e30, f32::INFINITY, f32::NAN];
        for value in values {
            for priority in [0, 3, 255] {
                assert!(rank_of(priority, value) < RANKS);
            }
        }
        assert!(rank_of(0, 2.0) < rank_of(0, 1.0) && rank_of(0, 0.01) < rank_of(1, 100.0));
        assert_eq!(limit_of(&[0; 4], 0.5), (4, 0.0), "nothing came");
    }
}
