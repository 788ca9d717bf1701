//! Keys: what the values of slots become as they are read: their hashes; or themselves, for whoever writes requests down.

use std::sync::{Mutex, MutexGuard, PoisonError};

use streamlearn_wire::keys::{key_of_bytes, key_of_int};

/// What becomes of values.
#[derive(Debug)]
pub enum Keys {
    /// Their hashes, which rows of tables are found by.
    Hashed,
    /// Themselves: the bits of whole numbers, and where texts are kept.
    Plain(Mutex<Texts>),
}

/// Texts end to end.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    lasting: usize,
}

impl Texts {
    /// Keep a text; gives what it is found by.
    pub fn keep(&mut self, text: &str) -> u64 {
        let at = (self.bytes.len() as u64) << 32;
        self.bytes.extend_from_slice(text.as_bytes());
        // A message and what stands for its defaults are far below what 32 bits count.
        at | text.len() as u64
    }

    /// A text that is kept.
    pub fn get(&self, key: u64) -> &[u8] {
        let (at, length) = ((key >> 32) as usize, key as u32 as usize);
        &self.bytes[at..at + length]
    }

    /// Let what is there now last.
    pub fn last(&mut self) {
        self.lasting = self.bytes.len();
    }

    /// Forget all but what lasts.
    pub fn forget(&mut self) {
        self.bytes.truncate(self.lasting);
    }
}

impl Keys {
    /// What a whole number becomes.
    #[inline]
    pub fn of_int(&self, value: i64, salt: u64) -> u64 {
        match self {
            Self::Hashed => key_of_int(value, salt),
            Self::Plain(_) => value as u64,
        }
    }

    /// What a text becomes.
    #[inline]
    pub fn of_text(&self, text: &str, salt: u64) -> u64 {
        match self {
            Self::Hashed => key_of_bytes(text.as_bytes(), salt),
            Self::Plain(texts) => lock(texts).keep(text),
        }
    }

    /// The texts that are kept; None where values are hashed.
    pub fn texts(&self) -> Option<MutexGuard<'_, Texts>> {
        match self {
            Self::Hashed => None,
            Self::Plain(texts) => Some(lock(texts)),
        }
    }
}

fn lock(texts: &Mutex<Texts>) -> MutexGuard<'_, Texts> {
    texts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_come_back_and_only_what_lasts_is_kept_for_the_next_request() {
        let keys = Keys::Plain(Mutex::default());
        let lasting = keys.of_text("NO", 1);
        keys.texts().unwrap().last();
        let (first, none) = (keys.of_text("Größe", 1), keys.of_text("", 1));
        let texts = keys.texts().unwrap();
        assert_eq!(
            [texts.get(lasting), texts.get(first), texts.get(none)],
            ["NO".as_bytes(), "Größe".as_bytes(), b""]
        );
        drop(texts);
        keys.texts().unwrap().forget();
        assert_eq!(keys.of_text("x", 1), first & !0xffff_ffff | 1);
        assert_eq!(keys.of_int(-7, 1) as i64, -7);
        assert_eq!(Keys::Hashed.of_int(-7, 1), key_of_int(-7, 1));
    }
}
