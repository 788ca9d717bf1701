//! The driver of a call: cuts it into blocks for every shard, keeps a few in flight at each, and passes on
//! the answers.

use std::sync::Arc;
use std::time::Instant;

use super::ClientCore;
use super::call::{Call, Event};
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::Kind;
use crate::message::SliceHead;

/// The content of a call, block by block.
pub trait Work {
    /// Returns the frame of the shard's next block, and the number of keys whose rows answer it; `None` if
    /// nothing is left for this shard.
    fn next(&mut self, shard: usize, block: usize) -> Option<Result<(Vec<u8>, usize)>>;

    /// Takes rows of a block; after a reconnect the rows of a block can arrive again. Returns an error text
    /// if they are invalid.
    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String>;

    /// Takes the answer to a block.
    fn done(&mut self, block: usize, payload: &[u8]) -> std::result::Result<(), String>;
}

/// The blocks of one call.
struct Driver<'a> {
    core: &'a ClientCore,
    call: Arc<Call>,
    /// The shard of each block.
    shards: Vec<usize>,
    /// Unanswered blocks of each shard.
    in_flight: Vec<usize>,
    is_exhausted: Vec<bool>,
}

/// Runs a call until all its blocks are answered, or the deadline passes.
pub fn drive(
    core: &ClientCore,
    (kind, epoch): (Kind, Epoch),
    deadline: Instant,
    work: &mut impl Work,
) -> Result<()> {
    let count = core.links.len();
    let (in_flight, is_exhausted) = (vec![0; count], vec![false; count]);
    let mut driver = Driver { core, call: Call::new(), shards: Vec::new(), in_flight, is_exhausted };
    let result = driver.drive((kind, epoch), deadline, work);
    driver.call.end();
    if result.is_err() {
        core.links.iter().for_each(|link| link.forget(&driver.call));
    }
    result
}

impl Driver<'_> {
    fn drive(
        &mut self,
        kind_and_epoch: (Kind, Epoch),
        deadline: Instant,
        work: &mut impl Work,
    ) -> Result<()> {
        loop {
            self.send(kind_and_epoch, work)?;
            if self.in_flight.iter().all(|&blocks| blocks == 0) {
                return Ok(());
            }
            let Some(event) = self.call.wait(deadline) else { return Err(self.timeout_error()) };
            let (block, finished) = match event {
                Event::Rows { block, head, payload, is_last } => {
                    let finished =
                        work.land(block as usize, head, &payload[crate::message::SLICE_HEAD_BYTES..]);
                    self.core.pool.give(payload);
                    (block, finished.map(|()| is_last))
                }
                Event::Done { block, payload } => {
                    let result = work.done(block as usize, &payload);
                    self.core.pool.give(payload);
                    (block, result.map(|()| true))
                }
                Event::Failed { error, .. } => return Err(error),
            };
            let shard = self.shards[block as usize];
            let protocol_error = |text| PsError::at(Trouble::Settings, self.core.links[shard].name(), text);
            if finished.map_err(protocol_error)? {
                self.in_flight[shard] -= 1;
            }
        }
    }

    /// Sends blocks to every shard in turn, up to `in_flight_max` each.
    fn send(&mut self, (kind, epoch): (Kind, Epoch), work: &mut impl Work) -> Result<()> {
        let in_flight_max = self.core.settings.limits.in_flight_max;
        loop {
            let mut has_sent = false;
            for shard in 0..self.in_flight.len() {
                if self.is_exhausted[shard] || self.in_flight[shard] >= in_flight_max {
                    continue;
                }
                let block = self.shards.len();
                let Some(next) = work.next(shard, block) else {
                    self.is_exhausted[shard] = true;
                    continue;
                };
                let (frame, keys) = next?;
                self.core.links[shard].submit(&self.call, block as u32, (kind, Some(epoch)), frame, keys)?;
                self.shards.push(shard);
                self.in_flight[shard] += 1;
                has_sent = true;
            }
            if !has_sent {
                return Ok(());
            }
        }
    }

    fn timeout_error(&self) -> PsError {
        let shard = self.in_flight.iter().position(|&blocks| blocks > 0).unwrap_or(0);
        let (link, ms) = (&self.core.links[shard], self.core.settings.limits.retry_wait_ms_max);
        let text = format!("no answer within {ms} ms{}", link.trouble_text());
        PsError::at(Trouble::Unreachable, link.name(), text)
    }
}
