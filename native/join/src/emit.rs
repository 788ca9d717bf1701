//! Emission: the rows that an impression makes for a group, first row and corrections.

use crate::hash::is_kept;
use crate::index::At;
use crate::output::{Output, Row};
use crate::settings::Rules;
use crate::slice::{DEAD, Slice};

/// An action that settles labels of a group once the watermark passes its time. Ordered by time and identity,
/// so that the order of arrival has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Correction {
    pub time: i64,
    pub partition: i32,
    pub offset: i64,
    /// Index of the item in its record.
    pub item: u32,
    pub group: u8,
    pub code: u8,
    pub position: u32,
    pub slice: u32,
    pub place: u32,
}

/// The slice that rows are made from, and the output they go to.
pub(crate) struct Emitting<'a> {
    pub rules: &'a Rules,
    pub slice: &'a mut Slice,
    pub at: At,
    pub out: &'a mut Output,
    /// Whether the payloads of rows emitted now are already dropped.
    pub reads_back: bool,
}

impl Emitting<'_> {
    fn time(&self) -> i64 {
        self.slice.time(self.at.place)
    }

    fn row(&mut self, group: usize, position: usize, settle_time: i64, (settles, labels): (u32, u32)) {
        let kept_until = self.time() + self.rules.window_min;
        let reads_back =
            self.reads_back || settle_time > kept_until || !self.slice.has_payload(self.at.place);
        let row = Row {
            slice: self.at.slice,
            place: self.at.place,
            position: position as u32,
            settles,
            labels,
            group: group as u8,
            reads_back,
            settle_time,
        };
        self.out.counters.positives += u64::from(labels.count_ones());
        self.out.counters.negatives += u64::from((settles & !labels).count_ones());
        self.out.push_row(row, self.slice);
    }

    /// Emits the first row of every item, with the actions until the end of the wait.
    pub fn first_rows(&mut self, group: usize) {
        let settle_time = self.time() + self.rules.settings.groups[group].wait_ms;
        let span = self.slice.items_at(self.at.place);
        for (position, item) in span.enumerate() {
            if self.slice.heads[item] == DEAD {
                continue;
            }
            let acts = self.slice.acts_of(item).filter(|act| act.time <= settle_time);
            let (mut positive, mut unknown) = (0, self.rules.unsettled);
            for act in acts {
                positive |= self.rules.labels(group, act);
                // There was an action, and nobody knows its number.
                unknown |= if act.number.is_none() { self.rules.numbers_of(group, act.code) } else { 0 };
            }
            let negative = self.kept(position, self.rules.of_group[group] & !unknown & !positive);
            if positive | negative == 0 {
                self.out.counters.rows_unkept += 1;
            } else {
                self.row(group, position, settle_time, (positive | negative, positive));
            }
        }
    }

    /// The labels whose negatives sampling keeps.
    fn kept(&mut self, position: usize, labels: u32) -> u32 {
        let identity = self.slice.origins[self.at.place as usize].identity(position);
        let (mut kept, mut remaining) = (labels, labels);
        while remaining != 0 {
            let label = remaining.trailing_zeros() as usize;
            remaining &= remaining - 1;
            let (salt, below) = (self.rules.settings.labels[label].salt, self.rules.below[label]);
            if !is_kept(identity.partition, identity.offset, identity.item, salt, below) {
                kept &= !(1 << label);
            }
        }
        self.out.counters.negatives_unkept += u64::from((labels & !kept).count_ones());
        kept
    }

    /// The labels of a group that the actions of a code at one time settle: of those that are only positive, none if
    /// an earlier action has arrived; none at all if the item counts for another impression.
    pub fn labels_at(&self, group: usize, item: usize, code: u8, time: i64) -> u32 {
        let numbers = self.rules.numbers;
        let first = self.slice.act(item, code).filter(|act| act.time == time);
        let at_time = self.slice.acts_of(item).filter(|act| act.code == code && act.time == time);
        first.map_or(0, |act| self.rules.labels(group, act) & !numbers)
            | at_time.fold(0, |labels, act| labels | self.rules.labels(group, act) & numbers)
    }

    /// The time of the last known action of a code that the watermark has passed, and at least `due`.
    pub fn last_known(&self, item: usize, code: u8, (due, watermark): (i64, i64)) -> i64 {
        let times = self.slice.acts_of(item).filter(|act| act.code == code).map(|act| act.time);
        times.filter(|time| *time < watermark).max().map_or(due, |time| time.max(due))
    }

    /// Emits a row that settles the labels which an action makes positive.
    pub fn correct(&mut self, group: usize, position: usize, labels: u32, settle_time: i64) {
        self.out.counters.rows_correction += 1;
        self.row(group, position, settle_time, (labels, labels));
    }
}
