//! Inputs: the columns that a model reads of a user and of a candidate, and the limits of a request.

use crate::request::Values;

/// The columns of both sides, as the features declare them, and a request's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Columns of the user.
    pub user: Vec<Input>,
    /// Columns of a candidate.
    pub item: Vec<Input>,
    /// The predicted labels, in the order of an answer's columns.
    pub labels: Vec<Label>,
    /// The names of the segments that a request may have, by which figures are split.
    pub segments: Vec<String>,
    /// The segment whose values are the classes of requests; empty without classes.
    pub class_segment: String,
    /// How requests for items are read; `None` for a model that scores candidates.
    pub items: Option<ItemInputs>,
    /// What the library of items has, which requests may leave out; `None` without one.
    pub library: Option<LibraryInputs>,
    /// The limits of a request.
    pub limits: Limits,
}

/// The columns of candidates that the library of items has, and how items are ranked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryInputs {
    /// The column that names an item, among those of candidates.
    pub id: usize,
    /// The columns that the library has, among those of candidates, in the order in which it has them.
    pub columns: Vec<usize>,
    /// The maximum number of items that are retrieved.
    pub k_max: usize,
    /// The label by which items are ranked if a request names none.
    pub label: usize,
}

/// How requests for items are read: the form of ids, and the bounds of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemInputs {
    /// The seed of the items' keys.
    pub salt: u64,
    /// Whether the ids of items are texts; otherwise they are integers.
    pub is_text: bool,
    /// The maximum number of items in an answer.
    pub k_max: usize,
    /// The label by which they are ranked by default, if they are ranked.
    pub rank_by: Option<usize>,
}

/// A predicted label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Whether a model predicts its number; of any other label it predicts the logit.
    pub is_number: bool,
}

impl Label {
    /// Turns a prediction into the answer: a number stays as it is, a logit becomes a probability.
    pub fn score(&self, predicted: f32) -> f32 {
        if self.is_number { predicted } else { 1.0 / (1.0 + (-predicted).exp()) }
    }
}

impl From<&str> for Label {
    /// A label that is positive or negative.
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), is_number: false }
    }
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The field's name in events.
    pub name: String,
    /// The kind of its values.
    pub kind: Kind,
    /// Its former name, which callers may still use.
    pub was: Option<String>,
    /// Whether the node computes it for requests that lack it.
    pub is_computed: bool,
}

impl Input {
    /// Whether an example may lack it.
    pub fn is_optional(&self) -> bool {
        match self.kind {
            Kind::Slot { values: Count::One, default, .. } => default.is_some(),
            Kind::Slot { .. } => true,
            Kind::Dense { default, .. } => default.is_some(),
        }
    }

    /// The column of examples that lack it, with zeros where it has no default.
    ///
    /// # Errors
    /// If it has too many values.
    pub fn blank(&self, rows: usize, values_max: usize) -> Result<Values, String> {
        Ok(match self.kind {
            Kind::Slot { values: Count::One, default, .. } => {
                Values::Keys(vec![default.unwrap_or_default(); rows])
            }
            Kind::Slot { values, .. } => Values::Lists {
                keys: Vec::new(),
                offsets: vec![0; rows + 1],
                weights: (values == Count::Weighted).then(Vec::new),
            },
            Kind::Dense { width, default } => {
                let count = rows.checked_mul(width).filter(|&count| count <= values_max);
                let count = count.ok_or_else(|| {
                    format!("its defaults for {rows} candidates exceed {values_max} values")
                })?;
                Values::Numbers(vec![f32::from_bits(default.unwrap_or_default()); count])
            }
        })
    }
}

/// The kind of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Values of a slot.
    Slot {
        /// The seed of its keys.
        salt: u64,
        /// Whether values are texts; otherwise they are integers.
        is_text: bool,
        /// The number of values in an example.
        values: Count,
        /// The key of an example without a value, if the slot has a default.
        default: Option<u64>,
    },
    /// A fixed number of plain numbers for each example.
    Dense {
        /// The number of numbers.
        width: usize,
        /// The bits of the default, used for each number, if there is one.
        default: Option<u32>,
    },
}

/// The number of values in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// One.
    One,
    /// Any number.
    Many,
    /// Any number, each with a weight.
    Weighted,
    /// Any number; the given number of newest values is kept, oldest first.
    Newest(usize),
}

/// The limits of a request; checked before memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Candidates in a request.
    pub candidates_max: usize,
    /// Values of a column over all examples.
    pub values_max: usize,
    /// Bytes of a message.
    pub message_bytes_max: usize,
}
