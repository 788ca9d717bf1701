//! DeclaredSide: the computed columns of one side, and how the values of a feature become those of a column.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, de::Error};
use streamlearn_features::Definition;

use crate::request::Values;

/// The computed columns of one side, as JSON: `{"definition": JSON, "key": COLUMN, "columns": [{"name", "form",
/// "default"}]}`, the columns in the order of the definition's features.
#[derive(Deserialize)]
pub struct DeclaredSide {
    /// The features.
    #[serde(deserialize_with = "definition_of")]
    pub definition: Definition,
    /// The slot whose keys tell entities apart.
    pub key: String,
    /// The columns.
    pub columns: Vec<DeclaredColumn>,
}

/// A computed column.
#[derive(Deserialize)]
pub struct DeclaredColumn {
    /// Its name.
    pub name: String,
    form: ColumnForm,
    /// The value before any interaction, of those that have none then.
    default: f64,
}

/// How the values of a feature become those of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ColumnForm {
    /// A list of whole numbers.
    Last,
    /// Numbers.
    Numbers,
    /// Milliseconds, as seconds.
    Seconds,
    /// Milliseconds, as the number of binary digits of whole seconds.
    Octave,
}

impl DeclaredSide {
    /// Reads `{"user": SIDE, "item": SIDE}`, each optional.
    ///
    /// # Errors
    /// If it is something else.
    pub fn both(description: &str) -> Result<[Option<Self>; 2], String> {
        let mut declared: HashMap<String, Self> =
            serde_json::from_str(description).map_err(|error| error.to_string())?;
        if declared.values().any(|side| side.definition.features().len() != side.columns.len()) {
            return Err("there are more columns than features, or fewer".to_owned());
        }
        Ok(["user", "item"].map(|side| declared.remove(side)))
    }
}

impl DeclaredColumn {
    /// The plain values of all examples.
    pub fn values(&self, numbers: &[f64], keys: Vec<u64>, ends: &[usize]) -> Values {
        match self.form {
            ColumnForm::Last => {
                // Bounded by the limit of values, which fits an offset.
                let offsets = std::iter::once(0).chain(ends.iter().map(|&end| end as i32)).collect();
                Values::Lists { keys, offsets, weights: None }
            }
            ColumnForm::Numbers => Values::Numbers(numbers.iter().map(|&number| number as f32).collect()),
            ColumnForm::Seconds => {
                let seconds = |&ms: &f64| if ms < 0.0 { self.default } else { ms / 1_000.0 };
                Values::Numbers(numbers.iter().map(|ms| seconds(ms) as f32).collect())
            }
            ColumnForm::Octave => {
                let octave = |&ms: &f64| match ms {
                    ms if ms < 0.0 => self.default as i64 as u64,
                    ms => u64::from(u64::BITS - ((ms / 1_000.0) as u64).leading_zeros()),
                };
                Values::Keys(numbers.iter().map(octave).collect())
            }
        }
    }
}

fn definition_of<'de, D: Deserializer<'de>>(from: D) -> Result<Definition, D::Error> {
    Definition::from_json(&String::deserialize(from)?).map_err(D::Error::custom)
}
