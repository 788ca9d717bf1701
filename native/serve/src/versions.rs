//! Versions: the tables of each servable version, the active one, and those that callers may pin.
//!
//! A version disappears with its tables: the owner of the tables decides how long they live.

pub mod candidate_list;
pub mod item_features;
pub mod item_index;
pub mod raw_ids;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use streamlearn_table::TableSet;

use crate::answer::Refusal;
use crate::request::{ArmVersion, Wishes};
use item_features::ItemFeatures;
use item_index::ItemIndex;

/// Identifies a version in its tables; never reused.
pub type Handle = u64;

/// A version as all nodes name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionName {
    /// Its number.
    pub number: u64,
    /// Tells versions of one number apart: a part of the digest of its manifest.
    pub identity: u64,
}

/// A servable version.
#[derive(Clone)]
pub struct Ready {
    /// Its name.
    pub name: VersionName,
    /// Its tables, while their owner keeps them.
    pub tables: Weak<TableSet>,
    /// Its items, if it finds items.
    pub items: Option<Arc<ItemIndex>>,
    /// What describes its items, if candidates have a library.
    pub features: Option<Arc<ItemFeatures>>,
}

/// The versions of a node.
#[derive(Default)]
pub struct Versions {
    ready: BTreeMap<Handle, Ready>,
    active: Option<Handle>,
    canary: Option<Canary>,
    handles: Handle,
}

/// A version that answers a share of the requests without a pin.
#[derive(Clone, Copy)]
struct Canary {
    handle: Handle,
    /// Routes below it go to the canary; out of 2^64.
    below: u64,
}

impl Versions {
    /// Adds a version that can be pinned. If a number is added twice, the newest one counts.
    pub fn add(
        &mut self,
        name: VersionName,
        tables: &Arc<TableSet>,
        items: Option<Arc<ItemIndex>>,
    ) -> Handle {
        self.handles += 1;
        let ready = Ready { name, tables: Arc::downgrade(tables), items, features: None };
        self.ready.insert(self.handles, ready);
        self.handles
    }

    /// Gives a version what describes its items.
    pub fn describe(&mut self, handle: Handle, features: Arc<ItemFeatures>) {
        if let Some(ready) = self.ready.get_mut(&handle) {
            ready.features = Some(features);
        }
    }

    /// Makes a version answer requests without a pin. Returns false if the version is unknown.
    pub fn activate(&mut self, handle: Handle) -> bool {
        let is_there = self.ready.contains_key(&handle);
        if is_there {
            self.active = Some(handle);
        }
        is_there
    }

    /// Sets the version that answers a share of the requests without a pin.
    pub fn set_canary(&mut self, canary: Option<(Handle, f64)>) {
        self.canary = canary.map(|(handle, share)| {
            // 1.0 means all: the conversion saturates at the largest number.
            Canary { handle, below: (share.clamp(0.0, 1.0) * 2f64.powi(64)) as u64 }
        });
    }

    /// Removes a version.
    pub fn remove(&mut self, handle: Handle) {
        self.ready.remove(&handle);
        self.active = self.active.filter(|&active| active != handle);
        self.canary = self.canary.filter(|canary| canary.handle != handle);
    }

    /// Returns the version that answers a request.
    pub fn choose(&self, pin: Option<u64>, route: u64) -> Result<Handle, Refusal> {
        if let Some(number) = pin {
            let version = self.ready.iter().rev().find(|(_, ready)| ready.name.number == number);
            return version.map(|(&handle, _)| handle).ok_or_else(|| {
                let kept: Vec<String> = self.numbers().iter().map(u64::to_string).collect();
                let kept = if kept.is_empty() { "none".into() } else { kept.join(", ") };
                Refusal::NotKept(format!("this node does not keep version {number}; it has {kept}"))
            });
        }
        let canary =
            self.canary.filter(|canary| route < canary.below && self.ready.contains_key(&canary.handle));
        let handle = canary.map(|canary| canary.handle).or(self.active);
        handle.ok_or_else(|| Refusal::Away("this node has no version yet".into()))
    }

    /// Returns the version that answers a request, and whether it is that of its arm, if it has one.
    pub fn choose_for(&self, wishes: &Wishes, route: u64) -> Result<(Handle, bool), Refusal> {
        let Some(wanted) = wishes.arm_version.filter(|_| wishes.pin.is_none()) else {
            return Ok((self.choose(wishes.pin, route)?, true));
        };
        match self.of_arm(wanted) {
            Some(handle) => Ok((handle, true)),
            None => Ok((self.choose(None, u64::MAX)?, false)),
        }
    }

    /// Returns the version of an arm if it may answer. One that is newer than the active version and not the canary was
    /// taken back, or was never promoted.
    fn of_arm(&self, wanted: ArmVersion) -> Option<Handle> {
        let active = self.active.filter(|active| self.ready.contains_key(active))?;
        let canary = self.canary.map(|canary| canary.handle).filter(|canary| self.ready.contains_key(canary));
        match wanted {
            ArmVersion::Active => Some(active),
            ArmVersion::Canary => canary,
            ArmVersion::Number(number) => {
                let kept = self.ready.iter().rev().find(|(_, ready)| ready.name.number == number);
                let handle = kept.map(|(&handle, _)| handle)?;
                (number <= self.ready[&active].name.number || Some(handle) == canary).then_some(handle)
            }
        }
    }

    /// Returns the version of a name.
    pub fn named(&self, name: VersionName) -> Result<Handle, Refusal> {
        let found = self.ready.iter().rev().find(|(_, ready)| ready.name == name);
        found.map(|(&handle, _)| handle).ok_or_else(|| {
            let VersionName { number, identity } = name;
            Refusal::NotKept(format!("this node does not keep version {number} with digest {identity:016x}"))
        })
    }

    /// Returns a version by its handle.
    pub fn get(&self, handle: Handle) -> Option<&Ready> {
        self.ready.get(&handle)
    }

    /// Whether a version is the active one.
    pub fn is_active(&self, handle: Handle) -> bool {
        self.active == Some(handle)
    }

    /// Returns the number of the active version.
    pub fn active(&self) -> Option<u64> {
        self.active.and_then(|handle| self.ready.get(&handle)).map(|ready| ready.name.number)
    }

    /// Returns the numbers of the versions that can be pinned, ascending.
    pub fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.ready.values().map(|ready| ready.name.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u64) -> VersionName {
        VersionName { number, identity: 0 }
    }

    fn tables() -> Arc<TableSet> {
        Arc::new(TableSet::new(&[]).expect("no tables are fine"))
    }

    #[test]
    fn who_names_none_gets_the_active_one_and_a_share_the_canary() {
        let (mut versions, tables) = (Versions::default(), tables());
        assert!(matches!(versions.choose(None, 0), Err(Refusal::Away(_))));
        let (active, canary) = (versions.add(of(1), &tables, None), versions.add(of(2), &tables, None));
        assert!(versions.activate(active));
        assert_eq!(versions.choose(None, 0), Ok(active));
        versions.set_canary(Some((canary, 0.25)));
        assert_eq!(versions.choose(None, u64::MAX / 8), Ok(canary));
        assert_eq!(versions.choose(None, u64::MAX / 2), Ok(active));
        versions.set_canary(Some((canary, 1.0)));
        assert_eq!(versions.choose(None, u64::MAX - 1), Ok(canary));
        versions.remove(canary);
        assert_eq!(versions.choose(None, 0), Ok(active));
        assert_eq!(versions.active(), Some(1));
    }

    #[test]
    fn an_arm_gets_its_version_unless_that_was_taken_back() {
        let (mut versions, tables) = (Versions::default(), tables());
        assert_eq!(versions.of_arm(ArmVersion::Active), None);
        let (old, active, new) = (
            versions.add(of(5), &tables, None),
            versions.add(of(6), &tables, None),
            versions.add(of(7), &tables, None),
        );
        assert!(versions.activate(active));
        let all = [
            ArmVersion::Active,
            ArmVersion::Canary,
            ArmVersion::Number(5),
            ArmVersion::Number(7),
            ArmVersion::Number(8),
        ];
        let of = |versions: &Versions| all.map(|wanted| versions.of_arm(wanted));
        assert_eq!(of(&versions), [Some(active), None, Some(old), None, None]);
        versions.set_canary(Some((new, 0.1)));
        assert_eq!(of(&versions), [Some(active), Some(new), Some(old), Some(new), None]);
        // A rollback to 5 ends the canary.
        versions.set_canary(None);
        assert!(versions.activate(old));
        assert_eq!(of(&versions), [Some(old), None, Some(old), None, None]);
        versions.remove(old);
        assert_eq!(of(&versions), [None; 5]);
    }

    #[test]
    fn a_named_version_is_the_newest_of_its_number_or_refused_with_those_there_are() {
        let (mut versions, tables) = (Versions::default(), tables());
        let (old, new) = (versions.add(of(7), &tables, None), versions.add(of(7), &tables, None));
        assert_eq!(versions.choose(Some(7), 0), Ok(new));
        versions.remove(new);
        assert_eq!(versions.choose(Some(7), 0), Ok(old));
        let Err(Refusal::NotKept(text)) = versions.choose(Some(8), 0) else {
            panic!("version 8 must be refused")
        };
        assert!(text.contains("has 7"), "{text}");
        assert!(!versions.activate(new), "a removed version cannot become active");
    }
}
