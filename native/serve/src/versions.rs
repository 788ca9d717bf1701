//! Versions that may answer: which tables each is in, which one answers, and which ones callers may name.
//!
//! A version in tables that were given up is gone by itself: whoever owns tables decides how long they live.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use streamlearn_table::TableSet;

use crate::answer::Refusal;

/// Names a version in tables; never used again, whatever numbers versions have.
pub type Handle = u64;

/// A version that may answer.
#[derive(Clone)]
pub struct Ready {
    /// Its number.
    pub number: u64,
    /// The tables it is in, as long as somebody keeps them.
    pub tables: Weak<TableSet>,
}

/// The versions of a node.
#[derive(Default)]
pub struct Versions {
    ready: BTreeMap<Handle, Ready>,
    active: Option<Handle>,
    canary: Option<Canary>,
    handles: Handle,
}

/// A version that answers a share of those who name none.
#[derive(Clone, Copy)]
struct Canary {
    handle: Handle,
    /// Routes below it are the canary's; of 2^64.
    below: u64,
}

impl Versions {
    /// Let a version answer those who name it. Of one number the newest counts.
    pub fn add(&mut self, number: u64, tables: &Arc<TableSet>) -> Handle {
        self.handles += 1;
        self.ready.insert(self.handles, Ready { number, tables: Arc::downgrade(tables) });
        self.handles
    }

    /// Let a version answer those who name none; gives whether it is there.
    pub fn activate(&mut self, handle: Handle) -> bool {
        let is_there = self.ready.contains_key(&handle);
        if is_there {
            self.active = Some(handle);
        }
        is_there
    }

    /// Let a version answer a share of those who name none; without one, none of them.
    pub fn set_canary(&mut self, canary: Option<(Handle, f64)>) {
        self.canary = canary.map(|(handle, share)| {
            // 1.0 is all of them: the conversion ends at the largest number.
            Canary { handle, below: (share.clamp(0.0, 1.0) * 2f64.powi(64)) as u64 }
        });
    }

    /// Let a version answer nobody any more.
    pub fn remove(&mut self, handle: Handle) {
        self.ready.remove(&handle);
        self.active = self.active.filter(|&active| active != handle);
        self.canary = self.canary.filter(|canary| canary.handle != handle);
    }

    /// The version that answers a request.
    pub fn choose(&self, pin: Option<u64>, route: u64) -> Result<Handle, Refusal> {
        if let Some(number) = pin {
            let found = self.ready.iter().rev().find(|(_, ready)| ready.number == number);
            return found.map(|(&handle, _)| handle).ok_or_else(|| {
                let kept: Vec<String> = self.numbers().iter().map(u64::to_string).collect();
                let kept = if kept.is_empty() { "none".into() } else { kept.join(", ") };
                Refusal::NotKept(format!("version {number} is not kept by this node, which has {kept}"))
            });
        }
        let canary =
            self.canary.filter(|canary| route < canary.below && self.ready.contains_key(&canary.handle));
        let chosen = canary.map(|canary| canary.handle).or(self.active);
        chosen.ok_or_else(|| Refusal::Away("this node has no version to answer with yet".into()))
    }

    /// A version by its handle.
    pub fn get(&self, handle: Handle) -> Option<&Ready> {
        self.ready.get(&handle)
    }

    /// The number of the version that answers.
    pub fn active(&self) -> Option<u64> {
        self.active.and_then(|handle| self.ready.get(&handle)).map(|ready| ready.number)
    }

    /// The numbers of those that may be named, in order.
    pub fn numbers(&self) -> Vec<u64> {
        let mut found: Vec<u64> = self.ready.values().map(|ready| ready.number).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Arc<TableSet> {
        Arc::new(TableSet::new(&[]).expect("no tables are fine"))
    }

    #[test]
    fn who_names_none_gets_the_active_one_and_a_share_the_canary() {
        let (mut versions, tables) = (Versions::default(), tables());
        assert!(matches!(versions.choose(None, 0), Err(Refusal::Away(_))));
        let (one, two) = (versions.add(1, &tables), versions.add(2, &tables));
        assert!(versions.activate(one));
        assert_eq!(versions.choose(None, 0), Ok(one));
        versions.set_canary(Some((two, 0.25)));
        assert_eq!(versions.choose(None, u64::MAX / 8), Ok(two));
        assert_eq!(versions.choose(None, u64::MAX / 2), Ok(one));
        versions.set_canary(Some((two, 1.0)));
        assert_eq!(versions.choose(None, u64::MAX - 1), Ok(two));
        versions.remove(two);
        assert_eq!(versions.choose(None, 0), Ok(one));
        assert_eq!(versions.active(), Some(1));
    }

    #[test]
    fn a_named_version_is_the_newest_of_its_number_or_refused_with_those_there_are() {
        let (mut versions, tables) = (Versions::default(), tables());
        let (old, new) = (versions.add(7, &tables), versions.add(7, &tables));
        assert_eq!(versions.choose(Some(7), 0), Ok(new));
        versions.remove(new);
        assert_eq!(versions.choose(Some(7), 0), Ok(old));
        let Err(Refusal::NotKept(said)) = versions.choose(Some(8), 0) else { panic!("it is not there") };
        assert!(said.contains("has 7"), "{said}");
        assert!(!versions.activate(new), "it is gone");
    }
}
