//! Bindings for callers in Python who read states and wait for them.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use streamlearn_features::{State, Values as FeatureValues, read_states};
use streamlearn_serve::features::declared_side::DeclaredSide;
use streamlearn_serve::features::state_source::{StateGroup, StateKey, StateSource};
use streamlearn_serve::request::Values;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::arrays::{buffers_of, flat};
use crate::node_features::{RedisAddress, seconds};

/// Of the entities of one side: what became of their states, their positions, and the values of each column.
type SideColumns<'py> = (Vec<u8>, Vec<i64>, Vec<Bound<'py, PyList>>);

/// What is read of one side.
type Evaluated = (Vec<u8>, Vec<i64>, Vec<Values>);

/// Evaluates the computed columns of users and items, and reads their states from a Redis.
#[pyclass(frozen, name = "StateClient", module = "streamlearn._native")]
struct NativeStateClient {
    sides: [Option<DeclaredSide>; 2],
    /// Its connection lives in the calls: what another thread would answer takes longer than the answer of a Redis.
    redis: Option<(StateSource, Runtime)>,
}

impl NativeStateClient {
    fn side(&self, side: usize) -> PyResult<&DeclaredSide> {
        let declared = self.sides.get(side).and_then(Option::as_ref);
        declared.ok_or_else(|| PyValueError::new_err(format!("side {side} has no computed columns")))
    }
}

#[pymethods]
impl NativeStateClient {
    #[new]
    fn new(description: &str, redis: Option<RedisAddress>, reach_s: f64) -> PyResult<Self> {
        let (sides, reach) =
            (DeclaredSide::both(description).map_err(PyValueError::new_err)?, seconds(reach_s)?);
        let connected = |redis: RedisAddress| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (source, talk) = StateSource::redis(redis.settings(&sides, reach));
            runtime.spawn(talk);
            PyResult::Ok((source, runtime))
        };
        let redis = redis.map(connected).transpose()?;
        Ok(Self { sides, redis })
    }

    /// Sets where the states of a side are; 0 is the user's.
    fn set_group(&self, side: usize, name: String, partitions: u64) -> PyResult<()> {
        self.side(side)?;
        if let Some((source, _)) = &self.redis {
            source.set_group(side, StateGroup { name, partitions });
        }
        Ok(())
    }

    /// Returns the columns of some sides, each with the keys of its entities; None if there is no answer in time.
    fn read<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<(usize, Bound<'py, PyAny>)>,
        at_ms: i64,
        wait_s: f64,
    ) -> PyResult<Option<Vec<SideColumns<'py>>>> {
        let Some((source, runtime)) = &self.redis else { return Ok(None) };
        let (mut named, mut sides): (Vec<StateKey>, _) = (Vec::new(), Vec::with_capacity(keys.len()));
        for (side, keys) in &keys {
            let keys = flat::<u64>(keys, "keys", "uint64")?;
            named.extend(keys.as_slice()?.iter().map(|&key| (*side, key)));
            sides.push((self.side(*side)?, named.len()));
        }
        let wait = seconds(wait_s)?;
        let found = py.detach(|| {
            let stored = runtime.block_on(answer(source, &named, wait))?;
            let stored: Vec<Option<&[u8]>> = stored.iter().map(Option::as_deref).collect();
            let mut begin = 0;
            let evaluated = sides.into_iter().map(|(side, end)| {
                let of_side = &stored[std::mem::replace(&mut begin, end)..end];
                evaluated(side, of_side, at_ms)
            });
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
        listed(py, evaluated(side, &stored, at_ms))
    }
}

async fn answer(
    source: &StateSource,
    keys: &[StateKey],
    wait: Duration,
) -> Option<Vec<Option<bytes::Bytes>>> {
    // The connection is looked at first, as nobody did since the last call.
    tokio::task::yield_now().await;
    timeout(wait, source.connected()).await.ok()?;
    source.read(keys, wait, true).await
}

fn evaluated(side: &DeclaredSide, stored: &[Option<&[u8]>], at_ms: i64) -> Evaluated {
    let (states, read) = read_states(&side.definition, stored);
    let mut values = FeatureValues::new(&side.definition);
    states.iter().for_each(|state: &State| state.evaluate(&side.definition, at_ms, &mut values));
    let FeatureValues { keys, ends, numbers } = values;
    let each = side.columns.iter().zip(keys).zip(ends).zip(numbers);
    let columns = each.map(|(((column, keys), ends), numbers)| column.values(&numbers, keys, &ends));
    let columns = columns.collect();
    let positions = states.iter().map(|state| state.position).collect();
    (read.into_iter().map(|one| one as u8).collect(), positions, columns)
}

/// The values as Python has them: a value or a list for each entity.
fn listed<'py>(py: Python<'py>, (read, positions, columns): Evaluated) -> PyResult<SideColumns<'py>> {
    let count = read.len();
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
    Ok((read, positions, listed.collect::<PyResult<_>>()?))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeStateClient>()
}
