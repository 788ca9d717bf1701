//! Saves of marks as named bytes: one entry for the common head, one for the pages of each partition.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};
use crate::learned_numbers::{LearnedNumber, NumberPlace, NumberUndo};
use crate::marks::{Marks, PageKey, Undo};
use crate::page::{OFFSETS, Page};

const MAGIC: &[u8; 4] = b"SLMK";
const VERSION: u16 = 1;
/// The version of saves with numbers.
const NUMBERS_VERSION: u16 = 2;
/// The name of the head entry.
const HEAD: &str = "head";

fn broken<T>(text: String) -> Result<T> {
    Err(Error::Bytes(text))
}

/// The latest event time of a page's rows that are learned; `undos` has the latest change first.
fn time_max(page: &Page, undos: Option<&Vec<Undo>>) -> i64 {
    undos.and_then(|undos| undos.last()).map_or(page.time_max, |first| first.time_max)
}

/// A page without the changes that are not learned yet. The latest is undone first, so that the state before the
/// first unlearned step remains.
fn learned<'a>(page: &'a Page, undos: Option<&Vec<Undo>>) -> Cow<'a, Page> {
    let Some(undos) = undos else { return Cow::Borrowed(page) };
    let mut learned = page.clone();
    undos.iter().for_each(|undo| learned.set(usize::from(undo.record), undo.item, undo.before));
    Cow::Owned(learned)
}

impl Marks {
    /// Returns this save's number and all that was learned and changed since save `since`; 0 means
    /// everything. A reader applies saves in order: a page replaces its earlier state.
    pub fn save(&mut self, since: u64) -> (u64, Vec<(String, Vec<u8>)>) {
        let save = self.save;
        self.save += 1;
        let mut undos: HashMap<u32, Vec<Undo>> = HashMap::new();
        for undo in self.inflight.iter().rev().flat_map(|(_, undos)| undos.iter().rev()) {
            undos.entry(undo.page).or_default().push(*undo);
        }
        let numbers = self.numbers_inflight.iter().rev().flat_map(|(_, undos)| undos.iter().rev());
        let mut number_undos: HashMap<u32, Vec<NumberUndo>> = HashMap::new();
        for undo in numbers {
            number_undos.entry(undo.page).or_default().push(*undo);
        }
        let mut of_partition: BTreeMap<(u16, i32), Vec<(i64, u32)>> = BTreeMap::new();
        for (&(topic, partition, page), &number) in &self.by_key {
            let is_saved = |page: &Page| {
                let undos = undos.get(&number);
                page.changed > since
                    && time_max(page, undos) >= self.horizon
                    && learned(page, undos).has_marks()
            };
            if self.pages[number as usize].as_ref().is_some_and(is_saved) {
                of_partition.entry((topic, partition)).or_default().push((page, number));
            }
        }
        let mut entries = vec![(HEAD.to_owned(), self.head())];
        for ((topic, partition), pages) in of_partition {
            let mut out = Writer::new(MAGIC, self.version());
            for number in [i64::from(topic), i64::from(partition), pages.len() as i64] {
                out.i64(number);
            }
            for (page, number) in pages {
                self.write_page(page, number, undos.get(&number), &mut out);
                if self.settings.numbers != 0 {
                    self.write_numbers(number, number_undos.get(&number), &mut out);
                }
            }
            entries.push((format!("{topic}-{partition}"), out.finish()));
        }
        (save, entries)
    }

    fn head(&self) -> Vec<u8> {
        let mut out = Writer::new(MAGIC, self.version());
        out.u64(self.settings.labels as u64);
        out.i64(self.horizon);
        out.u64(self.topics.len() as u64);
        self.topics.iter().for_each(|topic| out.bytes(topic.as_bytes()));
        out.finish()
    }

    fn version(&self) -> u16 {
        if self.settings.numbers == 0 { VERSION } else { NUMBERS_VERSION }
    }

    fn write_numbers(&self, number: u32, undos: Option<&Vec<NumberUndo>>, out: &mut Writer) {
        let page = self.pages[number as usize].as_ref().expect("the page exists");
        let mut learned = page.numbers.clone();
        for undo in undos.into_iter().flatten() {
            match undo.before {
                Some(before) => learned.insert(undo.place, before),
                None => learned.remove(&undo.place),
            };
        }
        out.column(&learned.keys().map(|place| place.record).collect::<Vec<u16>>());
        out.column(&learned.keys().map(|place| place.item).collect::<Vec<u32>>());
        out.bytes(&learned.keys().map(|place| place.label).collect::<Vec<u8>>());
        out.column(&learned.values().map(|one| one.time).collect::<Vec<i64>>());
        out.column(&learned.values().map(|one| one.number).collect::<Vec<f32>>());
    }

    /// Reads the numbers of a page; None if they contradict each other or the settings.
    fn read_numbers(&self, from: &mut Reader<'_>) -> Result<Option<BTreeMap<NumberPlace, LearnedNumber>>> {
        let (records, items): (Vec<u16>, Vec<u32>) = (from.column()?, from.column()?);
        let labels = from.bytes()?;
        let (times, numbers): (Vec<i64>, Vec<f32>) = (from.column()?, from.column()?);
        let rows = records.len();
        if [items.len(), labels.len(), times.len(), numbers.len()] != [rows; 4] {
            return Ok(None);
        }
        let mut learned = BTreeMap::new();
        for row in 0..rows {
            let (record, item, label) = (records[row], items[row], labels[row]);
            let (time, number) = (times[row], numbers[row]);
            let is_known = usize::from(label) < self.settings.labels;
            let is_there = i64::from(record) < OFFSETS && item < self.settings.items_max;
            if !is_known || !is_there || !number.is_finite() {
                return Ok(None);
            }
            // Other windows may have ended the corrections of a label.
            if self.settings.numbers >> label & 1 == 1 {
                learned.insert(NumberPlace { record, item, label }, LearnedNumber { time, number });
            }
        }
        Ok(Some(learned))
    }

    fn write_page(&self, page: i64, number: u32, undos: Option<&Vec<Undo>>, out: &mut Writer) {
        let page_state = self.pages[number as usize].as_ref().expect("the page exists");
        out.i64(page);
        out.i64(time_max(page_state, undos));
        let (records, items, data) = learned(page_state, undos).columns();
        out.column(&records);
        out.column(&items);
        out.bytes(&data);
    }

    /// Applies a save on top of those loaded before. A later save since the returned number holds what
    /// changed after it.
    ///
    /// # Errors
    /// If the bytes are not a save, have other labels or exceed the memory bound, or if marks are in flight.
    /// The marks are unusable then.
    pub fn load(&mut self, entries: &[(&str, &[u8])]) -> Result<u64> {
        if self.undos > 0 {
            return broken(format!("{} marks are in flight; load into new marks", self.undos));
        }
        self.inflight.clear();
        self.numbers_inflight.clear();
        let Some(&(_, head)) = entries.iter().find(|(name, _)| *name == HEAD) else {
            return broken(format!("entry {HEAD:?} is missing in {} entries", entries.len()));
        };
        let numbers = self.load_head(head)?;
        self.forget(self.horizon);
        for (name, bytes) in entries.iter().filter(|(name, _)| *name != HEAD) {
            match self.load_pages(bytes, &numbers) {
                Err(Error::Bytes(error)) => return broken(format!("entry {name:?}: {error}")),
                result => result?,
            }
        }
        self.forget(self.horizon);
        self.save += 1;
        Ok(self.save - 1)
    }

    /// Reads horizon and topics; returns the numbers of the topics here.
    fn load_head(&mut self, head: &[u8]) -> Result<Vec<u16>> {
        let (mut from, _) = Reader::new(head, MAGIC, &[VERSION, NUMBERS_VERSION])?;
        let labels = from.u64()?;
        if labels != self.settings.labels as u64 {
            return broken(format!("the save has {labels} labels, expected {}", self.settings.labels));
        }
        self.horizon = self.horizon.max(from.i64()?);
        let mut numbers = Vec::new();
        for _ in 0..from.u64()? {
            match std::str::from_utf8(from.bytes()?) {
                Ok(topic) => numbers.push(self.topic(topic)?),
                Err(error) => return broken(format!("a topic id is invalid: {error}")),
            }
        }
        from.finish()?;
        Ok(numbers)
    }

    fn load_pages(&mut self, bytes: &[u8], numbers: &[u16]) -> Result<()> {
        let (mut from, version) = Reader::new(bytes, MAGIC, &[VERSION, NUMBERS_VERSION])?;
        let (topic, partition, pages) = (from.i64()?, from.i64()?, from.i64()?);
        let own_topic = usize::try_from(topic).ok().and_then(|topic| numbers.get(topic));
        let (Some(&topic), Ok(partition)) = (own_topic, i32::try_from(partition)) else {
            return broken(format!("invalid topic {topic} or partition {partition} of pages"));
        };
        for _ in 0..pages {
            let (number, time_max) = (from.i64()?, from.i64()?);
            let (records, items): (Vec<u16>, Vec<u32>) = (from.column()?, from.column()?);
            let data = from.bytes()?.to_vec();
            let page = Page::of_columns(self.width, &records, &items, data);
            let learned =
                if version == VERSION { Some(BTreeMap::new()) } else { self.read_numbers(&mut from)? };
            let page = page.filter(|_| (0..i64::MAX / OFFSETS).contains(&number)).zip(learned);
            let Some((mut page, learned)) = page else {
                return broken(format!("the columns of page {number} contradict each other"));
            };
            (page.time_max, page.changed, page.numbers) = (time_max, self.save, learned);
            let key: PageKey = (topic, partition, number);
            self.drop_page(key);
            self.claim(page.bytes())?;
            self.put_page(key, page);
        }
        from.finish()
    }
}
