//! Bindings of packing and scattering: columns as tuples of arrays, matrices as the caller's buffers.

use std::sync::Mutex;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use streamlearn_table::{
    Column, Dense, FlatShape, PackError, Pooling, ReadRows, SCATTER_KEYS_MAX, Scatter, Sequence,
    SequenceShape, Slot, pack_flat, pack_sequences,
};

use crate::arrays::{flat, flat_out};
use crate::ps::{NativeClient, fetched};
use crate::table::{NativeSet, Version, refuse};

/// `(name, table, at, pooling, keys, offsets, weights)`, or for numbers `(name, 0, at, "dense", numbers, None, width)`.
type ColumnTuple<'py> =
    (String, usize, usize, String, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

/// One column's arrays, borrowed for as long as this lives.
enum Borrowed<'py> {
    Slot {
        keys: PyReadonlyArray1<'py, u64>,
        offsets: Option<PyReadonlyArray1<'py, i32>>,
        weights: Option<PyReadonlyArray1<'py, f32>>,
    },
    Dense {
        numbers: PyReadonlyArray1<'py, f32>,
        width: usize,
    },
}

struct Named<'py> {
    name: String,
    table: usize,
    at: usize,
    pooling: String,
    arrays: Borrowed<'py>,
}

fn borrow_one<'py>(column: ColumnTuple<'py>) -> PyResult<Named<'py>> {
    let (name, table, at, pooling, values, offsets, last) = column;
    let arrays = if pooling == "dense" {
        let width = last.map(|width| width.extract()).transpose()?.unwrap_or(1);
        Borrowed::Dense { numbers: flat::<f32>(&values, &name, "float32")?, width }
    } else {
        let weights = last.map(|last| flat::<f32>(&last, &name, "float32")).transpose()?;
        let offsets = offsets.map(|offsets| flat::<i32>(&offsets, &name, "int32")).transpose()?;
        Borrowed::Slot { keys: flat::<u64>(&values, &name, "uint64")?, offsets, weights }
    };
    Ok(Named { name, table, at, pooling, arrays })
}

fn borrow<'py>(columns: Vec<ColumnTuple<'py>>) -> PyResult<Vec<Named<'py>>> {
    columns.into_iter().map(borrow_one).collect()
}

fn flat_columns<'a>(named: &'a [Named<'_>]) -> PyResult<Vec<Column<'a>>> {
    let one = |named: &'a Named<'_>| {
        let Named { name, table, at, pooling, arrays } = named;
        match arrays {
            Borrowed::Dense { numbers, width } => {
                Ok(Column::Dense(Dense { name, at: *at, width: *width, numbers: numbers.as_slice()? }))
            }
            Borrowed::Slot { keys, offsets, weights } => {
                let pooling = match (pooling.as_str(), weights) {
                    ("sum", None) => Pooling::Sum,
                    ("mean", None) => Pooling::Mean,
                    ("sqrtn", None) => Pooling::Sqrtn,
                    ("weighted", Some(weights)) => Pooling::Weighted(weights.as_slice()?),
                    (pooling, weights) => {
                        let has = if weights.is_some() { "with" } else { "without" };
                        let text = format!("{name}: pooling {pooling:?} {has} weights is not supported");
                        return Err(PyValueError::new_err(text));
                    }
                };
                let offsets = offsets.as_ref().map(|offsets| offsets.as_slice()).transpose()?;
                Ok(Column::Slot(Slot {
                    name,
                    table: *table,
                    at: *at,
                    pooling,
                    keys: keys.as_slice()?,
                    offsets,
                }))
            }
        }
    };
    named.iter().map(one).collect()
}

fn sequence_columns<'a>(named: &'a [Named<'_>]) -> PyResult<Vec<Sequence<'a>>> {
    let one = |named: &'a Named<'_>| match &named.arrays {
        Borrowed::Slot { keys, offsets: Some(offsets), weights: None } => Ok(Sequence {
            name: &named.name,
            table: named.table,
            at: named.at,
            keys: keys.as_slice()?,
            offsets: offsets.as_slice()?,
        }),
        _ => Err(PyValueError::new_err(format!("{}: a sequence has keys and offsets alone", named.name))),
    };
    named.iter().map(one).collect()
}

fn wrong(error: PackError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// `(examples, examples_padded, width, stride)`.
type Flat = (usize, usize, usize, usize);
/// `(users, users_padded, length, width, stride)`.
type Block = (usize, usize, usize, usize, usize);

fn flat_shape((examples, examples_padded, width, stride): Flat) -> FlatShape {
    FlatShape { examples, examples_padded, width, stride }
}

fn block_shape((users, users_padded, length, width, stride): Block) -> SequenceShape {
    SequenceShape { users, users_padded, length, width, stride }
}

fn floats(sizes: &[usize]) -> PyResult<usize> {
    let product = sizes.iter().try_fold(1usize, |all, &one| all.checked_mul(one));
    product.ok_or_else(|| PyValueError::new_err(format!("a buffer of {sizes:?} floats")))
}

/// Where rows come from: `(tables, at)` of this process, or `(client, count of tables, version)` of shards.
#[derive(FromPyObject)]
enum Source<'py> {
    Tables(PyRef<'py, NativeSet>, Version<'py>),
    Shards(PyRef<'py, NativeClient>, usize, Option<u64>),
}

impl Source<'_> {
    /// Work on readers of all tables; of shards, those of the keys that are named by table.
    fn read<'a>(
        &self,
        py: Python<'_>,
        keys: impl Iterator<Item = (usize, &'a [u64])>,
        work: impl Send + FnOnce(&[&dyn ReadRows]) -> Result<(), PackError>,
    ) -> PyResult<()> {
        match self {
            Self::Tables(set, at) => {
                let (at, set) = (at.at(&set.set)?, &set.set);
                let outcome = py.detach(|| {
                    set.readings(at).map(|readings| {
                        let readers: Vec<&dyn ReadRows> =
                            readings.iter().map(|one| one as &dyn ReadRows).collect();
                        work(&readers)
                    })
                });
                outcome.map_err(|error| refuse(py, &error))?.map_err(wrong)
            }
            Self::Shards(client, tables, at) => {
                let wanted = wanted(*tables, keys)?;
                let asked: Vec<(u16, &[u64])> =
                    wanted.iter().enumerate().map(|(table, keys)| (table as u16, keys.as_slice())).collect();
                let fetched = fetched(py, client, &asked, *at)?;
                py.detach(|| work(&fetched.readers())).map_err(wrong)?;
                assert_eq!(fetched.missing(), 0, "what is packed was asked for");
                Ok(())
            }
        }
    }
}

/// The keys that columns want, by table.
fn wanted<'a>(tables: usize, keys: impl Iterator<Item = (usize, &'a [u64])>) -> PyResult<Vec<Vec<u64>>> {
    let mut wanted = vec![Vec::new(); tables];
    for (table, keys) in keys {
        let all: &mut Vec<u64> = wanted
            .get_mut(table)
            .ok_or_else(|| PyIndexError::new_err(format!("table {table} of {tables}")))?;
        all.extend_from_slice(keys);
    }
    Ok(wanted)
}

#[pyfunction]
#[pyo3(name = "pack_flat")]
fn pack_flat_into(
    py: Python<'_>,
    source: Source<'_>,
    columns: Vec<ColumnTuple<'_>>,
    shape: Flat,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let named = borrow(columns)?;
    let (columns, shape) = (flat_columns(&named)?, flat_shape(shape));
    let length = floats(&[shape.examples_padded, shape.stride])?;
    let mut out = flat_out::<f32>(out, ("out", "float32"), length)?;
    let out = out.as_slice_mut()?;
    let keys = columns.iter().filter_map(|column| match column {
        Column::Slot(slot) => Some((slot.table, slot.keys)),
        Column::Dense(_) => None,
    });
    source.read(py, keys, |tables| pack_flat(tables, &columns, shape, out))
}

#[pyfunction]
#[pyo3(name = "pack_sequences")]
fn pack_sequences_into(
    py: Python<'_>,
    source: Source<'_>,
    columns: Vec<ColumnTuple<'_>>,
    shape: Block,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let named = borrow(columns)?;
    let (columns, shape) = (sequence_columns(&named)?, block_shape(shape));
    let length = floats(&[shape.users_padded, shape.length, shape.stride])?;
    let mut out = flat_out::<f32>(out, ("out", "float32"), length)?;
    let out = out.as_slice_mut()?;
    let keys = columns.iter().map(|slot| (slot.table, slot.keys));
    source.read(py, keys, |tables| pack_sequences(tables, &columns, shape, out))
}

#[pyclass(frozen, name = "Scatter", module = "streamlearn._native")]
struct NativeScatter {
    scatter: Mutex<Scatter>,
    tables: usize,
}

type GradientArrays<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<u32>>);

#[pymethods]
impl NativeScatter {
    #[new]
    fn new(dims: Vec<usize>, keys_max: usize) -> PyResult<Self> {
        if keys_max > SCATTER_KEYS_MAX || dims.contains(&0) {
            let text =
                format!("keys_max is {keys_max}, at most {SCATTER_KEYS_MAX}; dims are {dims:?}, at least 1");
            return Err(PyValueError::new_err(text));
        }
        Ok(Self { scatter: Mutex::new(Scatter::new(&dims, keys_max)), tables: dims.len() })
    }

    fn clear(&self) {
        self.locked().clear();
    }

    fn add_flat(
        &self,
        py: Python<'_>,
        columns: Vec<ColumnTuple<'_>>,
        shape: Flat,
        gradients: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let named = borrow(columns)?;
        let columns = flat_columns(&named)?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let gradients = gradients.as_slice()?;
        py.detach(|| self.locked().add_flat(&columns, flat_shape(shape), gradients)).map_err(wrong)
    }

    fn add_sequences(
        &self,
        py: Python<'_>,
        columns: Vec<ColumnTuple<'_>>,
        shape: Block,
        gradients: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let named = borrow(columns)?;
        let columns = sequence_columns(&named)?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let gradients = gradients.as_slice()?;
        py.detach(|| self.locked().add_sequences(&columns, block_shape(shape), gradients)).map_err(wrong)
    }

    fn gradients<'py>(&self, py: Python<'py>, table: usize) -> PyResult<GradientArrays<'py>> {
        if table >= self.tables {
            return Err(PyIndexError::new_err(format!("table {table} of {}", self.tables)));
        }
        let locked = self.locked();
        let found = locked.gradients(table);
        Ok((
            found.keys.to_vec().into_pyarray(py),
            found.rows.to_vec().into_pyarray(py),
            found.counts.to_vec().into_pyarray(py),
        ))
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.locked().bytes()
    }
}

impl NativeScatter {
    fn locked(&self) -> std::sync::MutexGuard<'_, Scatter> {
        self.scatter.lock().expect("no holder panics")
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_flat_into, module)?)?;
    module.add_function(wrap_pyfunction!(pack_sequences_into, module)?)?;
    module.add_class::<NativeScatter>()
}
