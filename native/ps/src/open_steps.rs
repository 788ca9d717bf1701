//! The open steps of one table: blocks of slices, held until a step has all of them. Decides; applies nothing.
//!
//! Complete steps leave in the order of their numbers, so a step waits for each open step before it.

use std::collections::BTreeMap;
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

struct OpenStep<B> {
    slices: u16,
    terms: Terms,
    is_finite: bool,
    /// By slice and block.
    blocks: BTreeMap<(u16, u16), B>,
    /// The last block of each slice that has it.
    lasts: BTreeMap<u16, u16>,
}

/// The open steps of one table.
pub struct OpenSteps<B> {
    steps: BTreeMap<u64, OpenStep<B>>,
    /// The newest step that left.
    newest: Option<u64>,
}

impl<B> Default for OpenSteps<B> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), newest: None }
    }
}

fn bad<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal::new(Code::BadRequest, text))
}

impl<B> OpenSteps<B> {
    /// Takes a block, and returns the steps that must be applied now, in order. A refused block changes
    /// nothing.
    pub fn give(
        &mut self,
        head: &PartHead,
        terms: Terms,
        content: B,
    ) -> Result<Vec<CompleteStep<B>>, Refusal> {
        self.check(head, terms)?;
        let PartHead { step, slice, slices, block, is_last, is_finite } = *head;
        let open = self.steps.entry(step).or_insert_with(|| OpenStep {
            slices,
            terms,
            is_finite: true,
            blocks: BTreeMap::new(),
            lasts: BTreeMap::new(),
        });
        open.is_finite &= is_finite;
        open.blocks.insert((slice, block), content);
        if is_last {
            open.lasts.insert(slice, block);
        }
        let mut complete = Vec::new();
        while let Some(first) = self.steps.first_entry().filter(|entry| entry.get().is_complete()) {
            let (step, OpenStep { terms, is_finite, blocks, .. }) = first.remove_entry();
            self.newest = Some(step);
            let blocks = if is_finite { blocks.into_values().collect() } else { Vec::new() };
            complete.push(CompleteStep { step, terms, blocks });
        }
        Ok(complete)
    }

    fn check(&self, head: &PartHead, terms: Terms) -> Result<(), Refusal> {
        check_slice(head.slice, head.slices)?;
        let step = head.step;
        if let Some(newest) = self.newest.filter(|&newest| step <= newest) {
            return bad(format!("step {step} comes after step {newest}, the newest applied or dropped one"));
        }
        match self.steps.get(&step) {
            Some(open) => open.check(head, terms),
            None if self.steps.len() >= OPEN_STEPS_MAX => {
                let open: Vec<&u64> = self.steps.keys().collect();
                let text =
                    format!("step {step}: the limit of {OPEN_STEPS_MAX} open steps, {open:?}, is reached");
                Err(Refusal::new(Code::TooMany, text))
            }
            None => Ok(()),
        }
    }
}

impl<B> OpenStep<B> {
    fn is_complete(&self) -> bool {
        // No block comes twice or after its slice's last one, so the count tells whether all are here.
        let wanted = self.lasts.values().map(|&last| usize::from(last) + 1).sum::<usize>();
        self.lasts.len() == usize::from(self.slices) && self.blocks.len() == wanted
    }

    fn check(&self, head: &PartHead, terms: Terms) -> Result<(), Refusal> {
        let PartHead { step, slice, slices, block, is_last, .. } = *head;
        if slices != self.slices {
            return bad(format!("step {step} has {} slices, the request {slices}", self.slices));
        }
        if terms != self.terms {
            return bad(format!("step {step} has {}, the request {terms}", self.terms));
        }
        if self.blocks.contains_key(&(slice, block)) {
            return bad(format!("step {step} has block {block} of slice {slice} already"));
        }
        let newest = self.blocks.range((slice, block)..=(slice, u16::MAX)).next_back();
        let last = self.lasts.get(&slice).copied().filter(|&last| block > last);
        if let Some(last) = last {
            return bad(format!("step {step}: block {block} of slice {slice} comes after {last}, the last"));
        }
        if let Some(((_, newest), _)) = newest.filter(|_| is_last) {
            return bad(format!(
                "step {step}: block {block} of slice {slice} cannot be the last: {newest} is here"
            ));
        }
        Ok(())
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
        PartHead { step, slice, slices, block, is_last, is_finite: true }
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
                let outcome = steps.give(head, TERMS, (place(head), token.clone()));
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

    #[test]
    fn blocks_that_cannot_be_are_refused_with_their_values_and_change_nothing() {
        let mut steps = OpenSteps::default();
        assert_eq!(steps.give(&head(7, (1, 2), 1, true), TERMS, 'b'), Ok(vec![]));
        let mut refused = |head: PartHead| text(steps.give(&head, TERMS, 'x'));
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
        assert!(text(steps.give(&head(7, (0, 2), 0, true), other, 'x')).contains("rate_scale of 0.5"));
        assert_eq!(steps.give(&head(7, (1, 2), 0, false), TERMS, 'a'), Ok(vec![]));
        let complete = steps.give(&head(7, (0, 2), 0, true), TERMS, '0').unwrap();
        assert_eq!(complete, [CompleteStep { step: 7, terms: TERMS, blocks: vec!['0', 'a', 'b'] }]);
        for step in [6, 7] {
            assert!(text(steps.give(&head(step, (0, 2), 0, true), TERMS, 'x')).contains("after step 7"));
        }
    }

    #[test]
    fn a_complete_step_waits_for_the_open_ones_before_it_and_no_more_are_open_than_may() {
        let mut steps = OpenSteps::default();
        assert_eq!(steps.give(&head(4, (0, 2), 0, true), TERMS, 'a'), Ok(vec![]));
        for step in 5..8 {
            assert_eq!(steps.give(&head(step, (0, 1), 0, true), TERMS, 'b'), Ok(vec![]));
        }
        let refusal = steps.give(&head(8, (0, 1), 0, true), TERMS, 'x').unwrap_err();
        assert_eq!(refusal.code, Code::TooMany);
        assert!(refusal.text.contains("[4, 5, 6, 7]"), "{refusal}");
        let infinite = PartHead { is_finite: false, ..head(4, (1, 2), 0, true) };
        let complete = steps.give(&infinite, TERMS, 'c').unwrap();
        let blocks: Vec<_> = complete.iter().map(|step| (step.step, step.blocks.len())).collect();
        assert_eq!(blocks, [(4, 0), (5, 1), (6, 1), (7, 1)]);
    }
}
