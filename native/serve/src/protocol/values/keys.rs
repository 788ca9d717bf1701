//! Keys: how slot values become keys. Either their hashes, or the values themselves for writing requests out.

use std::sync::{Mutex, MutexGuard, PoisonError};

use streamlearn_wire::keys::{key_of_bytes, key_of_int};

/// The conversion of values to keys.
#[derive(Debug)]
pub enum Keys {
    /// Hashes, by which rows of tables are looked up.
    Hashed,
    /// Plain values: the bits of integers, and the positions of stored texts.
    Plain(Mutex<Texts>),
}

/// Concatenated texts.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    retained_bytes: usize,
}

impl Texts {
    /// Stores a text, and returns its key.
    pub fn keep(&mut self, text: &str) -> u64 {
        let at = (self.bytes.len() as u64) << 32;
        self.bytes.extend_from_slice(text.as_bytes());
        // A message with its defaults is far smaller than 4 GiB.
        at | text.len() as u64
    }

    /// Returns the text of a key.
    pub fn get(&self, key: u64) -> &[u8] {
        let (at, length) = ((key >> 32) as usize, key as u32 as usize);
        &self.bytes[at..at + length]
    }

    /// Keeps the current texts across `forget`.
    pub fn retain(&mut self) {
        self.retained_bytes = self.bytes.len();
    }

    /// Removes all texts added after `retain`.
    pub fn forget(&mut self) {
        self.bytes.truncate(self.retained_bytes);
    }
}

impl Keys {
    /// Returns the key of an integer.
    #[inline]
    pub fn of_int(&self, value: i64, salt: u64) -> u64 {
        match self {
            Self::Hashed => key_of_int(value, salt),
            Self::Plain(_) => value as u64,
        }
    }

    /// Returns the key of a text.
    #[inline]
    pub fn of_text(&self, text: &str, salt: u64) -> u64 {
        match self {
            Self::Hashed => key_of_bytes(text.as_bytes(), salt),
            Self::Plain(texts) => lock(texts).keep(text),
        }
    }

    /// Returns the stored texts; `None` if values are hashed.
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
        let retained = keys.of_text("NO", 1);
        keys.texts().unwrap().retain();
        let (first, empty) = (keys.of_text("Größe", 1), keys.of_text("", 1));
        let texts = keys.texts().unwrap();
        assert_eq!(
            [texts.get(retained), texts.get(first), texts.get(empty)],
            ["NO".as_bytes(), "Größe".as_bytes(), b""]
        );
        drop(texts);
        keys.texts().unwrap().forget();
        assert_eq!(keys.of_text("x", 1), first & !0xffff_ffff | 1);
        assert_eq!(keys.of_int(-7, 1) as i64, -7);
        assert_eq!(Keys::Hashed.of_int(-7, 1), key_of_int(-7, 1));
    }
}
