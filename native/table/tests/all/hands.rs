//! Expiry hands: they go around, and restored hands continue as if nothing had happened.

use crate::plain::{cases, key_of_hash, settings};
use proptest::prelude::*;
use streamlearn_table::*;

const KEYS: u64 = 4_000;

/// Most keys belong to one part, whose lines exceed one step of its hand; the others belong to any part.
fn any_key(number: u64) -> u64 {
    if !number.is_multiple_of(4) {
        key_of_hash(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 10)
    } else {
        number
    }
}

fn filled() -> TableSet {
    let set = TableSet::new(&settings()[..1]).unwrap();
    let table = &set.tables()[0];
    let keys: Vec<u64> = (0..KEYS).map(any_key).collect();
    let floats = vec![1.0; keys.len() * table.settings.dim];
    let uses: Vec<Use> =
        (0..KEYS as u32).map(|at| Use { tick: at % 97, count: (1 + at % 5) as u8 }).collect();
    let rows = Rows { embeddings: Embeddings::Floats(&floats), state: None, uses: Some(&uses) };
    table.put(&keys, rows, Again::Refused, 2).unwrap();
    set
}

/// Whether each key is present.
fn are_present(set: &TableSet) -> Vec<bool> {
    let (table, keys): (_, Vec<u64>) = (&set.tables()[0], (0..KEYS).map(any_key).collect());
    let mut rows = vec![0.0; keys.len() * table.settings.dim];
    table.lookup(&keys, At::Newest, &mut rows, 1).unwrap();
    rows.chunks(table.settings.dim).map(|row| row[0] == 1.0).collect()
}

/// Removes nothing.
const NOTHING: Expiry = Expiry { idle_ms: None, count_min: 0, rare_idle_ms: 0, keys_max: None };

#[test]
fn every_key_is_looked_at_once_in_a_round() {
    let set = filled();
    let table = &set.tables()[0];
    let (mut scanned, mut calls) = (0, 0);
    while scanned < KEYS as usize {
        scanned += table.expire(&NOTHING, 0, 50).unwrap().scanned;
        calls += 1;
    }
    assert!(calls > 10, "the budget is respected");
    // A second round with idle keys: all of them leave within one round.
    let idle = Expiry { idle_ms: Some(0), ..NOTHING };
    let (mut removed, mut steps) = (0, 0);
    for _ in 0..2 * calls {
        removed += table.expire(&idle, 1_000_000, 50).unwrap().idle;
        steps += usize::from(table.hands(0..1).1[0] > 0);
    }
    assert!(steps > 0, "a part of many lines is passed in steps");
    assert_eq!((removed, table.size().parts.keys), (KEYS as usize, 0));
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn hands_put_where_they_were_have_the_same_future(
        before in prop::collection::vec(1usize..900, 0..6),
        after in prop::collection::vec(1usize..900, 1..6),
        (idle_ms, count_min, keys_max) in (20_000i64..90_000, 0u8..4, prop::option::of(1_000usize..4_000)),
        cut in 0..=PARTS,
    ) {
        let (set, other) = (filled(), filled());
        let (table, restored) = (&set.tables()[0], &other.tables()[0]);
        for &budget_keys in &before {
            table.expire(&NOTHING, 0, budget_keys).unwrap();
        }
        // Saved and restored as two shards would do it.
        for parts in [0..cut, cut..PARTS] {
            let (next_part, hands) = table.hands(parts.clone());
            prop_assert_eq!(hands.len(), parts.len());
            restored.set_hands(parts, next_part, &hands);
        }
        let expiry = Expiry { idle_ms: Some(idle_ms), count_min, rare_idle_ms: idle_ms / 2, keys_max };
        for &budget_keys in &after {
            let [expired, expired_restored] = [table, restored].map(|table| table.expire(&expiry, 97_000, budget_keys).unwrap());
            prop_assert_eq!(expired, expired_restored);
            prop_assert_eq!(are_present(&set), are_present(&other));
        }
        prop_assert_eq!(table.hands(0..PARTS), restored.hands(0..PARTS));
    }
}

#[test]
fn a_table_that_was_restored_lets_the_same_keys_leave() {
    let (settings, expiry) = (settings()[0], Expiry { idle_ms: Some(600_000), ..NOTHING });
    let (original, restored) = (TableSet::new(&[settings]).unwrap(), TableSet::new(&[settings]).unwrap());
    let keys: Vec<u64> = (0..40_000).collect();
    let uses: Vec<Use> = keys.iter().map(|key| Use { tick: (key % 3 * 10) as u32, count: 1 }).collect();
    let floats = vec![1.0; keys.len() * settings.dim];
    let rows = Rows { embeddings: Embeddings::Floats(&floats), state: None, uses: Some(&uses) };
    original.tables()[0].put(&keys, rows, Again::Replaces, 1).unwrap();
    // The original's lines have grown for keys that left; the restored table's have not.
    original.tables()[0].remove(&keys[..25_000], Again::Replaces, 1).unwrap();
    let rows = Rows {
        embeddings: Embeddings::Floats(&floats[25_000 * settings.dim..]),
        state: None,
        uses: Some(&uses[25_000..]),
    };
    restored.tables()[0].put(&keys[25_000..], rows, Again::Replaces, 1).unwrap();
    for now_ms in [700_000, 1_000_000, 1_300_000, 1_900_000] {
        let expire = |set: &TableSet| set.tables()[0].expire(&expiry, now_ms, 3_000).unwrap();
        assert_eq!(expire(&original), expire(&restored));
        assert_eq!(original.tables()[0].hands(0..PARTS), restored.tables()[0].hands(0..PARTS));
    }
}
