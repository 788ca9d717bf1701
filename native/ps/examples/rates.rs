//! Measures the rates of pulls and pushes between a server on one core and a client on another.
//!
//! `cargo run --release -p streamlearn-ps --example rates -- [callers] [tcp|unix]`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use streamlearn_ps::*;
use streamlearn_table::{At, Initial, Optimizer, RowType, Rule, TableSet, TableSettings, mix};

const KEYS: u64 = 1_000_000;
const DIM: usize = 16;
const IDS: usize = 100_000;
const RUN: Duration = Duration::from_millis(1500);

/// Pins this thread, and the threads it starts, to one core.
fn stay_on(core: usize) {
    // SAFETY: a set of cores is plain bits, and the call reads it within its length.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0, "cannot pin to core {core}");
    }
}

fn tables() -> Arc<TableSet> {
    let settings = TableSettings {
        dim: DIM,
        row_type: RowType::F32,
        rule: Some(Rule::new(Optimizer::RowwiseAdagrad {
            rate: 0.01,
            initial_accumulator: 0.1,
            epsilon: 1e-8,
        })),
        admission: None,
        initial: Initial { seed: 1, range: 0.05 },
        tick_ms: 60_000,
        rows_max: 2 * KEYS as usize,
    };
    Arc::new(TableSet::new(&[settings]).expect("settings can be"))
}

/// A pseudo-random number for each index.
fn chance(at: u64) -> u64 {
    mix(at.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))
}

/// Ids by a zipf distribution with exponent 1.05, or uniform, by inverting a continuous distribution.
fn ids(is_zipf: bool, call: u64) -> Vec<u64> {
    let id = |at: u64| {
        let unit = (chance(call * IDS as u64 + at) >> 11) as f64 / (1u64 << 53) as f64;
        if !is_zipf {
            return chance((unit * KEYS as f64) as u64);
        }
        let power = -0.05;
        let top = (KEYS as f64).powf(power);
        let rank = ((top - 1.0) * unit + 1.0).powf(1.0 / power) - 1.0;
        chance((rank as u64).min(KEYS - 1))
    };
    (0..IDS as u64).map(id).collect()
}

fn client(address: &str, client: u128) -> Client {
    let settings = ClientSettings {
        addresses: vec![address.to_owned()],
        role: Role::Trains,
        client,
        model: "rates".to_owned(),
        fingerprint: [7; 32],
        dims: vec![DIM],
        token: None,
        tls: None,
        encoding: Encoding::F32,
        seed: 1,
        limits: ClientLimits::default(),
    };
    let client = Client::open(settings).expect("the server is there");
    client.set_epoch(Epoch { run: 1, recovery: 0 }).expect("the first epoch");
    client
}

/// Returns millions of ids per second with `callers` concurrent callers.
fn rate(callers: usize, work: impl Fn(usize, &mut u64) + Sync) -> f64 {
    let begin = Instant::now();
    let calls: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|caller| {
                let work = &work;
                scope.spawn(move || {
                    let mut calls = 0;
                    while begin.elapsed() < RUN {
                        work(caller, &mut calls);
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no caller panics")).sum()
    });
    calls as f64 * IDS as f64 / begin.elapsed().as_secs_f64() / 1e6
}

/// Pushes the given gradients to the keys.
fn push(client: &Client, keys: &[u64], gradients: &[f32]) {
    let gradients = &gradients[..keys.len() * DIM];
    let push = PushOf { table: 0, keys, gradients, counts: None, admit: &[], now_ms: 0, rate_scale: 1.0 };
    client.push(push).expect("rows learn");
}

fn serve(listen: String) -> (Server, Arc<TableSet>) {
    let settings = ServerSettings {
        listen: vec![listen],
        token: None,
        tls: None,
        threads: 1,
        limits: Limits::default(),
    };
    let (model, fingerprint) = ("rates".to_owned(), [7; 32]);
    let shard = Shard { number: 0, count: 1, parts: 0..1024, model, fingerprint, specification: vec![] };
    let server = Server::start(settings, shard);
    let (server, tables) = (server.expect("the loopback address can be bound"), tables());
    server.install(tables.clone(), Epoch { run: 1, recovery: 0 }).expect("the first epoch");
    (server, tables)
}

/// Measures pulls and pushes of the same ids repeatedly, and lookups in this process.
fn measure(name: &str, client: &Client, tables: &TableSet, callers: usize) {
    let calls: Vec<Vec<u64>> = (0..8).map(|call| ids(name == "zipf", call)).collect();
    let outs: Vec<_> = (0..callers).map(|_| Mutex::new(vec![0.0; IDS * DIM])).collect();
    let gradients = vec![0.01f32; IDS * DIM];
    let lookup = rate(1, |caller, call| {
        let out = &mut outs[caller].lock().expect("one caller each");
        tables.tables()[0].lookup(&calls[*call as usize % 8], At::Newest, out, 1).expect("rows");
    });
    let pull = rate(callers, |caller, call| {
        let out = &mut outs[caller].lock().expect("one caller each");
        client.pull(0, &calls[*call as usize % 8], PullAt::Newest, false, out).expect("rows");
    });
    let push_rate = rate(callers, |_, call| push(client, &calls[*call as usize % 8], &gradients));
    println!(
        "{name:8} local lookup {lookup:6.1}  pull {pull:6.1}  push {push_rate:6.1}  M ids/s, {callers} callers"
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let callers: usize = arguments.next().map_or(1, |text| text.parse().expect("a number of callers"));
    let is_unix = arguments.next().is_some_and(|text| text == "unix");
    let path = std::env::temp_dir().join(format!("rates-{}.sock", std::process::id()));
    stay_on(0);
    let (server, tables) =
        serve(if is_unix { format!("unix:{}", path.display()) } else { "127.0.0.1:0".to_owned() });
    stay_on(1);
    let (client, gradients) = (client(&server.addresses()[0], 1), vec![0.01f32; IDS * DIM]);
    for at in 0..KEYS.div_ceil(IDS as u64) {
        let keys: Vec<u64> = (at * IDS as u64..KEYS.min((at + 1) * IDS as u64)).map(chance).collect();
        push(&client, &keys, &gradients);
    }
    for name in ["zipf", "uniform"] {
        measure(name, &client, &tables, callers);
    }
    let (keys, mut out) = (ids(true, 9), vec![0.0; 1000 * DIM]);
    let pull = |call: usize| {
        let begin = Instant::now();
        client.pull(0, &keys[call * 13 % 90_000..][..1000], PullAt::Newest, false, &mut out).expect("rows");
        begin.elapsed()
    };
    let mut durations: Vec<Duration> = (0..5000).map(pull).collect();
    durations.sort_unstable();
    println!("1,000 ids: p50 {:?}, p99 {:?}, max {:?}", durations[2500], durations[4950], durations[4999]);
}
