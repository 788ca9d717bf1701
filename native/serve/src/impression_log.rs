//! The impression log: answered requests that wait to be encoded as impressions. Adding one is cheap; another
//! thread encodes them.

mod served_items;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use serde_json::Value;
use streamlearn_wire::logged_share::is_logged;

use crate::answer::Answer;
use crate::impression::{Impression, ImpressionParts};
use crate::protocol::{Naming, RequestFormat, read};
use crate::request::{Request, Values};

/// The memory of a note without its bytes.
const NOTE_BYTES: usize = 256;
/// The maximum size of a batch, except for a first note that is larger.
const BATCH_BYTES: usize = 4 << 20;

/// Which requests are logged, and how many may wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShownLimits {
    /// The share of requests to log.
    pub share: f64,
    /// The maximum number of waiting requests.
    pub events_max: usize,
    /// The maximum of their bytes.
    pub bytes_max: usize,
}

/// Bounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// The maximum number of events.
    pub events_max: usize,
    /// The maximum size of an event.
    pub event_bytes_max: usize,
    /// How long the first event may wait for others.
    pub linger: Duration,
}

/// Encoded events, in the layout of the producer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Events {
    /// The events' bytes.
    pub buffer: Vec<u8>,
    /// The offset of each event, and the end of the last.
    pub offsets: Vec<i64>,
    /// The number of items of each event.
    pub items: Vec<i32>,
    /// The bytes of the requests' ids.
    pub ids: Vec<u8>,
    /// The offset of each id, and the end of the last.
    pub ids_at: Vec<i32>,
    /// The time of each event.
    pub at_ms: Vec<i64>,
}

/// Counters of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownFigures {
    /// Waiting requests.
    pub waiting: usize,
    /// Their bytes.
    pub waiting_bytes: usize,
    /// Requests added so far.
    pub noted: u64,
    /// Requests dropped because a bound was reached.
    pub dropped: u64,
    /// Requests that could not be encoded.
    pub refused: u64,
    /// The error of the last one.
    pub said: String,
}

/// A copy of a request's bytes, until it is answered.
#[derive(Debug)]
pub struct KeptRequest {
    format: RequestFormat,
    bytes: Bytes,
}

#[derive(Debug)]
struct Note {
    kept: KeptRequest,
    id: Bytes,
    answer: Answer,
    at_ms: i64,
    since: Instant,
}

impl Note {
    fn size(&self) -> usize {
        let Answer { scores, computed, filled, found, order, .. } = &self.answer;
        let computed = computed.as_ref().map_or(0, |computed| computed.bytes());
        let columns = filled.iter().flat_map(|request| request.user.iter().chain(&request.item));
        // A key and a score for each item that was found, and a place for each that was answered.
        let items = 12 * found.as_ref().map_or(0, |found| found.keys.len());
        let places = 4 * order.as_ref().map_or(0, Vec::len);
        let of_answer =
            4 * scores.len() + computed + columns.map(Values::bytes).sum::<usize>() + items + places;
        NOTE_BYTES + self.kept.bytes.len() + self.id.len() + of_answer
    }
}

#[derive(Debug)]
struct ImpressionQueue {
    notes: VecDeque<Note>,
    figures: ShownFigures,
    is_open: bool,
}

/// The queue of answered requests and the format of their events.
#[derive(Debug)]
pub struct Shown {
    naming: Naming,
    /// The names of requests whose candidates were retrieved.
    ranking: Option<Naming>,
    impression: Impression,
    limits: ShownLimits,
    queue: Mutex<ImpressionQueue>,
    added: Condvar,
}

impl Shown {
    /// Creates an empty log. `description` is JSON: `{"prefix": [...], "item_segments",
    /// "items_max", "defaults": {}}` with the first bytes of events, the number of item segments, the bound of an
    /// event, and the defaults of slots by name.
    ///
    /// # Errors
    /// If the description is invalid, or does not match the names.
    pub fn new(naming: &Naming, description: &str, limits: ShownLimits) -> Result<Self, String> {
        let document: Value = serde_json::from_str(description).map_err(|error| error.to_string())?;
        let count = |name: &str| match document[name].as_u64() {
            Some(count) => Ok(count as usize),
            None => Err(format!("{name:?} is not a number")),
        };
        let prefix = document["prefix"].as_array().into_iter().flatten();
        let prefix = prefix.map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
        let impression = Impression {
            prefix: prefix.collect::<Option<_>>().ok_or("\"prefix\" is not a list of bytes")?,
            segments: naming.inputs().segments.clone(),
            item_segments: count("item_segments")?,
            items_max: count("items_max")?,
            has_features: document["has_features"].as_bool().unwrap_or_default(),
        };
        let defaults = document["defaults"].as_object().ok_or("\"defaults\" is not an object")?;
        let ranking = naming.ranking()?.map(|ranking| ranking.plain(defaults)).transpose()?;
        let naming = naming.plain(defaults)?;
        let queue =
            ImpressionQueue { notes: VecDeque::new(), figures: ShownFigures::default(), is_open: true };
        Ok(Self { naming, ranking, impression, limits, queue: Mutex::new(queue), added: Condvar::new() })
    }

    /// Whether requests with this id are logged; all nodes and the join agree.
    pub fn chooses(&self, id: &[u8]) -> bool {
        is_logged(id, self.limits.share)
    }

    /// Copies a request's bytes if it must be logged after its answer.
    pub fn keep(&self, request: &Request, format: RequestFormat, bytes: &[u8]) -> Option<KeptRequest> {
        let shows_any = request.shown.as_ref().is_none_or(|shown| !shown.is_empty());
        // A copy, because the bytes may lie in a much larger buffer.
        (shows_any && self.chooses(&request.id))
            .then(|| KeptRequest { format, bytes: Bytes::copy_from_slice(bytes) })
    }

    /// Adds an answered request; if a bound is reached, drops it and counts it.
    pub fn note(&self, request: KeptRequest, id: Bytes, answer: Answer) {
        if answer.order.as_ref().is_some_and(Vec::is_empty) {
            return; // nothing was found, so nothing is shown
        }
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (kept, at_ms) = (request, at.as_millis() as i64);
        let note = Note { kept, id, answer, at_ms, since: Instant::now() };
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
            self.added.notify_one();
        }
    }

    /// Waits for the next events; returns `None` after the wait, or if the log is closed and empty.
    pub fn take(&self, wait: Duration, batch: &Batch) -> Option<Events> {
        let notes = self.due(Instant::now() + wait, batch);
        (!notes.is_empty()).then(|| self.events(&notes, batch.event_bytes_max))
    }

    /// Accepts no more requests; waiting ones are returned without delay.
    pub fn close(&self) {
        self.lock().is_open = false;
        self.added.notify_all();
    }

    /// Returns the counters.
    pub fn figures(&self) -> ShownFigures {
        self.lock().figures.clone()
    }

    /// Waits for due notes: a full batch, or notes whose first one has waited for `linger`.
    fn due(&self, deadline: Instant, batch: &Batch) -> Vec<Note> {
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
                let notes: Vec<Note> = queue.notes.drain(..count).collect();
                queue.figures.waiting -= notes.len();
                queue.figures.waiting_bytes -= notes.iter().map(Note::size).sum::<usize>();
                return notes;
            }
            if deadline <= now || (!queue.is_open && queue.notes.is_empty()) {
                return Vec::new();
            }
            let wait = first.map_or(deadline, |due| due.min(deadline)) - now;
            queue = self.added.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
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
                        "an impression has {size} bytes, a record holds at most {event_bytes_max}"
                    ));
                }
                Ok(0) => {}
                Ok(items) => {
                    events.offsets.push(events.buffer.len() as i64);
                    events.items.push(items as i32);
                    events.ids.extend_from_slice(&note.id);
                    // A batch is far smaller than i32::MAX.
                    events.ids_at.push(events.ids.len() as i32);
                    events.at_ms.push(note.at_ms);
                }
                Err(error) => self.refuse(error),
            }
        }
        events
    }

    fn write(&self, note: &Note, out: &mut Vec<u8>) -> Result<usize, String> {
        let ranking = self.ranking.as_ref().filter(|_| note.answer.order.is_some());
        let naming = ranking.unwrap_or(&self.naming);
        let keys = naming.keys();
        if let Some(mut texts) = keys.texts() {
            texts.forget();
        }
        let mut request =
            read(note.kept.format, &note.kept.bytes, naming).map_err(|refusal| refusal.to_string())?;
        if let Some(order) = &note.answer.order {
            let mut texts = keys.texts().ok_or("the values are hashed")?;
            served_items::put(&mut request, order, &note.answer, self.naming.inputs(), &mut texts)?;
            if request.shown.as_ref().is_some_and(Vec::is_empty) {
                return Ok(0); // the answer had fewer items than the places that are shown
            }
        }
        if let Some(filled) = &note.answer.filled {
            served_items::put_filled(&mut request, filled);
        }
        request.arm = note.answer.arm.clone();
        if let Some(computed) = &note.answer.computed {
            computed.put(&mut request);
        }
        let texts = keys.texts().ok_or("the values are hashed")?;
        let Note { id, answer, at_ms, .. } = note;
        self.impression
            .write(&ImpressionParts { id, at_ms: *at_ms, request: &request, texts: &texts, answer }, out)
    }

    fn refuse(&self, error: String) {
        let mut queue = self.lock();
        queue.figures.refused += 1;
        queue.figures.said = error;
    }

    fn lock(&self) -> MutexGuard<'_, ImpressionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
