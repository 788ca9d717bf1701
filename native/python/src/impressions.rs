//! Bindings of the impression log: answered requests wait in it, and a thread takes them as events.

use std::sync::Arc;
use std::time::Duration;

use numpy::IntoPyArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use streamlearn_serve::impression_log::{Batch, Shown, ShownLimits};
use streamlearn_serve::protocol::Naming;

use crate::serve::NativeFront;

#[pyclass(frozen, name = "Shown", module = "streamlearn._native")]
pub struct NativeShown {
    pub shown: Arc<Shown>,
}

/// The state of an impression log.
#[pyclass(frozen, get_all, name = "ShownFigures", module = "streamlearn._native")]
struct NativeFigures {
    /// Events that wait.
    waiting: usize,
    /// The bytes of the waiting events.
    waiting_bytes: usize,
    /// Requests dropped since the start, because the log was full.
    dropped: u64,
    /// Requests refused since the start.
    refused: u64,
    /// The reason of the last refusal.
    reason: String,
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl NativeShown {
    /// `share` of the requests are logged; at most `events_max` events of `bytes_max` bytes wait.
    #[new]
    #[pyo3(signature = (model, front, description, *, share, events_max, bytes_max))]
    fn new(
        model: &str,
        front: &NativeFront,
        description: &str,
        share: f64,
        events_max: usize,
        bytes_max: usize,
    ) -> PyResult<Self> {
        let result = Naming::new(model, front.front.inputs().clone()).and_then(|naming| {
            Shown::new(&naming, description, ShownLimits { share, events_max, bytes_max })
        });
        result.map(|shown| Self { shown: Arc::new(shown) }).map_err(PyValueError::new_err)
    }

    fn chooses(&self, id: &str) -> bool {
        self.shown.chooses(id.as_bytes())
    }

    /// The fields of `EncodedEvents`: at most `events_max` events, each of at most `event_bytes_max` bytes.
    fn take<'py>(
        &self,
        py: Python<'py>,
        wait_s: f64,
        linger_s: f64,
        events_max: usize,
        event_bytes_max: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let (wait, linger) = (seconds(wait_s)?, seconds(linger_s)?);
        let batch = Batch { events_max, event_bytes_max, linger };
        let Some(events) = py.detach(|| self.shown.take(wait, &batch)) else {
            return Ok(None);
        };
        let columns = PyDict::new(py);
        columns.set_item("buffer", events.buffer.into_pyarray(py))?;
        columns.set_item("offsets", events.offsets.into_pyarray(py))?;
        columns.set_item("items", events.items.into_pyarray(py))?;
        columns.set_item("request_ids", events.ids.into_pyarray(py))?;
        columns.set_item("request_at", events.ids_at.into_pyarray(py))?;
        columns.set_item("event_time_ms", events.at_ms.into_pyarray(py))?;
        Ok(Some(columns))
    }

    fn close(&self) {
        self.shown.close();
    }

    fn figures(&self) -> NativeFigures {
        let figures = self.shown.figures();
        NativeFigures {
            waiting: figures.waiting,
            waiting_bytes: figures.waiting_bytes,
            dropped: figures.dropped,
            refused: figures.refused,
            reason: figures.said,
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeFigures>()?;
    module.add_class::<NativeShown>()
}
