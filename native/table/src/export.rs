//! Exporting: what changed from one version to another, or everything of one, while writers go on.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result, TableError};
use crate::pack::GROUP;
use crate::rows::Use;
use crate::set::TableSet;
use crate::storage::images::{GONE, NONE, row_of};
use crate::storage::index::{Found, PARTS, mix};
use crate::storage::prefetch::{prefetch, prefetch_row};
use crate::storage::sync::RwLockReadGuard;
use crate::table::Table;
use crate::table_set::Shared;
use crate::versions::Held;

/// Keys read under one lock of a part.
const TOGETHER: usize = 512;

/// What changed between two versions; both stay until this is dropped.
pub struct Export {
    shared: Arc<Shared>,
    since: Option<Held>,
    upto: Held,
    discards: u64,
}

/// Rows of some parts of one table, and keys that are gone.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Changes {
    /// Keys that have a row.
    pub keys: Vec<u64>,
    /// Their embeddings as they are stored on the wire: little-endian numbers, row after row.
    pub numbers: Vec<u8>,
    /// The scale of each, where rows have one.
    pub scales: Vec<f32>,
    /// The optimizer's state of each.
    pub state: Vec<f32>,
    /// When and how often each was used.
    pub uses: Vec<Use>,
    /// Keys that had a row in the earlier version and have none in the later one.
    pub gone: Vec<u64>,
}

impl Changes {
    fn reserve(&mut self, table: &Table, rows: usize) {
        let (settings, row_type) = (&table.settings, table.settings.row_type);
        self.keys.reserve(rows);
        self.numbers.reserve(rows * settings.dim * row_type.number_bytes());
        self.scales.reserve(if row_type.has_scale() { rows } else { 0 });
        self.state.reserve(rows * settings.state());
        self.uses.reserve(rows);
    }
}

impl TableSet {
    /// What changed after version `since` and no later than `upto`; everything that is in `upto` without `since`.
    pub fn changed(&self, since: Option<u64>, upto: u64) -> Result<Export> {
        let shared = self.shared();
        let discards = shared.discards();
        let hold = |version| shared.versions.hold_for_export(version);
        let upto = hold(upto)?;
        let since = since.map(hold).transpose().inspect_err(|_| shared.versions.let_go(upto))?;
        let export = Export { shared: shared.clone(), since, upto, discards };
        if export.since.is_some_and(|since| since.birth >= upto.birth) {
            return Err(TableError::Version("what changed is asked for from later to earlier".to_owned()));
        }
        Ok(export)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.shared.versions.let_go(self.upto);
        self.since.into_iter().for_each(|since| self.shared.versions.let_go(since));
    }
}

impl Export {
    /// The changes of some parts of one of the set's tables; parts in order, the keys of each in any.
    pub fn read(&self, table: &Table, parts: Range<usize>) -> Result<Changes> {
        if !Arc::ptr_eq(&self.shared, &table.shared) || parts.start > parts.end || parts.end > PARTS {
            let text = format!("parts {parts:?} of a table that must be of the same set");
            return Err(TableError::Argument(text));
        }
        let mut changes = Changes::default();
        let count = parts.len();
        for part in parts {
            let going_on = self.go_on()?;
            let keys = self.keys(table, part);
            drop(going_on);
            if changes.keys.is_empty() {
                // Parts are nearly alike: what grows by doubling is copied as often.
                changes.reserve(table, (keys.len() + keys.len() / 8) * count);
            }
            for keys in keys.chunks(TOGETHER) {
                let _going_on = self.go_on()?;
                self.read_keys(table, part, keys, &mut changes);
            }
        }
        Ok(changes)
    }

    /// Nothing is discarded while this is held; what was discarded before leaves nothing to be asked for, not even
    /// whether something had changed.
    fn go_on(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let going_on = self.shared.export();
        if self.shared.discards() == self.discards {
            return Ok(going_on);
        }
        Err(TableError::Busy("what was not committed was discarded".to_owned()))
    }

    fn keys(&self, table: &Table, part: usize) -> Vec<u64> {
        let held = table.lock(part);
        let Some(since) = self.since else {
            return table.index.lines(part).map_or_else(Vec::new, |lines| lines.keys_spread().collect());
        };
        let births = since.birth + 1..=self.upto.birth;
        let lists: Vec<&Vec<u64>> =
            held.touched.iter().filter(|one| births.contains(&one.birth)).map(|one| &one.keys).collect();
        let mut keys = lists.iter().flat_map(|keys| keys.iter().copied()).collect::<Vec<u64>>();
        if lists.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        keys
    }

    fn read_keys(&self, table: &Table, part: usize, keys: &[u64], changes: &mut Changes) {
        let _held = table.lock(part);
        for keys in keys.chunks(GROUP) {
            self.read_group(table, part, keys, changes);
        }
    }

    /// Read keys that are worked on together, so that the memory of all is on its way before the first is needed.
    fn read_group(&self, table: &Table, part: usize, keys: &[u64], changes: &mut Changes) {
        if let Some(lines) = table.index.lines(part) {
            keys.iter().for_each(|&key| prefetch(lines.first(mix(key))));
        }
        let mut found = [None; GROUP];
        for (found, &key) in found.iter_mut().zip(keys) {
            *found = table.index.find(part, mix(key), key);
            found.inspect(|found| prefetch(table.images[part].address(row_of(found.id))));
        }
        let mut seen = [NONE; GROUP];
        for ((seen, found), &key) in seen.iter_mut().zip(found).zip(keys) {
            *seen = found.map_or(NONE, |found| self.see(table, part, &found, key, changes));
        }
        let (row_type, dim) = (table.settings.row_type, table.settings.dim);
        let mut stored = vec![0; row_type.row_bytes(dim)];
        let (number_bytes, state) = (dim * row_type.number_bytes(), table.settings.state());
        for (&key, row) in keys.iter().zip(seen).filter(|&(_, row)| row != NONE) {
            table.rows.embedding.read_bytes(row, &mut stored);
            let at = changes.numbers.len();
            changes.numbers.resize(at + number_bytes, 0);
            changes.scales.extend(row_type.to_wire(&stored, &mut changes.numbers[at..]));
            let at = changes.state.len();
            changes.state.resize(at + state, 0.0);
            table.rows.state.read_floats(row, &mut changes.state[at..]);
            changes.uses.push(table.rows.get_use(row));
            changes.keys.push(key);
        }
    }

    /// The row of a key as of the later version, brought near; NONE for none. A key that is gone in it is noted.
    fn see(&self, table: &Table, part: usize, found: &Found<'_>, key: u64, changes: &mut Changes) -> u32 {
        let images = &table.images[part];
        let at = |birth| if found.is_settled { found.id } else { images.seen(found.id, birth) };
        let is_there = |id: u32| id != NONE && id & GONE == 0;
        let id = at(self.upto.birth);
        if is_there(id) {
            let (embedding, state) = (&table.rows.embedding, &table.rows.state);
            prefetch_row(embedding.address(row_of(id)).cast(), embedding.row_bytes() / 4);
            prefetch_row(state.address(row_of(id)).cast(), state.row_bytes() / 4);
            prefetch(table.rows.use_address(row_of(id)));
            return id;
        }
        if self.since.is_some_and(|since| is_there(at(since.birth))) {
            changes.gone.push(key);
        }
        NONE
    }
}
