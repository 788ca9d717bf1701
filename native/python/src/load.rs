//! Bindings of `streamlearn_load`: connections to a node, and runs that send requests over them.

use std::path::PathBuf;
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
use streamlearn_trust::tls::renewed_nameless_connector;
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
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)];

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

/// The limits of a load; `LoadLimits` in `streamlearn.load.load_run`.
#[derive(FromPyObject)]
struct LoadLimits {
    connections: usize,
    threads: usize,
    connect_wait_ms_max: u64,
    answer_bytes_max: usize,
}

/// The plan of a run; `LoadPlan` in `streamlearn.load.load_run`.
#[derive(FromPyObject)]
struct LoadPlan {
    /// "poisson", "constant", "bursts" or "closed".
    pace: String,
    /// Requests a second; of "closed", the number of callers.
    amount: f64,
    seconds: u32,
    warmup_s: f64,
    deadline_ms: Option<f64>,
    seed: u64,
    /// The factor of a burst; its duration, and the interval between bursts, in seconds.
    bursts: (f64, f64, f64),
    outstanding_max: usize,
    answer_wait_s_max: f64,
    keeps_answers: bool,
}

impl LoadPlan {
    fn pace(&self) -> PyResult<Pace> {
        let (amount, seed, (times, lasts_s, every_s)) = (self.amount, self.seed, self.bursts);
        let shape = match self.pace.as_str() {
            "poisson" => Shape::Poisson,
            "constant" => Shape::Constant,
            "bursts" => Shape::Bursts(Bursts { times, lasts_s, every_s }),
            "closed" => return Ok(Pace::Closed { callers: amount as usize, seed }),
            other => return Err(PyValueError::new_err(format!("unknown pace {other:?}"))),
        };
        Ok(Pace::Open(Arrivals { shape, rate: amount, seed }))
    }

    fn plan(&self) -> PyResult<Plan> {
        Ok(Plan {
            pace: self.pace()?,
            seconds: self.seconds,
            warmup: whole_ms("warmup_s", self.warmup_s * 1e3)?,
            deadline: self.deadline_ms.map(|ms| whole_ms("deadline_ms", ms.trunc())).transpose()?,
            answer_wait_max: whole_ms("answer_wait_s_max", self.answer_wait_s_max * 1e3)?,
            outstanding_max: self.outstanding_max,
            keeps_answers: self.keeps_answers,
        })
    }
}

/// A time in whole milliseconds.
fn whole_ms(name: &str, ms: f64) -> PyResult<Duration> {
    if !(0.0..u64::MAX as f64).contains(&ms) {
        return Err(PyValueError::new_err(format!("{name} is out of range")));
    }
    Ok(Duration::from_millis(ms.round_ties_even() as u64))
}

async fn way_to(settings: &CallsSettings, path: Option<&str>) -> Result<Way, String> {
    match path {
        Some(path) => Posts::connect(settings, path).await.map(Way::from),
        None => Calls::connect(settings).await.map(Way::from),
    }
}

#[pymethods]
impl NativeLoad {
    /// With a path, messages are bodies posted to it over HTTP/1.1; otherwise they are gRPC messages. With `authority`,
    /// the file of the certificate that signed the node's, they go over TLS.
    #[new]
    #[pyo3(signature = (address, path, messages, token, limits, authority=None))]
    fn new(
        py: Python<'_>,
        address: String,
        path: Option<String>,
        messages: Vec<Vec<u8>>,
        token: Option<String>,
        limits: LoadLimits,
        authority: Option<PathBuf>,
    ) -> PyResult<Self> {
        let LoadLimits { connections, threads, connect_wait_ms_max, answer_bytes_max } = limits;
        if connections == 0 || threads == 0 {
            return Err(PyValueError::new_err("connections and threads: expected at least 1 of each"));
        }
        let connect_wait_max = Duration::from_millis(connect_wait_ms_max);
        let tls = authority.map(|file| renewed_nameless_connector(&file, b"h2").map(Arc::new)).transpose();
        let help = "give --ca FILE, the certificate of the authority that signed those of nodes, in PEM";
        let tls = tls.map_err(|error| raise(py, "ConfigError", &error, help))?;
        let settings = CallsSettings { address, connections, token, connect_wait_max, answer_bytes_max, tls };
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

    /// Starts to send requests.
    fn start(&self, py: Python<'_>, plan: LoadPlan) -> PyResult<NativeRun> {
        let plan = plan.plan()?;
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

    /// The fields of `LoadProgress`.
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (Progress { due, ok, failed, outstanding }, counts) = (self.run.progress(), PyDict::new(py));
        counts.set_item("due", due)?;
        counts.set_item("ok", ok)?;
        counts.set_item("failed", failed)?;
        counts.set_item("outstanding", outstanding)?;
        Ok(counts)
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
    let kept = tally
        .kept
        .iter()
        .flatten()
        .map(|one| (one.message, one.due_ns, one.answer.as_ref().map(|answer| PyBytes::new(py, answer))));
    outcome.set_item("answers", kept.collect::<Vec<_>>())?;
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
