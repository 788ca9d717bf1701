//! Work: handles pulls and pushes in slices short enough that other connections of the thread hardly wait.

use std::borrow::Cow;

use streamlearn_table::{Admit, At, PARTS, Pin, Push, Pushed, Table, mix, part_of_hash};
use streamlearn_wire::checksum::crc32c;
use tokio::task::yield_now;

use super::ServerCore;
use super::connection::{Connection, End};
use super::slices;
use super::stage::{InUse, Outcome};
use crate::frame::{CHECK_BYTES, HEADER_BYTES, Header, Kind, MORE, REPLY};
use crate::message::{Columns, PartAsk, PullAsk, PushAsk, PushReply, SLICE_HEAD_BYTES, SliceHead};
use crate::numbers::{Encoding, bytes_of, bytes_of_mut};
use crate::refusal::{Code, Refusal};
use crate::window::Decision;

/// Bytes of rows in a slice: few enough to stay in the cache between the table and the socket.
const SLICE_BYTES: usize = 256 << 10;
/// The maximum number of keys read at a time, whatever the size of their rows.
const READ_KEYS_MAX: usize = 4096;
/// The maximum number of keys updated at a time.
pub(super) const LEARN_KEYS_MAX: usize = 1024;
/// The largest absolute gradient accepted: the sum of squares of a row of any dim stays finite.
const GRADIENT_MAX: f32 = 1e17;
/// The largest absolute factor accepted for the learning rate.
const RATE_SCALE_MAX: f32 = 1e6;
/// The largest absolute table time accepted, beyond any event's time.
pub const CLOCK_MS_MAX: i64 = 1 << 53;
const HEAD_FLOATS: usize = (HEADER_BYTES + SLICE_HEAD_BYTES) / 4;

fn table_of(in_use: &InUse, number: u16) -> Result<&Table, Refusal> {
    let tables = in_use.installed().tables.tables();
    tables
        .get(usize::from(number))
        .ok_or_else(|| Refusal::new(Code::BadRequest, format!("table {number}: there are {}", tables.len())))
}

/// Refuses keys outside the shard's parts.
fn check_parts(core: &ServerCore, keys: &[u64]) -> Result<(), Refusal> {
    let parts = &core.shard.parts;
    if *parts == (0..PARTS) {
        return Ok(());
    }
    let Some(&key) = keys.iter().find(|&&key| !parts.contains(&part_of_hash(mix(key)))) else {
        return Ok(());
    };
    let (part, number) = (part_of_hash(mix(key)), core.shard.number);
    let text =
        format!("key {key} is in part {part}, shard {number} has parts [{}, {})", parts.start, parts.end);
    Err(Refusal::new(Code::WrongPart, text))
}

/// The slices of one pull; all are built in the same buffers.
struct Slices<'a> {
    ask: &'a PullAsk<'a>,
    request: u64,
    at: At,
    frame: Vec<f32>,
    rows: Vec<f32>,
}

impl Slices<'_> {
    /// Builds the frame of the slice that starts at key `first`. Returns its bytes and the next slice's first
    /// key.
    fn make(&mut self, table: &Table, first: usize, keys_max: usize) -> Result<(&[u8], usize), Refusal> {
        let keys = &self.ask.keys[first..];
        let keys = &keys[..keys.len().min(keys_max)];
        let (dim, encoding) = (table.settings.dim, self.ask.encoding);
        let (numbers, end) = (keys.len() * dim, first + keys.len());
        let block_bytes = encoding.bytes(numbers);
        let frame_floats = HEAD_FLOATS + block_bytes / 4;
        self.frame.resize(frame_floats + CHECK_BYTES / 4, 0.0);
        match encoding {
            Encoding::F32 => {
                table.lookup(keys, self.at, &mut self.frame[HEAD_FLOATS..][..numbers], 1)?;
                self.frame[HEAD_FLOATS + numbers..frame_floats].fill(0.0);
            }
            Encoding::F16 => {
                self.rows.resize(numbers, 0.0);
                table.lookup(keys, self.at, &mut self.rows, 1)?;
                encoding.write(&self.rows, bytes_of_mut(&mut self.frame[HEAD_FLOATS..frame_floats]));
            }
        }
        let head = SliceHead { first: first as u32, count: keys.len() as u32, dim: dim as u32, encoding };
        let more = if end < self.ask.keys.len() { MORE } else { 0 };
        let payload_bytes = (SLICE_HEAD_BYTES + block_bytes) as u32;
        let header = Header { kind: Kind::Pull, flags: REPLY | more, request: self.request, payload_bytes };
        let bytes = bytes_of_mut(&mut self.frame);
        bytes[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        bytes[HEADER_BYTES..][..SLICE_HEAD_BYTES].copy_from_slice(&head.to_bytes());
        let (content, check) = bytes.split_at_mut(frame_floats * 4);
        check.copy_from_slice(&crc32c(0, &content[HEADER_BYTES..]).to_le_bytes());
        Ok((bytes_of(&self.frame), end))
    }
}

impl Connection<'_> {
    /// Handles a pull. Returns the number of rows and the bytes of all frames.
    pub(super) async fn pull(&mut self, request: u64, payload: &[u8]) -> Result<(u64, u64), End> {
        let ask = PullAsk::decode(payload)?;
        self.entry.peer.used_epoch(ask.epoch);
        let in_use = self.core.stage.take(ask.epoch)?;
        check_parts(self.core, &ask.keys)?;
        let pin = |version| in_use.installed().tables.pin(version).map_err(Refusal::from);
        let pin = ask.version.map(pin).transpose()?;
        let at = pin.as_ref().map_or(At::Newest, Pin::at);
        let core = self.core;
        let mut slices = Slices { ask: &ask, request, at, frame: core.pool.take(), rows: core.pool.take() };
        let written = self.write_slices(&mut slices, &in_use).await;
        core.pool.give(slices.frame);
        core.pool.give(slices.rows);
        Ok((ask.keys.len() as u64, written?))
    }

    async fn write_slices(&mut self, slices: &mut Slices<'_>, in_use: &InUse) -> Result<u64, End> {
        let dim = table_of(in_use, slices.ask.table)?.settings.dim;
        let keys_max = (SLICE_BYTES / slices.ask.encoding.number_bytes() / dim).clamp(1, READ_KEYS_MAX);
        let (mut first, mut written) = (0, 0);
        loop {
            let (frame, end) = slices.make(table_of(in_use, slices.ask.table)?, first, keys_max)?;
            tokio::select! {
                biased;
                sent = self.write(frame) => sent?,
                // The tables must be released, and this peer is slow.
                () = in_use.is_over() => return Err(End::Gone),
            }
            (first, written) = (end, written + frame.len() as u64);
            if first >= slices.ask.keys.len() {
                return Ok(written);
            }
            self.forward_answers().await?;
            yield_now().await;
        }
    }

    /// Handles a push or a part of one, exactly once. Returns the number of updated rows and the bytes of the
    /// reply.
    pub(super) async fn push(
        &mut self,
        (kind, request): (Kind, u64),
        payload: &[u8],
    ) -> Result<(u64, u64), End> {
        let pushed = self.push_once(kind, payload).await?;
        let bytes_out = self.send(kind, request, &PushReply(pushed).to_payload()).await?;
        Ok((pushed.learned as u64, bytes_out))
    }

    /// After the decision nothing here waits for the peer, and the future is not dropped before it ends:
    /// every applied push is noted.
    async fn push_once(&mut self, kind: Kind, payload: &[u8]) -> Outcome {
        let (core, limits) = (self.core, &self.core.limits);
        let (part, ask) = if kind == Kind::PushPart {
            let PartAsk { head, push } = PartAsk::decode(payload)?;
            (Some(head), push)
        } else {
            (None, PushAsk::decode(payload)?)
        };
        self.entry.peer.used_epoch(ask.epoch);
        let in_use = core.stage.take(ask.epoch)?;
        let window = in_use.installed().window(self.client, limits.clients_max, limits.window_max)?;
        let mut window = window.lock().await;
        match window.decide(ask.sequence) {
            Decision::Apply => {
                let outcome = match &part {
                    None => apply(core, &in_use, &ask).await,
                    Some(head) => slices::give(core, &in_use, (head, &ask), payload).await,
                };
                window.note(ask.sequence, outcome.clone());
                outcome
            }
            Decision::Again(outcome) => {
                core.count_duplicate();
                outcome
            }
            Decision::Forgotten => {
                let text =
                    format!("sequence {} was applied, but its answer is no longer stored", ask.sequence);
                Err(Refusal::new(Code::BadRequest, text))
            }
            Decision::TooFar(low) => {
                let (sequence, window_max) = (ask.sequence, limits.window_max);
                let text =
                    format!("sequence {sequence} is not within {window_max} of {low}, the first missing one");
                Err(Refusal::new(Code::TooMany, text))
            }
        }
    }
}

/// Applies a push to the tables.
async fn apply(core: &ServerCore, in_use: &InUse, ask: &PushAsk<'_>) -> Outcome {
    let (table, gradients) = checked(core, in_use, ask)?;
    learn(table, &push_of(ask, &gradients)).await
}

/// Returns a request to push in the form that a table takes, with its gradients decoded.
pub(super) fn push_of<'a>(ask: &'a PushAsk<'_>, gradients: &'a [f32]) -> Push<'a> {
    let Columns { keys, admit, counts, .. } = &ask.columns;
    let (now_ms, rate_scale) = (ask.now_ms, ask.rate_scale);
    Push { keys, gradients, counts: counts.as_deref(), admit, now_ms, rate_scale }
}

/// Checks a push, and returns its table and its gradients.
pub(super) fn checked<'a>(
    core: &ServerCore,
    in_use: &'a InUse,
    ask: &'a PushAsk<'_>,
) -> Result<(&'a Table, Cow<'a, [f32]>), Refusal> {
    let columns = &ask.columns;
    check_parts(core, &columns.keys)?;
    let table = table_of(in_use, ask.table)?;
    let (dim, count) = (table.settings.dim, columns.keys.len());
    let gradients = ask.encoding.numbers(&columns.gradients, count * dim).ok_or_else(|| {
        let (bytes, encoding) = (columns.gradients.len(), ask.encoding);
        Refusal::new(
            Code::BadRequest,
            format!("{bytes} bytes do not hold {count} gradients of {dim} {encoding:?}"),
        )
    })?;
    let admit = &columns.admit;
    if !admit.is_sorted_by_key(|run| run.end) || admit.last().is_some_and(|run| run.end > count) {
        let text = format!("the admission runs do not end in ascending order within {count} keys");
        return Err(Refusal::new(Code::BadRequest, text));
    }
    check_terms(ask)?;
    check_gradients(&columns.keys, &gradients, dim)?;
    Ok((table, gradients))
}

/// Applies gradients of distinct keys, some at a time.
pub(super) async fn learn(table: &Table, push: &Push<'_>) -> Outcome {
    let (dim, count) = (table.settings.dim, push.keys.len());
    let mut pushed = Pushed::default();
    for first in (0..count).step_by(LEARN_KEYS_MAX) {
        let end = count.min(first + LEARN_KEYS_MAX);
        let some = Push {
            keys: &push.keys[first..end],
            gradients: &push.gradients[first * dim..end * dim],
            counts: push.counts.map(|counts| &counts[first..end]),
            admit: &runs_within(push.admit, first, end),
            now_ms: push.now_ms,
            rate_scale: push.rate_scale,
        };
        add(&mut pushed, table.push(some, 1)?);
        yield_now().await;
    }
    Ok(pushed)
}

/// Adds up what pushes did.
pub(super) fn add(total: &mut Pushed, pushed: Pushed) {
    total.learned += pushed.learned;
    total.created += pushed.created;
    total.waiting += pushed.waiting;
}

fn bad(text: String) -> Result<(), Refusal> {
    Err(Refusal::new(Code::BadRequest, text))
}

/// Refuses a time or a factor that would corrupt rows.
fn check_terms(ask: &PushAsk<'_>) -> Result<(), Refusal> {
    if !(-CLOCK_MS_MAX..=CLOCK_MS_MAX).contains(&ask.now_ms) {
        return bad(format!("a table time of {} ms exceeds the limit of {CLOCK_MS_MAX}", ask.now_ms));
    }
    if ask.rate_scale.is_nan() || ask.rate_scale.abs() > RATE_SCALE_MAX {
        return bad(format!("a rate_scale of {} exceeds the limit of {RATE_SCALE_MAX}", ask.rate_scale));
    }
    Ok(())
}

/// Refuses gradients that would corrupt rows: a single NaN or infinity would leave a row without finite numbers
/// for good.
pub(super) fn check_gradients(keys: &[u64], gradients: &[f32], dim: usize) -> Result<(), Refusal> {
    // One pass without early exit vectorises; the key is only looked up for an error.
    let is_bad = |number: &f32| number.is_nan() || number.abs() > GRADIENT_MAX;
    if gradients.iter().fold(false, |bad, number| bad | is_bad(number)) {
        let at = gradients.iter().position(is_bad).unwrap_or(0);
        let key = keys[at / dim];
        return bad(format!("the gradient of key {key} has {} at position {}", gradients[at], at % dim));
    }
    Ok(())
}

/// The runs restricted to keys `first..end`, with positions relative to `first`.
fn runs_within(admit: &[Admit], first: usize, end: usize) -> Vec<Admit> {
    let begin = admit.partition_point(|run| run.end <= first);
    let last_run = admit.partition_point(|run| run.end < end);
    let run_end = admit.len().min(last_run + 1);
    admit[begin..run_end.max(begin)]
        .iter()
        .map(|run| Admit { end: run.end.min(end) - first, threshold: run.threshold })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_slice_say_of_its_keys_what_all_runs_say() {
        let admit = [(3, 1), (3, 7), (10, 2), (64, 3)].map(|(end, threshold)| Admit { end, threshold });
        let threshold = |admit: &[Admit], at: usize| {
            admit.get(admit.partition_point(|run| run.end <= at)).map_or(1, |run| run.threshold)
        };
        for first in 0..70 {
            for end in first..70 {
                let runs = runs_within(&admit, first, end);
                assert!(
                    runs.is_sorted_by_key(|run| run.end)
                        && runs.last().is_none_or(|run| run.end <= end - first)
                );
                for at in first..end {
                    assert_eq!(threshold(&runs, at - first), threshold(&admit, at), "{first}..{end} at {at}");
                }
            }
        }
    }
}
