//! The driver of a call: cuts it into blocks for every shard, keeps a few under way at each, and lands what comes.

use std::sync::Arc;
use std::time::Instant;

use super::ClientCore;
use super::call::{Call, Event};
use crate::epoch::Epoch;
use crate::error::{PsError, Result, Trouble};
use crate::frame::Kind;
use crate::message::SliceHead;

/// What a call asks for, block by block.
pub trait Work {
    /// The frame of a shard's next block, and how many keys' rows answer it. None: nothing more is asked of this shard.
    fn next(&mut self, shard: usize, block: usize) -> Option<Result<(Vec<u8>, usize)>>;

    /// Rows of a block have come; those of a block may come again. An error says what is wrong with them.
    fn land(&mut self, block: usize, head: SliceHead, rows: &[u8]) -> std::result::Result<(), String>;

    /// The answer to a block has come.
    fn done(&mut self, block: usize, payload: &[u8]) -> std::result::Result<(), String>;
}

/// Blocks under way.
struct Driver<'a> {
    core: &'a ClientCore,
    call: Arc<Call>,
    /// The shard of each block.
    shards: Vec<usize>,
    /// Blocks each shard has to answer.
    in_flight: Vec<usize>,
    is_asked: Vec<bool>,
}

/// Have all blocks of a call answered before the deadline.
pub fn drive(
    core: &ClientCore,
    (kind, epoch): (Kind, Epoch),
    deadline: Instant,
    work: &mut impl Work,
) -> Result<()> {
    let count = core.links.len();
    let (in_flight, is_asked) = (vec![0; count], vec![false; count]);
    let mut driver = Driver { core, call: Call::new(), shards: Vec::new(), in_flight, is_asked };
    let done = driver.drive((kind, epoch), deadline, work);
    driver.call.end();
    if done.is_err() {
        core.links.iter().for_each(|link| link.forget(&driver.call));
    }
    done
}

impl Driver<'_> {
    fn drive(&mut self, what: (Kind, Epoch), deadline: Instant, work: &mut impl Work) -> Result<()> {
        loop {
            self.ask(what, work)?;
            if self.in_flight.iter().all(|&blocks| blocks == 0) {
                return Ok(());
            }
            let Some(event) = self.call.wait(deadline) else { return Err(self.late()) };
            let (block, landed) = match event {
                Event::Rows { block, head, payload, is_last } => {
                    let landed =
                        work.land(block as usize, head, &payload[crate::message::SLICE_HEAD_BYTES..]);
                    self.core.pool.give(payload);
                    (block, landed.map(|()| is_last))
                }
                Event::Done { block, payload } => {
                    let done = work.done(block as usize, &payload);
                    self.core.pool.give(payload);
                    (block, done.map(|()| true))
                }
                Event::Failed { error, .. } => return Err(error),
            };
            let shard = self.shards[block as usize];
            let wrong = |text| PsError::at(Trouble::Settings, self.core.links[shard].name(), text);
            if landed.map_err(wrong)? {
                self.in_flight[shard] -= 1;
            }
        }
    }

    /// Ask every shard for as much as may be under way, in turns.
    fn ask(&mut self, (kind, epoch): (Kind, Epoch), work: &mut impl Work) -> Result<()> {
        let in_flight_max = self.core.settings.limits.in_flight_max;
        loop {
            let mut has_asked = false;
            for shard in 0..self.in_flight.len() {
                if self.is_asked[shard] || self.in_flight[shard] >= in_flight_max {
                    continue;
                }
                let block = self.shards.len();
                let Some(next) = work.next(shard, block) else {
                    self.is_asked[shard] = true;
                    continue;
                };
                let (frame, keys) = next?;
                self.core.links[shard].submit(&self.call, block as u32, (kind, Some(epoch)), frame, keys)?;
                self.shards.push(shard);
                self.in_flight[shard] += 1;
                has_asked = true;
            }
            if !has_asked {
                return Ok(());
            }
        }
    }

    fn late(&self) -> PsError {
        let waits = self.in_flight.iter().position(|&blocks| blocks > 0).unwrap_or(0);
        let (link, ms) = (&self.core.links[waits], self.core.settings.limits.retry_wait_ms_max);
        let text = format!("no answer within {ms} ms{}", link.trouble_text());
        PsError::at(Trouble::Unreachable, link.name(), text)
    }
}
