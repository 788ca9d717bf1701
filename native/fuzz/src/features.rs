//! Stored states of computed features, with valid checksums, and calls on what was read.

use streamlearn_features::{Definition, Interaction, State, Values};

use crate::sealed;

const DEFINITION: &str = r#"{"id": 7, "kinds": 3, "columns": 2, "features": [
    {"what": "last", "column": 0, "of": [0, 1], "length": 4},
    {"what": "last", "column": 1, "of": [2], "length": 3},
    {"what": "count", "of": [0, 2], "windows_ms": [64, 3200]},
    {"what": "sum", "of": [1], "windows_ms": [320]},
    {"what": "since", "of": [1, 2]}
]}"#;

/// The bytes are a state after its magic and the id of its definition, without the checksum.
pub fn states(bytes: &[u8]) {
    let definition = Definition::from_json(DEFINITION).expect("it is valid");
    let _ = State::decode(&definition, bytes);
    let whole = [b"SLF2\x07\0\0\0\0\0\0\0", bytes].concat();
    let Ok(mut state) = State::decode(&definition, &sealed(&whole)) else { return };
    let mut values = Values::new(&definition);
    for now_ms in [i64::MIN, 0, state.newest_ms, i64::MAX] {
        state.evaluate(&definition, now_ms, &mut values);
    }
    for kind in 0..3 {
        let one = Interaction {
            time_ms: state.newest_ms.saturating_add(40),
            identity: 3,
            position: state.position.saturating_add(1),
            kind,
            value: 1e30,
            columns: &[1, 2],
        };
        state.fold(&definition, &one);
    }
    let mut again = Vec::new();
    state.encode(&definition, &mut again);
    assert!(again.len() <= definition.bytes_max(), "{} bytes", again.len());
    assert_eq!(State::decode(&definition, &again), Ok(state));
}
