//! Export: the changes between two versions, or the content of one, while writers continue.

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

/// The changes between two versions. Both versions are held until it is dropped.
pub struct Export {
    shared: Arc<Shared>,
    since: Option<Held>,
    upto: Held,
    discards: u64,
}

/// Rows of some parts of one table, and removed keys.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Changes {
    /// Keys that have a row.
    pub keys: Vec<u64>,
    /// Their embeddings in wire format: little-endian numbers, row after row.
    pub numbers: Vec<u8>,
    /// The scale of each row, if rows have one.
    pub scales: Vec<f32>,
    /// The optimizer state of each row.
    pub state: Vec<f32>,
    /// The time and count of use of each row.
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
    /// The changes after version `since` up to `upto`; without `since`, everything in `upto`.
    pub fn changed(&self, since: Option<u64>, upto: u64) -> Result<Export> {
        let shared = self.shared();
        let discards = shared.discards();
        let hold = |version| shared.versions.hold_for_export(version);
        let upto = hold(upto)?;
        let since = since.map(hold).transpose().inspect_err(|_| shared.versions.let_go(upto))?;
        let export = Export { shared: shared.clone(), since, upto, discards };
        if export.since.is_some_and(|since| since.birth >= upto.birth) {
            return Err(TableError::Version(
                "cannot export changes from a later to an earlier version".to_owned(),
            ));
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
    /// The changes of some parts of one of the set's tables. Parts are in order, the keys of each part in
    /// any.
    pub fn read(&self, table: &Table, parts: Range<usize>) -> Result<Changes> {
        if !Arc::ptr_eq(&self.shared, &table.shared) || parts.start > parts.end || parts.end > PARTS {
            let text = format!("parts {parts:?} of a table that must be of the same set");
            return Err(TableError::Argument(text));
        }
        let mut changes = Changes::default();
        let count = parts.len();
        for part in parts {
            let reading = self.go_on()?;
            let keys = self.keys(table, part);
            drop(reading);
            if changes.keys.is_empty() {
                // Parts are nearly equal; reserving once avoids the copies of growth by doubling.
                changes.reserve(table, (keys.len() + keys.len() / 8) * count);
            }
            for keys in keys.chunks(TOGETHER) {
                let _reading = self.go_on()?;
                self.read_keys(table, part, keys, &mut changes);
            }
        }
        Ok(changes)
    }

    /// Prevents discards while the guard is held. Fails after an earlier discard, since the export's versions
    /// may have lost their writes.
    fn go_on(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let reading = self.shared.export();
        if self.shared.discards() == self.discards {
            return Ok(reading);
        }
        Err(TableError::Busy("the export is invalid: uncommitted changes were discarded".to_owned()))
    }

    fn keys(&self, table: &Table, part: usize) -> Vec<u64> {
        let locked = table.lock(part);
        let Some(since) = self.since else {
            return table.index.lines(part).map_or_else(Vec::new, |lines| lines.keys_spread().collect());
        };
        let births = since.birth + 1..=self.upto.birth;
        let lists: Vec<&Vec<u64>> = locked
            .touched
            .iter()
            .filter(|entry| births.contains(&entry.birth))
            .map(|entry| &entry.keys)
            .collect();
        let mut keys = lists.iter().flat_map(|keys| keys.iter().copied()).collect::<Vec<u64>>();
        if lists.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        keys
    }

    fn read_keys(&self, table: &Table, part: usize, keys: &[u64], changes: &mut Changes) {
        let _locked = table.lock(part);
        for keys in keys.chunks(GROUP) {
            self.read_group(table, part, keys, changes);
        }
    }

    /// Reads a group of keys, so that the memory of all is prefetched before the first is needed.
    fn read_group(&self, table: &Table, part: usize, keys: &[u64], changes: &mut Changes) {
        if let Some(lines) = table.index.lines(part) {
            keys.iter().for_each(|&key| prefetch(lines.first(mix(key))));
        }
        let mut positions = [None; GROUP];
        for (position, &key) in positions.iter_mut().zip(keys) {
            *position = table.index.find(part, mix(key), key);
            position.inspect(|position| prefetch(table.images[part].address(row_of(position.id))));
        }
        let mut seen = [NONE; GROUP];
        for ((seen, position), &key) in seen.iter_mut().zip(positions).zip(keys) {
            *seen = position.map_or(NONE, |position| self.see(table, part, &position, key, changes));
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

    /// The row of a key as of the later version, prefetched; NONE if it has none. Adds a removed key to
    /// `gone`.
    fn see(&self, table: &Table, part: usize, position: &Found<'_>, key: u64, changes: &mut Changes) -> u32 {
        let images = &table.images[part];
        let at = |birth| if position.is_settled { position.id } else { images.seen(position.id, birth) };
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
