//! Bindings of `streamlearn_ps`: a shard's server, and the client of all shards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use streamlearn_ps::{
    Client, ClientLimits, ClientSettings, Code, Encoding, Epoch, Limits, PartOf, PsError, PullAt, PushOf,
    ReduceOf, Refusal, Role, Server, ServerSettings, Shard, TlsFiles, TlsTrust, Token, Trouble,
};

use crate::arrays::{flat, flat_out};
use crate::table::{NativeSet, PushOptions, raise};
use crate::trust::GivenToken;

/// `(run, recovery)`.
type EpochTuple = (u64, u32);
/// `(step, slice, slices, may_repeat, at_once)`, and whether the slice's numbers are finite.
type Part = ((u64, u16, u16, bool, bool), bool);

fn epoch_of((run, recovery): EpochTuple) -> Epoch {
    Epoch { run, recovery }
}

fn tuple_of(epoch: Epoch) -> EpochTuple {
    (epoch.run, epoch.recovery)
}

/// The class in `streamlearn.errors` for a kind of trouble, and the help text.
fn class_of(trouble: Trouble) -> (&'static str, &'static str) {
    match trouble {
        Trouble::Settings => ("UsageError", "correct the named setting"),
        Trouble::Io => (
            "ServiceError",
            "see whether the address is free, the files can be read, and whether it needs a token file",
        ),
        Trouble::StaleEpoch | Trouble::Refused(Code::StaleEpoch) => {
            ("EpochOver", "a newer recovery has begun: restore all shards under a higher epoch")
        }
        Trouble::NotReady | Trouble::Refused(Code::NotReady) => {
            ("ShardNotReady", "restore all shards to the newest committed version")
        }
        Trouble::Unreachable | Trouble::Lost => {
            ("ShardUnreachable", "check that the shard runs, then restore all shards")
        }
        Trouble::Unsure => (
            "PushUnsure",
            "restore all shards to the newest committed version, which does not contain the push",
        ),
        Trouble::Closed => ("UsageError", "open another client"),
        Trouble::Refused(Code::Busy | Code::TooMany) => {
            ("TableBusy", "try again when the other operation has finished")
        }
        Trouble::Refused(Code::Full) => {
            ("TableFull", "raise rows_max, expire more keys, or give the shards more memory")
        }
        Trouble::Refused(Code::VersionRefused) => ("VersionRefused", ""),
        Trouble::Refused(Code::ReadsOnly) => ("UsageError", "connect as a trainer to change anything"),
        Trouble::Refused(Code::WeightsDiffer) => {
            ("WeightsDiffer", "restore all shards, and load the weights of the same version in every worker")
        }
        Trouble::Refused(Code::BadRequest) => {
            ("ShardRefused", "correct the request; the shard has not executed any of it")
        }
        Trouble::Refused(_) => {
            ("ShardRefused", "trainer and shards must have the same release, model and token")
        }
    }
}

fn refuse(py: Python<'_>, error: &PsError) -> PyErr {
    let (class, help) = class_of(error.trouble);
    let exception = raise(py, class, &error.to_string(), help);
    if error.detail.is_empty() {
        return exception;
    }
    let outcome = exception.value(py).setattr("detail", PyBytes::new(py, &error.detail));
    outcome.map_or_else(|error| error, |()| exception)
}

fn done<T>(py: Python<'_>, outcome: streamlearn_ps::Result<T>) -> PyResult<T> {
    outcome.map_err(|error| refuse(py, &error))
}

fn fingerprint_of(bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("fingerprint: expected 32 bytes, got {}", bytes.len())))
}

fn token_of(py: Python<'_>, token: Option<GivenToken<'_>>) -> PyResult<Option<Token>> {
    let token = token.map(|token| token.token(false)).transpose();
    done(py, token.map_err(|text| PsError::new(Trouble::Settings, text)))
}

/// Overrides defaults with the given limits.
macro_rules! override_limits {
    ($limits:expr, $given:expr, $($field:ident),* $(,)?) => {
        for (name, value) in $given {
            match name.as_str() {
                $(stringify!($field) => $limits.$field = value.try_into().map_err(|_| {
                    PyValueError::new_err(format!("{name}: {value} is too large"))
                })?,)*
                _ => return Err(PyValueError::new_err(format!("unknown limit {name:?}"))),
            }
        }
    };
}

/// The shard that a server serves; `ShardIdentity` in `streamlearn.ps.server`.
#[derive(FromPyObject)]
struct ShardIdentity {
    /// The number of the shard, from 0.
    number: u32,
    /// The number of all shards.
    count: u32,
    /// The first part, and the one after the last.
    parts: (usize, usize),
    model: String,
    /// The fingerprint of the specification, 32 bytes.
    fingerprint: Vec<u8>,
    /// The tables' specification: sent to clients that expect other tables.
    specification: Vec<u8>,
}

impl ShardIdentity {
    fn shard(self) -> PyResult<Shard> {
        let Self { number, count, parts: (begin, end), model, fingerprint, specification } = self;
        let fingerprint = fingerprint_of(&fingerprint)?;
        Ok(Shard { number, count, parts: begin..end, model, fingerprint, specification })
    }
}

/// An order that a client sent to a shard.
#[pyclass(frozen, get_all, name = "PsOrder", module = "streamlearn._native")]
struct NativeOrder {
    /// The number by which it is answered.
    id: u64,
    /// Whether the client only reads.
    reads_only: bool,
    body: Py<PyBytes>,
}

#[pyclass(frozen, name = "PsServer", module = "streamlearn._native")]
struct NativeServer {
    server: Server,
}

#[pymethods]
impl NativeServer {
    /// `tls` has the paths of certificate and key.
    #[new]
    #[pyo3(signature = (listen, shard, token, tls, threads, limits))]
    fn new(
        py: Python<'_>,
        listen: Vec<String>,
        shard: ShardIdentity,
        token: Option<GivenToken<'_>>,
        tls: Option<(PathBuf, PathBuf)>,
        threads: usize,
        limits: Vec<(String, u64)>,
    ) -> PyResult<Self> {
        let shard = shard.shard()?;
        let mut bounds = Limits::default();
        override_limits!(
            bounds,
            limits,
            frame_bytes_max,
            connections_max,
            hello_wait_ms_max,
            idle_ms_max,
            frame_wait_ms_max,
            write_wait_ms_max,
            in_flight_bytes_max,
            in_flight_wait_ms_max,
            orders_max,
            clients_max,
            window_max,
            token_wait_ms,
        );
        let settings = ServerSettings {
            listen,
            token: token_of(py, token)?,
            tls: tls.map(|(cert, key)| TlsFiles { cert, key }),
            threads,
            limits: bounds,
        };
        let server = py.detach(|| Server::start(settings, shard));
        Ok(Self { server: done(py, server)? })
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.server.addresses()
    }

    fn install(&self, py: Python<'_>, set: &NativeSet, epoch: EpochTuple) -> PyResult<()> {
        let set = Arc::clone(&set.set);
        let outcome = py.detach(|| self.server.install(set, epoch_of(epoch)));
        done(py, outcome)
    }

    fn uninstall(&self, py: Python<'_>) {
        py.detach(|| self.server.uninstall());
    }

    /// The ids of the connected clients.
    fn clients(&self) -> Vec<u128> {
        self.server.clients()
    }

    /// The next order; None if none arrived.
    fn next_order(&self, py: Python<'_>, wait_ms: u64) -> Option<NativeOrder> {
        let order = py.detach(|| self.server.next_order(Duration::from_millis(wait_ms)))?;
        let body = PyBytes::new(py, &order.body).unbind();
        Some(NativeOrder { id: order.id, reads_only: order.reads_only, body })
    }

    fn answer(&self, py: Python<'_>, id: u64, body: Vec<u8>) -> bool {
        py.detach(|| self.server.answer(id, Ok(body)))
    }

    /// `code` is the word of a refusal code.
    fn refuse(&self, py: Python<'_>, id: u64, code: &str, text: String) -> PyResult<bool> {
        let code = Code::ALL.iter().copied().find(|candidate| candidate.word() == code);
        let code = code.ok_or_else(|| PyValueError::new_err("unknown refusal code"))?;
        Ok(py.detach(|| self.server.answer(id, Err(Refusal::new(code, text)))))
    }

    /// `(peer, reason)` of refused connections, and the number of those left out.
    fn refused(&self, py: Python<'_>, wait_ms: u64) -> (Vec<(String, String)>, u64) {
        let (notes, left_out) = py.detach(|| self.server.refused(Duration::from_millis(wait_ms)));
        (notes.into_iter().map(|note| (note.peer, note.text)).collect(), left_out)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, figures) = (self.server.stats(), PyDict::new(py));
        for (name, verb) in
            ["hello", "pull", "push", "order", "ping", "part", "reduce"].iter().zip(&stats.verbs)
        {
            figures.set_item(format!("{name}_requests"), verb.requests)?;
            figures.set_item(format!("{name}_errors"), verb.errors)?;
            figures.set_item(format!("{name}_rows"), verb.rows)?;
            figures.set_item(format!("{name}_in_bytes"), verb.bytes_in)?;
            figures.set_item(format!("{name}_out_bytes"), verb.bytes_out)?;
            figures.set_item(format!("{name}_seconds"), verb.seconds)?;
        }
        figures.set_item("connections", stats.connections)?;
        figures.set_item("connections_max", stats.connections_max)?;
        figures.set_item("orders_waiting", stats.orders)?;
        figures.set_item("orders_max", stats.orders_max)?;
        figures.set_item("in_flight_bytes", stats.in_flight_bytes)?;
        figures.set_item("in_flight_bytes_max", stats.in_flight_bytes_max)?;
        figures.set_item("clients", stats.clients)?;
        figures.set_item("clients_max", stats.clients_max)?;
        figures.set_item("duplicates", stats.duplicates)?;
        for (code, count) in Code::ALL.iter().zip(stats.refusals) {
            figures.set_item(format!("refused_{}", code.word()), count)?;
        }
        Ok(figures)
    }

    fn stop(&self, py: Python<'_>, drain_ms: u64) {
        py.detach(|| self.server.stop(Duration::from_millis(drain_ms)));
    }
}

#[pyclass(frozen, name = "PsClient", module = "streamlearn._native")]
pub struct NativeClient {
    pub client: Client,
}

/// The client that connects to the shards; `ClientIdentity` in `streamlearn.ps.remote`.
#[derive(FromPyObject)]
struct ClientIdentity {
    /// The address of each shard, by its number.
    addresses: Vec<String>,
    /// "trains", "reads" or "asks".
    role: String,
    /// The client's id: its pushes are counted under it.
    client: u128,
    model: String,
    /// The fingerprint of the tables' specification, 32 bytes.
    fingerprint: Vec<u8>,
    /// The row length of each table, by its number.
    dims: Vec<usize>,
    /// How rows and gradients are sent: "float32" or "float16".
    encoding: String,
    /// The seed of the jitter between connection attempts.
    seed: u64,
}

impl ClientIdentity {
    fn role(&self) -> PyResult<Role> {
        match self.role.as_str() {
            "trains" => Ok(Role::Trains),
            "reads" => Ok(Role::Reads),
            "asks" => Ok(Role::Asks),
            other => Err(PyValueError::new_err(format!("unknown role {other:?}"))),
        }
    }

    fn encoding(&self) -> PyResult<Encoding> {
        match self.encoding.as_str() {
            "float32" => Ok(Encoding::F32),
            "float16" => Ok(Encoding::F16),
            other => Err(PyValueError::new_err(format!("unknown encoding {other:?}"))),
        }
    }
}

/// The version to read: its number, or None for the latest writes.
pub fn pull_at(at: Option<u64>) -> PullAt {
    at.map_or(PullAt::Newest, PullAt::Version)
}

#[pymethods]
impl NativeClient {
    /// `tls` has the path of the CA certificates, and the server name to verify.
    #[new]
    fn new(
        py: Python<'_>,
        identity: ClientIdentity,
        token: Option<GivenToken<'_>>,
        tls: Option<(PathBuf, String)>,
        limits: Vec<(String, u64)>,
    ) -> PyResult<Self> {
        let (role, encoding) = (identity.role()?, identity.encoding()?);
        let mut bounds = ClientLimits::default();
        override_limits!(
            bounds,
            limits,
            connect_wait_ms_max,
            reply_wait_ms_max,
            retry_wait_ms_max,
            backoff_first_ms,
            backoff_ms_max,
            in_flight_max,
            calls_max,
            pull_block_keys,
            push_block_keys,
            frame_bytes_max,
        );
        let settings = ClientSettings {
            addresses: identity.addresses,
            role,
            client: identity.client,
            model: identity.model,
            fingerprint: fingerprint_of(&identity.fingerprint)?,
            dims: identity.dims,
            token: token_of(py, token)?,
            tls: tls.map(|(ca, server_name)| TlsTrust { ca, server_name }),
            encoding,
            seed: identity.seed,
            limits: bounds,
        };
        let client = py.detach(|| Client::open(settings));
        Ok(Self { client: done(py, client)? })
    }

    #[getter]
    fn epoch(&self) -> Option<EpochTuple> {
        self.client.epoch().map(tuple_of)
    }

    fn set_epoch(&self, py: Python<'_>, epoch: EpochTuple) -> PyResult<()> {
        let outcome = py.detach(|| self.client.set_epoch(epoch_of(epoch)));
        done(py, outcome)
    }

    /// `(address, begin, end, epoch)` of each shard.
    fn shards(&self) -> Vec<(String, usize, usize, Option<EpochTuple>)> {
        let shards = self.client.shards().into_iter();
        shards
            .map(|shard| (shard.address, shard.parts.start, shard.parts.end, shard.epoch.map(tuple_of)))
            .collect()
    }

    fn pull(
        &self,
        py: Python<'_>,
        table: (u16, usize),
        keys: &Bound<'_, PyAny>,
        at: Option<u64>,
        is_distinct: bool,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let keys = keys.as_slice()?;
        let mut out = flat_out::<f32>(out, ("out", "float32"), keys.len() * table.1)?;
        let out = out.as_slice_mut()?;
        let outcome = py.detach(|| self.client.pull(table.0, keys, pull_at(at), is_distinct, out));
        done(py, outcome)
    }

    /// Returns the numbers of keys that learned, were created, and wait. With a part, the push belongs to one
    /// slice of a step.
    #[pyo3(signature = (table, keys, gradients, options, part=None))]
    fn push(
        &self,
        py: Python<'_>,
        table: u16,
        keys: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        options: PushOptions<'_>,
        part: Option<Part>,
    ) -> PyResult<(usize, usize, usize)> {
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let (counts, admit) = (options.counts()?, options.admit());
        let push = PushOf {
            table,
            keys: keys.as_slice()?,
            gradients: gradients.as_slice()?,
            counts: counts.as_ref().map(|counts| counts.as_slice()).transpose()?,
            admit: &admit,
            now_ms: options.now_ms,
            rate_scale: options.rate_scale,
        };
        let outcome = py.detach(|| match part {
            None => self.client.push(push),
            Some(((step, slice, slices, may_repeat, at_once), is_finite)) => {
                let part = PartOf { step, slice, slices, is_finite, may_repeat, at_once };
                self.client.push_part(part, push)
            }
        });
        let pushed = done(py, outcome)?;
        Ok((pushed.learned, pushed.created, pushed.waiting))
    }

    /// Gives a slice's values of a dense vector, without waiting for others.
    fn reduce(&self, py: Python<'_>, part: Part, values: &Bound<'_, PyAny>, digest: u64) -> PyResult<()> {
        let ((step, slice, slices, ..), is_finite) = part;
        let values = flat::<f32>(values, "values", "float32")?;
        let values = values.as_slice()?;
        let reduce = ReduceOf { step, slice: Some(slice), slices, digest, is_finite, wait: Duration::ZERO };
        let outcome = py.detach(|| self.client.reduce(reduce, values, None));
        done(py, outcome).map(drop)
    }

    /// Asks for the sum of a step's slices: None while slices are missing, else whether all were finite.
    fn reduced(
        &self,
        py: Python<'_>,
        step: u64,
        slices: u16,
        out: &Bound<'_, PyAny>,
        wait_ms: u64,
    ) -> PyResult<Option<bool>> {
        let length = out.len()?;
        let mut out = flat_out::<f32>(out, ("out", "float32"), length)?;
        let out = out.as_slice_mut()?;
        let wait = Duration::from_millis(wait_ms);
        let reduce = ReduceOf { step, slice: None, slices, digest: 0, is_finite: true, wait };
        let outcome = py.detach(|| self.client.reduce(reduce, &[], Some(out)));
        done(py, outcome)
    }

    /// Sends one body to each shard; returns each shard's answer or exception.
    fn order_all(&self, py: Python<'_>, bodies: Vec<Vec<u8>>, wait_ms: u64) -> Vec<Py<PyAny>> {
        let answers = py.detach(|| self.client.order_all(&bodies, Duration::from_millis(wait_ms)));
        let result_of = |answer: streamlearn_ps::Result<Vec<u8>>| match answer {
            Ok(body) => PyBytes::new(py, &body).into_any().unbind(),
            Err(error) => refuse(py, &error).into_value(py).into_any(),
        };
        answers.into_iter().map(result_of).collect()
    }

    /// Request statistics of each shard.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let figures_of = |shard: streamlearn_ps::LinkStats| {
            let figures = PyDict::new(py);
            for (name, verb) in [
                ("pull", shard.pull),
                ("push", shard.push),
                ("order", shard.order),
                ("part", shard.part),
                ("reduce", shard.reduce),
            ] {
                figures.set_item(format!("{name}_requests"), verb.requests)?;
                figures.set_item(format!("{name}_errors"), verb.errors)?;
                figures.set_item(format!("{name}_retries"), verb.retries)?;
                figures.set_item(format!("{name}_out_bytes"), verb.bytes_out)?;
                figures.set_item(format!("{name}_in_bytes"), verb.bytes_in)?;
                figures.set_item(format!("{name}_seconds"), verb.seconds)?;
            }
            figures.set_item("reconnects", shard.reconnects)?;
            figures.set_item("in_flight", shard.in_flight)?;
            Ok(figures)
        };
        self.client.stats().shards.into_iter().map(figures_of).collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.client.close());
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeServer>()?;
    module.add_class::<NativeOrder>()?;
    module.add_class::<NativeClient>()
}

/// Fetches the rows that packing reads.
pub fn fetched(
    py: Python<'_>,
    client: &NativeClient,
    wanted: &[(u16, &[u64])],
    at: Option<u64>,
) -> PyResult<streamlearn_ps::Fetched> {
    let outcome = py.detach(|| client.client.fetch(wanted, pull_at(at)));
    done(py, outcome)
}
