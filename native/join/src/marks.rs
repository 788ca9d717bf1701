//! Marks: two bits for every (identity, label), so that a repeated sample is learned once.
//!
//! none < negative < positive. A label is learned if it has no mark; a positive after a negative is learned
//! as a correction; anything else was learned already. A fourth mark, refused, is permanent. Of a label whose
//! number may change, the number that was learned is kept too, and any other one of the same or a later time is a
//! correction.

use std::collections::{BTreeMap, VecDeque};

use crate::counters::MarksCounters;
use crate::error::{Error, Result, refuse};
use crate::learned_numbers::{NUMBER_BYTES, NumberUndo};
use crate::page::{OFFSETS, Page, Width};
use crate::settings::{LABELS_MAX, is_time};

/// The lower bit of every label's two bits.
const LOWER: u64 = 0x5555_5555_5555_5555;

/// Settings of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarksSettings {
    /// Number of labels of a row.
    pub labels: usize,
    /// The labels that are numbers and may be corrected.
    pub numbers: u32,
    /// Maximum items of one record.
    pub items_max: u32,
    /// Maximum bytes in use when rows are settled.
    pub bytes_max: u64,
}

/// Rows to settle. An identity is the topic, the request's partition and offset, and the row's item.
#[derive(Debug, Clone, Copy)]
pub struct Settling<'a> {
    /// The topic's number.
    pub topic: u16,
    /// The partition of each request.
    pub partitions: &'a [i32],
    /// The offset of each request.
    pub offsets: &'a [i64],
    /// The event time of each request.
    pub times: &'a [i64],
    /// The request of each row.
    pub request_index: &'a [i32],
    /// The item index of each row.
    pub items: &'a [i32],
    /// The labels that each row settles.
    pub settles: &'a [u32],
    /// The settled labels that are positive.
    pub labels: &'a [u32],
    /// When each row settled its labels, and the number of each label, all labels of a row side by side. Both are
    /// empty if no label is a number that may be corrected.
    pub settle_times: &'a [i64],
    /// See `settle_times`.
    pub numbers: &'a [f32],
}

/// The decision for each row, with a bit for every label.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settled {
    /// Labels to learn.
    pub learn: Vec<u32>,
    /// Labels to learn as corrections of negatives.
    pub correct: Vec<u32>,
    /// 1 if the row is older than the horizon.
    pub old: Vec<u8>,
    /// Labels that are known to be positive, by this row or earlier ones.
    pub positive: Vec<u32>,
    /// The number that was learned of each label that is corrected, laid out as `Settling::numbers`; 0 for others.
    pub before: Vec<f32>,
}

/// The mark before a step that is not learned yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undo {
    pub page: u32,
    pub record: u16,
    pub item: u32,
    pub before: u64,
    /// The latest event time of the page before.
    pub time_max: i64,
}

pub(crate) type PageKey = (u16, i32, i64);

/// All marks of a model.
#[derive(Debug)]
pub struct Marks {
    pub(crate) settings: MarksSettings,
    pub(crate) width: Width,
    pub(crate) topics: Vec<String>,
    pub(crate) horizon: i64,
    pub(crate) by_key: BTreeMap<PageKey, u32>,
    pub(crate) pages: Vec<Option<Page>>,
    pub(crate) free: Vec<u32>,
    pub(crate) inflight: VecDeque<(u64, Vec<Undo>)>,
    pub(crate) numbers_inflight: VecDeque<(u64, Vec<NumberUndo>)>,
    pub(crate) undos: usize,
    pub(crate) pages_bytes: u64,
    /// The number of the next save.
    pub(crate) save: u64,
    newest_step: u64,
    places: Vec<(u32, u16)>,
    counters: MarksCounters,
}

pub(crate) fn spread(labels: u32) -> u64 {
    let mut bits = u64::from(labels);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, LOWER),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

fn gather(bits: u64) -> u32 {
    let mut folded = bits & LOWER;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        folded = (folded | folded >> shift) & mask;
    }
    folded as u32
}

/// The labels to learn, those to learn as corrections, and the resulting marks.
fn decide(marks: u64, settles: u32, labels: u32) -> (u64, u64, u64) {
    let (settles, positive) = (spread(settles), spread(labels));
    let (lower, upper) = (marks & LOWER, marks >> 1 & LOWER);
    let learn = settles & !lower & !upper;
    let correct = settles & positive & lower & !upper;
    let negatives = learn & !positive;
    let positives = learn & positive | correct;
    (learn, correct, marks & !correct | negatives | positives << 1)
}

impl Settling<'_> {
    fn check(&self, marks: &Marks) -> Result<()> {
        let requests = [self.offsets.len(), self.times.len()];
        let rows = [self.items.len(), self.settles.len(), self.labels.len()];
        let of_numbers = if marks.settings.numbers == 0 { 0 } else { rows[0] };
        let numbers = [self.settle_times.len(), self.numbers.len()];
        if numbers != [of_numbers, of_numbers * marks.settings.labels] {
            return refuse(format!("{numbers:?} times and numbers of {} rows", rows[0]));
        }
        if !self.numbers.iter().all(|number| number.is_finite()) {
            return refuse("a number is not finite".to_owned());
        }
        if requests != [self.partitions.len(); 2] || rows != [self.request_index.len(); 3] {
            return refuse("columns of requests, or columns of rows, have different lengths".to_owned());
        }
        if usize::from(self.topic) >= marks.topics.len() {
            return refuse(format!("topic {} of {}", self.topic, marks.topics.len()));
        }
        let (count, items_max) = (self.partitions.len(), marks.settings.items_max);
        let declared =
            if marks.settings.labels == LABELS_MAX { u32::MAX } else { (1 << marks.settings.labels) - 1 };
        for row in 0..self.items.len() {
            let (request, item) = (self.request_index[row], self.items[row]);
            if !usize::try_from(request).is_ok_and(|request| request < count) {
                return refuse(format!("row {row} refers to request {request} of {count}"));
            }
            if !u32::try_from(item).is_ok_and(|item| item < items_max) {
                return refuse(format!(
                    "row {row} has item index {item}; a record has at most {items_max} items"
                ));
            }
            let (settles, labels) = (self.settles[row], self.labels[row]);
            if settles & !declared != 0 || labels & !settles != 0 {
                return refuse(format!(
                    "row {row} settles {settles:#b} as {labels:#b}, not within labels {declared:#b}"
                ));
            }
        }
        let bad = (0..count).find(|&at| self.offsets[at] < 0 || !is_time(self.times[at]));
        match bad {
            Some(at) => {
                refuse(format!("request {at} has offset {} and time {}", self.offsets[at], self.times[at]))
            }
            None => Ok(()),
        }
    }
}

impl Marks {
    /// Makes empty marks.
    ///
    /// # Errors
    /// If the number of labels or of items is out of range.
    pub fn new(settings: MarksSettings) -> Result<Self> {
        if !(1..=LABELS_MAX).contains(&settings.labels) || !(1..=1 << 24).contains(&settings.items_max) {
            let MarksSettings { labels, items_max, .. } = settings;
            return refuse(format!(
                "{labels} labels and {items_max} items a record; marks take 1 to {LABELS_MAX} labels and 1 to 2^24 items"
            ));
        }
        Ok(Self {
            width: Width::of(settings.labels),
            settings,
            topics: Vec::new(),
            horizon: i64::MIN,
            by_key: BTreeMap::new(),
            pages: Vec::new(),
            free: Vec::new(),
            inflight: VecDeque::new(),
            numbers_inflight: VecDeque::new(),
            undos: 0,
            pages_bytes: 0,
            save: 1,
            newest_step: 0,
            places: Vec::new(),
            counters: MarksCounters::default(),
        })
    }

    /// The number of a topic, assigned on first use.
    ///
    /// # Errors
    /// If too many topics are known.
    pub fn topic(&mut self, id: &str) -> Result<u16> {
        let number = self.topics.iter().position(|known| known == id).unwrap_or(self.topics.len());
        if number > usize::from(u16::MAX) {
            return refuse(format!("cannot add a topic: {} topics are known already", self.topics.len()));
        }
        if number == self.topics.len() {
            self.topics.push(id.to_owned());
        }
        Ok(number as u16)
    }

    /// Decides which labels of the rows a step learns, and marks them as in flight.
    ///
    /// # Errors
    /// If the columns contradict each other, if the step is older than the newest one, or if the memory bound
    /// would be exceeded. Nothing is marked then.
    pub fn settle(&mut self, step: u64, rows: &Settling<'_>) -> Result<Settled> {
        self.locate(step, rows)?;
        let count = rows.items.len();
        let [learn, correct, positive] = std::array::from_fn(|_| vec![0; count]);
        let before = vec![0.0; rows.numbers.len()];
        let mut settled = Settled { learn, correct, old: vec![0; count], positive, before };
        let places = std::mem::take(&mut self.places);
        for (row, &(page, record)) in places.iter().enumerate() {
            let time = rows.times[rows.request_index[row] as usize];
            self.counters.rows += 1;
            if time < self.horizon {
                settled.old[row] = 1;
                self.counters.rows_old += 1;
                continue;
            }
            let before = self.page(page).get(usize::from(record), rows.items[row] as u32);
            let kept = self.settings.numbers;
            let (learn, correct, after) = decide(before, rows.settles[row] & !kept, rows.labels[row] & !kept);
            let numbers = self.settle_numbers((page, record), rows, row, &mut settled.before);
            let learn = learn | spread(numbers.learn);
            let correct = correct | spread(numbers.correct);
            let after = after & !(spread(numbers.learn | numbers.correct) * 3) | numbers.marks;
            settled.learn[row] = gather(learn);
            settled.correct[row] = gather(correct);
            settled.positive[row] = gather(after >> 1 & !after);
            let (learns, corrects) = (learn.count_ones(), correct.count_ones());
            self.counters.learn += u64::from(learns);
            self.counters.correct += u64::from(corrects);
            self.counters.labels_dropped += u64::from(rows.settles[row].count_ones() - learns - corrects);
            self.counters.rows_dropped += u64::from(learns + corrects == 0);
            self.mark((page, record, rows.items[row] as u32), (before, after), time);
        }
        self.places = places;
        Ok(settled)
    }

    /// Marks the labels that the rows settle as refused, whatever their marks were: they are never learned
    /// again.
    ///
    /// # Errors
    /// As for `settle`.
    pub fn refuse(&mut self, step: u64, rows: &Settling<'_>) -> Result<()> {
        self.locate(step, rows)?;
        let places = std::mem::take(&mut self.places);
        for (row, &(page, record)) in places.iter().enumerate() {
            let time = rows.times[rows.request_index[row] as usize];
            if time >= self.horizon {
                let item = rows.items[row] as u32;
                let before = self.page(page).get(usize::from(record), item);
                let refused = spread(rows.settles[row]) * 3;
                self.counters.refused +=
                    u64::from((refused & !before & LOWER | refused & !before >> 1 & LOWER).count_ones());
                self.mark((page, record, item), (before, before | refused), time);
            }
        }
        self.places = places;
        Ok(())
    }

    pub(crate) fn page(&self, number: u32) -> &Page {
        self.pages[number as usize].as_ref().expect("the page exists")
    }

    pub(crate) fn page_mut(&mut self, number: u32) -> &mut Page {
        self.pages[number as usize].as_mut().expect("the page exists")
    }

    /// Changes the marks of an item in a page and record.
    fn mark(&mut self, place: (u32, u16, u32), (before, after): (u64, u64), time: i64) {
        let (number, record, item) = place;
        let page = self.page_mut(number);
        if after == before {
            return;
        }
        let undo = Undo { page: number, record, item, before, time_max: page.time_max };
        page.time_max = page.time_max.max(time);
        page.set(usize::from(record), item, after);
        page.inflight += 1;
        self.undos += 1;
        let undos = &mut self.inflight.back_mut().expect("the current step").1;
        undos.push(undo);
    }

    /// Finds the page and record of every row and makes room for its marks. Entries of old rows have no
    /// meaning.
    fn locate(&mut self, step: u64, rows: &Settling<'_>) -> Result<()> {
        rows.check(self)?;
        if step < self.newest_step {
            return refuse(format!("step {step} after step {}", self.newest_step));
        }
        let numbers = rows.items.len() as u64 * u64::from(self.settings.numbers.count_ones());
        self.claim(numbers * NUMBER_BYTES)?;
        self.places.clear();
        let mut last_page: Option<(PageKey, u32)> = None;
        for row in 0..rows.items.len() {
            let request = rows.request_index[row] as usize;
            if rows.times[request] < self.horizon {
                self.places.push((u32::MAX, 0));
                continue;
            }
            let offset = rows.offsets[request];
            let key = (rows.topic, rows.partitions[request], offset / OFFSETS);
            let number = match last_page.filter(|(known, _)| *known == key) {
                Some((_, number)) => number,
                None => self.number(key)?,
            };
            last_page = Some((key, number));
            let record = (offset % OFFSETS) as u16;
            // A request's rows are adjacent, so the first one makes room for all of them.
            if row == 0 || rows.request_index[row - 1] != rows.request_index[row] {
                let same =
                    (row..rows.items.len()).take_while(|&at| rows.request_index[at] as usize == request);
                let item_max = same.map(|at| rows.items[at]).max().unwrap_or(0);
                self.make_room(number, usize::from(record), item_max as u32)?;
            }
            self.places.push((number, record));
        }
        self.newest_step = step;
        if self.inflight.back().is_none_or(|(newest, _)| *newest != step) {
            self.inflight.push_back((step, Vec::new()));
            self.numbers_inflight.push_back((step, Vec::new()));
        }
        Ok(())
    }

    pub(crate) fn claim(&mut self, wanted: u64) -> Result<()> {
        let (held, max) = (self.bytes(), self.settings.bytes_max);
        if held + wanted > max {
            self.counters.refusals += 1;
            return Err(Error::Full { held, wanted, max });
        }
        Ok(())
    }

    fn number(&mut self, key: PageKey) -> Result<u32> {
        if let Some(&number) = self.by_key.get(&key) {
            return Ok(number);
        }
        let page = Page::new(self.width);
        self.claim(page.bytes())?;
        Ok(self.put_page(key, page))
    }

    pub(crate) fn put_page(&mut self, key: PageKey, page: Page) -> u32 {
        self.pages_bytes += page.bytes();
        let number = self.free.pop().unwrap_or(self.pages.len() as u32);
        if number as usize == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[number as usize] = Some(page);
        self.by_key.insert(key, number);
        number
    }

    pub(crate) fn drop_page(&mut self, key: PageKey) {
        let number = self.by_key.remove(&key);
        if let Some(page) = number.and_then(|number| self.pages[number as usize].take()) {
            self.pages_bytes -= page.bytes();
            self.free.extend(number);
        }
    }

    fn make_room(&mut self, number: u32, record: usize, item: u32) -> Result<()> {
        let page = self.page(number);
        let wanted = page.wants(record, item);
        if wanted == 0 {
            return Ok(());
        }
        if !page.has_places(wanted) {
            let max = u64::from(u32::MAX);
            return Err(Error::Full { held: page.bytes(), wanted: wanted as u64, max });
        }
        self.claim(wanted as u64)?;
        let page = self.page_mut(number);
        let before = page.bytes();
        page.reserve(record, item);
        let after = page.bytes();
        self.pages_bytes = self.pages_bytes - before + after;
        Ok(())
    }

    /// Marks all steps up to `step` as learned.
    pub fn acknowledge(&mut self, step: u64) {
        while let Some((oldest, _)) = self.inflight.front() {
            if *oldest > step {
                break;
            }
            let (_, undos) = self.inflight.pop_front().expect("the oldest step");
            self.undos -= undos.len();
            let save = self.save;
            let (_, numbers) = self.numbers_inflight.pop_front().expect("as many steps");
            self.undos -= numbers.len();
            let pages = undos.iter().map(|undo| undo.page).chain(numbers.iter().map(|undo| undo.page));
            for page in pages {
                let page = self.page_mut(page);
                page.inflight -= 1;
                page.changed = save;
            }
        }
    }

    /// Drops the pages whose rows are all older than the horizon; older rows are ignored from now on.
    pub fn forget(&mut self, horizon_ms: i64) {
        self.horizon = self.horizon.max(horizon_ms);
        let is_old = |number: &u32| {
            self.pages[*number as usize]
                .as_ref()
                .is_some_and(|page| page.time_max < self.horizon && page.inflight == 0)
        };
        let keys: Vec<PageKey> =
            self.by_key.iter().filter(|(_, number)| is_old(number)).map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.drop_page(key));
    }

    /// The same marks for other labels: label `n` has the marks and numbers of label `sources[n]`, or none.
    ///
    /// # Errors
    /// If marks are in flight, a source is not a label, or the memory bound would be exceeded.
    pub fn relabelled(&self, sources: &[Option<usize>], numbers: u32) -> Result<Self> {
        let held = self.settings.labels;
        if self.undos > 0 || sources.iter().flatten().any(|&source| source >= held) {
            return refuse(format!("{sources:?} of {held} labels, with {} marks in flight", self.undos));
        }
        let mut marks = Self::new(MarksSettings { labels: sources.len(), numbers, ..self.settings })?;
        (marks.topics, marks.horizon) = (self.topics.clone(), self.horizon);
        for (&key, &number) in &self.by_key {
            let mut page = self.page(number).relabelled(marks.width, sources);
            page.numbers.retain(|place, _| numbers >> place.label & 1 == 1);
            marks.claim(page.bytes())?;
            marks.put_page(key, page);
        }
        Ok(marks)
    }

    /// The horizon, before which rows are ignored; None if there is none.
    pub fn horizon_ms(&self) -> Option<i64> {
        (self.horizon > i64::MIN).then_some(self.horizon)
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.by_key.len()
    }

    /// The number of marks that are not learned yet.
    pub fn inflight(&self) -> usize {
        self.undos
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        let undos = self.undos * size_of::<Undo>().max(size_of::<NumberUndo>());
        self.pages_bytes + undos as u64 + (self.by_key.len() * size_of::<(PageKey, u32)>()) as u64
    }

    /// The counters.
    pub fn counters(&self) -> MarksCounters {
        self.counters
    }

    /// The settings.
    pub fn settings(&self) -> MarksSettings {
        self.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_spread_and_gathered() {
        for labels in [0, 1, 0b101, 0x8000_0001, u32::MAX, 0x1234_5678] {
            assert_eq!(gather(spread(labels)), labels);
            assert_eq!(spread(labels) & !LOWER, 0);
        }
    }

    #[test]
    fn what_is_learned_follows_the_order_of_marks() {
        // (mark, positive) -> (learn, correct, mark); marks: 0 none, 1 negative, 2 positive, 3 refused.
        for (mark, positive, learn, correct, after) in [
            (0, 0, 1, 0, 1),
            (0, 1, 1, 0, 2),
            (1, 0, 0, 0, 1),
            (1, 1, 0, 1, 2),
            (2, 0, 0, 0, 2),
            (2, 1, 0, 0, 2),
            (3, 0, 0, 0, 3),
            (3, 1, 0, 0, 3),
        ] {
            assert_eq!(decide(mark, 1, positive), (learn, correct, after), "{mark} {positive}");
            assert_eq!(
                decide(mark << 62, 1 << 31, positive << 31),
                (learn << 62, correct << 62, after << 62)
            );
            assert_eq!(decide(mark, 0, 0), (0, 0, mark));
        }
    }
}
