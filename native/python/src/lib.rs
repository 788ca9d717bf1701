//! The Python face of the native core: argument checks and conversions, nothing else.
#![allow(missing_docs)] // the functions are documented where their users read: streamlearn/_native.pyi

use pyo3::prelude::*;

mod arrays;
mod avro;
mod dlpack;
mod frame;
mod impressions;
mod join;
mod keys;
mod ladder;
mod load;
mod marks;
mod pack;
mod parts;
mod ps;
mod serve;
mod spans;
mod table;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    keys::register(module)?;
    spans::register(module)?;
    frame::register(module)?;
    avro::register(module)?;
    table::register(module)?;
    parts::register(module)?;
    pack::register(module)?;
    ps::register(module)?;
    join::register(module)?;
    marks::register(module)?;
    load::register(module)?;
    ladder::register(module)?;
    serve::register(module)?;
    impressions::register(module)
}
