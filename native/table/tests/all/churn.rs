//! Endless churn of keys: the table's size and its probe lengths stay constant.

use streamlearn_table::*;

/// Rounds, new keys per round, and rounds that a key stays after its last use.
const ROUNDS: usize = if cfg!(debug_assertions) { 20 } else { 200 };
const COMING: u64 = if cfg!(debug_assertions) { 5_000 } else { 20_000 };
const STAY_ROUNDS: i64 = 4;
/// Rounds after which every part has had about its maximum of keys.
const WARM_ROUNDS: usize = ROUNDS / 2;
const ROUND_MS: i64 = 60_000;

fn settings(dim: usize) -> TableSettings {
    TableSettings {
        dim,
        row_type: RowType::F32,
        rule: Some(Rule::new(Optimizer::Adagrad { rate: 0.1, initial_accumulator: 0.1, epsilon: 0.0 })),
        admission: Some(SketchSettings { width_counters: 128, window_ms: 3 * ROUND_MS }),
        initial: Initial { seed: 1, range: 0.1 },
        tick_ms: 1_000,
        rows_max: 1 << 22,
    }
}

/// The new keys of a round; none of them occurred before.
fn coming(round: usize) -> Vec<u64> {
    (0..COMING).map(|number| (round as u64 * COMING + number).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

fn push(table: &Table, keys: &[u64], threshold: u32, now_ms: i64) -> Pushed {
    let gradients = vec![0.5; keys.len() * table.settings.dim];
    let admit = [Admit { end: keys.len(), threshold }];
    let push = Push { keys, gradients: &gradients, counts: None, admit: &admit, now_ms, rate_scale: 1.0 };
    table.push(push, 2).unwrap()
}

/// One round: keys come, some are used again, idle ones expire, and a version is kept.
fn go_round(set: &TableSet, round: usize) {
    let now_ms = round as i64 * ROUND_MS;
    for table in set.tables() {
        let keys = coming(round);
        assert_eq!(push(table, &keys, 1, now_ms).created, keys.len());
        // Half of the previous keys are used again, and so stay one round longer.
        if let Some(previous) = round.checked_sub(1).map(coming) {
            let reused = &previous[..previous.len() / 2];
            assert_eq!(push(table, reused, 1, now_ms).created, 0);
        }
        // Some keys are never seen often enough.
        let rare: Vec<u64> = keys.iter().map(|key| !key).collect();
        assert!(push(table, &rare[..rare.len() / 4], 5, now_ms).waiting > 0);
        let expiry = Expiry { idle_ms: Some(STAY_ROUNDS * ROUND_MS), ..Expiry::default() };
        table.expire(&expiry, now_ms, usize::MAX).unwrap();
    }
    let version = round as u64 + 1;
    set.seal(version).unwrap();
    set.commit(version).unwrap();
    set.activate(version).unwrap();
    if let Some(&older) = set.retained().iter().rev().nth(2) {
        assert_eq!(set.retire(older, 1_000, 2).unwrap(), 0);
    }
}

#[test]
fn under_endless_churn_memory_stays_as_much_and_probes_stay_short() {
    let set = TableSet::new(&[settings(8), settings(3)]).unwrap();
    let mut warm = vec![TableSize::default(); 2];
    for round in 0..ROUNDS {
        go_round(&set, round);
        for (table, warm) in set.tables().iter().zip(&mut warm) {
            let size = table.size();
            if round < WARM_ROUNDS {
                *warm = size;
                continue;
            }
            let parts = size.parts;
            assert_eq!(parts.keys as u64, COMING * (2 * STAY_ROUNDS as u64 + 3) / 2, "round {round}");
            let is_flat = |current: usize, reference: usize| current * 100 <= reference * 125;
            // Columns take huge pages, and one more each than they need.
            assert!(is_flat(size.bytes(), warm.bytes() + (8 << 20)), "round {round}: {size:?} {warm:?}");
            assert!(is_flat(parts.slots, warm.parts.slots), "round {round}: {size:?} {warm:?}");
            assert!(is_flat(size.rows, warm.rows), "round {round}: {size:?} {warm:?}");
            // Parts take rows in chunks and keep as many as they ever had, so some are always free.
            let used = size.rows + parts.waiting_rows;
            assert!(parts.free_rows <= used, "round {round}: rows are used again: {size:?}");
            assert!(is_flat(size.images_bytes, warm.images_bytes), "round {round}: {size:?} {warm:?}");
            let lines = parts.slots / 5;
            // A line has 64 bytes; lines left by growth are reused or released.
            assert!(size.index_bytes * 2 <= lines * 64 * 3, "round {round}: {size:?}");
            assert!(parts.overflows * 100 <= lines * 70, "{} of {lines} lines overflow", parts.overflows);
        }
    }
    let sizes: Vec<TableSize> = set.tables().iter().map(Table::size).collect();
    println!("{warm:#?}\n{sizes:#?}");
}
