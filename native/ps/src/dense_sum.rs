//! The dense sums of the newest steps: adds slices in the order of their numbers, whatever order they come in.
//! Decides; waits for nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;

use crate::message::{ReduceHead, check_slice};
use crate::refusal::{Code, Refusal};

/// The maximum number of steps that miss slices, and of settled ones.
pub const STEPS_MAX: usize = 4;

/// What is known of a step's sum.
#[derive(Debug)]
#[cfg_attr(test, derive(Hash))]
pub enum Progress<B> {
    /// Slices are missing.
    Open,
    /// The sum of all slices.
    Finite(Arc<B>),
    /// All slices are here, and one was not finite.
    NotFinite,
}

impl<B> Clone for Progress<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Open => Self::Open,
            Self::Finite(sum) => Self::Finite(sum.clone()),
            Self::NotFinite => Self::NotFinite,
        }
    }
}

/// What all requests of a step must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
struct Terms {
    slices: u16,
    first: u32,
    count: u32,
}

/// A step that misses slices.
#[cfg_attr(test, derive(Clone, Hash))]
struct OpenSum<B> {
    terms: Terms,
    digest: u64,
    given: BTreeSet<u16>,
    is_finite: bool,
    /// The sum of the slices below `next`; `None` for no slice.
    sum: Option<B>,
    next: u16,
    /// Slices that wait for one before them.
    held: BTreeMap<u16, B>,
}

/// A step whose answer is final.
#[cfg_attr(test, derive(Clone, Hash))]
struct SettledSum<B> {
    step: u64,
    terms: Terms,
    digest: u64,
    outcome: Result<Progress<B>, Refusal>,
}

/// The sums of one epoch. `B` holds floats.
#[cfg_attr(test, derive(Clone, Hash))]
pub struct DenseSums<B> {
    open: BTreeMap<u64, OpenSum<B>>,
    /// The newest at the back.
    settled: VecDeque<SettledSum<B>>,
    /// The newest step that was settled and is no longer kept.
    forgotten: Option<u64>,
}

impl<B> Default for DenseSums<B> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), settled: VecDeque::new(), forgotten: None }
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slices, first, count } = self;
        write!(f, "{slices} slices and the range {first}..+{count}")
    }
}

impl Terms {
    fn of(head: &ReduceHead) -> Self {
        Self { slices: head.slices, first: head.first, count: head.count }
    }

    fn check(&self, head: &ReduceHead) -> Result<(), Refusal> {
        let terms = Self::of(head);
        if *self == terms {
            return Ok(());
        }
        let text = format!("step {} has {self}, the request {terms}", head.step);
        Err(Refusal::new(Code::BadRequest, text))
    }
}

fn weights_differ(head: &ReduceHead, digest: u64) -> Refusal {
    let ReduceHead { step, slice, digest: given, .. } = *head;
    let slice = slice.unwrap_or_default();
    let text = format!(
        "step {step}: slice {slice} began at weights of digest {given:#018x}, the slices before at {digest:#018x}"
    );
    Refusal::new(Code::WeightsDiffer, text)
}

impl<B: DerefMut<Target = [f32]>> DenseSums<B> {
    /// Takes a slice, or only a question, and returns the step's progress. A slice that is already given is
    /// ignored. `hold` makes room for values that must be kept; if it fails, the slice is not given.
    pub fn give(
        &mut self,
        head: &ReduceHead,
        values: &[f32],
        hold: impl FnOnce(&[f32]) -> Result<B, Refusal>,
    ) -> Result<Progress<B>, Refusal> {
        let step = head.step;
        check_slice(head.slice.unwrap_or(0), head.slices)?;
        if let Some(settled) = self.settled.iter().find(|settled| settled.step == step) {
            return settled.answer(head);
        }
        if !self.open.contains_key(&step) {
            self.check_new(head)?;
        }
        let Some(slice) = head.slice else {
            self.open.get(&step).map_or(Ok(()), |open| open.terms.check(head))?;
            return Ok(Progress::Open);
        };
        let open = self.open.entry(step).or_insert_with(|| OpenSum::new(head));
        open.terms.check(head)?;
        if open.digest != head.digest {
            let refusal = weights_differ(head, open.digest);
            self.settle(step, Err(refusal.clone()));
            return Err(refusal);
        }
        if !open.given.contains(&slice) {
            let added = open.add(slice, head.is_finite.then_some(values), hold);
            if added.is_err() && open.given.is_empty() {
                self.open.remove(&step);
                return added.map(|()| Progress::Open);
            }
            added?;
        }
        if open.given.len() < usize::from(open.terms.slices) {
            return Ok(Progress::Open);
        }
        let sum = open.sum.take().filter(|_| open.is_finite).map(Arc::new);
        let progress = sum.map_or(Progress::NotFinite, Progress::Finite);
        self.settle(step, Ok(progress.clone()));
        Ok(progress)
    }

    /// Whether the answer to a question about a step may still change.
    pub fn is_open(&self, step: u64) -> bool {
        let is_settled = self.settled.iter().any(|settled| settled.step == step);
        self.open.contains_key(&step) || (!is_settled && self.forgotten < Some(step))
    }

    /// How many steps miss slices.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn check_new(&self, head: &ReduceHead) -> Result<(), Refusal> {
        let step = head.step;
        if let Some(forgotten) = self.forgotten.filter(|&forgotten| step <= forgotten) {
            let text = format!("step {step} is no longer kept: steps up to {forgotten} are forgotten");
            return Err(Refusal::new(Code::BadRequest, text));
        }
        if head.slice.is_some() && self.open.len() >= STEPS_MAX {
            let open: Vec<&u64> = self.open.keys().collect();
            let text = format!("step {step}: the limit of {STEPS_MAX} open sums, {open:?}, is reached");
            return Err(Refusal::new(Code::TooMany, text));
        }
        Ok(())
    }

    fn settle(&mut self, step: u64, outcome: Result<Progress<B>, Refusal>) {
        let Some(OpenSum { terms, digest, .. }) = self.open.remove(&step) else { return };
        self.settled.push_back(SettledSum { step, terms, digest, outcome });
        if self.settled.len() > STEPS_MAX {
            let forgotten = self.settled.pop_front().map(|settled| settled.step);
            self.forgotten = self.forgotten.max(forgotten);
        }
    }
}

impl<B> SettledSum<B> {
    fn answer(&self, head: &ReduceHead) -> Result<Progress<B>, Refusal> {
        self.terms.check(head)?;
        if self.outcome.is_ok() && head.slice.is_some() && head.digest != self.digest {
            return Err(weights_differ(head, self.digest));
        }
        self.outcome.clone()
    }
}

impl<B: DerefMut<Target = [f32]>> OpenSum<B> {
    fn new(head: &ReduceHead) -> Self {
        Self {
            terms: Terms::of(head),
            digest: head.digest,
            given: BTreeSet::new(),
            is_finite: true,
            sum: None,
            next: 0,
            held: BTreeMap::new(),
        }
    }

    /// Adds a slice that is not given yet; without values it is not finite.
    fn add(
        &mut self,
        slice: u16,
        values: Option<&[f32]>,
        hold: impl FnOnce(&[f32]) -> Result<B, Refusal>,
    ) -> Result<(), Refusal> {
        match (values, &mut self.sum) {
            (None, _) => {
                self.is_finite = false;
                self.sum = None;
                self.held.clear();
            }
            (Some(_), _) if !self.is_finite => {}
            (Some(values), Some(sum)) if slice == self.next => {
                add_to(sum, values);
                self.next += 1;
            }
            (Some(values), _) => drop(self.held.insert(slice, hold(values)?)),
        }
        self.given.insert(slice);
        while let Some(held) = self.held.remove(&self.next) {
            match &mut self.sum {
                Some(sum) => add_to(sum, &held),
                None => self.sum = Some(held),
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// Adds values to a sum; the loop vectorises.
fn add_to(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::epoch::Epoch;

    type Sums = DenseSums<Vec<f32>>;

    fn head(step: u64, slice: Option<u16>, slices: u16, count: usize) -> ReduceHead {
        let (epoch, count) = (Epoch { run: 1, recovery: 0 }, count as u32);
        let (is_finite, wants_sums, first, wait_ms, digest) = (true, true, 0, 0, 7);
        ReduceHead { epoch, step, slice, slices, is_finite, wants_sums, first, count, wait_ms, digest }
    }

    fn give(sums: &mut Sums, head: &ReduceHead, values: &[f32]) -> Result<Progress<Vec<f32>>, Refusal> {
        sums.give(head, values, |values| Ok(values.to_vec()))
    }

    fn text(outcome: Result<Progress<Vec<f32>>, Refusal>) -> String {
        outcome.unwrap_err().to_string()
    }

    fn bits(floats: &[f32]) -> Vec<u32> {
        floats.iter().map(|float| float.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn the_sum_has_the_same_bits_in_any_order_and_what_comes_again_changes_nothing(
            values in prop::collection::vec(prop::collection::vec(-1e6f32..1e6, 5), 1..9),
            picks in prop::collection::vec(any::<usize>(), 0..60), infinite in prop::option::of(0usize..9),
        ) {
            let count = values.len();
            let infinite = infinite.filter(|&slice| slice < count);
            let mut expected = values[0].clone();
            values[1..].iter().for_each(|values| add_to(&mut expected, values));
            let (mut sums, mut given) = (Sums::default(), BTreeSet::new());
            for pick in picks.into_iter().chain(0..count) {
                let (slice, is_again) = (pick % count, given.contains(&(pick % count)));
                let ask = ReduceHead { is_finite: Some(slice) != infinite, ..head(3, Some(slice as u16), count as u16, 5) };
                // A slice that comes again may have other values: they are ignored.
                let values = if is_again { vec![1.0; 5] } else { values[slice].clone() };
                given.insert(slice);
                let progress = give(&mut sums, &ask, if ask.is_finite { &values } else { &[] }).unwrap();
                let asked = give(&mut sums, &head(3, None, count as u16, 5), &[]).unwrap();
                for progress in [progress, asked] {
                    match progress {
                        Progress::Open => prop_assert!(given.len() < count),
                        Progress::Finite(sum) => prop_assert_eq!((bits(&sum), infinite), (bits(&expected), None)),
                        Progress::NotFinite => prop_assert!(given.len() == count && infinite.is_some()),
                    }
                }
                prop_assert_eq!(sums.is_open(3), given.len() < count);
                let held: usize = sums.open.values().map(|open| open.held.len()).sum();
                prop_assert!(held <= given.len() && (given.len() < count || held == 0));
            }
        }
    }

    #[test]
    fn slices_of_other_weights_are_refused_and_so_is_all_that_follows() {
        let mut sums = Sums::default();
        give(&mut sums, &head(1, Some(0), 2, 1), &[1.0]).unwrap();
        let other = ReduceHead { digest: 8, ..head(1, Some(1), 2, 1) };
        let refusal = give(&mut sums, &other, &[1.0]).unwrap_err();
        assert_eq!(refusal.code, Code::WeightsDiffer);
        assert!(refusal.text.contains("slice 1") && refusal.text.contains("0x0000000000000008"), "{refusal}");
        for again in [head(1, None, 2, 1), head(1, Some(1), 2, 1), head(1, Some(0), 2, 1)] {
            assert_eq!(give(&mut sums, &again, &[1.0]).unwrap_err(), refusal);
        }
        assert!(!sums.is_open(1));
        give(&mut sums, &head(2, Some(0), 1, 1), &[1.0]).unwrap();
        let late = ReduceHead { digest: 8, ..head(2, Some(0), 1, 1) };
        assert_eq!(give(&mut sums, &late, &[1.0]).unwrap_err().code, Code::WeightsDiffer);
        assert!(matches!(give(&mut sums, &head(2, None, 1, 1), &[]), Ok(Progress::Finite(_))));
    }

    #[test]
    fn what_does_not_fit_the_step_is_refused_with_its_values() {
        let mut sums = Sums::default();
        assert!(matches!(give(&mut sums, &head(1, None, 2, 1), &[]), Ok(Progress::Open)));
        assert!(sums.open.is_empty(), "a question opens no step");
        give(&mut sums, &head(1, Some(1), 2, 1), &[1.0]).unwrap();
        assert!(text(give(&mut sums, &head(1, Some(2), 2, 1), &[1.0])).contains("slice 2 of 2"));
        assert!(text(give(&mut sums, &head(1, None, 0, 1), &[])).contains("1 to 1024 slices"));
        for other in
            [head(1, None, 3, 1), head(1, Some(0), 2, 2), ReduceHead { first: 4, ..head(1, None, 2, 1) }]
        {
            let text = text(give(&mut sums, &other, &[1.0, 1.0]));
            assert!(text.contains("step 1 has 2 slices and the range 0..+1, the request"), "{text}");
        }
        let full = |_: &[f32]| Err(Refusal::new(Code::Full, "no room"));
        assert_eq!(sums.give(&head(1, Some(0), 2, 1), &[1.0], full).unwrap_err().code, Code::Full);
        assert!(sums.is_open(1), "the slice that had no room is not given");
        assert!(matches!(give(&mut sums, &head(1, Some(0), 2, 1), &[1.0]), Ok(Progress::Finite(_))));
    }

    #[test]
    fn no_more_steps_are_open_or_kept_than_may() {
        let mut sums = Sums::default();
        for step in 1..=STEPS_MAX as u64 {
            give(&mut sums, &head(step, Some(1), 2, 1), &[1.0]).unwrap();
        }
        let fifth = head(5, Some(0), 2, 1);
        assert_eq!(give(&mut sums, &fifth, &[1.0]).unwrap_err().code, Code::TooMany);
        assert!(matches!(give(&mut sums, &head(5, None, 2, 1), &[]), Ok(Progress::Open)));
        for step in 2..=5 {
            give(&mut sums, &head(step, Some(0), 2, 1), &[1.0]).unwrap();
            give(&mut sums, &head(step, Some(1), 2, 1), &[1.0]).unwrap();
        }
        assert!(
            sums.is_open(1) && matches!(give(&mut sums, &head(2, None, 2, 1), &[]), Ok(Progress::Finite(_)))
        );
        assert!(matches!(give(&mut sums, &head(1, Some(0), 2, 1), &[1.0]), Ok(Progress::Finite(_))));
        let refusal = give(&mut sums, &head(2, None, 2, 1), &[]).unwrap_err();
        assert!(refusal.code == Code::BadRequest && refusal.text.contains("steps up to 2 are forgotten"));
        assert_eq!((sums.settled.len(), sums.open.len()), (STEPS_MAX, 0));
    }
}
