//! Tests the join against an oracle that compares every pair of events, in Rust, where panics are visible.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use streamlearn_join::{
    Actions, Combine, Group, IMPRESSION, Impressions, JoinCore, Label, Makes, Number, Origins, Settings,
    Spans, Taken, is_kept, share_threshold,
};

const SALT: u64 = 11;
const LABELS: usize = 6;

fn settings() -> Settings {
    let label = |action, group, rate| Label { action, group, rate, salt: SALT, number: None };
    let number = |group, combine, settles_without| Label {
        number: Some(Number { combine, settles_without }),
        ..label(1, group, 1.0)
    };
    Settings {
        groups: vec![Group { wait_ms: 5, window_ms: 40 }, Group { wait_ms: 80, window_ms: 80 }],
        labels: vec![
            label(0, 0, 0.5),
            label(1, 0, 1.0),
            label(0, 1, 1.0),
            number(0, Combine::Sum, true),
            number(1, Combine::Last, false),
            number(1, Combine::Max, true),
        ],
        slice_ms: 7,
        orphan_wait_ms: 1_000,
        share: 1.0,
        from_ms: i64::MIN,
        pending_bytes_max: 1 << 30,
        parts_max: 8,
        waiting_max: 100,
        makes: Makes::All,
    }
}

#[derive(Debug, Clone)]
enum Event {
    Shown { request: u8, time: i64, items: Vec<u64> },
    Done { request: u8, time: i64, item: u64, code: u8, weight: f32, number: Option<i8> },
}

impl Event {
    fn time(&self) -> i64 {
        match self {
            Self::Shown { time, .. } | Self::Done { time, .. } => *time,
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    // Copies of an impression share one time, derived from the request.
    let shown = (0u8..12, prop::collection::vec(0u64..5, 0..4)).prop_map(|(request, items)| Event::Shown {
        request,
        time: i64::from(request) * 13,
        items,
    });
    // Few distinct times and weights, so that actions of one kind collide.
    let done = (0u8..12, -3i64..120, 0u64..5, 0u8..3, 0u8..3, prop::option::weighted(0.8, -1i8..3));
    let done = done.prop_map(|(request, after, item, code, weight, number)| Event::Done {
        request,
        time: i64::from(request) * 13 + after / 4 * 4,
        item,
        code,
        weight: f32::from(weight) / 2.0,
        number,
    });
    prop_oneof![shown, done]
}

fn add(join: &mut JoinCore, event: &Event, offset: i64) {
    let origins = Origins { partitions: &[0], offsets: &[offset], indexes: &[0] };
    match event {
        Event::Shown { request, time, items } => {
            let id = [*request];
            let payload = offset.to_le_bytes();
            let impressions = Impressions {
                ids: Spans { data: &id, at: &[0, 1] },
                times: &[*time],
                origins,
                items,
                items_at: &[0, items.len() as i64],
                payloads: Spans { data: &payload, at: &[0, 8] },
            };
            join.add_impressions(&impressions).unwrap();
        }
        Event::Done { request, time, item, code, weight, number } => {
            let id = [*request];
            let ids = Spans { data: &id, at: &[0, 1] };
            let (items, codes, weights) = (&[*item], &[*code], &[*weight]);
            let numbers = &[number.map_or(f32::NAN, f32::from)];
            let actions = Actions { ids, times: &[*time], origins, items, codes, weights, numbers };
            join.add_actions(&actions).unwrap();
        }
    }
}

/// (offset, item index, group, settle time, settles, labels, payload, twice the weight of each label, its number).
type Row = (i64, i32, u8, i64, u32, u32, Option<i64>, [u8; LABELS], [i32; LABELS]);

fn rows_of(taken: &Taken) -> Vec<Row> {
    let (requests, rows) = (&taken.requests, &taken.rows);
    let row = |row: usize| {
        let request = rows.request_index[row] as usize;
        let span = requests.payload_at[request] as usize..requests.payload_at[request + 1] as usize;
        let payload = requests.payload[span].try_into().ok().map(i64::from_le_bytes);
        assert_eq!(payload.is_none(), requests.reads_back[request] == 1);
        let settled = (rows.settle_times[row], rows.settles[row], rows.labels[row]);
        (
            requests.offsets[request],
            rows.item_index[row],
            rows.groups[row],
            settled.0,
            settled.1,
            settled.2,
            payload,
            std::array::from_fn(|label| (rows.weights[LABELS * row + label] * 2.0) as u8),
            std::array::from_fn(|label| rows.numbers[LABELS * row + label] as i32),
        )
    };
    (0..rows.positions.len()).map(row).collect()
}

/// (request, item, kind, time, number) of an interaction. Of actions of kind 0 the first that arrives counts.
type Made = (u8, u64, u8, Option<(i64, Option<i32>)>);

fn made_of(taken: &Taken, events: &[Event]) -> Vec<(u64, Made)> {
    let (requests, made) = (&taken.requests, &taken.interactions);
    let one = |row: usize| {
        let offset = requests.offsets[made.request_index[row] as usize];
        let Event::Shown { request, items, .. } = &events[offset as usize] else { panic!("no impression") };
        assert_eq!(items[made.positions[row] as usize], made.items[row]);
        let number = Some(made.numbers[row]).filter(|number| !number.is_nan()).map(|number| number as i32);
        let when = (made.kinds[row] != 0).then_some((made.times[row], number));
        (made.identities[row], (*request, made.items[row], made.kinds[row], when))
    };
    (0..made.kinds.len()).map(one).collect()
}

fn expected_interactions(events: &[Event]) -> BTreeSet<Made> {
    let mut made = BTreeSet::new();
    for ((of_request, of_item), (_, _, shown)) in winners(events) {
        made.insert((of_request, of_item, IMPRESSION, Some((shown, None))));
        for event in events {
            let Event::Done { request, time, item, code: code @ 0..2, number, .. } = event else { continue };
            if (*request, *item) == (of_request, of_item) && *time <= shown + 80 {
                let when = (*code == 1).then_some((*time, number.map(i32::from)));
                made.insert((of_request, of_item, *code, when));
            }
        }
    }
    made
}

type Winners = BTreeMap<(u8, u64), (i64, u32, i64)>;

/// The offset, position and time of the impression for which each item of a request counts.
fn winners(events: &[Event]) -> Winners {
    let mut winners = BTreeMap::new();
    for (offset, event) in events.iter().enumerate() {
        if let Event::Shown { request, time, items } = event {
            for (position, item) in items.iter().enumerate() {
                winners.entry((*request, *item)).or_insert((offset as i64, position as u32, *time));
            }
        }
    }
    winners
}

/// The number that distinct actions make: (time, weight, number) each.
fn number_of<W>(combine: Combine, acts: impl Iterator<Item = (i64, W, Option<i8>)>) -> Option<i32> {
    let numbers: BTreeSet<(i64, i8)> = acts.filter_map(|(time, _, number)| Some((time, number?))).collect();
    let mut each = numbers.iter().map(|(_, number)| i32::from(*number));
    match combine {
        Combine::Last => each.next_back(),
        Combine::Sum => (!numbers.is_empty()).then(|| each.sum()),
        Combine::Max => each.max(),
    }
}

fn expected(events: &[Event]) -> Vec<Row> {
    let settings = settings();
    let mut rows = Vec::new();
    for ((of_request, of_item), (offset, position, shown)) in winners(events) {
        let acts = |wanted: u8| {
            events.iter().filter_map(move |event| match event {
                Event::Done { request, time, item, code, weight, number } => {
                    let same = *request == of_request && *item == of_item && *code == wanted;
                    same.then_some((*time, std::cmp::Reverse((*weight * 2.0) as u8), *number))
                }
                Event::Shown { .. } => None,
            })
        };
        for (number, group) in settings.groups.iter().enumerate() {
            let (due, until) = (shown + group.wait_ms, shown + group.window_ms);
            let mut times = vec![due];
            times.extend(
                (0..2).flat_map(acts).map(|(time, ..)| time).filter(|time| (due + 1..=until).contains(time)),
            );
            times.sort_unstable();
            times.dedup();
            for (time, code) in times.iter().flat_map(|time| [(*time, 0), (*time, 1)]) {
                if time == due && code == 1 {
                    continue; // one first row has the labels of all actions
                }
                let (mut settles, mut labels, mut weights, mut numbers) =
                    (0u32, 0u32, [2; LABELS], [0; LABELS]);
                let mine = |(_, label): &(usize, &Label)| {
                    usize::from(label.group) == number && (time == due || label.action == code)
                };
                for (bit, label) in settings.labels.iter().enumerate().filter(mine) {
                    let known = || acts(label.action).filter(|act| act.0 <= time);
                    let made = match label.number {
                        None => known()
                            .min()
                            .filter(|act| time == due || act.0 == time)
                            .map(|act| weights[bit] = act.1.0),
                        Some(how) => number_of(how.combine, known())
                            .filter(|_| time == due || known().any(|act| act.0 == time && act.2.is_some()))
                            .map(|number| numbers[bit] = number),
                    };
                    let kept = is_kept(0, offset, position, SALT, share_threshold(label.rate));
                    let settles_without = label.number.is_none_or(|how| how.settles_without);
                    // Of an action without a number, nobody knows the number.
                    let is_known = label.number.is_none() || known().all(|act| act.2.is_some());
                    labels |= u32::from(made.is_some()) << bit;
                    let is_missing = time == due && kept && is_known && settles_without;
                    settles |= u32::from(made.is_some() || is_missing) << bit;
                }
                if settles != 0 {
                    let payload = (time <= shown + 40).then_some(offset);
                    let place = (offset, position as i32, number as u8);
                    rows.push((place.0, place.1, place.2, time, settles, labels, payload, weights, numbers));
                }
            }
        }
    }
    rows.sort_unstable();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_the_oracles_in_any_order_of_arrival(
        events in prop::collection::vec(event(), 0..40),
        delays in prop::collection::vec(0i64..30, 40),
        rows_max in 0usize..6,
    ) {
        let mut order: Vec<usize> = (0..events.len()).collect();
        order.sort_by_key(|&at| events[at].time() + delays[at]);
        let (mut join, mut rows, mut made) = (JoinCore::new(settings()).unwrap(), Vec::new(), Vec::new());
        for at in order {
            add(&mut join, &events[at], at as i64);
            join.advance(events[at].time() + delays[at] - 30);
            let taken = join.take(rows_max);
            rows.extend(rows_of(&taken));
            made.extend(made_of(&taken, &events));
        }
        while let Some(deadline) = join.next_deadline_ms() {
            assert!(join.watermark_ms().is_none_or(|watermark| deadline > watermark));
            join.advance(deadline);
            let taken = join.take(usize::MAX);
            rows.extend(rows_of(&taken));
            made.extend(made_of(&taken, &events));
        }
        let taken = join.take(usize::MAX);
        rows.extend(rows_of(&taken));
        made.extend(made_of(&taken, &events));
        // An interaction may come again, with the same identity.
        let by_identity: BTreeMap<u64, Made> = made.iter().copied().collect();
        prop_assert_eq!(made.iter().map(|(_, made)| *made).collect::<BTreeSet<_>>(), expected_interactions(&events));
        prop_assert_eq!(by_identity.len(), expected_interactions(&events).len());
        rows.sort_unstable();
        prop_assert_eq!(rows, expected(&events));
        prop_assert_eq!((join.pending(), join.waiting()), (0, 0));
    }

    /// For events in any order, late or not: no label is settled twice the same way, and none goes from
    /// positive to negative.
    #[test]
    fn late_events_never_settle_a_label_twice(
        events in prop::collection::vec((event(), -50i64..300), 0..60),
    ) {
        let (mut join, mut seen) = (JoinCore::new(settings()).unwrap(), BTreeMap::new());
        for (offset, (event, watermark)) in events.iter().enumerate() {
            join.advance(*watermark);
            add(&mut join, event, (offset as i64 * 7_919) % 101);
            for row in rows_of(&join.take(usize::MAX)) {
                for bit in (0..3).filter(|bit| row.4 >> bit & 1 == 1) {
                    let label = row.5 >> bit & 1;
                    let before = seen.insert((row.0, row.1, bit), label);
                    prop_assert!(before.is_none_or(|before| before < label), "{row:?} after {before:?}");
                }
            }
        }
        join.advance(i64::MAX);
        join.take(usize::MAX);
        prop_assert_eq!((join.pending(), join.waiting(), join.next_deadline_ms()), (0, 0, None));
    }
}
