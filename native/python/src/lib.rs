//! The Python bindings of the native core: argument checks and conversions only.
#![allow(missing_docs)] // documented in streamlearn/_native.pyi, where users look

use pyo3::prelude::*;

mod arrays;
mod avro;
mod dlpack;
mod features;
mod frame;
mod impressions;
mod join;
mod keys;
mod ladder;
mod list_source;
mod load;
mod marks;
mod node_features;
mod pack;
mod parts;
mod ps;
mod scan;
mod serve;
mod spans;
mod state_client;
mod table;
mod trust;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    keys::register(module)?;
    spans::register(module)?;
    frame::register(module)?;
    avro::register(module)?;
    table::register(module)?;
    trust::register(module)?;
    parts::register(module)?;
    pack::register(module)?;
    ps::register(module)?;
    join::register(module)?;
    marks::register(module)?;
    features::register(module)?;
    load::register(module)?;
    ladder::register(module)?;
    scan::register(module)?;
    serve::register(module)?;
    list_source::register(module)?;
    node_features::register(module)?;
    state_client::register(module)?;
    impressions::register(module)
}
