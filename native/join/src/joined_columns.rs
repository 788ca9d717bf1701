//! Joined columns: what `take` returns.

use crate::core::JoinCore;
use crate::index::At;
use crate::interactions::Interaction;
use crate::output::{Letter, Row};
use crate::settings::Label;

/// The impressions of rows and interactions. One may occur several times; adjacent rows share an entry.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Requests {
    /// Identity: partition.
    pub partitions: Vec<i32>,
    /// Identity: offset of the record.
    pub offsets: Vec<i64>,
    /// The index of the first item in the record.
    pub first_items: Vec<i32>,
    /// Event times.
    pub times: Vec<i64>,
    /// 1 if the payload was dropped and has to be read back by origin.
    pub reads_back: Vec<u8>,
    /// Payloads, end to end.
    pub payload: Vec<u8>,
    /// The start of each payload.
    pub payload_at: Vec<i64>,
}

/// Rows that are due.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    /// Index of the row's impression in `Requests`.
    pub request_index: Vec<i32>,
    /// The position of the item in the impression.
    pub positions: Vec<i32>,
    /// Identity: index of the item in the record.
    pub item_index: Vec<i32>,
    /// The item as it was added.
    pub items: Vec<u64>,
    /// The label group.
    pub groups: Vec<u8>,
    /// The labels that the row settles.
    pub settles: Vec<u32>,
    /// The settled labels that are positive.
    pub labels: Vec<u32>,
    /// The settle times.
    pub settle_times: Vec<i64>,
    /// The weight of each label's positive, all labels of a row side by side; 1 for labels that the row does
    /// not make positive.
    pub weights: Vec<f32>,
    /// The number of each label that is one and that the row makes positive, laid out as weights; 0 for the others.
    /// Empty if no label is a number.
    pub numbers: Vec<f32>,
}

/// Interactions of users with items.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Interactions {
    /// Index of the interaction's impression in `Requests`.
    pub request_index: Vec<i32>,
    /// The position of the item in the impression.
    pub positions: Vec<i32>,
    /// The item as it was added.
    pub items: Vec<u64>,
    /// The same for the same interaction in every run.
    pub identities: Vec<u64>,
    /// The code of the action, or `IMPRESSION`.
    pub kinds: Vec<u8>,
    /// Event times.
    pub times: Vec<i64>,
    /// The action's weight; 1 for an impression.
    pub weights: Vec<f32>,
    /// The action's number; NaN for none.
    pub numbers: Vec<f32>,
}

/// Events that could not be joined.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Letters {
    /// The reason, as a `LetterKind` number.
    pub kinds: Vec<u8>,
    /// For an impression: the groups it was too late for.
    pub groups: Vec<u32>,
    /// For an action: its code.
    pub codes: Vec<u8>,
    /// Origin: partition.
    pub partitions: Vec<i32>,
    /// Origin: offset.
    pub offsets: Vec<i64>,
    /// Origin: index in the record; for an impression that of its first item.
    pub indexes: Vec<i32>,
    /// Event time.
    pub times: Vec<i64>,
    /// For an action: the item.
    pub items: Vec<u64>,
    /// For an action: its weight.
    pub weights: Vec<f32>,
    /// For an action: its number; NaN for none.
    pub numbers: Vec<f32>,
    /// Request ids, end to end.
    pub ids: Vec<u8>,
    /// The start of each id.
    pub id_at: Vec<i64>,
    /// Payloads of impressions, end to end.
    pub payload: Vec<u8>,
    /// The start of each payload.
    pub payload_at: Vec<i64>,
}

/// The result of `take`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Taken {
    /// The impressions of rows and interactions.
    pub requests: Requests,
    /// Rows.
    pub rows: Rows,
    /// Interactions.
    pub interactions: Interactions,
    /// Letters.
    pub letters: Letters,
}

impl Letters {
    fn push(&mut self, letter: &Letter) {
        self.kinds.push(letter.kind as u8);
        self.groups.push(letter.groups);
        self.codes.push(letter.code);
        self.partitions.push(letter.partition);
        self.offsets.push(letter.offset);
        self.indexes.push(letter.index as i32);
        self.times.push(letter.time);
        self.items.push(letter.item);
        self.weights.push(letter.weight);
        self.numbers.push(letter.number.unwrap_or(f32::NAN));
        self.ids.extend_from_slice(&letter.id);
        self.id_at.push(self.ids.len() as i64);
        self.payload.extend_from_slice(&letter.payload);
        self.payload_at.push(self.payload.len() as i64);
    }
}

impl JoinCore {
    pub(crate) fn take_out(&mut self, rows_max: usize) -> Taken {
        let mut taken = Taken::default();
        taken.requests.payload_at.push(0);
        taken.letters.id_at.push(0);
        taken.letters.payload_at.push(0);
        let mut last_request = None;
        for _ in 0..rows_max.min(self.out.rows.len()) {
            let Some(row) = self.out.rows.pop_front() else { break };
            let at = At { slice: row.slice, place: row.place };
            let request = (at, row.reads_back);
            if last_request.replace(request) != Some(request) {
                self.take_request(request, &mut taken.requests);
            }
            self.take_row(&row, &mut taken);
        }
        for _ in 0..rows_max.min(self.out.interactions.len()) {
            let Some(made) = self.out.interactions.pop_front() else { break };
            let request = (made.at, made.reads_back);
            if last_request.replace(request) != Some(request) {
                self.take_request(request, &mut taken.requests);
            }
            self.take_interaction(&made, &mut taken);
        }
        if self.out.rows.is_empty() {
            self.out.rows.shrink_to_fit();
        }
        if self.out.interactions.is_empty() {
            self.out.interactions.shrink_to_fit();
        }
        for letter in self.out.letters.drain(..rows_max.min(self.out.letters.len())) {
            self.out.letters_bytes -= letter.bytes();
            taken.letters.push(&letter);
        }
        taken
    }

    fn take_request(&self, (at, reads_back): (At, bool), requests: &mut Requests) {
        let slice = self.slices.shelf.get(at.slice);
        let origin = slice.origins[at.place as usize];
        requests.partitions.push(origin.partition);
        requests.offsets.push(origin.offset);
        requests.first_items.push(origin.first_item as i32);
        requests.times.push(slice.time(at.place));
        requests.reads_back.push(u8::from(reads_back));
        if !reads_back {
            requests.payload.extend_from_slice(slice.payload(at.place));
        }
        requests.payload_at.push(requests.payload.len() as i64);
    }

    fn take_interaction(&mut self, made: &Interaction, taken: &mut Taken) {
        let slice = self.slices.shelf.get_mut(made.at.slice);
        slice.ready -= 1;
        slice.ready_payload -= u64::from(!made.reads_back);
        let columns = &mut taken.interactions;
        columns.request_index.push(taken.requests.times.len() as i32 - 1);
        columns.positions.push(made.position as i32);
        columns.items.push(slice.items[slice.items_at(made.at.place).start + made.position as usize]);
        columns.identities.push(made.identity);
        columns.kinds.push(made.done.code);
        columns.times.push(made.done.time);
        columns.weights.push(made.done.weight);
        columns.numbers.push(made.done.number.unwrap_or(f32::NAN));
    }

    fn take_row(&mut self, row: &Row, taken: &mut Taken) {
        let slice = self.slices.shelf.get_mut(row.slice);
        slice.ready -= 1;
        slice.ready_payload -= u64::from(!row.reads_back);
        let (position, rows) = (row.position as usize, &mut taken.rows);
        rows.request_index.push(taken.requests.times.len() as i32 - 1);
        rows.positions.push(row.position as i32);
        rows.item_index.push(slice.origins[row.place as usize].identity(position).item as i32);
        let item = slice.items_at(row.place).start + position;
        rows.items.push(slice.items[item]);
        rows.groups.push(row.group);
        rows.settles.push(row.settles);
        rows.labels.push(row.labels);
        rows.settle_times.push(row.settle_time);
        let labels = &self.rules.settings.labels;
        let begin = rows.weights.len();
        rows.weights.resize(begin + labels.len(), 1.0);
        if self.rules.numbers != 0 {
            rows.numbers.resize(begin + labels.len(), 0.0);
        }
        let mut remaining = row.labels;
        while remaining != 0 {
            let label = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            // The action that made the label positive is held until the row is taken.
            let Label { action, number, .. } = labels[label];
            if let Some(number) = number {
                let until = row.settle_time;
                let acts = slice.acts_of(item).filter(|act| act.code == action && act.time <= until);
                let mut numbers: Vec<_> = acts.filter_map(|act| Some((act.time, act.number?))).collect();
                rows.numbers[begin + label] = number.combine.of(&mut numbers).unwrap_or_default();
            } else if let Some(act) = slice.act(item, action) {
                rows.weights[begin + label] = act.weight;
            }
        }
    }
}
