//! Pushes through a network that drops, truncates, repeats and delays frames: each push is applied once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::At;

/// A proxy of one shard whose seeded failures imitate a bad network.
struct Proxy {
    address: String,
    is_over: Arc<AtomicBool>,
    /// How many of 1,000 frames are disturbed.
    disturbed_per_1000: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    fn start(to: String, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_over, disturbed_per_1000) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(150)));
        let (is_stopped, frames_disturbed) = (is_over.clone(), disturbed_per_1000.clone());
        let thread = std::thread::spawn(move || {
            let mut pumps = Vec::new();
            for (at, from) in listener.incoming().enumerate() {
                if is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(&to)) else { continue };
                for (direction, (from, to)) in [(&from, &to), (&to, &from)].into_iter().enumerate() {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let chance = Chance(seed ^ (2 * at + direction) as u64);
                    let frames_disturbed = frames_disturbed.clone();
                    pumps.push(std::thread::spawn(move || {
                        let _ = pump(&from, &to, chance, &frames_disturbed);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    }));
                }
            }
            pumps.into_iter().for_each(|pump| pump.join().unwrap());
        });
        Self { address, is_over, disturbed_per_1000, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Forwards frames in one direction, until the connection fails or is dropped on purpose.
fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut chance: Chance,
    disturbed_per_1000: &AtomicU64,
) -> std::io::Result<()> {
    loop {
        let mut frame = vec![0; HEADER_BYTES];
        from.read_exact(&mut frame)?;
        let payload_bytes = u32::from_le_bytes(frame[4..8].try_into().unwrap()) as usize;
        frame.resize(HEADER_BYTES + payload_bytes + 4, 0);
        from.read_exact(&mut frame[HEADER_BYTES..])?;
        if chance.below(1000) >= disturbed_per_1000.load(Ordering::SeqCst) {
            to.write_all(&frame)?;
            continue;
        }
        match chance.below(5) {
            0 => return Ok(()),
            1 => {
                let end = chance.below(frame.len() as u64) as usize;
                return to.write_all(&frame[..end]);
            }
            2 => {
                to.write_all(&frame)?;
                return Ok(());
            }
            3 => {
                to.write_all(&frame)?;
                to.write_all(&frame)?;
            }
            _ => {
                std::thread::sleep(Duration::from_micros(chance.below(2_000)));
                to.write_all(&frame)?;
            }
        }
    }
}

#[test]
fn each_push_is_learned_once_whatever_the_network_does() {
    let (mut duplicates, mut retries) = (0, 0);
    for seed in 0..3 {
        let cluster = Cluster::start(2, Limits::default());
        let proxies: Vec<Proxy> = cluster
            .addresses()
            .into_iter()
            .enumerate()
            .map(|(at, to)| Proxy::start(to, seed << 20 | (at as u64) << 40))
            .collect();
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
        proxies.iter().for_each(|proxy| proxy.disturbed_per_1000.store(0, Ordering::SeqCst));
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
