//! History: the newest interactions of some kinds, oldest first, each once.

/// The newest interactions, as columns. Those of one time are in the order of their identities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct History {
    pub times: Vec<i64>,
    pub identities: Vec<u64>,
    /// The keys of each interaction, `width` of them.
    pub keys: Vec<u64>,
}

impl History {
    /// Adds an interaction and keeps the newest `length`.
    pub fn add(
        &mut self,
        (time, identity): (i64, u64),
        keys: impl Iterator<Item = u64>,
        length: usize,
        width: usize,
    ) {
        // Most interactions are newer than all others.
        let mut at = self.times.len();
        while at > 0 && (self.times[at - 1], self.identities[at - 1]) > (time, identity) {
            at -= 1;
        }
        let is_known = at > 0 && (self.times[at - 1], self.identities[at - 1]) == (time, identity);
        let is_full = self.times.len() == length;
        if is_known || (is_full && at == 0) {
            return;
        }
        if is_full {
            self.times.remove(0);
            self.identities.remove(0);
            self.keys.drain(..width);
            at -= 1;
        }
        self.times.insert(at, time);
        self.identities.insert(at, identity);
        self.keys.splice(at * width..at * width, keys);
    }

    /// The number of interactions up to a time.
    pub fn until(&self, now: i64) -> usize {
        self.times.partition_point(|&time| time <= now)
    }
}
