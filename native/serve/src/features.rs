//! Computed: the columns of a request that the node computed, as plain values.

pub mod cached_states;
pub mod declared_side;
pub mod reader;
pub mod state_cache;
mod state_redis;
pub mod state_source;

use serde_json::{Map, Value, json};

use crate::inputs::{Input, Inputs};
use crate::request::{Request, Values};

/// Whether a request's user has interactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Interactions of the user, or columns of candidates alone are computed.
    Known,
    /// No interactions.
    Unknown,
    /// The store did not answer: all computed columns have their defaults.
    Unavailable,
}

impl Outcome {
    /// Its name in impressions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Unknown => "unknown",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The columns that a request lacked, and what they were computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct Computed {
    /// Whether the user has interactions.
    pub outcome: Outcome,
    /// The time of evaluation, in milliseconds since 1970.
    pub at_ms: i64,
    /// Names the application and its columns, whose log the positions are of.
    pub states: i64,
    /// The position of the last interaction in the user's columns, if all of them were computed; -1 without any.
    pub user_position: Option<i64>,
    /// Likewise of each candidate; empty if not all columns of candidates were computed.
    pub item_positions: Vec<i64>,
    /// The columns, as `Request::lacks` names them, with plain values instead of keys; none if unavailable.
    pub columns: Vec<(usize, Values)>,
}

impl Computed {
    /// The memory of the columns.
    pub fn bytes(&self) -> usize {
        8 * self.item_positions.len() + self.columns.iter().map(|(_, values)| values.bytes()).sum::<usize>()
    }

    /// Puts the columns into a request that was decoded with plain values.
    pub fn put(&self, request: &mut Request) {
        let users = request.user.len();
        for (column, values) in &self.columns {
            match column.checked_sub(users) {
                None => request.user[*column] = values.clone(),
                Some(at) => request.item[at] = values.clone(),
            }
        }
    }

    /// Returns the fields that an impression has of them.
    pub fn json(&self, inputs: &Inputs, candidates: usize) -> Value {
        let (mut user, mut items) = (Map::new(), vec![Map::new(); candidates]);
        for (column, values) in &self.columns {
            match column.checked_sub(inputs.user.len()) {
                None => {
                    let name = inputs.user[*column].name.clone();
                    user.insert(name, value(&inputs.user[*column], values, 1, 0));
                }
                Some(at) => {
                    for (number, item) in items.iter_mut().enumerate() {
                        let name = inputs.item[at].name.clone();
                        item.insert(name, value(&inputs.item[at], values, candidates, number));
                    }
                }
            }
        }
        for (item, position) in items.iter_mut().zip(&self.item_positions) {
            item.insert("served_position".to_owned(), json!(position));
        }
        json!({
            "served_features": self.outcome.name(),
            "served_at_ms": self.at_ms,
            "served_states": self.states,
            "served_position": self.user_position,
            "user": user,
            "items": items,
        })
    }
}

/// The value of one example, as events carry it. Slots that are computed have whole numbers.
fn value(input: &Input, values: &Values, examples: usize, example: usize) -> Value {
    match values {
        Values::Keys(keys) => json!(keys[example] as i64),
        Values::Lists { keys, offsets, .. } => {
            let range = offsets[example] as usize..offsets[example + 1] as usize;
            keys[range].iter().map(|&key| json!(key as i64)).collect()
        }
        Values::Numbers(numbers) => {
            let width = numbers.len() / examples;
            debug_assert!(width > 0, "{}", input.name);
            match &numbers[example * width..(example + 1) * width] {
                [number] => json!(number),
                numbers => json!(numbers),
            }
        }
    }
}
