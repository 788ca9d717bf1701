//! How images go: of versions that are retired, and of what was never committed.
//!
//! Each works on one part at a time, on the keys that a version touched and on no others.

use crate::locked_part::{Held, Touched};
use crate::storage::images::{GONE, Image, NONE};
use crate::storage::index::mix;
use crate::versions::{Dropped, Retired};

/// Lines are brought near so many keys before they are needed.
const LINES_AHEAD: usize = 16;

/// Let go of what nobody sees now that a version is not retained any more.
pub fn retire(held: &mut Held<'_>, retired: Retired) {
    if retired.has_older {
        let keys = take_touched(held, retired.birth, retired.birth);
        let mut kept = Vec::new();
        each(held, &keys, |held, key| {
            if !merge(held, key, retired.birth, retired.newer) {
                kept.push(key);
            }
        });
        if !kept.is_empty() {
            held.touched(retired.newer).keys.extend(kept);
        }
    } else {
        let keys = take_touched(held, 0, retired.newer);
        each(held, &keys, |held, key| settle(held, key, retired.newer));
    }
}

/// Let go of what was not committed.
pub fn discard(held: &mut Held<'_>, dropped: Dropped) {
    match dropped {
        Dropped::Everything => held.clear(),
        Dropped::After(upto) => {
            let keys = take_touched(held, upto + 1, u64::MAX);
            each(held, &keys, |held, key| restore(held, key, upto));
            held.set_latest(upto);
        }
    }
}

/// Do something with each key, whose line was brought near some keys before.
fn each(held: &mut Held<'_>, keys: &[u64], mut work: impl FnMut(&mut Held<'_>, u64)) {
    for (at, &key) in keys.iter().enumerate() {
        if let Some(&ahead) = keys.get(at + LINES_AHEAD) {
            held.bring_line_near(ahead);
        }
        work(held, key);
    }
}

/// Take the lists of keys touched by versions born from `begin` to `last`.
fn take_touched(held: &mut Held<'_>, begin: u64, last: u64) -> Vec<u64> {
    let all = std::mem::take(&mut held.part.touched);
    let (mut taken, kept): (Vec<Touched>, _) =
        all.into_iter().partition(|one| (begin..=last).contains(&one.birth));
    held.part.touched = kept;
    match taken.len() {
        1 => taken.swap_remove(0).keys,
        _ => taken.into_iter().flat_map(|one| one.keys).collect(),
    }
}

/// Every reader sees a key as of `upto` at least: what it had before goes, and what it has then is settled.
fn settle(held: &mut Held<'_>, key: u64, upto: u64) {
    let Some(found) = held.find(mix(key), key).filter(|found| !found.is_settled) else { return };
    let mut writing = found.line.write();
    let (mut newer, mut id) = (None, found.id);
    while let Some(image) = held.image(id).filter(|image| image.birth > upto) {
        (newer, id) = (Some((id, image)), image.older);
        if id == NONE {
            return;
        }
    }
    let Some(image) = held.image(id) else { return };
    free_from(held, image.older);
    held.forget(id);
    match (newer, id & GONE != 0) {
        (None, true) => {
            writing.remove(found.slot);
            held.free(id);
            held.count_gone(true, false);
            held.count_removed();
        }
        (None, false) => writing.set(found.slot, id, true),
        (Some((newer, image)), true) => {
            held.set_image(newer, Image::first(image.birth));
            held.free(id);
        }
        (Some(_), false) => {}
    }
}

fn free_from(held: &mut Held<'_>, mut id: u32) {
    while id != NONE {
        let image = held.image(id);
        if image.is_some() {
            held.forget(id);
        }
        held.free(id);
        id = image.map_or(NONE, |image| image.older);
    }
}

/// Two versions become one: of a key that both touched, what the first left is seen by nobody. Gives whether it
/// was one of those.
fn merge(held: &mut Held<'_>, key: u64, birth: u64, newer_birth: u64) -> bool {
    let Some(found) = held.find(mix(key), key) else { return false };
    let (mut newer, mut id) = (None, found.id);
    while let Some(image) = held.image(id).filter(|image| image.birth > birth) {
        (newer, id) = (Some((id, image)), image.older);
    }
    let Some((newer, newer_image)) = newer.filter(|(_, image)| image.birth <= newer_birth) else {
        return false;
    };
    let Some(Image { older, older_is_entered, .. }) = held.image(id) else { return false };
    let writing = found.line.write();
    held.set_image(newer, Image { older, older_is_entered, ..newer_image });
    held.forget(id);
    held.free(id);
    drop(writing);
    true
}

/// Let go of what was written to a key after a birth.
fn restore(held: &mut Held<'_>, key: u64, upto: u64) {
    let Some(found) = held.find(mix(key), key) else { return };
    let mut id = found.id;
    // The line is held while its images go, so that a reader who saw some of them reads again.
    let mut writing = found.line.write();
    while let Some(image) = held.image(id).filter(|image| image.birth > upto) {
        held.forget(id);
        held.free(id);
        id = image.older;
        if id == NONE {
            break;
        }
    }
    held.count_gone(found.id & GONE != 0, id & GONE != 0);
    if id == NONE {
        writing.remove(found.slot);
        held.count_removed();
    } else if id != found.id {
        writing.set(found.slot, id, held.image(id).is_none());
    }
}
