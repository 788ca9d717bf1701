//! A request: a user and the candidates to score, as keys and numbers. Knows no protocol and no table.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use streamlearn_wire::keys::key_of_bytes;

use crate::inputs::Inputs;
use crate::versions::VersionName;

/// The segment that is the arm of an experiment.
pub const ARM: &str = "arm";

const CLASS_SALT: u64 = 2;

/// A decoded, hashed and checked request: every column matches its `Inputs`.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The caller's id, which connects logs and samples.
    pub id: Bytes,
    /// The inputs it was checked against.
    pub inputs: Arc<Inputs>,
    /// The number of candidates, at least one.
    pub candidates: usize,
    /// The user's columns, in the order of `Inputs::user`; one example.
    pub user: Vec<Values>,
    /// The candidates' columns, in the order of `Inputs::item`; one example each.
    pub item: Vec<Values>,
    /// The columns that the node computes and the caller left out: indexes of the user's columns, then the candidates'.
    pub lacks: Vec<usize>,
    /// What the caller left out and the library of a version has, if anything.
    pub left_out: Option<Box<LeftOut>>,
    /// The version that scores it, if it was chosen before; otherwise its wishes choose.
    pub version: Option<VersionName>,
    /// The candidates that will be shown, if the caller names them; otherwise all. Of a request for ranked items, the
    /// places in the answer.
    pub shown: Option<Vec<u32>>,
    /// The caller's expectation of each candidate, best first, if given.
    pub prescores: Option<Vec<f32>>,
    /// Its segments, as `name=value` with commas between; the names are among those of the inputs.
    pub segments: Option<Box<str>>,
    /// The arm of an experiment that it belongs to, if a proxy says so.
    pub arm: Option<Box<str>>,
    /// Which items it asks for, if the model finds items; then it has one candidate without columns.
    pub items: Option<Box<ItemWishes>>,
    /// The caller's options.
    pub wishes: Wishes,
}

/// What a request left out of its candidates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Some of the candidates' columns, and which candidates lack each, ascending; `None` if all do.
    pub columns: Vec<(usize, Option<Vec<u32>>)>,
    /// Whether each candidate lacks nothing, or is in the library; empty before it was filled.
    pub known: Vec<bool>,
}

impl LeftOut {
    /// Whether a value of a column was filled.
    pub fn is_filled(&self, column: usize, candidate: usize) -> bool {
        let lacks = |rows: &Option<Vec<u32>>| {
            rows.as_ref().is_none_or(|rows| rows.binary_search(&(candidate as u32)).is_ok())
        };
        self.known[candidate] && self.columns.iter().any(|(at, rows)| *at == column && lacks(rows))
    }

    /// The number of candidates that lack columns and are not in the library.
    pub fn unknown(&self) -> usize {
        self.known.iter().filter(|is_known| !**is_known).count()
    }
}

/// How the items of a request are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankWishes {
    /// How many are retrieved, of which the best are answered.
    pub candidates: usize,
    /// The label by whose score they are ranked.
    pub by: usize,
}

/// The items that a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemWishes {
    /// Their number, at least one.
    pub k: usize,
    /// Keys that are not among them.
    pub exclude: Vec<u64>,
    /// The only keys that may be among them; all without.
    pub allow: Option<Vec<u64>>,
    /// How they are ranked, if they are.
    pub rank: Option<RankWishes>,
}

impl Request {
    /// A request without options.
    pub fn new(inputs: Arc<Inputs>, candidates: usize, user: Vec<Values>, item: Vec<Values>) -> Self {
        let (id, lacks, left_out, version, shown) = (Bytes::new(), Vec::new(), None, None, None);
        let (prescores, segments, arm, items, wishes) = (None, None, None, None, Wishes::default());
        Self {
            id,
            inputs,
            candidates,
            user,
            item,
            lacks,
            left_out,
            version,
            shown,
            prescores,
            segments,
            arm,
            items,
            wishes,
        }
    }

    /// Returns the value of a segment; the arm of an experiment is the segment of this name. Empty if it has none.
    pub fn segment(&self, name: &str) -> &str {
        let given =
            self.segments.iter().flat_map(|text| text.split(',')).filter_map(|one| one.split_once('='));
        let arm = self.arm.iter().map(|arm| (ARM, &**arm));
        given.chain(arm).find(|one| one.0 == name).map_or("", |one| one.1)
    }

    /// Returns a key of its class, which is the value of the segment for classes; 0 without one.
    pub fn class(&self) -> u64 {
        let name = &self.inputs.class_segment;
        match if name.is_empty() { "" } else { self.segment(name) } {
            "" => 0,
            value => key_of_bytes(value.as_bytes(), CLASS_SALT),
        }
    }
}

/// The version that an arm of an experiment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmVersion {
    /// The active one, never the canary.
    Active,
    /// The canary.
    Canary,
    /// The one of this number.
    Number(u64),
}

/// A caller's options beside the features.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wishes {
    /// The version that must answer; by default the promoted one.
    pub pin: Option<u64>,
    /// The version of its arm, if a proxy says so. If it cannot answer, the active one does, for no arm.
    pub arm_version: Option<ArmVersion>,
    /// The deadline in microseconds from now; by default the node's limit.
    pub deadline_us: Option<u64>,
    /// 0 is served first.
    pub priority: u8,
    /// Assigns the request to canary and shadow shares: equal keys get the same share.
    pub route: Option<u64>,
    /// Whether the answer brings the computed columns.
    pub features: bool,
    /// The value of the answer as a multiple of another's, above 0; by default 1.
    pub value: Option<f32>,
}

impl Wishes {
    /// Shortens the deadline by the time that was spent before the request is admitted.
    pub fn spend(&mut self, spent: Duration) {
        self.deadline_us = self.deadline_us.map(|us| us.saturating_sub(spent.as_micros() as u64).max(1));
    }
}

/// The values of one column for all examples of a side.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Keys of a slot with exactly one value.
    Keys(Vec<u64>),
    /// Keys of a slot with any number of values.
    Lists {
        /// All keys.
        keys: Vec<u64>,
        /// The offset of each example's keys, and the end of the last one's.
        offsets: Vec<i32>,
        /// A weight for each key, where the slot takes weights.
        weights: Option<Vec<f32>>,
    },
    /// Numbers of a dense column, `width` for each example.
    Numbers(Vec<f32>),
}

impl Values {
    /// The memory of the values.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Keys(keys) => 8 * keys.len(),
            Self::Lists { keys, offsets, weights } => {
                8 * keys.len() + 4 * offsets.len() + 4 * weights.as_ref().map_or(0, Vec::len)
            }
            Self::Numbers(numbers) => 4 * numbers.len(),
        }
    }
}
