//! A tally: what came of the requests of a run. It is told times and sees no clock.

use tonic::Code;

use super::calls::Answered;
use super::histogram::Histogram;

/// How many codes gRPC has.
pub const CODES: usize = 17;

/// What came of requests.
#[derive(Debug, Clone)]
pub struct Tally {
    warmup_ns: u64,
    deadline_ns: u64,
    /// Requests that were due before any counted.
    pub warmup: u64,
    /// Requests that were due, whatever came of them.
    pub due: u64,
    /// Answers that came within the deadline.
    pub in_time: u64,
    /// How many ended with which code of gRPC; the first is OK.
    pub codes: [u64; CODES],
    /// What was said with a code first.
    pub said: [Option<String>; CODES],
    /// Requests that failed because too many were without an answer when they were due.
    pub overrun: u64,
    /// Requests to which nothing was said for as long as an answer is waited for.
    pub unanswered: u64,
    /// From when a request was due to the end of its answer, of those that were answered.
    pub latency: Histogram,
    /// From when a request was due to when it was sent.
    pub lag: Histogram,
    /// Bytes of answers.
    pub answer_bytes: u64,
    /// By the second in which requests were due.
    pub seconds: Vec<Second>,
}

/// The requests that were due in one second.
#[derive(Debug, Clone, Default)]
pub struct Second {
    /// How many were due.
    pub due: u64,
    /// As the tally's.
    pub latency: Histogram,
}

/// One request: when it was due, sent and done, in nanoseconds since the beginning.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// When it was due.
    pub due: u64,
    /// When it was sent.
    pub sent: u64,
    /// When the answer had ended.
    pub done: u64,
}

impl Tally {
    /// An empty tally of so many seconds after a warm-up.
    #[must_use]
    pub fn new(warmup_ns: u64, seconds: u32, deadline_ns: u64) -> Self {
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
        }
    }

    /// Answers that are OK, late ones too.
    #[must_use]
    pub fn ok(&self) -> u64 {
        self.codes[Code::Ok as usize]
    }

    /// Requests that ended without an answer to them.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.codes[1..].iter().sum::<u64>() + self.overrun + self.unanswered
    }

    /// Whether a request due then counts, and its second if so.
    fn second(&self, due_ns: u64) -> Option<usize> {
        let at = due_ns.checked_sub(self.warmup_ns)? / 1_000_000_000;
        usize::try_from(at).ok().filter(|&at| at < self.seconds.len())
    }

    /// A request is due.
    pub fn due(&mut self, due_ns: u64) {
        match self.second(due_ns) {
            None => self.warmup += 1,
            Some(second) => {
                self.due += 1;
                self.seconds[second].due += 1;
            }
        }
    }

    /// It cannot be sent.
    pub fn overrun(&mut self, due_ns: u64) {
        if self.second(due_ns).is_some() {
            self.overrun += 1;
        }
    }

    /// It has ended.
    pub fn done(&mut self, times: Times, answered: Answered) {
        let Some(second) = self.second(times.due) else { return };
        self.lag.add(times.sent.saturating_sub(times.due));
        match answered {
            Answered::With(bytes) => {
                let latency = times.done.saturating_sub(times.due);
                self.codes[Code::Ok as usize] += 1;
                self.in_time += u64::from(latency <= self.deadline_ns);
                self.answer_bytes += bytes.len() as u64;
                self.latency.add(latency);
                self.seconds[second].latency.add(latency);
            }
            Answered::Refused(code, said) => {
                self.codes[code as usize] += 1;
                self.said[code as usize].get_or_insert(said);
            }
            Answered::Nothing => self.unanswered += 1,
        }
    }
}
