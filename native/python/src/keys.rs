//! Bindings of `wire::keys`, `wire::checksum` and `wire::offsets`.

use numpy::{Element, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_wire::{checksum, keys, offsets};

use crate::arrays::{Bytes, flat, flat_out, is_flat};

#[pyfunction]
fn slot_salt(name: &str) -> u64 {
    keys::slot_salt(name)
}

/// The array to write keys into: the caller's or a new one.
fn keys_out<'py>(
    py: Python<'py>,
    out: Option<Bound<'py, PyAny>>,
    length: usize,
) -> PyResult<(Bound<'py, PyAny>, PyReadwriteArray1<'py, u64>)> {
    let array = out.unwrap_or_else(|| PyArray1::<u64>::zeros(py, length, false).into_any());
    let guard = flat_out(&array, ("out", "uint64"), length)?;
    Ok((array, guard))
}

#[pyfunction]
#[pyo3(signature = (values, salt, out=None))]
fn hash_ints<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    salt: u64,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let values = flat::<i64>(values, "values", "int64")?;
    let values = values.as_slice()?;
    let (array, mut guard) = keys_out(py, out, values.len())?;
    let into = guard.as_slice_mut()?;
    py.detach(|| keys::hash_ints(values, salt, into));
    Ok(array)
}

#[pyfunction]
fn cross_keys<'py>(
    py: Python<'py>,
    first: &Bound<'py, PyAny>,
    second: &Bound<'py, PyAny>,
    salt: u64,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (first, second) = (flat::<u64>(first, "first", "uint64")?, flat::<u64>(second, "second", "uint64")?);
    let (first, second) = (first.as_slice()?, second.as_slice()?);
    if first.len() != second.len() {
        let message = format!("{} keys cannot be crossed with {}", first.len(), second.len());
        return Err(PyValueError::new_err(message));
    }
    let pairs = first.iter().zip(second);
    let keys: Vec<u64> = py.detach(|| pairs.map(|(&a, &b)| keys::key_of_pair(a, b, salt)).collect());
    Ok(PyArray1::from_vec(py, keys))
}

#[pyfunction]
fn count_keys<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    lists: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let (keys, lists) = (flat::<u64>(keys, "keys", "uint64")?, flat::<u64>(lists, "lists", "uint64")?);
    let (index, offsets) = (flat::<i32>(index, "index", "int32")?, flat::<i32>(offsets, "offsets", "int32")?);
    let (keys, index, lists) = (keys.as_slice()?, index.as_slice()?, lists.as_slice()?);
    let offsets = offsets.as_slice()?;
    offsets::check_offsets(offsets, lists.len()).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let is_list = |&list: &i32| usize::try_from(list).is_ok_and(|list| list + 1 < offsets.len());
    if keys.len() != index.len() || !index.iter().all(is_list) {
        return Err(PyValueError::new_err("index must have a list for each key"));
    }
    let counts = py.detach(|| {
        let count = |(&key, &list): (&u64, &i32)| {
            let (begin, end) = (offsets[list as usize], offsets[list as usize + 1]);
            keys::occurrences(key, &lists[begin as usize..end as usize])
        };
        keys.iter().zip(index).map(count).collect()
    });
    Ok(PyArray1::from_vec(py, counts))
}

#[pyfunction]
#[pyo3(signature = (offsets, data, salt, out=None))]
fn hash_strings<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    salt: u64,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let data = flat::<u8>(data, "data", "uint8")?;
    if is_flat::<i32>(offsets) {
        hash_strings_by(py, &flat::<i32>(offsets, "offsets", OFFSETS)?, &data, (salt, out))
    } else {
        hash_strings_by(py, &flat::<i64>(offsets, "offsets", OFFSETS)?, &data, (salt, out))
    }
}

const OFFSETS: &str = "int32 or int64";

fn hash_strings_by<'py, O: Element + Copy + Into<i64>>(
    py: Python<'py>,
    offsets: &PyReadonlyArray1<'py, O>,
    data: &PyReadonlyArray1<'py, u8>,
    (salt, out): (u64, Option<Bound<'py, PyAny>>),
) -> PyResult<Bound<'py, PyAny>> {
    let (offsets, data) = (offsets.as_slice()?, data.as_slice()?);
    let (array, mut guard) = keys_out(py, out, offsets.len().saturating_sub(1))?;
    let into = guard.as_slice_mut()?;
    let outcome = py.detach(|| keys::hash_strings(offsets, data, salt, into));
    outcome.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(array)
}

#[pyfunction]
fn check_offsets(py: Python<'_>, offsets: &Bound<'_, PyAny>, length: usize) -> PyResult<()> {
    let outcome = if is_flat::<i32>(offsets) {
        let offsets = flat::<i32>(offsets, "offsets", OFFSETS)?;
        let offsets = offsets.as_slice()?;
        py.detach(|| offsets::check_offsets(offsets, length))
    } else {
        let offsets = flat::<i64>(offsets, "offsets", OFFSETS)?;
        let offsets = offsets.as_slice()?;
        py.detach(|| offsets::check_offsets(offsets, length))
    };
    outcome.map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pyfunction]
#[pyo3(signature = (data, seed=0))]
fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>, seed: u32) -> PyResult<u32> {
    let data = Bytes::of(data, "data")?;
    let bytes = data.as_slice();
    Ok(py.detach(|| checksum::crc32c(seed, bytes)))
}

#[pyfunction]
fn schema_fingerprint(canonical: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(checksum::schema_fingerprint(Bytes::of(canonical, "canonical")?.as_slice()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(slot_salt, module)?)?;
    module.add_function(wrap_pyfunction!(hash_ints, module)?)?;
    module.add_function(wrap_pyfunction!(cross_keys, module)?)?;
    module.add_function(wrap_pyfunction!(count_keys, module)?)?;
    module.add_function(wrap_pyfunction!(hash_strings, module)?)?;
    module.add_function(wrap_pyfunction!(check_offsets, module)?)?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(schema_fingerprint, module)?)
}
