//! Admission: what is known of keys that have no row yet, part by part, to be saved in a cut and put back.

use std::ops::Range;

use crate::error::{Result, TableError};
use crate::sketch::Sketch;
use crate::storage::index::PARTS;
use crate::table::Table;

/// The counts of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The part.
    pub part: usize,
    /// Its sketch.
    pub bytes: Vec<u8>,
}

impl Table {
    /// Pages of some parts; only those that changed since they were last asked for when `changed_only`.
    pub fn take_pages(&self, parts: Range<usize>, changed_only: bool) -> Vec<Page> {
        let take = |part: usize| {
            let mut held = self.lock(part);
            let sketch = held.sketch.as_mut().filter(|sketch| !changed_only || sketch.is_changed())?;
            sketch.clear_changed();
            Some(Page { part, bytes: sketch.to_bytes() })
        };
        parts.filter_map(take).collect()
    }

    /// Put a page back. The bytes may be anything: those that are no page of this table's are refused.
    pub fn put_page(&self, page: &Page) -> Result<()> {
        let Some(settings) = self.settings.admission else {
            return Err(TableError::Argument("this table has no sketch".to_owned()));
        };
        if page.part >= PARTS {
            return Err(TableError::Argument(format!("part {}: there are {PARTS}", page.part)));
        }
        let sketch = Sketch::from_bytes(settings, &page.bytes).map_err(TableError::Argument)?;
        self.lock(page.part).sketch = Some(Box::new(sketch));
        Ok(())
    }

    /// Forget how often keys without a row were seen.
    pub fn clear_pages(&self) {
        (0..PARTS).for_each(|part| self.lock(part).sketch = None);
    }
}
