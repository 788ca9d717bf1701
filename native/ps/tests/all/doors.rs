//! Endpoints: unix sockets, TLS, and how a server closes them.

use std::time::Duration;

use crate::rig::*;
use streamlearn_ps::*;

fn learns(client: &Client) {
    client.push(push_of(1, &[1, 2], &[0.5; 32])).unwrap();
    client.pull(1, &[1, 2, 3], PullAt::Newest, false, &mut [0.0; 48]).unwrap();
}

#[test]
fn a_unix_socket_is_as_good_and_goes_with_its_server() {
    let folder = Folder::new("unix");
    let path = folder.0.join("shard.sock");
    // A socket file left behind by a killed server.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = format!("unix:{}", path.display());
    let settings = ServerSettings {
        listen: vec![listen.clone(), "127.0.0.1:0".to_owned()],
        token: Some(Secret::new("right").unwrap().into()),
        ..server_settings("")
    };
    let server = Server::start(settings.clone(), shard(0, 1)).unwrap();
    server.install(tables(), FIRST).unwrap();
    assert_eq!(server.addresses()[0], listen);
    for address in server.addresses() {
        let token = Some(Secret::new("right").unwrap().into());
        learns(&open(ClientSettings {
            token,
            ..client_settings(vec![address.clone()], address.len() as u128)
        }));
    }
    // A unit test in address.rs watches the mode from the first moment on.
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = Server::start(settings, shard(0, 1)).err().unwrap();
    assert!(
        error.trouble == Trouble::Io && error.text.contains("shard.sock"),
        "a server already listens there: {error}"
    );
    drop(server);
    assert!(!path.exists());
}

/// A certificate authority, and the files of a certificate for `localhost`.
fn certificates(folder: &Folder) -> (TlsFiles, TlsTrust) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::from_params(&params, &authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let files =
        TlsFiles { cert: write("cert.pem", certificate.pem()), key: write("key.pem", key.serialize_pem()) };
    (files, TlsTrust { ca: write("ca.pem", authority.pem()), server_name: "localhost".to_owned() })
}

#[test]
fn connections_are_private_to_those_who_trust_the_authority() {
    let (folder, other) = (Folder::new("tls"), Folder::new("tls-other"));
    let (files, trust) = certificates(&folder);
    let settings = ServerSettings { tls: Some(files.clone()), ..server_settings("127.0.0.1:0") };
    let server = Server::start(settings, shard(0, 1)).unwrap();
    server.install(tables(), FIRST).unwrap();
    let settings = |tls| ClientSettings { tls, ..client_settings(server.addresses(), 1) };
    let client = open(settings(Some(trust.clone())));
    learns(&client);
    let (keys, mut rows) = (Chance(1).keys(30_000, u64::MAX), vec![0.0; 30_000 * 16]);
    client.pull(1, &keys, PullAt::Newest, false, &mut rows).unwrap();

    let stranger = certificates(&other).1;
    let wrong_name = TlsTrust { server_name: "elsewhere".to_owned(), ..trust.clone() };
    let limits = ClientLimits { retry_wait_ms_max: 300, ..client_limits() };
    for tls in [Some(stranger), Some(wrong_name), None] {
        let error = Client::open(ClientSettings { limits, ..settings(tls) }).err().unwrap();
        assert_eq!(error.trouble, Trouble::Unreachable, "{error}");
    }
    let missing = TlsTrust { ca: folder.0.join("none.pem"), ..trust };
    let error = Client::open(settings(Some(missing))).err().unwrap();
    assert!(error.trouble == Trouble::Io && error.text.contains("none.pem"), "{error}");
    let swapped = TlsFiles { cert: files.key.clone(), key: files.cert };
    let settings = ServerSettings { tls: Some(swapped), ..server_settings("127.0.0.1:0") };
    assert!(Server::start(settings, shard(0, 1)).err().unwrap().text.contains("cert.pem"));
}

#[test]
fn stopping_finishes_what_was_begun_and_takes_nothing_new() {
    let cluster = Cluster::start(1, Limits::default());
    let (server, client) = (&cluster.servers[0], cluster.client(1));
    let idle = cluster.client(2);
    std::thread::scope(|scope| {
        let order_result = scope.spawn(|| client.order(0, b"save", SOON));
        let order = server.next_order(SOON).unwrap();
        let stopping = scope.spawn(|| server.stop(SOON));
        until("the idle connection's end", || server.stats().connections == 1);
        let mut late = Peer::connect(&cluster.addresses()[0]);
        assert_eq!(late.refusal().0, Code::TooMany);
        assert!(server.answer(order.id, Ok(b"saved".to_vec())));
        assert_eq!(order_result.join().unwrap().unwrap(), b"saved");
        stopping.join().unwrap();
    });
    assert_eq!(server.next_order(SOON), None);
    assert!(std::net::TcpStream::connect(&cluster.addresses()[0]).is_err());
    server.stop(Duration::ZERO);
    drop(idle);
}

#[test]
fn a_client_finds_its_shard_again_where_it_starts_again() {
    let folder = Folder::new("again");
    let listen = format!("unix:{}", folder.0.join("shard.sock").display());
    let (set, start) = (tables(), || Server::start(server_settings(&listen), shard(0, 1)).unwrap());
    let server = start();
    server.install(set.clone(), FIRST).unwrap();
    let client = open(client_settings(server.addresses(), 1));
    learns(&client);
    drop(server);
    std::thread::scope(|scope| {
        let waiting_pull = scope.spawn(|| client.pull(1, &[1], PullAt::Newest, false, &mut [0.0; 16]));
        until("the pull", || client.stats().shards[0].in_flight == 1);
        let server = Server::start(server_settings(&listen), shard(0, 1)).unwrap();
        let pulled = waiting_pull.join().unwrap();
        assert_eq!(pulled.unwrap_err().trouble, Trouble::NotReady);
        server.install(set.clone(), FIRST).unwrap();
        client.pull(1, &[1], PullAt::Newest, false, &mut [0.0; 16]).unwrap();
    });
    assert!(client.stats().shards[0].reconnects >= 1);
}
