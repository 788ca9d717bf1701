//! Settings of a join: label groups with their windows, the actions that make labels, and the bounds.

use crate::error::{Result, refuse};
use crate::hash::share_threshold;
use crate::interactions::Makes;
use crate::outcome::Done;

/// Maximum number of labels: each has one bit of a row's masks.
pub const LABELS_MAX: usize = 32;
/// Maximum number of groups: each has one bit of a letter's mask.
pub const GROUPS_MAX: usize = 32;
/// Durations and times are below this, so that sums of them fit int64.
pub(crate) const TIME_MAX_MS: i64 = 1 << 52;

/// Whether an event may have this time. The range is symmetric, so that every time has an absolute value.
pub(crate) fn is_time(ms: i64) -> bool {
    (1 - TIME_MAX_MS..TIME_MAX_MS).contains(&ms)
}

/// Labels that are decided together. Durations are event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// How long after the impression the first row is due.
    pub wait_ms: i64,
    /// An action after the wait and within this window makes a correction.
    pub window_ms: i64,
}

/// One label; its number is its index among all labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Label {
    /// The code of the action that makes it positive.
    pub action: u8,
    /// The index of its group.
    pub group: u8,
    /// The share of negatives that sampling keeps.
    pub rate: f64,
    /// The seed of the sampling hash.
    pub salt: u64,
    /// How its number follows from its actions; None if it is only positive or negative.
    pub number: Option<Number>,
}

/// A label that is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// How several actions on an item make one number.
    pub combine: Combine,
    /// Whether an item without the action settles the label.
    pub settles_without: bool,
}

/// How several actions on an item make one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Combine {
    /// The number of the last one; of several at one time, the largest.
    Last = 0,
    /// Their sum.
    Sum = 1,
    /// The largest.
    Max = 2,
}

impl Combine {
    /// The number that distinct actions make, in whatever order they come; None without any.
    pub(crate) fn of(self, acts: &mut [(i64, f32)]) -> Option<f32> {
        acts.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let mut numbers = acts.iter().map(|(_, number)| *number);
        match self {
            Self::Last => numbers.next_back(),
            Self::Sum if acts.is_empty() => None,
            // The sum of many numbers may be beyond float32.
            Self::Sum => {
                Some(numbers.map(f64::from).sum::<f64>().clamp(f64::from(f32::MIN), f64::from(f32::MAX))
                    as f32)
            }
            Self::Max => numbers.max_by(f32::total_cmp),
        }
    }
}

/// The settings of a join.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Groups of labels.
    pub groups: Vec<Group>,
    /// Labels.
    pub labels: Vec<Label>,
    /// Event time that is freed together; shorter slices cost memory, longer ones hold memory longer.
    pub slice_ms: i64,
    /// How long after its own time an action waits for its impression.
    pub orphan_wait_ms: i64,
    /// The share of requests that serving logs.
    pub share: f64,
    /// Impressions before this make no rows: an earlier join covered them. In the longest window before it,
    /// they keep their items from counting again in a later part.
    pub from_ms: i64,
    /// Maximum bytes in use when events are added.
    pub pending_bytes_max: u64,
    /// Maximum impressions per request that show different items.
    pub parts_max: u32,
    /// Maximum actions per request that wait for its impression, and per item that make a number.
    pub waiting_max: u32,
    /// Which interactions are made.
    pub makes: Makes,
}

/// The settings with everything precomputed that each event needs.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub settings: Settings,
    pub wait_min: i64,
    pub window_min: i64,
    pub window_max: i64,
    /// The labels of each group.
    pub of_group: Vec<u32>,
    /// The labels that an action makes positive, by group and code.
    by_action: Vec<[u32; 256]>,
    /// The hash threshold below which a negative is kept, by label.
    pub below: Vec<Option<u64>>,
    /// The labels that are numbers.
    pub numbers: u32,
    /// The labels that items without the action do not settle.
    pub unsettled: u32,
}

impl Rules {
    pub fn new(settings: Settings) -> Result<Self> {
        check(&settings)?;
        let mut of_group = vec![0; settings.groups.len()];
        let mut by_action = vec![[0; 256]; settings.groups.len()];
        for (number, label) in settings.labels.iter().enumerate() {
            of_group[usize::from(label.group)] |= 1 << number;
            by_action[usize::from(label.group)][usize::from(label.action)] |= 1 << number;
        }
        let number_labels = |is_of: fn(Number) -> bool| {
            let labels = settings.labels.iter().enumerate();
            let chosen = labels.filter(|(_, label)| label.number.is_some_and(is_of));
            chosen.fold(0, |mask, (number, _)| mask | 1 << number)
        };
        let min_of = |of: fn(&Group) -> i64| settings.groups.iter().map(of).min().unwrap_or(0);
        Ok(Self {
            wait_min: min_of(|group| group.wait_ms),
            window_min: min_of(|group| group.window_ms),
            window_max: settings.groups.iter().map(|group| group.window_ms).max().unwrap_or(0),
            below: settings.labels.iter().map(|label| share_threshold(label.rate)).collect(),
            numbers: number_labels(|_| true),
            unsettled: number_labels(|number| !number.settles_without),
            of_group,
            by_action,
            settings,
        })
    }

    /// Labels of a group that an action makes positive; one without a number makes none of those that are numbers.
    #[inline]
    pub fn labels(&self, group: usize, done: Done) -> u32 {
        let labels = self.by_action[group][usize::from(done.code)];
        if done.number.is_none() { labels & !self.numbers } else { labels }
    }

    /// Whether an action says anything of a group's labels.
    #[inline]
    pub fn concerns(&self, group: usize, code: u8) -> bool {
        self.by_action[group][usize::from(code)] != 0
    }

    /// Labels of a group that are numbers and made of a code's actions.
    #[inline]
    pub fn numbers_of(&self, group: usize, code: u8) -> u32 {
        self.by_action[group][usize::from(code)] & self.numbers
    }

    /// Whether all actions of a code count, and not the first alone.
    #[inline]
    pub fn counts_all(&self, code: u8) -> bool {
        self.numbers != 0 && self.by_action.iter().any(|labels| labels[usize::from(code)] & self.numbers != 0)
    }

    /// Whether an earlier join made the rows of an impression of this time.
    #[inline]
    pub fn is_before(&self, shown: i64) -> bool {
        shown < self.settings.from_ms
    }

    pub fn groups(&self) -> impl Iterator<Item = (usize, Group)> + '_ {
        self.settings.groups.iter().copied().enumerate()
    }
}

fn check(settings: &Settings) -> Result<()> {
    let (groups, labels) = (settings.groups.len(), settings.labels.len());
    if !(1..=GROUPS_MAX).contains(&groups) || !(1..=LABELS_MAX).contains(&labels) {
        return refuse(format!(
            "{groups} groups and {labels} labels; a join needs 1 to {GROUPS_MAX} groups and 1 to {LABELS_MAX} labels"
        ));
    }
    for (index, group) in settings.groups.iter().enumerate() {
        if group.wait_ms < 0 || group.wait_ms > group.window_ms || group.window_ms >= TIME_MAX_MS {
            let (wait, window) = (group.wait_ms, group.window_ms);
            return refuse(format!(
                "group {index}: wait_ms {wait} must be 0 to window_ms {window}, which must be below {TIME_MAX_MS}"
            ));
        }
        if !settings.labels.iter().any(|label| usize::from(label.group) == index) {
            return refuse(format!("group {index} has no labels"));
        }
    }
    for (index, label) in settings.labels.iter().enumerate() {
        if usize::from(label.group) >= groups {
            return refuse(format!("label {index} belongs to group {} of {groups}", label.group));
        }
        if !(label.rate > 0.0 && label.rate <= 1.0) {
            return refuse(format!(
                "label {index} keeps {} of its negatives; the rate must be above 0 and at most 1",
                label.rate
            ));
        }
    }
    if !(settings.share > 0.0 && settings.share <= 1.0) {
        return refuse(format!(
            "the logged share of requests is {}; it must be above 0 and at most 1",
            settings.share
        ));
    }
    if !(1..=1 << 31).contains(&settings.slice_ms) {
        return refuse(format!("slice_ms is {}; it must be 1 to {}", settings.slice_ms, 1i64 << 31));
    }
    if !(0..TIME_MAX_MS).contains(&settings.orphan_wait_ms) {
        return refuse(format!("orphan_wait_ms is {}, out of range", settings.orphan_wait_ms));
    }
    if settings.parts_max == 0 || settings.waiting_max == 0 {
        return refuse("parts_max and waiting_max must be at least 1".to_owned());
    }
    Ok(())
}
