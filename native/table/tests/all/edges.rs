//! Settings, sizes and times at their limits, where counts come close to the range of their types.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::plain::{self, key_of_hash, settings};
use streamlearn_table::*;

fn set_of(table: TableSettings) -> TableSet {
    TableSet::new(&[table]).unwrap()
}

fn put(table: &Table, keys: &[u64], threads: usize) -> Result<()> {
    let embeddings = vec![1.0; keys.len() * table.settings.dim];
    let rows = Rows { embeddings: Embeddings::Floats(&embeddings), state: None, uses: None };
    table.put(keys, rows, Again::Replaces, threads)
}

/// A key of the first part whose first line is one of the eight of a small part.
fn key_in(line: u64, number: u64) -> u64 {
    key_of_hash(line << 51 | number)
}

#[test]
fn a_key_is_looked_for_once_round_when_every_line_overflows() {
    let set = set_of(settings()[0]);
    let table = &set.tables()[0];
    let in_line =
        |line: u64, numbers: std::ops::Range<u64>| numbers.map(|number| key_in(line, number)).collect();
    let put_in =
        |line: u64, numbers| put(table, &Vec::from_iter::<Vec<u64>>(in_line(line, numbers)), 1).unwrap();
    let remove_in = |line: u64, numbers| {
        let keys: Vec<u64> = in_line(line, numbers);
        assert_eq!(table.remove(&keys, Again::Replaces, 1).unwrap(), keys.len());
    };
    // Fills six lines, and adds one more key that passes them all. Then makes room at the start for keys that
    // fill the last two lines, removing so few keys that the index is not rebuilt.
    (0..6).for_each(|line| put_in(line, 0..5));
    put_in(0, 5..6);
    remove_in(0, 0..4);
    put_in(6, 0..5);
    remove_in(1, 0..3);
    put_in(7, 0..5);
    assert_eq!((table.size().parts.keys, table.size().parts.slots), (34, 40));
    let absent: Vec<u64> = (0..8).map(|line| key_in(line, 99)).collect();
    let (mut rows, mut initial) = (vec![0.0; 8 * table.settings.dim], vec![0.0; table.settings.dim]);
    table.lookup(&absent, At::Newest, &mut rows, 1).unwrap();
    for (key, row) in absent.iter().zip(rows.chunks(table.settings.dim)) {
        table.settings.initial.fill(*key, &mut initial);
        assert_eq!(row, initial);
    }
    assert_eq!(table.remove(&absent, Again::Replaces, 1).unwrap(), 0);
    put(table, &absent, 1).unwrap();
}

#[test]
fn any_count_of_threads_is_as_good_as_one() {
    let set = set_of(settings()[0]);
    let table = &set.tables()[0];
    let keys: Vec<u64> = (0..5_000).collect();
    for threads in [0, 1, 3, usize::MAX] {
        put(table, &keys, threads).unwrap();
        let mut rows = vec![0.0; keys.len() * table.settings.dim];
        table.lookup(&keys, At::Newest, &mut rows, threads).unwrap();
        assert!(rows.iter().all(|&float| float == 1.0));
        let push =
            Push { keys: &keys, gradients: &rows, counts: None, admit: &[], now_ms: 0, rate_scale: 1.0 };
        assert_eq!(table.push(push, threads).unwrap().learned, keys.len());
        assert_eq!(table.remove(&keys[..100], Again::Replaces, threads).unwrap(), 100);
        set.discard(threads).unwrap();
        assert_eq!(table.size().rows, 0);
    }
}

#[test]
fn limits_that_no_table_reaches_let_every_key_stay() {
    let set = set_of(TableSettings { tick_ms: i64::MAX / 1_000, ..settings()[0] });
    let table = &set.tables()[0];
    let keys: Vec<u64> = (0..3_000).collect();
    put(table, &keys, 1).unwrap();
    let expiry = Expiry { keys_max: Some(usize::MAX), idle_ms: Some(i64::MAX), ..Expiry::default() };
    for now_ms in [i64::MIN, -1, 0, i64::MAX] {
        let expired = table.expire(&expiry, now_ms, usize::MAX).unwrap();
        assert_eq!((expired.idle, expired.rare, expired.over), (0, 0, 0));
        assert!(expired.scanned >= keys.len());
    }
}

#[test]
fn a_full_table_says_so_and_is_as_before_once_that_is_discarded() {
    let set = set_of(TableSettings { dim: 1, rows_max: 1, ..settings()[0] });
    let table = &set.tables()[0];
    let few: Vec<u64> = (0..100).collect();
    put(table, &few, 1).unwrap();
    set.seal(1).unwrap();
    set.commit(1).unwrap();
    let many: Vec<u64> = (0..100_000).collect();
    for threads in [1, 2] {
        assert!(matches!(put(table, &many, threads), Err(TableError::Full { rows_max: 1 })));
        set.discard(1).unwrap();
        let size = table.size();
        assert_eq!((size.parts.keys, size.rows, size.parts.images), (100, 100, 0));
    }
    put(table, &few, 1).unwrap();
}

#[test]
fn rows_of_odd_widths_are_what_was_put() {
    for dim in [1, 2, 7, 8, 16, 17, 64, 4_096] {
        for row_type in [RowType::F32, RowType::F16, RowType::I8] {
            let set = set_of(TableSettings { dim, row_type, rule: None, admission: None, ..settings()[0] });
            let table = &set.tables()[0];
            let keys = [0, 1, u64::MAX, 1 << 63, 77];
            let floats: Vec<f32> = (0..keys.len() * dim).map(|at| at as f32 * 0.37 - 90.0).collect();
            let rows = Rows { embeddings: Embeddings::Floats(&floats), state: None, uses: None };
            table.put(&keys, rows, Again::Refused, 2).unwrap();
            let mut rows_read = vec![0.0; floats.len()];
            table.lookup(&keys, At::Newest, &mut rows_read, 1).unwrap();
            for (row, row_read) in floats.chunks(dim).zip(rows_read.chunks(dim)) {
                let (mut stored, mut expected) = (vec![0; row_type.row_bytes(dim)], vec![0.0; dim]);
                row_type.encode(row, &mut stored);
                row_type.decode(&stored, &mut expected);
                assert_eq!(plain::bits(row_read), plain::bits(&expected), "{row_type:?}, dim {dim}");
            }
        }
    }
}

/// Puts rows whose floats all have one value, into every table.
fn put_all(set: &TableSet, keys: &[u64], float: f32) {
    for table in set.tables() {
        let embeddings = vec![float; keys.len() * table.settings.dim];
        let rows = Rows { embeddings: Embeddings::Floats(&embeddings), state: None, uses: None };
        table.put(keys, rows, Again::Replaces, 2).unwrap();
    }
}

fn keep(set: &TableSet, version: u64) {
    set.seal(version).unwrap();
    set.commit(version).unwrap();
    set.activate(version).unwrap();
}

#[test]
fn what_a_reader_began_to_read_stays_until_it_is_through() {
    let set = set_of(settings()[0]);
    let (table, dim) = (&set.tables()[0], settings()[0].dim);
    let keys: Vec<u64> = (0..2_000).collect();
    put_all(&set, &keys, 1.0);
    keep(&set, 1);
    let readings = set.readings(At::Active).unwrap();
    let reading = &readings[0];
    for version in 2..6 {
        put_all(&set, &keys, version as f32);
        table.remove(&keys[..1_000], Again::Replaces, 1).unwrap();
        // Lines grow and images come and go; everything left behind has to wait.
        put_all(&set, &Vec::from_iter(version * 10_000..version * 10_000 + 8_000), 9.0);
        keep(&set, version);
        assert_eq!(set.retire(version - 1, 0, 1).unwrap() as u64, version - 1);
        let mut rows = vec![0.0; 64 * dim];
        for keys in keys.chunks_exact(64) {
            reading.read(keys, &mut rows);
            assert!(
                rows.iter().all(|&float| float == 1.0),
                "version 1 stays readable after version {version}"
            );
        }
    }
    assert_eq!(set.retiring(), 4);
    let rows_before = table.size().rows;
    drop(readings);
    assert_eq!(set.sweep(1_000, 2).unwrap(), 0);
    assert!(table.size().rows < rows_before);
    let mut rows = vec![0.0; keys.len() * dim];
    table.lookup(&keys, At::Active, &mut rows, 1).unwrap();
    assert!(rows[1_000 * dim..].iter().all(|&float| float == 5.0));
}

#[test]
fn rows_that_a_reader_may_look_at_are_not_used_again() {
    let set = set_of(settings()[0]);
    let table = &set.tables()[0];
    let keys: Vec<u64> = (0..500).collect();
    put_all(&set, &keys, 1.0);
    let reading = set.readings(At::Newest).unwrap();
    for round in 1..4 {
        assert_eq!(table.remove(&keys, Again::Replaces, 2).unwrap(), keys.len());
        put_all(&set, &keys, 2.0);
        let size = table.size();
        assert_eq!((size.parts.waiting_rows, size.rows), (round * keys.len(), keys.len()));
    }
    drop(reading);
    put_all(&set, &keys, 3.0);
    assert_eq!((table.size().parts.waiting_rows, table.size().rows), (0, keys.len()));
}

#[test]
fn a_lookup_by_many_threads_takes_one_reader_s_place() {
    // All reader places but one, so that a lookup with a second place would wait forever.
    let (set, readers) = (Arc::new(set_of(settings()[0])), 255);
    let (done, is_done) = mpsc::channel();
    let reader_set = set.clone();
    let readings: Vec<_> = (0..readers).map(|_| set.readings(At::Newest).unwrap()).collect();
    std::thread::spawn(move || {
        let (table, keys) = (&reader_set.tables()[0], Vec::from_iter(0..10_000));
        let mut rows = vec![0.0; keys.len() * table.settings.dim];
        table.lookup(&keys, At::Newest, &mut rows, 4).unwrap();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(120)).expect("the lookup ends");
    drop(readings);
}
