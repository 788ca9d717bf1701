//! States in memory: interactions and evaluations of many entities, one after the other.

use std::collections::HashMap;

use crate::batch::Interactions;
use crate::definition::Definition;
use crate::error::{Error, Result};
use crate::state::{Interaction, State, Values};

/// The kind of a row that is an evaluation and no interaction.
pub const EVALUATION: u8 = u8::MAX;

/// The states of entities, by their keys.
#[derive(Debug, Default)]
pub struct MemoryStates {
    states: HashMap<u64, State>,
    folded: i64,
}

impl MemoryStates {
    /// Folds interactions and evaluates, row by row; `entities` are keys, and those and the positions of `all` are not used.
    ///
    /// # Errors
    /// If columns have different lengths, or a kind is unknown; nothing is folded then.
    pub fn run(
        &mut self,
        definition: &Definition,
        entities: &[u64],
        all: &Interactions<'_>,
    ) -> Result<Values> {
        let (rows, width) = (entities.len(), definition.columns);
        let lengths = [all.times_ms.len(), all.identities.len(), all.kinds.len(), all.values.len()];
        if lengths != [rows; 4] || all.columns.len() != rows * width {
            return Err(Error::Definition(format!("{rows} rows: another column has another length")));
        }
        let is_known = |&kind: &u8| kind == EVALUATION || usize::from(kind) < definition.kinds;
        if let Some(kind) = all.kinds.iter().find(|kind| !is_known(kind)) {
            return Err(Error::Definition(format!("kind {kind}: there are {} kinds", definition.kinds)));
        }
        let (mut values, nothing) = (Values::new(definition), State::new(definition));
        for (row, &key) in entities.iter().enumerate() {
            let (kind, time_ms) = (all.kinds[row], all.times_ms[row]);
            if kind == EVALUATION {
                let state = self.states.get(&key).unwrap_or(&nothing);
                state.evaluate(definition, time_ms, &mut values);
                continue;
            }
            let one = Interaction {
                time_ms,
                identity: all.identities[row],
                position: self.folded,
                kind: kind.into(),
                value: all.values[row],
                columns: &all.columns[row * width..(row + 1) * width],
            };
            self.folded += 1;
            self.states.entry(key).or_insert_with(|| State::new(definition)).fold(definition, &one);
        }
        Ok(values)
    }
}
