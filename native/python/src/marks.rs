//! Bindings of `join::Marks`.

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use streamlearn_join::{Error, Marks, MarksSettings, Settling};

use crate::arrays::{Bytes, flat};
use crate::join::refuse;

const FULL: (&str, &str) =
    ("MarksFull", "raise marks.bytes_max, shorten the longest window, or let ingest's watermark advance");

fn refused(py: Python<'_>, error: &Error) -> PyErr {
    refuse(py, error, FULL)
}

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type RequestArrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
/// Labels to learn, to correct, rows that are too old, labels known to be positive, and numbers learned before.
type SettledArrays<'py> =
    (Array<'py, u32>, Array<'py, u32>, Array<'py, u8>, Array<'py, u32>, Array<'py, f32>);
type RowArrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
/// When rows were settled, and the numbers of their labels; both empty without labels whose number may change.
type NumberArrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

#[pyclass(name = "Marks", module = "streamlearn._native")]
struct NativeMarks {
    marks: Marks,
}

impl NativeMarks {
    /// Borrows the columns and calls `work` with them, without the GIL.
    fn with<T: Send>(
        &mut self,
        py: Python<'_>,
        (topic, requests, rows, numbers): (&str, RequestArrays<'_>, RowArrays<'_>, NumberArrays<'_>),
        work: impl FnOnce(&mut Marks, &Settling<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let partitions = flat::<i32>(&requests.0, "partitions", "int32")?;
        let offsets = flat::<i64>(&requests.1, "offsets", "int64")?;
        let times = flat::<i64>(&requests.2, "event_times_ms", "int64")?;
        let request_index = flat::<i32>(&rows.0, "request_index", "int32")?;
        let items = flat::<i32>(&rows.1, "item_index", "int32")?;
        let settles = flat::<u32>(&rows.2, "settles", "uint32")?;
        let labels = flat::<u32>(&rows.3, "labels", "uint32")?;
        let settle_times = flat::<i64>(&numbers.0, "settle_times", "int64")?;
        let numbers = flat::<f32>(&numbers.1, "numbers", "float32")?;
        let settling = Settling {
            topic: self.marks.topic(topic).map_err(|error| refused(py, &error))?,
            partitions: partitions.as_slice()?,
            offsets: offsets.as_slice()?,
            times: times.as_slice()?,
            request_index: request_index.as_slice()?,
            items: items.as_slice()?,
            settles: settles.as_slice()?,
            labels: labels.as_slice()?,
            settle_times: settle_times.as_slice()?,
            numbers: numbers.as_slice()?,
        };
        let marks = &mut self.marks;
        py.detach(|| work(marks, &settling)).map_err(|error| refused(py, &error))
    }
}

#[pymethods]
impl NativeMarks {
    #[new]
    fn new(py: Python<'_>, labels: usize, numbers: u32, items_max: u32, bytes_max: u64) -> PyResult<Self> {
        let result = Marks::new(MarksSettings { labels, numbers, items_max, bytes_max });
        result.map(|marks| Self { marks }).map_err(|error| refused(py, &error))
    }

    fn settle<'py>(
        &mut self,
        py: Python<'py>,
        step: u64,
        topic: &str,
        requests: RequestArrays<'py>,
        rows: RowArrays<'py>,
        numbers: NumberArrays<'py>,
    ) -> PyResult<SettledArrays<'py>> {
        let given = (topic, requests, rows, numbers);
        let settled = self.with(py, given, |marks, settling| marks.settle(step, settling))?;
        let (learn, correct) = (settled.learn.into_pyarray(py), settled.correct.into_pyarray(py));
        let (old, positive) = (settled.old.into_pyarray(py), settled.positive.into_pyarray(py));
        Ok((learn, correct, old, positive, settled.before.into_pyarray(py)))
    }

    fn refuse<'py>(
        &mut self,
        py: Python<'py>,
        step: u64,
        topic: &str,
        requests: RequestArrays<'py>,
        rows: RowArrays<'py>,
        numbers: NumberArrays<'py>,
    ) -> PyResult<()> {
        self.with(py, (topic, requests, rows, numbers), |marks, settling| marks.refuse(step, settling))
    }

    fn acknowledge(&mut self, py: Python<'_>, step: u64) {
        py.detach(|| self.marks.acknowledge(step));
    }

    fn forget(&mut self, py: Python<'_>, horizon_ms: i64) {
        py.detach(|| self.marks.forget(horizon_ms));
    }

    fn save<'py>(&mut self, py: Python<'py>, since: u64) -> (u64, Vec<(String, Bound<'py, PyBytes>)>) {
        let (number, entries) = py.detach(|| self.marks.save(since));
        (number, entries.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
    }

    fn load(&mut self, py: Python<'_>, named: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<u64> {
        let buffers = named.iter().map(|(name, bytes)| Ok((name.as_str(), Bytes::of(bytes, name)?)));
        let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
        let entries: Vec<(&str, &[u8])> =
            buffers.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        py.detach(|| self.marks.load(&entries)).map_err(|error| refused(py, &error))
    }

    fn relabelled(&self, py: Python<'_>, sources: Vec<Option<usize>>, numbers: u32) -> PyResult<Self> {
        let moved = py.detach(|| self.marks.relabelled(&sources, numbers));
        moved.map(|marks| Self { marks }).map_err(|error| refused(py, &error))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.marks.counters().named()
    }

    #[getter]
    fn horizon_ms(&self) -> Option<i64> {
        self.marks.horizon_ms()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.marks.bytes()
    }

    #[getter]
    fn pages(&self) -> usize {
        self.marks.pages()
    }

    #[getter]
    fn inflight(&self) -> usize {
        self.marks.inflight()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeMarks>()
}
