//! Storage: memory in pages, and the layout of rows and images in it.

pub(crate) mod grace;
pub(crate) mod images;
pub(crate) mod index;
pub(crate) mod initial;
pub(crate) mod line;
pub(crate) mod memory;
pub(crate) mod near;
pub(crate) mod prefetch;
pub(crate) mod retire;
pub(crate) mod row_type;
pub(crate) mod sheets;
pub(crate) mod sync;
