//! FeatureReader: computes the columns that requests lack from the states of their users and items.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use streamlearn_features::{Definition, State, Values as FeatureValues};
use streamlearn_wire::keys::key_of_int;

use crate::answer::Refusal;
use crate::distribution::{Distributed, Distribution};
use crate::features::cached_states::CachedStates;
use crate::features::declared_side::{DeclaredColumn, DeclaredSide};
use crate::features::state_cache::Cached;
use crate::features::state_source::StateSource;
use crate::features::{Computed, Outcome};
use crate::inputs::{Count, Input, Inputs, Kind};
use crate::request::{Request, Values};

/// The upper bound of the first bucket of durations, in microseconds.
const TIME_US_LEAST: u64 = 10;

/// The limits of reading.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// The longest wait for the store.
    pub wait: Duration,
    /// The memory of the cache of items' states.
    pub cache_bytes: usize,
    /// How long such a state is used.
    pub cache_age: Duration,
}

struct ComputedColumn {
    /// Its place among the request's columns, the user's first.
    at: usize,
    declared: DeclaredColumn,
}

struct ComputedSide {
    definition: Definition,
    /// The place of the slot whose keys tell entities apart, among the columns of its side.
    key: usize,
    columns: Vec<ComputedColumn>,
}

/// Counters since the start.
#[derive(Debug)]
pub struct ReaderCounts {
    /// Requests by what is known of their users: known, unknown, unavailable; and those that lack no column.
    pub requests: [AtomicU64; 4],
    waits: Distribution,
}

impl ReaderCounts {
    /// The time that requests waited for states, in microseconds.
    pub fn waits(&self) -> Distributed {
        self.waits.read()
    }
}

/// Reads states and computes columns.
pub struct FeatureReader {
    inputs: Arc<Inputs>,
    sides: [Option<ComputedSide>; 2],
    states: CachedStates,
    limits: ReadLimits,
    /// As `Computed::states`.
    states_id: i64,
    /// The time of evaluation; below 0: the clock's.
    at_ms: AtomicI64,
    counts: ReaderCounts,
}

impl FeatureReader {
    /// `description` is `{"user": SIDE, "item": SIDE}`, each optional.
    ///
    /// # Errors
    /// If it does not match the inputs.
    pub fn new(
        inputs: Arc<Inputs>,
        description: &str,
        limits: ReadLimits,
        states_id: i64,
        source: StateSource,
    ) -> Result<Self, String> {
        let [user, item] = DeclaredSide::both(description)?;
        let side = |declared: Option<_>, columns: &[Input], before| {
            declared.map(|declared| ComputedSide::new(declared, columns, before)).transpose()
        };
        let sides = [side(user, &inputs.user, 0)?, side(item, &inputs.item, inputs.user.len())?];
        let definitions = sides.each_ref().map(|side| side.as_ref().map(|side| &side.definition));
        let states = CachedStates::new(source, definitions, limits.cache_bytes, limits.cache_age);
        let counts = ReaderCounts { requests: Default::default(), waits: Distribution::new(TIME_US_LEAST) };
        Ok(Self { inputs, sides, states, limits, states_id, at_ms: AtomicI64::new(-1), counts })
    }

    /// The states, with their counters.
    pub fn states(&self) -> &CachedStates {
        &self.states
    }

    /// Sets the time of evaluation, for event time that is not the clock's.
    pub fn set_time(&self, at_ms: Option<i64>) {
        self.at_ms.store(at_ms.unwrap_or(-1), Ordering::Relaxed);
    }

    /// Counters since the start.
    pub fn counts(&self) -> &ReaderCounts {
        &self.counts
    }

    /// Computes the columns that a request lacks and puts them in. Columns keep their defaults if the store does not
    /// answer in time. `None` if the request lacks none. They are as of `at_ms`, by default as of now.
    ///
    /// # Errors
    /// If the columns would have too many values.
    pub async fn fill(&self, request: &mut Request, at_ms: Option<i64>) -> Result<Option<Computed>, Refusal> {
        if request.lacks.is_empty() {
            self.counts.requests[3].fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let users = self.inputs.user.len();
        let is_lacking = [
            request.lacks.iter().any(|&column| column < users),
            request.lacks.iter().any(|&column| column >= users),
        ];
        let deadline = Duration::from_micros(request.wishes.deadline_us.unwrap_or(u64::MAX) / 2);
        let began = Instant::now();
        let states = self.states_of(request, is_lacking, self.limits.wait.min(deadline)).await;
        self.counts.waits.add(began.elapsed().as_micros() as u64);
        let at_ms = at_ms.unwrap_or_else(|| match self.at_ms.load(Ordering::Relaxed) {
            at_ms if at_ms >= 0 => at_ms,
            _ => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
                as i64,
        });
        let mut computed = Computed {
            outcome: Outcome::Unavailable,
            at_ms,
            states: self.states_id,
            user_position: None,
            item_positions: Vec::new(),
            columns: Vec::new(),
        };
        if let Some([user, items]) = states {
            let is_known =
                self.sides[0].is_none() || !is_lacking[0] || user.first().is_some_and(Option::is_some);
            computed.outcome = if is_known { Outcome::Known } else { Outcome::Unknown };
            self.evaluate(0, &user, request, &mut computed)?;
            self.evaluate(1, &items, request, &mut computed)?;
            self.check_history(request)?;
        }
        self.counts.requests[computed.outcome as usize].fetch_add(1, Ordering::Relaxed);
        Ok(Some(computed))
    }

    /// The states of a request's user and candidates, each side only if it lacks columns; `None` without an answer.
    async fn states_of(
        &self,
        request: &Request,
        is_lacking: [bool; 2],
        wait: Duration,
    ) -> Option<[Vec<Cached>; 2]> {
        let keys_of = |side: usize, columns: &'_ [Values]| match &self.sides[side] {
            Some(of_side) if is_lacking[side] => match &columns[of_side.key] {
                Values::Keys(keys) => keys.clone(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let (user, items) = (keys_of(0, &request.user), keys_of(1, &request.item));
        let definitions = self.sides.each_ref().map(|side| side.as_ref().map(|side| &side.definition));
        self.states.read(definitions, [&user, &items], wait, wait == self.limits.wait).await
    }

    /// Checks that the columns of the user's history have one length, which a caller may have given in part.
    fn check_history(&self, request: &Request) -> Result<(), Refusal> {
        let columns = self.inputs.user.iter().zip(&request.user);
        let mut lengths = columns.filter_map(|(input, values)| match (&input.kind, values) {
            (Kind::Slot { values: Count::Newest(_), .. }, Values::Lists { keys, .. }) => Some(keys.len()),
            _ => None,
        });
        let first = lengths.next();
        if lengths.all(|length| Some(length) == first) {
            return Ok(());
        }
        let text = "columns of one history differ in length; help: give all of them, or leave all out to have them computed";
        Err(Refusal::Bad(text.to_owned()))
    }

    /// Computes the columns of one side that the request lacks.
    fn evaluate(
        &self,
        side: usize,
        states: &[Cached],
        request: &mut Request,
        computed: &mut Computed,
    ) -> Result<(), Refusal> {
        let (Some(of_side), false) = (&self.sides[side], states.is_empty()) else { return Ok(()) };
        let nothing = State::new(&of_side.definition);
        let mut values = FeatureValues::new(&of_side.definition);
        for state in states {
            state.as_deref().unwrap_or(&nothing).evaluate(&of_side.definition, computed.at_ms, &mut values);
        }
        let (mut numbers, mut lists) = (values.numbers.into_iter(), values.keys.into_iter().zip(values.ends));
        let mut is_whole = true;
        for column in &of_side.columns {
            let (numbers, (keys, ends)) =
                (numbers.next().unwrap_or_default(), lists.next().unwrap_or_default());
            if !request.lacks.contains(&column.at) {
                is_whole = false;
                continue;
            }
            if keys.len() > self.inputs.limits.values_max {
                let text =
                    format!("a computed column has {} values in all; help: split the request", keys.len());
                return Err(Refusal::Bad(text));
            }
            let plain = column.declared.values(&numbers, keys, &ends);
            let users = self.inputs.user.len();
            let (input, to) = match column.at.checked_sub(users) {
                None => (&self.inputs.user[column.at], &mut request.user[column.at]),
                Some(at) => (&self.inputs.item[at], &mut request.item[at]),
            };
            *to = hashed(input, plain.clone());
            computed.columns.push((column.at, plain));
        }
        let mut positions = states.iter().map(|state| state.as_ref().map_or(-1, |state| state.position));
        match side {
            _ if !is_whole => {}
            0 => computed.user_position = positions.next(),
            _ => computed.item_positions = positions.collect(),
        }
        Ok(())
    }
}

impl ComputedSide {
    fn new(declared: DeclaredSide, inputs: &[Input], before: usize) -> Result<Self, String> {
        let place = |name: &str| {
            let found = inputs.iter().position(|input| input.name == name);
            found.ok_or_else(|| format!("{name:?} is not an input"))
        };
        let key = place(&declared.key)?;
        let columns = declared
            .columns
            .into_iter()
            .map(|declared| Ok(ComputedColumn { at: before + place(&declared.name)?, declared }));
        Ok(Self { definition: declared.definition, key, columns: columns.collect::<Result<_, String>>()? })
    }
}

/// The values with keys in place of whole numbers.
fn hashed(input: &Input, plain: Values) -> Values {
    let Kind::Slot { salt, .. } = input.kind else { return plain };
    let hash = |values: Vec<u64>| values.into_iter().map(|value| key_of_int(value as i64, salt)).collect();
    match plain {
        Values::Keys(values) => Values::Keys(hash(values)),
        Values::Lists { keys, offsets, weights } => Values::Lists { keys: hash(keys), offsets, weights },
        numbers @ Values::Numbers(_) => numbers,
    }
}
