//! Learned numbers: of a label whose number may change, the number that was learned and when it was settled, so
//! that another one is learned as a correction.

use crate::marks::{Marks, Settling};

/// The place of a number in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NumberPlace {
    pub record: u16,
    pub item: u32,
    pub label: u8,
}

/// About the memory of a number that was learned, in a tree.
pub(crate) const NUMBER_BYTES: u64 = 48;

/// The number of a label that was learned, and when it was settled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LearnedNumber {
    pub time: i64,
    pub number: f32,
}

/// The number before a step that is not learned yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberUndo {
    pub page: u32,
    pub place: NumberPlace,
    pub before: Option<LearnedNumber>,
}

/// The numbers of one row that a step learns or corrects.
#[derive(Debug, Default)]
pub(crate) struct SettledNumbers {
    pub learn: u32,
    pub correct: u32,
    /// The resulting marks of both.
    pub marks: u64,
}

impl Marks {
    /// Decides on the labels of a row whose numbers may be corrected, and keeps the numbers that are learned.
    pub(crate) fn settle_numbers(
        &mut self,
        (page, record): (u32, u16),
        rows: &Settling<'_>,
        row: usize,
        learned_before: &mut [f32],
    ) -> SettledNumbers {
        let mut settled = SettledNumbers::default();
        let mut remaining = rows.settles[row] & self.settings.numbers;
        let item = rows.items[row] as u32;
        while remaining != 0 {
            let label = remaining.trailing_zeros();
            remaining &= remaining - 1;
            let at = row * self.settings.labels + label as usize;
            let now = LearnedNumber { time: rows.settle_times[row], number: rows.numbers[at] };
            let place = NumberPlace { record, item, label: label as u8 };
            let page_state = self.page(page);
            let held = page_state.numbers.get(&place).copied();
            match (page_state.get(usize::from(record), item) >> (2 * label) & 3, held) {
                (0, _) => settled.learn |= 1 << label,
                (1 | 2, Some(before)) if before.time <= now.time && before.number != now.number => {
                    settled.correct |= 1 << label;
                    learned_before[at] = before.number;
                }
                _ => continue,
            }
            let is_positive = rows.labels[row] >> label & 1;
            settled.marks |= 1 << (2 * label + is_positive);
            let page_state = self.page_mut(page);
            page_state.numbers.insert(place, now);
            page_state.inflight += 1;
            self.undos += 1;
            self.pages_bytes += if held.is_none() { NUMBER_BYTES } else { 0 };
            let undos = &mut self.numbers_inflight.back_mut().expect("the current step").1;
            undos.push(NumberUndo { page, place, before: held });
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::marks::MarksSettings;

    /// A label without corrections, and one whose number may change.
    fn with_numbers() -> Marks {
        let settings = MarksSettings { labels: 2, numbers: 0b10, items_max: 100, bytes_max: 1 << 20 };
        let mut marks = Marks::new(settings).unwrap();
        marks.topic("t").unwrap();
        marks
    }

    /// Settles the second label of one item.
    fn settle(marks: &mut Marks, step: u64, (item, time, number): (i32, i64, f32)) -> (u32, u32, f32) {
        let settled = marks.settle(
            step,
            &Settling {
                topic: 0,
                partitions: &[0],
                offsets: &[7],
                times: &[0],
                request_index: &[0],
                items: &[item],
                settles: &[0b10],
                labels: &[if number == 0.0 { 0 } else { 0b10 }],
                settle_times: &[time],
                numbers: &[0.0, number],
            },
        );
        let settled = settled.unwrap();
        (settled.learn[0], settled.correct[0], settled.before[1])
    }

    #[test]
    fn a_number_is_learned_once_and_then_corrected_by_other_ones_that_are_no_older() {
        let mut marks = with_numbers();
        for (step, row, expected) in [
            (1, (3, 10, 0.0), (0b10, 0, 0.0)),
            (2, (3, 10, 0.0), (0, 0, 0.0)),
            (2, (3, 20, 4.5), (0, 0b10, 0.0)),
            (3, (3, 20, 4.5), (0, 0, 0.0)),
            (3, (3, 15, 2.0), (0, 0, 0.0)),
            (3, (3, 30, 0.0), (0, 0b10, 4.5)),
            (4, (3, 30, -1.0), (0, 0b10, 0.0)),
            (5, (4, 5, 2.5), (0b10, 0, 0.0)),
        ] {
            assert_eq!(settle(&mut marks, step, row), expected, "{row:?}");
        }
    }

    #[test]
    fn saves_are_read_whether_or_not_the_windows_of_a_label_had_corrections() {
        let plain = MarksSettings { labels: 2, numbers: 0, items_max: 100, bytes_max: 1 << 20 };
        for (before, after) in [(plain, with_numbers().settings), (with_numbers().settings, plain)] {
            let mut marks = Marks::new(before).unwrap();
            marks.topic("t").unwrap();
            let numbers = [0.0, 4.0];
            let rows = |marks: &mut Marks| {
                let has_numbers = marks.settings.numbers != 0;
                let settling = Settling {
                    topic: 0,
                    partitions: &[0],
                    offsets: &[7],
                    times: &[0],
                    request_index: &[0],
                    items: &[3],
                    settles: &[0b11],
                    labels: &[0b10],
                    settle_times: if has_numbers { &[9] } else { &[] },
                    numbers: if has_numbers { &numbers } else { &[] },
                };
                marks.settle(1, &settling).unwrap()
            };
            assert_eq!(rows(&mut marks).learn, [0b11]);
            marks.acknowledge(1);
            let (_, entries) = marks.save(0);
            let entries: Vec<(&str, &[u8])> =
                entries.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
            let mut restored = Marks::new(after).unwrap();
            restored.load(&entries).unwrap();
            let again = rows(&mut restored);
            assert_eq!((again.learn, again.correct), (vec![0], vec![0]), "nothing is learned twice");
        }
    }

    proptest::proptest! {
        /// Whatever is acknowledged and saved in between: what is learned is what a map of numbers says, and what a
        /// save holds is what was acknowledged.
        #[test]
        fn numbers_are_those_of_a_map_through_saves(
            rows in proptest::collection::vec((0i32..4, 0i64..6, 0u8..4, proptest::bool::ANY), 1..60),
        ) {
            let (mut marks, mut known, mut saved) = (with_numbers(), BTreeMap::new(), BTreeMap::new());
            let mut restored = with_numbers();
            let mut since = 0;
            for (at, (item, time, number, acknowledges)) in rows.into_iter().enumerate() {
                let (step, number) = (at as u64 + 1, f32::from(number) / 2.0);
                let held = known.get(&item).copied();
                let expected = match held {
                    None => (0b10, 0, 0.0),
                    Some((before, old)) if before <= time && old != number => (0, 0b10, old),
                    Some(_) => (0, 0, 0.0),
                };
                proptest::prop_assert_eq!(settle(&mut marks, step, (item, time, number)), expected);
                if expected.0 | expected.1 != 0 {
                    known.insert(item, (time, number));
                }
                if acknowledges {
                    marks.acknowledge(step);
                    saved = known.clone();
                }
                let (next, entries) = marks.save(since);
                let entries: Vec<(&str, &[u8])> =
                    entries.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
                restored.load(&entries).unwrap();
                since = next;
                let mut looked = restored.relabelled(&[None, Some(1)], 0b10).unwrap();
                for (item, (time, number)) in &saved {
                    let found = settle(&mut looked, 1, (*item, *time, number + 1.0));
                    proptest::prop_assert_eq!(found, (0, 0b10, *number));
                }
                proptest::prop_assert_eq!(settle(&mut looked, 1, (99, 0, 1.0)).0, 0b10);
            }
        }
    }
}
