//! The merge: sums the gradients of repeated keys in the order in which they are given, starting with the first.

use streamlearn_table::{Admit, Member, part_of_hash, prefetch_all};

use crate::message::Columns;

/// How many members ahead gradients are prefetched before they are summed.
const AHEAD: usize = 16;
/// The minimum number of members that are searched for repeats at a time. Blocks hold whole parts, so repeats
/// of a key are always in the same block.
const BLOCK: usize = 256;

/// A hash table from the keys of one block to their numbers; reused for all blocks.
#[derive(Default)]
pub struct Met {
    /// A key's number plus one; 0 marks a free entry.
    numbers: Vec<u32>,
}

impl Met {
    /// Clears the table and makes room for `keys` keys.
    pub fn begin(&mut self, keys: usize) {
        self.numbers.clear();
        self.numbers.resize((2 * keys).next_power_of_two(), 0);
    }

    /// Returns the number of the member's key, after adding it as `number` if it is new. `key_of` returns the
    /// key of a number.
    #[inline(always)]
    pub fn meet(&mut self, member: &Member, number: usize, key_of: impl Fn(usize) -> u64) -> usize {
        let mask = self.numbers.len() - 1;
        let mut at = member.hash as usize & mask;
        loop {
            let entry = self.numbers[at];
            if entry == 0 {
                self.numbers[at] = number as u32 + 1;
                return number;
            }
            if key_of(entry as usize - 1) == member.key {
                return entry as usize - 1;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Returns the end of the first block of whole parts.
pub fn block_end(members: &[Member]) -> usize {
    if members.len() <= BLOCK {
        return members.len();
    }
    let part = part_of_hash(members[BLOCK - 1].hash);
    BLOCK + members[BLOCK..].partition_point(|member| part_of_hash(member.hash) == part)
}

/// Columns in which keys may repeat.
pub trait Addends {
    /// The gradient of the key at a position.
    fn gradient(&self, at: usize) -> &[f32];
    /// How often each key was seen; `None` means once.
    fn counts(&self) -> Option<&[u32]>;
    /// Admission thresholds by runs of the keys.
    fn admit(&self) -> &[Admit];
}

/// Distinct keys of whole parts with their sums; the buffers are reused.
#[derive(Default)]
pub struct Summed {
    pub keys: Vec<u64>,
    pub counts: Vec<u32>,
    /// The threshold of each key's first occurrence; empty if all keys are admitted at once.
    pub thresholds: Vec<u32>,
    pub sums: Vec<f32>,
}

impl Summed {
    /// Adds the addends of whole parts, as a table sums them.
    pub fn add(&mut self, addends: &impl Addends, dim: usize, members: &[Member], met: &mut Met) {
        match dim {
            8 => self.add_of::<8>(addends, dim, members, met),
            16 => self.add_of::<16>(addends, dim, members, met),
            32 => self.add_of::<32>(addends, dim, members, met),
            64 => self.add_of::<64>(addends, dim, members, met),
            _ => self.add_of::<0>(addends, dim, members, met),
        }
    }

    fn add_of<const DIM: usize>(
        &mut self,
        addends: &impl Addends,
        dim: usize,
        members: &[Member],
        met: &mut Met,
    ) {
        let dim = if DIM == 0 { dim } else { DIM };
        let (counts, admit) = (addends.counts(), addends.admit());
        met.begin(members.len());
        let first = self.keys.len();
        for (at, member) in members.iter().enumerate() {
            if let Some(ahead) = members.get(at + AHEAD) {
                prefetch_all(addends.gradient(ahead.at as usize));
            }
            let gradient = &addends.gradient(member.at as usize)[..dim];
            let count = counts.map_or(1, |counts| counts[member.at as usize]);
            let keys = &self.keys;
            let number = first + met.meet(member, keys.len() - first, |number| keys[first + number]);
            if number == self.keys.len() {
                self.keys.push(member.key);
                self.counts.push(count);
                self.sums.extend_from_slice(gradient);
                if !admit.is_empty() {
                    let run = admit.partition_point(|run| run.end <= member.at as usize);
                    self.thresholds.push(admit.get(run).map_or(1, |run| run.threshold.max(1)));
                }
            } else {
                self.counts[number] = self.counts[number].saturating_add(count);
                let sum = &mut self.sums[number * dim..][..dim];
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// Drops the first `count` keys.
    pub fn drop_first(&mut self, count: usize, dim: usize) {
        self.keys.drain(..count);
        self.counts.drain(..count);
        self.thresholds.drain(..count.min(self.thresholds.len()));
        self.sums.drain(..count * dim);
    }
}

/// Groups adjacent keys of equal thresholds into runs.
pub fn runs(thresholds: &[u32]) -> Vec<Admit> {
    let mut end = 0;
    let run = |same: &[u32]| {
        end += same.len();
        Admit { end, threshold: same[0] }
    };
    thresholds.chunk_by(u32::eq).map(run).collect()
}

/// The columns of several pushes, one after another.
#[derive(Default)]
pub struct Joined<'a> {
    /// The keys.
    pub keys: Vec<u64>,
    gradients: Vec<&'a [f32]>,
    counts: Option<Vec<u32>>,
    admit: Vec<Admit>,
}

impl<'a> Joined<'a> {
    /// Appends the columns of a push, whose gradients are decoded.
    pub fn append(&mut self, columns: &Columns<'_>, gradients: &'a [f32], dim: usize) {
        let begin = self.keys.len();
        self.keys.extend_from_slice(&columns.keys);
        self.gradients.extend(gradients.chunks_exact(dim));
        let end = self.keys.len();
        if columns.counts.is_some() || self.counts.is_some() {
            let counts = self.counts.get_or_insert_with(|| vec![1; begin]);
            counts.extend_from_slice(columns.counts.as_deref().unwrap_or_default());
            counts.resize(end, 1);
        }
        if columns.admit.is_empty() && self.admit.is_empty() {
            return;
        }
        // Keys outside of all runs are admitted at once.
        self.admit.push(Admit { end: begin, threshold: 1 });
        self.admit.extend(columns.admit.iter().map(|run| Admit { end: begin + run.end, ..*run }));
        self.admit.push(Admit { end, threshold: 1 });
    }
}

impl Addends for Joined<'_> {
    fn gradient(&self, at: usize) -> &[f32] {
        self.gradients[at]
    }

    fn counts(&self) -> Option<&[u32]> {
        self.counts.as_deref()
    }

    fn admit(&self) -> &[Admit] {
        &self.admit
    }
}
