//! Naming: what callers call a model and its inputs, and which column each name means. It reads no values.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::values::keys::{Keys, Texts};
use crate::inputs::{Count, Input, Inputs, Kind};

/// Whose column it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The user's.
    User,
    /// A candidate's.
    Item,
}

/// Which part of a column an input holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its values.
    Values = 0,
    /// How many of them each candidate has.
    Lengths = 1,
    /// Their weights.
    Weights = 2,
}

/// Parts a column has at most.
pub const PARTS: usize = 3;

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The column's number: the user's first, then the candidates'.
    pub column: usize,
    /// Which part of it.
    pub part: Part,
}

/// A model's name, and the names of its inputs.
#[derive(Debug)]
pub struct Naming {
    model: String,
    inputs: Arc<Inputs>,
    places: HashMap<Box<str>, Place>,
    keys: Keys,
}

impl Naming {
    /// The names of a model's inputs.
    ///
    /// # Errors
    /// When two inputs would have one name, or limits are beyond what the packed form can count.
    pub fn new(model: impl Into<String>, inputs: Arc<Inputs>) -> Result<Self, String> {
        let limits = inputs.limits;
        if limits.values_max > i32::MAX as usize || limits.candidates_max >= i32::MAX as usize {
            return Err(format!(
                "values_max is {} and candidates_max {}: at most {}",
                limits.values_max,
                limits.candidates_max,
                i32::MAX - 1
            ));
        }
        let mut naming = Self { model: model.into(), places: HashMap::new(), inputs, keys: Keys::Hashed };
        let inputs = naming.inputs.clone();
        for (column, input) in inputs.user.iter().chain(&inputs.item).enumerate() {
            naming.add(&input.name, Place { column, part: Part::Values })?;
            if let Kind::Slot { values, .. } = input.kind {
                if values != Count::One && column >= inputs.user.len() {
                    naming.add(&format!("{}.lengths", input.name), Place { column, part: Part::Lengths })?;
                }
                if values == Count::Weighted {
                    naming.add(&format!("{}.weights", input.name), Place { column, part: Part::Weights })?;
                }
            }
        }
        Ok(naming)
    }

    /// The same names, for whoever wants the values themselves; `defaults` are those of slots, by name.
    ///
    /// # Errors
    /// When a slot has a default that is not among them, or is of another type.
    pub fn plain(&self, defaults: &serde_json::Map<String, Value>) -> Result<Self, String> {
        let (mut inputs, mut texts) = (Inputs::clone(&self.inputs), Texts::default());
        for input in inputs.user.iter_mut().chain(&mut inputs.item) {
            let Kind::Slot { is_text, default: Some(key), .. } = &mut input.kind else { continue };
            let found = match (defaults.get(&input.name), is_text) {
                (Some(Value::String(text)), true) => Some(texts.keep(text)),
                (Some(Value::Number(value)), false) => value.as_i64().map(|value| value as u64),
                _ => None,
            };
            *key = found.ok_or_else(|| format!("the default of {:?} is not known", input.name))?;
        }
        texts.last();
        let keys = Keys::Plain(Mutex::new(texts));
        let (model, places) = (self.model.clone(), self.places.clone());
        Ok(Self { model, inputs: Arc::new(inputs), places, keys })
    }

    fn add(&mut self, name: &str, place: Place) -> Result<(), String> {
        match self.places.insert(name.into(), place) {
            None => Ok(()),
            Some(_) => Err(format!("two inputs of model {:?} are named {name:?}", self.model)),
        }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Its inputs, labels and limits.
    pub fn inputs(&self) -> &Arc<Inputs> {
        &self.inputs
    }

    /// What values become.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What a name means.
    pub fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// How many names there are.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// How many columns there are.
    pub(super) fn columns(&self) -> usize {
        self.inputs.user.len() + self.inputs.item.len()
    }

    /// A column, by its number.
    pub(super) fn input(&self, column: usize) -> (Side, &Input) {
        match column.checked_sub(self.inputs.user.len()) {
            None => (Side::User, &self.inputs.user[column]),
            Some(at) => (Side::Item, &self.inputs.item[at]),
        }
    }

    /// What may be given on both sides, for whoever gave something else.
    pub(super) fn known(&self) -> String {
        let names = |inputs: &[Input]| {
            let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        format!(
            "inputs of the user are {}; of candidates {}",
            names(&self.inputs.user),
            names(&self.inputs.item)
        )
    }
}
