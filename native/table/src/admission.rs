//! Admission: the sketches that count keys without a row, part by part, to be saved in a cut and restored.

use std::ops::Range;

use crate::error::{Result, TableError};
use crate::sketch::Sketch;
use crate::storage::index::PARTS;
use crate::table::Table;

/// The sketch of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The part.
    pub part: usize,
    /// The bytes of its sketch.
    pub bytes: Vec<u8>,
}

impl Table {
    /// Returns the pages of some parts; with `changed_only`, only those that changed since they were last
    /// taken.
    pub fn take_pages(&self, parts: Range<usize>, changed_only: bool) -> Vec<Page> {
        let take = |part: usize| {
            let mut locked = self.lock(part);
            let sketch = locked.sketch.as_mut().filter(|sketch| !changed_only || sketch.is_changed())?;
            sketch.clear_changed();
            Some(Page { part, bytes: sketch.to_bytes() })
        };
        parts.filter_map(take).collect()
    }

    /// Restores a page. The bytes may be arbitrary: any that are not a page of this table are an error.
    pub fn put_page(&self, page: &Page) -> Result<()> {
        let Some(settings) = self.settings.admission else {
            return Err(TableError::Argument("cannot restore a page: this table has no sketch".to_owned()));
        };
        if page.part >= PARTS {
            return Err(TableError::Argument(format!(
                "part {} is out of range; there are {PARTS} parts",
                page.part
            )));
        }
        let sketch = Sketch::from_bytes(settings, &page.bytes).map_err(TableError::Argument)?;
        self.lock(page.part).sketch = Some(Box::new(sketch));
        Ok(())
    }

    /// Drops the counts of keys without a row.
    pub fn clear_pages(&self) {
        (0..PARTS).for_each(|part| self.lock(part).sketch = None);
    }
}
