//! Page: the marks of the items of neighbouring records, two bits for every label, and numbers that were learned.

use std::collections::BTreeMap;

use crate::learned_numbers::{LearnedNumber, NUMBER_BYTES, NumberPlace};

/// Records per page.
pub(crate) const OFFSETS: i64 = 1_024;
/// Unused bytes before a page is compacted.
const WASTE_MIN: usize = 4_096;

/// The position of one record's marks.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    begin: u32,
    items: u32,
}

/// The bits of one item: a power of two, so that no item straddles a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width {
    bits: u32,
}

impl Width {
    pub fn of(labels: usize) -> Self {
        Self { bits: (2 * labels as u32).next_power_of_two() }
    }

    /// The bytes of a number of items.
    fn bytes(self, items: usize) -> usize {
        (items * self.bits as usize).div_ceil(8)
    }

    /// The number of items rounded up to whole bytes.
    fn round(self, items: usize) -> usize {
        items.next_multiple_of(8usize.div_ceil(self.bits as usize))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Page {
    extents: Vec<Extent>,
    data: Vec<u8>,
    waste: usize,
    width: Width,
    /// The latest event time of its rows.
    pub time_max: i64,
    /// The first save that will contain its newest change; 0 if nothing was learned.
    pub changed: u64,
    /// The number of changes that are not learned yet.
    pub inflight: u64,
    /// The numbers learned of labels that may be corrected.
    pub numbers: BTreeMap<NumberPlace, LearnedNumber>,
}

impl Page {
    pub fn new(width: Width) -> Self {
        let extents = vec![Extent::default(); OFFSETS as usize];
        Self {
            extents,
            data: Vec::new(),
            waste: 0,
            width,
            time_max: i64::MIN,
            changed: 0,
            inflight: 0,
            numbers: BTreeMap::new(),
        }
    }

    pub fn bytes(&self) -> u64 {
        let marks = size_of::<Self>() + self.extents.capacity() * size_of::<Extent>() + self.data.capacity();
        marks as u64 + self.numbers.len() as u64 * NUMBER_BYTES
    }

    /// Bytes that room for an item would take; 0 if there is room.
    pub fn wants(&self, record: usize, item: u32) -> usize {
        if item < self.extents[record].items { 0 } else { self.width.bytes(self.grown(record, item)) }
    }

    /// The items to make room for: exactly enough at first, then half more each time.
    fn grown(&self, record: usize, item: u32) -> usize {
        let held = self.extents[record].items as usize;
        self.width.round((item as usize + 1).max(held + held / 2))
    }

    /// Whether 32-bit positions suffice for `bytes` more.
    pub fn has_places(&self, bytes: usize) -> bool {
        self.data.len() + bytes < u32::MAX as usize
    }

    /// Makes room for an item.
    pub fn reserve(&mut self, record: usize, item: u32) {
        if item < self.extents[record].items {
            return;
        }
        let old = self.extents[record];
        let items = self.grown(record, item);
        let (from, length) = (old.begin as usize, self.width.bytes(old.items as usize));
        let begin = self.data.len();
        let end = begin + self.width.bytes(items);
        if end > self.data.capacity() {
            let quarter = self.data.capacity() + self.data.capacity() / 4;
            self.data.reserve_exact(end.max(quarter) - begin);
        }
        self.data.resize(end, 0);
        self.data.copy_within(from..from + length, begin);
        self.extents[record] = Extent { begin: begin as u32, items: items as u32 };
        self.waste += length;
        if self.waste > WASTE_MIN.max(self.data.len() / 4) {
            self.lay_out();
        }
    }

    fn lay_out(&mut self) {
        let mut data = Vec::with_capacity(self.data.len() - self.waste);
        for extent in self.extents.iter_mut().filter(|extent| extent.items > 0) {
            let begin = data.len() as u32;
            let from = extent.begin as usize;
            data.extend_from_slice(&self.data[from..from + self.width.bytes(extent.items as usize)]);
            extent.begin = begin;
        }
        self.data = data;
        self.waste = 0;
    }

    /// The marks of an item; 0 without room for it.
    #[inline]
    pub fn get(&self, record: usize, item: u32) -> u64 {
        let (extent, bits) = (self.extents[record], self.width.bits as usize);
        if item >= extent.items {
            return 0;
        }
        let at = item as usize * bits;
        let from = extent.begin as usize + at / 8;
        match bits {
            8.. => {
                let mut bytes = [0; 8];
                bytes[..bits / 8].copy_from_slice(&self.data[from..from + bits / 8]);
                u64::from_le_bytes(bytes)
            }
            _ => u64::from(self.data[from] >> (at % 8)) & ((1 << bits) - 1),
        }
    }

    /// Sets the marks of an item that has room.
    #[inline]
    pub fn set(&mut self, record: usize, item: u32, marks: u64) {
        let (extent, bits) = (self.extents[record], self.width.bits as usize);
        assert!(item < extent.items, "room is made before marks are set");
        let at = item as usize * bits;
        let from = extent.begin as usize + at / 8;
        match bits {
            8.. => self.data[from..from + bits / 8].copy_from_slice(&marks.to_le_bytes()[..bits / 8]),
            _ => {
                let mask = ((1u8 << bits) - 1) << (at % 8);
                self.data[from] = self.data[from] & !mask | (marks as u8) << (at % 8);
            }
        }
    }

    /// The same marks for other labels: label `n` has the marks of label `sources[n]`, or none.
    pub fn relabelled(&self, width: Width, sources: &[Option<usize>]) -> Self {
        let mut page = Self { time_max: self.time_max, changed: self.changed.min(1), ..Self::new(width) };
        for (record, extent) in self.extents.iter().enumerate().filter(|(_, extent)| extent.items > 0) {
            page.reserve(record, extent.items - 1);
            for item in 0..extent.items {
                let marks = self.get(record, item);
                let of_label = |source: &Option<usize>| source.map_or(0, |at| marks >> (2 * at) & 3);
                let moved = sources.iter().rev().fold(0, |moved, source| moved << 2 | of_label(source));
                page.set(record, item, moved);
            }
        }
        for (place, learned) in &self.numbers {
            let targets =
                sources.iter().enumerate().filter(|(_, source)| **source == Some(usize::from(place.label)));
            page.numbers
                .extend(targets.map(|(label, _)| (NumberPlace { label: label as u8, ..*place }, *learned)));
        }
        page
    }

    /// Whether an item has marks.
    pub fn has_marks(&self) -> bool {
        let mut extents = self.extents.iter().enumerate();
        extents.any(|(record, extent)| (0..extent.items).any(|item| self.get(record, item) != 0))
    }

    /// The records with marks, the item count of each, and their marks end to end. Room without marks does not
    /// show: it depends on what was read ahead.
    pub fn columns(&self) -> (Vec<u16>, Vec<u32>, Vec<u8>) {
        let (mut records, mut items, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for (record, extent) in self.extents.iter().enumerate() {
            let Some(last) = (0..extent.items).rev().find(|&item| self.get(record, item) != 0) else {
                continue;
            };
            let (from, held) = (extent.begin as usize, self.width.round(last as usize + 1));
            records.push(record as u16);
            items.push(held as u32);
            data.extend_from_slice(&self.data[from..from + self.width.bytes(held)]);
        }
        (records, items, data)
    }

    /// The page of these columns; None if they contradict each other.
    pub fn of_columns(width: Width, records: &[u16], items: &[u32], data: Vec<u8>) -> Option<Self> {
        let mut page = Self::new(width);
        let mut begin = 0usize;
        for (&record, &items) in records.iter().zip(items) {
            let extent = page.extents.get_mut(usize::from(record))?;
            let is_round = items > 0 && width.round(items as usize) == items as usize;
            if extent.items > 0 || !is_round {
                return None;
            }
            *extent = Extent { begin: u32::try_from(begin).ok()?, items };
            begin += width.bytes(items as usize);
        }
        page.data = data;
        // A page without records takes 8 KiB of memory but almost no bytes in a file.
        (!records.is_empty() && records.len() == items.len() && begin == page.data.len()).then_some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn relabelled_marks_follow_their_labels() {
        let mut page = Page::new(Width::of(3));
        for (item, marks) in [(0, 0b01_10_11), (9, 0b11_00_01)] {
            page.reserve(7, item);
            page.set(7, item, marks);
        }
        let moved = page.relabelled(Width::of(5), &[Some(2), None, Some(0), None, Some(1)]);
        assert_eq!(moved.get(7, 0), 0b10_00_11_00_01);
        assert_eq!(moved.get(7, 9), 0b00_00_01_00_11);
        assert_eq!(moved.get(7, 1), 0);
        let fewer = page.relabelled(Width::of(1), &[Some(1)]);
        assert_eq!((fewer.get(7, 0), fewer.get(7, 9)), (0b10, 0));
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            labels in 1usize..=32,
            steps in prop::collection::vec((0usize..6, 0u32..3_000, any::<u64>()), 1..200),
        ) {
            let width = Width::of(labels);
            let mask = if labels == 32 { u64::MAX } else { (1 << (2 * labels)) - 1 };
            let (mut page, mut oracle) = (Page::new(width), BTreeMap::new());
            for (record, item, marks) in steps {
                page.reserve(record, item);
                page.set(record, item, marks & mask);
                oracle.insert((record, item), marks & mask);
            }
            let (records, items, data) = page.columns();
            let restored = Page::of_columns(width, &records, &items, data).unwrap();
            for record in 0..6 {
                for item in 0..3_001 {
                    let expected = oracle.get(&(record, item)).copied().unwrap_or(0);
                    assert_eq!((page.get(record, item), restored.get(record, item)), (expected, expected));
                }
            }
        }
    }
}
