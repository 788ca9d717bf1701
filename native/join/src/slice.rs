//! Slice: the impressions of a range of event time, as columns. It is filled, read and dropped whole.

use std::ops::Range;

use crate::hash::Identity;
use crate::outcome::{Done, Stamp, number_of};
use crate::prefetch::prefetch;

/// Number of impressions that share one entry of least and greatest time.
const CHUNK: usize = 512;
/// The end of a list of actions.
pub(crate) const NONE: u32 = u32::MAX;
/// Replaces the head of an item's actions: the item counts for another impression.
pub(crate) const DEAD: u32 = u32::MAX - 1;
/// The 32-bit positions, without the two values above.
const PLACES_MAX: usize = u32::MAX as usize - 2;

/// The origin of an impression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub partition: i32,
    pub first_item: u32,
    pub offset: i64,
}

impl Origin {
    pub fn identity(self, position: usize) -> Identity {
        let item = self.first_item.wrapping_add(position as u32);
        Identity { partition: self.partition, offset: self.offset, item }
    }
}

/// The action of one code that counts on one item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Act {
    pub stamp: Stamp,
    pub next: u32,
    pub weight: f32,
}

/// One impression to add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub id: &'a [u8],
    pub time: i64,
    pub origin: Origin,
    pub items: &'a [u64],
    pub payload: &'a [u8],
}

#[derive(Debug, Default)]
pub(crate) struct Slice {
    pub start_ms: i64,
    pub times: Vec<u32>,
    pub bounds: Vec<(u32, u32)>,
    pub id_ends: Vec<u32>,
    pub ids: Vec<u8>,
    pub origins: Vec<Origin>,
    pub item_ends: Vec<u32>,
    pub items: Vec<u64>,
    /// The first action of each item, or DEAD.
    pub heads: Vec<u32>,
    pub acts: Vec<Act>,
    /// The number of each action, NaN for none; empty if no label is a number.
    pub numbers: Vec<f32>,
    /// Empty once payloads are dropped.
    pub payload_ends: Vec<u64>,
    pub payload: Vec<u8>,
    /// The number of rows to be taken, and of those that bring their payload.
    pub ready: u64,
    pub ready_payload: u64,
}

/// Grows capacity by quarters, since unused capacity counts as memory too.
#[inline]
fn make_room<T>(column: &mut Vec<T>, more: usize) {
    let wanted = column.len() + more;
    if wanted > column.capacity() {
        let quarter = column.capacity() + column.capacity() / 4;
        column.reserve_exact(wanted.max(quarter).max(8) - column.len());
    }
}

#[inline]
fn push<T>(column: &mut Vec<T>, value: T) {
    make_room(column, 1);
    column.push(value);
}

#[inline]
fn extend<T: Copy>(column: &mut Vec<T>, values: &[T]) {
    make_room(column, values.len());
    column.extend_from_slice(values);
}

/// Makes room in an empty column for as many values as another has, and an eighth more.
fn expect<T>(column: &mut Vec<T>, like: &[T]) {
    column.reserve_exact(like.len() + like.len() / 8);
}

/// Shrinks a column unless less than an eighth would be gained.
fn shrink<T>(column: &mut Vec<T>) {
    if column.capacity() > column.len() + column.len() / 8 {
        column.shrink_to_fit();
    }
}

impl Slice {
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether 32-bit positions suffice for these.
    pub fn has_places(&self, ids: usize, items: usize) -> bool {
        self.ids.len() + ids < PLACES_MAX
            && self.items.len() + items < PLACES_MAX
            && self.acts.len() + items * 4 < PLACES_MAX
            && self.len() < PLACES_MAX
    }

    pub fn bytes(&self) -> u64 {
        fn of<T>(column: &Vec<T>) -> usize {
            column.capacity() * size_of::<T>()
        }
        let places = of(&self.times) + of(&self.bounds) + of(&self.id_ends) + of(&self.item_ends);
        let values = of(&self.ids)
            + of(&self.origins)
            + of(&self.items)
            + of(&self.heads)
            + of(&self.acts)
            + of(&self.numbers);
        (places + values + of(&self.payload_ends) + of(&self.payload) + size_of::<Self>()) as u64
    }

    /// Makes room in an empty slice for as many impressions as another has.
    pub fn expect(&mut self, like: &Self) {
        expect(&mut self.times, &like.times);
        expect(&mut self.bounds, &like.bounds);
        expect(&mut self.id_ends, &like.id_ends);
        expect(&mut self.ids, &like.ids);
        expect(&mut self.origins, &like.origins);
        expect(&mut self.item_ends, &like.item_ends);
        expect(&mut self.items, &like.items);
        expect(&mut self.heads, &like.heads);
        expect(&mut self.payload_ends, &like.payload_ends);
        expect(&mut self.payload, &like.payload);
    }

    /// Adds an impression with live items; its payload is kept only if `keeps_payload`.
    pub fn add(&mut self, shown: Shown<'_>, keeps_payload: bool) -> u32 {
        let place = self.len();
        let time = (shown.time - self.start_ms) as u32;
        push(&mut self.times, time);
        if place.is_multiple_of(CHUNK) {
            push(&mut self.bounds, (time, time));
        } else if let Some(bounds) = self.bounds.last_mut() {
            *bounds = (bounds.0.min(time), bounds.1.max(time));
        }
        extend(&mut self.ids, shown.id);
        push(&mut self.id_ends, self.ids.len() as u32);
        push(&mut self.origins, shown.origin);
        extend(&mut self.items, shown.items);
        push(&mut self.item_ends, self.items.len() as u32);
        make_room(&mut self.heads, shown.items.len());
        self.heads.resize(self.items.len(), NONE);
        if keeps_payload {
            // After payloads were dropped, new ones may come: the earlier impressions have none.
            let end = self.payload.len() as u64;
            if self.payload_ends.len() < place {
                let missing = place - self.payload_ends.len();
                make_room(&mut self.payload_ends, missing);
                self.payload_ends.resize(place, end);
            }
            extend(&mut self.payload, shown.payload);
            push(&mut self.payload_ends, self.payload.len() as u64);
        }
        place as u32
    }

    #[inline]
    pub fn time(&self, place: u32) -> i64 {
        self.start_ms + i64::from(self.times[place as usize])
    }

    #[inline]
    pub fn id(&self, place: u32) -> &[u8] {
        &self.ids[span(&self.id_ends, place)]
    }

    /// Prefetches what the lookup of an item reads first.
    #[inline]
    pub fn prefetch(&self, place: u32) {
        let at = place as usize;
        prefetch(self.id_ends.as_ptr().wrapping_add(at));
        prefetch(self.item_ends.as_ptr().wrapping_add(at));
        prefetch(self.times.as_ptr().wrapping_add(at));
        prefetch(self.origins.as_ptr().wrapping_add(at));
    }

    /// Prefetches what the lookup reads next.
    #[inline]
    pub fn prefetch_values(&self, place: u32) {
        prefetch(self.ids.as_ptr().wrapping_add(span(&self.id_ends, place).start));
        let items = span(&self.item_ends, place).start;
        prefetch(self.items.as_ptr().wrapping_add(items));
        prefetch(self.heads.as_ptr().wrapping_add(items));
    }

    /// The range of an impression's items in the slice.
    #[inline]
    pub fn items_at(&self, place: u32) -> Range<usize> {
        span(&self.item_ends, place)
    }

    /// The payload; empty if it was dropped.
    pub fn payload(&self, place: u32) -> &[u8] {
        let at = place as usize;
        let begin = at.checked_sub(1).map_or(Some(&0), |before| self.payload_ends.get(before));
        match (begin, self.payload_ends.get(at)) {
            (Some(&begin), Some(&end)) => &self.payload[begin as usize..end as usize],
            _ => &[],
        }
    }

    pub fn has_payload(&self, place: u32) -> bool {
        !self.payload(place).is_empty()
    }

    /// The position of a live item in its impression.
    #[inline]
    pub fn position(&self, place: u32, item: u64) -> Option<usize> {
        let span = self.items_at(place);
        let (items, heads) = (&self.items[span.clone()], &self.heads[span]);
        (0..items.len()).find(|&at| items[at] == item && heads[at] != DEAD)
    }

    /// Appends the impressions within a time range to `places`.
    pub fn within(&self, times: Range<i64>, places: &mut Vec<u32>) {
        let relative = |time: i64| (time.saturating_sub(self.start_ms)).clamp(0, 1 << 32) as u64;
        let (low, high) = (relative(times.start), relative(times.end));
        for (chunk, &(least, most)) in self.bounds.iter().enumerate() {
            if u64::from(most) < low || u64::from(least) >= high {
                continue;
            }
            let begin = chunk * CHUNK;
            let candidates = begin..(begin + CHUNK).min(self.len());
            let is_within = |place: &usize| (low..high).contains(&u64::from(self.times[*place]));
            places.extend(candidates.filter(is_within).map(|place| place as u32));
        }
    }

    /// The least time at or after `time`.
    pub fn least_from(&self, time: i64) -> Option<i64> {
        let low = (time.saturating_sub(self.start_ms)).clamp(0, 1 << 32) as u64;
        let chunks = self.bounds.iter().enumerate().filter(|(_, bounds)| u64::from(bounds.1) >= low);
        let least =
            chunks.flat_map(|(chunk, _)| &self.times[chunk * CHUNK..((chunk + 1) * CHUNK).min(self.len())]);
        least.filter(|&&time| u64::from(time) >= low).min().map(|&time| self.start_ms + i64::from(time))
    }

    /// The actions on an item, given its index in the slice.
    pub fn acts_of(&self, item: usize) -> impl Iterator<Item = Done> + '_ {
        let head = self.heads[item];
        let mut next = if head == DEAD { NONE } else { head };
        std::iter::from_fn(move || {
            let at = next as usize;
            let act = (next != NONE).then(|| self.acts[at])?;
            next = act.next;
            Some(act.stamp.with(act.weight, self.number(at)))
        })
    }

    fn number(&self, at: usize) -> Option<f32> {
        self.numbers.get(at).and_then(|number| number_of(*number))
    }

    /// The first action of this code on an item, the heaviest of those at one time.
    pub fn act(&self, item: usize, code: u8) -> Option<Done> {
        self.acts_of(item).filter(|act| act.code == code).min_by(Done::order)
    }

    /// Whether an action is known: one of its time and number, where all count, else an earlier one of its code.
    pub fn knows(&self, item: usize, done: Done, counts_all: bool) -> bool {
        let mut same = self.acts_of(item).filter(|act| act.code == done.code);
        same.any(|act| if counts_all { act.is_copy_of(&done) } else { act.time <= done.time })
    }

    /// The number of actions of this code on an item.
    pub fn count(&self, item: usize, code: u8) -> usize {
        self.acts_of(item).filter(|act| act.code == code).count()
    }

    /// Stores an action. Unless all of its code count, only the one that takes precedence is kept.
    pub fn note_act(&mut self, item: usize, done: Done, counts_all: bool) {
        let mut at = self.heads[item];
        while at != NONE {
            let known = self.number(at as usize);
            let act = &mut self.acts[at as usize];
            let held = act.stamp.with(act.weight, known);
            if held.code == done.code && (!counts_all || held.is_copy_of(&done)) {
                if done.order(&held).is_lt() {
                    (act.stamp, act.weight) = (done.stamp(), done.weight);
                }
                return;
            }
            at = act.next;
        }
        let next = self.heads[item];
        self.heads[item] = self.acts.len() as u32;
        push(&mut self.acts, Act { stamp: done.stamp(), next, weight: done.weight });
        if counts_all || !self.numbers.is_empty() {
            let before = self.acts.len() - 1;
            let missing = before + 1 - self.numbers.len();
            make_room(&mut self.numbers, missing);
            self.numbers.resize(before, f32::NAN);
            self.numbers.push(done.number.unwrap_or(f32::NAN));
        }
    }

    /// Frees spare capacity when no more events are expected.
    pub fn shrink(&mut self) {
        shrink(&mut self.times);
        shrink(&mut self.bounds);
        shrink(&mut self.id_ends);
        shrink(&mut self.ids);
        shrink(&mut self.origins);
        shrink(&mut self.item_ends);
        shrink(&mut self.items);
        shrink(&mut self.heads);
        shrink(&mut self.payload_ends);
        shrink(&mut self.payload);
    }

    /// Drops the payloads and returns their emptied memory.
    pub fn drop_payloads(&mut self) -> Vec<u8> {
        self.payload_ends = Vec::new();
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        payload
    }

    /// Clears all columns and keeps their memory.
    pub fn clear(&mut self) {
        self.times.clear();
        self.bounds.clear();
        self.id_ends.clear();
        self.ids.clear();
        self.origins.clear();
        self.item_ends.clear();
        self.items.clear();
        self.heads.clear();
        self.acts.clear();
        self.numbers.clear();
        self.payload_ends.clear();
        self.payload.clear();
        (self.ready, self.ready_payload) = (0, 0);
    }
}

/// The range of an impression's values, given the end of each.
#[inline]
fn span(ends: &[u32], place: u32) -> Range<usize> {
    let at = place as usize;
    let begin = if at == 0 { 0 } else { ends[at - 1] };
    begin as usize..ends[at] as usize
}
