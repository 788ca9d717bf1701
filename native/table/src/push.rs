//! Push: sums the gradients of a call by key and applies them to the rows.

use crate::batch::{ByPart, Member};
use crate::error::{Result, TableError};
use crate::locked_part::{Cell, Held, Open, Values};
use crate::optimizer::Rule;
use crate::rows::Use;
use crate::sketch::Sketch;
use crate::storage::index::part_of;
use crate::storage::prefetch::prefetch_all;
use crate::table::Table;
use crate::table_set::Writer;

/// Members processed together; extended to whole parts, so that all gradients of a key are in one block.
const BLOCK: usize = 256;
/// How many members ahead gradients are prefetched before they are summed.
const AHEAD: usize = 24;
/// How many keys ahead rows are prefetched before they learn, so that several memory accesses overlap.
const ROWS_AHEAD: usize = 16;

/// A run of keys up to `end`; they are admitted once they were seen `threshold` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admit {
    /// The first key after this run.
    pub end: usize,
    /// The number of sightings; 1 admits at once.
    pub threshold: u32,
}

/// The gradients to apply.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    /// The keys; a key may occur several times.
    pub keys: &'a [u64],
    /// The gradient of each key, row after row.
    pub gradients: &'a [f32],
    /// The number of sightings of each key; None means once.
    pub counts: Option<&'a [u32]>,
    /// Admission thresholds, by runs of the call's keys in order; keys after the last run are admitted at
    /// once.
    pub admit: &'a [Admit],
    /// Table time.
    pub now_ms: i64,
    /// The factor of the optimizer's rate, from a schedule.
    pub rate_scale: f32,
}

/// The result of a push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Keys whose rows learned, each once.
    pub learned: usize,
    /// The learned keys that had no row before.
    pub created: usize,
    /// Keys that were not seen often enough for a row.
    pub waiting: usize,
}

/// A distinct key of a block.
struct Unique {
    member: Member,
    /// The number of its sum plus one; 0 while it has a single gradient.
    sum: u32,
    count: u32,
}

/// The working state of one thread.
struct Bench<'a> {
    push: &'a Push<'a>,
    rule: Rule,
    dim: usize,
    uniques: Vec<Unique>,
    /// The number of a unique plus one, by hash; 0 for none.
    places: Vec<u32>,
    sums: Vec<f32>,
    row: Vec<f32>,
    state: Vec<f32>,
    gradient: Vec<f32>,
    pushed: Pushed,
}

impl Table {
    /// Applies gradients to rows and makes rows for admitted keys. A key's gradients are summed in the order
    /// given.
    ///
    /// If the table gets full, only the keys processed before have learned: discard the uncommitted changes
    /// then.
    pub fn push(&self, push: Push<'_>, threads: usize) -> Result<Pushed> {
        let Some(rule) = self.settings.rule else {
            return Err(TableError::Argument("cannot push: this table has no optimizer".to_owned()));
        };
        self.check_push(&push)?;
        let (_gate, open) = self.shared.write(Writer::Anyone)?;
        let members = ByPart::new(push.keys);
        let pushed = self.share(&members, threads, |members| {
            let _stay = self.shared.grace.enter();
            let mut bench = Bench::new(&push, rule, self.settings.dim);
            let mut remaining = members;
            while !remaining.is_empty() {
                let block;
                (block, remaining) = remaining.split_at(block_end(remaining));
                bench.sum(self, block);
                bench.learn(self, open)?;
            }
            Ok(bench.pushed)
        })?;
        Ok(pushed.into_iter().fold(Pushed::default(), |total, part_result| Pushed {
            learned: total.learned + part_result.learned,
            created: total.created + part_result.created,
            waiting: total.waiting + part_result.waiting,
        }))
    }

    fn check_push(&self, push: &Push<'_>) -> Result<()> {
        let (keys, dim) = (push.keys.len(), self.settings.dim);
        if push.gradients.len() != keys * dim || push.counts.is_some_and(|counts| counts.len() != keys) {
            let text = format!(
                "{} gradient floats and {:?} counts for {keys} keys; a gradient has {dim} floats",
                push.gradients.len(),
                push.counts.map(<[u32]>::len)
            );
            return Err(TableError::Argument(text));
        }
        if push.admit.iter().any(|run| run.threshold > 1) && self.settings.admission.is_none() {
            let text = "this table has no sketch, so it cannot count sightings of keys".to_owned();
            return Err(TableError::Argument(text));
        }
        let ends: Vec<usize> = push.admit.iter().map(|run| run.end).collect();
        if !ends.is_sorted() || ends.last().is_some_and(|&end| end > keys) {
            return Err(TableError::Argument(format!("runs end at {ends:?}, but there are {keys} keys")));
        }
        Ok(())
    }
}

/// The end of a block: after a whole part.
fn block_end(members: &[Member]) -> usize {
    if members.len() <= BLOCK {
        return members.len();
    }
    let part = part_of(members[BLOCK - 1].hash);
    BLOCK + members[BLOCK..].partition_point(|member| part_of(member.hash) == part)
}

impl<'a> Bench<'a> {
    fn new(push: &'a Push<'a>, rule: Rule, dim: usize) -> Self {
        Self {
            push,
            rule,
            dim,
            uniques: Vec::with_capacity(2 * BLOCK),
            places: Vec::new(),
            sums: Vec::new(),
            row: vec![0.0; dim],
            state: vec![0.0; rule.state_floats(dim)],
            gradient: vec![0.0; dim],
            pushed: Pushed::default(),
        }
    }

    fn given(&self, member: Member) -> &'a [f32] {
        &self.push.gradients[member.at as usize * self.dim..][..self.dim]
    }

    /// Collects the distinct keys of a block, and sums the gradients of those that occur more than once.
    fn sum(&mut self, table: &Table, block: &[Member]) {
        self.uniques.clear();
        self.sums.clear();
        self.places.clear();
        self.places.resize((2 * block.len()).next_power_of_two(), 0);
        let mask = self.places.len() - 1;
        block.iter().take(AHEAD).for_each(|&member| prefetch_all(self.given(member)));
        for (number, &member) in block.iter().enumerate() {
            if let Some(&ahead) = block.get(number + AHEAD) {
                prefetch_all(self.given(ahead));
            }
            let count = self.push.counts.map_or(1, |counts| counts[member.at as usize]);
            let mut slot = member.hash as usize & mask;
            loop {
                let place = self.places[slot];
                if place == 0 {
                    table.prefetch_lines(std::slice::from_ref(&member));
                    self.uniques.push(Unique { member, sum: 0, count });
                    self.places[slot] = self.uniques.len() as u32;
                    break;
                }
                if self.uniques[place as usize - 1].member.key == member.key {
                    self.add(place as usize - 1, member, count);
                    break;
                }
                slot = (slot + 1) & mask;
            }
        }
    }

    fn add(&mut self, unique: usize, member: Member, count: u32) {
        let (gradient, first) = (self.given(member), self.uniques[unique].member);
        let unique = &mut self.uniques[unique];
        unique.count = unique.count.saturating_add(count);
        if unique.sum == 0 {
            let first = &self.push.gradients[first.at as usize * self.dim..][..self.dim];
            self.sums.extend_from_slice(first);
            unique.sum = (self.sums.len() / self.dim) as u32;
        }
        let sum = &mut self.sums[(unique.sum as usize - 1) * self.dim..][..self.dim];
        sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
    }

    /// Applies the gradients of a block's keys to their rows.
    fn learn(&mut self, table: &Table, open: Open) -> Result<()> {
        let uniques = std::mem::take(&mut self.uniques);
        let (gradients, dim) = (self.push.gradients, self.dim);
        let prefetch_ahead = |ahead: &[Unique]| {
            for unique in ahead {
                table.prefetch_row(&unique.member, open, true);
                prefetch_all(&gradients[unique.member.at as usize * dim..][..dim]);
            }
        };
        prefetch_ahead(&uniques[..ROWS_AHEAD.min(uniques.len())]);
        let mut index = 0;
        let is_same = |left: &Unique, right: &Unique| part_of(left.member.hash) == part_of(right.member.hash);
        for of_part in uniques.chunk_by(is_same) {
            let mut locked = table.hold(part_of(of_part[0].member.hash), open);
            for unique in of_part {
                prefetch_ahead(uniques.get(index + ROWS_AHEAD..=index + ROWS_AHEAD).unwrap_or_default());
                self.learn_one(table, &mut locked, open, unique)?;
                index += 1;
            }
        }
        self.uniques = uniques;
        Ok(())
    }

    #[inline(always)]
    fn learn_one(&mut self, table: &Table, locked: &mut Held<'_>, open: Open, unique: &Unique) -> Result<()> {
        let Member { key, hash, at } = unique.member;
        let target = locked.target(open, hash, key);
        let mut used = Use::default();
        if let Some(row) = target.row() {
            table.rows.embedding.read_floats(row, &mut self.row);
            table.rows.state.read_floats(row, &mut self.state);
            used = table.rows.get_use(row);
        } else {
            if !self.is_admitted(table, locked, hash, (at as usize, unique.count)) {
                self.pushed.waiting += 1;
                return Ok(());
            }
            table.settings.initial.fill(key, &mut self.row);
            self.rule.begin(&mut self.state);
            self.pushed.created += 1;
        }
        let gradient = match unique.sum {
            0 => self.given(unique.member),
            sum => &self.sums[(sum as usize - 1) * self.dim..][..self.dim],
        };
        // A loop, since a call would cost more for so few floats.
        self.gradient.iter_mut().zip(gradient).for_each(|(to, &from)| *to = from);
        self.rule.apply(self.push.rate_scale, &mut self.row, &mut self.state, &mut self.gradient);
        used.tick = table.tick(self.push.now_ms);
        used.count = u8::try_from(u32::from(used.count).saturating_add(unique.count)).unwrap_or(u8::MAX);
        self.pushed.learned += 1;
        let cell = Cell { embedding: Values::Floats(&self.row), state: &self.state, used };
        locked.write(open, (hash, key), target, &cell)
    }

    /// Whether a key without a row gets one.
    fn is_admitted(
        &self,
        table: &Table,
        locked: &mut Held<'_>,
        hash: u64,
        (at, count): (usize, u32),
    ) -> bool {
        let Some(settings) = table.settings.admission else { return true };
        let run = self.push.admit.partition_point(|run| run.end <= at);
        let threshold = self.push.admit.get(run).map_or(1, |run| run.threshold);
        if threshold <= 1 {
            return true;
        }
        let sketch = locked.part.sketch.get_or_insert_with(|| Box::new(Sketch::new(settings)));
        sketch.tick(self.push.now_ms);
        sketch.count(hash, count) >= threshold
    }
}
