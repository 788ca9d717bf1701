//! Bindings of `join::JoinCore`.

use numpy::{IntoPyArray, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use streamlearn_join::{
    Actions, Combine, Error, Group, Impressions, Interactions, JoinCore, Label, Letters, Makes, Number,
    Origins, Requests, Rows, Settings, Spans, is_logged,
};

use crate::arrays::flat;
use crate::table::raise;

/// Converts an error of a join or of marks to a Python exception.
pub fn refuse(py: Python<'_>, error: &Error, (full, help): (&str, &str)) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Argument(_) => pyo3::exceptions::PyValueError::new_err(text),
        Error::Full { .. } => raise(py, full, &text, help),
        Error::Bytes(_) => raise(py, "BadRecord", &text, "the bytes are damaged or belong to other settings"),
    }
}

const FULL: (&str, &str) = (
    "JoinFull",
    "take the rows that are due and advance the watermark before reading on; if it is full all the same, \
     raise pending_bytes_max, shorten windows, or use more lots",
);

type Refs<'a, 'py> = (&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>);
type Any<'py> = Bound<'py, PyAny>;
type OriginArrays<'py> = (Any<'py>, Any<'py>, Any<'py>);

/// Values end to end, borrowed while they are read.
struct HeldSpans<'py> {
    data: PyReadonlyArray1<'py, u8>,
    at: PyReadonlyArray1<'py, i64>,
}

impl<'py> HeldSpans<'py> {
    fn of((data, at): Refs<'_, 'py>, name: &str) -> PyResult<Self> {
        let (data_name, at_name) = (name.to_owned(), format!("{name}_at"));
        Ok(Self { data: flat(data, &data_name, "uint8")?, at: flat(at, &at_name, "int64")? })
    }

    fn spans(&self) -> PyResult<Spans<'_>> {
        Ok(Spans { data: self.data.as_slice()?, at: self.at.as_slice()? })
    }
}

/// Origins of events, borrowed while they are read.
struct HeldOrigins<'py> {
    partitions: PyReadonlyArray1<'py, i32>,
    offsets: PyReadonlyArray1<'py, i64>,
    indexes: PyReadonlyArray1<'py, i32>,
}

impl<'py> HeldOrigins<'py> {
    fn of((partitions, offsets, indexes): &OriginArrays<'py>) -> PyResult<Self> {
        Ok(Self {
            partitions: flat(partitions, "partitions", "int32")?,
            offsets: flat(offsets, "offsets", "int64")?,
            indexes: flat(indexes, "indexes", "int32")?,
        })
    }

    fn origins(&self) -> PyResult<Origins<'_>> {
        let (partitions, offsets) = (self.partitions.as_slice()?, self.offsets.as_slice()?);
        Ok(Origins { partitions, offsets, indexes: self.indexes.as_slice()? })
    }
}

/// A label group; `LabelGroup` in `streamlearn.features`.
#[derive(FromPyObject)]
struct LabelGroup {
    wait_s: i64,
    window_s: i64,
}

/// A label; `LabelRule` in `streamlearn.ingest.join.plan`.
#[derive(FromPyObject)]
struct LabelRule {
    /// The number of the action that makes it positive.
    action: u8,
    /// The index of its group.
    group: u8,
    /// The share of negatives that are kept.
    rate: f64,
    /// The seed of the hash that chooses them.
    salt: u64,
    number: Option<NumberRule>,
}

/// A label that is a number; `NumberRule` in `streamlearn.ingest.join.plan`.
#[derive(FromPyObject)]
struct NumberRule {
    /// How several actions make one number.
    combine: String,
    /// Whether an item without the action settles the label.
    settles_without: bool,
}

impl NumberRule {
    fn number(self) -> PyResult<Number> {
        let combine = match self.combine.as_str() {
            "last" => Combine::Last,
            "sum" => Combine::Sum,
            "max" => Combine::Max,
            other => return Err(pyo3::exceptions::PyValueError::new_err(format!("combine is {other:?}"))),
        };
        Ok(Number { combine, settles_without: self.settles_without })
    }
}

/// The rules and limits of a join; `JoinRules` in `streamlearn.ingest.join.plan`.
#[derive(FromPyObject)]
struct JoinRules {
    groups: Vec<LabelGroup>,
    labels: Vec<LabelRule>,
    /// The step of event time by which the join forgets.
    slice_ms: i64,
    orphan_wait_ms: i64,
    /// The share of requests that serving logs.
    share: f64,
    /// Earlier impressions make no rows.
    from_ms: i64,
    pending_bytes_max: u64,
    /// Maximum impressions of a request.
    parts_max: u32,
    /// Maximum actions of a request that wait for their impression.
    waiting_max: u32,
    /// Which interactions are made.
    makes: String,
}

fn settings_of(rules: JoinRules) -> PyResult<Settings> {
    let group = |LabelGroup { wait_s, window_s }| Group {
        wait_ms: wait_s.saturating_mul(1_000),
        window_ms: window_s.saturating_mul(1_000),
    };
    let label = |LabelRule { action, group, rate, salt, number }| {
        let number = number.map(NumberRule::number).transpose()?;
        Ok(Label { action, group, rate, salt, number })
    };
    let makes = match rules.makes.as_str() {
        "nothing" => Makes::Nothing,
        "actions" => Makes::Actions,
        "all" => Makes::All,
        other => return Err(pyo3::exceptions::PyValueError::new_err(format!("makes is {other:?}"))),
    };
    Ok(Settings {
        groups: rules.groups.into_iter().map(group).collect(),
        labels: rules.labels.into_iter().map(label).collect::<PyResult<_>>()?,
        slice_ms: rules.slice_ms,
        orphan_wait_ms: rules.orphan_wait_ms,
        share: rules.share,
        from_ms: rules.from_ms,
        pending_bytes_max: rules.pending_bytes_max,
        parts_max: rules.parts_max,
        waiting_max: rules.waiting_max,
        makes,
    })
}

#[pyclass(name = "JoinCore", module = "streamlearn._native")]
struct NativeJoin {
    core: JoinCore,
}

#[pymethods]
impl NativeJoin {
    #[new]
    #[pyo3(signature = (rules))]
    fn new(py: Python<'_>, rules: JoinRules) -> PyResult<Self> {
        let core = JoinCore::new(settings_of(rules)?).map_err(|error| refuse(py, &error, FULL))?;
        Ok(Self { core })
    }

    #[pyo3(signature = (ids, times, origins, items, payloads))]
    fn add_impressions(
        &mut self,
        py: Python<'_>,
        ids: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        times: &Bound<'_, PyAny>,
        origins: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
        items: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        payloads: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    ) -> PyResult<()> {
        let ids = HeldSpans::of((&ids.0, &ids.1), "request_ids")?;
        let payloads = HeldSpans::of((&payloads.0, &payloads.1), "payloads")?;
        let (times, origins) = (flat::<i64>(times, "times", "int64")?, HeldOrigins::of(&origins)?);
        let (items, items_at) =
            (flat::<u64>(&items.0, "items", "uint64")?, flat::<i64>(&items.1, "items_at", "int64")?);
        let impressions = Impressions {
            ids: ids.spans()?,
            times: times.as_slice()?,
            origins: origins.origins()?,
            items: items.as_slice()?,
            items_at: items_at.as_slice()?,
            payloads: payloads.spans()?,
        };
        py.detach(|| self.core.add_impressions(&impressions)).map_err(|error| refuse(py, &error, FULL))
    }

    #[pyo3(signature = (ids, times, origins, items, what))]
    fn add_actions(
        &mut self,
        py: Python<'_>,
        ids: (Bound<'_, PyAny>, Bound<'_, PyAny>),
        times: &Bound<'_, PyAny>,
        origins: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
        items: &Bound<'_, PyAny>,
        what: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    ) -> PyResult<()> {
        let ids = HeldSpans::of((&ids.0, &ids.1), "request_ids")?;
        let (times, origins) = (flat::<i64>(times, "times", "int64")?, HeldOrigins::of(&origins)?);
        let numbers = flat::<f32>(&what.2, "numbers", "float32")?;
        let items = flat::<u64>(items, "items", "uint64")?;
        let (codes, weights) =
            (flat::<u8>(&what.0, "codes", "uint8")?, flat::<f32>(&what.1, "weights", "float32")?);
        let actions = Actions {
            ids: ids.spans()?,
            times: times.as_slice()?,
            origins: origins.origins()?,
            items: items.as_slice()?,
            codes: codes.as_slice()?,
            weights: weights.as_slice()?,
            numbers: numbers.as_slice()?,
        };
        py.detach(|| self.core.add_actions(&actions)).map_err(|error| refuse(py, &error, FULL))
    }

    fn advance(&mut self, py: Python<'_>, watermark_ms: i64) {
        py.detach(|| self.core.advance(watermark_ms));
    }

    fn take<'py>(&mut self, py: Python<'py>, rows_max: usize) -> PyResult<[Bound<'py, PyDict>; 4]> {
        let taken = py.detach(|| self.core.take(rows_max));
        let labels = self.core.settings().labels.len();
        let rows = rows_of(py, taken.rows, labels)?;
        let interactions = interactions_of(py, taken.interactions)?;
        Ok([requests_of(py, taken.requests)?, rows, interactions, letters_of(py, taken.letters)?])
    }

    fn next_deadline_ms(&self) -> Option<i64> {
        self.core.next_deadline_ms()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.core.counters().named()
    }

    #[getter]
    fn watermark_ms(&self) -> Option<i64> {
        self.core.watermark_ms()
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.core.bytes()
    }

    #[getter]
    fn pending(&self) -> usize {
        self.core.pending()
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.core.waiting()
    }

    #[getter]
    fn ready(&self) -> usize {
        self.core.ready()
    }

    #[getter]
    fn ready_from_ms(&self) -> Option<i64> {
        self.core.ready_from_ms()
    }

    #[getter]
    fn letters(&self) -> usize {
        self.core.letters()
    }
}

fn requests_of(py: Python<'_>, requests: Requests) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("partition", requests.partitions.into_pyarray(py))?;
    columns.set_item("offset", requests.offsets.into_pyarray(py))?;
    columns.set_item("first_item", requests.first_items.into_pyarray(py))?;
    columns.set_item("event_time_ms", requests.times.into_pyarray(py))?;
    columns.set_item("reads_back", requests.reads_back.into_pyarray(py))?;
    columns.set_item("payload", requests.payload.into_pyarray(py))?;
    columns.set_item("payload_at", requests.payload_at.into_pyarray(py))?;
    Ok(columns)
}

fn rows_of(py: Python<'_>, rows: Rows, labels: usize) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    let weights = rows.weights.into_pyarray(py).reshape([rows.settle_times.len(), labels])?;
    columns.set_item("weights", weights)?;
    // No numbers if no label is one.
    let width = rows.numbers.len() / rows.settle_times.len().max(1);
    columns.set_item("numbers", rows.numbers.into_pyarray(py).reshape([rows.settle_times.len(), width])?)?;
    columns.set_item("request_index", rows.request_index.into_pyarray(py))?;
    columns.set_item("position", rows.positions.into_pyarray(py))?;
    columns.set_item("item_index", rows.item_index.into_pyarray(py))?;
    columns.set_item("item", rows.items.into_pyarray(py))?;
    columns.set_item("group", rows.groups.into_pyarray(py))?;
    columns.set_item("settles", rows.settles.into_pyarray(py))?;
    columns.set_item("labels", rows.labels.into_pyarray(py))?;
    columns.set_item("settle_time_ms", rows.settle_times.into_pyarray(py))?;
    Ok(columns)
}

fn interactions_of(py: Python<'_>, made: Interactions) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("request_index", made.request_index.into_pyarray(py))?;
    columns.set_item("position", made.positions.into_pyarray(py))?;
    columns.set_item("item", made.items.into_pyarray(py))?;
    columns.set_item("identity", made.identities.into_pyarray(py))?;
    columns.set_item("kind", made.kinds.into_pyarray(py))?;
    columns.set_item("event_time_ms", made.times.into_pyarray(py))?;
    columns.set_item("weight", made.weights.into_pyarray(py))?;
    columns.set_item("number", made.numbers.into_pyarray(py))?;
    Ok(columns)
}

fn letters_of(py: Python<'_>, letters: Letters) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("kind", letters.kinds.into_pyarray(py))?;
    columns.set_item("groups", letters.groups.into_pyarray(py))?;
    columns.set_item("code", letters.codes.into_pyarray(py))?;
    columns.set_item("partition", letters.partitions.into_pyarray(py))?;
    columns.set_item("offset", letters.offsets.into_pyarray(py))?;
    columns.set_item("index", letters.indexes.into_pyarray(py))?;
    columns.set_item("event_time_ms", letters.times.into_pyarray(py))?;
    columns.set_item("item", letters.items.into_pyarray(py))?;
    columns.set_item("weight", letters.weights.into_pyarray(py))?;
    columns.set_item("number", letters.numbers.into_pyarray(py))?;
    columns.set_item("request_ids", letters.ids.into_pyarray(py))?;
    columns.set_item("request_at", letters.id_at.into_pyarray(py))?;
    columns.set_item("payload", letters.payload.into_pyarray(py))?;
    columns.set_item("payload_at", letters.payload_at.into_pyarray(py))?;
    Ok(columns)
}

/// Whether serving logs a request, given the logged share.
#[pyfunction]
fn is_request_logged(request_id: &[u8], share: f64) -> bool {
    is_logged(request_id, share)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeJoin>()?;
    module.add_function(wrap_pyfunction!(is_request_logged, module)?)
}
