//! Bindings of `wire::avro`.

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping};
use streamlearn_wire::avro::{Column, Decoded, Decoder, Kind, Limits, OffsetsOverflow, Plan, Slice};

use crate::arrays::{Bytes, flat, is_flat};

#[pyclass(frozen, module = "streamlearn._native")]
struct AvroPlan {
    plan: Plan,
}

type DecodedArrays<'py> = (Bound<'py, PyDict>, Bound<'py, PyArray1<i64>>, Vec<(usize, String)>);
type EncodedArrays<'py> = (Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<i64>>);

const ITEMS_MAX: u64 = 1_000_000;

#[pymethods]
impl AvroPlan {
    #[new]
    #[pyo3(signature = (writer, reader=None))]
    fn new(writer: &str, reader: Option<&str>) -> PyResult<Self> {
        let plan = Plan::new(writer, reader.unwrap_or(writer));
        plan.map(|plan| Self { plan }).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn columns(&self) -> Vec<(&str, &'static str)> {
        self.plan.columns().map(|(name, kind)| (name, kind.dtype())).collect()
    }

    #[pyo3(signature = (buffer, starts, ends, *, items_max=ITEMS_MAX))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        starts: &Bound<'py, PyAny>,
        ends: &Bound<'py, PyAny>,
        items_max: u64,
    ) -> PyResult<DecodedArrays<'py>> {
        let buffer = flat::<u8>(buffer, "buffer", "uint8")?;
        let starts = flat::<i64>(starts, "starts", "int64")?;
        let ends = flat::<i64>(ends, "ends", "int64")?;
        let (buffer, starts, ends) = (buffer.as_slice()?, starts.as_slice()?, ends.as_slice()?);
        if starts.len() != ends.len() {
            let text = format!(
                "starts and ends: {} and {} values, expected equal numbers",
                starts.len(),
                ends.len()
            );
            return Err(PyValueError::new_err(text));
        }
        let limits = Limits { items_max, ..Limits::default() };
        let decoded = py.detach(|| {
            let bytes =
                starts.iter().zip(ends).map(|(&start, &end)| end.saturating_sub(start).max(0) as usize);
            let bytes = bytes.fold(0, usize::saturating_add).min(buffer.len());
            let mut decoder = Decoder::new(&self.plan, limits).expecting(bytes);
            for (index, (&start, &end)) in starts.iter().zip(ends).enumerate() {
                let span = usize::try_from(start).ok().zip(usize::try_from(end).ok());
                let Some(record) = span.and_then(|(start, end)| buffer.get(start..end)) else {
                    let length = buffer.len();
                    return Err(format!(
                        "span {index}: [{start}, {end}) is not inside a buffer of {length} bytes"
                    ));
                };
                decoder.push(index, record).map_err(|error| error.to_string())?;
            }
            Ok(decoder.finish())
        });
        arrays(py, &self.plan, decoded.map_err(PyValueError::new_err)?)
    }

    #[pyo3(signature = (records, skip=0, *, items_max=ITEMS_MAX))]
    fn decode_list<'py>(
        &self,
        py: Python<'py>,
        records: &Bound<'py, PyList>,
        skip: usize,
        items_max: u64,
    ) -> PyResult<DecodedArrays<'py>> {
        // The list may change while the interpreter continues, so each record is held on its own.
        let records_held =
            records.iter().enumerate().map(|(index, record)| match record.cast_into::<PyBytes>() {
                Ok(record) => Ok(record),
                Err(error) => {
                    let actual = error.into_inner().get_type().qualname()?;
                    Err(PyTypeError::new_err(format!("records[{index}]: expected bytes, got {actual}")))
                }
            });
        let records_held = records_held.collect::<PyResult<Vec<_>>>()?;
        let bytes: Vec<&[u8]> = records_held.iter().map(|record| record.as_bytes()).collect();
        let limits = Limits { items_max, ..Limits::default() };
        let decoded = py.detach(|| {
            let size = bytes.iter().map(|record| record.len().saturating_sub(skip)).sum();
            let mut decoder = Decoder::new(&self.plan, limits).expecting(size);
            for (index, record) in bytes.iter().enumerate() {
                match record.get(skip..) {
                    Some(body) => decoder.push(index, body)?,
                    None => {
                        decoder.fail(index, format!("{} bytes, fewer than the {skip} to skip", record.len()))
                    }
                }
            }
            Ok(decoder.finish())
        });
        arrays(
            py,
            &self.plan,
            decoded.map_err(|error: OffsetsOverflow| PyValueError::new_err(error.to_string()))?,
        )
    }

    #[pyo3(signature = (columns, rows, prefix=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        columns: &Bound<'py, PyMapping>,
        rows: usize,
        prefix: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<EncodedArrays<'py>> {
        let prefix = prefix.map(|prefix| Bytes::of(prefix, "prefix")).transpose()?;
        let prefix = prefix.as_ref().map_or(&[][..], Bytes::as_slice);
        let borrowed = borrow_columns(&self.plan, columns)?;
        let slices = borrowed.iter().map(|column| column.as_ref().map(Borrowed::slice).transpose());
        let slices = slices.collect::<PyResult<Vec<_>>>()?;
        let encoded = py.detach(|| self.plan.encode(&slices, rows, prefix));
        let (buffer, offsets) = encoded.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((buffer.into_pyarray(py), offsets.into_pyarray(py)))
    }
}

fn arrays<'py>(py: Python<'py>, plan: &Plan, decoded: Decoded) -> PyResult<DecodedArrays<'py>> {
    let columns = PyDict::new(py);
    for ((name, _), column) in plan.columns().zip(decoded.columns) {
        let array = match column {
            Column::Bool(values) => values.into_pyarray(py).call_method1("view", ("bool",))?,
            Column::U8(values) => values.into_pyarray(py).into_any(),
            Column::I32(values) => values.into_pyarray(py).into_any(),
            Column::I64(values) => values.into_pyarray(py).into_any(),
            Column::F32(values) => values.into_pyarray(py).into_any(),
            Column::F64(values) => values.into_pyarray(py).into_any(),
        };
        columns.set_item(name, array)?;
    }
    let failures = decoded.failures.into_iter().map(|failure| (failure.index, failure.reason)).collect();
    Ok((columns, decoded.rows.into_pyarray(py), failures))
}

/// A column borrowed for reading while records are encoded.
enum Borrowed<'py> {
    U8(PyReadonlyArray1<'py, u8>),
    I32(PyReadonlyArray1<'py, i32>),
    I64(PyReadonlyArray1<'py, i64>),
    F32(PyReadonlyArray1<'py, f32>),
    F64(PyReadonlyArray1<'py, f64>),
}

impl Borrowed<'_> {
    fn slice(&self) -> PyResult<Slice<'_>> {
        Ok(match self {
            Self::U8(values) => Slice::U8(values.as_slice()?),
            Self::I32(values) => Slice::I32(values.as_slice()?),
            Self::I64(values) => Slice::I64(values.as_slice()?),
            Self::F32(values) => Slice::F32(values.as_slice()?),
            Self::F64(values) => Slice::F64(values.as_slice()?),
        })
    }
}

fn borrow_columns<'py>(plan: &Plan, columns: &Bound<'py, PyMapping>) -> PyResult<Vec<Option<Borrowed<'py>>>> {
    let mut borrowed = Vec::with_capacity(plan.columns().len());
    let mut matches = 0;
    for (name, kind) in plan.columns() {
        let column = if columns.contains(name)? {
            Some(borrow_column(name, kind, &columns.get_item(name)?)?)
        } else {
            None
        };
        matches += usize::from(column.is_some());
        borrowed.push(column);
    }
    if matches < columns.len()? {
        for name in columns.keys()?.iter() {
            let text = name.str()?.to_string();
            if !plan.columns().any(|(column_name, _)| column_name == text) {
                return Err(PyValueError::new_err(format!("column '{text}': the schema has no such column")));
            }
        }
    }
    Ok(borrowed)
}

fn borrow_column<'py>(name: &str, kind: Kind, value: &Bound<'py, PyAny>) -> PyResult<Borrowed<'py>> {
    let place = format!("column '{name}'");
    Ok(match kind {
        // NumPy's bool bytes are 0 or 1 as here, but only uint8 arrays can be borrowed and checked.
        _ if (kind == Kind::Bool || name.ends_with('?')) && is_flat::<bool>(value) => {
            Borrowed::U8(flat(&value.call_method1("view", ("uint8",))?, &place, "uint8")?)
        }
        Kind::Bool => Borrowed::U8(flat(value, &place, "bool or uint8")?),
        Kind::U8 => Borrowed::U8(flat(value, &place, "uint8")?),
        Kind::I32 => Borrowed::I32(flat(value, &place, "int32")?),
        Kind::I64 => Borrowed::I64(flat(value, &place, "int64")?),
        Kind::F32 => Borrowed::F32(flat(value, &place, "float32")?),
        Kind::F64 => Borrowed::F64(flat(value, &place, "float64")?),
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<AvroPlan>()
}
