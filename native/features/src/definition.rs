//! Definition: the computed features of one kind of entity, and what a state has to keep for them.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::tiles::TILES;

/// The highest number of features of a definition.
pub const FEATURES_MAX: usize = 256;
/// The highest number of kinds of interactions.
pub const KINDS_MAX: usize = 32;
/// The highest number of columns of interactions.
pub const COLUMNS_MAX: usize = 64;
/// The longest history.
pub const LENGTH_MAX: usize = 4_096;
/// The highest number of windows of a feature.
pub const WINDOWS_MAX: usize = 16;
/// The longest window: ten years.
const WINDOW_MS_MAX: i64 = 3_653 * 86_400_000;

/// A computed feature. Kinds and columns are numbers in the lists of the application.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase", deny_unknown_fields)]
pub enum Feature {
    /// The keys of a column in the newest interactions of some kinds, oldest first.
    Last {
        /// The column.
        column: usize,
        /// The kinds.
        of: Vec<usize>,
        /// How many are kept.
        length: usize,
    },
    /// How many interactions of each kind are in each window: kind by kind, window by window.
    Count {
        /// The kinds.
        of: Vec<usize>,
        /// The lengths of the windows.
        windows_ms: Vec<i64>,
    },
    /// The sum of the values of interactions, likewise.
    Sum {
        /// The kinds.
        of: Vec<usize>,
        /// The lengths of the windows.
        windows_ms: Vec<i64>,
    },
    /// Interactions of one kind for each of another, by window: (n + share * weight) / (m + weight).
    Rate {
        /// The kind that is counted.
        of: usize,
        /// The kind that it is divided by.
        over: usize,
        /// The lengths of the windows.
        windows_ms: Vec<i64>,
        /// The share and the weight of what is believed before any interaction.
        prior: (f64, f64),
    },
    /// The milliseconds since the newest interaction of some kinds.
    Since {
        /// The kinds.
        of: Vec<usize>,
    },
}

/// A window of one kind: a count, or a sum of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub kind: usize,
    pub tile_ms: i64,
    pub is_sum: bool,
}

/// A history of some kinds, which all features of the same kinds share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub kinds: u32,
    pub length: usize,
    pub columns: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    id: u64,
    kinds: usize,
    columns: usize,
    features: Vec<Feature>,
}

/// The computed features of one kind of entity.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    pub(crate) id: u64,
    pub(crate) kinds: usize,
    pub(crate) columns: usize,
    pub(crate) features: Vec<Feature>,
    pub(crate) windows: Vec<Window>,
    pub(crate) histories: Vec<Kept>,
    /// The kinds whose newest interaction is known.
    pub(crate) since: Vec<usize>,
}

impl Definition {
    /// Reads a definition: `{"id": NUMBER, "kinds": COUNT, "columns": COUNT, "features": [...]}`.
    pub fn from_json(text: &str) -> Result<Self> {
        let declared: Declared = serde_json::from_str(text)
            .map_err(|error| Error::Definition(format!("a definition: {error}")))?;
        let Declared { id, kinds, columns, features } = declared;
        if kinds > KINDS_MAX || columns > COLUMNS_MAX || features.len() > FEATURES_MAX {
            let text = format!(
                "{kinds} kinds, {columns} columns, {} features: at most {KINDS_MAX}, {COLUMNS_MAX}, {FEATURES_MAX}",
                features.len()
            );
            return Err(Error::Definition(text));
        }
        let empty = (Vec::new(), Vec::new(), Vec::new());
        let mut made =
            Self { id, kinds, columns, features, windows: empty.0, histories: empty.1, since: empty.2 };
        for feature in made.features.clone() {
            made.check(&feature)?;
            made.keep(&feature);
        }
        Ok(made)
    }

    /// The id, which is in each stored state.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The features, in the order of their values.
    pub fn features(&self) -> &[Feature] {
        &self.features
    }

    /// The place of a window among those that are kept.
    pub(crate) fn window(&self, kind: usize, window_ms: i64, is_sum: bool) -> usize {
        let wanted = Window { kind, tile_ms: tile_of(window_ms), is_sum };
        self.windows.iter().position(|one| *one == wanted).expect("the window is kept")
    }

    /// The place of a history among those that are kept, and that of a column in it.
    pub(crate) fn history(&self, of: &[usize], column: usize) -> (usize, usize) {
        let kinds = mask_of(of);
        let place = self.histories.iter().position(|one| one.kinds == kinds).expect("the history is kept");
        let within = self.histories[place].columns.iter().position(|&one| one == column);
        (place, within.expect("the column is kept"))
    }

    fn keep(&mut self, feature: &Feature) {
        let mut keep_windows = |kinds: &[usize], windows_ms: &[i64], is_sum: bool| {
            for &kind in kinds {
                for &window_ms in windows_ms {
                    let window = Window { kind, tile_ms: tile_of(window_ms), is_sum };
                    if !self.windows.contains(&window) {
                        self.windows.push(window);
                    }
                }
            }
        };
        match feature {
            Feature::Count { of, windows_ms } => keep_windows(of, windows_ms, false),
            Feature::Sum { of, windows_ms } => keep_windows(of, windows_ms, true),
            Feature::Rate { of, over, windows_ms, .. } => keep_windows(&[*of, *over], windows_ms, false),
            Feature::Since { of } => {
                for kind in of {
                    if !self.since.contains(kind) {
                        self.since.push(*kind);
                    }
                }
            }
            Feature::Last { column, of, length } => {
                let kinds = mask_of(of);
                let at = self.histories.iter().position(|one| one.kinds == kinds).unwrap_or_else(|| {
                    self.histories.push(Kept { kinds, length: 0, columns: Vec::new() });
                    self.histories.len() - 1
                });
                let kept = &mut self.histories[at];
                kept.length = kept.length.max(*length);
                if !kept.columns.contains(column) {
                    kept.columns.push(*column);
                }
            }
        }
    }

    fn check(&self, feature: &Feature) -> Result<()> {
        let wrong = |text: String| Err(Error::Definition(format!("{feature:?}: {text}")));
        let (kinds, windows_ms): (&[usize], &[i64]) = match feature {
            Feature::Last { column, of, length } => {
                if *column >= self.columns {
                    return wrong(format!("there are {} columns", self.columns));
                }
                if !(1..=LENGTH_MAX).contains(length) {
                    return wrong(format!("the length is from 1 to {LENGTH_MAX}"));
                }
                (of, &[])
            }
            Feature::Count { of, windows_ms } | Feature::Sum { of, windows_ms } => (of, windows_ms),
            Feature::Rate { of, over, windows_ms, prior: (share, weight) } => {
                let is_prior = (0.0..=1e9).contains(share) && *weight > 0.0 && *weight <= 1e9;
                if !is_prior || *over >= self.kinds {
                    return wrong(
                        "the share is from 0 to 1e9, the weight above 0 and at most 1e9".to_owned(),
                    );
                }
                (std::slice::from_ref(of), windows_ms)
            }
            Feature::Since { of } => (of, &[]),
        };
        if kinds.is_empty() || kinds.iter().any(|&kind| kind >= self.kinds) {
            return wrong(format!("there are {} kinds", self.kinds));
        }
        let has_windows = !matches!(feature, Feature::Last { .. } | Feature::Since { .. });
        if has_windows && (windows_ms.is_empty() || windows_ms.len() > WINDOWS_MAX) {
            return wrong(format!("1 to {WINDOWS_MAX} windows"));
        }
        if windows_ms.iter().any(|window_ms| !(TILES as i64..=WINDOW_MS_MAX).contains(window_ms)) {
            return wrong(format!("a window has {TILES} to {WINDOW_MS_MAX} ms"));
        }
        Ok(())
    }
}

/// The length of a tile of a window.
fn tile_of(window_ms: i64) -> i64 {
    window_ms / TILES as i64
}

pub(crate) fn mask_of(kinds: &[usize]) -> u32 {
    kinds.iter().fold(0, |mask, kind| mask | 1 << kind)
}
