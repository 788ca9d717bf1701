//! Shelf: slices of event time by their start, each created on first use and dropped whole.

use std::collections::BTreeMap;

/// Slices, each with a number for its lifetime.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    slices: Vec<Option<T>>,
    free: Vec<u32>,
    by_key: BTreeMap<i64, u32>,
    /// The last slice used: consecutive events often share one.
    last: Option<(i64, u32)>,
}

impl<T> Shelf<T> {
    pub fn new() -> Self {
        Self { slices: Vec::new(), free: Vec::new(), by_key: BTreeMap::new(), last: None }
    }

    /// The slice of a key, created if needed; `make` gets the slice of the key before.
    pub fn number(&mut self, key: i64, make: impl FnOnce(Option<&T>) -> T) -> u32 {
        if let Some((_, number)) = self.last.filter(|&(last, _)| last == key) {
            return number;
        }
        let number = match self.by_key.get(&key) {
            Some(&number) => number,
            None => {
                let number = self.free.pop().unwrap_or(self.slices.len() as u32);
                if number as usize == self.slices.len() {
                    self.slices.push(None);
                }
                let before =
                    self.by_key.get(&(key - 1)).and_then(|&before| self.slices[before as usize].as_ref());
                self.slices[number as usize] = Some(make(before));
                self.by_key.insert(key, number);
                number
            }
        };
        self.last = Some((key, number));
        number
    }

    /// The slice of a key, if it exists.
    pub fn find(&self, key: i64) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    #[inline]
    pub fn get(&self, number: u32) -> &T {
        self.slices[number as usize].as_ref().expect("the slice exists")
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut T {
        self.slices[number as usize].as_mut().expect("the slice exists")
    }

    pub fn first(&self) -> Option<(i64, u32)> {
        self.by_key.first_key_value().map(|(&key, &number)| (key, number))
    }

    /// Keys and numbers from a key on, ascending.
    pub fn from(&self, key: i64) -> impl Iterator<Item = (i64, u32)> + '_ {
        self.by_key.range(key..).map(|(&key, &number)| (key, number))
    }

    pub fn remove(&mut self, key: i64) -> Option<T> {
        let number = self.by_key.remove(&key)?;
        self.last = None;
        self.free.push(number);
        self.slices[number as usize].take()
    }
}
