//! Bindings of the front of a serving node: versions go in, lanes take work and give scores.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use streamlearn_serve::front::{Front, Waits, Work};
use streamlearn_serve::ladder::Ladder;
use streamlearn_serve::layout::described;
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::packed::{Scratch, Tensor};
use streamlearn_serve::protocol::{Door, DoorLimits, DoorSettings, Secret, TlsFiles};
use streamlearn_serve::scheduler::{Costs, Limits, Scheduler, Shapes};
use streamlearn_serve::slab::Slab;

use crate::dlpack::capsule;
use crate::table::{NativeSet, raise};

/// Buckets of users, of candidates, and lengths.
type Buckets = (Vec<usize>, Vec<usize>, Vec<usize>);

#[pyclass(frozen, name = "Front", module = "streamlearn._native")]
pub struct NativeFront {
    pub front: Arc<Front>,
    scratch: Vec<Mutex<Scratch>>,
}

#[pyclass(frozen, name = "FrontWork", module = "streamlearn._native")]
struct NativeWork {
    work: Mutex<Option<Work>>,
    #[pyo3(get)]
    handle: u64,
    #[pyo3(get)]
    version: u64,
    #[pyo3(get)]
    candidates: usize,
}

#[pymethods]
impl NativeFront {
    /// `limits`: lanes, requests_max, candidates_max, reserved_percent, slack_us, degraded_candidates or 0; `waits_us`:
    /// the deadline of who names none, and the longest.
    #[new]
    fn new(
        description: &str,
        buckets: Buckets,
        limits: (usize, usize, usize, u8, u64, usize),
        waits_us: (u64, u64),
        slabs_idle_max: usize,
    ) -> PyResult<Self> {
        let (inputs, layout) = described(description).map_err(PyValueError::new_err)?;
        let (lanes, requests_max, candidates_max, reserved_percent, slack_us, degraded) = limits;
        let shapes = shapes_of(&buckets)?;
        let limits = Limits {
            lanes,
            requests_max,
            candidates_max,
            reserved_percent,
            wait_us_max: waits_us.1,
            slack_us,
            degraded_candidates: (degraded > 0).then_some(degraded),
        };
        // A guess until warm-up has measured: no request is admitted before there is a version.
        let costs = Costs::measured(&shapes, |_, _| 1_000.0, |_, _| 1_000.0);
        let scheduler = Scheduler::new(limits, shapes, costs);
        let waits = Waits { deadline_us: waits_us.0, deadline_us_max: waits_us.1 };
        let front = Front::new(inputs, layout, scheduler, waits, slabs_idle_max);
        let scratch = (0..lanes).map(|_| Mutex::default()).collect();
        Ok(Self { front: Arc::new(front), scratch })
    }

    fn add(&self, version: u64, tables: &NativeSet) -> u64 {
        self.front.add(version, &tables.set)
    }

    fn activate(&self, handle: u64) -> bool {
        self.front.activate(handle)
    }

    #[pyo3(signature = (canary=None))]
    fn set_canary(&self, canary: Option<(u64, f64)>) {
        self.front.set_canary(canary);
    }

    fn remove(&self, handle: u64) {
        self.front.remove(handle);
    }

    fn versions(&self) -> (Option<u64>, Vec<u64>) {
        self.front.versions()
    }

    fn waiting(&self) -> usize {
        self.front.waiting()
    }

    /// Requests and candidates that wait, lanes that are busy, and in how many seconds all should be done.
    fn figures(&self) -> (usize, usize, usize, f64) {
        let found = self.front.figures();
        (found.requests, found.candidates, found.lanes_busy, found.backlog_us / 1e6)
    }

    fn drain(&self) {
        self.front.drain();
    }

    /// Microseconds of each bucket as warm-up measured them: lists by length, then by bucket.
    fn set_costs(&self, user_us: Vec<Vec<f64>>, score_us: Vec<Vec<f64>>) -> PyResult<()> {
        self.front.set_costs(&user_us, &score_us).map_err(PyValueError::new_err)
    }

    fn take(&self, py: Python<'_>, lane: usize, wait_s: f64) -> PyResult<Option<NativeWork>> {
        let Some(scratch) = self.scratch.get(lane) else {
            return Err(PyValueError::new_err(format!("lane {lane} of {}", self.scratch.len())));
        };
        let wait =
            Duration::try_from_secs_f64(wait_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let found = py.detach(|| {
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            self.front.take(lane, wait, &mut scratch)
        });
        Ok(found.map(|work| {
            let (handle, version, candidates) = (work.handle, work.number, work.candidates);
            NativeWork { work: Mutex::new(Some(work)), handle, version, candidates }
        }))
    }

    fn give(&self, py: Python<'_>, work: &NativeWork, scores: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        let labels = self.front.inputs().labels.len();
        let shape = scores.shape();
        if shape[1] != labels {
            let said = format!("scores: expected {labels} columns, got {}", shape[1]);
            return Err(PyValueError::new_err(said));
        }
        let scores = scores.as_slice()?;
        let work = work.taken()?;
        py.detach(|| self.front.give(work, scores));
        Ok(())
    }

    fn fail(&self, py: Python<'_>, work: &NativeWork, said: &str) -> PyResult<()> {
        let work = work.taken()?;
        py.detach(|| self.front.fail(work, said));
        Ok(())
    }
}

/// A front that callers reach, until it is stopped.
#[pyclass(frozen, name = "FrontNode", module = "streamlearn._native")]
struct NativeNode {
    node: Arc<Node>,
    servers: Mutex<Servers>,
    #[pyo3(get)]
    grpc: String,
    #[pyo3(get)]
    http: Option<String>,
}

#[pymethods]
impl NativeNode {
    /// `bounds`: threads, connections_max, requests_max, http_bytes_max, drain_ms_max; `metrics` gives text.
    #[new]
    #[pyo3(signature = (model, front, addresses, *, bounds, metrics, door=(None, None)))]
    fn new(
        py: Python<'_>,
        model: &str,
        front: &NativeFront,
        addresses: (String, Option<String>),
        bounds: (usize, usize, usize, usize, u64),
        metrics: Py<PyAny>,
        door: (Option<String>, Option<(PathBuf, PathBuf)>),
    ) -> PyResult<Self> {
        let said = move || {
            let text = Python::attach(|py| metrics.call0(py)?.extract::<String>(py));
            text.unwrap_or_else(|error| format!("# metrics could not be written: {error}\n"))
        };
        let node = Node::new(model, front.front.clone(), Box::new(said)).map_err(PyValueError::new_err)?;
        let (threads, connections_max, requests_max, http_bytes_max, drain_ms_max) = bounds;
        let (token, tls) = door;
        let limits = DoorLimits {
            connections_max,
            requests_max,
            http_bytes_max,
            drain_ms_max,
            ..DoorLimits::default()
        };
        let token = token.map(Secret::new).transpose().map_err(PyValueError::new_err)?;
        let tls = tls.map(|(cert, key)| TlsFiles { cert, key });
        let door = Door::new(DoorSettings { token, tls, limits }).map_err(PyValueError::new_err)?;
        let node = Arc::new(node);
        let started = py.detach(|| {
            let (grpc, http) = (addresses.0.as_str(), addresses.1.as_deref());
            Servers::start(node.clone(), Arc::new(door), (grpc, http), threads)
        });
        let servers = started.map_err(|error| {
            let said = format!("{} or {:?} cannot be listened at: {error}", addresses.0, addresses.1);
            raise(
                py,
                "ServiceError",
                &said,
                "see whether the address is free, and whether files of TLS can be read",
            )
        })?;
        let (grpc, http) = (servers.grpc.to_string(), servers.http.map(|http| http.to_string()));
        Ok(Self { node, servers: Mutex::new(servers), grpc, http })
    }

    #[pyo3(signature = (is_ready, stale=None))]
    fn set_state(&self, is_ready: bool, stale: Option<String>) {
        self.node.set_state(is_ready, stale);
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.servers.lock().unwrap_or_else(PoisonError::into_inner).stop())?;
        Ok(())
    }
}

#[pymethods]
impl NativeWork {
    /// What the user graph takes, as DLPack capsules, each of which is to be taken once.
    fn user<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.capsules(py, |work| work.packed.user.clone())
    }

    /// The row of each candidate's user.
    fn user_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut found = self.capsules(py, |work| work.packed.score[..1].to_vec())?;
        Ok(found.remove(0))
    }

    /// What the score graph takes of candidates.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.capsules(py, |work| work.packed.score[1..].to_vec())
    }
}

impl NativeWork {
    fn lock(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> PyResult<Work> {
        self.lock().take().ok_or_else(|| PyRuntimeError::new_err("this work was given back before"))
    }

    fn capsules<'py>(
        &self,
        py: Python<'py>,
        of: impl Fn(&Work) -> Vec<Tensor>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (slab, tensors): (Arc<Slab>, Vec<Tensor>) = match &*self.lock() {
            Some(work) => (work.packed.slab.clone(), of(work)),
            None => return Err(PyRuntimeError::new_err("this work was given back before")),
        };
        tensors.iter().map(|tensor| capsule(py, &slab, tensor)).collect()
    }
}

fn shapes_of((users, candidates, lengths): &Buckets) -> PyResult<Shapes> {
    let ladder = |sizes: &[usize]| {
        Ladder::new(sizes.to_vec()).map_err(|error| PyValueError::new_err(error.to_string()))
    };
    Ok(Shapes { users: ladder(users)?, candidates: ladder(candidates)?, lengths: ladder(lengths)? })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeFront>()?;
    module.add_class::<NativeNode>()?;
    module.add_class::<NativeWork>()
}
