//! Bindings of `wire::frame`: lists of bytes to frames and back. The byte work runs without the GIL.

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use streamlearn_wire::frame::{self, Frame, Limits, Record, kafka};

type Parts = Vec<Option<PyBackedBytes>>;
type Columns<'py> =
    (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyList>, Bound<'py, PyList>);
type ScannedColumns<'py> = (Columns<'py>, usize, &'static str);
type Epochs = Vec<(i64, i32)>;
type Blocks = (Vec<(i64, usize, i64)>, usize, i64, &'static str);

#[derive(Default)]
struct Gathered<'py> {
    offsets: Vec<i64>,
    timestamps_ms: Vec<i64>,
    keys: Vec<Option<Bound<'py, PyBytes>>>,
    values: Vec<Option<Bound<'py, PyBytes>>>,
}

impl<'py> Gathered<'py> {
    fn add(&mut self, py: Python<'py>, data: &[u8], frames: Vec<Frame>) {
        self.offsets.reserve(frames.len());
        self.timestamps_ms.reserve(frames.len());
        self.keys.reserve(frames.len());
        self.values.reserve(frames.len());
        for frame in frames {
            self.offsets.push(frame.offset);
            self.timestamps_ms.push(frame.timestamp_ms);
            self.keys.push(frame.key.map(|range| PyBytes::new(py, &data[range])));
            self.values.push(frame.value.map(|range| PyBytes::new(py, &data[range])));
        }
    }

    fn columns(self, py: Python<'py>) -> PyResult<Columns<'py>> {
        Ok((
            PyArray1::from_vec(py, self.offsets),
            PyArray1::from_vec(py, self.timestamps_ms),
            PyList::new(py, self.keys)?,
            PyList::new(py, self.values)?,
        ))
    }
}

fn records_from<'a>(
    timestamps_ms: &[i64],
    keys: Option<&'a Parts>,
    values: &'a Parts,
) -> PyResult<Vec<Record<'a>>> {
    let keys_count = keys.map_or(values.len(), Vec::len);
    if timestamps_ms.len() != values.len() || keys_count != values.len() || values.is_empty() {
        let message =
            format!("{} timestamps, {keys_count} keys, {} values", timestamps_ms.len(), values.len());
        return Err(PyValueError::new_err(message));
    }
    Ok((0..values.len())
        .map(|at| Record {
            timestamp_ms: timestamps_ms[at],
            key: keys.and_then(|keys| keys[at].as_deref()),
            value: values[at].as_deref(),
        })
        .collect())
}

#[pyfunction]
fn pack_frames<'py>(
    py: Python<'py>,
    base_offset: i64,
    timestamps_ms: PyReadonlyArray1<'py, i64>,
    keys: Option<Parts>,
    values: Parts,
) -> PyResult<Bound<'py, PyBytes>> {
    let records = records_from(timestamps_ms.as_slice()?, keys.as_ref(), &values)?;
    let packed = py.detach(|| {
        let mut out = Vec::new();
        for (offset, record) in (base_offset..).zip(&records) {
            frame::pack(&mut out, offset, record);
        }
        out
    });
    Ok(PyBytes::new(py, &packed))
}

#[pyfunction]
fn scan_frames<'py>(
    py: Python<'py>,
    data: &[u8],
    offset_min: i64,
    records_max: usize,
    bytes_max: usize,
    frame_bytes_max: usize,
) -> PyResult<ScannedColumns<'py>> {
    let limits = Limits { offset_min, records_max, bytes_max, frame_bytes_max };
    let scan = py.detach(|| frame::scan(data, limits));
    let mut gathered = Gathered::default();
    gathered.add(py, data, scan.frames);
    Ok((gathered.columns(py)?, scan.end, scan.stop.name()))
}

#[pyfunction]
fn index_frames(py: Python<'_>, data: &[u8], block_bytes: usize, frame_bytes_max: usize) -> Blocks {
    let (blocks, end, next_offset, stop) = py.detach(|| frame::index(data, block_bytes, frame_bytes_max));
    let rows = blocks.iter().map(|block| (block.offset, block.position, block.timestamp_ms_max)).collect();
    (rows, end, next_offset, stop.name())
}

#[pyfunction]
fn pack_kafka_batch<'py>(
    py: Python<'py>,
    producer: (i64, i16, i32),
    timestamps_ms: PyReadonlyArray1<'py, i64>,
    keys: Option<Parts>,
    values: Parts,
) -> PyResult<Bound<'py, PyBytes>> {
    let records = records_from(timestamps_ms.as_slice()?, keys.as_ref(), &values)?;
    let (id, epoch, sequence) = producer;
    let packed = py.detach(|| kafka::pack(kafka::Producer { id, epoch, sequence }, &records));
    Ok(PyBytes::new(py, &packed))
}

#[pyfunction]
fn scan_kafka_batches<'py>(
    py: Python<'py>,
    data: &[u8],
    offset_min: i64,
    mut aborted: Vec<(i64, i64)>,
    decompress: &Bound<'py, PyAny>,
) -> PyResult<(Columns<'py>, i64, Epochs)> {
    let (mut at, mut next_offset, mut gathered) = (0, offset_min, Gathered::default());
    let mut epochs = Epochs::new();
    while let Some(batch) = py.detach(|| kafka::batch_at(data, at)).map_err(PyValueError::new_err)? {
        at = batch.payload.end;
        next_offset = next_offset.max(batch.last_offset.saturating_add(1));
        if epochs.last().is_none_or(|&(_, epoch)| epoch != batch.leader_epoch) {
            epochs.push((batch.base_offset, batch.leader_epoch));
        }
        let raw = &data[batch.payload.clone()];
        let inflated: Option<PyBackedBytes> = match batch.codec {
            0 => None,
            codec => Some(decompress.call1((codec, PyBytes::new(py, raw)))?.extract()?),
        };
        let payload = inflated.as_deref().unwrap_or(raw);
        if inflated.is_some() {
            // A few compressed bytes can hold millions of records, and each takes memory.
            let bytes = kafka::frames_bytes(&batch, payload).map_err(PyValueError::new_err)?;
            decompress.call_method1("charge", (bytes,))?;
        }
        let id = batch.producer_id;
        let dropped =
            aborted.iter().position(|&(producer_id, first)| producer_id == id && first <= batch.last_offset);
        if batch.control {
            if let Some(entry) = dropped.filter(|_| kafka::is_abort(&batch, payload)) {
                aborted.remove(entry);
            }
        } else if !(batch.transactional && dropped.is_some()) && batch.last_offset >= offset_min {
            let mut frames =
                py.detach(|| kafka::records_of(&batch, payload)).map_err(PyValueError::new_err)?;
            frames.retain(|frame| frame.offset >= offset_min);
            gathered.add(py, payload, frames);
        }
    }
    Ok((gathered.columns(py)?, next_offset, epochs))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pack_frames, module)?)?;
    module.add_function(wrap_pyfunction!(scan_frames, module)?)?;
    module.add_function(wrap_pyfunction!(index_frames, module)?)?;
    module.add_function(wrap_pyfunction!(pack_kafka_batch, module)?)?;
    module.add_function(wrap_pyfunction!(scan_kafka_batches, module)?)
}
