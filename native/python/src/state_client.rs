//! Bindings for callers in Python who read states and wait for them.

use std::sync::atomic::Ordering;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use streamlearn_features::{Definition, State, Values as FeatureValues};
use streamlearn_serve::features::cached_states::CachedStates;
use streamlearn_serve::features::declared_side::DeclaredSide;
use streamlearn_serve::features::state_cache::Cached;
use streamlearn_serve::features::state_source::StateSource;
use streamlearn_serve::request::Values;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::arrays::{buffers_of, flat};
use crate::node_features::{RedisAddress, seconds, state_bytes_max};

/// Of the entities of one side: whether something is known of them, the positions of their states, and the values of
/// each column.
type SideColumns<'py> = (Vec<u8>, Vec<i64>, Vec<Bound<'py, PyList>>);
type Evaluated = (Vec<u8>, Vec<i64>, Vec<Values>);

/// Evaluates the computed columns of users and items, and reads their states from a Redis.
#[pyclass(frozen, name = "StateClient", module = "streamlearn._native")]
struct NativeStateClient {
    sides: [Option<DeclaredSide>; 2],
    states: CachedStates,
    /// The connection lives in the calls: what another thread would answer takes longer than the answer of a Redis.
    runtime: Option<Runtime>,
    /// The process that made it: a fork would share its sockets.
    process: u32,
}

impl Drop for NativeStateClient {
    fn drop(&mut self) {
        // A look for a host's address may go on for long.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl NativeStateClient {
    fn side(&self, side: usize) -> PyResult<&DeclaredSide> {
        let declared = self.sides.get(side).and_then(Option::as_ref);
        declared.ok_or_else(|| PyValueError::new_err(format!("side {side} has no computed columns")))
    }
}

fn definitions(sides: &[Option<DeclaredSide>; 2]) -> [Option<&Definition>; 2] {
    sides.each_ref().map(|side| side.as_ref().map(|side| &side.definition))
}

#[pymethods]
impl NativeStateClient {
    /// Without a Redis, `evaluate` is all it does.
    #[new]
    fn new(
        description: &str,
        redis: Option<RedisAddress>,
        reach_s: f64,
        cache_bytes: usize,
        cache_age_s: f64,
    ) -> PyResult<Self> {
        let sides = DeclaredSide::both(description).map_err(PyValueError::new_err)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let source = match redis {
            None => StateSource::function(Box::new(|_| None)),
            Some(redis) => {
                let (source, talk) =
                    StateSource::redis(redis.settings(state_bytes_max(&sides), seconds(reach_s)?));
                runtime.spawn(talk);
                source
            }
        };
        let states = CachedStates::new(source, definitions(&sides), cache_bytes, seconds(cache_age_s)?);
        Ok(Self { sides, states, runtime: Some(runtime), process: std::process::id() })
    }

    /// States that could not be read as such.
    #[getter]
    fn states_bad(&self) -> u64 {
        self.states.bad.load(Ordering::Relaxed)
    }

    /// Sets where the states of a side are; 0 is the user's.
    fn set_group(&self, side: usize, name: String, partitions: u64) -> PyResult<()> {
        self.side(side)?;
        self.states.set_group(side, name, partitions);
        Ok(())
    }

    /// Takes the keys of entities by side, and returns the columns of each side; None without an answer in time.
    fn read<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<(usize, Bound<'py, PyAny>)>,
        at_ms: i64,
        wait_s: f64,
    ) -> PyResult<Option<Vec<SideColumns<'py>>>> {
        let (mut of_sides, mut asked) = ([Vec::new(), Vec::new()], Vec::with_capacity(keys.len()));
        for (side, keys) in &keys {
            asked.push((*side, self.side(*side)?));
            of_sides[*side] = flat::<u64>(keys, "keys", "uint64")?.as_slice()?.to_vec();
        }
        let wait = seconds(wait_s)?;
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.process == std::process::id()) else {
            return Err(PyRuntimeError::new_err("a reader is used after a fork: make one in each process"));
        };
        let found = py.detach(|| {
            let keys = of_sides.each_ref().map(Vec::as_slice);
            let answer = async {
                // Between two calls the connection is not looked at. One that has ended is made again.
                for _ in 0..2 {
                    self.states.source.connected().await;
                    let read = self.states.read(definitions(&self.sides), keys, wait, true).await;
                    if read.is_some() || self.states.source.error().is_empty() {
                        return read;
                    }
                }
                None
            };
            let read = runtime.block_on(async { timeout(wait, answer).await.ok().flatten() })?;
            let evaluated = asked.into_iter().map(|(side, declared)| evaluated(declared, &read[side], at_ms));
            Some(evaluated.collect::<Vec<_>>())
        });
        found.map(|found| found.into_iter().map(|side| listed(py, side)).collect()).transpose()
    }

    /// Returns the columns of one side from states that were read elsewhere.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        side: usize,
        stored: Vec<Bound<'py, PyAny>>,
        at_ms: i64,
    ) -> PyResult<SideColumns<'py>> {
        let (side, buffers) = (self.side(side)?, buffers_of(&stored)?);
        let stored: Vec<Option<&[u8]>> =
            buffers.iter().map(|one| one.as_ref().map(|bytes| bytes.as_slice())).collect();
        listed(py, evaluated(side, &self.states.decode(Some(&side.definition), &stored), at_ms))
    }
}

fn evaluated(side: &DeclaredSide, states: &[Cached], at_ms: i64) -> Evaluated {
    let (nothing, mut values) = (State::new(&side.definition), FeatureValues::new(&side.definition));
    for state in states {
        state.as_deref().unwrap_or(&nothing).evaluate(&side.definition, at_ms, &mut values);
    }
    let FeatureValues { keys, ends, numbers } = values;
    let each = side.columns.iter().zip(keys).zip(ends).zip(numbers);
    let columns = each.map(|(((column, keys), ends), numbers)| column.values(&numbers, keys, &ends));
    let positions = states.iter().map(|state| state.as_ref().map_or(-1, |state| state.position));
    let is_known = states.iter().map(|state| u8::from(state.is_some()));
    (is_known.collect(), positions.collect(), columns.collect())
}

/// The values as Python has them: a value or a list for each entity.
fn listed<'py>(py: Python<'py>, (is_known, positions, columns): Evaluated) -> PyResult<SideColumns<'py>> {
    let count = is_known.len();
    let listed = columns.iter().map(|values| match values {
        Values::Keys(keys) => PyList::new(py, keys.iter().map(|&key| key as i64)),
        Values::Lists { keys, offsets, .. } => {
            let list = |ends: &[i32]| {
                let keys = &keys[ends[0] as usize..ends[1] as usize];
                PyList::new(py, keys.iter().map(|&key| key as i64))
            };
            PyList::new(py, offsets.windows(2).map(list).collect::<PyResult<Vec<_>>>()?)
        }
        Values::Numbers(numbers) if numbers.len() == count => PyList::new(py, numbers),
        Values::Numbers(numbers) => {
            let rows = numbers.chunks(numbers.len() / count.max(1)).map(|row| PyList::new(py, row));
            PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
        }
    });
    Ok((is_known, positions, listed.collect::<PyResult<_>>()?))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeStateClient>()
}
