//! Putting: rows as they are, and keys that are gone, into the version that is open.

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

/// Lines are brought near so many keys before they are needed.
const LINES_AHEAD: usize = 32;
/// Rows are brought near so many keys before they are written.
const ROWS_AHEAD: usize = 16;

/// Rows to put, one for each key.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// Their embeddings.
    pub embeddings: Embeddings<'a>,
    /// Optimizer state; none means zeros.
    pub state: Option<&'a [f32]>,
    /// When and how often each was used; without it a row that learns keeps what it has, and a new one was never used.
    pub uses: Option<&'a [Use]>,
}

/// Embeddings as they come.
#[derive(Clone, Copy)]
pub enum Embeddings<'a> {
    /// Floats, which a table of another type stores in its own.
    Floats(&'a [f32]),
    /// Numbers of the table's type as they are on the wire, and the scale of each row where rows have one.
    Wire(&'a [u8], Option<&'a [f32]>),
}

/// What to do with a key that was already written in the version that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The later row counts.
    Replaces,
    /// It is an error: what a version says of a key it says once.
    Refused,
}

impl Again {
    /// Only who makes a version as it was made elsewhere says of a key once what it says.
    fn writer(self) -> Writer {
        if self == Self::Refused { Writer::Stager } else { Writer::Anyone }
    }
}

impl Table {
    /// Set rows of keys.
    pub fn put(&self, keys: &[u64], rows: Rows<'_>, again: Again, threads: usize) -> Result<()> {
        self.check(keys, rows)?;
        let settings = &self.settings;
        let (dim, row_type) = (settings.dim, settings.row_type);
        let mut begun = vec![0.0; settings.state()];
        settings.rule.inspect(|rule| rule.begin(&mut begun));
        let near = |at: usize| match rows.embeddings {
            Embeddings::Floats(floats) => prefetch_all(row_of(floats, at, dim)),
            Embeddings::Wire(numbers, _) => {
                prefetch_all(row_of(numbers, at, dim * row_type.number_bytes()));
            }
        };
        let stored = || vec![0; row_type.row_bytes(dim)];
        self.each_key(keys, (again.writer(), threads), near, stored, |held, open, member, stored| {
            let at = member.at as usize;
            let target = held.target(open, member.hash, member.key);
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
                state: rows.state.map_or(&begun, |state| row_of(state, at, begun.len())),
                used: match (rows.uses, target.row()) {
                    (Some(uses), _) => uses[at],
                    // What is set from outside was not used by that.
                    (None, Some(row)) if settings.rule.is_some() => self.rows.get_use(row),
                    _ => Use::default(),
                },
            };
            held.write(open, (member.hash, member.key), target, &cell)
        })
    }

    /// Take keys away. Gives how many were there.
    pub fn remove(&self, keys: &[u64], again: Again, threads: usize) -> Result<usize> {
        let removed = std::sync::atomic::AtomicUsize::new(0);
        self.each_key(
            keys,
            (again.writer(), threads),
            |_| {},
            || (),
            |held, open, member, ()| {
                let target = held.target(open, member.hash, member.key);
                if again == Again::Refused && target.is_own() {
                    return Err(TableError::Twice { key: member.key });
                }
                if again == Again::Refused && target.row().is_none() {
                    return held.bury(open, (member.hash, member.key), target);
                }
                if held.remove(open, member.key, target)? {
                    removed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                Ok(())
            },
        )?;
        Ok(removed.into_inner())
    }

    fn check(&self, keys: &[u64], rows: Rows<'_>) -> Result<()> {
        let (count, settings) = (keys.len(), &self.settings);
        let (found, wanted, is_scaled) = match rows.embeddings {
            Embeddings::Floats(floats) => (floats.len(), count * settings.dim, true),
            Embeddings::Wire(numbers, scales) => {
                let is_scaled = scales.map(<[f32]>::len) == settings.row_type.has_scale().then_some(count);
                (numbers.len(), count * settings.dim * settings.row_type.number_bytes(), is_scaled)
            }
        };
        let state = rows.state.map_or(count * settings.state(), <[f32]>::len);
        let uses = rows.uses.map_or(count, <[Use]>::len);
        if found == wanted && is_scaled && state == count * settings.state() && uses == count {
            return Ok(());
        }
        Err(TableError::Argument(format!(
            "{found} numbers, {state} of state and {uses} uses for {count} keys of {} {:?} and {} of state{}",
            settings.dim,
            settings.row_type,
            settings.state(),
            if is_scaled { "" } else { "; a scale for each row is of rows of I8, and of no others" }
        )))
    }

    /// Do something with each key, under its part's lock; keys of a part in the order they were given. `near` is to
    /// bring near what will be needed of a member.
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
            let is_same = |one: &Member, other: &Member| part_of(one.hash) == part_of(other.hash);
            let says_once = writer == Writer::Stager;
            let mut pace = Pace::begin();
            let mut at = 0;
            for (group, left) in members.chunk_by(is_same).flat_map(groups_of_part) {
                let mut held = self.hold(part_of(group[0].hash), open);
                if open.is_versioned && says_once {
                    held.reserve_images(open.birth, left);
                }
                for &member in group {
                    // First the line, and some keys later what it leads to: while others are written, for one at a
                    // time is all that memory gives.
                    if let Some(ahead) = members.get(at + LINES_AHEAD) {
                        self.prefetch_lines(std::slice::from_ref(ahead));
                        near(ahead.at as usize);
                    }
                    if let Some(ahead) = members.get(at + ROWS_AHEAD) {
                        self.prefetch_row(ahead, open, false);
                    }
                    work(&mut held, open, member, &mut scratch)?;
                    at += 1;
                }
                drop(held);
                pace.rest();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Share members among threads, by ranges of parts, so that no two work on one part.
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
            let own = work(members.of(ranges[0].clone()));
            let others = started.into_iter().map(|thread| thread.join().expect("no worker panics"));
            std::iter::once(own).chain(others).collect()
        })
    }
}

/// Members that are worked on under one lock, and how many of the part there are from there on.
fn groups_of_part(members: &[Member]) -> impl Iterator<Item = (&[Member], usize)> {
    members.chunks(GROUP).enumerate().map(|(number, group)| (group, members.len() - number * GROUP))
}

#[inline(always)]
fn row_of<T>(rows: &[T], at: usize, width: usize) -> &[T] {
    &rows[at * width..][..width]
}
