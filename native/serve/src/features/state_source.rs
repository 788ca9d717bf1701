//! StateSource: reads feature states of users and items within a wait, and stops asking while no answers come.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::features::state_redis::RedisReader;
pub use crate::features::state_redis::{RedisPlace, RedisSettings};

/// After this many reads in a row without an answer in time, none is tried for a while.
const FAILURES_MAX: u32 = 3;
/// How long none is tried then.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of calls of a function at once: each holds Python's interpreter, which lanes need too.
const CALLS_MAX: usize = 1;

/// Where states are: the states of one side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateGroup {
    /// Its name; empty until it is known.
    pub name: String,
    /// The partitions of the topic of interactions.
    pub partitions: u64,
}

/// A state to read: the side, 0 for the user, and the entity's key.
pub type StateKey = (usize, u64);

/// Reads states, for stores that only Python knows. `None` if the store does not answer.
pub type ReadStates = Box<dyn Fn(&[StateKey]) -> Option<Vec<Option<Vec<u8>>>> + Send + Sync>;

enum StateReader {
    Redis(RedisReader),
    Function(Arc<ReadStates>, Arc<Semaphore>),
}

/// A store of states.
pub struct StateSource {
    reader: StateReader,
    groups: Mutex<[Arc<StateGroup>; 2]>,
    began: Instant,
    failures: AtomicU32,
    paused_until_ms: AtomicU64,
}

impl StateSource {
    /// A Redis; the future speaks to it, and ends when the source is dropped.
    pub fn redis(settings: RedisSettings) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (reader, talk) = RedisReader::new(settings);
        (Self::new(StateReader::Redis(reader)), talk)
    }

    /// A function that may block.
    pub fn function(read: ReadStates) -> Self {
        Self::new(StateReader::Function(Arc::new(read), Arc::new(Semaphore::new(CALLS_MAX))))
    }

    fn new(reader: StateReader) -> Self {
        Self {
            reader,
            groups: Mutex::default(),
            began: Instant::now(),
            failures: AtomicU32::new(0),
            paused_until_ms: AtomicU64::new(0),
        }
    }

    /// Sets the group of a side; returns whether it is another one than before.
    pub fn set_group(&self, side: usize, group: StateGroup) -> bool {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *groups[side] != group;
        if is_new {
            groups[side] = Arc::new(group);
        }
        is_new
    }

    /// Waits until the store can be asked.
    pub async fn connected(&self) {
        if let StateReader::Redis(reader) = &self.reader {
            reader.connected().await;
        }
    }

    /// The error that ended the last connection; empty while there is one.
    pub fn error(&self) -> String {
        match &self.reader {
            StateReader::Redis(reader) => reader.error(),
            StateReader::Function(..) => String::new(),
        }
    }

    /// Reads states; `None` if there is no answer within `wait`. Only if `is_full` does that count as a failure of the
    /// store, and so does no missing connection, which is known at once.
    pub async fn read(&self, keys: &[StateKey], wait: Duration, is_full: bool) -> Option<Vec<Option<Bytes>>> {
        if matches!(&self.reader, StateReader::Redis(reader) if !reader.is_connected()) {
            return None;
        }
        let now_ms = self.began.elapsed().as_millis() as u64;
        if now_ms < self.paused_until_ms.load(Ordering::Relaxed) {
            return None;
        }
        let found = tokio::time::timeout(wait, self.ask(keys)).await.ok().flatten();
        if found.is_some() {
            self.failures.store(0, Ordering::Relaxed);
        } else if is_full && self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX {
            self.paused_until_ms.store(now_ms + PAUSE.as_millis() as u64, Ordering::Relaxed);
        }
        found.filter(|found| found.len() == keys.len())
    }

    async fn ask(&self, keys: &[StateKey]) -> Option<Vec<Option<Bytes>>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if keys.iter().any(|&(side, _)| groups[side].name.is_empty()) {
            return None;
        }
        match &self.reader {
            StateReader::Redis(reader) => {
                let name = |&(side, key): &StateKey| {
                    let StateGroup { name, partitions } = &*groups[side];
                    let partition = key % (*partitions).max(1);
                    format!("streamlearn:{{{name}:{partition}}}:s:{key:016x}")
                };
                reader.read(keys.iter().map(name)).await
            }
            StateReader::Function(read, calls) => {
                // The call holds it until it ends, also if its caller has gone.
                let call = calls.clone().acquire_owned().await.ok()?;
                let (read, keys) = (read.clone(), keys.to_vec());
                let blocking = move || {
                    let states = read(&keys);
                    drop(call);
                    states
                };
                let states = tokio::task::spawn_blocking(blocking).await.ok()??;
                Some(states.into_iter().map(|state| state.map(Bytes::from)).collect())
            }
        }
    }
}
