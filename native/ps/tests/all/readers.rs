//! Clients that only read: they use the shards' epoch, and never mix two epochs.

use std::sync::Arc;
use std::time::Duration;

use crate::rig::*;
use streamlearn_ps::*;

const NEXT: Epoch = Epoch { run: 1, recovery: 1 };

fn reader(addresses: Vec<String>, retry_wait_ms_max: u64) -> Client {
    let limits = ClientLimits { retry_wait_ms_max, ..client_limits() };
    Client::open(ClientSettings { role: Role::Reads, limits, ..client_settings(addresses, 77) }).unwrap()
}

fn pull(client: &Client) -> Result<Vec<f32>> {
    let mut out = vec![0.0; 1_000 * DIMS[1]];
    client.pull(1, &Chance(1).keys(1_000, u64::MAX), PullAt::Newest, false, &mut out).map(|()| out)
}

#[test]
fn a_reader_needs_no_epoch_and_follows_to_the_next() {
    let cluster = Cluster::start(3, Limits::default());
    let (trainer, reader) = (cluster.client(1), reader(cluster.addresses(), 120_000));
    let idle = self::reader(cluster.addresses(), 120_000);
    let keys = Chance(1).keys(1_000, u64::MAX);
    for recovery in 1..20 {
        trainer.push(push_of(1, &keys, &vec![1.0; 16_000])).unwrap();
        let expected = pull(&trainer).unwrap();
        assert_eq!(bits(&pull(&reader).unwrap()), bits(&expected));
        let fetched = reader.fetch(&[(1, &keys[..1])], PullAt::Newest).unwrap();
        assert_eq!(bits(fetched.tables()[0].rows()), bits(&expected[..16]));
        let next = Epoch { run: 1, recovery };
        for (server, set) in cluster.servers.iter().zip(&cluster.sets) {
            server.install(set.clone(), next).unwrap();
        }
        trainer.set_epoch(next).unwrap();
        assert_eq!(bits(&pull(&reader).unwrap()), bits(&expected));
    }
    // A reader that was idle meanwhile also works.
    pull(&idle).unwrap();
    assert_eq!(reader.epoch(), None);
}

#[test]
fn a_reader_changes_nothing() {
    let cluster = Cluster::start(1, Limits::default());
    let reader = reader(cluster.addresses(), 120_000);
    let error = reader.push(push_of(1, &[1], &[0.0; 16])).unwrap_err();
    assert_eq!(
        (error.trouble, error.text.as_str()),
        (Trouble::Settings, "this client only reads: it cannot push")
    );
    assert!(reader.set_epoch(NEXT).unwrap_err().text.contains("cannot set an epoch"));
    // The server also refuses changes by a client that declared that it only reads.
    let mut peer = Peer::connect(&cluster.addresses()[0]);
    peer.say(Kind::Hello, 0, &HelloAsk { reads_only: true, ..hello(None) }.to_payload());
    assert_eq!(peer.next().unwrap().header.kind, Kind::Hello);
    peer.say(Kind::Push, 1, &push_payload(FIRST, 0, &[5]));
    assert_eq!(peer.refusal().0, Code::ReadsOnly);
    peer.say(Kind::Pull, 2, &pull_payload(FIRST, 1, &[5]));
    assert_eq!(peer.next().unwrap().header.kind, Kind::Pull);
    peer.say(Kind::Order, 3, &[0; 16]);
    let order = cluster.servers[0].next_order(SOON).unwrap();
    assert!(order.reads_only, "the embedding process sees the flag");
    assert_eq!(cluster.servers[0].stats().clients, 0);
}

#[test]
fn while_shards_stand_at_two_epochs_nothing_is_read() {
    let cluster = Cluster::start(2, Limits::default());
    let reader = reader(cluster.addresses(), 120_000);
    let expected = pull(&reader).unwrap();
    let hasty = self::reader(cluster.addresses(), 2_000);
    pull(&hasty).unwrap();
    cluster.servers[0].install(cluster.sets[0].clone(), NEXT).unwrap();
    let error = pull(&hasty).unwrap_err();
    assert_eq!((error.trouble, error.shard.unwrap().0), (Trouble::NotReady, 1));
    assert!(error.text.contains("is at epoch (1, 0), another shard at (1, 1)"), "{}", error.text);
    std::thread::scope(|scope| {
        let waiting_pull = scope.spawn(|| pull(&reader).unwrap());
        until("the first shard's new hello", || reader.shards()[0].epoch == Some(NEXT));
        assert!(!waiting_pull.is_finished());
        cluster.servers[1].install(cluster.sets[1].clone(), NEXT).unwrap();
        assert_eq!(bits(&waiting_pull.join().unwrap()), bits(&expected));
    });
}

#[test]
fn a_reader_waits_for_tables_within_its_bound() {
    let server = Server::start(server_settings("127.0.0.1:0"), shard(0, 1)).unwrap();
    let (patient, hasty) = (reader(server.addresses(), 120_000), reader(server.addresses(), 2_000));
    let error = pull(&hasty).unwrap_err();
    assert_eq!((error.trouble, error.text.as_str()), (Trouble::NotReady, "it has no tables"));
    let set = tables();
    std::thread::scope(|scope| {
        let waiting_pull = scope.spawn(|| pull(&patient));
        server.install(set.clone(), FIRST).unwrap();
        waiting_pull.join().unwrap().unwrap();
    });
    pull(&hasty).unwrap();
    // A pull also waits while tables are replaced.
    server.uninstall();
    assert_eq!(pull(&hasty).unwrap_err().trouble, Trouble::NotReady);
    std::thread::scope(|scope| {
        let waiting_pull = scope.spawn(|| pull(&patient));
        until("the pull", || server.stats().refused(Code::NotReady) > 1);
        server.install(Arc::clone(&set), NEXT).unwrap();
        waiting_pull.join().unwrap().unwrap();
    });
}

#[test]
fn a_reader_finds_shards_again_that_start_again_even_in_an_older_epoch() {
    let folder = Folder::new("reader");
    let listen = format!("unix:{}", folder.0.join("shard.sock").display());
    let start = |shard, epoch| {
        let server = Server::start(server_settings(&listen), shard).unwrap();
        server.install(tables(), epoch).unwrap();
        server
    };
    let server = start(shard(0, 1), NEXT);
    let client = reader(server.addresses(), 120_000);
    pull(&client).unwrap();
    drop(server);
    let other = start(Shard { model: "other".to_owned(), ..shard(0, 1) }, NEXT);
    assert_eq!(pull(&client).unwrap_err().trouble, Trouble::Refused(Code::WrongModel));
    drop(other);
    let _server = start(shard(0, 1), FIRST);
    pull(&client).unwrap();
}

#[test]
fn who_only_asks_is_answered_by_the_shards_that_are_there() {
    let cluster = Cluster::start(2, Limits::default());
    cluster.servers[1].stop(Duration::ZERO);
    let settings = ClientSettings { role: Role::Asks, ..client_settings(cluster.addresses(), 1) };
    let client = Client::open(settings).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let order = cluster.servers[0].next_order(SOON).unwrap();
            assert!(order.reads_only && cluster.servers[0].answer(order.id, Ok(b"well".to_vec())));
        });
        let answers = client.order_all(&[vec![], vec![]], Duration::from_secs(3));
        assert_eq!(answers[0].as_ref().unwrap(), b"well");
        let error = answers[1].as_ref().unwrap_err();
        assert_eq!((error.trouble, error.shard.as_ref().unwrap().0), (Trouble::Unreachable, 1));
    });
    assert!(pull(&client).unwrap_err().text.contains("only queries"));
    assert!(client.push(push_of(1, &[1], &[0.0; 16])).is_err());
}
