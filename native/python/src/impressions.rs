//! Bindings of what was shown: answered requests wait in it, and a thread takes them as events.

use std::sync::Arc;
use std::time::Duration;

use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_serve::impression_log::{Batch, Shown, ShownLimits};
use streamlearn_serve::protocol::Naming;

use crate::serve::NativeFront;

#[pyclass(frozen, name = "Shown", module = "streamlearn._native")]
pub struct NativeShown {
    pub shown: Arc<Shown>,
}

type Array<'py, T> = Bound<'py, PyArray1<T>>;
/// As `EncodedEvents` has them.
type Taken<'py> =
    (Array<'py, u8>, Array<'py, i64>, Array<'py, i32>, Array<'py, u8>, Array<'py, i32>, Array<'py, i64>);

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl NativeShown {
    /// `bounds`: the share of requests, events that wait and their bytes.
    #[new]
    fn new(
        model: &str,
        front: &NativeFront,
        description: &str,
        bounds: (f64, usize, usize),
    ) -> PyResult<Self> {
        let (share, events_max, bytes_max) = bounds;
        let made = Naming::new(model, front.front.inputs().clone()).and_then(|naming| {
            Shown::new(&naming, description, ShownLimits { share, events_max, bytes_max })
        });
        made.map(|shown| Self { shown: Arc::new(shown) }).map_err(PyValueError::new_err)
    }

    fn chooses(&self, id: &str) -> bool {
        self.shown.chooses(id.as_bytes())
    }

    /// `bounds`: events at once, and bytes of one.
    fn take<'py>(
        &self,
        py: Python<'py>,
        wait_s: f64,
        linger_s: f64,
        bounds: (usize, usize),
    ) -> PyResult<Option<Taken<'py>>> {
        let (wait, linger) = (seconds(wait_s)?, seconds(linger_s)?);
        let batch = Batch { events_max: bounds.0, event_bytes_max: bounds.1, linger };
        let taken = py.detach(|| self.shown.take(wait, &batch));
        Ok(taken.map(|events| {
            (
                events.buffer.into_pyarray(py),
                events.offsets.into_pyarray(py),
                events.items.into_pyarray(py),
                events.ids.into_pyarray(py),
                events.ids_at.into_pyarray(py),
                events.at_ms.into_pyarray(py),
            )
        }))
    }

    fn close(&self) {
        self.shown.close();
    }

    /// Events that wait, their bytes, requests noted, dropped and refused ever, and why the last was.
    fn figures(&self) -> (usize, usize, u64, u64, u64, String) {
        let found = self.shown.figures();
        (found.waiting, found.waiting_bytes, found.noted, found.dropped, found.refused, found.said)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeShown>()
}
