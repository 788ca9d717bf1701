//! A request: one user and the candidates to be scored for them, as keys and numbers. It knows no protocol and no table.

use std::sync::Arc;

use bytes::Bytes;

use crate::inputs::Inputs;

/// What one caller asks, decoded, hashed and checked: every column is as its `Inputs` say.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What the caller names it; logs and samples are tied by it.
    pub id: Bytes,
    /// The inputs it was checked against.
    pub inputs: Arc<Inputs>,
    /// How many candidates it has, at least one.
    pub candidates: usize,
    /// The columns of its user, in the order of `Inputs::user`; one example.
    pub user: Vec<Values>,
    /// The columns of its candidates, in the order of `Inputs::item`; one example for each.
    pub item: Vec<Values>,
    /// Which of its candidates are going to be shown, where the caller says so; all otherwise.
    pub shown: Option<Vec<u32>>,
    /// How it is to be answered.
    pub wishes: Wishes,
}

/// What a caller may say beside the features.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The version that is to answer; the one that is promoted by default.
    pub pin: Option<u64>,
    /// Within how long the caller wants the answer, in microseconds; the node's own limit by default.
    pub deadline_us: Option<u64>,
    /// 0 is served first.
    pub priority: u8,
    /// Which share of canary and shadow traffic it belongs to: requests of one key always to the same.
    pub route: Option<u64>,
}

/// The values of one column for all examples of a side.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Keys of a slot that has one value.
    Keys(Vec<u64>),
    /// Keys of a slot that has any number of values: where each example's begin, and where the last one's end.
    Lists {
        /// All keys.
        keys: Vec<u64>,
        /// Where the keys of each example begin.
        offsets: Vec<i32>,
        /// A weight for each key, where the slot takes weights.
        weights: Option<Vec<f32>>,
    },
    /// Numbers of a dense column, `width` for every example.
    Numbers(Vec<f32>),
}
