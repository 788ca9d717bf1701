//! Measures searches, changes and memory. Times are of the processor that a thread used, and of the wall.
//!
//! `cargo run --release -p streamlearn-scan --example scan [exact|changes|beside|cells]`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use streamlearn_scan::{Blocks, Cells, Changes, Kernel, Search, Training, encode};

const DIM: usize = 64;
const LARGE: usize = 1_000_000;
const SMALL: usize = 200_000;
const CHANGED: usize = 100_000;

fn main() {
    let wanted = std::env::args().nth(1);
    let parts: [(&str, fn()); 4] =
        [("exact", exact), ("changes", changes), ("beside", beside), ("cells", cells)];
    for (name, part) in parts {
        if wanted.as_ref().is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}

/// Random vectors: around centres, of length 1, or without any structure.
#[derive(Clone)]
struct World {
    state: u64,
    centres: Vec<f32>,
    spread: f32,
}

impl World {
    fn clustered(clusters: usize, spread: f32) -> Self {
        let mut world = Self { state: 1, centres: Vec::new(), spread };
        world.centres = (0..clusters).flat_map(|_| world.normals()).collect();
        world
    }

    fn plain() -> Self {
        Self { state: 1, centres: Vec::new(), spread: 1.0 }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// About normal numbers: sums of four.
    fn normals(&mut self) -> [f32; DIM] {
        std::array::from_fn(|_| {
            let mut bits = self.next();
            let mut sum = -2.0 * 65_535.0;
            for _ in 0..4 {
                sum += (bits & 0xFFFF) as f32;
                bits >>= 16;
            }
            sum / 65_535.0 * 1.732
        })
    }

    fn vector(&mut self) -> [f32; DIM] {
        let mut vector = self.normals();
        if self.centres.is_empty() {
            return vector;
        }
        let centre = self.next() as usize % (self.centres.len() / DIM) * DIM;
        for (value, centre) in vector.iter_mut().zip(&self.centres[centre..]) {
            *value = centre + *value * self.spread;
        }
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        vector.map(|value| value / length)
    }

    fn vectors(&mut self, count: usize) -> Vec<f32> {
        (0..count).flat_map(|_| self.vector()).collect()
    }

    fn rows(&mut self, keys: Vec<u64>) -> Rows {
        let mut rows =
            Rows { values: vec![0; keys.len() * DIM], scales: Vec::with_capacity(keys.len()), keys };
        for values in rows.values.chunks_exact_mut(DIM) {
            rows.scales.push(encode(&self.vector(), values).expect("vectors are finite"));
        }
        rows
    }
}

struct Rows {
    keys: Vec<u64>,
    values: Vec<i8>,
    scales: Vec<f32>,
}

impl Rows {
    fn changes(&self) -> Changes<'_> {
        Changes { keys: &self.keys, values: &self.values, scales: &self.scales, removed: &[] }
    }
}

fn worlds() -> [(&'static str, World); 4] {
    [
        ("1,000 clusters", World::clustered(1000, 0.5)),
        ("1,000 tight clusters", World::clustered(1000, 0.1)),
        ("1,000 wide clusters", World::clustered(1000, 1.5)),
        ("no clusters", World::plain()),
    ]
}

fn library(world: &mut World, rows: usize) -> Blocks {
    let rows = world.rows((0..rows as u64).map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect());
    Blocks::new(DIM).and_then(|blocks| blocks.apply(&rows.changes())).expect("rows are valid")
}

fn cpu() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it is not negative")
}

/// Median milliseconds of the processor and of the wall.
fn median<T>(repeats: usize, mut work: impl FnMut() -> T) -> (f64, f64) {
    let mut times: Vec<(f64, f64)> = (0..repeats)
        .map(|_| {
            let (wall, used) = (Instant::now(), cpu());
            black_box(work());
            ((cpu() - used).as_secs_f64() * 1e3, wall.elapsed().as_secs_f64() * 1e3)
        })
        .collect();
    let mut middle = |by: fn(&(f64, f64)) -> f64| {
        times.sort_by(|one, other| by(one).total_cmp(&by(other)));
        by(&times[repeats / 2])
    };
    (middle(|time| time.0), middle(|time| time.1))
}

fn exact() {
    for (name, mut world) in worlds() {
        let (large, small, users) =
            (library(&mut world, LARGE), library(&mut world, SMALL), world.vectors(32));
        println!("{name}");
        for kernel in Kernel::all() {
            let repeats = if kernel.name() == "scalar" { 3 } else { 25 };
            let top = |blocks: &Blocks, users: &[f32], k| {
                let count = (users.len() / DIM) as f64;
                let search = Search { kernel, ..Search::new(k) };
                let (used, wall) =
                    median(repeats, || blocks.search(users, &search).expect("users are valid"));
                format!("{:.3} ms (wall {:.3})", used / count, wall / count)
            };
            println!("  {:12} 1e6 top 500, one user:     {}", kernel.name(), top(&large, &users[..DIM], 500));
            println!("  {:12} 1e6 top 500, a user of 32: {}", kernel.name(), top(&large, &users, 500));
            println!("  {:12} 2e5 top 100, a user of 32: {}", kernel.name(), top(&small, &users, 100));
        }
    }
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn changes() {
    let mut world = World::clustered(1000, 0.5);
    let rows = world.rows((0..LARGE as u64).map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect());
    let empty = Blocks::new(DIM).expect("the dimension is valid");
    // The first call warms the allocator, so that the second shows the size of the blocks alone.
    let first = empty.apply(&rows.changes()).expect("rows are valid");
    let before = resident_bytes();
    let blocks = empty.apply(&rows.changes()).expect("rows are valid");
    let grown = resident_bytes() - before;
    let an_item = |bytes: usize| bytes as f64 / LARGE as f64;
    println!(
        "memory: {:.1} bytes a row by the process, {:.1} counted",
        an_item(grown),
        an_item(blocks.bytes())
    );
    drop(first);
    let print = |name: &str, (used, wall): (f64, f64)| println!("{name}: {used:.1} ms (wall {wall:.1})");
    print("1e6 new rows", median(3, || empty.apply(&rows.changes())));
    let old = |count: usize, world: &mut World| {
        let keys = (0..count).map(|at| rows.keys[(at * 7919 + 13) % LARGE]).collect();
        world.rows(keys)
    };
    let (thousands, few, all) = (old(CHANGED, &mut world), old(10_000, &mut world), old(LARGE, &mut world));
    let new =
        world.rows((0..CHANGED as u64).map(|key| key.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 5).collect());
    let removed = Changes { removed: &thousands.keys, ..Changes::default() };
    print("1e4 of 1e6 rows differ", median(9, || blocks.apply(&few.changes())));
    print("1e5 of 1e6 rows differ", median(9, || blocks.apply(&thousands.changes())));
    print("1e6 of 1e6 rows differ", median(3, || blocks.apply(&all.changes())));
    print("1e5 rows are new", median(9, || blocks.apply(&new.changes())));
    print("1e5 rows are removed", median(9, || blocks.apply(&removed)));
    let both = Changes { removed: &thousands.keys, ..new.changes() };
    print("1e5 rows are new and 1e5 removed", median(9, || blocks.apply(&both)));
}

fn beside() {
    let mut world = World::clustered(1000, 0.5);
    let blocks = library(&mut world, LARGE);
    let keys = (0..CHANGED as u64).map(|at| (at * 9).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let (changed, users) = (world.rows(keys), world.vectors(32));
    let stop = Arc::new(AtomicBool::new(false));
    let quantiles = |name: &str| {
        let mut times: Vec<(f64, f64)> =
            (0..200).map(|_| median(1, || blocks.search(&users, &Search::new(500)))).collect();
        times.sort_by(|one, other| one.0.total_cmp(&other.0));
        let used = [100, 197].map(|at| times[at].0);
        times.sort_by(|one, other| one.1.total_cmp(&other.1));
        let wall = [100, 197].map(|at| times[at].1);
        println!(
            "32 users {name}: p50 {:.2} ms, p99 {:.2} ms (wall {:.2}, {:.2})",
            used[0], used[1], wall[0], wall[1]
        );
    };
    quantiles("alone");
    std::thread::scope(|scope| {
        let (stop, blocks, changed) = (stop.clone(), &blocks, &changed);
        let runs = scope.spawn({
            let stop = stop.clone();
            move || {
                let mut runs = 0;
                while !stop.load(Ordering::Relaxed) {
                    black_box(blocks.apply(&changed.changes()).expect("rows are valid"));
                    runs += 1;
                }
                runs
            }
        });
        quantiles("beside changes of 1e5 rows without a pause");
        stop.store(true, Ordering::Relaxed);
        println!("changes applied meanwhile: {}", runs.join().expect("no panic"));
    });
}

fn cells() {
    for (name, mut world) in worlds() {
        let plain = library(&mut world, LARGE);
        let sample = world.vectors(50_000);
        let training = Training { cells: 1024, rounds: 10, seed: 1 };
        let mut trained = None;
        let (used, _) = median(1, || trained = Cells::train(DIM, &sample, &training).ok());
        let cells = Arc::new(trained.expect("the sample is valid"));
        let mut rows = Rows { keys: Vec::new(), values: Vec::new(), scales: Vec::new() };
        for key in (0..LARGE as u64).map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            let row = plain.get(key).expect("it is there");
            rows.keys.push(key);
            rows.values.extend(row.values);
            rows.scales.push(row.scale);
        }
        let mut ordered = Blocks::with_cells(cells.clone());
        let (build, _) = median(1, || ordered = ordered.apply(&rows.changes()).expect("rows are valid"));
        println!(
            "{name}: 1,024 cells trained on 5e4 vectors in {used:.0} ms; 1e6 rows assigned in {build:.0} ms"
        );
        let users = world.vectors(32);
        let truth = plain.search(&users, &Search::new(100)).expect("users are valid");
        for probes in [4, 8, 16, 32, 64, 128, 1024] {
            let search = Search { probes: Some(probes), ..Search::new(100) };
            let top = ordered.search(&users, &search).expect("users are valid");
            let same = (0..32)
                .map(|user| truth.of(user).0.iter().filter(|key| top.of(user).0.contains(key)).count());
            let recall = same.sum::<usize>() as f64 / truth.keys.len() as f64;
            let (used, _) = median(9, || ordered.search(&users, &search));
            let (alone, _) = median(9, || ordered.search(&users[..DIM], &search));
            println!(
                "  {probes:4} probes: recall@100 {recall:.3}, {:.3} of rows, {:.3} ms a user of 32, {alone:.3} alone",
                top.scanned as f64 / 32.0 / LARGE as f64,
                used / 32.0
            );
        }
    }
}
