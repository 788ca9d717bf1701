//! Put: writes given rows, or removes keys, in the open version.

use crate::batch::{ByPart, Member};
use crate::error::{Result, TableError};
use crate::locked_part::{Cell, Held, Open, Values};
use crate::pace::Pace;
use crate::pack::GROUP;
use crate::rows::Use;
use crate::storage::index::part_of;
use crate::storage::prefetch::prefetch_all;
use crate::storage::row_type::RowType;
use crate::table::Table;
use crate::table_set::Writer;

/// How many keys ahead lines are prefetched.
const LINES_AHEAD: usize = 32;
/// How many keys ahead rows are prefetched before they are written.
const ROWS_AHEAD: usize = 16;

/// Rows to write, one for each key.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Their embeddings.
    pub embeddings: Embeddings<'a>,
    /// Optimizer state; None means zeros.
    pub state: Option<&'a [f32]>,
    /// Time and count of use of each row. Without it, a learning row keeps its own, and a new row counts as
    /// never used.
    pub uses: Option<&'a [Use]>,
}

/// Embeddings in the caller's form.
#[derive(Clone, Copy)]
pub enum Embeddings<'a> {
    /// Floats; tables of other types convert them.
    Floats(&'a [f32]),
    /// Numbers of the table's type in wire format, and the scale of each row if rows have one.
    Wire(&'a [u8], Option<&'a [f32]>),
}

/// The handling of a key that was already written in the open version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The later row replaces it.
    Replaces,
    /// It is an error: a version may state each key only once.
    Refused,
}

impl Again {
    /// Only a stager, which rebuilds a version from elsewhere, states each key once.
    fn writer(self) -> Writer {
        if self == Self::Refused { Writer::Stager } else { Writer::Anyone }
    }
}

impl Table {
    /// Writes the rows of keys.
    pub fn put(&self, keys: &[u64], rows: Rows<'_>, again: Again, threads: usize) -> Result<()> {
        self.check(keys, rows)?;
        let settings = &self.settings;
        let (dim, row_type) = (settings.dim, settings.row_type);
        let mut initial_state = vec![0.0; settings.state()];
        settings.rule.inspect(|rule| rule.begin(&mut initial_state));
        let prefetch_input = |at: usize| match rows.embeddings {
            Embeddings::Floats(floats) => prefetch_all(row_of(floats, at, dim)),
            Embeddings::Wire(numbers, _) => {
                prefetch_all(row_of(numbers, at, dim * row_type.number_bytes()));
            }
        };
        let stored = || vec![0; row_type.row_bytes(dim)];
        self.each_key(
            keys,
            (again.writer(), threads),
            prefetch_input,
            stored,
            |locked, open, member, stored| {
                let at = member.at as usize;
                let target = locked.target(open, member.hash, member.key);
                if again == Again::Refused && target.is_own() {
                    return Err(TableError::Twice { key: member.key });
                }
                let cell = Cell {
                    embedding: match rows.embeddings {
                        Embeddings::Floats(floats) if row_type == RowType::F32 => {
                            Values::Floats(row_of(floats, at, dim))
                        }
                        Embeddings::Floats(floats) => {
                            row_type.encode(row_of(floats, at, dim), stored);
                            Values::Bytes(stored)
                        }
                        Embeddings::Wire(numbers, scales) => {
                            let numbers = row_of(numbers, at, dim * row_type.number_bytes());
                            row_type.from_wire(numbers, scales.map(|scales| scales[at]), stored);
                            Values::Bytes(stored)
                        }
                    },
                    state: rows.state.map_or(&initial_state, |state| row_of(state, at, initial_state.len())),
                    used: match (rows.uses, target.row()) {
                        (Some(uses), _) => uses[at],
                        // Writing a row from outside does not count as a use.
                        (None, Some(row)) if settings.rule.is_some() => self.rows.get_use(row),
                        _ => Use::default(),
                    },
                };
                locked.write(open, (member.hash, member.key), target, &cell)
            },
        )
    }

    /// Removes keys. Returns how many were present.
    pub fn remove(&self, keys: &[u64], again: Again, threads: usize) -> Result<usize> {
        let removed = std::sync::atomic::AtomicUsize::new(0);
        self.each_key(
            keys,
            (again.writer(), threads),
            |_| {},
            || (),
            |locked, open, member, ()| {
                let target = locked.target(open, member.hash, member.key);
                if again == Again::Refused && target.is_own() {
                    return Err(TableError::Twice { key: member.key });
                }
                if again == Again::Refused && target.row().is_none() {
                    return locked.bury(open, (member.hash, member.key), target);
                }
                if locked.remove(open, member.key, target)? {
                    removed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                Ok(())
            },
        )?;
        Ok(removed.into_inner())
    }

    fn check(&self, keys: &[u64], rows: Rows<'_>) -> Result<()> {
        let (count, settings) = (keys.len(), &self.settings);
        let (numbers_given, numbers_needed, is_scaled) = match rows.embeddings {
            Embeddings::Floats(floats) => (floats.len(), count * settings.dim, true),
            Embeddings::Wire(numbers, scales) => {
                let is_scaled = scales.map(<[f32]>::len) == settings.row_type.has_scale().then_some(count);
                (numbers.len(), count * settings.dim * settings.row_type.number_bytes(), is_scaled)
            }
        };
        let state = rows.state.map_or(count * settings.state(), <[f32]>::len);
        let uses = rows.uses.map_or(count, <[Use]>::len);
        if numbers_given == numbers_needed && is_scaled && state == count * settings.state() && uses == count
        {
            return Ok(());
        }
        Err(TableError::Argument(format!(
            "{numbers_given} numbers, {state} state floats and {uses} uses for {count} keys with {} {:?} and {} state floats each{}",
            settings.dim,
            settings.row_type,
            settings.state(),
            if is_scaled { "" } else { "; rows of I8, and only those, need a scale each" }
        )))
    }

    /// Calls `work` for each key under its part's lock; keys of a part keep their order. `near` prefetches
    /// the input that a member will need.
    fn each_key<T>(
        &self,
        keys: &[u64],
        (writer, threads): (Writer, usize),
        near: impl Fn(usize) + Sync,
        scratch: impl Fn() -> T + Sync,
        work: impl Fn(&mut Held<'_>, Open, Member, &mut T) -> Result<()> + Sync,
    ) -> Result<()> {
        let (_gate, open) = self.shared.write(writer)?;
        let members = ByPart::new(keys);
        self.share(&members, threads, |members| {
            let _stay = self.shared.grace.enter();
            let mut scratch = scratch();
            self.prefetch_lines(&members[..members.len().min(LINES_AHEAD)]);
            let is_same = |left: &Member, right: &Member| part_of(left.hash) == part_of(right.hash);
            let states_once = writer == Writer::Stager;
            let mut pace = Pace::begin();
            let mut at = 0;
            for (group, remaining) in members.chunk_by(is_same).flat_map(groups_of_part) {
                let mut locked = self.hold(part_of(group[0].hash), open);
                if open.is_versioned && states_once {
                    locked.reserve_images(open.birth, remaining);
                }
                for &member in group {
                    // First the line, and some keys later the row it leads to, so that several memory
                    // accesses overlap with the writes of other keys.
                    if let Some(ahead) = members.get(at + LINES_AHEAD) {
                        self.prefetch_lines(std::slice::from_ref(ahead));
                        near(ahead.at as usize);
                    }
                    if let Some(ahead) = members.get(at + ROWS_AHEAD) {
                        self.prefetch_row(ahead, open, false);
                    }
                    work(&mut locked, open, member, &mut scratch)?;
                    at += 1;
                }
                drop(locked);
                pace.rest();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Shares members among threads by ranges of parts, so that no two threads work on one part.
    pub(crate) fn share<T: Send>(
        &self,
        members: &ByPart,
        threads: usize,
        work: impl Fn(&[Member]) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let ranges = members.split(threads);
        if ranges.len() <= 1 {
            return ranges.into_iter().map(|range| work(members.of(range))).collect();
        }
        std::thread::scope(|scope| {
            let work = &work;
            let started: Vec<_> = ranges[1..]
                .iter()
                .map(|range| scope.spawn(move || work(members.of(range.clone()))))
                .collect();
            let own_result = work(members.of(ranges[0].clone()));
            let others = started.into_iter().map(|thread| thread.join().expect("no worker panics"));
            std::iter::once(own_result).chain(others).collect()
        })
    }
}

/// The members processed under one lock, and how many of the part remain from there on.
fn groups_of_part(members: &[Member]) -> impl Iterator<Item = (&[Member], usize)> {
    members.chunks(GROUP).enumerate().map(|(number, group)| (group, members.len() - number * GROUP))
}

#[inline(always)]
fn row_of<T>(rows: &[T], at: usize, width: usize) -> &[T] {
    &rows[at * width..][..width]
}
