//! Inputs: which columns a model takes of a user and of a candidate, and how large a request may be.

/// The columns of both sides, as the features declare them, and the limits of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inputs {
    /// Columns of the user.
    pub user: Vec<Input>,
    /// Columns of a candidate.
    pub item: Vec<Input>,
    /// What is predicted, in the order of an answer's columns.
    pub labels: Vec<String>,
    /// What a request may hold.
    pub limits: Limits,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name, as in events.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Values of a slot.
    Slot {
        /// What seeds its keys.
        salt: u64,
        /// Whether values are texts, or whole numbers.
        is_text: bool,
        /// How many values an example has.
        values: Count,
        /// The key of an example that gives no value, where the slot has a default.
        default: Option<u64>,
    },
    /// Plain numbers, so many for each example.
    Dense {
        /// How many.
        width: usize,
        /// What stands in every place where nothing is given.
        default: Option<u32>,
    },
}

/// How many values a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// One.
    One,
    /// Any number.
    Many,
    /// Any number, each with a weight.
    Weighted,
    /// Any number, of which the newest so many are kept, oldest first.
    Newest(usize),
}

/// What a request may hold; checked before memory is taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Candidates of one request.
    pub candidates_max: usize,
    /// Values of one column for all examples.
    pub values_max: usize,
    /// Bytes of one message.
    pub message_bytes_max: usize,
}
