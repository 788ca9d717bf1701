//! Results: what lanes return of their work, and what is done if they return nothing.

use std::sync::Arc;
use std::time::Instant;

use super::{Front, Work};
use crate::answer::Refusal;
use crate::request::Request;
use crate::versions::item_index::{FoundItems, Sampled};

impl Front {
    /// Removes a lane until it asks for work again; other lanes retry its work.
    pub fn leave(&self, lane: usize) {
        let mut state = self.lock();
        let away = Refusal::Away("the lane is away".into());
        state.try_alone(lane, &away);
        state.rested_us.remove(&lane);
        for ticket in state.scheduler.leave(lane) {
            state.refuse(ticket, "given_up", away.clone());
        }
        drop(state);
        self.work.notify_all();
    }

    /// Takes the results of a lane's work: a row of `labels` logits for each candidate.
    pub fn give(&self, mut work: Work, scores: &[f32]) {
        let labels = self.inputs.labels.len();
        if scores.len() < work.candidates * labels {
            let text = format!(
                "{} scores are too few for {} candidates and {labels} labels",
                scores.len(),
                work.candidates
            );
            return self.fail(work, &text);
        }
        let (mut found, sampled) = match self.found(&work, scores) {
            Ok(found) => found,
            Err(text) => return self.fail(work, &text),
        };
        let duration = work.begun.elapsed();
        let duration_us = duration.as_secs_f64() * 1e6;
        let mut rows = scores.chunks_exact(labels);
        let readers = self.readers();
        let rests = self.rest_share(&readers);
        let mut state = self.lock();
        if !state.scheduler.is_on(work.lane, work.plan) {
            return; // its requests were handled when the lane was restarted
        }
        // Requests that wait have to wait for rests, too.
        let busy_us = duration_us + state.rested_us.remove(&work.lane).unwrap_or(0.0);
        if let Some(mut shadow_request) = work.shadow_request.take() {
            shadow_request.scores.extend_from_slice(&scores[..work.candidates * labels]);
            state.shadow.give(shadow_request);
            state.scheduler.done_in(work.lane, busy_us);
            return;
        }
        for (at, (ticket, range)) in work.parts.iter().enumerate() {
            match state.waiting.get_mut(ticket) {
                Some(waiting) => {
                    waiting.found = found.get_mut(at).and_then(Option::take).map(Box::new);
                    let target = &mut waiting.scores[range.start * labels..range.end * labels];
                    for (row, scored) in target.chunks_exact_mut(labels).zip(&mut rows) {
                        row.copy_from_slice(scored);
                    }
                }
                // The caller has gone away.
                None => rows.by_ref().take(range.len()).for_each(drop),
            }
        }
        let now_us = self.now_us();
        state.load.busy(now_us, busy_us);
        state.statistics.executed(work.number, work.candidates, work.gathering, duration - work.gathering);
        for ticket in state.scheduler.done_in(work.lane, busy_us) {
            state.answer(ticket, now_us);
        }
        drop(state);
        self.work.notify_one();
        readers.end_turn();
        // The request is answered, and nobody waits for this.
        if let Some(Ok((found, missed))) = sampled.map(|sampled| sampled.recall()) {
            self.measures.recalled(found, missed);
        }
        if rests > 0.0 {
            self.rest(work.lane, duration, &readers, rests);
        }
    }

    /// Finds the items of the work's requests whose callers still wait, by the users' vectors, one for each request.
    /// This takes far longer than the rest, so nothing is locked. Returns a sample of the requests too.
    fn found(
        &self,
        work: &Work,
        vectors: &[f32],
    ) -> Result<(Vec<Option<FoundItems>>, Option<Sampled>), String> {
        let Some(items) = &work.items else { return Ok(Default::default()) };
        let begun = Instant::now();
        let state = self.lock();
        let request = |ticket| state.waiting.get(ticket).map(|waiting| waiting.request.clone());
        let requests: Vec<Option<Arc<Request>>> =
            work.parts.iter().map(|(ticket, _)| request(ticket)).collect();
        drop(state);
        let wishes: Vec<_> = requests.iter().map(|request| request.as_ref()?.items.as_deref()).collect();
        let (found, scanned) = items.find(vectors, &wishes)?;
        self.measures.searched(found.iter().flatten().count() as u64, scanned, begun.elapsed());
        let is_probed = |found: &Option<FoundItems>| found.as_ref().is_some_and(|one| one.probed.is_some());
        let probed = found.iter().filter(|found| is_probed(found)).count() as u64;
        let sampled = self.measures.probed(probed).then(|| {
            let at = found.iter().position(is_probed)?;
            let (request, dim) = (requests[at].clone()?, items.blocks.dim());
            let vector = vectors[at * dim..][..dim].to_vec();
            Some(Sampled { request, vector, found: found[at].clone()? })
        });
        Ok((found, sampled.flatten()))
    }

    /// Reports that a lane could not do its work. Merged requests are retried once, each alone; a request
    /// that was alone is refused.
    pub fn fail(&self, work: Work, reason: &str) {
        self.lost(&work, &Refusal::Broken(reason.to_owned()));
    }

    /// Reports that a lane was lost with its work. Requests are retried as in `fail`; callers of refused ones
    /// may try again.
    pub fn lose(&self, work: Work, reason: &str) {
        self.lost(&work, &Refusal::Away(reason.to_owned()));
    }

    fn lost(&self, work: &Work, refusal: &Refusal) {
        let mut state = self.lock();
        if state.scheduler.is_on(work.lane, work.plan) {
            state.rested_us.remove(&work.lane);
            state.failed(work.shadow_request.is_some());
            state.load.failed(self.now_us());
            state.try_alone(work.lane, refusal);
        }
        drop(state);
        self.work.notify_all();
    }
}
