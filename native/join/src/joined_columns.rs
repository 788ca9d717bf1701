//! What is taken out of a join, as columns.

use crate::core::JoinCore;
use crate::output::{Letter, Row};

/// Impressions that rows are of. One may come several times: rows that lie side by side share it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Requests {
    /// Identity: partition.
    pub partitions: Vec<i32>,
    /// Identity: offset of the record.
    pub offsets: Vec<i64>,
    /// The index of the first item in the record.
    pub first_items: Vec<i32>,
    /// When it was shown.
    pub times: Vec<i64>,
    /// 1: its payload was let go of and is to be read back by its origin.
    pub reads_back: Vec<u8>,
    /// Payloads, end to end.
    pub payload: Vec<u8>,
    /// Where each begins.
    pub payload_at: Vec<i64>,
}

/// Rows that are due.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    /// The impression.
    pub request_index: Vec<i32>,
    /// Which of the impression's items.
    pub positions: Vec<i32>,
    /// Identity: index of the item in the record.
    pub item_index: Vec<i32>,
    /// The item as it was handed in.
    pub items: Vec<u64>,
    /// The group.
    pub groups: Vec<u8>,
    /// Labels that are settled.
    pub settles: Vec<u32>,
    /// Those of them that are positive.
    pub labels: Vec<u32>,
    /// When they were settled.
    pub settle_times: Vec<i64>,
    /// How much each label's positive weighs, all labels of a row side by side; 1 where the row makes none.
    pub weights: Vec<f32>,
}

/// Events that could not be joined.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Letters {
    /// Why, as `LetterKind` numbers it.
    pub kinds: Vec<u8>,
    /// Of an impression: the groups it was too late for.
    pub groups: Vec<u32>,
    /// Of an action: what was done.
    pub codes: Vec<u8>,
    /// Origin: partition.
    pub partitions: Vec<i32>,
    /// Origin: offset.
    pub offsets: Vec<i64>,
    /// Origin: index in the record, of an impression that of its first item.
    pub indexes: Vec<i32>,
    /// Event time.
    pub times: Vec<i64>,
    /// Of an action: the item.
    pub items: Vec<u64>,
    /// Of an action: how much it weighs.
    pub weights: Vec<f32>,
    /// Request ids, end to end.
    pub ids: Vec<u8>,
    /// Where each begins.
    pub id_at: Vec<i64>,
    /// Payloads of impressions, end to end.
    pub payload: Vec<u8>,
    /// Where each begins.
    pub payload_at: Vec<i64>,
}

/// Everything that was taken.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Taken {
    /// Impressions that rows are of.
    pub requests: Requests,
    /// Rows.
    pub rows: Rows,
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
        let mut last = None;
        for _ in 0..rows_max.min(self.out.rows.len()) {
            let Some(row) = self.out.rows.pop_front() else { break };
            let request = (row.slice, row.place, row.reads_back);
            if last != Some(request) {
                last = Some(request);
                self.take_request(&row, &mut taken.requests);
            }
            self.take_row(&row, &mut taken);
        }
        if self.out.rows.is_empty() {
            self.out.rows.shrink_to_fit();
        }
        for letter in self.out.letters.drain(..rows_max.min(self.out.letters.len())) {
            self.out.letters_bytes -= letter.bytes();
            taken.letters.push(&letter);
        }
        taken
    }

    fn take_request(&self, row: &Row, requests: &mut Requests) {
        let slice = self.slices.shelf.get(row.slice);
        let origin = slice.origins[row.place as usize];
        requests.partitions.push(origin.partition);
        requests.offsets.push(origin.offset);
        requests.first_items.push(origin.first_item as i32);
        requests.times.push(slice.time(row.place));
        requests.reads_back.push(u8::from(row.reads_back));
        if !row.reads_back {
            requests.payload.extend_from_slice(slice.payload(row.place));
        }
        requests.payload_at.push(requests.payload.len() as i64);
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
        let mut rest = row.labels;
        while rest != 0 {
            let label = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // What made it positive is held until the row is taken.
            if let Some(act) = slice.act(item, labels[label].action) {
                rows.weights[begin + label] = act.weight;
            }
        }
    }
}
