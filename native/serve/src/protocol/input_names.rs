//! Naming: the names of a model and its inputs, and the column of each name. Reads no values.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::columns::item_inputs;
use super::outputs::item_answer;
use super::values::keys::{Keys, Texts};
use super::values::tensor::cut;
use crate::inputs::{Count, Input, Inputs, ItemInputs, Kind};

/// The side of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The user.
    User,
    /// A candidate.
    Item,
}

/// The part of a column that an input holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The values.
    Values = 0,
    /// The number of values of each candidate.
    Lengths = 1,
    /// The weights of the values.
    Weights = 2,
}

/// The maximum number of parts of a column.
pub const PARTS: usize = 3;

/// The column and part of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The column's index: the user's columns first, then the candidates', then those of a request for items.
    pub column: usize,
    /// The part.
    pub part: Part,
}

/// The names of a model and its inputs.
#[derive(Debug)]
pub struct Naming {
    model: String,
    inputs: Arc<Inputs>,
    places: HashMap<Box<str>, Place>,
    keys: Keys,
}

impl Naming {
    /// Derives the names of a model's inputs.
    ///
    /// # Errors
    /// If two inputs would have the same name, or a limit exceeds the range of offsets.
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
            for name in [Some(&input.name), input.was.as_ref()].into_iter().flatten() {
                naming.add(name, Place { column, part: Part::Values })?;
                if let Kind::Slot { values, .. } = input.kind {
                    if values != Count::One && column >= inputs.user.len() {
                        naming.add(&format!("{name}.lengths"), Place { column, part: Part::Lengths })?;
                    }
                    if values == Count::Weighted {
                        naming.add(&format!("{name}.weights"), Place { column, part: Part::Weights })?;
                    }
                }
            }
        }
        if let Some(items) = inputs.items {
            for (at, &name) in item_inputs::names(items).iter().enumerate() {
                naming.add(name, Place { column: naming.columns() + at, part: Part::Values })?;
            }
        }
        Ok(naming)
    }

    /// Returns the same names for decoding plain values instead of keys; `defaults` holds the slots' defaults
    /// by name.
    ///
    /// # Errors
    /// If a slot's default is missing or has another type.
    pub fn plain(&self, defaults: &serde_json::Map<String, Value>) -> Result<Self, String> {
        let (mut inputs, mut texts) = (Inputs::clone(&self.inputs), Texts::default());
        for input in inputs.user.iter_mut().chain(&mut inputs.item) {
            let Kind::Slot { is_text, default: Some(key), .. } = &mut input.kind else { continue };
            let value_key = match (defaults.get(&input.name), is_text) {
                (Some(Value::String(text)), true) => Some(texts.keep(text)),
                (Some(Value::Number(value)), false) => value.as_i64().map(|value| value as u64),
                _ => None,
            };
            *key = value_key
                .ok_or_else(|| format!("the default of {:?} is missing or has another type", input.name))?;
        }
        texts.retain();
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

    /// Returns how values become keys.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the column and part of a name.
    pub fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// Whether the library of items has a column.
    pub(super) fn is_in_library(&self, column: usize) -> bool {
        let at = column.wrapping_sub(self.inputs.user.len());
        self.inputs.library.as_ref().is_some_and(|library| library.columns.contains(&at))
    }

    /// Returns the names of requests whose candidates are retrieved, as model MODEL.recommend; `None` without a library.
    ///
    /// # Errors
    /// If an input of the user has the name of another input of such requests.
    pub fn ranking(&self) -> Result<Option<Self>, String> {
        let Some(library) = self.inputs.library.as_ref() else { return Ok(None) };
        let Kind::Slot { salt, is_text, .. } = self.inputs.item[library.id].kind else { return Ok(None) };
        let items = ItemInputs { salt, is_text, k_max: library.k_max, rank_by: Some(library.label) };
        let labels = item_answer::ranked_labels(&self.inputs.labels);
        let inputs = Inputs { item: Vec::new(), items: Some(items), labels, ..Inputs::clone(&self.inputs) };
        Self::new(format!("{}.recommend", self.model), Arc::new(inputs)).map(Some)
    }

    /// Returns the number of names.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of columns.
    pub(super) fn columns(&self) -> usize {
        self.inputs.user.len() + self.inputs.item.len()
    }

    /// Returns a column and its side.
    pub(super) fn input(&self, column: usize) -> (Side, &Input) {
        match column.checked_sub(self.inputs.user.len()) {
            None => (Side::User, &self.inputs.user[column]),
            Some(at) => (Side::Item, &self.inputs.item[at]),
        }
    }

    /// The error for an input that the model does not have.
    pub(super) fn unknown(&self, name: &str) -> String {
        format!("unknown input {:?}; help: {}", cut(name), self.known())
    }

    /// Lists the inputs of both sides, for errors.
    pub(super) fn known(&self) -> String {
        let names = |inputs: &[Input]| {
            let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let user = names(&self.inputs.user);
        match self.inputs.items {
            Some(items) => {
                format!("user inputs are {user}; other inputs are {}", item_inputs::names(items).join(", "))
            }
            None => format!("user inputs are {user}; candidate inputs are {}", names(&self.inputs.item)),
        }
    }
}
