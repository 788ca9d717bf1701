//! Bindings of packing and scattering: columns as structs of arrays, matrices in the caller's buffers.

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

/// A column to pack; `ColumnArrays` in `streamlearn.table.source`.
#[derive(FromPyObject)]
struct ColumnArrays<'py> {
    name: String,
    /// Its first channel in a row of the matrix.
    at: usize,
    /// Its number of channels.
    width: usize,
    /// "dense", or how the rows of a slot's keys are combined.
    pooling: String,
    /// uint64, the keys of a slot; or float32, dense numbers.
    values: Bound<'py, PyAny>,
    /// The number of the table of a slot.
    table: usize,
    /// int32[n + 1], offsets that cut the keys by row; None: one key a row.
    offsets: Option<Bound<'py, PyAny>>,
    /// float32, a weight for each key.
    weights: Option<Bound<'py, PyAny>>,
}

/// One column's borrowed arrays.
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

struct BorrowedColumn<'py> {
    name: String,
    table: usize,
    at: usize,
    pooling: String,
    arrays: Borrowed<'py>,
}

fn borrow_column<'py>(column: ColumnArrays<'py>) -> PyResult<BorrowedColumn<'py>> {
    let ColumnArrays { name, at, width, pooling, values, table, offsets, weights } = column;
    let arrays = if pooling == "dense" {
        Borrowed::Dense { numbers: flat::<f32>(&values, &name, "float32")?, width }
    } else {
        let weights = weights.map(|weights| flat::<f32>(&weights, &name, "float32")).transpose()?;
        let offsets = offsets.map(|offsets| flat::<i32>(&offsets, &name, "int32")).transpose()?;
        Borrowed::Slot { keys: flat::<u64>(&values, &name, "uint64")?, offsets, weights }
    };
    Ok(BorrowedColumn { name, table, at, pooling, arrays })
}

fn borrow<'py>(columns: Vec<ColumnArrays<'py>>) -> PyResult<Vec<BorrowedColumn<'py>>> {
    columns.into_iter().map(borrow_column).collect()
}

fn flat_columns<'a>(columns: &'a [BorrowedColumn<'_>]) -> PyResult<Vec<Column<'a>>> {
    let column_of = |borrowed: &'a BorrowedColumn<'_>| {
        let BorrowedColumn { name, table, at, pooling, arrays } = borrowed;
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
    columns.iter().map(column_of).collect()
}

fn sequence_columns<'a>(columns: &'a [BorrowedColumn<'_>]) -> PyResult<Vec<Sequence<'a>>> {
    let sequence_of = |column: &'a BorrowedColumn<'_>| match &column.arrays {
        Borrowed::Slot { keys, offsets: Some(offsets), weights: None } => Ok(Sequence {
            name: &column.name,
            table: column.table,
            at: column.at,
            keys: keys.as_slice()?,
            offsets: offsets.as_slice()?,
        }),
        _ => Err(PyValueError::new_err(format!("{}: a sequence takes keys and offsets only", column.name))),
    };
    columns.iter().map(sequence_of).collect()
}

fn value_error(error: PackError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The shape of a flat matrix, float32[rows_padded, stride], or of a sequence block, float32[rows_padded, length,
/// stride]; `PackShape` in `streamlearn.table.source`.
#[derive(FromPyObject)]
struct PackShape {
    /// Examples or users.
    rows: usize,
    rows_padded: usize,
    /// Channels in use; the rest of `stride` is padding.
    width: usize,
    stride: usize,
    /// Positions of a history; a flat matrix ignores it.
    length: usize,
}

fn flat_shape(shape: PackShape) -> FlatShape {
    let PackShape { rows: examples, rows_padded: examples_padded, width, stride, .. } = shape;
    FlatShape { examples, examples_padded, width, stride }
}

fn block_shape(shape: PackShape) -> SequenceShape {
    let PackShape { rows: users, rows_padded: users_padded, width, stride, length } = shape;
    SequenceShape { users, users_padded, length, width, stride }
}

fn floats(sizes: &[usize]) -> PyResult<usize> {
    let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    product.ok_or_else(|| PyValueError::new_err(format!("a buffer of {sizes:?} floats is too large")))
}

/// The source of rows: `(tables, at)` of this process, or `(client, number of tables, version)` of shards.
#[derive(FromPyObject)]
enum Source<'py> {
    Tables(PyRef<'py, NativeSet>, Version<'py>),
    Shards(PyRef<'py, NativeClient>, usize, Option<u64>),
}

impl Source<'_> {
    /// Calls `work` with readers of all tables. For shards, they have only the keys given by table.
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
                            readings.iter().map(|reading| reading as &dyn ReadRows).collect();
                        work(&readers)
                    })
                });
                outcome.map_err(|error| refuse(py, &error))?.map_err(value_error)
            }
            Self::Shards(client, tables, at) => {
                let keys_by_table = keys_by_table(*tables, keys)?;
                let requests: Vec<(u16, &[u64])> = keys_by_table
                    .iter()
                    .enumerate()
                    .map(|(table, keys)| (table as u16, keys.as_slice()))
                    .collect();
                let fetched = fetched(py, client, &requests, *at)?;
                py.detach(|| work(&fetched.readers())).map_err(value_error)?;
                assert_eq!(fetched.missing(), 0, "all packed keys were fetched");
                Ok(())
            }
        }
    }
}

/// The keys of the columns, by table.
fn keys_by_table<'a>(
    tables: usize,
    keys: impl Iterator<Item = (usize, &'a [u64])>,
) -> PyResult<Vec<Vec<u64>>> {
    let mut by_table = vec![Vec::new(); tables];
    for (table, keys) in keys {
        let table_keys: &mut Vec<u64> = by_table
            .get_mut(table)
            .ok_or_else(|| PyIndexError::new_err(format!("table {table} of {tables}")))?;
        table_keys.extend_from_slice(keys);
    }
    Ok(by_table)
}

#[pyfunction]
#[pyo3(name = "pack_flat")]
fn pack_flat_into(
    py: Python<'_>,
    source: Source<'_>,
    columns: Vec<ColumnArrays<'_>>,
    shape: PackShape,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let borrowed = borrow(columns)?;
    let (columns, shape) = (flat_columns(&borrowed)?, flat_shape(shape));
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
    columns: Vec<ColumnArrays<'_>>,
    shape: PackShape,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let borrowed = borrow(columns)?;
    let (columns, shape) = (sequence_columns(&borrowed)?, block_shape(shape));
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
            let text = format!(
                "keys_max is {keys_max} and dims are {dims:?}; keys_max must be at most {SCATTER_KEYS_MAX}, dims at least 1"
            );
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
        columns: Vec<ColumnArrays<'_>>,
        shape: PackShape,
        gradients: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let borrowed = borrow(columns)?;
        let columns = flat_columns(&borrowed)?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let gradients = gradients.as_slice()?;
        py.detach(|| self.locked().add_flat(&columns, flat_shape(shape), gradients)).map_err(value_error)
    }

    fn add_sequences(
        &self,
        py: Python<'_>,
        columns: Vec<ColumnArrays<'_>>,
        shape: PackShape,
        gradients: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let borrowed = borrow(columns)?;
        let columns = sequence_columns(&borrowed)?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let gradients = gradients.as_slice()?;
        py.detach(|| self.locked().add_sequences(&columns, block_shape(shape), gradients))
            .map_err(value_error)
    }

    fn gradients<'py>(&self, py: Python<'py>, table: usize) -> PyResult<GradientArrays<'py>> {
        if table >= self.tables {
            return Err(PyIndexError::new_err(format!("table {table} of {}", self.tables)));
        }
        let locked = self.locked();
        let gradients = locked.gradients(table);
        Ok((
            gradients.keys.to_vec().into_pyarray(py),
            gradients.rows.to_vec().into_pyarray(py),
            gradients.counts.to_vec().into_pyarray(py),
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
