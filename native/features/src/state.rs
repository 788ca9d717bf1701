//! State: what is known of one entity; interactions are folded into it, and values are computed from it.

use crate::definition::{Definition, Feature};
use crate::history::History;
use crate::tiles::{Tiles, amount_of, number_of};

/// Something that happened to an entity.
#[derive(Debug, Clone, Copy)]
pub struct Interaction<'a> {
    /// The event time.
    pub time_ms: i64,
    /// A hash that is the same for the same interaction, and orders those of one time.
    pub identity: u64,
    /// Its position in the log of interactions.
    pub position: i64,
    /// Its kind.
    pub kind: usize,
    /// Its value; NaN if it has none.
    pub value: f32,
    /// The key of each column.
    pub columns: &'a [u64],
}

/// The state of one entity. It depends on its interactions, and not on their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The position of the last interaction that was folded; -1 before the first. Earlier ones are not folded again.
    pub position: i64,
    /// The event time of the newest interaction; `i64::MIN` before the first.
    pub newest_ms: i64,
    pub(crate) since_ms: Vec<i64>,
    pub(crate) windows: Vec<Tiles>,
    pub(crate) histories: Vec<History>,
}

/// The values of features, of several entities one after the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    /// By feature, its keys; only of `Feature::Last`.
    pub keys: Vec<Vec<u64>>,
    /// By feature, the end of each entity's keys.
    pub ends: Vec<Vec<usize>>,
    /// By feature, its numbers. Those of `Feature::Since` are milliseconds; -1 without any interaction.
    pub numbers: Vec<Vec<f64>>,
}

impl Values {
    /// Room for the values of a definition.
    pub fn new(definition: &Definition) -> Self {
        let count = definition.features.len();
        Self {
            keys: vec![Vec::new(); count],
            ends: vec![Vec::new(); count],
            numbers: vec![Vec::new(); count],
        }
    }
}

impl State {
    /// The state of an entity without interactions.
    pub fn new(definition: &Definition) -> Self {
        Self {
            position: -1,
            newest_ms: i64::MIN,
            since_ms: vec![i64::MIN; definition.since.len()],
            windows: vec![Tiles::default(); definition.windows.len()],
            histories: vec![History::default(); definition.histories.len()],
        }
    }

    /// Folds an interaction. One at a position that was folded changes nothing; returns whether it was new.
    pub fn fold(&mut self, definition: &Definition, one: &Interaction<'_>) -> bool {
        if one.position <= self.position
            || one.kind >= definition.kinds
            || one.columns.len() != definition.columns
        {
            return false;
        }
        self.position = one.position;
        self.newest_ms = self.newest_ms.max(one.time_ms);
        for (&kind, since_ms) in definition.since.iter().zip(&mut self.since_ms) {
            if kind == one.kind {
                *since_ms = one.time_ms.max(*since_ms);
            }
        }
        for (window, tiles) in definition.windows.iter().zip(&mut self.windows) {
            if window.kind == one.kind {
                tiles.add(
                    one.time_ms.div_euclid(window.tile_ms),
                    if window.is_sum { amount_of(one.value) } else { 1 },
                );
            }
        }
        for (kept, history) in definition.histories.iter().zip(&mut self.histories) {
            if kept.kinds >> one.kind & 1 == 1 {
                let keys = kept.columns.iter().map(|&column| one.columns[column]);
                history.add((one.time_ms, one.identity), keys, kept.length, kept.columns.len());
            }
        }
        true
    }

    /// Appends the values of all features at a time. Interactions after it do not count, but may have displaced others.
    pub fn evaluate(&self, definition: &Definition, now_ms: i64, values: &mut Values) {
        for (at, feature) in definition.features.iter().enumerate() {
            let numbers = &mut values.numbers[at];
            match feature {
                Feature::Last { column, of, length } => {
                    let (place, within) = definition.history(of, *column);
                    let (history, width) =
                        (&self.histories[place], definition.histories[place].columns.len());
                    let end = history.until(now_ms);
                    let newest = end.saturating_sub(*length)..end;
                    values.keys[at].extend(newest.map(|entry| history.keys[entry * width + within]));
                    values.ends[at].push(values.keys[at].len());
                }
                Feature::Count { of, windows_ms } => {
                    for &kind in of {
                        numbers.extend(
                            windows_ms
                                .iter()
                                .map(|&window| self.total(definition, (kind, window, false), now_ms) as f64),
                        );
                    }
                }
                Feature::Sum { of, windows_ms } => {
                    for &kind in of {
                        let sums = windows_ms
                            .iter()
                            .map(|&window| self.total(definition, (kind, window, true), now_ms));
                        numbers.extend(sums.map(number_of));
                    }
                }
                Feature::Rate { of, over, windows_ms, prior: (share, weight) } => {
                    numbers.extend(windows_ms.iter().map(|&window| {
                        let [some, all] = [*of, *over]
                            .map(|kind| self.total(definition, (kind, window, false), now_ms) as f64);
                        (some + share * weight) / (all + weight)
                    }));
                }
                Feature::Since { of } => {
                    let known = definition.since.iter().zip(&self.since_ms);
                    let newest = known.filter(|(kind, _)| of.contains(kind)).map(|(_, &time)| time).max();
                    let newest = newest.unwrap_or(i64::MIN);
                    let passed = now_ms.saturating_sub(newest).max(0) as f64;
                    numbers.push(if newest == i64::MIN { -1.0 } else { passed });
                }
            }
        }
    }

    fn total(
        &self,
        definition: &Definition,
        (kind, window_ms, is_sum): (usize, i64, bool),
        now_ms: i64,
    ) -> i64 {
        let place = definition.window(kind, window_ms, is_sum);
        self.windows[place].total(now_ms.div_euclid(definition.windows[place].tile_ms))
    }
}
