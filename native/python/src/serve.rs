//! Bindings of a serving node's front: versions are added, lanes take work and return scores.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use streamlearn_scheduler::ladder::Ladder;
use streamlearn_scheduler::{AllowanceLimits, Costs, Limits, Scheduler, Shapes};
use streamlearn_serve::distribution::Distributed;
use streamlearn_serve::front::{Front, Waits, Work};
use streamlearn_serve::layout::described;
use streamlearn_serve::node::{Node, Servers};
use streamlearn_serve::protocol::{Door, DoorLimits, DoorSettings, Kind, Protocol, TlsFiles};
use streamlearn_serve::region::Region;
use streamlearn_serve::slab::{ALIGN_BYTES, Slab};
use streamlearn_serve::split::PeerDoor;
use streamlearn_serve::tensor_batch::{Scratch, Tensor};
use streamlearn_serve::versions::VersionName;
use streamlearn_trust::Token;
use streamlearn_trust::tls::renewed_nameless_connector;

use crate::dlpack::capsule;
use crate::impressions::NativeShown;
use crate::node_features::NativeNodeFeatures;
use crate::scan::{VersionItems, index_of};
use crate::table::{NativeSet, raise};
use crate::trust::GivenToken;

/// The byte offset of a tensor, and its shape.
type TensorSpan = (usize, Vec<usize>);
/// Buckets of users and candidates, and lengths.
type Buckets = (Vec<usize>, Vec<usize>, Vec<usize>);

/// A histogram since the start.
#[pyclass(frozen, get_all, name = "FrontHistogram", module = "streamlearn._native")]
#[derive(Clone)]
pub struct NativeHistogram {
    /// The upper bound and cumulative count of each bucket.
    buckets: Vec<(u64, u64)>,
    /// The number of values.
    count: u64,
    /// The sum of the values.
    sum: u64,
}

/// What a front has measured since the start.
#[pyclass(frozen, get_all, name = "FrontMeasures", module = "streamlearn._native")]
struct NativeMeasures {
    /// Refused requests by reason.
    refusals: BTreeMap<&'static str, u64>,
    /// Requests that were retried alone.
    retried: u64,
    /// Requests answered for no arm, because the version of theirs could not answer.
    without_arm: u64,
    /// Waits for a lane, in microseconds.
    waits: NativeHistogram,
    /// Requests of a TensorBatch.
    requests: NativeHistogram,
    /// Candidates of a TensorBatch.
    candidates: NativeHistogram,
    /// Times of searches for items, in microseconds.
    searches: NativeHistogram,
    /// Requests for which items were found, and vectors that were scanned for them.
    found: (u64, u64),
    /// Items of sampled requests that a search of some cells found, and that it did not.
    recall: (u64, u64),
    filled: (u64, u64),
}

/// The limits of a front; `FrontLimits` in `streamlearn.serving.front`.
#[derive(FromPyObject)]
struct FrontLimits {
    lanes: usize,
    /// Maximum waiting requests.
    requests_max: usize,
    /// Maximum waiting candidates.
    candidates_max: usize,
    /// The percentage of both that is reserved for priority 0.
    reserved_percent: u8,
    /// How long before its deadline a request must be done by prediction.
    slack_us: u64,
    /// On a pressed node a request keeps this number of candidates at least; 0: none is cut.
    candidates_min: usize,
    /// How many candidates of an answer are shown.
    shown: usize,
    value_max: f32,
    /// The percentage of value that remains with shorter histories; 0: they are not cut.
    short_percent: u8,
    /// Whether lasting overload refuses the same users.
    by_cohort: bool,
    /// The deadline of a request that names none.
    deadline_us: u64,
    deadline_us_max: u64,
}

/// The limits of a node's servers; `NodeLimits` in `streamlearn.serving.node`.
#[derive(FromPyObject)]
struct NodeLimits {
    /// Threads that decode requests and encode answers.
    threads: usize,
    connections_max: usize,
    /// Maximum requests in progress.
    requests_max: usize,
    /// Maximum bytes of an HTTP request.
    http_bytes_max: usize,
    drain_ms_max: u64,
    /// The maximum time for a request to arrive; None, here and below: the default.
    arrival_wait_ms_max: Option<u64>,
    /// The maximum time for which a connection is idle.
    idle_ms_max: Option<u64>,
    header_bytes_max: Option<u32>,
}

impl NodeLimits {
    fn door(&self) -> DoorLimits {
        let defaults = DoorLimits::default();
        DoorLimits {
            connections_max: self.connections_max,
            requests_max: self.requests_max,
            http_bytes_max: self.http_bytes_max,
            drain_ms_max: self.drain_ms_max,
            arrival_wait_ms_max: self.arrival_wait_ms_max.unwrap_or(defaults.arrival_wait_ms_max),
            idle_ms_max: self.idle_ms_max.unwrap_or(defaults.idle_ms_max),
            header_bytes_max: self.header_bytes_max.unwrap_or(defaults.header_bytes_max),
            ..defaults
        }
    }
}

/// The load of a front.
#[pyclass(frozen, get_all, name = "FrontFigures", module = "streamlearn._native")]
struct NativeFigures {
    /// Waiting requests.
    requests: usize,
    /// Waiting candidates.
    candidates: usize,
    lanes_busy: usize,
    /// The share of their time that lanes should rest for the threads that read requests.
    lanes_rest: f32,
    /// Predicted seconds until all waiting work is done.
    backlog_s: f64,
    /// Seconds that requests keep before their deadlines.
    margin_s: f64,
    /// The value of requests since the start: offered, admitted; and the price of time. None without an allowance.
    value: Option<(f64, f64, f64)>,
}

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
    /// `slabs_shared` is the number of slabs that other processes may read.
    #[new]
    #[pyo3(signature = (description, buckets, limits, slabs_idle_max, shadows_max=256, *, slabs_shared=None))]
    fn new(
        description: &str,
        buckets: Buckets,
        limits: FrontLimits,
        slabs_idle_max: usize,
        shadows_max: usize,
        slabs_shared: Option<usize>,
    ) -> PyResult<Self> {
        let (inputs, layout) = described(description).map_err(PyValueError::new_err)?;
        let shapes = shapes_of(&buckets)?;
        let FrontLimits { lanes, candidates_min, shown, value_max, deadline_us, deadline_us_max, .. } =
            limits;
        let limits = Limits {
            lanes,
            requests_max: limits.requests_max,
            candidates_max: limits.candidates_max,
            reserved_percent: limits.reserved_percent,
            wait_us_max: deadline_us_max,
            slack_us: limits.slack_us,
            by_cohort: limits.by_cohort,
            allowance: (candidates_min > 0).then_some(AllowanceLimits {
                candidates_min,
                shown,
                short_percent: limits.short_percent,
            }),
        };
        // A placeholder until warm-up has measured: no request is admitted before a version is added.
        let costs = Costs::measured(&shapes, |_, _| 1_000.0, |_, _| 1_000.0);
        let scheduler = Scheduler::new(limits, shapes, costs);
        let waits = Waits { deadline_us, deadline_us_max, shadows_max, value_max };
        let mut front = Front::new(inputs, layout, scheduler, waits, slabs_idle_max);
        if let Some(slabs) = slabs_shared {
            front = front.sharing(slabs)?;
        }
        let scratch = (0..lanes).map(|_| Mutex::default()).collect();
        Ok(Self { front: Arc::new(front), scratch })
    }

    /// Of shared slabs: their file, its size in bytes, and the offset where memory for one more slab starts.
    fn slabs(&self) -> Option<(i32, usize, usize)> {
        self.front.slabs().region().map(|(region, rest)| (region.file(), region.bytes(), rest))
    }

    /// `identity` tells versions of one number apart, on all nodes alike; `items` are those of a front that finds items:
    /// vectors, ids, the event time up to which the version has learned, and how many cells are searched for a user.
    #[pyo3(signature = (version, tables, identity=0, items=None))]
    fn add(
        &self,
        version: u64,
        tables: &NativeSet,
        identity: u64,
        items: Option<VersionItems<'_>>,
    ) -> PyResult<u64> {
        let (dim, finds_items) = (self.front.inputs().labels.len(), self.front.inputs().items.is_some());
        if items.is_some() != finds_items || items.as_ref().is_some_and(|items| items.0.blocks.dim() != dim) {
            let kind = if finds_items { "finds items: give those" } else { "scores candidates: give none" };
            return Err(PyValueError::new_err(format!("this front {kind}; its outputs have {dim} values")));
        }
        let items = items.map(|items| Arc::new(index_of(items, identity)));
        Ok(self.front.add(VersionName { number: version, identity }, &tables.set, items))
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

    fn figures(&self) -> NativeFigures {
        let figures = self.front.figures();
        NativeFigures {
            requests: figures.requests,
            candidates: figures.candidates,
            lanes_busy: figures.lanes_busy,
            lanes_rest: self.front.rest_share(&self.front.readers()),
            backlog_s: figures.backlog_us / 1e6,
            margin_s: figures.slack_us / 1e6,
            value: figures.value.map(|value| (value.offered, value.admitted, value.price)),
        }
    }

    fn measured(&self) -> NativeMeasures {
        let measures = self.front.measures();
        NativeMeasures {
            refusals: measures.refusals(),
            retried: measures.again(),
            without_arm: measures.without_arm(),
            waits: histogram(measures.waits()),
            requests: histogram(measures.requests()),
            candidates: histogram(measures.candidates()),
            searches: histogram(measures.searches()),
            found: measures.found(),
            recall: measures.recall(),
            filled: measures.candidates_filled(),
        }
    }

    #[pyo3(signature = (shadow=None))]
    fn set_shadow(&self, shadow: Option<(u64, f64)>) {
        self.front.set_shadow(shadow);
    }

    /// The state of the shadow version, as JSON.
    fn shadow(&self) -> String {
        self.front.shadow().to_string()
    }

    /// Rows run and padding rows among them, of the user graph and of the score graph.
    fn rows(&self) -> ((u64, u64), (u64, u64)) {
        let (user, score) = self.front.rows();
        ((user.run, user.padding), (score.run, score.padding))
    }

    fn drain(&self) {
        self.front.drain();
    }

    /// The microseconds of each bucket that warm-up measured: lists by length, then by bucket.
    fn set_costs(&self, user_us: Vec<Vec<f64>>, score_us: Vec<Vec<f64>>) -> PyResult<()> {
        self.front.set_costs(&user_us, &score_us).map_err(PyValueError::new_err)
    }

    fn take(&self, py: Python<'_>, lane: usize, wait_s: f64) -> PyResult<Option<NativeWork>> {
        let Some(scratch) = self.scratch.get(lane) else {
            return Err(PyValueError::new_err(format!(
                "lane {lane} is out of range; there are {} lanes",
                self.scratch.len()
            )));
        };
        let wait =
            Duration::try_from_secs_f64(wait_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let work = py.detach(|| {
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            self.front.take(lane, wait, &mut scratch)
        });
        Ok(work.map(|work| {
            let (handle, version, candidates) = (work.handle, work.number, work.candidates);
            NativeWork { work: Mutex::new(Some(work)), handle, version, candidates }
        }))
    }

    fn give(&self, py: Python<'_>, work: &NativeWork, scores: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        let labels = self.front.inputs().labels.len();
        let shape = scores.shape();
        if shape[1] != labels {
            let message = format!("scores: expected {labels} columns, got {}", shape[1]);
            return Err(PyValueError::new_err(message));
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

    /// Like `fail`, for work that may be retried.
    fn lose(&self, py: Python<'_>, work: &NativeWork, said: &str) -> PyResult<()> {
        let work = work.taken()?;
        py.detach(|| self.front.lose(work, said));
        Ok(())
    }

    /// Marks a lane as absent until it takes work again.
    fn leave(&self, lane: usize) -> PyResult<()> {
        let lanes = self.scratch.len();
        if lane >= lanes {
            let text = format!("lane {lane} is out of range; there are {lanes} lanes");
            return Err(PyValueError::new_err(text));
        }
        self.front.leave(lane);
        Ok(())
    }
}

/// Slabs that another process created.
#[pyclass(frozen, name = "SharedSlabs", module = "streamlearn._native")]
struct NativeSlabs {
    region: Arc<Region>,
}

#[pymethods]
impl NativeSlabs {
    /// `file` is that of `Front.slabs`; its owner keeps it.
    #[new]
    fn new(file: i32) -> PyResult<Self> {
        if file < 0 {
            return Err(PyValueError::new_err(format!("invalid file descriptor {file}")));
        }
        // SAFETY: it is borrowed only for this call, and a number that is not an open file causes a system
        // error.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Ok(Self { region: Arc::new(Region::open(file)?) })
    }

    /// A DLPack capsule of the tensor at a byte offset.
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        at: usize,
        shape: Vec<usize>,
        is_int: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let floats = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
        let end = floats.and_then(|floats| floats.checked_mul(4)).and_then(|bytes| bytes.checked_add(at));
        if !at.is_multiple_of(ALIGN_BYTES) || end.is_none_or(|end| end > self.region.bytes()) {
            let message = format!(
                "a tensor of shape {shape:?} at byte {at} does not fit the {} shared bytes",
                self.region.bytes()
            );
            return Err(PyValueError::new_err(message));
        }
        capsule(py, &self.region, &Tensor { at: at / 4, shape, is_int })
    }
}

/// A front that serves callers until it is stopped.
#[pyclass(frozen, name = "FrontNode", module = "streamlearn._native")]
pub struct NativeNode {
    pub node: Arc<Node>,
    door: Arc<Door>,
    pub servers: Mutex<Servers>,
    is_shared: bool,
    token: Option<Token>,
    #[pyo3(get)]
    grpc: String,
    #[pyo3(get)]
    http: Option<String>,
}

#[pymethods]
impl NativeNode {
    /// `addresses` are those of gRPC and HTTP; or `sockets` are listening sockets, which their owner keeps too, so
    /// that other processes may share them. `metrics` returns the metrics text. `tls` has the paths of
    /// certificate and key.
    #[new]
    #[pyo3(signature = (model, front, addresses, limits, *, metrics, token=None, tls=None, sockets=None, aside=None))]
    #[expect(clippy::too_many_arguments, reason = "private: the Python class is what people call")]
    fn new(
        py: Python<'_>,
        model: &str,
        front: &NativeFront,
        addresses: (String, Option<String>),
        limits: NodeLimits,
        metrics: Py<PyAny>,
        token: Option<GivenToken<'_>>,
        tls: Option<(PathBuf, PathBuf)>,
        sockets: Option<(i32, Option<i32>)>,
        aside: Option<String>,
    ) -> PyResult<Self> {
        let metrics_text = move || {
            let text = Python::attach(|py| metrics.call0(py)?.extract::<String>(py));
            text.unwrap_or_else(|error| format!("# cannot collect metrics: {error}\n"))
        };
        let node =
            Node::new(model, front.front.clone(), Box::new(metrics_text)).map_err(PyValueError::new_err)?;
        let (threads, limits) = (limits.threads, limits.door());
        let token = token.map(|token| token.token(true)).transpose().map_err(PyValueError::new_err)?;
        let tls = tls.map(|(cert, key)| TlsFiles { cert, key });
        let door =
            Door::new(DoorSettings { token: token.clone(), tls, limits }).map_err(PyValueError::new_err)?;
        let door = Arc::new(door);
        let node = Arc::new(node);
        let is_shared = sockets.is_some();
        door.stand_aside(is_shared && aside.is_some());
        node.stand_aside(aside);
        let started = py.detach(|| {
            let (grpc, http) = match sockets {
                Some((grpc, http)) => (duplicate(grpc)?, http.map(duplicate).transpose()?),
                None => (
                    TcpListener::bind(&addresses.0)?,
                    addresses.1.as_ref().map(TcpListener::bind).transpose()?,
                ),
            };
            Servers::start(node.clone(), door.clone(), (grpc, http), threads)
        });
        let servers = started.map_err(|error| {
            let message = format!("cannot listen at {} or {:?}: {error}", addresses.0, addresses.1);
            raise(
                py,
                "ServiceError",
                &message,
                "see whether the address is free, and whether files of TLS can be read",
            )
        })?;
        let (grpc, http) = (servers.grpc.to_string(), servers.http.map(|http| http.to_string()));
        Ok(Self { node, door, servers: Mutex::new(servers), is_shared, token, grpc, http })
    }

    #[pyo3(signature = (is_ready, stale=None))]
    fn set_state(&self, is_ready: bool, stale: Option<String>) {
        self.node.set_state(is_ready, stale);
    }

    /// Makes the node not ready for a reason; if it shares its sockets, it also accepts no connections, and those
    /// that it has leave. None ends that.
    #[pyo3(signature = (reason))]
    fn stand_aside(&self, reason: Option<String>) {
        // It leaves new connections to others before it says so, and says that it is back before it takes them.
        let is_aside = reason.is_some();
        if is_aside {
            self.door.stand_aside(self.is_shared);
        }
        self.node.stand_aside(reason);
        if !is_aside {
            self.door.stand_aside(false);
        }
    }

    /// Tells callers of HTTP with every answer to leave, while the node goes on answering.
    fn leave(&self) {
        self.door.leave();
    }

    /// Whether it leaves new connections to another process.
    #[getter]
    fn is_aside(&self) -> bool {
        self.door.is_aside()
    }

    /// Whether a thread of the servers takes up work within `wait_s`.
    fn works(&self, py: Python<'_>, wait_s: f64) -> PyResult<bool> {
        let wait =
            Duration::try_from_secs_f64(wait_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(py.detach(|| self.servers.lock().unwrap_or_else(PoisonError::into_inner).works(wait)))
    }

    /// Open connections and requests, each with its maximum.
    fn open(&self) -> [(usize, usize); 2] {
        let (stats, limits) = (self.door.stats(), self.door.limits());
        [(stats.connections, limits.connections_max), (stats.requests, limits.requests_max)]
    }

    /// For each protocol: connections accepted, bytes received and bytes sent.
    fn lines(&self) -> Vec<(&'static str, u64, u64, u64)> {
        let traffic = self.door.traffic();
        let line = |protocol: Protocol| {
            let (connections, received, sent) = traffic.lines(protocol);
            (protocol.name(), connections, received, sent)
        };
        Protocol::ALL.into_iter().map(line).collect()
    }

    /// Finished requests: protocol, whether they were for scoring, status, and count.
    fn answers(&self) -> Vec<(&'static str, bool, String, u64)> {
        let answers = self.door.traffic().answers();
        let row = |(kind, count): (Kind, u64)| (kind.protocol.name(), kind.is_scored, kind.status(), count);
        answers.into_iter().map(row).collect()
    }

    /// The number of connections, requests and tokens that the door refused.
    fn refused(&self) -> [(&'static str, u64); 3] {
        let stats = self.door.stats();
        [
            ("connection", stats.connections_refused),
            ("door", stats.requests_refused),
            ("token", stats.tokens_refused),
        ]
    }

    /// The time of decoding, in microseconds.
    fn decoding(&self) -> NativeHistogram {
        histogram(self.door.traffic().decoding())
    }

    fn write_back(&self, shown: &NativeShown) {
        self.node.write_back(shown.shown.clone());
    }

    /// Computes the columns that requests lack from now on.
    fn compute(&self, features: &NativeNodeFeatures) {
        if let Some(talk) = features.talk() {
            self.servers.lock().unwrap_or_else(PoisonError::into_inner).spawn(talk);
        }
        self.node.compute(features.reader.clone());
    }

    /// Finds items from now on, as model MODEL.retrieve, by a front of its own.
    fn retrieve_by(&self, front: &NativeFront) -> PyResult<()> {
        self.node.retrieve_by(front.front.clone()).map_err(PyValueError::new_err)
    }

    /// From now on, splits requests into at most `pieces_max` pieces, and takes pieces of peers. With TLS, `authority`
    /// is the file of the certificate that signed those of peers.
    fn split(&self, py: Python<'_>, pieces_max: usize, authority: Option<PathBuf>) -> PyResult<()> {
        let tls = authority.map(|file| renewed_nameless_connector(&file, Protocol::Grpc.alpn()));
        let help = "give --ca FILE, the certificate of the authority that signed those of nodes, in PEM";
        let tls = tls.transpose().map_err(|error| raise(py, "ConfigError", &error, help))?;
        self.node.split(pieces_max, PeerDoor { token: self.token.clone(), tls });
        Ok(())
    }

    /// Sets where peers take pieces, each as IP:PORT; others are left out.
    fn follow(&self, py: Python<'_>, addresses: Vec<String>) {
        let Some(splitter) = self.node.splitter() else { return };
        let addresses: Vec<SocketAddr> = addresses.iter().filter_map(|text| text.parse().ok()).collect();
        py.detach(|| {
            // A node that stops holds them until it has.
            let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            splitter.follow(&addresses).into_iter().for_each(|keeper| servers.spawn(keeper));
        });
    }

    /// The number of peers with a connection, and of all.
    fn peers(&self) -> (usize, usize) {
        self.node.splitter().map_or((0, 0), |splitter| splitter.connected())
    }

    /// The counts of pieces by their outcome; empty if requests are not split.
    fn pieces(&self) -> Vec<(&'static str, u64)> {
        self.node.splitter().map_or_else(Vec::new, |splitter| splitter.counts())
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.servers.lock().unwrap_or_else(PoisonError::into_inner).stop())?;
        Ok(())
    }
}

#[pymethods]
impl NativeWork {
    /// The inputs of the user graph as DLPack capsules; each may be consumed once.
    fn user<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.capsules(py, |work| work.packed.user.clone())
    }

    /// The row of each candidate's user.
    fn user_index<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut capsules = self.capsules(py, |work| work.packed.score[..1].to_vec())?;
        Ok(capsules.remove(0))
    }

    /// The byte offset of each tensor in the file of `Front.slabs`, and its shape: first the inputs of the
    /// user graph, then the user row of each candidate and the score graph's candidate inputs.
    fn places(&self) -> PyResult<(Vec<TensorSpan>, Vec<TensorSpan>)> {
        let guard = self.lock();
        let Some(work) = &*guard else {
            return Err(PyRuntimeError::new_err("this work was returned already"));
        };
        let Some(begin) = work.packed.slab.place() else {
            return Err(PyRuntimeError::new_err("this work is not in shared memory"));
        };
        let spans = |tensors: &[Tensor]| {
            tensors.iter().map(|tensor| (begin + 4 * tensor.at, tensor.shape.clone())).collect()
        };
        Ok((spans(&work.packed.user), spans(&work.packed.score)))
    }

    /// The candidate inputs of the score graph.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.capsules(py, |work| work.packed.score[1..].to_vec())
    }
}

impl NativeWork {
    fn lock(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> PyResult<Work> {
        self.lock().take().ok_or_else(|| PyRuntimeError::new_err("this work was returned already"))
    }

    fn capsules<'py>(
        &self,
        py: Python<'py>,
        of: impl Fn(&Work) -> Vec<Tensor>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (slab, tensors): (Arc<Slab>, Vec<Tensor>) = match &*self.lock() {
            Some(work) => (work.packed.slab.clone(), of(work)),
            None => return Err(PyRuntimeError::new_err("this work was returned already")),
        };
        tensors.iter().map(|tensor| capsule(py, &slab, tensor)).collect()
    }
}

/// A listening socket of its own, like that of a descriptor.
fn duplicate(file: i32) -> std::io::Result<TcpListener> {
    if file < 0 {
        return Err(std::io::Error::other(format!("invalid file descriptor {file}")));
    }
    // SAFETY: it is borrowed only for this call, and a number that is not an open file causes a system error.
    Ok(unsafe { BorrowedFd::borrow_raw(file) }.try_clone_to_owned()?.into())
}

pub fn histogram(distribution: Distributed) -> NativeHistogram {
    let Distributed { upto: buckets, count, sum } = distribution;
    NativeHistogram { buckets, count, sum }
}

fn shapes_of((users, candidates, lengths): &Buckets) -> PyResult<Shapes> {
    let ladder = |sizes: &[usize]| {
        Ladder::new(sizes.to_vec()).map_err(|error| PyValueError::new_err(error.to_string()))
    };
    Ok(Shapes { users: ladder(users)?, candidates: ladder(candidates)?, lengths: ladder(lengths)? })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeFront>()?;
    module.add_class::<NativeFigures>()?;
    module.add_class::<NativeHistogram>()?;
    module.add_class::<NativeMeasures>()?;
    module.add_class::<NativeNode>()?;
    module.add_class::<NativeSlabs>()?;
    module.add_class::<NativeWork>()
}
