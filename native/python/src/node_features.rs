//! Bindings of a node's feature reader.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use streamlearn_serve::features::declared_side::DeclaredSide;
use streamlearn_serve::features::reader::{FeatureReader, ReadLimits};
use streamlearn_serve::features::state_source::{RedisPlace, RedisSettings, StateKey, StateSource};

use crate::serve::{NativeFront, NativeHistogram, histogram};

pub type Talk = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A Redis; `RedisAddress` in `streamlearn.online.redis_address`.
#[derive(FromPyObject)]
pub struct RedisAddress {
    host: String,
    port: u16,
    /// The file of the authority that signed its certificate, with TLS.
    authority: Option<PathBuf>,
    /// The socket, in place of host and port.
    socket: Option<PathBuf>,
    user: String,
    password: String,
    database: u32,
}

impl RedisAddress {
    /// The settings of a reader of values that have at most `value_bytes_max` bytes.
    pub fn settings(self, value_bytes_max: usize, reach: Duration) -> RedisSettings {
        let Self { host, port, authority, socket, user, password, database } = self;
        let place = match (socket, authority) {
            (Some(path), _) => RedisPlace::Socket(path),
            (None, Some(authority)) => RedisPlace::Tls(host, port, authority),
            (None, None) => RedisPlace::Host(host, port),
        };
        RedisSettings { place, user, password, database, value_bytes_max, reach }
    }
}

/// The size of the largest state.
pub fn state_bytes_max(sides: &[Option<DeclaredSide>; 2]) -> usize {
    sides.iter().flatten().map(|side| side.definition.bytes_max()).max().unwrap_or(0)
}

/// A Redis, with the future that speaks to it, or what a function reads.
pub fn source_of(
    redis: Option<RedisAddress>,
    read: Option<Py<PyAny>>,
    value_bytes_max: usize,
    reach: Duration,
) -> PyResult<(StateSource, Option<Talk>)> {
    match (redis, read) {
        (Some(redis), None) => {
            let (source, talk) = StateSource::redis(redis.settings(value_bytes_max, reach));
            Ok((source, Some(Box::pin(talk))))
        }
        (None, Some(read)) => {
            let read = move |keys: &[StateKey]| {
                Python::attach(|py| read.call1(py, (keys.to_vec(),)).ok()?.extract(py).ok()?)
            };
            Ok((StateSource::function(Box::new(read)), None))
        }
        _ => Err(PyValueError::new_err("give either a Redis or a function that reads")),
    }
}

/// `ReadLimits` in `streamlearn.serving.node_features`.
#[derive(FromPyObject)]
struct FeatureLimits {
    wait_s: f64,
    cache_bytes: usize,
    cache_age_s: f64,
    reach_s: f64,
    /// The number that names the states.
    states: i64,
}

/// The counters of a reader since its start.
#[pyclass(frozen, get_all, name = "FeatureFigures", module = "streamlearn._native")]
struct NativeFeatureFigures {
    /// Requests whose user is known, is unknown, whose states did not come in time; those that lacked no column.
    requests: [u64; 4],
    /// Candidates whose states were in the cache, and whose states were read.
    items: [u64; 2],
    /// States that could not be read as such.
    states_bad: u64,
    /// The time that requests waited for states, in microseconds.
    waits: NativeHistogram,
    /// The error that ended the last connection; empty while there is one.
    error: String,
}

#[pyclass(frozen, name = "NodeFeatures", module = "streamlearn._native")]
pub struct NativeNodeFeatures {
    pub reader: Arc<FeatureReader>,
    talk: Mutex<Option<Talk>>,
}

impl NativeNodeFeatures {
    /// The future that keeps the connection; the first call takes it.
    pub fn talk(&self) -> Option<Talk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

pub fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl NativeNodeFeatures {
    /// States come from `redis`, or from `read`, which takes pairs of a side and a key and returns states, or None.
    #[new]
    fn new(
        front: &NativeFront,
        description: &str,
        limits: FeatureLimits,
        redis: Option<RedisAddress>,
        read: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let reach = seconds(limits.reach_s)?;
        let sides = DeclaredSide::both(description).map_err(PyValueError::new_err)?;
        let (source, talk) = source_of(redis, read, state_bytes_max(&sides), reach)?;
        let states = limits.states;
        let limits = ReadLimits {
            wait: seconds(limits.wait_s)?,
            cache_bytes: limits.cache_bytes,
            cache_age: seconds(limits.cache_age_s)?,
        };
        let reader = FeatureReader::new(front.front.inputs().clone(), description, limits, states, source)
            .map_err(PyValueError::new_err)?;
        Ok(Self { reader: Arc::new(reader), talk: Mutex::new(talk) })
    }

    /// Sets where the states of a side are; 0 is the user's.
    fn set_group(&self, side: usize, name: String, partitions: u64) -> PyResult<()> {
        if side > 1 {
            return Err(PyValueError::new_err(format!("side {side}: there are two")));
        }
        self.reader.states().set_group(side, name, partitions);
        Ok(())
    }

    /// Sets the time of evaluation; None: the clock's.
    #[pyo3(signature = (at_ms))]
    fn set_time(&self, at_ms: Option<i64>) {
        self.reader.set_time(at_ms);
    }

    fn figures(&self) -> NativeFeatureFigures {
        let (counts, states) = (self.reader.counts(), self.reader.states());
        NativeFeatureFigures {
            requests: counts.requests.each_ref().map(|count| count.load(Ordering::Relaxed)),
            items: states.items.each_ref().map(|count| count.load(Ordering::Relaxed)),
            states_bad: states.bad.load(Ordering::Relaxed),
            waits: histogram(counts.waits()),
            error: states.source.error(),
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeFeatureFigures>()?;
    module.add_class::<NativeNodeFeatures>()
}
