//! Epochs: nothing of an older epoch is applied, and orders of the embedding process start new ones.

use std::sync::Arc;
use std::time::Duration;

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::At;

const NEXT: Epoch = Epoch { run: 1, recovery: 1 };

#[test]
fn a_push_of_an_older_epoch_never_lands() {
    let cluster = Cluster::start(1, Limits::default());
    let (server, address) = (&cluster.servers[0], &cluster.addresses()[0]);
    let initial = lookup(&cluster.sets[0], 1, &[5], At::Newest);
    let mut old = Peer::hello(address, Some(FIRST));
    let mut silent = Peer::hello(address, None);
    server.install(cluster.sets[0].clone(), NEXT).unwrap();
    assert_eq!(old.next(), None, "its connection is closed");
    silent.say(Kind::Push, 1, &push_payload(FIRST, 0, &[5]));
    let text = "the request belongs to epoch (1, 0), the shard is at (1, 1)".to_owned();
    assert_eq!(silent.refusal(), (Code::StaleEpoch, text.clone()));
    silent.say(Kind::Pull, 2, &pull_payload(FIRST, 1, &[5]));
    assert_eq!(silent.refusal(), (Code::StaleEpoch, text));
    let later = Epoch { run: 2, recovery: 0 };
    silent.say(Kind::Push, 3, &push_payload(later, 0, &[5]));
    assert_eq!(silent.refusal().0, Code::StaleEpoch);
    assert_eq!(initial, lookup(&cluster.sets[0], 1, &[5], At::Newest));
    silent.say(Kind::Push, 4, &push_payload(NEXT, 0, &[5]));
    assert_eq!(silent.next().unwrap().header.kind, Kind::Push);
    let mut late = Peer::connect(address);
    late.say(Kind::Hello, 0, &hello(Some(FIRST)).to_payload());
    assert_eq!(late.refusal().0, Code::StaleEpoch);
    assert_eq!(late.next(), None);
}

#[test]
fn epochs_only_grow() {
    let cluster = Cluster::start(1, Limits::default());
    let error = cluster.servers[0].install(tables(), FIRST).unwrap_err();
    assert!(error.text.contains("epoch (1, 0) cannot follow (1, 0)"), "{error}");
    cluster.servers[0].uninstall();
    assert!(cluster.servers[0].install(tables(), FIRST).is_err());
    cluster.servers[0].install(tables(), Epoch { run: 2, recovery: 0 }).unwrap();
    assert!(cluster.servers[0].install(tables(), Epoch { run: 1, recovery: 9 }).is_err());
}

#[test]
fn a_client_hears_at_once_that_its_epoch_is_over_and_goes_on_in_the_next() {
    let cluster = Cluster::start(2, Limits::default());
    let client = cluster.client(1);
    let keys = Chance(1).keys(100, u64::MAX);
    let gradients = vec![1.0; 1600];
    let mut created = 100;
    // Repeated, because the client may be at any point of its new hello when the epoch is set.
    for recovery in 1..25 {
        for _ in 0..3 {
            let pushed = client.push(push_of(1, &keys, &gradients)).unwrap();
            assert_eq!((pushed.learned, pushed.created), (100, std::mem::take(&mut created)));
        }
        let next = Epoch { run: 1, recovery };
        for (server, set) in cluster.servers.iter().zip(&cluster.sets) {
            server.install(set.clone(), next).unwrap();
        }
        let error = client.push(push_of(1, &keys, &gradients)).unwrap_err();
        assert_eq!(error.trouble, Trouble::StaleEpoch, "{error}");
        let error = client.pull(1, &keys, PullAt::Newest, false, &mut [0.0; 1600]).unwrap_err();
        assert_eq!(error.trouble, Trouble::StaleEpoch, "{error}");
        client.set_epoch(next).unwrap();
        assert_eq!(client.epoch(), Some(next));
    }
    client.push(push_of(1, &keys, &gradients)).unwrap();
    assert!(client.set_epoch(FIRST).unwrap_err().text.contains("epochs only grow"));
    let last = Some(Epoch { run: 1, recovery: 24 });
    until("the epoch of a new hello", || client.shards().iter().all(|shard| shard.epoch == last));
}

#[test]
fn a_call_that_waits_fails_when_its_epoch_ends() {
    let cluster = Cluster::start(1, Limits::default());
    let client = cluster.client(1);
    cluster.servers[0].stop(Duration::ZERO);
    std::thread::scope(|scope| {
        let waiting_push = scope.spawn(|| client.push(push_of(1, &[1], &[0.0; 16])).unwrap_err());
        until("the push", || client.stats().shards[0].in_flight == 1);
        client.set_epoch(NEXT).unwrap();
        assert_eq!(waiting_push.join().unwrap().trouble, Trouble::StaleEpoch);
    });
}

#[test]
fn without_tables_a_shard_is_not_ready_and_says_so_at_once() {
    let server = Server::start(server_settings("127.0.0.1:0"), shard(0, 1)).unwrap();
    let client = Client::open(client_settings(server.addresses(), 1)).unwrap();
    assert_eq!((client.epoch(), client.shards()[0].epoch), (None, None));
    let pull = |client: &Client| {
        client.pull(1, &[1], PullAt::Newest, false, &mut [0.0; 16]).map_err(|error| error.trouble)
    };
    assert_eq!(pull(&client), Err(Trouble::StaleEpoch));
    client.set_epoch(FIRST).unwrap();
    assert_eq!(pull(&client), Err(Trouble::NotReady));
    server.install(tables(), FIRST).unwrap();
    assert_eq!(pull(&client), Ok(()));
    server.uninstall();
    assert_eq!(pull(&client), Err(Trouble::NotReady));
}

#[test]
fn tables_leave_though_a_peer_does_not_take_its_rows() {
    let cluster = Cluster::start(1, Limits { write_wait_ms_max: 600_000, ..Limits::default() });
    let (server, set) = (&cluster.servers[0], &cluster.sets[0]);
    let mut stuck = Peer::hello(&cluster.addresses()[0], None);
    set.seal(1).unwrap();
    let mut payload = Vec::new();
    let keys: Vec<u64> = (0..400_000).collect();
    PullAsk { epoch: FIRST, table: 1, encoding: Encoding::F32, version: Some(1), keys: keys.into() }
        .append(&mut payload);
    stuck.say(Kind::Pull, 1, &payload);
    assert_eq!(stuck.next().unwrap().header.flags, REPLY | MORE);
    assert!(set.discard(1).is_err(), "the pull holds the version");
    server.uninstall();
    assert_eq!(Arc::strong_count(set), 1);
    until("the pin's end", || set.discard(1).is_ok());
    server.install(set.clone(), NEXT).unwrap();
    cluster.client_in(NEXT).push(push_of(1, &[1], &[0.0; 16])).unwrap();
}

impl Cluster {
    fn client_in(&self, epoch: Epoch) -> Client {
        let client = Client::open(client_settings(self.addresses(), 77)).unwrap();
        client.set_epoch(epoch).unwrap();
        client
    }
}

#[test]
fn an_order_that_installs_an_epoch_is_answered() {
    let cluster = Cluster::start(3, Limits::default());
    let client = cluster.client(1);
    client.push(push_of(1, &[1], &[0.0; 16])).unwrap();
    client.set_epoch(NEXT).unwrap();
    std::thread::scope(|scope| {
        for (server, set) in cluster.servers.iter().zip(&cluster.sets) {
            scope.spawn(move || {
                let order = server.next_order(SOON).unwrap();
                assert_eq!(order.epoch, Some(NEXT));
                server.uninstall();
                server.install(set.clone(), NEXT).unwrap();
                assert!(server.answer(order.id, Ok([&order.body[..], b"!"].concat())));
            });
        }
        let bodies: Vec<Vec<u8>> = (0..3).map(|at| vec![b'0' + at]).collect();
        let answers: Vec<Vec<u8>> = client.order_all(&bodies, SOON).into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [b"0!", b"1!", b"2!"]);
    });
    client.push(push_of(1, &[1], &[0.0; 16])).unwrap();
    assert_eq!(client.stats().shards.iter().map(|shard| shard.reconnects).sum::<u64>(), 0);
}

#[test]
fn orders_are_answered_in_any_order_while_rows_are_pulled() {
    let cluster = Cluster::start(1, Limits::default());
    let (server, client) = (&cluster.servers[0], cluster.client(1));
    std::thread::scope(|scope| {
        let ask = |body: &'static [u8]| {
            scope.spawn({
                let client = &client;
                move || client.order(0, body, SOON)
            })
        };
        let (first, second, bad) = (ask(b"1"), ask(b"2"), ask(b"x"));
        let mut orders: Vec<Order> = (0..3).map(|_| server.next_order(SOON).unwrap()).collect();
        orders.sort_by_key(|order| order.body.clone());
        assert_eq!(server.stats().orders, 3);
        client.push(push_of(1, &[1], &[0.0; 16])).unwrap();
        let refusal = Refusal::new(Code::Full, "no room on the disk");
        assert!(server.answer(orders[2].id, Err(refusal)));
        assert_eq!(bad.join().unwrap().unwrap_err().trouble, Trouble::Refused(Code::Full));
        assert!(
            server.answer(orders[1].id, Ok(b"b".to_vec())) && server.answer(orders[0].id, Ok(b"a".to_vec()))
        );
        assert_eq!(
            (first.join().unwrap().unwrap(), second.join().unwrap().unwrap()),
            (b"a".to_vec(), b"b".to_vec())
        );
        assert!(!server.answer(orders[0].id, Ok(vec![])), "it is already answered");
    });
    until("three counts", || server.stats().verb(Verb::Order).requests == 3);
    assert_eq!(server.next_order(Duration::ZERO), None);
}

#[test]
fn orders_have_bounds_and_go_with_whoever_asked() {
    let cluster = Cluster::start(1, Limits { orders_max: 2, ..Limits::default() });
    let (server, client) = (&cluster.servers[0], cluster.client(1));
    let mut peer = Peer::hello(&cluster.addresses()[0], None);
    let no_epoch = [0; 16];
    peer.say(Kind::Order, 1, &no_epoch);
    let order = server.next_order(SOON).unwrap();
    peer.say(Kind::Order, 2, &no_epoch);
    until("two orders", || server.stats().orders == 2);
    let error = client.order(0, b"", SOON).unwrap_err();
    assert_eq!((error.trouble, server.stats().orders_max), (Trouble::Refused(Code::Busy), 2));
    drop(peer);
    until("the peer's end", || server.stats().orders == 0);
    assert!(!server.answer(order.id, Ok(vec![])), "the sender is gone");
    assert_eq!(server.next_order(Duration::ZERO), None, "the order was dropped with its sender");

    let error = client.order(0, b"", Duration::from_millis(500)).unwrap_err();
    assert!(
        error.trouble == Trouble::Unreachable && error.text.contains("not answered within 500 ms"),
        "{error}"
    );
    let late = server.next_order(SOON).unwrap();
    server.answer(late.id, Ok(vec![]));
    std::thread::scope(|scope| {
        let order_error = scope.spawn(|| client.order(0, b"", SOON).unwrap_err());
        server.next_order(SOON).unwrap();
        server.stop(Duration::ZERO);
        assert_eq!(order_error.join().unwrap().trouble, Trouble::Lost);
    });
}
