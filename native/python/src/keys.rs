//! Bindings of `wire::keys` and `wire::checksum`.

use pyo3::prelude::*;
use streamlearn_wire::{checksum, keys};

#[pyfunction]
fn slot_salt(name: &str) -> u64 {
    keys::slot_salt(name)
}

#[pyfunction]
#[pyo3(signature = (data, seed=0))]
fn crc32c(py: Python<'_>, data: &[u8], seed: u32) -> u32 {
    py.detach(|| checksum::crc32c(seed, data))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(slot_salt, module)?)?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)
}
