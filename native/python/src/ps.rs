//! Bindings of `streamlearn_ps`: a shard's server, and the client of all shards.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use streamlearn_ps::{
    Client, ClientLimits, ClientSettings, Code, Encoding, Epoch, Limits, PsError, PullAt, PushOf, Refusal,
    Role, Secret, Server, ServerSettings, Shard, TlsFiles, TlsTrust, Trouble,
};
use streamlearn_table::Admit;

use crate::arrays::{flat, flat_out};
use crate::table::{NativeSet, raise};

/// `(run, recovery)`.
type EpochTuple = (u64, u32);

fn epoch_of((run, recovery): EpochTuple) -> Epoch {
    Epoch { run, recovery }
}

fn tuple_of(epoch: Epoch) -> EpochTuple {
    (epoch.run, epoch.recovery)
}

/// The name of the class of `streamlearn.errors` for a trouble, and what to do.
fn class_of(trouble: Trouble) -> (&'static str, &'static str) {
    match trouble {
        Trouble::Settings => ("UsageError", "correct what is named"),
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
            ("ShardUnreachable", "see whether the shard runs; then restore all shards")
        }
        Trouble::Unsure => {
            ("PushUnsure", "restore all shards to the newest committed version: none has learned it then")
        }
        Trouble::Closed => ("UsageError", "open another client"),
        Trouble::Refused(Code::Busy | Code::TooMany) => ("TableBusy", "try again when that is done"),
        Trouble::Refused(Code::Full) => {
            ("TableFull", "raise rows_max, expire more keys, or give the shards more memory")
        }
        Trouble::Refused(Code::VersionRefused) => ("VersionRefused", ""),
        Trouble::Refused(Code::ReadsOnly) => ("UsageError", "connect as one that trains to change anything"),
        Trouble::Refused(Code::BadRequest) => ("ShardRefused", "see what is named; nothing was done of it"),
        Trouble::Refused(_) => ("ShardRefused", "trainer and shards must be of one release, model and token"),
    }
}

fn refuse(py: Python<'_>, error: &PsError) -> PyErr {
    let (class, help) = class_of(error.trouble);
    let raised = raise(py, class, &error.to_string(), help);
    if error.detail.is_empty() {
        return raised;
    }
    let named = raised.value(py).setattr("detail", PyBytes::new(py, &error.detail));
    named.map_or_else(|error| error, |()| raised)
}

fn done<T>(py: Python<'_>, outcome: streamlearn_ps::Result<T>) -> PyResult<T> {
    outcome.map_err(|error| refuse(py, &error))
}

fn fingerprint_of(bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("fingerprint: expected 32 bytes, got {}", bytes.len())))
}

fn secret_of(py: Python<'_>, token: Option<Vec<u8>>) -> PyResult<Option<Secret>> {
    let made = token.map(Secret::new).transpose();
    done(py, made.map_err(|said| PsError::new(Trouble::Settings, said)))
}

/// Put the numbers that are named over the defaults.
macro_rules! lay_over {
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

/// `(number, count, begin, end, model, fingerprint, specification)`.
type ShardTuple = (u32, u32, usize, usize, String, Vec<u8>, Vec<u8>);

#[pyclass(frozen, name = "PsServer", module = "streamlearn._native")]
struct NativeServer {
    server: Server,
}

#[pymethods]
impl NativeServer {
    /// `shard` is `(number, count, begin, end, model, fingerprint, specification)`, `tls` paths of certificates and key.
    #[new]
    #[pyo3(signature = (listen, shard, token, tls, threads, limits))]
    fn new(
        py: Python<'_>,
        listen: Vec<String>,
        shard: ShardTuple,
        token: Option<Vec<u8>>,
        tls: Option<(PathBuf, PathBuf)>,
        threads: usize,
        limits: Vec<(String, u64)>,
    ) -> PyResult<Self> {
        let (number, count, begin, end, model, fingerprint, specification) = shard;
        let fingerprint = fingerprint_of(&fingerprint)?;
        let shard = Shard { number, count, parts: begin..end, model, fingerprint, specification };
        let mut bounds = Limits::default();
        lay_over!(
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
            token: secret_of(py, token)?,
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

    /// `(id, reads_only, body)`, or None when none came.
    fn next_order<'py>(&self, py: Python<'py>, wait_ms: u64) -> Option<(u64, bool, Bound<'py, PyBytes>)> {
        let order = py.detach(|| self.server.next_order(Duration::from_millis(wait_ms)));
        order.map(|order| (order.id, order.reads_only, PyBytes::new(py, &order.body)))
    }

    fn answer(&self, py: Python<'_>, id: u64, body: Vec<u8>) -> bool {
        py.detach(|| self.server.answer(id, Ok(body)))
    }

    /// `code` is a word, as refusals have them.
    fn refuse(&self, py: Python<'_>, id: u64, code: &str, text: String) -> PyResult<bool> {
        let code = Code::ALL.iter().copied().find(|known| known.word() == code);
        let code = code.ok_or_else(|| PyValueError::new_err("there is no such code"))?;
        Ok(py.detach(|| self.server.answer(id, Err(Refusal::new(code, text)))))
    }

    /// `(peer, why)` of connections that were refused, and how many more were.
    fn refused(&self, py: Python<'_>, wait_ms: u64) -> (Vec<(String, String)>, u64) {
        let (notes, left_out) = py.detach(|| self.server.refused(Duration::from_millis(wait_ms)));
        (notes.into_iter().map(|note| (note.peer, note.text)).collect(), left_out)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, found) = (self.server.stats(), PyDict::new(py));
        for (name, verb) in ["hello", "pull", "push", "order", "ping"].iter().zip(&stats.verbs) {
            found.set_item(format!("{name}_requests"), verb.requests)?;
            found.set_item(format!("{name}_errors"), verb.errors)?;
            found.set_item(format!("{name}_rows"), verb.rows)?;
            found.set_item(format!("{name}_in_bytes"), verb.bytes_in)?;
            found.set_item(format!("{name}_out_bytes"), verb.bytes_out)?;
            found.set_item(format!("{name}_seconds"), verb.seconds)?;
        }
        found.set_item("connections", stats.connections)?;
        found.set_item("connections_max", stats.connections_max)?;
        found.set_item("orders_waiting", stats.orders)?;
        found.set_item("orders_max", stats.orders_max)?;
        found.set_item("in_flight_bytes", stats.in_flight_bytes)?;
        found.set_item("in_flight_bytes_max", stats.in_flight_bytes_max)?;
        found.set_item("clients", stats.clients)?;
        found.set_item("clients_max", stats.clients_max)?;
        found.set_item("duplicates", stats.duplicates)?;
        for (code, count) in Code::ALL.iter().zip(stats.refusals) {
            found.set_item(format!("refused_{}", code.word()), count)?;
        }
        Ok(found)
    }

    fn stop(&self, py: Python<'_>, drain_ms: u64) {
        py.detach(|| self.server.stop(Duration::from_millis(drain_ms)));
    }
}

#[pyclass(frozen, name = "PsClient", module = "streamlearn._native")]
pub struct NativeClient {
    pub client: Client,
}

/// `(addresses, role, client, model, fingerprint, dims, encoding, seed)`.
type Who = (Vec<String>, String, u128, String, Vec<u8>, Vec<usize>, String, u64);

/// The version that is read: its number, or None for what was written last.
pub fn pull_at(at: Option<u64>) -> PullAt {
    at.map_or(PullAt::Newest, PullAt::Version)
}

#[pymethods]
impl NativeClient {
    /// `tls` is the path of the authority's certificates and the name shards are called by.
    #[new]
    fn new(
        py: Python<'_>,
        who: Who,
        token: Option<Vec<u8>>,
        tls: Option<(PathBuf, String)>,
        limits: Vec<(String, u64)>,
    ) -> PyResult<Self> {
        let (addresses, role, client, model, fingerprint, dims, encoding, seed) = who;
        let role = match role.as_str() {
            "trains" => Role::Trains,
            "reads" => Role::Reads,
            "asks" => Role::Asks,
            other => return Err(PyValueError::new_err(format!("unknown role {other:?}"))),
        };
        let encoding = match encoding.as_str() {
            "float32" => Encoding::F32,
            "float16" => Encoding::F16,
            other => return Err(PyValueError::new_err(format!("unknown encoding {other:?}"))),
        };
        let mut bounds = ClientLimits::default();
        lay_over!(
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
            addresses,
            role,
            client,
            model,
            fingerprint: fingerprint_of(&fingerprint)?,
            dims,
            token: secret_of(py, token)?,
            tls: tls.map(|(ca, server_name)| TlsTrust { ca, server_name }),
            encoding,
            seed,
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
        shards.map(|one| (one.address, one.parts.start, one.parts.end, one.epoch.map(tuple_of))).collect()
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

    /// Keys that learned, were created, and wait; `times` is table time and the scale of the rate.
    #[allow(clippy::too_many_arguments)] // as the table's
    fn push(
        &self,
        py: Python<'_>,
        table: u16,
        keys: &Bound<'_, PyAny>,
        gradients: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        admit: Vec<(usize, u32)>,
        times: (i64, f32),
    ) -> PyResult<(usize, usize, usize)> {
        let keys = flat::<u64>(keys, "keys", "uint64")?;
        let gradients = flat::<f32>(gradients, "gradients", "float32")?;
        let counts: Option<PyReadonlyArray1<'_, u32>> =
            counts.map(|counts| flat::<u32>(counts, "counts", "uint32")).transpose()?;
        let admit: Vec<Admit> = admit.into_iter().map(|(end, threshold)| Admit { end, threshold }).collect();
        let push = PushOf {
            table,
            keys: keys.as_slice()?,
            gradients: gradients.as_slice()?,
            counts: counts.as_ref().map(|counts| counts.as_slice()).transpose()?,
            admit: &admit,
            now_ms: times.0,
            rate_scale: times.1,
        };
        let outcome = py.detach(|| self.client.push(push));
        let pushed = done(py, outcome)?;
        Ok((pushed.learned, pushed.created, pushed.waiting))
    }

    /// Bodies for all shards; of each the answer, or the error.
    fn order_all(&self, py: Python<'_>, bodies: Vec<Vec<u8>>, wait_ms: u64) -> Vec<Py<PyAny>> {
        let answers = py.detach(|| self.client.order_all(&bodies, Duration::from_millis(wait_ms)));
        let one = |answer: streamlearn_ps::Result<Vec<u8>>| match answer {
            Ok(body) => PyBytes::new(py, &body).into_any().unbind(),
            Err(error) => refuse(py, &error).into_value(py).into_any(),
        };
        answers.into_iter().map(one).collect()
    }

    /// Of each shard what was asked of it.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let one = |shard: streamlearn_ps::LinkStats| {
            let found = PyDict::new(py);
            for (name, verb) in [("pull", shard.pull), ("push", shard.push), ("order", shard.order)] {
                found.set_item(format!("{name}_requests"), verb.requests)?;
                found.set_item(format!("{name}_errors"), verb.errors)?;
                found.set_item(format!("{name}_retries"), verb.retries)?;
                found.set_item(format!("{name}_out_bytes"), verb.bytes_out)?;
                found.set_item(format!("{name}_in_bytes"), verb.bytes_in)?;
                found.set_item(format!("{name}_seconds"), verb.seconds)?;
            }
            found.set_item("reconnects", shard.reconnects)?;
            found.set_item("in_flight", shard.in_flight)?;
            Ok(found)
        };
        self.client.stats().shards.into_iter().map(one).collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.client.close());
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeServer>()?;
    module.add_class::<NativeClient>()
}

/// What packing reads, once it is here.
pub fn fetched(
    py: Python<'_>,
    client: &NativeClient,
    wanted: &[(u16, &[u64])],
    at: Option<u64>,
) -> PyResult<streamlearn_ps::Fetched> {
    let outcome = py.detach(|| client.client.fetch(wanted, pull_at(at)));
    done(py, outcome)
}
