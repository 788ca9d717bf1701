//! The open steps of one table: blocks of slices, until a step has all of them. Decides; applies nothing.
//!
//! A step's blocks are due all at once, when it has all of them, or each when it comes. Complete steps leave in the
//! order of their numbers, so a step waits for each open step before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::message::{PartHead, check_slice};
use crate::refusal::{Code, Refusal};

/// The maximum number of open steps of a table.
pub const OPEN_STEPS_MAX: usize = 4;

/// What all blocks of a step must have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Table time, in milliseconds.
    pub now_ms: i64,
    /// Multiplies the optimizer's learning rate.
    pub rate_scale: f32,
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table time of {} ms and a rate_scale of {}", self.now_ms, self.rate_scale)
    }
}

/// A step that has all blocks.
#[derive(Debug, PartialEq)]
pub struct CompleteStep<B> {
    /// The step.
    pub step: u64,
    /// The terms of its blocks.
    pub terms: Terms,
    /// The blocks in the order of slices, then blocks; empty if a slice was not finite.
    pub blocks: Vec<B>,
}

/// The blocks that a table applies when one comes: none if it waits for others, or is a repetition.
#[derive(Debug, PartialEq)]
pub struct Due<B> {
    /// Whether the block that was given is due by itself.
    pub block: bool,
    /// The steps that are due as a whole, in order.
    pub steps: Vec<CompleteStep<B>>,
}

#[cfg_attr(test, derive(Clone, Hash))]
struct Block<B> {
    keys: usize,
    content: B,
}

#[cfg_attr(test, derive(Clone, Hash))]
struct OpenStep<B> {
    slices: u16,
    may_repeat: bool,
    at_once: bool,
    terms: Terms,
    /// The slices that are not finite.
    infinite: BTreeSet<u16>,
    /// By slice and block.
    blocks: BTreeMap<(u16, u16), Block<B>>,
    /// The last block of each slice that has it.
    lasts: BTreeMap<u16, u16>,
}

/// The open steps of one table.
#[cfg_attr(test, derive(Clone, Hash))]
pub struct OpenSteps<B> {
    steps: BTreeMap<u64, OpenStep<B>>,
    /// The newest step that left.
    newest: Option<u64>,
    /// The first and the newest step that were opened.
    opened: Option<(u64, u64)>,
    /// Why nothing more is taken.
    failure: Option<Refusal>,
}

impl<B> Default for OpenSteps<B> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), newest: None, opened: None, failure: None }
    }
}

fn bad<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal::new(Code::BadRequest, text))
}

impl<B> OpenSteps<B> {
    /// Takes a block of a number of keys, and returns what must be applied now. `hold` makes room for what is kept of
    /// it. A refused block changes nothing.
    pub fn give(
        &mut self,
        head: &PartHead,
        terms: Terms,
        keys: usize,
        hold: impl FnOnce() -> Result<B, Refusal>,
    ) -> Result<Due<B>, Refusal> {
        let mut due = Due { block: false, steps: Vec::new() };
        if !self.is_new(head, terms, keys)? {
            return Ok(due);
        }
        let block = Block { keys, content: hold()? };
        let step = head.step;
        let (first, newest) = self.opened.unwrap_or((step, step));
        self.opened = Some((first.min(step), newest.max(step)));
        self.steps.entry(step).or_insert_with(|| OpenStep::new(head, terms)).add(head, block);
        due.block = head.at_once;
        while let Some(first) = self.steps.first_entry().filter(|entry| entry.get().is_complete()) {
            let (step, OpenStep { terms, at_once, infinite, blocks, .. }) = first.remove_entry();
            self.newest = Some(step);
            if !at_once {
                let blocks = blocks.into_values().map(|block| block.content);
                let blocks = if infinite.is_empty() { blocks.collect() } else { Vec::new() };
                due.steps.push(CompleteStep { step, terms, blocks });
            }
        }
        Ok(due)
    }

    /// How many steps miss blocks.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.steps.len()
    }

    /// Refuses all further blocks: what was due could not be applied, and a block that repeats must not hide that.
    pub fn fail(&mut self, refusal: Refusal) {
        self.failure.get_or_insert(refusal);
    }

    /// Returns whether a block is new. A repeated one is an error, unless the terms allow it.
    fn is_new(&self, head: &PartHead, terms: Terms, keys: usize) -> Result<bool, Refusal> {
        check_slice(head.slice, head.slices)?;
        if let Some(refusal) = &self.failure {
            return Err(refusal.clone());
        }
        let step = head.step;
        if let Some(open) = self.steps.get(&step) {
            return open.is_new(head, terms, keys);
        }
        if let Some((first, newest)) = self.opened.filter(|_| head.may_repeat) {
            // All steps since the first one were opened, so one that is not open any more was complete.
            if (first..=newest).contains(&step) {
                return Ok(false);
            }
            let next = newest.saturating_add(1);
            if step > next {
                return bad(format!("step {step} comes before step {next}"));
            }
        }
        if let Some(newest) = self.newest.filter(|&newest| step <= newest) {
            return bad(format!("step {step} comes after step {newest}, the newest applied or dropped one"));
        }
        if self.steps.len() >= OPEN_STEPS_MAX {
            let open: Vec<&u64> = self.steps.keys().collect();
            let text = format!("step {step}: the limit of {OPEN_STEPS_MAX} open steps, {open:?}, is reached");
            return Err(Refusal::new(Code::TooMany, text));
        }
        Ok(true)
    }
}

impl<B> OpenStep<B> {
    fn new(head: &PartHead, terms: Terms) -> Self {
        let PartHead { slices, may_repeat, at_once, .. } = *head;
        let (infinite, blocks, lasts) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { slices, may_repeat, at_once, terms, infinite, blocks, lasts }
    }

    fn add(&mut self, head: &PartHead, block: Block<B>) {
        let PartHead { slice, block: number, is_last, is_finite, may_repeat, .. } = *head;
        if !is_finite {
            self.infinite.insert(slice);
        }
        if is_finite || !may_repeat {
            self.blocks.insert((slice, number), block);
            if is_last {
                self.lasts.insert(slice, number);
            }
            return;
        }
        // Another client may have given some blocks of this slice; the rest of them are not wanted any more.
        self.blocks.retain(|&(other, _), _| other != slice);
        self.blocks.insert((slice, 0), block);
        self.lasts.insert(slice, 0);
    }

    fn is_complete(&self) -> bool {
        // No block comes twice or after its slice's last one, so the count tells whether all are here.
        let wanted = self.lasts.values().map(|&last| usize::from(last) + 1).sum::<usize>();
        self.lasts.len() == usize::from(self.slices) && self.blocks.len() == wanted
    }

    /// Whether a block that may repeat is here, or has nothing that is still wanted.
    fn has_already(&self, head: &PartHead, keys: usize) -> Result<bool, Refusal> {
        let PartHead { step, slice, block, is_last, is_finite, .. } = *head;
        let last = self.lasts.get(&slice);
        if self.infinite.contains(&slice) {
            return Ok(true);
        }
        if !is_finite {
            let blocks = self.blocks.range((slice, 0)..=(slice, u16::MAX)).count();
            return Ok(last.is_some_and(|&last| blocks == usize::from(last) + 1));
        }
        match self.blocks.get(&(slice, block)) {
            Some(here) if here.keys != keys || is_last != (last == Some(&block)) => {
                let text = format!("step {step}: block {block} of slice {slice} has {} keys here", here.keys);
                bad(format!("{text}, the request has {keys} and ends the slice: {is_last}"))
            }
            here => Ok(here.is_some()),
        }
    }

    fn is_new(&self, head: &PartHead, terms: Terms, keys: usize) -> Result<bool, Refusal> {
        let PartHead { step, slice, slices, block, is_last, is_finite, may_repeat, at_once } = *head;
        if slices != self.slices {
            return bad(format!("step {step} has {} slices, the request {slices}", self.slices));
        }
        if terms != self.terms {
            return bad(format!("step {step} has {}, the request {terms}", self.terms));
        }
        if (may_repeat, at_once) != (self.may_repeat, self.at_once) {
            return bad(format!("step {step}: some slices may repeat or are applied at once, others not"));
        }
        if may_repeat && self.has_already(head, keys)? {
            return Ok(false);
        }
        if may_repeat && !is_finite {
            return Ok(true);
        }
        if self.blocks.contains_key(&(slice, block)) {
            return bad(format!("step {step} has block {block} of slice {slice} already"));
        }
        let last = self.lasts.get(&slice).copied().filter(|&last| block > last);
        if let Some(last) = last {
            return bad(format!("step {step}: block {block} of slice {slice} comes after {last}, the last"));
        }
        let newest = self.blocks.range((slice, block)..=(slice, u16::MAX)).next_back();
        if let Some(((_, newest), _)) = newest.filter(|_| is_last) {
            return bad(format!(
                "step {step}: block {block} of slice {slice} cannot be the last: {newest} is here"
            ));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { now_ms: 5, rate_scale: 1.0 };

    fn head(step: u64, (slice, slices): (u16, u16), block: u16, is_last: bool) -> PartHead {
        let (is_finite, may_repeat, at_once) = (true, false, false);
        PartHead { step, slice, slices, block, is_last, is_finite, may_repeat, at_once }
    }

    fn give<B>(
        steps: &mut OpenSteps<B>,
        head: &PartHead,
        content: B,
    ) -> Result<Vec<CompleteStep<B>>, Refusal> {
        steps.give(head, TERMS, 1, || Ok(content)).map(|due| due.steps)
    }

    fn text(outcome: Result<Vec<CompleteStep<char>>, Refusal>) -> String {
        outcome.unwrap_err().to_string()
    }

    proptest! {
        /// Step 1 and the steps after it have the slices of `plan`, each with some blocks. Blocks come in any
        /// order, are lost and come again, until all have come. A plain set knows what must happen.
        #[test]
        fn in_any_order_each_step_leaves_once_whole_and_after_those_before_it(
            plan in prop::collection::vec((prop::collection::vec(1u16..4, 1..5), any::<bool>()), 1..=OPEN_STEPS_MAX),
            picks in prop::collection::vec(any::<usize>(), 0..200),
        ) {
            let heads: Vec<PartHead> = (1..).zip(&plan).flat_map(|(step, (slices, is_finite))| {
                let count = slices.len() as u16;
                (0..).zip(slices).flat_map(move |(slice, &blocks)| (0..blocks).map(move |block| {
                    let is_finite = *is_finite || slice > 0;
                    PartHead { is_finite, ..head(step, (slice, count), block, block + 1 == blocks) }
                }))
            }).collect();
            let place = |head: &PartHead| (head.step, head.slice, head.block);
            let places = |step| heads.iter().map(place).filter(move |place| place.0 == step);
            let (mut steps, mut given, mut newest) = (OpenSteps::default(), BTreeSet::new(), 0);
            let token = Rc::new(());
            for pick in picks.into_iter().chain(0..heads.len()) {
                let head = &heads[pick % heads.len()];
                let is_taken = head.step > newest && given.insert(place(head));
                let outcome = give(&mut steps, head, (place(head), token.clone()));
                prop_assert_eq!(outcome.is_ok(), is_taken, "{:?}", head);
                for complete in outcome.unwrap_or_default() {
                    let open = given.iter().map(|place| place.0).find(|&step| step > newest);
                    newest = complete.step;
                    prop_assert_eq!(open, Some(newest));
                    prop_assert!(places(newest).all(|place| given.contains(&place)));
                    let is_finite = plan[newest as usize - 1].1;
                    let blocks: Vec<_> = complete.blocks.into_iter().map(|block| block.0).collect();
                    prop_assert_eq!(blocks, places(newest).filter(|_| is_finite).collect::<Vec<_>>());
                }
                let held = given.iter().filter(|place| place.0 > newest).count();
                prop_assert_eq!(Rc::strong_count(&token), 1 + held);
                let first = given.iter().map(|place| place.0).find(|&step| step > newest);
                prop_assert!(first.is_none_or(|step| places(step).any(|place| !given.contains(&place))));
            }
            prop_assert!(steps.steps.is_empty() && newest > 0);
        }
    }

    proptest! {
        /// Every slice is given by one worker, and at last by another one that takes it over; either may find it not
        /// finite. `plan` has the blocks of each slice and who does. Blocks of the steps so far come again at any time.
        #[test]
        fn of_a_slice_that_may_repeat_each_block_is_due_once_whoever_gives_it(
            plan in prop::collection::vec(prop::collection::vec((1u16..4, 0u8..6), 1..4), 1..6),
            picks in prop::collection::vec(any::<usize>(), 0..200), at_once in any::<bool>(),
        ) {
            let (mut steps, mut heads, mut picks) = (OpenSteps::default(), Vec::new(), picks.into_iter());
            for (step, slices) in (1..).zip(&plan) {
                let (count, mut over) = (slices.len() as u16, Vec::new());
                for (slice, &(blocks, infinite)) in (0..).zip(slices) {
                    for worker in 0..2 {
                        let is_finite = infinite != worker;
                        let blocks = if is_finite { blocks } else { 1 };
                        let of = |block| PartHead {
                            is_finite, may_repeat: true, at_once, ..head(step, (slice, count), block, block + 1 == blocks)
                        };
                        heads.extend((0..blocks).map(of));
                        over.extend((0..blocks).map(of).filter(|_| worker == 1));
                    }
                }
                let (mut taken, mut infinite, mut is_open) = (BTreeSet::new(), BTreeSet::new(), true);
                let some: Vec<_> = picks.by_ref().take(40).map(|pick| heads[pick % heads.len()]).collect();
                for head in some.into_iter().chain(over) {
                    let PartHead { slice, block, is_finite, .. } = head;
                    let has = |taken: &BTreeSet<(u16, u16)>, infinite: &BTreeSet<u16>, slice: u16| {
                        infinite.contains(&slice)
                            || (0..slices[usize::from(slice)].0).all(|block| taken.contains(&(slice, block)))
                    };
                    let is_known = || infinite.contains(&slice)
                        || if is_finite { taken.contains(&(slice, block)) } else { has(&taken, &infinite, slice) };
                    let is_new = is_open && head.step == step && !is_known();
                    let keys = usize::from(block + slice) * usize::from(is_finite);
                    let due = steps.give(&head, TERMS, keys, || Ok((slice, block))).unwrap();
                    prop_assert_eq!(due.block, at_once && is_new);
                    match (is_new, is_finite) {
                        (true, true) => drop(taken.insert((slice, block))),
                        (true, false) => drop(infinite.insert(slice)),
                        (false, _) => {}
                    }
                    if is_new && (0..count).all(|slice| has(&taken, &infinite, slice)) {
                        is_open = false;
                        let whole: Vec<_> = if infinite.is_empty() { taken.iter().copied().collect() } else { vec![] };
                        let whole = CompleteStep { step, terms: TERMS, blocks: whole };
                        prop_assert_eq!(due.steps, if at_once { vec![] } else { vec![whole] });
                    } else {
                        prop_assert!(due.steps.is_empty());
                    }
                    prop_assert_eq!(steps.open(), usize::from(is_open && !(taken.is_empty() && infinite.is_empty())));
                }
                prop_assert!(!is_open);
            }
        }
    }

    #[test]
    fn a_slice_that_comes_again_with_other_blocks_or_after_a_failure_is_refused() {
        let mut steps = OpenSteps::default();
        let of = |step, block, is_last| PartHead { may_repeat: true, ..head(step, (0, 2), block, is_last) };
        let mut given =
            |head: PartHead, keys| steps.give(&head, TERMS, keys, || Ok(())).map(|due| due.steps.len());
        assert_eq!((given(of(7, 0, false), 9), given(of(7, 0, false), 9)), (Ok(0), Ok(0)));
        for (head, keys) in [(of(7, 0, true), 9), (of(7, 0, false), 8)] {
            assert!(
                given(head, keys)
                    .unwrap_err()
                    .text
                    .contains("block 0 of slice 0 has 9 keys here, the request")
            );
        }
        let once = PartHead { at_once: true, ..of(7, 1, true) };
        assert!(given(once, 1).unwrap_err().text.contains("some slices may repeat or are applied at once"));
        // A step that is left out would later be taken for a complete one.
        assert!(given(of(9, 0, true), 1).unwrap_err().text.contains("step 9 comes before step 8"));
        let full = Refusal::new(Code::Full, "a table is full");
        assert_eq!(steps.give(&of(7, 1, true), TERMS, 1, || Err(full.clone())), Err(full.clone()));
        steps.fail(full.clone());
        steps.fail(Refusal::new(Code::Internal, "a later one"));
        for block in 0..2 {
            assert_eq!(steps.give(&of(7, block, block > 0), TERMS, 9, || Ok(())), Err(full.clone()));
        }
    }

    #[test]
    fn blocks_that_cannot_be_are_refused_with_their_values_and_change_nothing() {
        let mut steps = OpenSteps::default();
        assert_eq!(give(&mut steps, &head(7, (1, 2), 1, true), 'b'), Ok(vec![]));
        let mut refused = |head: PartHead| text(give(&mut steps, &head, 'x'));
        assert!(refused(head(7, (2, 2), 0, true)).contains("slice 2 of 2"));
        assert!(refused(head(7, (0, 0), 0, true)).contains("1 to 1024 slices"));
        assert!(refused(head(7, (0, 1025), 0, true)).contains("slice 0 of 1025"));
        assert!(refused(head(7, (0, 3), 0, true)).contains("step 7 has 2 slices, the request 3"));
        assert!(refused(head(7, (1, 2), 1, true)).contains("block 1 of slice 1 already"));
        assert!(refused(head(7, (1, 2), 2, false)).contains("block 2 of slice 1 comes after 1, the last"));
        assert!(
            refused(head(7, (1, 2), 0, true)).contains("block 0 of slice 1 cannot be the last: 1 is here")
        );
        let other = Terms { rate_scale: 0.5, ..TERMS };
        assert!(
            steps
                .give(&head(7, (0, 2), 0, true), other, 1, || Ok('x'))
                .unwrap_err()
                .text
                .contains("rate_scale of 0.5")
        );
        assert_eq!(give(&mut steps, &head(7, (1, 2), 0, false), 'a'), Ok(vec![]));
        let complete = give(&mut steps, &head(7, (0, 2), 0, true), '0').unwrap();
        assert_eq!(complete, [CompleteStep { step: 7, terms: TERMS, blocks: vec!['0', 'a', 'b'] }]);
        for step in [6, 7] {
            assert!(text(give(&mut steps, &head(step, (0, 2), 0, true), 'x')).contains("after step 7"));
        }
    }

    #[test]
    fn a_complete_step_waits_for_the_open_ones_before_it_and_no_more_are_open_than_may() {
        let mut steps = OpenSteps::default();
        assert_eq!(give(&mut steps, &head(4, (0, 2), 0, true), 'a'), Ok(vec![]));
        for step in 5..8 {
            assert_eq!(give(&mut steps, &head(step, (0, 1), 0, true), 'b'), Ok(vec![]));
        }
        let refusal = give(&mut steps, &head(8, (0, 1), 0, true), 'x').unwrap_err();
        assert_eq!(refusal.code, Code::TooMany);
        assert!(refusal.text.contains("[4, 5, 6, 7]"), "{refusal}");
        let infinite = PartHead { is_finite: false, ..head(4, (1, 2), 0, true) };
        let complete = give(&mut steps, &infinite, 'c').unwrap();
        let blocks: Vec<_> = complete.iter().map(|step| (step.step, step.blocks.len())).collect();
        assert_eq!(blocks, [(4, 0), (5, 1), (6, 1), (7, 1)]);
    }
}
