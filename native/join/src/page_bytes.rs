//! Marks as named bytes, and back: one entry for what holds for all, one for the pages of each partition.

use std::collections::{BTreeMap, HashMap};

use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};
use crate::marks::{Marks, PageKey, Undo};
use crate::page::{OFFSETS, Page};

const MAGIC: &[u8; 4] = b"SLMK";
const VERSION: u16 = 1;
/// The entry of what holds for all.
const HEAD: &str = "head";

fn broken<T>(text: String) -> Result<T> {
    Err(Error::Bytes(text))
}

impl Marks {
    /// What was learned and changed since a save, and the number of this one. Since 0 it is everything. A reader puts
    /// saves one after another: a page replaces the page before it.
    pub fn save(&mut self, since: u64) -> (u64, Vec<(String, Vec<u8>)>) {
        let this = self.save;
        self.save += 1;
        let mut undos: HashMap<u32, Vec<Undo>> = HashMap::new();
        for undo in self.inflight.iter().rev().flat_map(|(_, undos)| undos.iter().rev()) {
            undos.entry(undo.page).or_default().push(*undo);
        }
        let mut of_partition: BTreeMap<(u16, i32), Vec<(i64, u32)>> = BTreeMap::new();
        for (&(topic, partition, page), &number) in &self.by_key {
            if self.pages[number as usize].as_ref().is_some_and(|it| it.changed > since) {
                of_partition.entry((topic, partition)).or_default().push((page, number));
            }
        }
        let mut named = vec![(HEAD.to_owned(), self.head())];
        for ((topic, partition), pages) in of_partition {
            let mut out = Writer::new(MAGIC, VERSION);
            for number in [i64::from(topic), i64::from(partition), pages.len() as i64] {
                out.i64(number);
            }
            for (page, number) in pages {
                self.write_page(page, number, undos.get(&number), &mut out);
            }
            named.push((format!("{topic}-{partition}"), out.finish()));
        }
        (this, named)
    }

    fn head(&self) -> Vec<u8> {
        let mut out = Writer::new(MAGIC, VERSION);
        out.u64(self.settings.labels as u64);
        out.i64(self.horizon);
        out.u64(self.topics.len() as u64);
        self.topics.iter().for_each(|topic| out.bytes(topic.as_bytes()));
        out.finish()
    }

    fn write_page(&self, page: i64, number: u32, undos: Option<&Vec<Undo>>, out: &mut Writer) {
        let held = self.pages[number as usize].as_ref().expect("a page that was found lives");
        out.i64(page);
        out.i64(held.time_max);
        let (records, items, data) = match undos {
            None => held.columns(),
            // Latest first, so that what was before the first step that is not learned stays.
            Some(undos) => {
                let mut learned = held.clone();
                undos.iter().for_each(|undo| learned.set(usize::from(undo.record), undo.item, undo.before));
                learned.columns()
            }
        };
        out.column(&records);
        out.column(&items);
        out.bytes(&data);
    }

    /// Put a save on top of what was loaded before; a save since the number this returns is what changed after it.
    ///
    /// # Errors
    /// The bytes are no save, are of other labels, or something is in flight; or more would be held than may be. What
    /// was loaded is in no state to be used then.
    pub fn load(&mut self, named: &[(&str, &[u8])]) -> Result<u64> {
        if self.undos > 0 {
            return broken(format!("{} marks are in flight: load into new marks", self.undos));
        }
        self.inflight.clear();
        let Some(&(_, head)) = named.iter().find(|(name, _)| *name == HEAD) else {
            return broken(format!("entry {HEAD:?} is not among {} entries", named.len()));
        };
        let numbers = self.load_head(head)?;
        self.forget(self.horizon);
        for (name, bytes) in named.iter().filter(|(name, _)| *name != HEAD) {
            match self.load_pages(bytes, &numbers) {
                Err(Error::Bytes(error)) => return broken(format!("entry {name:?}: {error}")),
                loaded => loaded?,
            }
        }
        self.forget(self.horizon);
        self.save += 1;
        Ok(self.save - 1)
    }

    /// Take over horizon and topics; the numbers that the topics have here.
    fn load_head(&mut self, head: &[u8]) -> Result<Vec<u16>> {
        let mut from = Reader::new(head, MAGIC, VERSION)?;
        let labels = from.u64()?;
        if labels != self.settings.labels as u64 {
            return broken(format!("they are of {labels} labels, and these are {}", self.settings.labels));
        }
        self.horizon = self.horizon.max(from.i64()?);
        let mut numbers = Vec::new();
        for _ in 0..from.u64()? {
            match std::str::from_utf8(from.bytes()?) {
                Ok(topic) => numbers.push(self.topic(topic)?),
                Err(error) => return broken(format!("a topic's id: {error}")),
            }
        }
        from.finish()?;
        Ok(numbers)
    }

    fn load_pages(&mut self, bytes: &[u8], numbers: &[u16]) -> Result<()> {
        let mut from = Reader::new(bytes, MAGIC, VERSION)?;
        let (topic, partition, pages) = (from.i64()?, from.i64()?, from.i64()?);
        let known = usize::try_from(topic).ok().and_then(|topic| numbers.get(topic));
        let (Some(&topic), Ok(partition)) = (known, i32::try_from(partition)) else {
            return broken(format!("pages of topic {topic}, partition {partition}"));
        };
        for _ in 0..pages {
            let (number, time_max) = (from.i64()?, from.i64()?);
            let (records, items): (Vec<u16>, Vec<u32>) = (from.column()?, from.column()?);
            let data = from.bytes()?.to_vec();
            let page = Page::of_columns(self.width, &records, &items, data);
            let Some(mut page) = page.filter(|_| (0..i64::MAX / OFFSETS).contains(&number)) else {
                return broken(format!("the columns of page {number} contradict each other"));
            };
            (page.time_max, page.changed) = (time_max, self.save);
            let key: PageKey = (topic, partition, number);
            self.drop_page(key);
            self.claim(page.bytes())?;
            self.put_page(key, page);
        }
        from.finish()
    }
}
