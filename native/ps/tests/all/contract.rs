//! A client and its shards behave like a single set of tables, bit for bit.

use std::sync::Mutex;

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::{At, Column, FlatShape, PARTS, Pooling, ReadRows, Slot, TableSet, mix, part_of_hash};

/// The rows of keys, read from their shards' tables.
fn rows_of(cluster: &Cluster, table: u16, keys: &[u64]) -> Vec<f32> {
    let count = cluster.sets.len();
    let set_of = |key: u64| {
        &cluster.sets[(0..count).find(|&at| part_of_hash(mix(key)) < PARTS * (at + 1) / count).unwrap()]
    };
    keys.iter().flat_map(|&key| lookup(set_of(key), table, &[key], At::Newest)).collect()
}

fn pulled(client: &Client, table: u16, keys: &[u64], is_distinct: bool) -> Vec<f32> {
    let mut out = vec![f32::NAN; keys.len() * DIMS[usize::from(table)]];
    client.pull(table, keys, PullAt::Newest, is_distinct, &mut out).unwrap();
    out
}

/// Pushes the same through a client and to local tables, and compares the results.
fn push_both(client: &Client, set: &TableSet, push: &PushOf<'_>) {
    let pushed = client.push(*push).unwrap();
    assert_eq!(pushed, set.tables()[usize::from(push.table)].push(local(push), 1).unwrap());
}

#[test]
fn three_shards_learn_what_one_set_of_tables_learns() {
    let (cluster, set, mut chance) = (Cluster::start(3, Limits::default()), tables(), Chance(1));
    let mut limits =
        ClientLimits { pull_block_keys: 700, push_block_keys: 300, in_flight_max: 2, ..client_limits() };
    for (round, count) in [0, 1, 2, 5_000, 20_000, 1_000].into_iter().enumerate() {
        let client = open(ClientSettings { limits, ..client_settings(cluster.addresses(), round as u128) });
        limits = client_limits();
        for table in 0..2 {
            let keys = chance.keys(count, 4_000);
            let gradients = chance.floats(count * DIMS[usize::from(table)]);
            let counts: Vec<u32> = (0..count).map(|_| chance.below(3) as u32 + 1).collect();
            let admit =
                [(count / 3, 1), (count / 2, 3), (count, 2)].map(|(end, threshold)| Admit { end, threshold });
            let push = PushOf {
                counts: (round % 2 == 0).then_some(&counts),
                admit: if table == 0 { &admit } else { &[] },
                rate_scale: 0.5,
                ..push_of(table, &keys, &gradients)
            };
            push_both(&client, &set, &push);
            let keys = chance.keys(count, 6_000);
            let rows = pulled(&client, table, &keys, false);
            assert_eq!(bits(&rows), bits(&lookup(&set, table, &keys, At::Newest)));
            assert_eq!(bits(&rows), bits(&rows_of(&cluster, table, &keys)));
        }
    }
}

#[test]
fn what_is_no_number_is_refused_and_nothing_learns_from_it() {
    let (cluster, mut chance, mut clients) = (Cluster::start(1, Limits::default()), Chance(4), 1..);
    for encoding in [Encoding::F32, Encoding::F16] {
        let keys = chance.keys(3_000, u64::MAX);
        let gradients = chance.floats(keys.len() * DIMS[1]);
        let good = push_of(1, &keys, &gradients);
        // Each attempt needs a new client: a client pushes nothing more after a failed push.
        let mut pushed = |push: PushOf<'_>| {
            let settings = client_settings(cluster.addresses(), clients.next().unwrap());
            open(ClientSettings { encoding, ..settings }).push(push)
        };
        let mut refused = |push: PushOf<'_>, text: String| {
            let error = pushed(push).unwrap_err();
            assert!(
                error.trouble == Trouble::Refused(Code::BadRequest) && error.text.contains(&text),
                "{error}"
            );
        };
        let before = rows_of(&cluster, 1, &keys);
        for (number, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            for at in [0, 7_000, gradients.len() - 1] {
                let mut gradients = gradients.clone();
                gradients[at] = number;
                let (key, position) = (keys[at / DIMS[1]], at % DIMS[1]);
                let text = format!("the gradient of key {key} has {name} at position {position}");
                refused(PushOf { gradients: &gradients, ..good }, text);
            }
            refused(PushOf { rate_scale: number, ..good }, format!("a rate_scale of {name}"));
        }
        for now_ms in [i64::MIN, -CLOCK_MS_MAX - 1, CLOCK_MS_MAX + 1, i64::MAX] {
            refused(PushOf { now_ms, ..good }, format!("a table time of {now_ms} ms"));
        }
        assert_eq!(bits(&rows_of(&cluster, 1, &keys)), bits(&before));
        pushed(PushOf { now_ms: CLOCK_MS_MAX, ..good }).unwrap();
    }
}

#[test]
fn what_shards_take_only_in_small_frames_is_cut_smaller() {
    let cluster = Cluster::start(2, Limits { frame_bytes_max: 6_000, ..Limits::default() });
    let (client, set, mut chance) = (cluster.client(1), tables(), Chance(9));
    // Some parts have more keys than fit into a frame.
    let keys: Vec<u64> =
        (0..).map(mix).filter(|&key| part_of_hash(mix(key)).is_multiple_of(400)).take(900).collect();
    let gradients = chance.floats(900 * DIMS[1]);
    push_both(&client, &set, &push_of(1, &keys, &gradients));
    let admit = [Admit { end: 400, threshold: 2 }, Admit { end: 700, threshold: 1 }];
    let narrow = chance.floats(900 * DIMS[0]);
    for _ in 0..2 {
        push_both(&client, &set, &PushOf { admit: &admit, ..push_of(0, &keys, &narrow) });
    }
    for table in 0..2 {
        let rows = pulled(&client, table, &keys, false);
        assert_eq!(bits(&rows), bits(&lookup(&set, table, &keys, At::Newest)));
    }
    assert!(client.stats().shards[0].push.requests > 10);
    let error = client.order(0, &[0; 6_000], SOON).unwrap_err();
    assert!(error.text.contains("an order of 6016 bytes: shards accept 6000"), "{error}");
    let limits = ClientLimits { calls_max: 1_000, ..client_limits() };
    let error =
        Client::open(ClientSettings { limits, ..client_settings(cluster.addresses(), 1) }).err().unwrap();
    assert!(error.text.contains("window_max of 1024"), "{error}");
}

#[test]
fn keys_that_are_said_to_be_distinct_have_their_rows_in_their_places() {
    let (cluster, mut chance) = (Cluster::start(2, Limits::default()), Chance(2));
    let client = cluster.client(1);
    let mut keys = chance.keys(3_000, u64::MAX);
    keys.extend([0, u64::MAX, 1 << 63]);
    for table in 0..2 {
        let rows = pulled(&client, table, &keys, true);
        assert_eq!(bits(&rows), bits(&rows_of(&cluster, table, &keys)));
    }
}

#[test]
fn what_is_fetched_is_packed_as_from_the_tables() {
    let (cluster, set, mut chance) = (Cluster::start(2, Limits::default()), tables(), Chance(3));
    let client = cluster.client(1);
    let (narrow, wide) = (chance.keys(500, 100), chance.keys(200, 1_000));
    let gradients = chance.floats(wide.len() * DIMS[1]);
    push_both(&client, &set, &push_of(1, &wide, &gradients));
    let fetched = client.fetch(&[(0, &narrow), (1, &wide), (1, &[])], PullAt::Newest).unwrap();
    let slot = |name, table, at, keys, offsets| {
        Column::Slot(Slot { name, table, at, pooling: Pooling::Mean, keys, offsets })
    };
    let offsets: Vec<i32> = (0..=200).map(|at| at * 5 / 2).collect();
    let columns = [slot("a", 0, 0, &narrow, Some(&offsets)), slot("b", 1, 3, &wide, None)];
    let shape = FlatShape { examples: 200, examples_padded: 200, width: 19, stride: 19 };
    let (mut from_shards, mut from_tables) = (vec![0.0; 200 * 19], vec![1.0; 200 * 19]);
    streamlearn_table::pack_flat(&fetched.readers(), &columns, shape, &mut from_shards).unwrap();
    let readings = set.readings(At::Newest).unwrap();
    let readers: Vec<&dyn ReadRows> = readings.iter().map(|reading| reading as &dyn ReadRows).collect();
    streamlearn_table::pack_flat(&readers, &columns, shape, &mut from_tables).unwrap();
    assert_eq!(bits(&from_shards), bits(&from_tables));
    assert_eq!((fetched.missing(), fetched.tables()[0].keys().len() <= 100), (0, true));

    let mut row = [0.0; 3];
    fetched.tables()[0].read(&[u64::MAX], &mut row);
    assert!(row.iter().all(|float| float.is_nan()) && fetched.missing() == 1);
}

#[test]
fn a_version_is_read_as_it_was_and_one_that_is_not_there_is_refused() {
    let cluster = Cluster::start(2, Limits::default());
    let (client, keys) = (cluster.client(1), Chance(4).keys(5_000, u64::MAX));
    let gradients = vec![1.0; keys.len() * DIMS[1]];
    let mut rows = Vec::new();
    for version in 1..4 {
        client.push(push_of(1, &keys, &gradients)).unwrap();
        rows.push(pulled(&client, 1, &keys, false));
        for set in &cluster.sets {
            set.seal(version).unwrap();
            if version < 3 {
                set.commit(version).unwrap();
            }
        }
    }
    assert_ne!(rows[0], rows[1]);
    for (version, expected) in (1..4).zip(&rows) {
        let mut out = vec![0.0; keys.len() * DIMS[1]];
        client.pull(1, &keys, PullAt::Version(version), false, &mut out).unwrap();
        assert_eq!(bits(&out), bits(expected));
        let fetched = client.fetch(&[(1, &keys[..7])], PullAt::Version(version)).unwrap();
        assert_eq!(bits(fetched.tables()[0].row(keys[3]).unwrap()), bits(&expected[3 * 16..4 * 16]));
    }
    let error =
        client.pull(1, &keys, PullAt::Version(9), false, &mut vec![0.0; keys.len() * 16]).unwrap_err();
    assert_eq!(error.trouble, Trouble::Refused(Code::VersionRefused));
    assert!(
        error.to_string().contains("version 9 is not retained") && error.to_string().contains("127.0.0.1")
    );
    cluster.sets.iter().for_each(|set| set.discard(1).unwrap());
}

#[test]
fn halves_are_what_rows_and_gradients_round_to() {
    let (cluster, set, mut chance) = (Cluster::start(1, Limits::default()), tables(), Chance(5));
    let settings = ClientSettings { encoding: Encoding::F16, ..client_settings(cluster.addresses(), 1) };
    let client = open(settings);
    let rounded = |numbers: &[f32]| {
        let mut bytes = Vec::new();
        Encoding::F16.append(numbers, &mut bytes);
        Encoding::F16.numbers(&bytes, numbers.len()).unwrap().into_owned()
    };
    for (table, count) in [(0, 1), (0, 7), (0, 9_001), (1, 5_000)] {
        let mut keys: Vec<u64> = (0..count).map(|at| mix(at + 1)).collect();
        let gradients = chance.floats(keys.len() * DIMS[usize::from(table)]);
        client.push(push_of(table, &keys, &gradients)).unwrap();
        let halves = rounded(&gradients);
        set.tables()[usize::from(table)].push(local(&push_of(table, &keys, &halves)), 1).unwrap();
        keys.push(u64::MAX);
        let expected = rounded(&lookup(&set, table, &keys, At::Newest));
        assert_eq!(bits(&pulled(&client, table, &keys, false)), bits(&expected));
        let fetched = client.fetch(&[(table, &keys)], PullAt::Newest).unwrap();
        let last = &expected[expected.len() - DIMS[usize::from(table)]..];
        assert_eq!(bits(fetched.tables()[0].row(u64::MAX).unwrap()), bits(last));
    }
}

#[test]
fn many_threads_of_one_client_are_one_after_another_to_each_key() {
    let cluster = Cluster::start(2, Limits::default());
    let limits = ClientLimits { calls_max: 3, push_block_keys: 64, pull_block_keys: 64, ..client_limits() };
    let client = open(ClientSettings { limits, ..client_settings(cluster.addresses(), 1) });
    let learned = Mutex::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (client, learned) = (&client, &learned);
            scope.spawn(move || {
                let keys = Chance(thread).keys(400, 300);
                let gradients = vec![0.25; keys.len() * DIMS[1]];
                for _ in 0..10 {
                    let pushed = client.push(push_of(1, &keys, &gradients)).unwrap();
                    *learned.lock().unwrap() += pushed.learned;
                    assert!(pulled(client, 1, &keys, false).iter().all(|float| float.is_finite()));
                }
            });
        }
    });
    let rows: u64 = cluster.servers.iter().map(|server| server.stats().verb(Verb::Push).rows).sum();
    assert_eq!(rows, *learned.lock().unwrap() as u64);
}

#[test]
fn arguments_that_cannot_be_are_refused_before_anything_is_sent() {
    let cluster = Cluster::start(1, Limits::default());
    let client = cluster.client(1);
    let mut out = [0.0; 5];
    let texts = [
        client.pull(2, &[1], PullAt::Newest, false, &mut out).unwrap_err(),
        client.pull(0, &[1], PullAt::Newest, false, &mut out).unwrap_err(),
        client.push(push_of(0, &[1, 2], &[0.0; 5])).unwrap_err(),
        client.push(PushOf { counts: Some(&[1]), ..push_of(0, &[1, 2], &[0.0; 6]) }).unwrap_err(),
        client
            .push(PushOf { admit: &[Admit { end: 3, threshold: 2 }], ..push_of(0, &[1, 2], &[0.0; 6]) })
            .unwrap_err(),
        client.order(1, b"", SOON).unwrap_err(),
        client.order_all(&[vec![], vec![]], SOON).remove(1).unwrap_err(),
    ];
    let texts: Vec<String> = texts
        .map(|error| {
            assert_eq!(error.trouble, Trouble::Settings);
            error.text
        })
        .to_vec();
    assert_eq!(texts[0], "table 2: there are 2");
    assert_eq!(texts[1], "5 floats for 1 keys: a row is 3 floats");
    assert!(
        texts[3].contains("1 counts for 2 keys") && texts[5].contains("shard 1: there are 1"),
        "{texts:?}"
    );
    assert_eq!(client.stats().shards[0].push.requests, 0);
    let pushed = client.push(push_of(0, &[1, 2], &[0.0; 6])).unwrap();
    assert_eq!((pushed.learned, pushed.created), (2, 2));
}

#[test]
fn a_push_that_a_table_refuses_stops_all_pushes_of_its_epoch() {
    let cluster = Cluster::start(1, Limits::default());
    let client = cluster.client(1);
    let admit = [Admit { end: 1, threshold: 2 }];
    let error = client.push(PushOf { admit: &admit, ..push_of(1, &[1], &[0.0; 16]) }).unwrap_err();
    assert_eq!(error.trouble, Trouble::Refused(Code::BadRequest));
    let error = client.push(push_of(1, &[1], &[0.0; 16])).unwrap_err();
    assert_eq!(error.trouble, Trouble::Unsure);
    assert!(error.text.contains("no sketch"), "{error}");
    let next = Epoch { run: 1, recovery: 1 };
    cluster.servers[0].install(cluster.sets[0].clone(), next).unwrap();
    client.set_epoch(next).unwrap();
    client.push(push_of(1, &[1], &[0.0; 16])).unwrap();
}
