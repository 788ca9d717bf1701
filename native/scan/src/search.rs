//! Search: the best rows of a version for many users at once.

use crate::block::BLOCK_ROWS;
use crate::blocks::Blocks;
use crate::candidates::Candidates;
use crate::error::{Result, ScanError};
use crate::kernels::{Hit, Kernel, USERS};
use crate::positions::mix;
use crate::query::Query;

/// The maximum number of rows that are returned for a user.
pub const K_MAX: usize = 1 << 14;
/// The maximum number of users of a search.
pub const USERS_MAX: usize = 1 << 12;
/// The maximum number of threads of a search.
pub const THREADS_MAX: usize = 128;
/// Users that scan the blocks together. Their vectors and a block fit in the first cache.
const USERS_AT_ONCE: usize = 64;

/// The options of a search: how many rows, and among which.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// The number of rows for each user.
    pub k: usize,
    /// Keys that each user does not get.
    pub excluded: Excluded<'a>,
    /// The only keys that users get; all without.
    pub allowed: Option<&'a [u64]>,
    /// How many cells to look into, the nearest first; all without.
    pub probes: Option<usize>,
    /// Threads of this call; with one, the caller's thread does all.
    pub threads: usize,
    /// The kernel.
    pub kernel: Kernel,
}

/// Keys that users do not get, one user after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Excluded<'a> {
    /// The keys, in any order.
    pub keys: &'a [u64],
    /// The end of each user's keys; empty if there are no keys.
    pub ends: &'a [usize],
}

/// The best rows of each user, one user after the other. Higher scores are first; rows of the same score are in the
/// order of their keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Top {
    /// The keys.
    pub keys: Vec<u64>,
    /// The scores: the row's scale times the inner product of its values with the user's vector, in float32. Products of
    /// value `d` are summed in lane `d % 16`, and the lanes as a tree: the first half and the second, and so on.
    pub scores: Vec<f32>,
    /// The end of each user's rows.
    pub ends: Vec<usize>,
    /// The rows that were scanned, for all users together.
    pub scanned: u64,
}

impl Search<'_> {
    /// A search for the best `k` of all rows, in the caller's thread.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            excluded: Excluded::default(),
            allowed: None,
            probes: None,
            threads: 1,
            kernel: Kernel::best(),
        }
    }
}

/// A block to scan.
#[derive(Debug, Clone, Copy)]
struct Task {
    id: u32,
    /// The index of the group of users.
    group: u32,
    /// A bit for each row that users may get.
    mask: u64,
}

/// A scan for some users.
struct Pass<'a> {
    blocks: &'a Blocks,
    search: &'a Search<'a>,
    queries: Vec<Query>,
    /// Positions that each user does not get, in order.
    excluded: Vec<Vec<u32>>,
    /// Users who look into the same cells.
    groups: Vec<Vec<usize>>,
    tasks: Vec<Task>,
}

impl Blocks {
    /// The best rows for each of the users, whose vectors are one after the other. The result is exact: it equals that
    /// of computing all scores, except that `probes` leaves out the rows of farther cells.
    ///
    /// # Errors
    /// If arrays do not fit each other or a bound, or a value of a user is not finite or too large.
    pub fn search(&self, users: &[f32], search: &Search<'_>) -> Result<Top> {
        let (dim, count) = (self.dim(), users.len() / self.dim());
        check(users, dim, search)?;
        if search.k == 0 {
            return Query::all(users, dim, 0).map(|_| Top { ends: vec![0; count], ..Top::default() });
        }
        let allowed = search.allowed.map(|keys| self.bits(keys));
        let mut top = Top::default();
        for first in (0..count).step_by(USERS_AT_ONCE) {
            let batch = first..(first + USERS_AT_ONCE).min(count);
            let vectors = &users[batch.start * dim..batch.end * dim];
            let queries = Query::all(vectors, dim, first)?;
            let (groups, tasks) = self.tasks(vectors, search.probes, allowed.as_deref())?;
            let mut excluded: Vec<Vec<u32>> =
                batch.map(|user| self.positions(search.excluded.of(user)).collect()).collect();
            excluded.iter_mut().for_each(|positions| positions.sort_unstable());
            let pass = Pass { blocks: self, search, queries, excluded, groups, tasks };
            pass.run(&mut top);
        }
        Ok(top)
    }

    /// Groups of users, and the blocks that each looks into.
    fn tasks(
        &self,
        vectors: &[f32],
        probes: Option<usize>,
        allowed: Option<&[u64]>,
    ) -> Result<(Vec<Vec<usize>>, Vec<Task>)> {
        let (everyone, cells) = (0..vectors.len() / self.dim(), self.layout.cells.iter());
        let mut groups = vec![everyone.clone().collect()];
        if let Some(probes) = probes {
            let Some(known) = self.cells() else {
                return Err(ScanError::Argument(format!("{probes} probes; these blocks are not in cells")));
            };
            groups = vec![Vec::new(); cells.len()];
            let nearest = known.nearest(vectors, probes.min(cells.len()))?;
            for user in everyone {
                nearest.of(user).0.iter().for_each(|&cell| groups[cell as usize].push(user));
            }
        }
        let mut tasks = Vec::with_capacity(self.norms.len());
        for (cell, blocks) in cells.enumerate() {
            let group = if groups.len() == 1 { 0 } else { cell };
            if !groups[group].is_empty() {
                tasks.extend(blocks.blocks().map(|(id, mask)| {
                    let mask = mask & allowed.map_or(u64::MAX, |bits| bits[id as usize]);
                    Task { id, group: group as u32, mask }
                }));
            }
        }
        tasks.retain(|task| task.mask != 0);
        Ok((groups, tasks))
    }

    /// The positions of those keys that have rows.
    fn positions(&self, keys: &[u64]) -> impl Iterator<Item = u32> {
        keys.iter().filter_map(|&key| self.find(mix(key), key))
    }

    /// For each block, a bit for each row whose key is given.
    fn bits(&self, keys: &[u64]) -> Vec<u64> {
        let mut bits = vec![0; self.norms.len()];
        for position in self.positions(keys) {
            bits[position as usize / BLOCK_ROWS] |= 1 << (position as usize % BLOCK_ROWS);
        }
        bits
    }
}

impl Excluded<'_> {
    fn of(&self, user: usize) -> &[u64] {
        let end = |user: usize| self.ends.get(user).copied().unwrap_or(0);
        &self.keys[if user == 0 { 0 } else { end(user - 1) }..end(user)]
    }
}

impl Top {
    /// The keys and scores of a user.
    pub fn of(&self, user: usize) -> (&[u64], &[f32]) {
        let rows = if user == 0 { 0 } else { self.ends[user - 1] }..self.ends[user];
        (&self.keys[rows.clone()], &self.scores[rows])
    }
}

fn check(users: &[f32], dim: usize, search: &Search<'_>) -> Result<()> {
    let (count, Excluded { keys, ends }) = (users.len() / dim, search.excluded);
    let is_divided =
        ends.len() == count && ends.is_sorted() && ends.last().is_none_or(|&end| end == keys.len());
    let is_divided = is_divided || keys.is_empty() && ends.is_empty();
    let fits = [
        (users.len().is_multiple_of(dim), format!("{} values of users; a vector has {dim}", users.len())),
        (count <= USERS_MAX, format!("{count} users; a search has at most {USERS_MAX}")),
        (search.k <= K_MAX, format!("the best {} rows; a search returns at most {K_MAX}", search.k)),
        (
            (1..=THREADS_MAX).contains(&search.threads),
            format!("{} threads of 1 to {THREADS_MAX}", search.threads),
        ),
        (search.probes != Some(0), "0 probes; a search looks into at least one cell".into()),
        (is_divided, format!("{} excluded keys, {} ends of them, {count} users", keys.len(), ends.len())),
    ];
    let wrong = fits.into_iter().find(|(is_met, _)| !is_met);
    wrong.map_or(Ok(()), |(_, text)| Err(ScanError::Argument(text)))
}

impl Pass<'_> {
    fn run(&self, top: &mut Top) {
        let threads = self.search.threads;
        let mut shares = std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|share| scope.spawn(move || self.scan(share, threads))).collect();
            let first = self.scan(0, threads);
            let joined = others.into_iter().map(|other| other.join().expect("a scan does not panic"));
            std::iter::once(first).chain(joined).collect::<Vec<_>>()
        });
        let (mut all, scanned) = shares.swap_remove(0);
        top.scanned += scanned;
        for (share, scanned) in shares {
            top.scanned += scanned;
            all.iter_mut().zip(share).for_each(|(one, other)| one.join(other));
        }
        for (candidates, query) in all.into_iter().zip(&self.queries) {
            for (key, score) in candidates.best(self.blocks, query) {
                top.keys.push(key);
                top.scores.push(score);
            }
            top.ends.push(top.keys.len());
        }
    }

    /// Scans a share of the blocks.
    fn scan(&self, share: usize, shares: usize) -> (Vec<Candidates>, u64) {
        let mut all: Vec<Candidates> = self.queries.iter().map(|_| Candidates::new(self.search.k)).collect();
        let (mut scanned, mut hits) = (0, [Hit::NONE; USERS]);
        let bound = |share| self.tasks.len() * share / shares;
        let tasks = &self.tasks[bound(share)..bound(share + 1)];
        for (at, task) in tasks.iter().enumerate() {
            // The head of a block tells where its values are, so it is fetched earlier.
            if let Some(later) = tasks.get(at + 2) {
                self.blocks.block(later.id).prefetch_head();
            }
            let next = self.blocks.block(tasks.get(at + 1).unwrap_or(task).id);
            let users = &self.groups[task.group as usize];
            let (fours, ones) = users.as_chunks::<USERS>();
            scanned += u64::from(task.mask.count_ones()) * users.len() as u64;
            for (at, users) in fours.iter().enumerate() {
                next.prefetch_values(at, fours.len());
                self.scan_block(task, users, (&mut all, &mut hits));
            }
            if fours.is_empty() {
                next.prefetch_values(0, 1);
            }
            for &user in ones {
                self.scan_block(task, &[user], (&mut all, hits.first_chunk_mut().expect("there is one")));
            }
        }
        (all, scanned)
    }

    #[inline(always)]
    fn scan_block<const N: usize>(
        &self,
        &Task { id, mask, .. }: &Task,
        users: &[usize; N],
        (all, hits): (&mut [Candidates], &mut [Hit; N]),
    ) {
        let norm = self.blocks.norms[id as usize];
        let block = self.blocks.block(id);
        let floors = users.map(|user| all[user].floor - self.queries[user].error(norm));
        self.search.kernel.scan(block, users.map(|user| &self.queries[user]), &floors, hits);
        for (&user, hit) in users.iter().zip(hits) {
            let mask = hit.mask & mask;
            if mask != 0 {
                let mask = mask & !self.excluded_bits(user, id);
                all[user].add(hit, mask, id, self.blocks, &self.queries[user]);
            }
        }
    }

    /// A bit for each row of a block that a user does not get.
    fn excluded_bits(&self, user: usize, id: u32) -> u64 {
        let (places, first) = (&self.excluded[user], id * BLOCK_ROWS as u32);
        let begin = places.partition_point(|&place| place < first);
        let here = places[begin..].iter().take_while(|&&place| place - first < BLOCK_ROWS as u32);
        here.fold(0, |bits, &place| bits | 1 << (place - first))
    }
}
