//! A tally: counts the outcomes of a run's requests. Receives times and reads no clock.

use bytes::Bytes;
use tonic::Code;

use super::calls::Answered;
use super::histogram::Histogram;

/// The number of gRPC codes.
pub const CODES: usize = 17;

/// The outcomes of requests.
#[derive(Debug, Clone)]
pub struct Tally {
    warmup_ns: u64,
    deadline_ns: u64,
    /// Requests due in the warm-up.
    pub warmup: u64,
    /// Measured requests that were due.
    pub due: u64,
    /// Answers within the deadline.
    pub in_time: u64,
    /// Outcomes by gRPC code; the first is OK.
    pub codes: [u64; CODES],
    /// The first message of each code.
    pub said: [Option<String>; CODES],
    /// Requests that failed because the maximum number of requests was open.
    pub overrun: u64,
    /// Requests without any answer within the wait.
    pub unanswered: u64,
    /// Latency: from the due time to the end of the answer, of answered requests.
    pub latency: Histogram,
    /// Lag: from the due time to sending.
    pub lag: Histogram,
    /// Bytes of answers.
    pub answer_bytes: u64,
    /// By the second in which requests were due.
    pub seconds: Vec<Second>,
    /// Each measured request that was sent and its answer, if these are kept.
    pub kept: Option<Vec<Kept>>,
}

/// A request and its answer.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Which message it was.
    pub message: usize,
    /// When it was due, in nanoseconds since the start.
    pub due_ns: u64,
    /// The answer; `None` if there was none in time.
    pub answer: Option<Bytes>,
}

/// The requests due in one second.
#[derive(Debug, Clone, Default)]
pub struct Second {
    /// Requests due.
    pub due: u64,
    /// As in the tally.
    pub latency: Histogram,
}

/// The times of one request, in nanoseconds since the start.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Due.
    pub due: u64,
    /// Sent.
    pub sent: u64,
    /// Answer complete.
    pub done: u64,
}

impl Tally {
    /// Creates an empty tally of `seconds` seconds after a warm-up.
    #[must_use]
    pub fn new(warmup_ns: u64, seconds: u32, deadline_ns: u64, keeps_answers: bool) -> Self {
        Self {
            warmup_ns,
            deadline_ns,
            warmup: 0,
            due: 0,
            in_time: 0,
            codes: [0; CODES],
            said: [const { None }; CODES],
            overrun: 0,
            unanswered: 0,
            latency: Histogram::default(),
            lag: Histogram::default(),
            answer_bytes: 0,
            seconds: vec![Second::default(); seconds as usize],
            kept: keeps_answers.then(Vec::new),
        }
    }

    /// Returns the number of OK answers, late ones included.
    #[must_use]
    pub fn ok(&self) -> u64 {
        self.codes[Code::Ok as usize]
    }

    /// Returns the number of failed requests.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.codes[1..].iter().sum::<u64>() + self.overrun + self.unanswered
    }

    /// Returns the second in which a due time counts; `None` in the warm-up.
    fn second(&self, due_ns: u64) -> Option<usize> {
        let at = due_ns.checked_sub(self.warmup_ns)? / 1_000_000_000;
        usize::try_from(at).ok().filter(|&at| at < self.seconds.len())
    }

    /// Counts a request as due.
    pub fn due(&mut self, due_ns: u64) {
        match self.second(due_ns) {
            None => self.warmup += 1,
            Some(second) => {
                self.due += 1;
                self.seconds[second].due += 1;
            }
        }
    }

    /// Counts a request that was not sent.
    pub fn overrun(&mut self, due_ns: u64) {
        if self.second(due_ns).is_some() {
            self.overrun += 1;
        }
    }

    /// Counts the outcome of a request with this message.
    pub fn done(&mut self, message: usize, times: Times, outcome: Answered) {
        let Some(second) = self.second(times.due) else { return };
        if let Some(kept) = &mut self.kept {
            let is_late = times.done.saturating_sub(times.due) > self.deadline_ns;
            let answer = match &outcome {
                Answered::With(bytes) if !is_late => Some(bytes.clone()),
                _ => None,
            };
            kept.push(Kept { message, due_ns: times.due, answer });
        }
        self.lag.add(times.sent.saturating_sub(times.due));
        match outcome {
            Answered::With(bytes) => {
                let latency = times.done.saturating_sub(times.due);
                self.codes[Code::Ok as usize] += 1;
                self.in_time += u64::from(latency <= self.deadline_ns);
                self.answer_bytes += bytes.len() as u64;
                self.latency.add(latency);
                self.seconds[second].latency.add(latency);
            }
            Answered::Refused(code, text) => {
                self.codes[code as usize] += 1;
                self.said[code as usize].get_or_insert(text);
            }
            Answered::Nothing => self.unanswered += 1,
        }
    }
}
