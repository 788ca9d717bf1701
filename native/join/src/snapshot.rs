//! Snapshot: a join as bytes, and back. Derived state (the index, scheduled corrections) is not written.

use std::collections::HashMap;

use crate::bytes::{Number, Reader, Writer};
use crate::core::{JoinCore, NEVER};
use crate::error::{Error, Result};
use crate::event_intake::correction;
use crate::hash::place_salt;
use crate::index::At;
use crate::outcome::{Done, is_weight};
use crate::output::{Letter, LetterKind, Row};
use crate::settings::{Settings, is_time};
use crate::slice::{Act, DEAD, NONE, Origin, Slice};
use std::cmp::Reverse;
use streamlearn_wire::keys::key_of_bytes;

const MAGIC: &[u8; 4] = b"SLJC";
const VERSION: u16 = 3;
/// More than any join counts, and far from overflow.
const COUNT_MAX: u64 = 1 << 62;

impl JoinCore {
    /// Writes the complete state.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::new(MAGIC, VERSION);
        out.u64(self.rules.fingerprint);
        out.i64(self.rules.settings.from_ms);
        out.i64(self.watermark);
        let counters: Vec<u64> = self.out.counters.named().into_iter().map(|(_, value)| value).collect();
        out.column(&counters);
        out.u64(self.slices.shelf.len() as u64);
        let mut ordinals = HashMap::new();
        for (ordinal, (key, number)) in self.slices.shelf.from(i64::MIN).enumerate() {
            ordinals.insert(number, ordinal as u32);
            out.i64(key);
            write_slice(self.slices.shelf.get(number), &mut out);
        }
        self.waiting.write(&mut out);
        self.closed.write(&mut out);
        let rows = &self.out.rows;
        let numbers = |of: fn(&Row) -> u32| rows.iter().map(of).collect::<Vec<u32>>();
        out.column(&rows.iter().map(|row| ordinals[&row.slice]).collect::<Vec<u32>>());
        out.column(&numbers(|row| row.place));
        out.column(&numbers(|row| row.position));
        out.column(&numbers(|row| row.settles));
        out.column(&numbers(|row| row.labels));
        out.column(
            &rows
                .iter()
                .map(|row| u16::from(row.group) << 1 | u16::from(row.reads_back))
                .collect::<Vec<u16>>(),
        );
        out.column(&rows.iter().map(|row| row.settle_time).collect::<Vec<i64>>());
        out.u64(self.out.letters.len() as u64);
        for letter in &self.out.letters {
            write_letter(letter, &mut out);
        }
        out.finish()
    }

    /// Restores a join from a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot, or if it belongs to other windows, labels or rates.
    pub fn restore(settings: Settings, bytes: &[u8]) -> Result<Self> {
        let mut join = Self::new(settings)?;
        let mut from = Reader::new(bytes, MAGIC, VERSION)?;
        let (stored, expected) = (from.u64()?, join.rules.fingerprint);
        if stored != expected {
            return broken(format!("the snapshot has settings {stored:016x}, expected {expected:016x}"));
        }
        join.rules.settings.from_ms = from.i64()?;
        join.watermark = from.i64()?;
        if !(NEVER..=-NEVER).contains(&join.watermark) {
            return broken(format!("a watermark of {} ms is out of range", join.watermark));
        }
        let counters: Vec<u64> = from.column()?;
        let own_counters = join.out.counters.values_mut();
        if counters.len() != own_counters.len() {
            return broken(format!("{} counts, expected {}", counters.len(), own_counters.len()));
        }
        if let Some(count) = counters.iter().find(|&&count| count > COUNT_MAX) {
            return broken(format!("a count of {count} is too large"));
        }
        own_counters.into_iter().zip(counters).for_each(|(own_counters, value)| *own_counters = value);
        let mut numbers = Vec::new();
        for _ in 0..from.u64()? {
            let key = from.time()?;
            numbers.push(join.put_slice(key, read_slice(&mut from, key, join.rules.settings.slice_ms)?)?);
        }
        join.waiting.read(&mut from)?;
        join.closed.read(&mut from)?;
        join.read_rows(&mut from, &numbers)?;
        for _ in 0..from.u64()? {
            let letter = read_letter(&mut from)?;
            join.out.push_letter(letter);
        }
        from.finish()?;
        Ok(join)
    }

    fn put_slice(&mut self, key: i64, slice: Slice) -> Result<u32> {
        if self.slices.shelf.find(key).is_some() {
            return broken(format!("two slices of {} ms", slice.start_ms));
        }
        let end = slice.start_ms + self.rules.settings.slice_ms - 1;
        if end >= self.watermark {
            self.slices.filling.insert(key);
        }
        if end + self.rules.window_min >= self.watermark || !slice.payload.is_empty() {
            self.slices.with_payload.insert(key);
        }
        self.slices.bytes += slice.bytes();
        self.slices.pending += slice.len();
        let number = self.slices.shelf.number(key, || slice);
        let slice = self.slices.shelf.get(number);
        for place in 0..slice.len() as u32 {
            let at = At { slice: number, place };
            self.index.insert(key_of_bytes(slice.id(place), place_salt()), at);
            let shown = slice.time(place);
            for (position, item) in slice.items_at(place).enumerate() {
                for act in slice.acts_of(item) {
                    for (group, windows) in self.rules.groups() {
                        let times = shown + windows.wait_ms + 1..=shown + windows.window_ms;
                        let is_labelled = self.rules.labels(group, act.code) != 0;
                        if is_labelled && times.contains(&act.time) && self.watermark <= act.time {
                            let scheduled = correction(slice, at, (group, position, act.code), act.time);
                            self.corrections.push(Reverse(scheduled));
                        }
                    }
                }
            }
        }
        Ok(number)
    }

    fn read_rows(&mut self, from: &mut Reader<'_>, numbers: &[u32]) -> Result<()> {
        let columns: [Vec<u32>; 5] =
            [from.column()?, from.column()?, from.column()?, from.column()?, from.column()?];
        let (kinds, times): (Vec<u16>, Vec<i64>) = (from.column()?, from.column()?);
        let rows = times.len();
        if columns.iter().any(|column| column.len() != rows) || kinds.len() != rows {
            return broken(format!("columns of {rows} rows have other lengths"));
        }
        let rows_emitted = self.out.counters.rows;
        for row in 0..rows {
            let [ordinal, place, position, settles, labels] = columns.each_ref().map(|column| column[row]);
            let number = numbers.get(ordinal as usize).copied();
            let slice = number.map(|number| self.slices.shelf.get(number));
            let exists = slice.is_some_and(|slice| {
                (place as usize) < slice.len() && (position as usize) < slice.items_at(place).len()
            });
            let Some(number) = number.filter(|_| exists) else {
                return broken(format!(
                    "a row refers to item {position} of impression {place} of slice {ordinal}, which does not exist"
                ));
            };
            let (group, reads_back) = ((kinds[row] >> 1) as u8, kinds[row] & 1 == 1);
            let of_group = self.rules.of_group.get(usize::from(group)).copied().unwrap_or(0);
            if settles & !of_group != 0 || labels & !settles != 0 {
                return broken(format!("a row of group {group} settles {settles:#b} as {labels:#b}"));
            }
            let settle_time = times[row];
            let row = Row { slice: number, place, position, settles, labels, group, reads_back, settle_time };
            self.out.push_row(row, self.slices.shelf.get_mut(number));
        }
        self.out.counters.rows = rows_emitted;
        Ok(())
    }
}

fn broken<T>(text: String) -> Result<T> {
    Err(Error::Bytes(text))
}

fn write_slice(slice: &Slice, out: &mut Writer) {
    let origins = &slice.origins;
    out.column(&slice.times);
    out.column(&slice.id_ends);
    out.bytes(&slice.ids);
    out.column(&origins.iter().map(|origin| origin.partition).collect::<Vec<i32>>());
    out.column(&origins.iter().map(|origin| origin.offset).collect::<Vec<i64>>());
    out.column(&origins.iter().map(|origin| origin.first_item).collect::<Vec<u32>>());
    out.column(&slice.item_ends);
    out.column(&slice.items);
    out.column(&slice.heads);
    out.column(&slice.acts.iter().map(|act| act.stamp.time()).collect::<Vec<i64>>());
    out.column(&slice.acts.iter().map(|act| act.next).collect::<Vec<u32>>());
    out.column(&slice.acts.iter().map(|act| act.stamp.code()).collect::<Vec<u8>>());
    out.column(&slice.acts.iter().map(|act| act.weight).collect::<Vec<f32>>());
    out.column(&slice.payload_ends);
    out.bytes(&slice.payload);
}

fn read_slice(from: &mut Reader<'_>, key: i64, slice_ms: i64) -> Result<Slice> {
    let Some(start_ms) = key.checked_mul(slice_ms).filter(|start| (NEVER + 1..-NEVER).contains(start)) else {
        return broken(format!("slice {key} of {slice_ms} ms is out of range"));
    };
    let mut slice = Slice { start_ms, times: from.column()?, ..Slice::default() };
    slice.id_ends = from.column()?;
    slice.ids = from.column()?;
    let (partitions, offsets): (Vec<i32>, Vec<i64>) = (from.column()?, from.column()?);
    let firsts: Vec<u32> = from.column()?;
    slice.item_ends = from.column()?;
    slice.items = from.column()?;
    slice.heads = from.column()?;
    let (times, nexts): (Vec<i64>, Vec<u32>) = (from.column()?, from.column()?);
    let (codes, weights): (Vec<u8>, Vec<f32>) = (from.column()?, from.column()?);
    slice.payload_ends = from.column()?;
    slice.payload = from.bytes()?.to_vec();
    let rows = slice.len();
    let lengths = [slice.id_ends.len(), partitions.len(), offsets.len(), firsts.len(), slice.item_ends.len()];
    let acts = [nexts.len(), codes.len(), weights.len()];
    let ends = ends_at(&slice.id_ends, slice.ids.len()) && ends_at(&slice.item_ends, slice.items.len());
    let payload = slice.payload_ends.len() <= rows && ends_at(&slice.payload_ends, slice.payload.len());
    // Actions link to older ones, so every chain of valid links ends.
    let linked = |(act, &next): (usize, &u32)| next == NONE || (next as usize) < act;
    let heads = slice.heads.iter().all(|&head| head == NONE || head == DEAD || (head as usize) < times.len());
    // Index of items in their record must not overflow.
    let places = firsts.iter().all(|first| first.checked_add(slice.items.len() as u32).is_some());
    let consistent = lengths == [rows; 5]
        && places
        && acts == [times.len(); 3]
        && times.iter().all(|&time| is_time(time))
        && weights.iter().all(|&weight| is_weight(weight))
        && slice.heads.len() == slice.items.len()
        && slice.times.iter().all(|&time| i64::from(time) < slice_ms);
    if !(consistent && ends && payload && heads && nexts.iter().enumerate().all(linked)) {
        return broken(format!("the columns of slice {key} contradict each other"));
    }
    let origins = partitions.iter().zip(offsets).zip(firsts);
    slice.origins =
        origins.map(|((&partition, offset), first_item)| Origin { partition, first_item, offset }).collect();
    let dones = times.iter().zip(codes).zip(&weights);
    let dones = dones.map(|((&time, code), &weight)| Done { code, time, weight });
    let acts = dones.zip(nexts);
    slice.acts = acts.map(|(done, next)| Act { stamp: done.stamp(), next, weight: done.weight }).collect();
    slice.note_bounds();
    Ok(slice)
}

/// Whether ends never decrease and the last equals `length`.
fn ends_at<T: Number + Ord + Into<u64>>(ends: &[T], length: usize) -> bool {
    let last = ends.last().map_or(0, |&last| last.into());
    ends.windows(2).all(|pair| pair[0] <= pair[1]) && last == length as u64
}

fn write_letter(letter: &Letter, out: &mut Writer) {
    for number in
        [letter.kind as u64, u64::from(letter.code), u64::from(letter.groups), u64::from(letter.index)]
    {
        out.u64(number);
    }
    for number in [i64::from(letter.partition), letter.offset, letter.time, letter.item as i64] {
        out.i64(number);
    }
    out.u64(u64::from(letter.weight.to_bits()));
    out.bytes(&letter.id);
    out.bytes(&letter.payload);
}

fn read_letter(from: &mut Reader<'_>) -> Result<Letter> {
    let (number, code, groups, index) =
        (from.u64()?, from.u64()? as u8, from.u64()? as u32, from.u64()? as u32);
    let Some(kind) = u8::try_from(number).ok().and_then(LetterKind::of) else {
        return broken(format!("unknown letter kind {number}"));
    };
    let (partition, offset, time, item) = (from.i64()? as i32, from.i64()?, from.i64()?, from.i64()? as u64);
    let weight = f32::from_bits(from.u64()? as u32);
    let (id, payload) = (from.bytes()?.into(), from.bytes()?.into());
    Ok(Letter { kind, code, groups, partition, offset, index, time, item, weight, id, payload })
}
