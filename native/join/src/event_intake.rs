//! Event intake: places an impression and matches the actions that waited for it; applies an action to its
//! item.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::advance::AHEAD;
use crate::core::{Actions, Impressions, JoinCore, Spans};
use crate::emit::{Correction, Emitting};
use crate::hash::{is_logged, place_salt};
use crate::index::At;
use crate::outcome::{Done, number_of};
use crate::output::{Letter, LetterKind};
use crate::slice::{DEAD, Origin, Shown, Slice};
use crate::waiting_actions::{Matched, WaitingAct, Waits};
use streamlearn_wire::keys::key_of_bytes;

/// Up to this count, items are compared pairwise.
const FEW: usize = 32;

/// An action on an item of the impression that was just added.
struct Known {
    position: usize,
    done: Done,
    /// Its waiting entry; None if the action came from a copy of the impression.
    waited: Option<Matched>,
}

/// Marks the items that the impression contains more than once.
fn mark_repeats(items: &[u64], repeated: &mut Vec<bool>) {
    repeated.clear();
    if items.len() <= FEW {
        repeated.extend((0..items.len()).map(|at| items[..at].contains(&items[at])));
    } else {
        let mut seen = HashSet::with_capacity(items.len());
        repeated.extend(items.iter().map(|item| !seen.insert(item)));
    }
}

impl JoinCore {
    pub(crate) fn hash(&mut self, ids: Spans<'_>, rows: usize) {
        let salt = place_salt();
        self.scratch.hashes.clear();
        self.scratch.hashes.extend((0..rows).map(|row| key_of_bytes(ids.get(row), salt)));
        for &hash in self.scratch.hashes.iter().take(AHEAD) {
            self.index.prefetch(hash);
        }
    }

    #[inline]
    pub(crate) fn prefetch(&self, row: usize) {
        if let Some(&hash) = self.scratch.hashes.get(row + AHEAD) {
            self.index.prefetch(hash);
        }
    }

    /// Prefetches the state of requests of coming actions, in two steps, since the first step finds the
    /// addresses of the second.
    #[inline]
    pub(crate) fn prefetch_held(&self, row: usize) {
        let shelf = &self.slices.shelf;
        if let Some(&hash) = self.scratch.hashes.get(row + AHEAD / 2) {
            self.index.each(hash, |at| shelf.get(at.slice).prefetch(at.place));
        }
        if let Some(&hash) = self.scratch.hashes.get(row + AHEAD / 4) {
            self.index.each(hash, |at| shelf.get(at.slice).prefetch_values(at.place));
        }
    }

    /// Finds the impressions of a request that concern an event of this time, in the order of their first
    /// items' identities. One from before this join concerns events within its windows only.
    fn find(&mut self, hash: u64, id: &[u8], time: i64) {
        let (rules, shelf, same) = (&self.rules, &self.slices.shelf, &mut self.scratch.same);
        same.clear();
        self.index.each(hash, |at| {
            let slice = shelf.get(at.slice);
            let shown = slice.time(at.place);
            if slice.id(at.place) == id && (!rules.is_before(shown) || time <= shown + rules.window_max) {
                same.push(at);
            }
        });
        if same.len() > 1 {
            same.sort_unstable_by_key(|at| shelf.get(at.slice).origins[at.place as usize].identity(0));
        }
    }

    pub(crate) fn add_impression(&mut self, hash: u64, impressions: &Impressions<'_>, row: usize) {
        let items =
            &impressions.items[impressions.items_at[row] as usize..impressions.items_at[row + 1] as usize];
        let origins = impressions.origins;
        let (partition, offset) = (origins.partitions[row], origins.offsets[row]);
        let origin = Origin { partition, first_item: origins.indexes[row] as u32, offset };
        let (id, payload) = (impressions.ids.get(row), impressions.payloads.get(row));
        let shown = Shown { id, time: impressions.times[row], origin, items, payload };
        self.out.counters.impressions += 1;
        self.out.counters.items += items.len() as u64;
        if self.rules.is_before(shown.time) {
            self.out.counters.impressions_before += 1;
            self.keep_claims(hash, &shown);
            return;
        }
        let is_over = |window: i64| self.watermark > shown.time + window;
        if is_over(self.rules.window_min) && self.is_late(&shown) {
            return;
        }
        self.find(hash, id, shown.time);
        if !self.has_room(&shown) {
            self.out.counters.impressions_excess += 1;
            self.letter_of(&shown, LetterKind::ImpressionExcess, 0);
            return;
        }
        mark_repeats(items, &mut self.scratch.dead);
        self.out.counters.items_repeated += self.scratch.dead.iter().filter(|&&dead| dead).count() as u64;
        let (known, fresh) = self.claim_items(&shown);
        if !self.scratch.same.is_empty() {
            let counters = &mut self.out.counters;
            *(if fresh > 0 {
                &mut counters.impressions_split
            } else {
                &mut counters.impressions_duplicate
            }) += 1;
        }
        if self.scratch.dead.iter().all(|&dead| dead) {
            return;
        }
        self.place(hash, &shown, known);
    }

    /// Keeps the items of an impression whose rows an earlier join made: a later part that repeats an item
    /// must not count it again.
    fn keep_claims(&mut self, hash: u64, shown: &Shown<'_>) {
        let window = self.rules.window_max;
        let kept_from = self.rules.settings.from_ms.saturating_sub(window);
        if shown.time < kept_from || self.watermark > shown.time + window {
            return;
        }
        self.find(hash, shown.id, shown.time);
        if !self.has_room(shown) {
            return;
        }
        mark_repeats(shown.items, &mut self.scratch.dead);
        let (known, _) = self.claim_items(shown);
        self.out.counters.actions_before += known.len() as u64;
        if self.scratch.dead.iter().any(|&dead| !dead) {
            self.store(hash, shown, false);
        }
    }

    /// Whether the request may have one more impression, and the slice has positions left for it.
    fn has_room(&self, shown: &Shown<'_>) -> bool {
        let slice = self.slices.shelf.find(shown.time.div_euclid(self.rules.settings.slice_ms));
        self.scratch.same.len() < self.rules.settings.parts_max as usize
            && slice.is_none_or(|number| {
                self.slices.shelf.get(number).has_places(shown.id.len(), shown.items.len())
            })
    }

    /// Reports the windows that are over; returns whether all of them are.
    fn is_late(&mut self, shown: &Shown<'_>) -> bool {
        let expired = self.rules.groups().filter(|(_, group)| self.watermark > shown.time + group.window_ms);
        let groups = expired.fold(0u32, |groups, (group, _)| groups | 1 << group);
        let all_over = self.watermark > shown.time + self.rules.window_max;
        let counters = &mut self.out.counters;
        *(if all_over { &mut counters.impressions_late } else { &mut counters.impressions_partly_late }) += 1;
        self.letter_of(shown, LetterKind::ImpressionLate, groups);
        all_over
    }

    fn letter_of(&mut self, shown: &Shown<'_>, kind: LetterKind, groups: u32) {
        self.out.push_letter(Letter {
            kind,
            code: 0,
            groups,
            partition: shown.origin.partition,
            offset: shown.origin.offset,
            index: shown.origin.first_item,
            time: shown.time,
            item: 0,
            weight: 0.0,
            number: None,
            id: shown.id.into(),
            payload: shown.payload.into(),
        });
    }

    /// Decides which items count for this impression: items not shown before, and items whose other copy has
    /// a later origin and has made no row yet. Actions on such copies move to this one. Returns these actions
    /// and the number of new items.
    fn claim_items(&mut self, shown: &Shown<'_>) -> (Vec<Known>, usize) {
        let mut known = Vec::new();
        let mut fresh = 0;
        for (position, &item) in shown.items.iter().enumerate() {
            if self.scratch.dead[position] {
                continue;
            }
            let shelf = &self.slices.shelf;
            let holder = self.scratch.same.iter().find_map(|&at| {
                let slice = shelf.get(at.slice);
                let span = slice.items_at(at.place);
                let candidate = span.start + position;
                let aligned =
                    candidate < span.end && slice.items[candidate] == item && slice.heads[candidate] != DEAD;
                let held_position = if aligned { Some(position) } else { slice.position(at.place, item) };
                held_position.map(|held_position| (at, held_position))
            });
            let Some((at, held_position)) = holder else {
                fresh += 1;
                continue;
            };
            self.out.counters.items_repeated += 1;
            let slice = self.slices.shelf.get_mut(at.slice);
            let identity = slice.origins[at.place as usize].identity(held_position);
            let emitted = self.watermark > slice.time(at.place) + self.rules.wait_min;
            if emitted || identity <= shown.origin.identity(position) {
                self.scratch.dead[position] = true;
                continue;
            }
            let held_item = slice.items_at(at.place).start + held_position;
            let acts = slice.acts_of(held_item);
            known.extend(acts.map(|done| Known { position, done, waited: None }));
            slice.heads[held_item] = DEAD;
        }
        (known, fresh)
    }

    /// Stores an impression and its live items.
    fn store(&mut self, hash: u64, shown: &Shown<'_>, keeps_payload: bool) -> At {
        let slice_ms = self.rules.settings.slice_ms;
        let key = shown.time.div_euclid(slice_ms);
        let slices = &mut self.slices;
        let number = slices.shelf.number(key, |before| {
            slices.filling.insert(key);
            slices.with_payload.insert(key);
            let slice = slices.spares.slice(key * slice_ms, before, slices.bytes);
            slices.bytes += slice.bytes();
            slice
        });
        let slice = slices.shelf.get_mut(number);
        let before = slice.bytes();
        let at = At { slice: number, place: slice.add(*shown, keeps_payload) };
        let items_begin = slice.items_at(at.place).start;
        for (position, _) in self.scratch.dead.iter().enumerate().filter(|(_, dead)| **dead) {
            slice.heads[items_begin + position] = DEAD;
        }
        slices.bytes += slice.bytes() - before;
        self.index.insert(hash, at);
        slices.pending += 1;
        at
    }

    fn place(&mut self, hash: u64, shown: &Shown<'_>, mut known: Vec<Known>) {
        let at = self.store(hash, shown, self.watermark <= shown.time + self.rules.window_min);
        let slice = self.slices.shelf.get(at.slice);
        let matched = self.waiting.matched(hash, shown.id, |item| slice.position(at.place, item));
        for (position, act) in matched {
            known.push(Known { position, done: act.done, waited: Some(act) });
        }
        if !known.is_empty() {
            known.retain(|act| self.accept(shown, act));
            let slice = self.slices.shelf.get_mut(at.slice);
            let (before, items_begin) = (slice.bytes(), slice.items_at(at.place).start);
            for Known { position, done, .. } in &known {
                slice.note_act(items_begin + position, *done, self.rules.counts_all(done.code));
            }
            self.slices.bytes += slice.bytes() - before;
        }
        self.show(at);
        // Actions of an earlier copy of the impression are made already.
        for act in known.iter().filter(|act| act.waited.is_some()) {
            self.interact(at, act.position, act.done);
        }
        self.catch_up(at, shown, &known);
    }

    /// Whether any group's window is open for the action; adds a letter if not.
    fn accept(&mut self, shown: &Shown<'_>, act: &Known) -> bool {
        let groups = self.groups_open(shown.time, act.done);
        if groups != 0 {
            return true;
        }
        self.out.counters.actions_late += 1;
        if let Some(Matched { done, partition, offset, index, item }) = act.waited {
            let act = WaitingAct { id: shown.id, item, done, partition, offset, index };
            self.out.push_letter(act.letter(LetterKind::ActionLate));
        }
        false
    }

    /// The groups for which an action counts, by its code, its time and the watermark.
    fn groups_open(&self, shown: i64, done: Done) -> u32 {
        let open = self.rules.groups().filter(|&(group_index, group)| {
            let until = shown + group.window_ms;
            self.rules.concerns(group_index, done.code) && done.time <= until && self.watermark <= until
        });
        open.fold(0, |groups, (group_index, _)| groups | 1 << group_index)
    }

    /// Emits the rows of a new impression that are already due, and schedules the corrections of its actions.
    fn catch_up(&mut self, at: At, shown: &Shown<'_>, known: &[Known]) {
        let watermark = self.watermark;
        if known.is_empty() && watermark <= shown.time + self.rules.wait_min {
            return;
        }
        let reads_back = watermark > shown.time + self.rules.window_min;
        for group_index in 0..self.rules.settings.groups.len() {
            let group = self.rules.settings.groups[group_index];
            let (due, until) = (shown.time + group.wait_ms, shown.time + group.window_ms);
            if watermark > until {
                continue;
            }
            let slice = self.slices.shelf.get_mut(at.slice);
            let mut emitting = Emitting { rules: &self.rules, slice, at, out: &mut self.out, reads_back };
            if watermark > due {
                emitting.first_rows(group_index);
            }
            let items_begin = emitting.slice.items_at(at.place).start;
            for (number, &Known { position, done, .. }) in known.iter().enumerate() {
                let place = |act: &Known| (act.position, act.done.code, act.done.time);
                let is_same = |before: &Known| place(before) == place(&known[number]);
                if self.rules.numbers != 0 && known[..number].iter().any(is_same) {
                    continue; // several numbers at one time make one row
                }
                let time = done.time;
                let labels = emitting.labels_at(group_index, items_begin + position, done.code, time);
                if labels == 0 || time <= due || time > until {
                    continue;
                } else if watermark > time {
                    emitting.correct(group_index, position, labels, time);
                } else {
                    let scheduled = correction(emitting.slice, at, (group_index, position, done.code), time);
                    self.corrections.push(Reverse(scheduled));
                }
            }
        }
    }

    pub(crate) fn add_action(&mut self, hash: u64, actions: &Actions<'_>, row: usize) {
        let origins = actions.origins;
        let act = WaitingAct {
            id: actions.ids.get(row),
            item: actions.items[row],
            done: Done {
                code: actions.codes[row],
                time: actions.times[row],
                weight: actions.weights[row],
                number: number_of(actions.numbers[row]),
            },
            partition: origins.partitions[row],
            offset: origins.offsets[row],
            index: origins.indexes[row] as u32,
        };
        self.out.counters.actions += 1;
        if act.done.number.is_none() && self.rules.counts_all(act.done.code) {
            self.out.counters.actions_valueless += 1;
        }
        if self.rules.groups().all(|(group, _)| !self.rules.concerns(group, act.done.code)) {
            self.out.counters.actions_unlabelled += 1;
            return;
        }
        self.find(hash, act.id, act.done.time);
        let shelf = &self.slices.shelf;
        let holder =
            self.scratch.same.iter().find_map(|&at| {
                shelf.get(at.slice).position(at.place, act.item).map(|position| (at, position))
            });
        match holder {
            Some((at, _)) if self.rules.is_before(shelf.get(at.slice).time(at.place)) => {
                self.out.counters.actions_before += 1;
            }
            Some((at, position)) => self.apply(at, position, act),
            None => self.wait(hash, act),
        }
    }

    fn wait(&mut self, hash: u64, act: WaitingAct<'_>) {
        let settings = &self.rules.settings;
        let counters = &mut self.out.counters;
        if !is_logged(act.id, settings.share) {
            counters.actions_unlogged += 1;
            return;
        }
        match self.waiting.wait(hash, act, settings.waiting_max, self.rules.counts_all(act.done.code)) {
            Waits::New => counters.actions_waited += 1,
            Waits::Known => counters.actions_duplicate += 1,
            Waits::Excess if self.closed.has(hash) => {
                counters.actions_late += 1;
                self.out.push_letter(act.letter(LetterKind::ActionLate));
            }
            Waits::Excess => {
                counters.actions_orphan += 1;
                self.out.push_letter(act.letter(LetterKind::ActionOrphan));
            }
        }
    }

    /// Applies an action to an item of a pending impression.
    fn apply(&mut self, at: At, position: usize, act: WaitingAct<'_>) {
        let slice = self.slices.shelf.get(at.slice);
        let (shown, item) = (slice.time(at.place), slice.items_at(at.place).start + position);
        let (Done { code, time, .. }, counts_all) = (act.done, self.rules.counts_all(act.done.code));
        let earlier = slice.act(item, code).map(|earlier| earlier.time);
        // Its own time decides first: whether an action is late must not depend on the order of arrival.
        let timely = self
            .rules
            .groups()
            .any(|(place, group)| self.rules.concerns(place, code) && time <= shown + group.window_ms);
        if timely && slice.knows(item, act.done, counts_all) {
            self.out.counters.actions_duplicate += 1;
            // It may have a larger weight than one of the same time.
            self.slices.shelf.get_mut(at.slice).note_act(item, act.done, counts_all);
            return;
        }
        let open = self.groups_open(shown, act.done);
        if open == 0 {
            self.out.counters.actions_late += 1;
            self.out.push_letter(act.letter(LetterKind::ActionLate));
            return;
        }
        if counts_all && slice.count(item, code) >= self.rules.settings.waiting_max as usize {
            self.out.counters.actions_excess += 1;
            self.out.push_letter(act.letter(LetterKind::ActionExcess));
            return;
        }
        let counters = &mut self.out.counters;
        *(if counts_all { &mut counters.actions_combined } else { &mut counters.actions_duplicate }) +=
            u64::from(earlier.is_some());
        let slice = self.slices.shelf.get_mut(at.slice);
        let bytes = slice.bytes();
        slice.note_act(item, act.done, counts_all);
        self.slices.bytes += slice.bytes() - bytes;
        if counts_all || earlier.is_none() {
            self.interact(at, position, act.done);
        }
        for place in (0..self.rules.settings.groups.len()).filter(|place| open >> place & 1 == 1) {
            self.settle(at, (place, position, act.done), earlier);
        }
    }

    /// Settles an action for a group whose window is open: nothing, a row now, or a correction later.
    fn settle(&mut self, at: At, (place, position, done): (usize, usize, Done), before: Option<i64>) {
        let time = done.time;
        let group = self.rules.settings.groups[place];
        let slice = self.slices.shelf.get_mut(at.slice);
        let shown = slice.time(at.place);
        let (due, until) = (shown + group.wait_ms, shown + group.window_ms);
        let is_settled = |time: i64| time <= until && self.watermark > time.max(due);
        let mut labels = self.rules.labels(place, done);
        if before.is_some_and(|before| before <= time || is_settled(before)) {
            labels &= self.rules.numbers;
        }
        if labels == 0 {
            return;
        }
        if self.watermark > time.max(due) {
            let reads_back = self.watermark > shown + self.rules.window_min;
            let mut emitting = Emitting { rules: &self.rules, slice, at, out: &mut self.out, reads_back };
            let item = emitting.slice.items_at(at.place).start + position;
            let is_number = labels & self.rules.numbers != 0;
            // A number counts all that is known by now, so its row is none of an earlier time.
            let settle_time = if is_number {
                emitting.last_known(item, done.code, (due, self.watermark.min(until + 1)))
            } else {
                time.max(due)
            };
            emitting.correct(place, position, labels, settle_time);
        } else if time > due {
            let scheduled = correction(slice, at, (place, position, done.code), time);
            self.corrections.push(Reverse(scheduled));
        }
    }
}

/// The correction to emit when the watermark passes an action's time.
pub(crate) fn correction(slice: &Slice, at: At, labelled: (usize, usize, u8), time: i64) -> Correction {
    let (group, position, code) = labelled;
    let Origin { partition, offset, .. } = slice.origins[at.place as usize];
    let first = slice.origins[at.place as usize].first_item;
    Correction {
        time,
        partition,
        offset,
        item: first + position as u32,
        position: position as u32,
        group: group as u8,
        code,
        slice: at.slice,
        place: at.place,
    }
}
