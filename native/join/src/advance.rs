//! Watermark: emits the rows that fall due, gives up waiting actions and frees memory.

use std::cmp::Reverse;

use crate::core::JoinCore;
use crate::emit::{Correction, Emitting};
use crate::hash::place_salt;
use crate::index::At;
use crate::output::LetterKind;
use crate::slice::Slice;
use streamlearn_wire::keys::key_of_bytes;

/// How many events ahead the index is prefetched.
pub(crate) const AHEAD: usize = 16;
const MINUTE_MS: i64 = 60_000;

impl JoinCore {
    /// Makes what is due minute by minute, so that a history which is joined at once is learned in the order of
    /// time: labels with a long wait beside those with a short one, and corrections among them.
    pub(crate) fn advance_to(&mut self, watermark: i64) {
        while let Some(due) = self.next_row_ms().filter(|&due| due <= watermark) {
            let end = (due.div_euclid(MINUTE_MS) + 1) * MINUTE_MS;
            self.make_rows(end.min(watermark));
        }
        self.give_up(watermark);
        self.watermark = watermark;
        self.release();
    }

    fn make_rows(&mut self, watermark: i64) {
        // First rows before corrections, so that no positive precedes its negative.
        for group in 0..self.rules.settings.groups.len() {
            self.first_rows(group, watermark);
        }
        self.correct(watermark);
        self.watermark = watermark;
    }

    fn first_rows(&mut self, group: usize, watermark: i64) {
        let wait = self.rules.settings.groups[group].wait_ms;
        let times = (self.watermark - wait).max(self.rules.settings.from_ms)..watermark - wait;
        let slice_ms = self.rules.settings.slice_ms;
        let keyed_slices = self.slices.shelf.from(times.start.div_euclid(slice_ms));
        let numbers: Vec<u32> = keyed_slices
            .take_while(|(key, _)| key * slice_ms < times.end)
            .map(|(_, number)| number)
            .collect();
        let mut due = std::mem::take(&mut self.scratch.due);
        for number in numbers {
            due.clear();
            let slice = self.slices.shelf.get_mut(number);
            slice.within(times.clone(), &mut due);
            let (rules, out) = (&self.rules, &mut self.out);
            for &place in &due {
                let at = At { slice: number, place };
                Emitting { rules, slice: &mut *slice, at, out: &mut *out, reads_back: false }
                    .first_rows(group);
            }
        }
        self.scratch.due = due;
    }

    fn correct(&mut self, watermark: i64) {
        let mut last = None;
        while let Some(&Reverse(correction)) = self.corrections.peek() {
            if correction.time >= watermark {
                break;
            }
            self.corrections.pop();
            if last.replace(correction) == Some(correction) {
                continue; // several numbers at one time make one row
            }
            let Correction { time, position, group, code, slice: number, place, .. } = correction;
            let slice = self.slices.shelf.get_mut(number);
            let item = slice.items_at(place).start + position as usize;
            let at = At { slice: number, place };
            let mut emitting =
                Emitting { rules: &self.rules, slice, at, out: &mut self.out, reads_back: false };
            let labels = emitting.labels_at(usize::from(group), item, code, time);
            if labels != 0 {
                emitting.correct(usize::from(group), position as usize, labels, time);
            }
        }
    }

    fn give_up(&mut self, watermark: i64) {
        let settings = &self.rules.settings;
        let foreign_until = settings.from_ms.saturating_add(self.rules.window_max);
        let (out, closed) = (&mut self.out, &mut self.closed);
        self.waiting.expire(watermark - settings.orphan_wait_ms, |act| {
            if act.done.time <= foreign_until {
                out.counters.actions_before += 1;
            } else if closed.has(key_of_bytes(act.id, place_salt())) {
                out.counters.actions_late += 1;
                out.push_letter(act.letter(LetterKind::ActionLate));
            } else {
                out.counters.actions_orphan += 1;
                out.push_letter(act.letter(LetterKind::ActionOrphan));
            }
        });
    }

    /// Frees what no future row needs, unless rows that are ready still need it.
    pub(crate) fn release(&mut self) {
        let (watermark, slice_ms) = (self.watermark, self.rules.settings.slice_ms);
        let end = |key: i64| (key + 1) * slice_ms - 1;
        while let Some(&key) = self.slices.filling.first() {
            if end(key) >= watermark {
                break;
            }
            self.slices.filling.pop_first();
            self.change(key, Slice::shrink);
        }
        while let Some(&key) = self.slices.with_payload.first() {
            let has_ready_rows = self
                .slices
                .shelf
                .find(key)
                .is_some_and(|number| self.slices.shelf.get(number).ready_payload > 0);
            if end(key) + self.rules.window_min >= watermark || has_ready_rows {
                break;
            }
            self.slices.with_payload.pop_first();
            let payload = self.change(key, Slice::drop_payloads).unwrap_or_default();
            self.slices.spares.keep_payload(payload, self.slices.bytes);
        }
        while let Some((key, number)) = self.slices.shelf.first() {
            if end(key) + self.rules.window_max >= watermark || self.slices.shelf.get(number).ready > 0 {
                break;
            }
            self.retire(key, number);
        }
        self.slices.spares.trim(self.slices.bytes);
    }

    fn change<T>(&mut self, key: i64, change: impl FnOnce(&mut Slice) -> T) -> Option<T> {
        let number = self.slices.shelf.find(key)?;
        let slice = self.slices.shelf.get_mut(number);
        self.slices.bytes -= slice.bytes();
        let result = change(slice);
        self.slices.bytes += slice.bytes();
        Some(result)
    }

    fn retire(&mut self, key: i64, number: u32) {
        let slice = self.slices.shelf.remove(key).expect("the first slice");
        self.slices.filling.remove(&key);
        self.slices.with_payload.remove(&key);
        self.slices.bytes -= slice.bytes();
        self.slices.pending -= slice.len();
        let salt = place_salt();
        let hash = |place: u32| key_of_bytes(slice.id(place), salt);
        let mut ahead = [0; AHEAD];
        let places = slice.len() as u32;
        for place in 0..places.min(AHEAD as u32) {
            ahead[place as usize] = hash(place);
            self.index.prefetch(ahead[place as usize]);
        }
        for place in 0..places {
            let slot = place as usize % AHEAD;
            self.index.remove(ahead[slot], At { slice: number, place });
            self.closed.add(ahead[slot]);
            if place + (AHEAD as u32) < places {
                ahead[slot] = hash(place + AHEAD as u32);
                self.index.prefetch(ahead[slot]);
            }
        }
        self.slices.spares.keep(slice, self.slices.bytes);
    }

    /// A lower bound of the next watermark at which a row is made, above the present one; None without any.
    fn next_row_ms(&self) -> Option<i64> {
        let (shelf, slice_ms) = (&self.slices.shelf, self.rules.settings.slice_ms);
        let rows = self.rules.groups().filter_map(|(_, group)| {
            let due_from = (self.watermark - group.wait_ms).max(self.rules.settings.from_ms);
            let mut slices = shelf.from(due_from.div_euclid(slice_ms));
            let time = slices.find_map(|(_, number)| shelf.get(number).least_from(due_from))?;
            Some(time + group.wait_ms + 1)
        });
        let corrections = self.corrections.peek().map(|next| next.0.time + 1);
        rows.chain(corrections).filter(|&due| due > self.watermark).min()
    }

    /// A lower bound of the next watermark that has an effect; None while nothing is held. It may be too
    /// early if an action was superseded by an earlier one.
    pub fn next_deadline_ms(&self) -> Option<i64> {
        let (shelf, slice_ms) = (&self.slices.shelf, self.rules.settings.slice_ms);
        let end = |key: i64| (key + 1) * slice_ms;
        let waiting = self.waiting.next().map(|time| time + self.rules.settings.orphan_wait_ms);
        // Expired slices that still hold rows wait for `take`, so only later deadlines count.
        let expired_before = |window: i64| (self.watermark - window).div_euclid(slice_ms);
        let is_ahead = |deadline: &i64| *deadline > self.watermark;
        let mut keys = self.slices.with_payload.range(expired_before(self.rules.window_min)..);
        let payloads = keys.find_map(|&key| Some(end(key) + self.rules.window_min).filter(is_ahead));
        let mut keys = shelf.from(expired_before(self.rules.window_max));
        let retiring = keys.find_map(|(key, _)| Some(end(key) + self.rules.window_max).filter(is_ahead));
        let releases = payloads.into_iter().chain(retiring);
        let later = waiting.into_iter().chain(releases).filter(is_ahead);
        // Interactions that were not taken before leave at the next look.
        let made = (!self.out.interactions.is_empty()).then_some(self.watermark + 1);
        self.next_row_ms().into_iter().chain(later).chain(made).min()
    }
}
