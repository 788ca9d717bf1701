//! The parts of keys, for callers that send keys to the owner of their part.

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use streamlearn_table::part_of_key;

use crate::arrays::flat;

/// The part of each key.
#[pyfunction]
fn parts_of<'py>(py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u16>>> {
    let keys = flat::<u64>(keys, "keys", "uint64")?;
    let keys = keys.as_slice()?;
    let parts: Vec<u16> = py.detach(|| keys.iter().map(|&key| part_of_key(key) as u16).collect());
    Ok(parts.into_pyarray(py))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(parts_of, module)?)
}
