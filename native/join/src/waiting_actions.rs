//! Actions that wait for the impression of their request.

use crate::hash::place_salt;
use crate::index::{At, Index};
use crate::outcome::{Done, Stamp};
use crate::output::{Letter, LetterKind};
use crate::shelf::Shelf;
use streamlearn_wire::keys::key_of_bytes;

/// A waiting action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WaitingAct<'a> {
    pub id: &'a [u8],
    pub item: u64,
    pub done: Done,
    pub partition: i32,
    pub offset: i64,
    pub index: u32,
}

impl WaitingAct<'_> {
    pub fn letter(&self, kind: LetterKind) -> Letter {
        Letter {
            kind,
            code: self.done.code,
            groups: 0,
            partition: self.partition,
            offset: self.offset,
            index: self.index,
            time: self.done.time,
            item: self.item,
            weight: self.done.weight,
            number: self.done.number,
            id: self.id.into(),
            payload: Box::default(),
        }
    }

    /// Whether it takes precedence over another action of its code on its item.
    fn counts_before(&self, other: &Self) -> bool {
        let origin = |act: &Self| (act.partition, act.offset, act.index);
        self.done.order(&other.done).then_with(|| origin(self).cmp(&origin(other))).is_lt()
    }
}

/// Replaces the id's length of an action that no longer waits.
const GONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Held {
    item: u64,
    stamp: Stamp,
    offset: i64,
    id_begin: u64,
    id_bytes: u32,
    partition: i32,
    index: u32,
    weight: f32,
    number: Option<f32>,
}

#[derive(Debug, Default)]
struct WaitingSlice {
    held: Vec<Held>,
    ids: Vec<u8>,
}

impl WaitingSlice {
    fn bytes(&self) -> u64 {
        (self.held.capacity() * size_of::<Held>() + self.ids.capacity() + size_of::<Self>()) as u64
    }

    fn act(&self, place: u32) -> WaitingAct<'_> {
        let held = &self.held[place as usize];
        WaitingAct {
            id: &self.ids[held.id_begin as usize..][..held.id_bytes as usize],
            item: held.item,
            done: held.stamp.with(held.weight, held.number),
            partition: held.partition,
            offset: held.offset,
            index: held.index,
        }
    }

    /// The places of actions that still wait.
    fn places(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.held.len() as u32).filter(|&place| self.held[place as usize].id_bytes != GONE)
    }
}

/// The result of adding a waiting action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It waits.
    New,
    /// One of its kind was waiting; the one that takes precedence keeps waiting.
    Known,
    /// Too many actions of its request wait.
    Excess,
}

/// All waiting actions, by slices of their own time.
#[derive(Debug)]
pub(crate) struct Waiting {
    shelf: Shelf<WaitingSlice>,
    index: Index,
    slice_ms: i64,
    bytes: u64,
}

impl Waiting {
    pub fn new(slice_ms: i64) -> Self {
        Self { shelf: Shelf::new(), index: Index::new(), slice_ms, bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes + self.index.bytes()
    }

    /// The positions of a request's actions.
    fn of(&self, hash: u64, id: &[u8]) -> Vec<At> {
        let mut positions = Vec::new();
        self.index.each(hash, |at| {
            if self.shelf.get(at.slice).act(at.place).id == id {
                positions.push(at);
            }
        });
        positions
    }

    /// Unless all actions like this one count, only the one that takes precedence waits.
    pub fn wait(&mut self, hash: u64, act: WaitingAct<'_>, waiting_max: u32, counts_all: bool) -> Waits {
        let of_request = self.of(hash, act.id);
        let same = |at: &&At| {
            let held = &self.shelf.get(at.slice).held[at.place as usize];
            let done = held.stamp.with(held.weight, held.number);
            held.item == act.item && done.code == act.done.code && (!counts_all || done.is_copy_of(&act.done))
        };
        if let Some(&at) = of_request.iter().find(same) {
            if act.counts_before(&self.shelf.get(at.slice).act(at.place)) {
                self.take(hash, at);
                self.put(hash, act);
            }
            return Waits::Known;
        }
        if of_request.len() >= waiting_max as usize {
            return Waits::Excess;
        }
        self.put(hash, act);
        Waits::New
    }

    fn put(&mut self, hash: u64, act: WaitingAct<'_>) {
        let at = self.shelf.number(act.done.time.div_euclid(self.slice_ms), |_| WaitingSlice::default());
        let slice = self.shelf.get_mut(at);
        let before = if slice.held.is_empty() { 0 } else { slice.bytes() };
        let (id_begin, id_bytes) = (slice.ids.len() as u64, act.id.len() as u32);
        slice.ids.extend_from_slice(act.id);
        let WaitingAct { item, done, partition, offset, index, .. } = act;
        let (stamp, weight, number) = (done.stamp(), done.weight, done.number);
        slice.held.push(Held { item, stamp, offset, id_begin, id_bytes, partition, index, weight, number });
        let place = slice.held.len() as u32 - 1;
        self.bytes += slice.bytes() - before;
        self.index.insert(hash, At { slice: at, place });
    }

    fn take(&mut self, hash: u64, at: At) {
        self.shelf.get_mut(at.slice).held[at.place as usize].id_bytes = GONE;
        self.index.remove(hash, at);
    }

    /// Takes out the actions of a request for which `wants` returns a position, ordered by time and origin.
    pub fn matched(
        &mut self,
        hash: u64,
        id: &[u8],
        mut wants: impl FnMut(u64) -> Option<usize>,
    ) -> Vec<(usize, Matched)> {
        if self.index.len() == 0 {
            return Vec::new();
        }
        let mut matched = Vec::new();
        for at in self.of(hash, id) {
            let act = self.shelf.get(at.slice).act(at.place);
            if let Some(position) = wants(act.item) {
                let WaitingAct { done, partition, offset, index, item, .. } = act;
                matched.push((position, Matched { done, partition, offset, index, item }));
                self.take(hash, at);
            }
        }
        matched.sort_unstable_by_key(|(position, act)| {
            (act.done.time, act.partition, act.offset, act.index, *position)
        });
        matched
    }

    /// Gives up the actions that waited until the watermark, oldest slice first.
    pub fn expire(&mut self, before: i64, mut orphan: impl FnMut(WaitingAct<'_>)) {
        while let Some((key, number)) = self.shelf.first() {
            if (key + 1).saturating_mul(self.slice_ms) > before {
                break;
            }
            let slice = self.shelf.remove(key).expect("the first slice");
            self.bytes -= slice.bytes();
            for place in slice.places() {
                let act = slice.act(place);
                self.index.remove(key_of_bytes(act.id, place_salt()), At { slice: number, place });
                orphan(act);
            }
        }
    }

    /// The next time at which `expire` has an effect.
    pub fn next(&self) -> Option<i64> {
        self.shelf.first().map(|(key, _)| (key + 1).saturating_mul(self.slice_ms))
    }
}

/// An action whose impression has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matched {
    pub done: Done,
    pub partition: i32,
    pub offset: i64,
    pub index: u32,
    pub item: u64,
}
