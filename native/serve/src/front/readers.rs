//! Readers: what a front does for the threads that read its requests. Its lanes rest, and requests are refused unread.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Front;
use super::reader_waits::{REST_MAX, ReaderWaits, pause_after};
use crate::answer::Refusal;
use crate::request::Wishes;

/// The retry hint of a request that is refused before it is read.
const UNREAD_RETRY_MS: u64 = 100;

impl Front {
    /// Returns the threads that read its requests, for which its lanes rest.
    pub fn readers(&self) -> Arc<ReaderWaits> {
        self.readers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the share of their time that its lanes should rest for threads; lanes that are processes do not.
    pub fn rest_share(&self, readers: &ReaderWaits) -> f32 {
        if self.pool.region().is_some() { 0.0 } else { readers.share() }
    }

    /// Makes its lanes rest for the threads of another front from now on.
    pub fn rest_for(&self, readers: Arc<ReaderWaits>) {
        *self.readers.write().unwrap_or_else(PoisonError::into_inner) = readers;
    }

    /// Refuses a request before it is read, if the threads that read cannot follow and it is of those that are worth the
    /// least.
    ///
    /// # Errors
    /// If it is refused.
    pub fn admit_unread(&self, wishes: &Wishes) -> Result<(), Refusal> {
        let value = wishes.value.unwrap_or(1.0).min(self.limits.value_max);
        if !self.readers().refuses_unread(wishes.priority, value) {
            return Ok(());
        }
        self.measures.refused("unread");
        let text = "the node cannot read all requests, and others are worth more".into();
        Err(Refusal::Busy { retry_ms: UNREAD_RETRY_MS, text })
    }

    /// Waits until few enough lanes work, or a processor is free, because threads that read requests need one.
    pub(super) fn rest(&self, lane: usize, worked: Duration, readers: &ReaderWaits, share: f32) {
        let begin = Instant::now();
        let mut state = self.lock();
        let (_, lanes) = state.scheduler.lanes();
        let rest_us = pause_after(worked, 1.0 - share).as_micros() as u64;
        state.scheduler.rest(lane, self.now_us() + rest_us);
        drop(state);
        let allowed = lanes as f32 * (1.0 - share);
        let (until, mut turn): (_, Option<(usize, Instant)>) = (begin + REST_MAX, None);
        readers.wait_turn(share, || {
            let state = self.lock();
            let ((others, _), now) = (state.scheduler.lanes(), Instant::now());
            if !state.is_open || others < allowed as usize {
                return None;
            }
            // The pause starts over whenever another lane has begun or ended its work.
            let since = turn.filter(|&(count, _)| count == others).map_or(now, |(_, since)| since);
            turn = Some((others, since));
            let pause_ends = since + pause_after(worked, allowed.fract());
            let may_work = if others == allowed as usize { pause_ends.min(until) } else { until };
            Some(may_work.saturating_duration_since(now)).filter(|left| !left.is_zero())
        });
        self.lock().rested_us.insert(lane, begin.elapsed().as_secs_f64() * 1e6);
    }
}
