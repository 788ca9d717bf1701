//! A model check of steps that are cut into slices: everything that can happen between a leader, two workers and two
//! shards, breadth first.
//!
//! The shards decide with the code of this crate. A message that was sent is delivered at any time, again and again, or
//! never. The first worker may be lost; it goes on sending what it holds. All may go back, in a new epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};

use crate::dense_sum::{DenseSums, Progress};
use crate::epoch::Epoch;
use crate::message::{PartHead, ReduceHead};
use crate::open_steps::{OpenSteps, Terms};
use crate::window::{Decision, Window};

const TERMS: Terms = Terms { now_ms: 5, rate_scale: 1.0 };
const EPOCHS: [Epoch; 2] = [Epoch { run: 1, recovery: 0 }, Epoch { run: 1, recovery: 1 }];
/// No epoch has as many steps.
const EPOCH_STEPS: u64 = 10;

/// The size of a job, and how its shards take slices.
#[derive(Clone, Copy)]
struct Job {
    may_repeat: bool,
    at_once: bool,
    slices: u16,
    /// The steps of the first epoch; the second one has one.
    steps: u64,
    /// The blocks of slice 0 for each shard; other slices have one.
    blocks: u16,
    /// The worker whose numbers of slice 0 are not finite in the first step.
    infinite: Option<u8>,
}

const STRICT: Job = Job { may_repeat: false, at_once: false, slices: 2, steps: 3, blocks: 2, infinite: None };
const WHOLE: Job = Job { may_repeat: true, ..STRICT };
const AT_ONCE: Job = Job { at_once: true, ..WHOLE };

/// A message of a worker to both shards: gradients of rows, or its summand of the weights' gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Message {
    epoch: usize,
    step: u64,
    slice: u16,
    worker: u8,
    block: Option<u16>,
}

impl Job {
    /// The last step of an epoch.
    fn last(&self, epoch: usize) -> u64 {
        if epoch == 0 { self.steps } else { epoch as u64 * EPOCH_STEPS + 1 }
    }

    fn is_finite(&self, message: &Message) -> bool {
        let is_first = message.step % EPOCH_STEPS == 1;
        message.slice > 0 || !is_first || self.infinite != Some(message.worker)
    }

    fn blocks_of(&self, slice: u16) -> u16 {
        if slice == 0 { self.blocks } else { 1 }
    }

    /// All that a worker sends of a slice.
    fn messages(&self, (epoch, step): (usize, u64), slice: u16, worker: u8) -> Vec<Message> {
        let message = Message { epoch, step, slice, worker, block: None };
        let blocks = if self.is_finite(&message) { self.blocks_of(slice) } else { 1 };
        let parts = (0..blocks).map(|block| Message { block: Some(block), ..message });
        parts.chain([message]).collect()
    }

    /// The value that a worker computes of a slice: exact in any sum, and another one if it is computed again.
    fn value(slice: u16, worker: u8) -> f32 {
        f32::from(1u16 << (2 * slice)) * f32::from(1 + worker)
    }
}

#[derive(Clone)]
struct Numbers(Vec<f32>);

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

impl Hash for Numbers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|number| number.to_bits().hash(state));
    }
}

impl Hash for Terms {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.now_ms, self.rate_scale.to_bits()).hash(state);
    }
}

/// A shard with one table, and plain sets that know what it must do.
#[derive(Clone, Hash)]
struct Shard {
    epoch: Epoch,
    steps: OpenSteps<(u16, u16)>,
    sums: DenseSums<Numbers>,
    /// By worker and slice.
    windows: BTreeMap<(u8, u16), Window<()>>,
    /// The step, slice and block of what was taken of the open step.
    taken: BTreeSet<(u64, u16, u16)>,
    /// The slices of the open step that are not finite.
    infinite: BTreeSet<u16>,
    complete: BTreeSet<u64>,
    /// The first that gave a slice to a sum, by step and slice.
    givers: BTreeMap<(u64, u16), u8>,
}

impl Shard {
    fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            steps: OpenSteps::default(),
            sums: DenseSums::default(),
            windows: BTreeMap::new(),
            taken: BTreeSet::new(),
            infinite: BTreeSet::new(),
            complete: BTreeSet::new(),
            givers: BTreeMap::new(),
        }
    }

    /// Returns the shard after a message; `None` if it refuses it because of its epoch.
    fn after(&self, job: &Job, message: &Message) -> Option<Self> {
        self.epoch.admit(EPOCHS[message.epoch]).ok()?;
        let mut next = self.clone();
        match message.block {
            Some(block) => next.push(job, message, block),
            None => next.reduce(job, message),
        }
        assert!(
            next.steps.open() <= 1 && next.sums.open() <= 1,
            "a step begins before the one before is complete"
        );
        Some(next)
    }

    /// Takes a block, as a connection does.
    fn push(&mut self, job: &Job, message: &Message, block: u16) {
        let Message { step, slice, worker, .. } = *message;
        let (blocks, is_finite) = (job.blocks_of(slice), job.is_finite(message));
        if !job.may_repeat {
            let sequence = (step % EPOCH_STEPS - 1) * u64::from(blocks) + u64::from(block);
            let window = self.windows.entry((worker, slice)).or_insert_with(|| Window::new(8));
            match window.decide(sequence) {
                Decision::Apply => window.note(sequence, ()),
                Decision::Again(()) => return,
                other => panic!("{other:?}"),
            }
        }
        let head = PartHead {
            step,
            slice,
            slices: job.slices,
            block,
            is_last: !is_finite || block + 1 == blocks,
            is_finite,
            may_repeat: job.may_repeat,
            at_once: job.at_once,
        };
        let keys = if is_finite { 1 + usize::from(block) } else { 0 };
        let due = self.steps.give(&head, TERMS, keys, || Ok((slice, block)));
        let due = due.unwrap_or_else(|refusal| panic!("{message:?} is refused: {refusal}"));
        let is_new = self.is_new(job, &head);
        assert_eq!(due.block, is_new && job.at_once, "{message:?}");
        match (is_new, is_finite) {
            (true, true) => drop(self.taken.insert((step, slice, block))),
            (true, false) => drop(self.infinite.insert(slice)),
            (false, _) => {}
        }
        let is_complete = is_new && (0..job.slices).all(|slice| self.has(job, step, slice));
        let steps: Vec<u64> = due.steps.iter().map(|step| step.step).collect();
        assert_eq!(steps, if is_complete && !job.at_once { vec![step] } else { vec![] }, "{message:?}");
        for whole in due.steps {
            let blocks: Vec<_> = (0..job.slices)
                .flat_map(|slice| (0..job.blocks_of(slice)).map(move |block| (slice, block)))
                .collect();
            assert_eq!(whole.blocks, if self.infinite.is_empty() { blocks } else { vec![] });
        }
        if is_complete {
            let before = self.complete.last().map_or(step, |&newest| newest + 1);
            assert!(self.complete.insert(step) && step == before, "step {step} out of order");
            (self.taken, self.infinite) = Default::default();
        }
    }

    /// Whether a block must be taken.
    fn is_new(&self, job: &Job, head: &PartHead) -> bool {
        let PartHead { step, slice, block, is_finite, .. } = *head;
        let is_wanted =
            if is_finite { !self.taken.contains(&(step, slice, block)) } else { !self.has(job, step, slice) };
        !self.complete.contains(&step) && !self.infinite.contains(&slice) && is_wanted
    }

    /// Whether the open step has a slice.
    fn has(&self, job: &Job, step: u64, slice: u16) -> bool {
        let mut blocks = 0..job.blocks_of(slice);
        self.infinite.contains(&slice) || blocks.all(|block| self.taken.contains(&(step, slice, block)))
    }

    fn reduce(&mut self, job: &Job, message: &Message) {
        let Message { step, slice, worker, .. } = *message;
        let is_finite = job.is_finite(message);
        let head = ReduceHead { slice: Some(slice), is_finite, ..question(job, self.epoch, step) };
        let value = [Job::value(slice, worker)];
        let values: &[f32] = if is_finite { &value } else { &[] };
        let progress = self.sums.give(&head, values, |values| Ok(Numbers(values.to_vec())));
        let progress = progress.unwrap_or_else(|refusal| panic!("{message:?} is refused: {refusal}"));
        self.givers.entry((step, slice)).or_insert(worker);
        let given: Vec<Message> = (0..job.slices)
            .filter_map(|slice| {
                self.givers.get(&(step, slice)).map(|&worker| Message { slice, worker, ..*message })
            })
            .collect();
        let sum: f32 = given.iter().map(|given| Job::value(given.slice, given.worker)).sum();
        match progress {
            Progress::Open => assert!(given.len() < job.slices.into()),
            Progress::Finite(of_all) => assert_eq!((of_all[0], given.len()), (sum, job.slices.into())),
            Progress::NotFinite => assert!(given.iter().any(|given| !job.is_finite(given))),
        }
    }

    fn is_settled(&self, job: &Job, step: u64) -> bool {
        let asked =
            self.sums.clone().give(&question(job, self.epoch, step), &[], |_| panic!("nothing is given"));
        !matches!(asked, Ok(Progress::Open))
    }
}

fn question(job: &Job, epoch: Epoch, step: u64) -> ReduceHead {
    let (slice, slices, is_finite, wants_sums) = (None, job.slices, true, true);
    ReduceHead {
        epoch,
        step,
        slice,
        slices,
        is_finite,
        wants_sums,
        first: 0,
        count: 1,
        wait_ms: 0,
        digest: step,
    }
}

/// All that is there at a time; shards by their numbers in `Explorer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    shards: [u32; 2],
    epoch: usize,
    /// The newest step that was released; a multiple of `EPOCH_STEPS` before the first.
    step: u64,
    /// The slices of this step that were reported, as bits.
    reported: u16,
    /// The step in which the first worker was lost, and whether the other one was given its slice of that step.
    lost: Option<(u64, bool)>,
}

impl World {
    /// Those who hold a slice of a step, or held it and may still send it. The report of the last one counts.
    fn holders(&self, step: u64, slice: u16) -> Vec<u8> {
        match self.lost {
            _ if slice > 0 => vec![1],
            None => vec![0],
            Some((at, _)) if step < at => vec![0],
            Some((at, is_given)) if step == at => {
                if is_given {
                    vec![0, 1]
                } else {
                    vec![0]
                }
            }
            Some(_) => vec![1],
        }
    }
}

/// The worlds that were met, and the shards in them.
struct Explorer {
    job: Job,
    shards: Vec<Shard>,
    numbers: HashMap<(u64, u64), u32>,
    after: HashMap<(u32, Message), u32>,
}

impl Explorer {
    fn number(&mut self, shard: Shard) -> u32 {
        let hash = |seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, &shard).hash(&mut hasher);
            hasher.finish()
        };
        let (key, next) = ((hash(1), hash(2)), self.shards.len() as u32);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.shards.push(shard);
        }
        number
    }

    /// Delivers a message to a shard, which must not refuse it.
    fn deliver(&mut self, shard: u32, message: &Message) -> u32 {
        if let Some(&after) = self.after.get(&(shard, *message)) {
            return after;
        }
        let next =
            self.shards[shard as usize].after(&self.job, message).expect("the epoch is that of the shard");
        let after = self.number(next);
        self.after.insert((shard, *message), after);
        after
    }

    /// Returns the worlds that may come next.
    fn next(&mut self, world: &World) -> Vec<World> {
        let (job, mut next, first) = (self.job, Vec::new(), world.epoch as u64 * EPOCH_STEPS);
        let (all, last) = ((1 << job.slices) - 1, job.last(world.epoch));
        let newest = world.shards.map(|shard| self.shards[shard as usize].epoch == EPOCHS[world.epoch]);
        for (at, _) in newest.iter().enumerate().filter(|(_, is_newest)| !**is_newest) {
            let mut other = *world;
            other.shards[at] = self.number(Shard::new(EPOCHS[world.epoch]));
            next.push(other);
        }
        for step in first + 1..=world.step {
            for slice in 0..job.slices {
                for worker in world.holders(step, slice) {
                    for message in job.messages((world.epoch, step), slice, worker) {
                        for at in 0..world.shards.len() {
                            let mut other = *world;
                            other.shards[at] = self.deliver(world.shards[at], &message);
                            next.push(other);
                        }
                    }
                }
            }
        }
        for slice in (0..job.slices).filter(|slice| world.step > first && world.reported >> slice & 1 == 0) {
            let worker = world.holders(world.step, slice).pop().expect("somebody holds it");
            let messages = job.messages((world.epoch, world.step), slice, worker);
            // It has all answers at the earliest when nothing that it sends changes a shard any more.
            if messages
                .iter()
                .all(|message| world.shards.iter().all(|&shard| self.deliver(shard, message) == shard))
            {
                next.push(World { reported: world.reported | 1 << slice, ..*world });
            }
        }
        if world.reported == all {
            for shard in world.shards.map(|shard| &self.shards[shard as usize]) {
                assert!(
                    shard.complete.contains(&world.step) && shard.is_settled(&job, world.step),
                    "{world:?}"
                );
            }
        }
        let may_begin = world.step == first && newest == [true; 2];
        if may_begin || (world.reported == all && world.step < last) {
            next.push(World { step: world.step + 1, reported: 0, ..*world });
        }
        if job.may_repeat && world.lost.is_none() && world.step > first {
            next.push(World { lost: Some((world.step, world.reported & 1 == 0)), ..*world });
        }
        if world.epoch + 1 < EPOCHS.len() {
            next.push(World {
                epoch: world.epoch + 1,
                step: first + EPOCH_STEPS,
                reported: 0,
                lost: None,
                ..*world
            });
        }
        next.retain(|other| other != world);
        next
    }
}

/// Visits all worlds, and returns how many there are.
fn explore(job: Job) -> usize {
    let mut explorer = Explorer { job, shards: vec![], numbers: HashMap::new(), after: HashMap::new() };
    let shards = [explorer.number(Shard::new(EPOCHS[0])); 2];
    let begin = World { shards, epoch: 0, step: 0, reported: 0, lost: None };
    let (mut worlds, mut numbers, mut before) = (vec![begin], HashMap::from([(begin, 0)]), vec![vec![]]);
    let mut at = 0;
    while at < worlds.len() {
        for world in explorer.next(&worlds[at].clone()) {
            let number = *numbers.entry(world).or_insert_with(|| {
                worlds.push(world);
                before.push(vec![]);
                worlds.len() - 1
            });
            before[number].push(at);
        }
        at += 1;
    }
    // Back from the ends: a world from which none of them is reached is stuck.
    let is_end = |world: &World| {
        world.step == job.last(world.epoch) && world.reported.count_ones() == u32::from(job.slices)
    };
    let mut ends: VecDeque<usize> = (0..worlds.len()).filter(|&at| is_end(&worlds[at])).collect();
    let mut can_end = vec![false; worlds.len()];
    while let Some(at) = ends.pop_front() {
        if !std::mem::replace(&mut can_end[at], true) {
            ends.extend(&before[at]);
        }
    }
    let stuck = can_end.iter().position(|can_end| !can_end).map(|at| worlds[at]);
    assert_eq!(stuck, None);
    for shard in explorer.shards.iter().filter(|shard| shard.epoch == EPOCHS[1]) {
        let old = job.messages((0, 1), 0, 0);
        assert!(old.iter().all(|message| shard.after(&job, message).is_none()), "an older epoch is admitted");
    }
    worlds.len()
}

#[test]
fn whatever_comes_in_whatever_order_a_step_is_learned_once_and_as_a_whole() {
    for job in [STRICT, Job { infinite: Some(0), ..STRICT }, Job { slices: 3, steps: 2, blocks: 1, ..STRICT }]
    {
        assert!(explore(job) > 1_000);
    }
}

#[test]
fn whoever_learns_the_slice_of_a_lost_worker_its_step_is_learned_once_and_as_a_whole() {
    for job in
        [WHOLE, Job { infinite: Some(0), steps: 2, ..WHOLE }, Job { infinite: Some(1), steps: 2, ..WHOLE }]
    {
        assert!(explore(job) > 1_000);
    }
}

#[test]
fn a_slice_that_is_applied_when_it_comes_is_applied_once_whoever_gives_it() {
    for job in [
        AT_ONCE,
        Job { infinite: Some(0), steps: 2, ..AT_ONCE },
        Job { infinite: Some(1), steps: 2, ..AT_ONCE },
    ] {
        assert!(explore(job) > 1_000);
    }
    assert!(explore(Job { slices: 3, steps: 2, blocks: 1, ..AT_ONCE }) > 1_000);
}
