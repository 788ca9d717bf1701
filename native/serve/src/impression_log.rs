//! Shown: answered requests on their way to be impressions. Noting one takes no time; writing them is somebody's thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use serde_json::Value;
use streamlearn_wire::keys::{key_of_bytes, slot_salt};

use crate::answer::Answer;
use crate::impression::{Impression, Seen};
use crate::protocol::{Came, Naming, read};
use crate::request::Request;

/// What a note takes beside its bytes: itself, and its place.
const NOTE_BYTES: usize = 256;
/// Bytes that are taken at once, but for a first note that is larger.
const BATCH_BYTES: usize = 4 << 20;
/// What requests are chosen by: their ids' hashes, seeded with this name's.
const CHOSEN_BY: &str = "impressions";

/// Which requests are written, and how many may wait for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShownLimits {
    /// The share of requests.
    pub share: f64,
    /// Requests that wait.
    pub events_max: usize,
    /// Bytes of them.
    pub bytes_max: usize,
}

/// How many are taken at once, and how large an event may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Events.
    pub events_max: usize,
    /// Bytes of an event.
    pub event_bytes_max: usize,
    /// How long the first may wait for others.
    pub linger: Duration,
}

/// Events one after another, as the Producer's are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Events {
    /// Their bytes.
    pub buffer: Vec<u8>,
    /// Where each begins, and where the last ends.
    pub offsets: Vec<i64>,
    /// How many items each shows.
    pub items: Vec<i32>,
    /// The bytes of their requests' ids.
    pub ids: Vec<u8>,
    /// Where each id begins, and where the last ends.
    pub ids_at: Vec<i32>,
    /// When each was shown.
    pub at_ms: Vec<i64>,
}

/// How much there is to do, and what became of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownFigures {
    /// Events that wait.
    pub waiting: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
    /// Requests that were noted ever.
    pub noted: u64,
    /// Requests that were not, because too much waited.
    pub dropped: u64,
    /// Requests that no event could be made of.
    pub refused: u64,
    /// Why the last of them could not.
    pub said: String,
}

/// A request's bytes, until it is answered.
#[derive(Debug)]
pub struct Kept {
    came: Came,
    bytes: Bytes,
}

#[derive(Debug)]
struct Note {
    came: Came,
    bytes: Bytes,
    id: Bytes,
    answer: Answer,
    at_ms: i64,
    since: Instant,
}

impl Note {
    fn size(&self) -> usize {
        NOTE_BYTES + self.bytes.len() + self.id.len() + 4 * self.answer.scores.len()
    }
}

#[derive(Debug)]
struct ImpressionQueue {
    notes: VecDeque<Note>,
    figures: ShownFigures,
    is_open: bool,
}

/// Answered requests that wait to be written, and how they are.
#[derive(Debug)]
pub struct Shown {
    naming: Naming,
    impression: Impression,
    limits: ShownLimits,
    queue: Mutex<ImpressionQueue>,
    came: Condvar,
}

impl Shown {
    /// Nothing yet. `described` is JSON: `{"prefix": [...], "user_segments", "item_segments", "items_max", "defaults": {}}`,
    /// the bytes that events begin with, how many segments there are, bounds of an event, and slots' defaults by name.
    ///
    /// # Errors
    /// When the description is none, or does not fit the names.
    pub fn new(naming: &Naming, described: &str, limits: ShownLimits) -> Result<Self, String> {
        let whole: Value = serde_json::from_str(described).map_err(|error| error.to_string())?;
        let count = |name: &str| match whole[name].as_u64() {
            Some(count) => Ok(count as usize),
            None => Err(format!("{name:?} is not a number")),
        };
        let prefix = whole["prefix"].as_array().into_iter().flatten();
        let prefix = prefix.map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
        let impression = Impression {
            prefix: prefix.collect::<Option<_>>().ok_or("\"prefix\" is not a list of bytes")?,
            user_segments: count("user_segments")?,
            item_segments: count("item_segments")?,
            items_max: count("items_max")?,
        };
        let naming = naming.plain(whole["defaults"].as_object().ok_or("\"defaults\" is not an object")?)?;
        let queue =
            ImpressionQueue { notes: VecDeque::new(), figures: ShownFigures::default(), is_open: true };
        Ok(Self { naming, impression, limits, queue: Mutex::new(queue), came: Condvar::new() })
    }

    /// Whether requests of an id are written: the same on every node.
    pub fn chooses(&self, id: &[u8]) -> bool {
        let hash = key_of_bytes(id, slot_salt(CHOSEN_BY));
        self.limits.share >= 1.0 || (hash as f64) < self.limits.share * 2f64.powi(64)
    }

    /// Keep a request's bytes if it is to be written, once it is answered.
    pub fn keep(&self, request: &Request, came: Came, bytes: &[u8]) -> Option<Kept> {
        let shows_any = request.shown.as_ref().is_none_or(|shown| !shown.is_empty());
        // A copy: the bytes may lie in a buffer that is much larger.
        (shows_any && self.chooses(&request.id)).then(|| Kept { came, bytes: Bytes::copy_from_slice(bytes) })
    }

    /// Note that a request was answered; where too much waits it is let go of and counted.
    pub fn note(&self, kept: Kept, id: Bytes, answer: Answer) {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (Kept { came, bytes }, at_ms) = (kept, at.as_millis() as i64);
        let note = Note { came, bytes, id, answer, at_ms, since: Instant::now() };
        let size = note.size();
        let (mut queue, limits) = (self.lock(), self.limits);
        let ShownFigures { waiting, waiting_bytes, .. } = queue.figures;
        if waiting >= limits.events_max || waiting_bytes + size > limits.bytes_max || !queue.is_open {
            queue.figures.dropped += 1;
            return;
        }
        queue.figures.waiting += 1;
        queue.figures.waiting_bytes += size;
        queue.figures.noted += 1;
        queue.notes.push_back(note);
        let is_first = queue.notes.len() == 1;
        drop(queue);
        if is_first {
            self.came.notify_one();
        }
    }

    /// The next events; None when there were none for so long, or there will be none.
    pub fn take(&self, wait: Duration, batch: &Batch) -> Option<Events> {
        let notes = self.due(Instant::now() + wait, batch);
        (!notes.is_empty()).then(|| self.events(&notes, batch.event_bytes_max))
    }

    /// Take no more notes; what waits is given without delay.
    pub fn close(&self) {
        self.lock().is_open = false;
        self.came.notify_all();
    }

    /// How much there is to do.
    pub fn figures(&self) -> ShownFigures {
        self.lock().figures.clone()
    }

    /// Notes that are due: as many as may be taken, or the first has waited for others.
    fn due(&self, until: Instant, batch: &Batch) -> Vec<Note> {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            let first = queue.notes.front().map(|note| note.since + batch.linger);
            let is_due = first
                .is_some_and(|due| due <= now || !queue.is_open || queue.notes.len() >= batch.events_max);
            if is_due {
                let mut bytes = 0;
                let fit = queue.notes.iter().take(batch.events_max.max(1)).take_while(|note| {
                    let is_first = bytes == 0;
                    bytes += note.size();
                    is_first || bytes <= BATCH_BYTES
                });
                let count = fit.count();
                let taken: Vec<Note> = queue.notes.drain(..count).collect();
                queue.figures.waiting -= taken.len();
                queue.figures.waiting_bytes -= taken.iter().map(Note::size).sum::<usize>();
                return taken;
            }
            if until <= now || (!queue.is_open && queue.notes.is_empty()) {
                return Vec::new();
            }
            let wait = first.map_or(until, |due| due.min(until)) - now;
            queue = self.came.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn events(&self, notes: &[Note], event_bytes_max: usize) -> Events {
        let mut events = Events { offsets: vec![0], ids_at: vec![0], ..Events::default() };
        for note in notes {
            let begin = events.buffer.len();
            match self.write(note, &mut events.buffer) {
                Ok(_) if events.buffer.len() - begin > event_bytes_max => {
                    let size = events.buffer.len() - begin;
                    events.buffer.truncate(begin);
                    self.refuse(format!(
                        "an impression of {size} bytes, and a record takes {event_bytes_max}"
                    ));
                }
                Ok(items) => {
                    events.offsets.push(events.buffer.len() as i64);
                    events.items.push(items as i32);
                    events.ids.extend_from_slice(&note.id);
                    // A batch is far smaller than what offsets count.
                    events.ids_at.push(events.ids.len() as i32);
                    events.at_ms.push(note.at_ms);
                }
                Err(said) => self.refuse(said),
            }
        }
        events
    }

    fn write(&self, note: &Note, out: &mut Vec<u8>) -> Result<usize, String> {
        let keys = self.naming.keys();
        if let Some(mut texts) = keys.texts() {
            texts.forget();
        }
        let request = read(note.came, &note.bytes, &self.naming).map_err(|refusal| refusal.to_string())?;
        let texts = keys.texts().ok_or("its values are hashed")?;
        let Note { id, answer, at_ms, .. } = note;
        self.impression.write(&Seen { id, at_ms: *at_ms, request: &request, texts: &texts, answer }, out)
    }

    fn refuse(&self, said: String) {
        let mut queue = self.lock();
        queue.figures.refused += 1;
        queue.figures.said = said;
    }

    fn lock(&self) -> MutexGuard<'_, ImpressionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
