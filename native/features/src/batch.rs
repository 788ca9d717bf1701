//! Batches: many stored states at once, as columns.

use crate::definition::Definition;
use crate::error::{Error, Result};
use crate::state::{Interaction, State, Values};

/// The outcome of reading stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Read {
    /// They are a state.
    Known = 0,
    /// There were none: nothing is known of the entity.
    Missing = 1,
    /// They are no state.
    Damaged = 2,
    /// They are a state of another definition.
    Other = 3,
}

/// Reads stored states; returns an outcome for each. An unreadable one counts as an entity without interactions.
pub fn read_states(definition: &Definition, stored: &[Option<&[u8]>]) -> (Vec<State>, Vec<Read>) {
    let read = |bytes: &Option<&[u8]>| match bytes.map(|bytes| State::decode(definition, bytes)) {
        Some(Ok(state)) => (state, Read::Known),
        None => (State::new(definition), Read::Missing),
        Some(Err(Error::Other(_))) => (State::new(definition), Read::Other),
        Some(Err(_)) => (State::new(definition), Read::Damaged),
    };
    stored.iter().map(read).unzip()
}

/// Interactions as columns, in the order of their positions.
#[derive(Debug, Clone, Copy)]
pub struct Interactions<'a> {
    /// The place of the entity among the states.
    pub entities: &'a [u32],
    /// Event times.
    pub times_ms: &'a [i64],
    /// As `Interaction::identity`.
    pub identities: &'a [u64],
    /// Positions in the log.
    pub positions: &'a [i64],
    /// Kinds.
    pub kinds: &'a [u8],
    /// Values; NaN for those without.
    pub values: &'a [f32],
    /// The keys of each interaction's columns, one interaction after the other.
    pub columns: &'a [u64],
}

/// Folds interactions into the states of their entities; returns how many were new.
pub fn fold_all(definition: &Definition, states: &mut [State], all: &Interactions<'_>) -> Result<usize> {
    let (rows, width) = (all.entities.len(), definition.columns);
    let lengths =
        [all.times_ms.len(), all.identities.len(), all.positions.len(), all.kinds.len(), all.values.len()];
    let is_whole = lengths == [rows; 5] && all.columns.len() == rows * width;
    if !is_whole || all.entities.iter().any(|&entity| entity as usize >= states.len()) {
        return Err(Error::Definition(format!("{rows} interactions: another column has another length")));
    }
    if let Some(kind) = all.kinds.iter().find(|&&kind| usize::from(kind) >= definition.kinds) {
        return Err(Error::Definition(format!("kind {kind}: there are {} kinds", definition.kinds)));
    }
    let mut folded = 0;
    for row in 0..rows {
        let one = Interaction {
            time_ms: all.times_ms[row],
            identity: all.identities[row],
            position: all.positions[row],
            kind: all.kinds[row].into(),
            value: all.values[row],
            columns: &all.columns[row * width..(row + 1) * width],
        };
        folded += usize::from(states[all.entities[row] as usize].fold(definition, &one));
    }
    Ok(folded)
}

/// The values of states at some times; `entities` names the state of each.
pub fn evaluate_all(
    definition: &Definition,
    states: &[State],
    entities: &[u32],
    now_ms: &[i64],
) -> Result<Values> {
    if entities.len() != now_ms.len() || entities.iter().any(|&entity| entity as usize >= states.len()) {
        return Err(Error::Definition(format!("{} entities at {} times", entities.len(), now_ms.len())));
    }
    let mut values = Values::new(definition);
    for (&entity, &now_ms) in entities.iter().zip(now_ms) {
        states[entity as usize].evaluate(definition, now_ms, &mut values);
    }
    Ok(values)
}
