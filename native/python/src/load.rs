//! Bindings of `streamlearn_serve::load`: connections to a node, and runs that send requests over them.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use streamlearn_load::{
    Answered, Arrivals, Bursts, Calls, CallsSettings, Histogram, LoadError, Message, Pace, Plan, Posts,
    Progress, Run, Shape, Tally, Way,
};
use tokio::runtime::{Builder, Runtime};
use tonic::Code;

use crate::table::raise;

/// The gRPC status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];

fn refuse(py: Python<'_>, error: &LoadError) -> PyErr {
    let (class, help) = match error {
        LoadError::Plan(_) => ("UsageError", "correct the named setting"),
        LoadError::Unreachable(_) => {
            ("ServiceError", "check that a node serves gRPC there, or HTTP if a path is given")
        }
        LoadError::Machine(_) => ("ServiceError", "allow the process more threads and open files"),
    };
    raise(py, class, &error.to_string(), help)
}

#[pyclass(frozen, name = "Load", module = "streamlearn._native")]
struct NativeLoad {
    runtime: Runtime,
    way: Way,
    messages: Arc<[Message]>,
}

/// `(code, message, answer)`; code and answer are None if no reply arrived.
type AnswerTuple<'py> = (Option<&'static str>, String, Option<Bound<'py, PyBytes>>);

fn answer(py: Python<'_>, answered: Answered) -> AnswerTuple<'_> {
    match answered {
        Answered::With(bytes) => (Some(CODES[0]), String::new(), Some(PyBytes::new(py, &bytes))),
        Answered::Refused(code, message) => (Some(CODES[code as usize]), message, None),
        Answered::Nothing => (None, String::new(), None),
    }
}

/// `(seconds, warmup_ms, deadline_ms, answer_wait_ms_max)`.
type Times = (u32, u64, Option<u64>, u64);

fn pace_of(name: &str, amount: f64, seed: u64, bursts: (f64, f64, f64)) -> PyResult<Pace> {
    let shape = match name {
        "poisson" => Shape::Poisson,
        "constant" => Shape::Constant,
        "bursts" => Shape::Bursts(Bursts { times: bursts.0, lasts_s: bursts.1, every_s: bursts.2 }),
        "closed" => return Ok(Pace::Closed { callers: amount as usize, seed }),
        other => return Err(PyValueError::new_err(format!("unknown pace {other:?}"))),
    };
    Ok(Pace::Open(Arrivals { shape, rate: amount, seed }))
}

async fn way_to(settings: &CallsSettings, path: Option<&str>) -> Result<Way, String> {
    match path {
        Some(path) => Posts::connect(settings, path).await.map(Way::from),
        None => Calls::connect(settings).await.map(Way::from),
    }
}

#[pymethods]
impl NativeLoad {
    /// With a path, messages are bodies posted to it over HTTP/1.1; otherwise they are gRPC messages.
    /// `numbers` is `(connections, threads, connect_wait_ms_max, answer_bytes_max)`.
    #[new]
    fn new(
        py: Python<'_>,
        address: String,
        path: Option<String>,
        messages: Vec<Vec<u8>>,
        token: Option<String>,
        numbers: (usize, usize, u64, usize),
    ) -> PyResult<Self> {
        let (connections, threads, connect_wait_ms, answer_bytes_max) = numbers;
        if connections == 0 || threads == 0 {
            return Err(PyValueError::new_err("connections and threads: expected at least 1 of each"));
        }
        let connect_wait_max = Duration::from_millis(connect_wait_ms);
        let settings = CallsSettings { address, connections, token, connect_wait_max, answer_bytes_max };
        let connected = py.detach(|| {
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(threads).thread_name("load").enable_all().build();
            let runtime = runtime.map_err(|error| LoadError::Machine(format!("no threads: {error}")))?;
            let way = runtime.block_on(way_to(&settings, path.as_deref()));
            let way =
                way.map_err(|error| LoadError::Unreachable(format!("{}: {error}", settings.address)))?;
            Ok((runtime, way))
        });
        let (runtime, way) = connected.map_err(|error| refuse(py, &error))?;
        let messages = messages.iter().map(|body| way.message(body));
        let messages: Arc<[Message]> = messages.collect::<Result<_, _>>().map_err(PyValueError::new_err)?;
        Ok(Self { runtime, way, messages })
    }

    /// `(code, message, answer)` of one message, sent once; code and answer are None if no reply arrived.
    fn ask<'py>(&self, py: Python<'py>, message: usize, wait_ms: u64) -> PyResult<AnswerTuple<'py>> {
        let sent = self.messages.get(message).cloned().ok_or_else(|| PyIndexError::new_err(message))?;
        let wait = Duration::from_millis(wait_ms);
        Ok(answer(py, py.detach(|| self.runtime.block_on(self.way.call(message, sent, None, wait)))))
    }

    /// Like `ask` for other messages, all sent at once, in their order; returns when the last is answered.
    fn ask_all<'py>(
        &self,
        py: Python<'py>,
        messages: Vec<PyBackedBytes>,
        wait_ms: u64,
    ) -> PyResult<Vec<AnswerTuple<'py>>> {
        let sent = messages.iter().map(|body| self.way.message(body));
        let sent: Vec<Message> = sent.collect::<Result<_, _>>().map_err(PyValueError::new_err)?;
        let wait = Duration::from_millis(wait_ms);
        let answered = py.detach(|| self.runtime.block_on(self.way.call_all(sent, wait)));
        Ok(answered.into_iter().map(|result| answer(py, result)).collect())
    }

    /// `amount` is a rate, or a number of callers; `times` is `(seconds, warmup_ms, deadline_ms,
    /// answer_wait_ms_max)`.
    fn start(
        &self,
        py: Python<'_>,
        pace: (String, f64, u64),
        bursts: (f64, f64, f64),
        times: Times,
        outstanding_max: usize,
    ) -> PyResult<NativeRun> {
        let (seconds, warmup_ms, deadline_ms, answer_wait_ms) = times;
        let plan = Plan {
            pace: pace_of(&pace.0, pace.1, pace.2, bursts)?,
            seconds,
            warmup: Duration::from_millis(warmup_ms),
            deadline: deadline_ms.map(Duration::from_millis),
            answer_wait_max: Duration::from_millis(answer_wait_ms),
            outstanding_max,
        };
        let run =
            Run::start(plan, self.way.clone(), Arc::clone(&self.messages), self.runtime.handle().clone());
        Ok(NativeRun { run: run.map_err(|error| refuse(py, &error))? })
    }
}

#[pyclass(frozen, name = "LoadRun", module = "streamlearn._native")]
struct NativeRun {
    run: Run,
}

#[pymethods]
impl NativeRun {
    fn wait(&self, py: Python<'_>, wait_ms: u64) -> bool {
        py.detach(|| self.run.wait(Duration::from_millis(wait_ms)))
    }

    fn stop(&self) {
        self.run.stop();
    }

    /// `(due, ok, failed, outstanding)`.
    fn progress(&self) -> (u64, u64, u64, usize) {
        let Progress { due, ok, failed, outstanding } = self.run.progress();
        (due, ok, failed, outstanding)
    }

    /// The result, once the run has ended.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.run.outcome().map(|(seconds, tally)| outcome_of(py, seconds, &tally)).transpose()
    }
}

fn outcome_of<'py>(py: Python<'py>, seconds: f64, tally: &Tally) -> PyResult<Bound<'py, PyDict>> {
    let outcome = PyDict::new(py);
    outcome.set_item("seconds", seconds)?;
    outcome.set_item("warmup", tally.warmup)?;
    outcome.set_item("due", tally.due)?;
    outcome.set_item("ok", tally.ok())?;
    outcome.set_item("in_time", tally.in_time)?;
    outcome.set_item("overrun", tally.overrun)?;
    outcome.set_item("unanswered", tally.unanswered)?;
    outcome.set_item("answer_bytes", tally.answer_bytes)?;
    let (refused, messages) = (PyDict::new(py), PyDict::new(py));
    for (at, name) in CODES.iter().enumerate().skip(Code::Ok as usize + 1) {
        if tally.codes[at] > 0 {
            refused.set_item(name, tally.codes[at])?;
            messages.set_item(name, &tally.said[at])?;
        }
    }
    outcome.set_item("refused", refused)?;
    outcome.set_item("said", messages)?;
    outcome.set_item("latency_ns", quantiles(py, &tally.latency)?)?;
    outcome.set_item("lag_ns", quantiles(py, &tally.lag)?)?;
    let line: Vec<_> = tally
        .seconds
        .iter()
        .map(|second| (second.due, second.latency.count(), second.latency.quantile(0.99)))
        .collect();
    outcome.set_item("time_line", line)?;
    Ok(outcome)
}

fn quantiles<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    values.set_item("mean", histogram.mean())?;
    for (name, share) in QUANTILES {
        values.set_item(name, histogram.quantile(share))?;
    }
    values.set_item("max", histogram.quantile(1.0))?;
    Ok(values)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeLoad>()?;
    module.add_class::<NativeRun>()
}
