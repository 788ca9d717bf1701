//! What a join is told: groups of labels with their windows, which actions make which labels, and its bounds.

use streamlearn_wire::keys::key_of_bytes;

use crate::error::{Result, refuse};
use crate::hash::share_threshold;

/// Labels there may be: one bit of a row's masks each.
pub const LABELS_MAX: usize = 32;
/// Groups there may be: one bit of a letter's mask each.
pub const GROUPS_MAX: usize = 32;
/// Durations and times are less than this, so that sums of them are never more than an int64 holds.
pub(crate) const TIME_MAX_MS: i64 = 1 << 52;

/// Whether an event may have this time; the lowest number has no absolute value, so none is taken.
pub(crate) fn is_time(ms: i64) -> bool {
    (1 - TIME_MAX_MS..TIME_MAX_MS).contains(&ms)
}

/// Labels that are decided together. Durations are event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// A row is due this long after the impression.
    pub wait_ms: i64,
    /// An action later than the wait and no later than this makes a correction.
    pub window_ms: i64,
}

/// One label; its number is its place among all labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Label {
    /// The code of the action that makes it positive.
    pub action: u8,
    /// Its group's place.
    pub group: u8,
    /// The share of negatives that is kept.
    pub rate: f64,
    /// The seed of the hash that chooses them.
    pub salt: u64,
}

/// Everything a join is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Groups of labels.
    pub groups: Vec<Group>,
    /// Labels.
    pub labels: Vec<Label>,
    /// Event time that is let go of at once; shorter costs memory, longer keeps memory for longer.
    pub slice_ms: i64,
    /// How long after its own time an action waits for its impression.
    pub orphan_wait_ms: i64,
    /// The share of requests that serving logs.
    pub share: f64,
    /// Impressions before this make no rows: they were joined by who came before.
    pub from_ms: i64,
    /// Bytes that may be held when something is added.
    pub pending_bytes_max: u64,
    /// Impressions of one request that show different items.
    pub parts_max: u32,
    /// Actions of one request that wait for its impression.
    pub waiting_max: u32,
}

/// Settings as they are used: what is asked for every event is worked out once.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub settings: Settings,
    pub wait_min: i64,
    pub window_min: i64,
    pub window_max: i64,
    /// Labels of each group.
    pub of_group: Vec<u32>,
    /// Labels that an action makes positive, by group and code.
    by_action: Vec<[u32; 256]>,
    /// Below which hash a negative is kept, by label.
    pub below: Vec<Option<u64>>,
    /// Of all that decides what is emitted.
    pub fingerprint: u64,
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
        let least = |of: fn(&Group) -> i64| settings.groups.iter().map(of).min().unwrap_or(0);
        Ok(Self {
            wait_min: least(|group| group.wait_ms),
            window_min: least(|group| group.window_ms),
            window_max: settings.groups.iter().map(|group| group.window_ms).max().unwrap_or(0),
            below: settings.labels.iter().map(|label| share_threshold(label.rate)).collect(),
            fingerprint: fingerprint(&settings),
            of_group,
            by_action,
            settings,
        })
    }

    /// Labels of a group that an action makes positive.
    #[inline]
    pub fn labels(&self, group: usize, code: u8) -> u32 {
        self.by_action[group][usize::from(code)]
    }

    pub fn groups(&self) -> impl Iterator<Item = (usize, Group)> + '_ {
        self.settings.groups.iter().copied().enumerate()
    }
}

fn check(settings: &Settings) -> Result<()> {
    let (groups, labels) = (settings.groups.len(), settings.labels.len());
    if !(1..=GROUPS_MAX).contains(&groups) || !(1..=LABELS_MAX).contains(&labels) {
        return refuse(format!(
            "{groups} groups and {labels} labels: 1 to {GROUPS_MAX} groups and 1 to {LABELS_MAX} labels are joined"
        ));
    }
    for (place, group) in settings.groups.iter().enumerate() {
        if group.wait_ms < 0 || group.wait_ms > group.window_ms || group.window_ms >= TIME_MAX_MS {
            let (wait, window) = (group.wait_ms, group.window_ms);
            return refuse(format!("group {place} waits {wait} ms of a window of {window} ms"));
        }
        if !settings.labels.iter().any(|label| usize::from(label.group) == place) {
            return refuse(format!("group {place} has no labels"));
        }
    }
    for (place, label) in settings.labels.iter().enumerate() {
        if usize::from(label.group) >= groups {
            return refuse(format!("label {place} is of group {}, and there are {groups}", label.group));
        }
        if !(label.rate > 0.0 && label.rate <= 1.0) {
            return refuse(format!(
                "label {place} keeps {} of its negatives: above 0, at most 1",
                label.rate
            ));
        }
    }
    if !(settings.share > 0.0 && settings.share <= 1.0) {
        return refuse(format!("a share of {} of requests is logged: above 0, at most 1", settings.share));
    }
    if !(1..=1 << 31).contains(&settings.slice_ms) {
        return refuse(format!("slice_ms is {}: 1 to {}", settings.slice_ms, 1i64 << 31));
    }
    if !(0..TIME_MAX_MS).contains(&settings.orphan_wait_ms) {
        return refuse(format!("orphan_wait_ms is {}", settings.orphan_wait_ms));
    }
    if settings.parts_max == 0 || settings.waiting_max == 0 {
        return refuse("parts_max and waiting_max are at least 1".to_owned());
    }
    Ok(())
}

fn fingerprint(settings: &Settings) -> u64 {
    let mut said = Vec::new();
    for group in &settings.groups {
        said.extend_from_slice(&group.wait_ms.to_le_bytes());
        said.extend_from_slice(&group.window_ms.to_le_bytes());
    }
    for label in &settings.labels {
        said.extend_from_slice(&[label.action, label.group]);
        said.extend_from_slice(&label.rate.to_bits().to_le_bytes());
        said.extend_from_slice(&label.salt.to_le_bytes());
    }
    for number in [settings.slice_ms, settings.orphan_wait_ms, settings.share.to_bits() as i64] {
        said.extend_from_slice(&number.to_le_bytes());
    }
    key_of_bytes(&said, settings.groups.len() as u64)
}
