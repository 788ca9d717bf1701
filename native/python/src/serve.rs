//! Bindings of the front of a serving node: versions go in, lanes take work and give scores.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use streamlearn_serve::distribution::Distributed;
use streamlearn_serve::front::{Front, Waits, Work};
use streamlearn_serve::ladder::Ladder;
use streamlearn_serve::layout::described;
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::protocol::{Door, DoorLimits, DoorSettings, Kind, Protocol, Secret, TlsFiles};
use streamlearn_serve::region::Region;
use streamlearn_serve::scheduler::{Costs, Limits, Scheduler, Shapes};
use streamlearn_serve::slab::{ALIGN_BYTES, Slab};
use streamlearn_serve::tensor_batch::{Scratch, Tensor};

use crate::dlpack::capsule;
use crate::impressions::NativeShown;
use crate::table::{NativeSet, raise};

/// Where a tensor begins, in bytes, and its shape.
type Lying = (usize, Vec<usize>);
/// Buckets of users, of candidates, and lengths.
type Buckets = (Vec<usize>, Vec<usize>, Vec<usize>);
/// Up to which value each bucket goes and how much is in it and those before it; how much was counted, and its sum.
type Counted = (Vec<(u64, u64)>, u64, u64);

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
    ///
    /// With `slabs_shared` there are so many slabs, and other processes may read them.
    #[new]
    #[pyo3(signature = (description, buckets, limits, waits_us, slabs_idle_max, shadows_max=256, *, slabs_shared=None))]
    fn new(
        description: &str,
        buckets: Buckets,
        limits: (usize, usize, usize, u8, u64, usize),
        waits_us: (u64, u64),
        slabs_idle_max: usize,
        shadows_max: usize,
        slabs_shared: Option<usize>,
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
        let waits = Waits { deadline_us: waits_us.0, deadline_us_max: waits_us.1, shadows_max };
        let mut front = Front::new(inputs, layout, scheduler, waits, slabs_idle_max);
        if let Some(slabs) = slabs_shared {
            front = front.sharing(slabs)?;
        }
        let scratch = (0..lanes).map(|_| Mutex::default()).collect();
        Ok(Self { front: Arc::new(front), scratch })
    }

    /// Of slabs that other processes read: their file, its bytes, and where in it memory of one more slab begins.
    fn slabs(&self) -> Option<(i32, usize, usize)> {
        self.front.slabs().region().map(|(region, rest)| (region.file(), region.bytes(), rest))
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

    /// How often requests were refused, by why; how many were tried once more alone; how long they waited in
    /// microseconds, of how many requests TensorBatches were, and how many candidates they had.
    fn measured(&self) -> (BTreeMap<&'static str, u64>, u64, [Counted; 3]) {
        let measures = self.front.measures();
        let counted = [measures.waits(), measures.requests(), measures.candidates()].map(counted);
        (measures.refusals(), measures.again(), counted)
    }

    #[pyo3(signature = (shadow=None))]
    fn set_shadow(&self, shadow: Option<(u64, f64)>) {
        self.front.set_shadow(shadow);
    }

    /// What is known of the version that shadows, as JSON.
    fn shadow(&self) -> String {
        self.front.shadow().to_string()
    }

    /// Rows that were run and rows of padding among them, of the user graph and of the score graph.
    fn rows(&self) -> ((u64, u64), (u64, u64)) {
        let (user, score) = self.front.rows();
        ((user.run, user.padding), (score.run, score.padding))
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

    /// Like `fail`, of work that may be asked for again.
    fn lose(&self, py: Python<'_>, work: &NativeWork, said: &str) -> PyResult<()> {
        let work = work.taken()?;
        py.detach(|| self.front.lose(work, said));
        Ok(())
    }

    /// A lane takes nothing until it does again.
    fn leave(&self, lane: usize) -> PyResult<()> {
        if lane >= self.scratch.len() {
            return Err(PyValueError::new_err(format!("lane {lane} of {}", self.scratch.len())));
        }
        self.front.leave(lane);
        Ok(())
    }
}

/// Slabs that another process made.
#[pyclass(frozen, name = "SharedSlabs", module = "streamlearn._native")]
struct NativeSlabs {
    region: Arc<Region>,
}

#[pymethods]
impl NativeSlabs {
    /// `file` is what `Front.slabs` gives; it stays its owner's.
    #[new]
    fn new(file: i32) -> PyResult<Self> {
        if file < 0 {
            return Err(PyValueError::new_err(format!("{file} is not a file")));
        }
        // SAFETY: it is borrowed for the call alone, and a number that is no open file is an error of the system's.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Ok(Self { region: Arc::new(Region::open(file)?) })
    }

    /// A DLPack capsule of the tensor that begins at so many bytes.
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        at: usize,
        shape: Vec<usize>,
        is_int: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let floats = shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        let end = floats.and_then(|floats| floats.checked_mul(4)).and_then(|bytes| bytes.checked_add(at));
        if at % ALIGN_BYTES != 0 || end.is_none_or(|end| end > self.region.bytes()) {
            let said = format!("a tensor {shape:?} at {at} of {} bytes", self.region.bytes());
            return Err(PyValueError::new_err(said));
        }
        capsule(py, &self.region, &Tensor { at: at / 4, shape, is_int })
    }
}

/// A front that callers reach, until it is stopped.
#[pyclass(frozen, name = "FrontNode", module = "streamlearn._native")]
struct NativeNode {
    node: Arc<Node>,
    door: Arc<Door>,
    servers: Mutex<Servers>,
    #[pyo3(get)]
    grpc: String,
    #[pyo3(get)]
    http: Option<String>,
}

#[pymethods]
impl NativeNode {
    /// `bounds`: threads, connections_max, requests_max, http_bytes_max, drain_ms_max; `arriving`: how many milliseconds a
    /// request may take to arrive and a connection may be idle, and bytes of headers at most; `metrics` gives text.
    #[new]
    #[pyo3(signature = (model, front, addresses, *, bounds, metrics, door=(None, None), arriving=None))]
    #[expect(clippy::too_many_arguments, reason = "private: the Python class is what people call")]
    fn new(
        py: Python<'_>,
        model: &str,
        front: &NativeFront,
        addresses: (String, Option<String>),
        bounds: (usize, usize, usize, usize, u64),
        metrics: Py<PyAny>,
        door: (Option<String>, Option<(PathBuf, PathBuf)>),
        arriving: Option<(u64, u64, u32)>,
    ) -> PyResult<Self> {
        let said = move || {
            let text = Python::attach(|py| metrics.call0(py)?.extract::<String>(py));
            text.unwrap_or_else(|error| format!("# metrics could not be written: {error}\n"))
        };
        let node = Node::new(model, front.front.clone(), Box::new(said)).map_err(PyValueError::new_err)?;
        let (threads, connections_max, requests_max, http_bytes_max, drain_ms_max) = bounds;
        let (token, tls) = door;
        let usual = DoorLimits::default();
        let (arrival_wait_ms_max, idle_ms_max, header_bytes_max) =
            arriving.unwrap_or((usual.arrival_wait_ms_max, usual.idle_ms_max, usual.header_bytes_max));
        let limits = DoorLimits {
            connections_max,
            requests_max,
            http_bytes_max,
            drain_ms_max,
            arrival_wait_ms_max,
            idle_ms_max,
            header_bytes_max,
            ..usual
        };
        let token = token.map(Secret::of_header).transpose().map_err(PyValueError::new_err)?;
        let tls = tls.map(|(cert, key)| TlsFiles { cert, key });
        let door = Door::new(DoorSettings { token, tls, limits }).map_err(PyValueError::new_err)?;
        let door = Arc::new(door);
        let node = Arc::new(node);
        let started = py.detach(|| {
            let (grpc, http) = (addresses.0.as_str(), addresses.1.as_deref());
            Servers::start(node.clone(), door.clone(), (grpc, http), threads)
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
        Ok(Self { node, door, servers: Mutex::new(servers), grpc, http })
    }

    #[pyo3(signature = (is_ready, stale=None))]
    fn set_state(&self, is_ready: bool, stale: Option<String>) {
        self.node.set_state(is_ready, stale);
    }

    /// Connections and requests that are there, each with the most there may be.
    fn open(&self) -> [(usize, usize); 2] {
        let (stats, limits) = (self.door.stats(), self.door.limits());
        [(stats.connections, limits.connections_max), (stats.requests, limits.requests_max)]
    }

    /// Of each protocol, connections that came, bytes that came and bytes that went.
    fn lines(&self) -> Vec<(&'static str, u64, u64, u64)> {
        let traffic = self.door.traffic();
        let of = |protocol: Protocol| {
            let (connections, heard, said) = traffic.lines(protocol);
            (protocol.name(), connections, heard, said)
        };
        Protocol::ALL.into_iter().map(of).collect()
    }

    /// Requests that ended: their protocol, whether they were to be scored, their status, and how many.
    fn answers(&self) -> Vec<(&'static str, bool, String, u64)> {
        let answers = self.door.traffic().answers();
        let one = |(kind, count): (Kind, u64)| (kind.protocol.name(), kind.is_scored, kind.status(), count);
        answers.into_iter().map(one).collect()
    }

    /// How often the door refused a connection, a request, and a token.
    fn refused(&self) -> [(&'static str, u64); 3] {
        let stats = self.door.stats();
        [
            ("connection", stats.connections_refused),
            ("door", stats.requests_refused),
            ("token", stats.tokens_refused),
        ]
    }

    /// How long decoding took, in microseconds.
    fn decoding(&self) -> Counted {
        counted(self.door.traffic().decoding())
    }

    fn write_back(&self, shown: &NativeShown) {
        self.node.write_back(shown.shown.clone());
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

    /// Where in the file of `Front.slabs` each tensor begins, and its shape: what the user graph takes, then the row of
    /// each candidate's user and what the score graph takes of candidates.
    fn places(&self) -> PyResult<(Vec<Lying>, Vec<Lying>)> {
        let guard = self.lock();
        let Some(work) = &*guard else {
            return Err(PyRuntimeError::new_err("this work was given back before"));
        };
        let Some(begin) = work.packed.slab.place() else {
            return Err(PyRuntimeError::new_err("this work is in memory that no other process has"));
        };
        let of = |tensors: &[Tensor]| {
            tensors.iter().map(|tensor| (begin + 4 * tensor.at, tensor.shape.clone())).collect()
        };
        Ok((of(&work.packed.user), of(&work.packed.score)))
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

fn counted(of: Distributed) -> Counted {
    (of.upto, of.count, of.sum)
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
    module.add_class::<NativeSlabs>()?;
    module.add_class::<NativeWork>()
}
