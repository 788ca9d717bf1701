//! Pushes through a network that drops, truncates, repeats and delays frames: each push is applied once.

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::At;

#[test]
fn each_push_is_learned_once_whatever_the_network_does() {
    let (mut duplicates, mut retries) = (0, 0);
    for seed in 0..3 {
        let cluster = Cluster::start(2, Limits::default());
        let proxies = Proxy::of_all(&cluster, seed << 20);
        let addresses = proxies.iter().map(|proxy| proxy.address.clone()).collect();
        let limits = ClientLimits { push_block_keys: 40, pull_block_keys: 20_000, ..client_limits() };
        let client = open(ClientSettings { limits, seed, ..client_settings(addresses, 1) });
        let (set, mut chance) = (tables(), Chance(seed));
        for round in 0..20 {
            let keys = chance.keys(600, 500);
            let gradients = chance.floats(600 * DIMS[1]);
            let push = push_of(1, &keys, &gradients);
            let pushed = client.push(push).unwrap();
            assert_eq!(pushed, set.tables()[1].push(local(&push), 1).unwrap());
            // Some pulls have several slices; the first ones arrive again when the connection is lost in
            // between.
            let keys = if round % 2 == 0 { keys } else { chance.keys(25_000, u64::MAX) };
            let mut rows = vec![0.0; keys.len() * DIMS[1]];
            client.pull(1, &keys, PullAt::Newest, false, &mut rows).unwrap();
            assert_eq!(bits(&rows), bits(&lookup(&set, 1, &keys, At::Newest)));
        }
        proxies.iter().for_each(Proxy::calm);
        duplicates += cluster.servers.iter().map(|server| server.stats().duplicates).sum::<u64>();
        retries += client.stats().shards.iter().map(|shard| shard.push.retries).sum::<u64>();
        client.close();
    }
    assert!(duplicates > 20 && retries > 20, "too few faults: {duplicates} duplicates, {retries} retries");
}

#[test]
fn a_sequence_that_comes_again_is_answered_again_by_any_connection() {
    let limits = Limits { window_max: 3, ..Limits::default() };
    let cluster = Cluster::start(1, limits);
    let address = &cluster.addresses()[0];
    let mut first_peer = Peer::hello(address, None);
    let mut second_peer = Peer::hello(address, None);
    let answer = |peer: &mut Peer, sequence, keys: &[u64]| {
        peer.say(Kind::Push, 50 + sequence, &push_payload(FIRST, sequence, keys));
        let frame = peer.next().unwrap();
        assert_eq!((frame.header.kind, frame.header.request), (Kind::Push, 50 + sequence));
        PushReply::decode(&frame.payload).unwrap().0.created
    };
    assert_eq!(answer(&mut first_peer, 1, &[1, 2]), 2);
    assert_eq!(answer(&mut second_peer, 1, &[9, 8, 7]), 2);
    assert_eq!(answer(&mut second_peer, 0, &[3]), 1);
    let rows = lookup(&cluster.sets[0], 1, &[1], At::Newest);
    for _ in 0..3 {
        assert_eq!((answer(&mut first_peer, 0, &[1]), answer(&mut first_peer, 1, &[1])), (1, 2));
    }
    assert_eq!(rows, lookup(&cluster.sets[0], 1, &[1], At::Newest));
    assert_eq!(cluster.servers[0].stats().duplicates, 7);
    first_peer.say(Kind::Push, 1, &push_payload(FIRST, 5, &[1]));
    assert_eq!(
        first_peer.refusal(),
        (Code::TooMany, "sequence 5 is not within 3 of 2, the first missing one".to_owned())
    );
    (2..5)
        .for_each(|sequence| assert_eq!(answer(&mut first_peer, sequence, &[4]), usize::from(sequence == 2)));
    first_peer.say(Kind::Push, 1, &push_payload(FIRST, 1, &[1]));
    assert_eq!(first_peer.refusal().0, Code::BadRequest);
    assert_eq!(rows, lookup(&cluster.sets[0], 1, &[1], At::Newest));
}

#[test]
fn what_a_client_sent_before_it_died_is_learned_whole_and_noted() {
    let cluster = Cluster::start(1, Limits::default());
    let (address, keys) = (&cluster.addresses()[0], Chance(1).keys(60_000, u64::MAX));
    let mut dead = Peer::hello(address, None);
    dead.say(Kind::Push, 1, &push_payload(FIRST, 0, &keys));
    drop(dead);
    until("the push", || {
        cluster.servers[0].stats().verb(Verb::Push).requests + lookup_learned(&cluster, &keys) > 0
    });
    let mut second_peer = Peer::hello(address, None);
    second_peer.say(Kind::Push, 1, &push_payload(FIRST, 0, &keys));
    let pushed = PushReply::decode(&second_peer.next().unwrap().payload).unwrap().0;
    assert_eq!((pushed.created, cluster.servers[0].stats().duplicates), (60_000, 1));
    assert_eq!(cluster.sets[0].tables()[1].size().parts.keys, 60_000);
}

fn lookup_learned(cluster: &Cluster, keys: &[u64]) -> u64 {
    let (last, mut initial) = (*keys.last().unwrap(), vec![0.0; DIMS[1]]);
    settings()[1].initial.fill(last, &mut initial);
    u64::from(lookup(&cluster.sets[0], 1, &[last], At::Newest) != initial)
}

#[test]
fn no_more_clients_push_than_may() {
    let cluster = Cluster::start(1, Limits { clients_max: 1, ..Limits::default() });
    cluster.client(1).push(push_of(1, &[1], &[0.0; 16])).unwrap();
    let error = cluster.client(2).push(push_of(1, &[1], &[0.0; 16])).unwrap_err();
    assert_eq!(error.trouble, Trouble::Refused(Code::TooMany));
    let stats = cluster.servers[0].stats();
    assert_eq!((stats.clients, stats.clients_max, stats.refused(Code::TooMany)), (1, 1, 1));
}
