//! Inputs: the columns that a model reads of a user and of a candidate, and the limits of a request.

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
    /// The limits of a request.
    pub limits: Limits,
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
