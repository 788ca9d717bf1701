//! Bindings of `wire::partitioner` and `wire::spans`.

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_wire::{partitioner, spans};

use crate::arrays::flat;

type Array<'py, T> = Bound<'py, PyArray1<T>>;

#[pyfunction]
fn partitions_of<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    partitions: u32,
) -> PyResult<Array<'py, i32>> {
    if partitions == 0 {
        return Err(PyValueError::new_err("partitions: expected at least 1, got 0"));
    }
    let (offsets, data) = (flat::<i32>(offsets, "offsets", "int32")?, flat::<u8>(data, "data", "uint8")?);
    let (offsets, data) = (offsets.as_slice()?, data.as_slice()?);
    let partitions_of_keys = py.detach(|| partitioner::partitions_of(offsets, data, partitions));
    Ok(PyArray1::from_vec(py, partitions_of_keys.map_err(|error| PyValueError::new_err(error.to_string()))?))
}

#[pyfunction]
fn partition_of(key: &[u8], partitions: u32) -> PyResult<u32> {
    if partitions == 0 {
        return Err(PyValueError::new_err("partitions: expected at least 1, got 0"));
    }
    Ok(partitioner::partition_of(key, partitions))
}

#[pyfunction]
fn take_spans<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    rows: &Bound<'py, PyAny>,
) -> PyResult<(Array<'py, u8>, Array<'py, i32>)> {
    let (data, offsets) = (flat::<u8>(data, "data", "uint8")?, flat::<i64>(offsets, "offsets", "int64")?);
    let rows = flat::<i64>(rows, "rows", "int64")?;
    let (data, offsets, rows) = (data.as_slice()?, offsets.as_slice()?, rows.as_slice()?);
    let taken = py.detach(|| spans::take_spans(data, offsets, rows));
    let (taken, cuts) = taken.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((PyArray1::from_vec(py, taken), PyArray1::from_vec(py, cuts)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(partition_of, module)?)?;
    module.add_function(wrap_pyfunction!(partitions_of, module)?)?;
    module.add_function(wrap_pyfunction!(take_spans, module)?)
}
