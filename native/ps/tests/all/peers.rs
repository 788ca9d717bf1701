//! Peers that are slow, silent, greedy or send garbage: each affects only itself.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::rig::*;
use streamlearn_ps::*;
use streamlearn_table::{PARTS, mix, part_of_hash};

/// Asserts that a shard still serves well-behaved clients.
fn assert_serves(cluster: &Cluster) {
    let client = cluster.client(u128::from(mix(cluster.servers[0].stats().accepted)));
    client.push(push_of(1, &[1, 2], &[0.5; 32])).unwrap();
    client.pull(1, &[1, 2, 3], PullAt::Newest, false, &mut [0.0; 48]).unwrap();
}

#[test]
fn whoever_is_not_meant_is_told_why_with_both_values() {
    let settings = ServerSettings {
        token: Some(Secret::new("right").unwrap().into()),
        ..server_settings("127.0.0.1:0")
    };
    let server = Server::start(settings, shard(0, 1)).unwrap();
    let refusal = |ask: HelloAsk<'_>| {
        let mut peer = Peer::connect(&server.addresses()[0]);
        peer.say(Kind::Hello, 0, &ask.to_payload());
        let refusal = peer.refusal();
        assert_eq!(peer.next(), None);
        refusal
    };
    let right = HelloAsk { token: b"right", ..hello(None) };
    let (code, text) = refusal(HelloAsk { token: b"wrong", ..right.clone() });
    assert_eq!((code, text.as_str()), (Code::Unauthorized, "the token does not match the shard's"));
    assert_eq!(refusal(HelloAsk { token: b"", model: "other", ..right.clone() }).0, Code::Unauthorized);
    let (code, text) = refusal(HelloAsk { model: "other", ..right.clone() });
    assert!(code == Code::WrongModel && text.contains("\"other\"") && text.contains("\"ctr\""), "{text}");
    let (code, text) = refusal(HelloAsk { fingerprint: [0xab; 32], ..right.clone() });
    assert!(
        code == Code::WrongTables && text.contains(&"ab".repeat(32)) && text.contains(&"07".repeat(32)),
        "{text}"
    );
    let (notes, left_out) = server.refused(SOON);
    assert_eq!((notes.len(), left_out), (4, 0));
    assert!(notes.iter().all(|note| note.peer.starts_with("127.0.0.1:") && !note.text.contains("right")));
    assert_eq!(notes[0].text, "unauthorized: the token does not match the shard's");
    let mut peer = Peer::connect(&server.addresses()[0]);
    let mut payload = right.to_payload();
    payload[0] = 9;
    peer.say(Kind::Hello, 0, &payload);
    let (code, text) = peer.refusal();
    assert_eq!((code, text.as_str()), (Code::WrongProtocol, "the client uses protocol 9, the shard 3"));
    assert_eq!(server.stats().refused(Code::Unauthorized), 2);

    let client = |token: &str| {
        let token = Some(Secret::new(token).unwrap().into());
        Client::open(ClientSettings { token, ..client_settings(server.addresses(), 1) })
    };
    client("right").unwrap();
    let error = client("wrong").err().unwrap();
    assert_eq!(error.trouble, Trouble::Refused(Code::Unauthorized));
    assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
    let wrong = ClientSettings { model: "other".to_owned(), ..client_settings(server.addresses(), 1) };
    let token = Some(Secret::new("right").unwrap().into());
    let error = Client::open(ClientSettings { token, ..wrong }).err().unwrap();
    assert_eq!(error.trouble, Trouble::Refused(Code::WrongModel));
    let wrong = ClientSettings { fingerprint: [1; 32], ..client_settings(server.addresses(), 1) };
    let token = Some(Secret::new("right").unwrap().into());
    let error = Client::open(ClientSettings { token, ..wrong }).err().unwrap();
    assert_eq!((error.trouble, &error.detail[..]), (Trouble::Refused(Code::WrongTables), SPECIFICATION));
}

#[test]
fn a_server_that_others_can_reach_wants_a_token() {
    let settings = ServerSettings { listen: vec!["0.0.0.0:0".to_owned()], ..server_settings("127.0.0.1:0") };
    let error = Server::start(settings.clone(), shard(0, 1)).err().unwrap();
    assert!(error.trouble == Trouble::Io && error.text.contains("needs a token"), "{error}");
    let token = Some(Secret::new("right").unwrap().into());
    Server::start(ServerSettings { token, ..settings }, shard(0, 1)).unwrap();
    let wrong = [
        (ServerSettings { threads: 0, ..server_settings("127.0.0.1:0") }, shard(0, 1)),
        (ServerSettings { listen: vec![], ..server_settings("127.0.0.1:0") }, shard(0, 1)),
        (server_settings("127.0.0.1:0"), Shard { number: 1, ..shard(0, 1) }),
        (server_settings("127.0.0.1:0"), Shard { parts: 3..1025, ..shard(0, 1) }),
        (server_settings("127.0.0.1:0"), Shard { model: String::new(), ..shard(0, 1) }),
    ];
    for (settings, shard) in wrong {
        assert_eq!(Server::start(settings, shard).err().unwrap().trouble, Trouble::Settings);
    }
}

#[test]
fn keys_of_other_parts_are_refused() {
    let cluster = Cluster::start(2, Limits::default());
    let mut peer = Peer::hello(&cluster.addresses()[0], None);
    let key = (0..).find(|&key| part_of_hash(mix(key)) >= PARTS / 2).unwrap();
    peer.say(Kind::Pull, 1, &pull_payload(FIRST, 1, &[key]));
    let (code, text) = peer.refusal();
    assert!(code == Code::WrongPart && text.contains(&format!("key {key} is in part")), "{text}");
    peer.say(Kind::Push, 2, &push_payload(FIRST, 0, &[key]));
    assert_eq!(peer.refusal().0, Code::WrongPart);
    peer.say(Kind::Pull, 3, &pull_payload(FIRST, 2, &[]));
    assert_eq!(peer.refusal(), (Code::BadRequest, "table 2: there are 2".to_owned()));
    peer.say(Kind::Pull, 4, &pull_payload(FIRST, 1, &[]));
    let (head, rows) = (peer.next().unwrap().payload, 0);
    assert_eq!((SliceHead::decode(&head).unwrap().0.count, rows), (0, 0));
    peer.say(Kind::Ping, 5, b"");
    assert_eq!(peer.next().unwrap().header.request, 5);
}

#[test]
fn a_client_that_is_given_the_wrong_shards_says_so() {
    let cluster = Cluster::start(2, Limits::default());
    let mut addresses = cluster.addresses();
    addresses.reverse();
    let error = Client::open(client_settings(addresses, 1)).err().unwrap();
    assert!(error.text.contains("it is shard 1 of 2, expected 0 of 2"), "{error}");
    let error = Client::open(client_settings(cluster.addresses()[..1].to_vec(), 1)).err().unwrap();
    assert!(error.text.contains("expected 0 of 1"), "{error}");
    let settings = ClientSettings { dims: vec![3, 8], ..client_settings(cluster.addresses(), 1) };
    let error = Client::open(settings).err().unwrap();
    assert!(error.text.contains("[3, 16], expected [3, 8]"), "{error}");
    let hole = Shard { parts: 600..1024, ..shard(1, 2) };
    let server = Server::start(server_settings("127.0.0.1:0"), hole).unwrap();
    let addresses = vec![cluster.addresses()[0].clone(), server.addresses()[0].clone()];
    let error = Client::open(client_settings(addresses, 1)).err().unwrap();
    assert!(error.text.contains("parts [600, 1024), expected a range that starts at 512"), "{error}");
}

#[test]
fn nonsense_ends_its_connection_and_nothing_else() {
    let cluster = Cluster::start(1, Limits { hello_wait_ms_max: 20_000, ..Limits::default() });
    let address = &cluster.addresses()[0];
    let mut chance = Chance(7);
    for round in 0..60 {
        let mut peer = if round % 2 == 0 { Peer::connect(address) } else { Peer::hello(address, None) };
        let message = match round % 3 {
            0 => frame(Kind::Push, 1, &push_payload(FIRST, chance.next(), &[1, 2, 3])),
            1 => frame(Kind::Order, 1, &[9; 40]),
            _ => (0..chance.below(300)).map(|_| chance.next() as u8).collect(),
        };
        let mut bytes = message.clone();
        if let Some(at) = (!bytes.is_empty()).then(|| chance.below(bytes.len() as u64) as usize) {
            bytes[at] ^= 1 << chance.below(8);
        }
        let _ = peer.stream.write_all(&bytes[..bytes.len() - chance.below(bytes.len() as u64 + 1) as usize]);
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        let mut received = Vec::new();
        let _ = peer.stream.read_to_end(&mut received);
    }
    assert_serves(&cluster);
    until("the end of all connections", || cluster.servers[0].stats().connections == 0);
    assert_eq!(cluster.servers[0].stats().in_flight_bytes, 0);
}

#[test]
fn claims_beyond_the_limits_are_refused_before_and_after_hello() {
    let cluster = Cluster::start(1, Limits { frame_bytes_max: 10_000, ..Limits::default() });
    let address = &cluster.addresses()[0];
    for (mut peer, bytes_max) in [(Peer::connect(address), 4_096), (Peer::hello(address, None), 10_000)] {
        let header = Header { kind: Kind::Hello, flags: 0, request: 1, payload_bytes: bytes_max + 1 };
        peer.stream.write_all(&header.to_bytes()).unwrap();
        let text = format!("a payload of {} bytes: at most {bytes_max}", bytes_max + 1);
        assert_eq!(peer.refusal(), (Code::TooLarge, text));
        assert_eq!(peer.next(), None);
    }
    let mut second = Peer::hello(address, None);
    second.say(Kind::Hello, 1, &hello(None).to_payload());
    assert_eq!(second.refusal().0, Code::BadFrame);
    let mut reply = Peer::hello(address, None);
    let header = Header { kind: Kind::Ping, flags: REPLY, request: 1, payload_bytes: 0 };
    reply.stream.write_all(&[&header.to_bytes()[..], &[0; 4]].concat()).unwrap();
    assert_eq!(reply.refusal().0, Code::BadFrame);
    assert_serves(&cluster);
}

#[test]
fn peers_that_are_silent_or_slow_are_closed() {
    let limits = Limits {
        hello_wait_ms_max: 60_000,
        frame_wait_ms_max: 40,
        write_wait_ms_max: 40,
        ..Limits::default()
    };
    let cluster = Cluster::start(1, Limits { hello_wait_ms_max: 40, ..limits });
    assert_eq!(Peer::connect(&cluster.addresses()[0]).next(), None, "it never sends a hello");

    let cluster = Cluster::start(1, Limits { idle_ms_max: 2_000, ..limits });
    let address = &cluster.addresses()[0];
    assert_eq!(Peer::hello(address, None).next(), None, "it never sends a request");

    let cluster = Cluster::start(1, limits);
    let address = &cluster.addresses()[0];
    let mut half = Peer::hello(address, None);
    half.stream.write_all(&frame(Kind::Order, 1, &[0; 100])[..60]).unwrap();
    assert_eq!(half.next(), None, "its frame is never completed");
    let mut stuck = Peer::hello(address, None);
    let keys: Vec<u64> = (0..400_000).collect();
    stuck.say(Kind::Pull, 1, &pull_payload(FIRST, 1, &keys));
    until("the end of the peer that does not read", || cluster.servers[0].stats().connections == 0);
    assert_serves(&cluster);
}

#[test]
fn a_client_that_has_nothing_to_ask_stays() {
    let cluster = Cluster::start(1, Limits { idle_ms_max: 3_000, ..Limits::default() });
    let client = cluster.client(1);
    until("pings", || cluster.servers[0].stats().verb(Verb::Ping).requests > 3);
    client.push(push_of(1, &[1], &[0.0; 16])).unwrap();
    assert_eq!(client.stats().shards[0].reconnects, 0);
}

#[test]
fn one_connection_too_many_is_closed_and_comes_in_when_another_goes() {
    let cluster = Cluster::start(1, Limits { connections_max: 1, ..Limits::default() });
    let first = cluster.client(1);
    assert_eq!(Peer::connect(&cluster.addresses()[0]).refusal().0, Code::TooMany);
    let limits = ClientLimits { retry_wait_ms_max: 30, ..client_limits() };
    let error =
        Client::open(ClientSettings { limits, ..client_settings(cluster.addresses(), 2) }).err().unwrap();
    assert_eq!(error.trouble, Trouble::Unreachable);
    drop(first);
    assert_serves(&cluster);
}

#[test]
fn silent_connections_crowd_out_no_client() {
    const SILENT: usize = 2_000;
    let cluster = Cluster::start(1, Limits { hello_wait_ms_max: 10_000, ..Limits::default() });
    let (address, server) = (&cluster.addresses()[0], &cluster.servers[0]);
    let client = cluster.client(1);
    let pulls = || client.pull(1, &[1, 2, 3], PullAt::Newest, false, &mut [0.0; 48]).unwrap();
    pulls();
    let connections_max = Limits::default().connections_max;
    let mut silent = Vec::new();
    for number in 0..SILENT {
        silent.push(std::net::TcpStream::connect(address).unwrap());
        if number % 100 == 99 {
            pulls();
            let mut fresh = Peer::hello(address, None);
            fresh.say(Kind::Ping, 1, b"");
            assert_eq!(fresh.next().unwrap().header.request, 1);
            assert!(server.stats().connections <= connections_max);
        }
    }
    until("refusals of silent connections", || {
        server.stats().refused(Code::TooMany) as usize >= SILENT - connections_max
    });
    assert_eq!(client.stats().shards[0].reconnects, 0);
    let (notes, _) = server.refused(SOON);
    assert!(notes[0].text.contains("to make room for a new connection"), "{:?}", notes[0]);
    until("the end of connections without a hello", || server.stats().connections == 1);
    pulls();
}

#[test]
fn requests_wait_for_room_and_are_refused_when_none_comes() {
    let limits = Limits { frame_bytes_max: 1 << 20, in_flight_bytes_max: 1_200 << 10, ..Limits::default() };
    let cluster =
        Cluster::start(1, Limits { in_flight_wait_ms_max: 50, frame_wait_ms_max: 60_000, ..limits });
    let address = &cluster.addresses()[0];
    let mut greedy = Peer::hello(address, None);
    let claim = Header { kind: Kind::Order, flags: 0, request: 1, payload_bytes: 1 << 20 };
    greedy.stream.write_all(&claim.to_bytes()).unwrap();
    until("the claim", || cluster.servers[0].stats().in_flight_bytes > 1 << 20);
    assert_serves(&cluster);
    let mut second = Peer::hello(address, None);
    second.stream.write_all(&claim.to_bytes()).unwrap();
    assert_eq!(second.refusal().0, Code::Busy);
    drop(greedy);
    until("the released room", || cluster.servers[0].stats().in_flight_bytes == 0);
    assert_serves(&cluster);
}

#[test]
fn a_long_pull_lets_others_of_its_thread_go_first() {
    let settings = ServerSettings { threads: 1, ..server_settings("127.0.0.1:0") };
    let server = Server::start(settings, shard(0, 1)).unwrap();
    server.install(tables(), FIRST).unwrap();
    let address = &server.addresses()[0];
    let (mut long, mut short) = (Peer::hello(address, None), Peer::hello(address, None));
    let keys: Vec<u64> = (0..400_000).collect();
    long.say(Kind::Pull, 1, &pull_payload(FIRST, 1, &keys));
    assert_eq!(long.next().unwrap().header.flags, REPLY | MORE);
    short.say(Kind::Pull, 2, &pull_payload(FIRST, 1, &[1, 2]));
    assert_eq!(short.next().unwrap().header.flags, REPLY);
    until("the count of the short pull", || server.stats().verb(Verb::Pull).requests == 1);
    let mut rows = 4096;
    while rows < keys.len() {
        let frame = long.next().unwrap();
        let head = SliceHead::decode(&frame.payload).unwrap().0;
        assert_eq!((head.first as usize, frame.payload.len() <= 256 * 1024 + 16), (rows, true));
        rows += head.count as usize;
        assert_eq!(frame.header.flags & MORE != 0, rows < keys.len());
    }
}

#[test]
fn a_shard_that_falls_silent_fails_a_call_by_name_within_its_budget() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reply = HelloReply {
        number: 0,
        count: 1,
        parts: 0..1024,
        epoch: None,
        frame_bytes_max: 1 << 20,
        window_max: 1024,
        idle_ms_max: 60_000,
        dims: vec![],
    };
    // It answers hellos, and nothing else.
    let silent = std::thread::spawn(move || {
        let mut peers = Vec::new();
        for stream in listener.incoming() {
            let mut peer = Peer { stream: stream.unwrap(), intake: Intake::new(1 << 20) };
            let Some(_) = peer.next() else { return };
            let payload = reply.to_payload();
            let head =
                Header { kind: Kind::Hello, flags: REPLY, request: 0, payload_bytes: payload.len() as u32 };
            let mut bytes = frame(Kind::Hello, 0, &payload);
            bytes[..HEADER_BYTES].copy_from_slice(&head.to_bytes());
            peer.stream.write_all(&bytes).unwrap();
            peers.push(peer);
        }
    });
    let limits = ClientLimits { reply_wait_ms_max: 15, retry_wait_ms_max: 3_000, ..client_limits() };
    let client = open(ClientSettings { limits, ..client_settings(vec![address.clone()], 1) });
    let started = Instant::now();
    let error = client.push(push_of(1, &[1], &[0.0; 16])).unwrap_err();
    assert!(started.elapsed() >= Duration::from_secs(3));
    assert_eq!((error.trouble, error.shard), (Trouble::Unreachable, Some((0, address.clone()))));
    assert!(error.text.contains("within 3000 ms"), "{}", error.text);
    assert!(client.stats().shards[0].push.retries > 0 && client.stats().shards[0].in_flight == 0);
    assert_eq!(client.push(push_of(1, &[1], &[0.0; 16])).unwrap_err().trouble, Trouble::Unsure);
    client.close();
    assert_eq!(
        client.pull(1, &[1], PullAt::Newest, false, &mut [0.0; 16]).unwrap_err().trouble,
        Trouble::Closed
    );
    drop(std::net::TcpStream::connect(address).unwrap());
    silent.join().unwrap();
}
