//! Steps that are cut into slices: whoever learns a slice and whenever it comes, the bits are the same.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::At;

const NEXT: Epoch = Epoch { run: 1, recovery: 1 };
const SLICES: u16 = 5;

/// One slice's gradients for one table.
#[derive(Default)]
struct Grads {
    keys: Vec<u64>,
    gradients: Vec<f32>,
    counts: Vec<u32>,
    admit: Vec<Admit>,
}

impl Grads {
    fn random(chance: &mut Chance, table: u16) -> Self {
        let count = [0, 1, 300, 400][chance.below(4) as usize];
        let keys = chance.keys(count, 250);
        let gradients = chance.floats(count * DIMS[usize::from(table)]);
        let counts = (0..count).map(|_| chance.below(3) as u32 + 1).collect();
        let has_runs = table == 0 && chance.below(3) > 0;
        let runs = [(count / 3, 2), (count / 2, 1), (count / 2, 9), (count - count / 8, 4)];
        let admit = runs.map(|(end, threshold)| Admit { end, threshold });
        Self { keys, gradients, counts, admit: if has_runs { admit.to_vec() } else { vec![] } }
    }

    fn push(&self, table: u16) -> PushOf<'_> {
        let Self { keys, gradients, counts, admit } = self;
        PushOf { counts: Some(counts), admit, ..push_of(table, keys, gradients) }
    }

    /// Appends the sums of a slice's own keys.
    fn append(&mut self, slice: &Self, dim: usize) {
        let (begin, mut places) = (self.keys.len(), HashMap::new());
        for (at, &key) in slice.keys.iter().enumerate() {
            let gradient = &slice.gradients[at * dim..][..dim];
            let place = *places.entry(key).or_insert(self.keys.len());
            if place < self.keys.len() {
                self.counts[place] += slice.counts[at];
                let sum = &mut self.gradients[place * dim..][..dim];
                sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
                continue;
            }
            self.keys.push(key);
            self.counts.push(slice.counts[at]);
            self.gradients.extend(gradient);
            let run = slice.admit.iter().find(|run| run.end > at);
            let threshold = run.map_or(1, |run| run.threshold);
            self.admit.push(Admit { end: begin.max(place) + 1, threshold });
        }
    }
}

fn part(step: u64, slice: u16) -> PartOf {
    PartOf { step, slice, slices: SLICES, is_finite: true, may_repeat: false, at_once: false }
}

/// A slice that others may give, too, and that is applied when it comes.
fn at_once(step: u64, slice: u16) -> PartOf {
    PartOf { may_repeat: true, at_once: true, ..part(step, slice) }
}

fn sum(step: u64, slice: Option<u16>) -> ReduceOf {
    ReduceOf { step, slice, slices: SLICES, digest: step, is_finite: true, wait: Duration::ZERO }
}

fn shuffled<T>(chance: &mut Chance, mut all: Vec<T>) -> Vec<T> {
    for end in (1..all.len()).rev() {
        all.swap(end, chance.below(end as u64 + 1) as usize);
    }
    all
}

/// Asks until all slices are there.
fn reduced(client: &Client, reduce: ReduceOf, out: &mut [f32]) -> bool {
    let mut answer = None;
    let asks = ReduceOf { slice: None, wait: Duration::from_millis(50), ..reduce };
    until("the sum", || {
        answer = client.reduce(asks, &[], Some(out)).unwrap();
        answer.is_some()
    });
    answer.unwrap()
}

#[test]
fn slices_of_any_client_in_any_order_are_learned_as_one_push_of_all() {
    for seed in 0..3 {
        let (cluster, union) = (Cluster::start(2, Limits::default()), Cluster::start(2, Limits::default()));
        let (proxies, mut chance) = (Proxy::of_all(&cluster, seed << 20), Chance(seed));
        let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address.clone()).collect();
        let limits = ClientLimits { push_block_keys: 40, ..client_limits() };
        let open_one =
            |client| open(ClientSettings { limits, seed, ..client_settings(addresses.clone(), client) });
        let (clients, one): (Vec<Client>, _) = ((1..5).map(open_one).collect(), union.client(9));
        let mut all_keys = [vec![], vec![]];
        for step in 1..9 {
            let grads: Vec<Grads> =
                (0..2 * SLICES).map(|at| Grads::random(&mut chance, at / SLICES)).collect();
            let pushed = [Mutex::new(Pushed::default()), Mutex::new(Pushed::default())];
            let order = shuffled(&mut chance, (0..2 * SLICES).collect());
            std::thread::scope(|scope| {
                for (client, tasks) in clients.iter().zip(order.chunks(3)) {
                    let (grads, pushed) = (&grads, &pushed);
                    scope.spawn(move || {
                        for &at in tasks {
                            let (table, slice) = (at / SLICES, at % SLICES);
                            let push = grads[usize::from(at)].push(table);
                            let one = client.push_part(part(step, slice), push).unwrap();
                            let mut all = pushed[usize::from(table)].lock().unwrap();
                            all.learned += one.learned;
                            all.created += one.created;
                            all.waiting += one.waiting;
                        }
                    });
                }
            });
            for table in 0..2u16 {
                let mut joined = Grads::default();
                let slices = grads[usize::from(table * SLICES)..].iter().take(SLICES.into());
                slices.for_each(|slice| joined.append(slice, DIMS[usize::from(table)]));
                if table == 1 {
                    joined.admit.clear();
                }
                let expected = one.push(joined.push(table)).unwrap();
                assert_eq!(*pushed[usize::from(table)].lock().unwrap(), expected, "table {table}");
                all_keys[usize::from(table)].extend(joined.keys);
            }
        }
        proxies.iter().for_each(Proxy::calm);
        for (table, keys) in (0..2).zip(&all_keys) {
            let rows = [&clients[0], &one].map(|client| {
                let mut rows = vec![0.0; keys.len() * DIMS[usize::from(table)]];
                client.pull(table, keys, PullAt::Newest, false, &mut rows).unwrap();
                bits(&rows)
            });
            assert_eq!(rows[0], rows[1]);
        }
        let retries: u64 =
            clients.iter().flat_map(|client| client.stats().shards).map(|shard| shard.part.retries).sum();
        assert!(retries > 0, "no connection was lost");
    }
}

#[test]
fn slices_that_two_clients_give_are_applied_once_when_they_come() {
    for seed in 0..3 {
        let (cluster, union) = (Cluster::start(2, Limits::default()), Cluster::start(2, Limits::default()));
        let (proxies, mut chance) = (Proxy::of_all(&cluster, seed << 20), Chance(seed));
        let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address.clone()).collect();
        let limits = ClientLimits { push_block_keys: 40, ..client_limits() };
        let open_one =
            |client| open(ClientSettings { limits, seed, ..client_settings(addresses.clone(), client) });
        let (clients, one): (Vec<Client>, _) = ((1..5).map(open_one).collect(), union.client(9));
        // No key is in two slices, so their order does not show.
        let keys: Vec<Vec<u64>> =
            (0..u64::from(SLICES)).map(|slice| (slice * 1_000..slice * 1_000 + 200).collect()).collect();
        for step in 1..9 {
            let gradients: Vec<Vec<f32>> =
                keys.iter().map(|keys| chance.floats(keys.len() * DIMS[1])).collect();
            let learned = Mutex::new(0);
            let tasks: Vec<u16> = shuffled(&mut chance, (0..2 * SLICES).map(|at| at % SLICES).collect());
            std::thread::scope(|scope| {
                for (client, tasks) in clients.iter().zip(tasks.chunks(3)) {
                    let (keys, gradients, learned) = (&keys, &gradients, &learned);
                    scope.spawn(move || {
                        for &slice in tasks {
                            let (keys, gradients) =
                                (&keys[usize::from(slice)], &gradients[usize::from(slice)]);
                            let pushed =
                                client.push_part(at_once(step, slice), push_of(1, keys, gradients)).unwrap();
                            *learned.lock().unwrap() += pushed.learned;
                        }
                    });
                }
            });
            assert_eq!(learned.into_inner().unwrap(), keys.concat().len());
            one.push(push_of(1, &keys.concat(), &gradients.concat())).unwrap();
        }
        proxies.iter().for_each(Proxy::calm);
        let rows = [&clients[0], &one].map(|client| {
            let mut rows = vec![0.0; keys.concat().len() * DIMS[1]];
            client.pull(1, &keys.concat(), PullAt::Newest, true, &mut rows).unwrap();
            bits(&rows)
        });
        assert_eq!(rows[0], rows[1]);
    }
}

#[test]
fn a_slice_is_applied_when_it_comes_and_takes_hardly_any_room() {
    let limits = Limits { frame_bytes_max: 100 << 10, in_flight_bytes_max: 160 << 10, ..Limits::default() };
    let cluster = Cluster::start(1, limits);
    let (clients, keys) = ([1, 2].map(|client| cluster.client(client)), Chance(1).keys(800, u64::MAX));
    let gradients = vec![1.0; keys.len() * DIMS[1]];
    let push = push_of(1, &keys, &gradients);
    for step in 1..4 {
        for slice in 0..SLICES - 1 {
            assert_eq!(clients[0].push_part(at_once(step, slice), push).unwrap().learned, keys.len());
        }
        assert_eq!(clients[1].push_part(at_once(step, 0), push).unwrap().learned, 0);
        let infinite = PartOf { is_finite: false, ..at_once(step, SLICES - 1) };
        assert_eq!(clients[1].push_part(infinite, push).unwrap().learned, 0);
        assert_eq!(
            clients[0].push_part(at_once(step, SLICES - 1), push).unwrap().learned,
            0,
            "it is not finite"
        );
    }
    assert_eq!(clients[1].push_part(at_once(1, 2), push).unwrap().learned, 0, "its step is complete");
}

#[test]
fn what_could_not_be_applied_is_not_taken_for_done_when_it_comes_again() {
    let cluster = Cluster::start(1, Limits::default());
    let of = |slice| PartOf { may_repeat: true, slices: 2, ..part(1, slice) };
    let push = push_of(1, &[5], &[1e17; 16]);
    cluster.client(1).push_part(of(0), push).unwrap();
    for client in 2..4 {
        let error = cluster.client(client).push_part(of(1), push).unwrap_err();
        assert_eq!(error.trouble, Trouble::Refused(Code::BadRequest), "{error}");
        assert!(error.text.contains("the gradient of key 5 has 200000000"), "{error}");
    }
}

#[test]
fn a_step_with_a_slice_that_is_not_finite_changes_nothing_and_the_next_one_does() {
    let cluster = Cluster::start(2, Limits::default());
    let (client, keys) = (cluster.client(1), Chance(1).keys(500, u64::MAX));
    let gradients = vec![1.0; keys.len() * DIMS[1]];
    let push = push_of(1, &keys, &gradients);
    let nan = vec![f32::NAN; keys.len() * DIMS[1]];
    for (step, bad_slice) in [(1, SLICES), (2, 0), (3, SLICES - 1), (4, SLICES)] {
        let before = cluster.sets[0].tables()[1].size().parts.keys;
        let rows = lookup(&cluster.sets[0], 1, &keys, At::Newest);
        let mut learned = 0;
        for slice in 0..SLICES {
            let is_finite = slice != bad_slice;
            let push = if is_finite { push } else { PushOf { gradients: &nan, ..push } };
            learned += client.push_part(PartOf { is_finite, ..part(step, slice) }, push).unwrap().learned;
        }
        if bad_slice == SLICES {
            assert_eq!(learned, keys.len());
            continue;
        }
        assert_eq!((learned, cluster.sets[0].tables()[1].size().parts.keys), (0, before));
        assert_eq!(bits(&rows), bits(&lookup(&cluster.sets[0], 1, &keys, At::Newest)));
    }
}

#[test]
fn what_does_not_fit_an_open_step_is_refused_to_whoever_gives_it() {
    let cluster = Cluster::start(1, Limits::default());
    let mut others = 2..;
    let mut refused = |part: PartOf, push: PushOf<'_>| {
        let error = cluster.client(others.next().unwrap()).push_part(part, push).unwrap_err();
        assert_eq!(error.trouble, Trouble::Refused(Code::BadRequest), "{error}");
        error.text
    };
    let (client, push) = (cluster.client(1), push_of(1, &[5], &[1e17; 16]));
    client.push_part(part(3, 0), push).unwrap();
    assert!(refused(part(3, 0), push).contains("block 0 of slice 0 already"));
    assert!(refused(PartOf { slices: 9, ..part(3, 1) }, push).contains("step 3 has 5 slices, the request 9"));
    assert!(refused(part(3, 1), PushOf { now_ms: 1, ..push }).contains("the request a table time of 1 ms"));
    assert!(refused(part(3, 1), push_of(1, &[5], &[f32::NAN; 16])).contains("has NaN"));
    for slice in 1..SLICES - 1 {
        client.push_part(part(3, slice), push).unwrap();
    }
    // Each slice is within the limit of a gradient, their sum is not.
    let initial = lookup(&cluster.sets[0], 1, &[5], At::Newest);
    assert!(refused(part(3, SLICES - 1), push).contains("the gradient of key 5 has 500000000"));
    assert_eq!(initial, lookup(&cluster.sets[0], 1, &[5], At::Newest));
    assert!(refused(part(3, 0), push).contains("step 3 comes after step 3"));
    let error = client.push_part(part(4, SLICES), push).unwrap_err();
    assert!(error.trouble == Trouble::Settings && error.text.contains("slice 5 of 5"), "{error}");
    let error = client.reduce(ReduceOf { slices: 0, ..sum(1, None) }, &[], Some(&mut [])).unwrap_err();
    assert!(error.trouble == Trouble::Settings && error.text.contains("slice 0 of 0"), "{error}");
}

#[test]
fn no_more_is_held_than_may_and_an_epoch_takes_what_it_holds_with_it() {
    let limits = Limits { frame_bytes_max: 100 << 10, in_flight_bytes_max: 160 << 10, ..Limits::default() };
    let cluster = Cluster::start(1, limits);
    let (small, keys) = (push_of(1, &[5], &[1.0; 16]), Chance(1).keys(800, u64::MAX));
    let gradients = vec![1.0; keys.len() * DIMS[1]];
    let large = push_of(1, &keys, &gradients);
    for recovery in 0..3 {
        let (epoch, mut others) = (Epoch { run: 1, recovery }, 1..);
        let mut given = |part: PartOf, push: PushOf<'_>| {
            let settings = client_settings(cluster.addresses(), others.next().unwrap());
            let client = Client::open(settings).unwrap();
            client.set_epoch(epoch).unwrap();
            client.push_part(part, push).map(|pushed| pushed.learned).map_err(|error| error.trouble)
        };
        (1..5).for_each(|step| assert_eq!(given(part(step, 1), small), Ok(0)));
        assert_eq!(given(part(5, 1), small), Err(Trouble::Refused(Code::TooMany)));
        assert_eq!((given(part(1, 2), large), given(part(1, 3), large)), (Ok(0), Ok(0)));
        assert_eq!(given(part(1, 4), large), Err(Trouble::Refused(Code::Full)));
        let client = Client::open(client_settings(cluster.addresses(), 77)).unwrap();
        client.set_epoch(epoch).unwrap();
        let mut out = vec![0.0; 20_000];
        let full = client.reduce(sum(1, Some(0)), &out, None).unwrap_err();
        assert_eq!(full.trouble, Trouble::Refused(Code::Full));
        let of = |slice| ReduceOf { slices: 2, ..sum(1, slice) };
        assert_eq!(client.reduce(of(Some(1)), &[2.0], None).unwrap(), None);
        assert_eq!(client.reduce(of(Some(0)), &[1.0], Some(&mut out[..1])).unwrap(), Some(true));
        assert_eq!(out[0], 3.0);
        let next = Epoch { run: 1, recovery: recovery + 1 };
        cluster.servers[0].install(cluster.sets[0].clone(), next).unwrap();
    }
    assert_eq!(cluster.sets[0].tables()[1].size().parts.keys, 0);
}

#[test]
fn dense_sums_have_the_same_bits_whoever_gives_the_slices_and_whenever() {
    for seed in 0..3 {
        let cluster = Cluster::start(2, Limits::default());
        let (proxies, mut chance) = (Proxy::of_all(&cluster, seed << 20), Chance(seed));
        let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address.clone()).collect();
        let open_one = |client| open(ClientSettings { seed, ..client_settings(addresses.clone(), client) });
        let clients: Vec<Client> = (1..5).map(open_one).collect();
        for step in 1..13 {
            let length = [0, 1, 2, 1_001][chance.below(4) as usize];
            let is_finite = chance.below(4) > 0;
            let slices: Vec<Vec<f32>> = (0..SLICES).map(|_| chance.floats(length)).collect();
            let mut expected = slices[0].clone();
            for slice in &slices[1..] {
                expected.iter_mut().zip(slice).for_each(|(sum, value)| *sum += value);
            }
            let order = shuffled(&mut chance, (0..SLICES).collect());
            std::thread::scope(|scope| {
                for (at, client) in clients.iter().enumerate() {
                    let tasks: Vec<u16> = order.iter().copied().skip(at).step_by(clients.len()).collect();
                    let (slices, expected) = (&slices, &expected);
                    scope.spawn(move || {
                        for slice in tasks {
                            let reduce =
                                ReduceOf { is_finite: is_finite || slice > 0, ..sum(step, Some(slice)) };
                            client.reduce(reduce, &slices[usize::from(slice)], None).unwrap();
                        }
                        let mut out = vec![f32::NAN; expected.len()];
                        assert_eq!(reduced(client, sum(step, None), &mut out), is_finite);
                        assert!(!is_finite || bits(&out) == bits(expected));
                    });
                }
            });
        }
        let retries: u64 =
            clients.iter().flat_map(|client| client.stats().shards).map(|shard| shard.reduce.retries).sum();
        assert!(retries > 0, "no connection was lost");
    }
}

#[test]
fn a_sum_that_is_waited_for_comes_with_its_last_slice_and_other_requests_go_first() {
    let cluster = Cluster::start(1, Limits::default());
    let (server, clients) = (&cluster.servers[0], [cluster.client(1), cluster.client(2)]);
    assert_eq!(server.clients(), [1, 2]);
    let wait = Duration::from_secs(10);
    let is_waiting = || clients[0].stats().shards[0].in_flight == 1;
    std::thread::scope(|scope| {
        let of = |step, slice| ReduceOf { slices: 2, wait, ..sum(step, slice) };
        let give = |reduce: ReduceOf| {
            let mut out = [0.0];
            let answer = clients[0].reduce(reduce, &[1.0], Some(&mut out));
            answer.map(|answer| (answer, out[0]))
        };
        let waits = scope.spawn(move || give(of(1, Some(0))));
        until("the wait", is_waiting);
        clients[0].pull(1, &[1], PullAt::Newest, false, &mut [0.0; 16]).unwrap();
        assert_eq!(clients[1].reduce(of(1, Some(1)), &[2.0], None).unwrap(), Some(true));
        assert_eq!(waits.join().unwrap().unwrap(), (Some(true), 3.0));

        let waits = scope.spawn(move || give(of(2, Some(0))));
        until("the wait", is_waiting);
        // The slice is known once a question of the other client tells so, or else that client is the first.
        let other = ReduceOf { digest: 99, ..of(2, Some(1)) };
        let mut outcomes = vec![];
        until("weights that differ", || {
            outcomes.push(clients[1].reduce(ReduceOf { wait: Duration::ZERO, ..other }, &[2.0], None));
            outcomes.last().unwrap().is_err()
        });
        for error in [outcomes.pop().unwrap().unwrap_err(), waits.join().unwrap().unwrap_err()] {
            assert_eq!(error.trouble, Trouble::Refused(Code::WeightsDiffer), "{error}");
        }

        let waits = scope.spawn(move || give(of(3, None)));
        until("the wait", is_waiting);
        server.uninstall();
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.trouble, Trouble::NotReady, "{error}");
    });
    let verbs = [Verb::Reduce, Verb::Part].map(|verb| server.stats().verb(verb).requests);
    assert!(verbs[0] >= 5 && verbs[1] == 0, "{verbs:?}");
    server.install(cluster.sets[0].clone(), NEXT).unwrap();
    clients[0].set_epoch(NEXT).unwrap();
    let mut out = [0.0];
    let one = ReduceOf { slices: 1, ..sum(1, Some(0)) };
    assert_eq!((clients[0].reduce(one, &[4.0], Some(&mut out)).unwrap(), out[0]), (Some(true), 4.0));
}

#[test]
fn whoever_only_reads_gives_no_slice() {
    let cluster = Cluster::start(1, Limits::default());
    let mut peer = Peer::connect(&cluster.addresses()[0]);
    peer.say(Kind::Hello, 0, &HelloAsk { reads_only: true, ..hello(None) }.to_payload());
    assert_eq!(peer.next().unwrap().header.kind, Kind::Hello);
    for kind in [Kind::PushPart, Kind::Reduce] {
        peer.say(kind, 1, &[]);
        let (code, text) = peer.refusal();
        assert!(code == Code::ReadsOnly && text.contains(&format!("{kind:?}")), "{text}");
    }
}
