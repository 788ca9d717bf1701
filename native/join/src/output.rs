//! Output that waits to be taken: due rows, and letters about events that could not be joined.

use std::collections::VecDeque;

use crate::counters::Counters;
use crate::interactions::Interaction;
use crate::slice::Slice;

/// A row that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub slice: u32,
    pub place: u32,
    /// Position of the item in its impression.
    pub position: u32,
    pub settles: u32,
    pub labels: u32,
    pub group: u8,
    /// Whether the payload has to be read back by origin.
    pub reads_back: bool,
    pub settle_time: i64,
}

/// The reason why an event could not be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LetterKind {
    /// An impression after windows; `groups` names them.
    ImpressionLate = 0,
    /// An impression beyond the maximum per request.
    ImpressionExcess = 1,
    /// An action after its windows.
    ActionLate = 2,
    /// An action whose impression never came.
    ActionOrphan = 3,
    /// An action beyond the maximum that make a number of one item.
    ActionExcess = 4,
}

/// An event that could not be joined.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Letter {
    pub kind: LetterKind,
    pub code: u8,
    pub groups: u32,
    pub partition: i32,
    pub offset: i64,
    /// Index in the record; for an impression that of its first item.
    pub index: u32,
    pub time: i64,
    pub item: u64,
    /// Of an action.
    pub weight: f32,
    /// Of an action.
    pub number: Option<f32>,
    pub id: Box<[u8]>,
    pub payload: Box<[u8]>,
}

impl Letter {
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.id.len() + self.payload.len()) as u64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Output {
    pub rows: VecDeque<Row>,
    pub interactions: VecDeque<Interaction>,
    pub letters: VecDeque<Letter>,
    pub letters_bytes: u64,
    pub counters: Counters,
}

impl Output {
    pub fn bytes(&self) -> u64 {
        let interactions = self.interactions.capacity() * size_of::<Interaction>();
        (self.rows.capacity() * size_of::<Row>() + interactions) as u64 + self.letters_bytes
    }

    pub fn push_row(&mut self, row: Row, slice: &mut Slice) {
        self.counters.rows += 1;
        slice.ready += 1;
        slice.ready_payload += u64::from(!row.reads_back);
        self.rows.push_back(row);
    }

    pub fn push_letter(&mut self, letter: Letter) {
        self.letters_bytes += letter.bytes();
        self.letters.push_back(letter);
    }
}
