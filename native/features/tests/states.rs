//! States: the order of interactions does not matter, bytes give the same state, and foreign bytes are refused.

use proptest::prelude::*;
use streamlearn_features::{Definition, Error, Interaction, State, Values};

const DEFINITION: &str = r#"{"id": 7, "kinds": 3, "columns": 2, "features": [
    {"what": "last", "column": 0, "of": [0, 1], "length": 4},
    {"what": "last", "column": 1, "of": [0, 1], "length": 2},
    {"what": "last", "column": 1, "of": [2], "length": 3},
    {"what": "count", "of": [0, 2], "windows_ms": [64, 3200]},
    {"what": "sum", "of": [1], "windows_ms": [320]},
    {"what": "rate", "of": 0, "over": 2, "windows_ms": [320], "prior": [0.5, 4]},
    {"what": "since", "of": [1, 2]}
]}"#;

#[derive(Debug, Clone)]
struct Given {
    time_ms: i64,
    identity: u64,
    kind: usize,
    value: f32,
    columns: [u64; 2],
}

fn definition() -> Definition {
    Definition::from_json(DEFINITION).expect("it is valid")
}

fn folded(definition: &Definition, all: &[Given]) -> State {
    let mut state = State::new(definition);
    for (position, one) in all.iter().enumerate() {
        let Given { time_ms, identity, kind, value, ref columns } = *one;
        let position = position as i64;
        assert!(state.fold(definition, &Interaction { time_ms, identity, position, kind, value, columns }));
    }
    state
}

fn given() -> impl Strategy<Value = Given> {
    let near = prop_oneof![8 => 0..6_000_i64, 1 => any::<i64>()];
    let value = prop_oneof![4 => -5.0..5.0_f32, 1 => any::<f32>()];
    (near, 0..40_u64, 0..3_usize, value, any::<[u64; 2]>()).prop_map(
        |(time_ms, identity, kind, value, columns)| {
            // The same interaction has the same time, kind and columns.
            Given {
                time_ms,
                identity: identity ^ (time_ms as u64) << 8 ^ (kind as u64) << 6,
                kind,
                value,
                columns,
            }
        },
    )
}

fn of_each_identity(mut all: Vec<Given>) -> Vec<Given> {
    let mut seen = std::collections::HashSet::new();
    all.retain(|one| seen.insert((one.time_ms, one.identity)));
    all
}

proptest! {
    #[test]
    fn the_order_of_interactions_does_not_matter(
        all in prop::collection::vec(given(), 0..40).prop_map(of_each_identity),
        seed in any::<u64>(),
    ) {
        let definition = definition();
        let mut other = all.clone();
        other.sort_by_key(|one| (one.identity ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        prop_assert_eq!(folded(&definition, &all), folded(&definition, &other));
    }

    #[test]
    fn bytes_give_the_same_state(all in prop::collection::vec(given(), 0..60)) {
        let (definition, mut bytes) = (definition(), vec![1, 2, 3]);
        let state = folded(&definition, &all);
        state.encode(&definition, &mut bytes);
        prop_assert!(bytes.len() - 3 <= definition.bytes_max());
        prop_assert_eq!(State::decode(&definition, &bytes[3..]), Ok(state));
    }

    #[test]
    fn bytes_that_were_changed_are_refused(
        all in prop::collection::vec(given(), 0..20),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
        end in any::<prop::sample::Index>(),
    ) {
        let (definition, mut bytes) = (definition(), Vec::new());
        folded(&definition, &all).encode(&definition, &mut bytes);
        let cut = &bytes[..end.index(bytes.len())];
        prop_assert!(State::decode(&definition, cut).is_err());
        let place = at.index(bytes.len());
        bytes[place] ^= 1_u8 << bit;
        prop_assert!(State::decode(&definition, &bytes).is_err());
    }

    #[test]
    fn what_has_a_right_checksum_is_read_or_refused_and_reads_the_same_again(
        body in prop::collection::vec(any::<u8>(), 0..400),
        now in any::<i64>(),
    ) {
        let definition = definition();
        let mut bytes = b"SLF2\x07\0\0\0\0\0\0\0".to_vec();
        bytes.extend(body);
        let checksum = streamlearn_wire::checksum::crc32c(0, &bytes);
        bytes.extend(checksum.to_le_bytes());
        if let Ok(state) = State::decode(&definition, &bytes) {
            let (mut again, mut values) = (Vec::new(), Values::new(&definition));
            state.encode(&definition, &mut again);
            prop_assert_eq!(State::decode(&definition, &again), Ok(state.clone()));
            state.evaluate(&definition, now, &mut values);
        }
    }
}

#[test]
fn a_state_of_another_definition_is_refused_by_its_id() {
    let other = Definition::from_json(&DEFINITION.replace("\"id\": 7", "\"id\": 8")).expect("it is valid");
    let mut bytes = Vec::new();
    State::new(&other).encode(&other, &mut bytes);
    assert_eq!(State::decode(&definition(), &bytes), Err(Error::Other(8)));
}

#[test]
fn an_interaction_at_a_position_that_was_folded_changes_nothing() {
    let definition = definition();
    let one = |position, kind| Interaction {
        time_ms: 5,
        identity: 1,
        position,
        kind,
        value: 1.0,
        columns: &[3, 4],
    };
    let mut state = State::new(&definition);
    assert!(state.fold(&definition, &one(9, 0)));
    let before = state.clone();
    assert!(!state.fold(&definition, &one(9, 2)));
    assert!(!state.fold(&definition, &one(3, 2)));
    assert_eq!(state, before);
}

#[test]
fn definitions_that_contradict_themselves_are_refused() {
    for (from, to, said) in [
        ("\"column\": 0", "\"column\": 2", "there are 2 columns"),
        ("\"of\": [2]", "\"of\": [3]", "there are 3 kinds"),
        ("\"of\": [2]", "\"of\": []", "there are 3 kinds"),
        ("\"length\": 4", "\"length\": 0", "the length is from 1"),
        ("[64, 3200]", "[]", "1 to 16 windows"),
        ("[64, 3200]", "[31]", "a window has 32"),
        ("[0.5, 4]", "[0.5, 0]", "the weight above 0"),
        ("\"kinds\": 3", "\"kinds\": 33", "at most 32"),
        ("\"what\": \"since\"", "\"what\": \"until\"", "unknown variant"),
    ] {
        let error = Definition::from_json(&DEFINITION.replacen(from, to, 1)).expect_err(to);
        assert!(error.to_string().contains(said), "{to}: {error}");
    }
}
