//! Retirement: removes the images of retired versions and of uncommitted writes.
//!
//! Each function works on one part, and only on the keys that a version touched.

use crate::locked_part::{Held, Touched};
use crate::storage::images::{GONE, Image, NONE};
use crate::storage::index::mix;
use crate::versions::{Dropped, Retired};

/// How many keys ahead lines are prefetched.
const LINES_AHEAD: usize = 16;

/// Removes the images that no reader sees once a version is no longer retained.
pub fn retire(locked: &mut Held<'_>, retired: Retired) {
    if retired.has_older {
        let keys = take_touched(locked, retired.birth, retired.birth);
        let mut kept = Vec::new();
        each(locked, &keys, |locked, key| {
            if !merge(locked, key, retired.birth, retired.newer) {
                kept.push(key);
            }
        });
        if !kept.is_empty() {
            locked.touched(retired.newer).keys.extend(kept);
        }
    } else {
        let keys = take_touched(locked, 0, retired.newer);
        each(locked, &keys, |locked, key| settle(locked, key, retired.newer));
    }
}

/// Removes uncommitted images.
pub fn discard(locked: &mut Held<'_>, dropped: Dropped) {
    match dropped {
        Dropped::Everything => locked.clear(),
        Dropped::After(upto) => {
            let keys = take_touched(locked, upto + 1, u64::MAX);
            each(locked, &keys, |locked, key| restore(locked, key, upto));
            locked.set_latest(upto);
        }
    }
}

/// Calls `work` for each key, whose line was prefetched some keys before.
fn each(locked: &mut Held<'_>, keys: &[u64], mut work: impl FnMut(&mut Held<'_>, u64)) {
    for (at, &key) in keys.iter().enumerate() {
        if let Some(&ahead) = keys.get(at + LINES_AHEAD) {
            locked.bring_line_near(ahead);
        }
        work(locked, key);
    }
}

/// Takes the lists of keys touched by versions born from `begin` to `last`.
fn take_touched(locked: &mut Held<'_>, begin: u64, last: u64) -> Vec<u64> {
    let all = std::mem::take(&mut locked.part.touched);
    let (mut taken, kept): (Vec<Touched>, _) =
        all.into_iter().partition(|entry| (begin..=last).contains(&entry.birth));
    locked.part.touched = kept;
    match taken.len() {
        1 => taken.swap_remove(0).keys,
        _ => taken.into_iter().flat_map(|entry| entry.keys).collect(),
    }
}

/// Every reader sees the key as of `upto` or later: removes its earlier images and settles the one of `upto`.
fn settle(locked: &mut Held<'_>, key: u64, upto: u64) {
    let Some(entry) = locked.find(mix(key), key).filter(|entry| !entry.is_settled) else { return };
    let mut writing = entry.line.write();
    let (mut newer, mut id) = (None, entry.id);
    while let Some(image) = locked.image(id).filter(|image| image.birth > upto) {
        (newer, id) = (Some((id, image)), image.older);
        if id == NONE {
            return;
        }
    }
    let Some(image) = locked.image(id) else { return };
    free_from(locked, image.older);
    locked.forget(id);
    match (newer, id & GONE != 0) {
        (None, true) => {
            writing.remove(entry.slot);
            locked.free(id);
            locked.count_gone(true, false);
            locked.count_removed();
        }
        (None, false) => writing.set(entry.slot, id, true),
        (Some((newer, image)), true) => {
            locked.set_image(newer, Image::first(image.birth));
            locked.free(id);
        }
        (Some(_), false) => {}
    }
}

fn free_from(locked: &mut Held<'_>, mut id: u32) {
    while id != NONE {
        let image = locked.image(id);
        if image.is_some() {
            locked.forget(id);
        }
        locked.free(id);
        id = image.map_or(NONE, |image| image.older);
    }
}

/// Merges two versions: for a key that both touched, the first one's image is no longer seen. Returns whether
/// it was such a key.
fn merge(locked: &mut Held<'_>, key: u64, birth: u64, newer_birth: u64) -> bool {
    let Some(entry) = locked.find(mix(key), key) else { return false };
    let (mut newer, mut id) = (None, entry.id);
    while let Some(image) = locked.image(id).filter(|image| image.birth > birth) {
        (newer, id) = (Some((id, image)), image.older);
    }
    let Some((newer, newer_image)) = newer.filter(|(_, image)| image.birth <= newer_birth) else {
        return false;
    };
    let Some(Image { older, older_is_entered, .. }) = locked.image(id) else { return false };
    let writing = entry.line.write();
    locked.set_image(newer, Image { older, older_is_entered, ..newer_image });
    locked.forget(id);
    locked.free(id);
    drop(writing);
    true
}

/// Removes what was written to a key after a birth.
fn restore(locked: &mut Held<'_>, key: u64, upto: u64) {
    let Some(entry) = locked.find(mix(key), key) else { return };
    let mut id = entry.id;
    // The line is held while its images are removed, so that a reader who saw some of them reads again.
    let mut writing = entry.line.write();
    while let Some(image) = locked.image(id).filter(|image| image.birth > upto) {
        locked.forget(id);
        locked.free(id);
        id = image.older;
        if id == NONE {
            break;
        }
    }
    locked.count_gone(entry.id & GONE != 0, id & GONE != 0);
    if id == NONE {
        writing.remove(entry.slot);
        locked.count_removed();
    } else if id != entry.id {
        writing.set(entry.slot, id, locked.image(id).is_none());
    }
}
