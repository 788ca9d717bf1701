//! Reader waits: how many lanes may work, so that the threads that read requests get a processor. Knows no requests.
//!
//! A request that is not read yet can be neither cut nor refused, and its caller's clock runs. Linux gives a reader and
//! each lane equal shares of the processors. A reader that needs more than its share falls further and further behind, and
//! then all requests are late, however fast lanes are. So lanes rest while requests are read late because a reader waits
//! for a processor. A lower priority of lanes would do the same, but a process may not raise a priority again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The time between two looks.
const SPAN: Duration = Duration::from_millis(10);
/// After a longer pause, a look only begins a new span.
const SPAN_MAX: Duration = Duration::from_millis(500);
/// A reader is kept waiting if it works or waits for a processor for this share of the time, and waits for that.
const BUSY: f32 = 0.8;
const WAIT: f32 = 0.05;
/// How long after their heads requests are read at most, in the mean. The rest of a request waits with its caller while
/// the node has not read what was sent before.
const LAG: Duration = Duration::from_micros(500);
/// How fast the share of rests changes, for each second: down without a lag, and up with one that is larger, at most by so
/// many times.
const GAIN: f32 = 1.0;
const MORE_MAX: f32 = 6.0;
/// Lanes keep at least a tenth of their time.
const SHARE_MAX: f32 = 0.9;
/// Up to this share, a lane works again as soon as a processor is free. Beyond it, readers need the processor again soon.
pub const FREE_SHARE_MAX: f32 = 0.5;
/// The longest rest.
pub const REST_MAX: Duration = Duration::from_millis(20);

/// The rests of the lanes of a node.
#[derive(Debug, Default)]
pub struct ReaderWaits {
    /// The share of their time that lanes rest, as the bits of a float.
    share: AtomicU32,
    look: Mutex<Look>,
    /// How many requests were read since the last look, and how long after their heads, together.
    read: AtomicU32,
    lags_us: AtomicU64,
    /// Notified when a rest may be over.
    over: Condvar,
    /// How often a processor was free while a lane rested.
    free: AtomicU32,
    /// The thread that sees that, and whether it ends.
    watch: OnceLock<Option<Thread>>,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Look {
    readers: Vec<Reader>,
    at: Option<Instant>,
    /// The processor time of the process, in nanoseconds.
    process: u64,
}

/// Times between two looks, as shares of the time of one processor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    /// The work of the busiest reader, together with its waits for a processor.
    busy: f32,
    /// The waits of this reader.
    waited: f32,
    /// The work of the rest of the process, which is mostly that of lanes.
    lanes: f32,
    /// How long after their heads requests were read, in the mean.
    lag: Duration,
}

/// A thread that reads requests.
#[derive(Debug)]
struct Reader {
    /// What Linux knows of its times.
    file: File,
    times: Times,
}

/// How long a thread worked, and waited for a processor, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    worked: u64,
    waited: u64,
}

impl ReaderWaits {
    /// Counts the current thread as one that reads requests, if Linux tells its times.
    pub fn add_reader(&self) {
        // SAFETY: it takes nothing and returns a number.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let Ok(file) = File::open(format!("/proc/self/task/{thread}/schedstat")) else { return };
        let Some(times) = times_of(&file) else { return };
        self.lock().readers.push(Reader { file, times });
    }

    /// Notes that a request was read, so long after its head.
    pub fn note(&self, lag: Duration) {
        self.lags_us.fetch_add(lag.as_micros() as u64, Ordering::Relaxed);
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the share of their time in which lanes should rest now.
    pub fn share(&self) -> f32 {
        self.look(Instant::now());
        f32::from_bits(self.share.load(Ordering::Relaxed))
    }

    /// Notified when a rest may be over: a lane has ended its work, or a processor is free.
    pub fn over(&self) -> &Condvar {
        &self.over
    }

    /// How often a processor was free while a lane rested.
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Watches for a free processor from now on, until it sees one: by a thread that Linux runs only where nothing else
    /// wants to. It takes no lock, since it may stop for long at any place.
    pub fn watch(self: &Arc<Self>) {
        let start = || {
            let waits = self.clone();
            let watching = std::thread::Builder::new().name("idle".into()).spawn(move || waits.see_free());
            watching.ok().map(|handle| handle.thread().clone())
        };
        if let Some(thread) = self.watch.get_or_init(start) {
            thread.unpark();
        }
    }

    fn see_free(&self) {
        // SAFETY: it only reads.
        let is_idle = unsafe {
            libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 })
        };
        if is_idle != 0 {
            return;
        }
        loop {
            std::thread::park();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            self.free.fetch_add(1, Ordering::Relaxed);
            self.over.notify_all();
        }
    }

    /// Ends the thread that watches.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(Some(thread)) = self.watch.get() {
            thread.unpark();
        }
    }

    /// Looks at the readers, unless another lane just did.
    fn look(&self, now: Instant) {
        let Ok(mut look) = self.look.try_lock() else { return };
        let span = look.at.map_or(Duration::MAX, |at| now.duration_since(at));
        if span < SPAN {
            return;
        }
        look.at = Some(now);
        let share = |now: u64, before: u64| now.saturating_sub(before) as f32 / span.as_nanos() as f32;
        let process = process_time();
        let mut seen = Seen { lanes: share(process, look.process), ..Seen::default() };
        look.process = process;
        look.readers.retain_mut(|reader| {
            let Some(times) = times_of(&reader.file) else { return false }; // it has ended
            let worked = share(times.worked, reader.times.worked);
            let waited = share(times.waited, reader.times.waited);
            reader.times = times;
            seen.lanes -= worked;
            if worked + waited > seen.busy {
                (seen.busy, seen.waited) = (worked + waited, waited);
            }
            true
        });
        let (lags_us, read) = (self.lags_us.swap(0, Ordering::Relaxed), self.read.swap(0, Ordering::Relaxed));
        seen.lag = Duration::from_micros(lags_us / u64::from(read.max(1)));
        let before = f32::from_bits(self.share.load(Ordering::Relaxed));
        let after = if span > SPAN_MAX { 0.0 } else { next_share(before, span, seen) };
        self.share.store(after.to_bits(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the share of rests after a span. If lanes use less than half of what the reader lacks, others keep it waiting.
fn next_share(share: f32, span: Duration, Seen { busy, waited, lanes, lag }: Seen) -> f32 {
    let can_give = busy >= BUSY && waited >= WAIT && lanes >= waited / 2.0;
    let more = if can_give { lag.as_secs_f32() / LAG.as_secs_f32() - 1.0 } else { -1.0 };
    (share + span.as_secs_f32() * GAIN * more.min(MORE_MAX)).clamp(0.0, SHARE_MAX)
}

/// Returns how long a lane pauses after work that took so long, if it may work for a part of the time.
pub fn pause_after(work: Duration, part: f32) -> Duration {
    work.mul_f32(1.0 / part.max(0.01) - 1.0).min(REST_MAX)
}

/// The processor time of this process, in nanoseconds.
fn process_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`, and every Linux has that clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the times of a thread; `None` if it has ended.
fn times_of(file: &File) -> Option<Times> {
    let mut bytes = [0; 64];
    let length = file.read_at(&mut bytes, 0).ok()?;
    times_in(std::str::from_utf8(&bytes[..length]).ok()?)
}

fn times_in(text: &str) -> Option<Times> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (worked, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Times { worked, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Seen = Seen { busy: 0.95, waited: 0.3, lanes: 0.9, lag: Duration::ZERO };

    fn after(spans: usize, mut share: f32, seen: impl Fn(f32) -> Seen) -> f32 {
        for _ in 0..spans {
            share = next_share(share, SPAN, seen(share));
        }
        share
    }

    #[test]
    fn lanes_rest_as_much_as_readers_need_to_follow() {
        let seen = |share: f32| Seen { lag: if share < 0.6 { LAG * 8 } else { Duration::ZERO }, ..WAITS };
        assert!((after(1_000, 0.0, seen) - 0.6).abs() < 0.08);
        assert!(after(20, 0.0, seen) > 0.5, "it is quick");
        assert_eq!(after(10_000, 0.0, |_| Seen { lag: LAG * 2, ..WAITS }), SHARE_MAX);
        assert_eq!(after(200, SHARE_MAX, |_| WAITS), 0.0);
    }

    #[test]
    fn slow_callers_readers_with_a_processor_and_other_programs_make_no_lane_rest() {
        let late = Seen { lag: LAG * 100, ..WAITS };
        assert!(after(100, 0.0, |_| late) > 0.0);
        for seen in [
            Seen { busy: 0.7, ..late },
            Seen { waited: 0.01, ..late },
            Seen { busy: 0.0, waited: 0.0, ..late },
            Seen { lanes: 0.1, ..late },
        ] {
            assert_eq!(after(1_000, 0.0, |_| seen), 0.0);
            assert_eq!(after(1_000, 0.5, |_| seen), 0.0);
        }
    }

    #[test]
    fn times_are_read_as_linux_writes_them_and_nothing_else_is() {
        assert_eq!(times_in("12 34 5\n"), Some(Times { worked: 12, waited: 34 }));
        for text in ["", "12", "12 x 5", "-1 2 3"] {
            assert_eq!(times_in(text), None, "{text}");
        }
    }

    #[test]
    fn rests_follow_a_thread_that_waits_and_end_with_it() {
        let waits = ReaderWaits::default();
        assert_eq!(waits.share(), 0.0);
        let stop = AtomicBool::new(false);
        let spin = || {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waits.add_reader();
                spin();
            });
            (0..40).for_each(|_| drop(scope.spawn(spin)));
            let until = Instant::now() + Duration::from_secs(60);
            while waits.lock().readers.is_empty() || waits.share() == 0.0 {
                waits.note(LAG * 8);
                assert!(Instant::now() < until, "no lane rests");
                std::thread::sleep(SPAN);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let until = Instant::now() + Duration::from_secs(60);
        while waits.share() > 0.0 {
            assert!(Instant::now() < until, "lanes rest for a thread that has ended");
            std::thread::sleep(SPAN);
        }
        assert!(waits.lock().readers.is_empty());
    }
}
