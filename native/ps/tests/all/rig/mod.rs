//! The test rig: tables, servers on loopback, their clients, and peers that send raw bytes.

mod proxy;

pub use proxy::Proxy;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamlearn_ps::*;
use streamlearn_table::*;

pub const MODEL: &str = "ctr";
pub const FINGERPRINT: [u8; 32] = [7; 32];
pub const SPECIFICATION: &[u8] = b"what the tables are made of";
pub const DIMS: [usize; 2] = [3, 16];
pub const FIRST: Epoch = Epoch { run: 1, recovery: 0 };
/// The timeout of anything that must happen, generous for a busy machine.
pub const SOON: Duration = Duration::from_secs(120);

/// Two tables: one with admission and rows of odd length, one with rows of whole cache lines.
pub fn settings() -> Vec<TableSettings> {
    let rule = Rule::new(Optimizer::Adagrad { rate: 0.1, initial_accumulator: 0.5, epsilon: 1e-6 });
    let narrow = TableSettings {
        dim: DIMS[0],
        row_type: RowType::F32,
        rule: Some(rule),
        admission: Some(SketchSettings { width_counters: 256, window_ms: 1_000_000 }),
        initial: Initial { seed: 5, range: 0.5 },
        tick_ms: 1_000,
        rows_max: 1 << 20,
    };
    vec![narrow, TableSettings { dim: DIMS[1], admission: None, ..narrow }]
}

pub fn tables() -> Arc<TableSet> {
    Arc::new(TableSet::new(&settings()).unwrap())
}

pub fn shard(number: u32, count: u32) -> Shard {
    let at = |number: u32| PARTS * number as usize / count as usize;
    let parts = at(number)..at(number + 1);
    let specification = SPECIFICATION.to_vec();
    Shard { number, count, parts, model: MODEL.to_owned(), fingerprint: FINGERPRINT, specification }
}

pub fn server_settings(listen: &str) -> ServerSettings {
    let limits = Limits { token_wait_ms: 1, ..Limits::default() };
    ServerSettings { listen: vec![listen.to_owned()], token: None, tls: None, threads: 2, limits }
}

/// Servers of all shards of a model, with tables.
pub struct Cluster {
    pub servers: Vec<Server>,
    pub sets: Vec<Arc<TableSet>>,
}

impl Cluster {
    pub fn start(count: u32, limits: Limits) -> Self {
        let start = |number| {
            let settings = ServerSettings { limits, ..server_settings("127.0.0.1:0") };
            Server::start(settings, shard(number, count)).unwrap()
        };
        let servers: Vec<Server> = (0..count).map(start).collect();
        let sets: Vec<_> = servers.iter().map(|_| tables()).collect();
        servers.iter().zip(&sets).for_each(|(server, set)| server.install(set.clone(), FIRST).unwrap());
        Self { servers, sets }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.addresses()[0].clone()).collect()
    }

    pub fn client(&self, client: u128) -> Client {
        open(client_settings(self.addresses(), client))
    }
}

pub fn client_limits() -> ClientLimits {
    ClientLimits {
        backoff_first_ms: 1,
        backoff_ms_max: 20,
        retry_wait_ms_max: 120_000,
        ..ClientLimits::default()
    }
}

pub fn client_settings(addresses: Vec<String>, client: u128) -> ClientSettings {
    ClientSettings {
        addresses,
        role: Role::Trains,
        client,
        model: MODEL.to_owned(),
        fingerprint: FINGERPRINT,
        dims: DIMS.to_vec(),
        token: None,
        tls: None,
        encoding: Encoding::F32,
        seed: 1,
        limits: client_limits(),
    }
}

/// A client in the first epoch.
pub fn open(settings: ClientSettings) -> Client {
    let client = Client::open(settings).unwrap();
    client.set_epoch(FIRST).unwrap();
    client
}

pub fn push_of<'a>(table: u16, keys: &'a [u64], gradients: &'a [f32]) -> PushOf<'a> {
    PushOf { table, keys, gradients, counts: None, admit: &[], now_ms: 5_000, rate_scale: 1.0 }
}

/// The same push for a local table.
pub fn local<'a>(push: &PushOf<'a>) -> Push<'a> {
    let PushOf { keys, gradients, counts, admit, now_ms, rate_scale, .. } = *push;
    Push { keys, gradients, counts, admit, now_ms, rate_scale }
}

/// Seeded pseudo-random numbers.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn keys(&mut self, count: usize, end: u64) -> Vec<u64> {
        (0..count).map(|_| mix(self.below(end) + 1)).collect()
    }

    /// Floats whose sum depends on the order of addition.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.below(2001) as f32 - 1000.0) / 700.0).collect()
    }
}

pub fn lookup(set: &TableSet, table: u16, keys: &[u64], at: At) -> Vec<f32> {
    let table = &set.tables()[usize::from(table)];
    let mut rows = vec![0.0; keys.len() * table.settings.dim];
    table.lookup(keys, at, &mut rows, 1).unwrap();
    rows
}

pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|float| float.to_bits()).collect()
}

/// Waits until a condition holds.
pub fn until(event: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{event} did not come");
        std::thread::yield_now();
    }
}

/// A folder that is removed with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ps-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A peer that sends arbitrary frames.
pub struct Peer {
    pub stream: TcpStream,
    pub intake: Intake,
}

impl Peer {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, intake: Intake::new(64 << 20) }
    }

    /// Connects and shakes hands.
    pub fn hello(address: &str, epoch: Option<Epoch>) -> Self {
        let mut peer = Self::connect(address);
        peer.say(Kind::Hello, 0, &hello(epoch).to_payload());
        assert_eq!(peer.next().unwrap().header.kind, Kind::Hello);
        peer
    }

    pub fn say(&mut self, kind: Kind, request: u64, payload: &[u8]) {
        self.stream.write_all(&frame(kind, request, payload)).unwrap();
    }

    /// Returns the next frame; `None` once the connection is closed.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.intake.take().unwrap() {
                return Some(frame);
            }
            if self.intake.claimed().is_some() {
                self.intake.admit();
                continue;
            }
            let mut bytes = vec![0; self.intake.room().1.min(1 << 16)];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => assert_eq!(self.intake.feed(&bytes[..count]), count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no frame and no end: {error}"),
            }
        }
    }

    /// Returns the code and text of the refusal that must come next.
    pub fn refusal(&mut self) -> (Code, String) {
        let frame = self.next().expect("a refusal before the end");
        assert_eq!(frame.header.kind, Kind::Error, "{frame:?}");
        let number = |at: usize| u16::from_le_bytes([frame.payload[at], frame.payload[at + 1]]);
        let text = frame.payload[4..][..usize::from(number(2))].to_vec();
        (Code::from_number(number(0)).unwrap(), String::from_utf8(text).unwrap())
    }
}

pub fn hello(epoch: Option<Epoch>) -> HelloAsk<'static> {
    HelloAsk { model: MODEL, fingerprint: FINGERPRINT, client: 9, reads_only: false, epoch, token: &[] }
}

/// Encodes a request's frame.
pub fn frame(kind: Kind, request: u64, payload: &[u8]) -> Vec<u8> {
    let payload_bytes = payload.len() as u32;
    let header = Header { kind, flags: 0, request, payload_bytes }.to_bytes();
    [&header[..], payload, &streamlearn_wire::checksum::crc32c(0, payload).to_le_bytes()].concat()
}

/// Encodes a push to table 1.
pub fn push_payload(epoch: Epoch, sequence: u64, keys: &[u64]) -> Vec<u8> {
    let mut gradients = Vec::new();
    Encoding::F32.append(&vec![1.0; keys.len() * DIMS[1]], &mut gradients);
    let columns =
        Columns { keys: keys.into(), admit: vec![].into(), counts: None, gradients: gradients.into() };
    let mut payload = Vec::new();
    PushAsk { epoch, table: 1, encoding: Encoding::F32, sequence, now_ms: 0, rate_scale: 1.0, columns }
        .append(&mut payload);
    payload
}

/// Encodes a pull of a table's newest rows.
pub fn pull_payload(epoch: Epoch, table: u16, keys: &[u64]) -> Vec<u8> {
    let mut payload = Vec::new();
    PullAsk { epoch, table, encoding: Encoding::F32, version: None, keys: keys.into() }.append(&mut payload);
    payload
}
