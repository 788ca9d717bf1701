//! Admission: a refused request learns the reason at once, and is admitted if it follows the retry hint.

use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{
    Admitted, AllowanceLimits, Costs, Idle, Limits, Offer, Reason, Refused, Scheduler, Shapes, Took, Worth,
};

fn scheduler() -> Scheduler {
    scheduler_with(0)
}

/// A TensorBatch costs 100 us, plus 10 us for each candidate of its bucket.
fn scheduler_with(slack_us: u64) -> Scheduler {
    limited(Limits { slack_us, ..limits(1) })
}

fn limited(limits: Limits) -> Scheduler {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
    let shapes = Shapes { users: ladder(&[1]), candidates: ladder(&[10, 100]), lengths: ladder(&[8]) };
    let costs = Costs::measured(&shapes, |_, _| 50.0, |candidates, _| 50.0 + 10.0 * candidates as f64);
    Scheduler::new(limits, shapes, costs)
}

fn limits(lanes: usize) -> Limits {
    Limits {
        lanes,
        requests_max: 100,
        candidates_max: 10_000,
        reserved_percent: 10,
        wait_us_max: 10_000,
        slack_us: 0,
        allowance: None,
        by_cohort: false,
    }
}

fn of(deadline_us: u64) -> Offer<'static> {
    let (version, candidates, length, priority) = (1, 100, 8, 0);
    Offer { version, candidates, length, deadline_us, priority, cohort: 0, worth: Worth::default() }
}

fn offer(scheduler: &mut Scheduler, now_us: u64, within_us: u64) -> Result<Admitted, Refused> {
    scheduler.offer(now_us, &of(now_us + within_us))
}

#[test]
fn an_earlier_request_keeps_its_margin_when_a_more_urgent_one_comes() {
    let mut scheduler = scheduler_with(1_000);
    scheduler.next(0, 0);
    assert!((0..3).all(|_| offer(&mut scheduler, 0, 5_000).is_ok()), "each takes 1.1 ms");
    let refused = offer(&mut scheduler, 0, 2_500).unwrap_err();
    assert_eq!(refused.reason, Reason::Backlog, "the last would be done after 4.4 of 5 ms");
    assert!(offer(&mut scheduler, 0, 5_500).is_ok());
}

#[test]
fn a_piece_needs_no_margin_that_was_learned() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    let now_us = 1_000_000;
    (0..1_000).for_each(|at| scheduler.learn_slack(1_000 * at, 5_000, true));
    assert!((0..2).all(|_| offer(&mut scheduler, now_us, 5_000).is_ok()));
    assert_eq!(offer(&mut scheduler, now_us, 5_000).unwrap_err().reason, Reason::Backlog, "3.3 and 2.5 ms");
    assert!(scheduler.offer_piece(now_us, &of(now_us + 5_000)).is_ok());
}

#[test]
fn where_no_lane_is_there_nothing_is_admitted() {
    let mut scheduler = scheduler();
    let refused = Refused { reason: Reason::Lanes, retry_us: 10_000 };
    assert_eq!(offer(&mut scheduler, 0, 5000), Err(refused));
    assert_eq!(scheduler.next(0, 0).plan, None);
    let ticket = offer(&mut scheduler, 0, 5000).unwrap().ticket;
    assert!(scheduler.next(0, 0).plan.is_some());
    assert_eq!(scheduler.leave(0), [ticket], "a leaving lane fails its requests");
    assert_eq!(offer(&mut scheduler, 0, 5000), Err(refused));
}

#[test]
fn who_is_refused_for_what_waits_is_admitted_once_it_was_worked_off() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    let mut admitted = 0;
    let refused = loop {
        match offer(&mut scheduler, 0, 5000) {
            Ok(_) => admitted += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((admitted, refused.reason), (4, Reason::Backlog), "each takes 1.1 ms");
    assert_eq!(refused.retry_ms(), 1);
    let plan = scheduler.next(0, 0).plan.unwrap();
    assert!(offer(&mut scheduler, refused.retry_us - 10, 5000).is_err());
    assert!(offer(&mut scheduler, refused.retry_us + 10, 5000).is_ok());
    assert_eq!(scheduler.done(0, Took { user_us: 50.0, score_us: 1050.0 }), [plan.pieces[0].ticket]);
}

#[test]
fn an_idle_node_refuses_and_cuts_nothing_whatever_it_refused_a_moment_ago() {
    let allowance = Some(AllowanceLimits { candidates_min: 100, shown: 8, short_percent: 0 });
    let mut scheduler = limited(Limits { allowance, ..limits(1) });
    scheduler.next(0, 0);
    // A hash that is not among those that stay whole.
    let cut = |now_us, value| Offer {
        worth: Worth { value, hash: 1 << 32, ..Worth::default() },
        ..of(now_us + 10_000)
    };
    let mut running = false;
    let mut work = |scheduler: &mut Scheduler, now_us| {
        if running {
            scheduler.done(0, Took { user_us: 50.0, score_us: 1050.0 });
        }
        running = scheduler.next(now_us, 0).plan.is_some();
        running
    };
    let mut refused = [0, 0];
    for at in 0..10_000 {
        let asked = scheduler.offer(275 * at, &cut(275 * at, 1.0));
        refused[at as usize / 5_000] +=
            usize::from(asked.is_err_and(|refused| refused.reason == Reason::Price));
        if at % 4 == 3 {
            work(&mut scheduler, 275 * at);
        }
    }
    assert!(refused[1] > 2_500, "{refused:?} of 5,000 at four times the load");
    while work(&mut scheduler, 2_750_000) {}
    for at in 1..100 {
        let now_us = 2_750_000 + 2_000 * at;
        assert_eq!(scheduler.offer(now_us, &cut(now_us, 0.01)).map(|admitted| admitted.candidates), Ok(100));
        while work(&mut scheduler, now_us) {}
    }
}

#[test]
fn nobody_is_admitted_behind_an_execution_that_hangs() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    offer(&mut scheduler, 0, 5000).unwrap();
    assert!(scheduler.next(0, 0).plan.is_some());
    assert!(offer(&mut scheduler, 1100, 5000).is_ok(), "the execution should be done by now");
    let refused = offer(&mut scheduler, 8000, 5000).unwrap_err();
    assert_eq!(refused.reason, Reason::Backlog);
    assert!(refused.retry_us > 1000, "{refused:?}");
}

#[test]
fn a_lane_that_rests_is_busy_until_it_asks_for_work() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    scheduler.rest(0, 3_000);
    assert_eq!((scheduler.lanes(), scheduler.figures(0).lanes_busy), ((0, 1), 1));
    let refused = offer(&mut scheduler, 0, 4_000).unwrap_err();
    assert_eq!(refused, Refused { reason: Reason::Backlog, retry_us: 100 }, "it takes 1.1 ms after the rest");
    assert!(offer(&mut scheduler, 0, 4_200).is_ok());
    assert!(scheduler.next(3_000, 0).plan.is_some());
    scheduler.rest(0, 9_000);
    assert_eq!(scheduler.lanes(), (1, 1), "a lane with work does not rest");
}

#[test]
fn who_comes_later_makes_nobody_late_who_was_admitted() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    let calm = |_| offer(&mut scheduler, 0, 9000).unwrap();
    let admitted = (0..7).map(calm).count();
    assert_eq!(admitted, 7, "seven requests take 7.7 of 9 ms");
    assert!(offer(&mut scheduler, 0, 3000).is_ok(), "an urgent request goes first");
    assert_eq!(
        offer(&mut scheduler, 0, 3000).unwrap_err().reason,
        Reason::Backlog,
        "two urgent ones would take 9.9 ms"
    );
}

#[test]
fn what_never_can_be_is_refused_without_a_hint() {
    let mut scheduler = scheduler();
    scheduler.next(0, 0);
    assert_eq!(offer(&mut scheduler, 5, 0), Err(Refused { reason: Reason::Expired, retry_us: 0 }));
    let long = Offer {
        version: 1,
        candidates: 1,
        length: 9,
        deadline_us: 5000,
        priority: 0,
        cohort: 0,
        worth: Worth::default(),
    };
    assert_eq!(scheduler.offer(5, &long), Err(Refused { reason: Reason::Length, retry_us: 0 }));
}

/// Present lanes, some busy, and whether the first one was lent.
fn lent(lanes: usize, busy: usize) -> (Scheduler, bool) {
    let ladder = |sizes: &[usize]| Ladder::new(sizes.to_vec()).unwrap();
    let shapes = Shapes { users: ladder(&[1]), candidates: ladder(&[10, 100]), lengths: ladder(&[8]) };
    let costs = Costs::measured(&shapes, |_, _| 50.0, |_, _| 50.0);
    let mut scheduler = Scheduler::new(limits(lanes), shapes, costs);
    (0..lanes).for_each(|lane| assert_eq!(scheduler.next(0, lane).plan, None));
    for lane in 0..busy {
        offer(&mut scheduler, 0, 5000).unwrap();
        assert!(scheduler.next(0, lanes - 1 - lane).plan.is_some());
    }
    let is_lent = scheduler.lend(0, 0, Idle { version: 2, candidates: 7, length: 3 }).is_some();
    (scheduler, is_lent)
}

#[test]
fn a_lane_is_lent_where_nothing_waits_and_another_is_free_for_what_comes() {
    assert!(lent(1, 0).1 && lent(2, 0).1 && lent(3, 1).1);
    assert!(!lent(2, 1).1, "the other lane is busy");
    let (mut scheduler, _) = lent(1, 0);
    let ticket = offer(&mut scheduler, 0, 5000).unwrap().ticket;
    assert_eq!(scheduler.done_in(0, 100.0), [], "no request waits for lent work");
    let idle = Idle { version: 2, candidates: 7, length: 3 };
    assert_eq!(scheduler.lend(0, 0, idle), None, "a request waits");
    assert_eq!(scheduler.next(0, 0).plan.unwrap().pieces[0].ticket, ticket);
    assert_eq!(scheduler.done_in(0, 100.0), [ticket]);
    assert_eq!(scheduler.lend(0, 0, Idle { length: 9, ..idle }), None, "the sequence is too long");
    let plan = scheduler.lend(0, 0, idle).unwrap();
    assert_eq!((plan.version, plan.candidates_bucket, plan.users_bucket, plan.length), (2, 10, 1, 8));
    assert_eq!(scheduler.failed(0), []);
}
