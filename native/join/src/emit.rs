//! Which rows an impression makes for a group: its first, and those that correct it.

use crate::hash::is_kept;
use crate::index::At;
use crate::output::{Output, Row};
use crate::settings::Rules;
use crate::slice::{DEAD, Slice};

/// An action that settles labels of a group when the watermark passes its time. Their order is that of time and
/// identity, so that the order of arrival does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Correction {
    pub time: i64,
    pub partition: i32,
    pub offset: i64,
    /// Of the item in its record.
    pub item: u32,
    pub group: u8,
    pub code: u8,
    pub position: u32,
    pub slice: u32,
    pub place: u32,
}

/// The slice rows are made from, and where they go.
pub(crate) struct Emitting<'a> {
    pub rules: &'a Rules,
    pub slice: &'a mut Slice,
    pub at: At,
    pub out: &'a mut Output,
    /// Whether payloads are no longer kept for what is emitted now.
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

    /// The first row of every item, with what was done until the wait was over.
    pub fn first_rows(&mut self, group: usize) {
        let settle_time = self.time() + self.rules.settings.groups[group].wait_ms;
        let span = self.slice.items_at(self.at.place);
        for (position, item) in span.enumerate() {
            if self.slice.heads[item] == DEAD {
                continue;
            }
            let known = self.slice.acts_of(item).filter(|act| act.time <= settle_time);
            let positive = known.fold(0, |labels, act| labels | self.rules.labels(group, act.code));
            let negative = self.kept(position, self.rules.of_group[group] & !positive);
            if positive | negative == 0 {
                self.out.counters.rows_unkept += 1;
            } else {
                self.row(group, position, settle_time, (positive | negative, positive));
            }
        }
    }

    /// Which of these labels' negatives are kept.
    fn kept(&mut self, position: usize, labels: u32) -> u32 {
        let identity = self.slice.origins[self.at.place as usize].identity(position);
        let (mut kept, mut rest) = (labels, labels);
        while rest != 0 {
            let label = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let (salt, below) = (self.rules.settings.labels[label].salt, self.rules.below[label]);
            if !is_kept(identity.partition, identity.offset, identity.item, salt, below) {
                kept &= !(1 << label);
            }
        }
        self.out.counters.negatives_unkept += u64::from((labels & !kept).count_ones());
        kept
    }

    /// A row that settles what an action makes positive.
    pub fn correct(&mut self, group: usize, position: usize, code: u8, settle_time: i64) {
        let labels = self.rules.labels(group, code);
        self.out.counters.rows_correction += 1;
        self.row(group, position, settle_time, (labels, labels));
    }
}
