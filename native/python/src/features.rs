//! Bindings of `features`.

use numpy::IntoPyArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use streamlearn_features::{
    Definition, Error, Feature, Interactions, MemoryStates, Repeats, Values, evaluate_all, fold_all,
    read_states,
};

use crate::arrays::{Bytes, buffers_of, flat};

type Arrays<'py> = Vec<Bound<'py, PyAny>>;

fn refused(error: &Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pyclass(name = "Features", module = "streamlearn._native", frozen)]
struct NativeFeatures {
    definition: Definition,
}

#[pymethods]
impl NativeFeatures {
    #[new]
    fn new(definition: &str) -> PyResult<Self> {
        Definition::from_json(definition)
            .map(|definition| Self { definition })
            .map_err(|error| refused(&error))
    }

    #[getter]
    fn bytes_max(&self) -> usize {
        self.definition.bytes_max()
    }

    /// Takes stored states, and interactions as (entities, times, identities, positions, kinds, values, columns).
    fn fold<'py>(
        &self,
        py: Python<'py>,
        stored: Arrays<'py>,
        interactions: [Bound<'py, PyAny>; 7],
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyList>, usize)> {
        let buffers = buffers_of(&stored)?;
        let stored: Vec<Option<&[u8]>> =
            buffers.iter().map(|one| one.as_ref().map(Bytes::as_slice)).collect();
        let [entities, times, identities, positions, kinds, values, columns] = &interactions;
        let entities = flat::<u32>(entities, "entities", "uint32")?;
        let times = flat::<i64>(times, "times_ms", "int64")?;
        let identities = flat::<u64>(identities, "identities", "uint64")?;
        let positions = flat::<i64>(positions, "positions", "int64")?;
        let kinds = flat::<u8>(kinds, "kinds", "uint8")?;
        let values = flat::<f32>(values, "values", "float32")?;
        let columns = flat::<u64>(columns, "columns", "uint64")?;
        let all = Interactions {
            entities: entities.as_slice()?,
            times_ms: times.as_slice()?,
            identities: identities.as_slice()?,
            positions: positions.as_slice()?,
            kinds: kinds.as_slice()?,
            values: values.as_slice()?,
            columns: columns.as_slice()?,
        };
        let definition = &self.definition;
        let (read, encoded, folded) = py
            .detach(|| {
                let (mut states, read) = read_states(definition, &stored);
                let folded = fold_all(definition, &mut states, &all)?;
                let encoded = states.iter().map(|state| {
                    let mut bytes = Vec::new();
                    state.encode(definition, &mut bytes);
                    bytes
                });
                Ok((read, encoded.collect::<Vec<_>>(), folded))
            })
            .map_err(|error| refused(&error))?;
        let read: Vec<u8> = read.into_iter().map(|one| one as u8).collect();
        let encoded = PyList::new(py, encoded.iter().map(|bytes| PyBytes::new(py, bytes)))?;
        Ok((read.into_pyarray(py).into_any(), encoded, folded))
    }

    /// Returns what became of each stored state, and its position; by feature its keys and their ends, or its numbers.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        stored: Arrays<'py>,
        entities: &Bound<'py, PyAny>,
        now_ms: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, Vec<Arrays<'py>>)> {
        let buffers = buffers_of(&stored)?;
        let stored: Vec<Option<&[u8]>> =
            buffers.iter().map(|one| one.as_ref().map(Bytes::as_slice)).collect();
        let (entities, now_ms) =
            (flat::<u32>(entities, "entities", "uint32")?, flat::<i64>(now_ms, "now_ms", "int64")?);
        let (entities, now_ms, definition) = (entities.as_slice()?, now_ms.as_slice()?, &self.definition);
        let (read, positions, values) = py
            .detach(|| {
                let (states, read) = read_states(definition, &stored);
                let positions: Vec<i64> = states.iter().map(|state| state.position).collect();
                Ok((read, positions, evaluate_all(definition, &states, entities, now_ms)?))
            })
            .map_err(|error| refused(&error))?;
        let read: Vec<u8> = read.into_iter().map(|one| one as u8).collect();
        Ok((
            read.into_pyarray(py).into_any(),
            positions.into_pyarray(py).into_any(),
            arrays_of(py, definition, values),
        ))
    }
}

/// By feature, its keys and their ends, or its numbers.
fn arrays_of<'py>(py: Python<'py>, definition: &Definition, values: Values) -> Vec<Arrays<'py>> {
    let each = values.keys.into_iter().zip(values.ends).zip(values.numbers);
    let arrays = definition.features().iter().zip(each).map(|(feature, ((keys, ends), numbers))| {
        if matches!(feature, Feature::Last { .. }) {
            let ends: Vec<i64> = ends.into_iter().map(|end| end as i64).collect();
            return vec![keys.into_pyarray(py).into_any(), ends.into_pyarray(py).into_any()];
        }
        vec![numbers.into_pyarray(py).into_any()]
    });
    arrays.collect()
}

#[pyclass(name = "MemoryStates", module = "streamlearn._native")]
struct NativeMemoryStates {
    definition: Definition,
    states: MemoryStates,
}

#[pymethods]
impl NativeMemoryStates {
    #[new]
    fn new(definition: &str) -> PyResult<Self> {
        let definition = Definition::from_json(definition).map_err(|error| refused(&error))?;
        Ok(Self { definition, states: MemoryStates::default() })
    }

    /// Takes rows as (entities, times, identities, kinds, values, columns); kind 255 evaluates.
    fn run<'py>(&mut self, py: Python<'py>, rows: [Bound<'py, PyAny>; 6]) -> PyResult<Vec<Arrays<'py>>> {
        let [entities, times, identities, kinds, values, columns] = &rows;
        let entities = flat::<u64>(entities, "entities", "uint64")?;
        let times = flat::<i64>(times, "times_ms", "int64")?;
        let identities = flat::<u64>(identities, "identities", "uint64")?;
        let kinds = flat::<u8>(kinds, "kinds", "uint8")?;
        let values = flat::<f32>(values, "values", "float32")?;
        let columns = flat::<u64>(columns, "columns", "uint64")?;
        let all = Interactions {
            entities: &[],
            times_ms: times.as_slice()?,
            identities: identities.as_slice()?,
            positions: &[],
            kinds: kinds.as_slice()?,
            values: values.as_slice()?,
            columns: columns.as_slice()?,
        };
        let (entities, definition, states) = (entities.as_slice()?, &self.definition, &mut self.states);
        let values = py.detach(|| states.run(definition, entities, &all)).map_err(|error| refused(&error))?;
        Ok(arrays_of(py, definition, values))
    }
}

#[pyclass(name = "Repeats", module = "streamlearn._native")]
struct NativeRepeats {
    repeats: Repeats,
}

#[pymethods]
impl NativeRepeats {
    #[new]
    fn new(most: usize) -> Self {
        Self { repeats: Repeats::new(most) }
    }

    /// Notes interactions; returns of each whether it is new.
    fn note<'py>(&mut self, py: Python<'py>, identities: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let identities = flat::<u64>(identities, "identities", "uint64")?;
        let (identities, repeats) = (identities.as_slice()?, &mut self.repeats);
        let new: Vec<bool> = py.detach(|| identities.iter().map(|&one| repeats.note(one)).collect());
        Ok(new.into_pyarray(py).into_any())
    }

    fn __len__(&self) -> usize {
        self.repeats.len()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeFeatures>()?;
    module.add_class::<NativeMemoryStates>()?;
    module.add_class::<NativeRepeats>()
}
