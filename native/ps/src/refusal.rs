//! A refusal: a shard's negative reply. The codes are complete; the texts are for people.

use std::fmt;

use streamlearn_table::TableError;

/// The maximum length of a text in bytes; longer texts are cut.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The maximum length of a detail in bytes; longer details are dropped.
pub const DETAIL_BYTES_MAX: usize = 64 << 10;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal;)*) => {
        /// Why a request was refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// All codes, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the code with a number, if it is known.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The code's name in metrics and texts.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

codes! {
    /// The bytes are not a valid frame; the connection is closed.
    BadFrame = 1, "bad_frame";
    /// The frame's content is invalid for its kind.
    BadRequest = 2, "bad_request";
    /// The token is wrong; the connection is closed.
    Unauthorized = 3, "unauthorized";
    /// The protocol version differs.
    WrongProtocol = 4, "wrong_protocol";
    /// The client expects another model.
    WrongModel = 5, "wrong_model";
    /// The client expects other tables.
    WrongTables = 6, "wrong_tables";
    /// A key belongs to another shard's parts.
    WrongPart = 7, "wrong_part";
    /// The epoch is not the shard's.
    StaleEpoch = 8, "stale_epoch";
    /// The shard has no tables yet.
    NotReady = 9, "not_ready";
    /// The shard is busy; try again later.
    Busy = 10, "busy";
    /// The tables are full.
    Full = 11, "full";
    /// The version is not retained.
    VersionRefused = 12, "version_refused";
    /// More bytes than a limit allows; the connection is closed.
    TooLarge = 13, "too_large";
    /// More connections, clients or sequences than a limit allows.
    TooMany = 14, "too_many";
    /// An internal error of the shard.
    Internal = 15, "internal";
    /// A read-only client requested a change.
    ReadsOnly = 16, "reads_only";
    /// Two slices of a step began at different weights.
    WeightsDiffer = 17, "weights_differ";
}

/// A negative reply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The reason.
    pub code: Code,
    /// The description, with values.
    pub text: String,
    /// Data that helps the client find the cause; most refusals have none.
    pub detail: Vec<u8>,
}

impl Refusal {
    /// Creates a refusal; texts over 1 KiB are cut.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
        }
        Self { code, text, detail: Vec::new() }
    }

    /// Adds a detail, unless it is too long to send.
    pub fn with_detail(mut self, detail: Vec<u8>) -> Self {
        if detail.len() <= DETAIL_BYTES_MAX {
            self.detail = detail;
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.word(), self.text)
    }
}

impl From<TableError> for Refusal {
    fn from(error: TableError) -> Self {
        let code = match &error {
            TableError::Memory(_) | TableError::Full { .. } => Code::Full,
            TableError::Version(_) => Code::VersionRefused,
            TableError::Busy(_) => Code::Busy,
            TableError::Twice { .. } | TableError::Argument(_) => Code::BadRequest,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back_from_its_number_and_has_its_own_word() {
        let mut words: Vec<&str> = Code::ALL.iter().map(|code| code.word()).collect();
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code as u16), Some(code));
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!((words.len(), Code::from_number(0), Code::from_number(18)), (17, None, None));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let refusal = Refusal::new(Code::Internal, "é".repeat(600) + "x");
        assert_eq!(refusal.text, "é".repeat(512));
        assert_eq!(Refusal::new(Code::Internal, "x".to_owned() + &"é".repeat(600)).text.len(), 1023);
    }

    #[test]
    fn a_detail_is_whole_or_not_there() {
        let detail = |bytes| Refusal::new(Code::WrongTables, "").with_detail(vec![1; bytes]).detail.len();
        assert_eq!((detail(DETAIL_BYTES_MAX), detail(DETAIL_BYTES_MAX + 1)), (DETAIL_BYTES_MAX, 0));
    }
}
