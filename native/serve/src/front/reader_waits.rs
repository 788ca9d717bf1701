//! Reader waits: how many lanes may work, so that the threads that read requests get a processor. Knows no requests.
//!
//! A node cannot cut a request that it has not read, and the caller's clock runs. Linux gives a reader and
//! each lane equal shares of the processors. A reader that needs more than its share falls further and further behind, and
//! then all requests are late, however fast lanes are. So lanes rest while requests are read late because a reader waits
//! for a processor. A lower priority of lanes would do the same, but a process may not raise a priority again. If that is
//! not enough, some requests are refused unread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Thread, available_parallelism};
use std::time::{Duration, Instant};

use super::unread_share::{Reading, UnreadShare};

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
/// With a longer mean lag over about this time, requests are refused unread.
const FAR_LAG: Duration = Duration::from_millis(8);
const LAG_MEMORY: Duration = Duration::from_millis(100);
/// A longer lag counts as this one: then it is the caller who is slow.
const NOTED_LAG_MAX: Duration = Duration::from_millis(50);
/// How fast the share of rests falls without a lag, for each second. With a lag of N times `LAG` it rises N - 1 times as
/// fast, but at most six times.
const GAIN: f32 = 1.0;
const MORE_MAX: f32 = 6.0;
/// Lanes keep at least a tenth of their time.
const SHARE_MAX: f32 = 0.9;
/// Lanes rest for this share at least before requests are refused unread.
const FIRST_SHARE: f32 = 0.3;
/// Up to this share, a lane works again as soon as a processor is free. Beyond it, readers need the processor again soon.
const FREE_SHARE_MAX: f32 = 0.5;
/// The longest rest.
pub const REST_MAX: Duration = Duration::from_millis(20);

/// The rests of all lanes of a node.
#[derive(Debug, Default)]
pub struct ReaderWaits {
    /// The share of their time that lanes rest, as the bits of a float.
    share: AtomicU32,
    look: Mutex<Look>,
    unread: UnreadShare,
    /// How many requests were read since the last look, and how long after their heads, together.
    read: AtomicU32,
    lags_us: AtomicU64,
    /// How many lanes rest.
    resting: AtomicU32,
    /// Held by a lane that looks whether its rest is over.
    turns: Mutex<()>,
    signs: Arc<Signs>,
    /// The thread that sees a free processor.
    watch: OnceLock<Option<Thread>>,
}

/// The signs that a rest is over.
#[derive(Debug, Default)]
struct Signs {
    /// Notified when a rest may be over: a lane has ended its work, or a processor is free.
    over: Condvar,
    /// Whether a processor was free while a lane rested; the first lane that sees it works again.
    is_free: AtomicBool,
    /// Whether the thread that sees free processors must end.
    is_closed: AtomicBool,
}

impl Drop for ReaderWaits {
    fn drop(&mut self) {
        self.signs.is_closed.store(true, Ordering::Release);
        if let Some(Some(thread)) = self.watch.get() {
            thread.unpark();
        }
    }
}

#[derive(Debug, Default)]
struct Look {
    readers: Vec<Reader>,
    at: Option<Instant>,
    /// The processor time of the process, in nanoseconds.
    process: u64,
    /// The mean lag of late, in seconds.
    lag_s: f32,
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
    /// How long after their heads requests were read, in the mean; `None` if none was read.
    lag: Option<Duration>,
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
        self.lags_us.fetch_add(lag.min(NOTED_LAG_MAX).as_micros() as u64, Ordering::Relaxed);
        self.read.fetch_add(1, Ordering::Relaxed);
        self.look(Instant::now());
    }

    /// Notes that a request that was read has its answer.
    pub fn answered(&self) {
        if self.is_late() {
            self.unread.answered();
        }
    }

    /// Whether requests are read late, so that some may have to be refused unread.
    pub fn is_late(&self) -> bool {
        f32::from_bits(self.share.load(Ordering::Relaxed)) > 0.0 || self.unread.share() > 0.0
    }

    /// Whether a request of such a priority and value is refused unread.
    pub fn refuses_unread(&self, priority: u8, value: f32) -> bool {
        self.look(Instant::now());
        self.unread.refuses(priority, value)
    }

    /// Returns the share of their time in which lanes should rest now.
    pub fn share(&self) -> f32 {
        self.look(Instant::now());
        f32::from_bits(self.share.load(Ordering::Relaxed))
    }

    /// Makes the current thread wait, until a processor is free for it or `left` returns no time to wait. `left` is called
    /// again when that time has passed, and when a lane has ended its work.
    pub fn wait_turn(&self, share: f32, mut left: impl FnMut() -> Option<Duration>) {
        let heeds_free = share <= FREE_SHARE_MAX && !has_quota();
        if heeds_free {
            self.signs.is_free.store(false, Ordering::Relaxed);
            self.watch();
        }
        self.resting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(time) = left() {
            if heeds_free && self.signs.is_free.swap(false, Ordering::Relaxed) {
                self.watch(); // there may be a processor for another lane, too
                break;
            }
            turn = self.signs.over.wait_timeout(turn, time).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(turn);
        self.resting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets a resting lane see that another one has ended its work.
    pub fn end_turn(&self) {
        if self.resting.load(Ordering::SeqCst) > 0 {
            drop(self.turns.lock()); // a lane that looked before it ended waits by now
            self.signs.over.notify_all();
        }
    }

    /// Watches for a free processor from now on, until it sees one: by a thread that Linux runs only where nothing else
    /// wants to. It takes no lock, since it may stop for long at any place.
    fn watch(&self) {
        let start = || {
            let signs = self.signs.clone();
            let watching = std::thread::Builder::new().name("idle".into()).spawn(move || signs.see_free());
            watching.ok().map(|handle| handle.thread().clone())
        };
        if let Some(thread) = self.watch.get_or_init(start) {
            thread.unpark();
        }
    }

    /// Looks at the readers, unless another thread just did.
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
        seen.lag = lags_us.checked_div(u64::from(read)).map(Duration::from_micros);
        let before = f32::from_bits(self.share.load(Ordering::Relaxed));
        let after = if span > SPAN_MAX { 0.0 } else { next_share(before, span, seen) };
        self.share.store(after.to_bits(), Ordering::Relaxed);
        if span > SPAN_MAX {
            look.lag_s = 0.0;
            return self.unread.clear();
        }
        if let Some(lag) = seen.lag {
            let weight = (span.as_secs_f32() / LAG_MEMORY.as_secs_f32()).min(1.0);
            look.lag_s += (lag.as_secs_f32() - look.lag_s) * weight;
        }
        self.unread.follow(now, span, reading_of(after, seen, look.lag_s));
    }

    fn lock(&self) -> MutexGuard<'_, Look> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Signs {
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
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            self.is_free.store(true, Ordering::Relaxed);
            self.over.notify_one();
        }
    }
}

/// Returns the share of rests after a span. If lanes use less than half of what the reader lacks, others keep it waiting.
/// A reader that lacks a processor and reads nothing changes nothing: it is not known how late it is.
fn next_share(share: f32, span: Duration, Seen { busy, waited, lanes, lag }: Seen) -> f32 {
    let can_give = busy >= BUSY && waited >= WAIT && lanes >= waited / 2.0;
    let more = match lag {
        _ if !can_give => -1.0,
        Some(lag) => lag.as_secs_f32() / LAG.as_secs_f32() - 1.0,
        None => 0.0,
    };
    (share + span.as_secs_f32() * GAIN * more.min(MORE_MAX)).clamp(0.0, SHARE_MAX)
}

/// Returns how requests are read, by the share of rests, the times of a span and the mean lag of some spans. Reading is late
/// only if lanes rest already, or if their rests cannot help: the reader has a processor, or others keep it waiting.
fn reading_of(share: f32, Seen { busy, waited, lanes, lag }: Seen, lag_s: f32) -> Reading {
    let is_rested = share >= FIRST_SHARE || waited < WAIT || lanes < waited / 2.0;
    match lag {
        _ if busy < BUSY || !is_rested => Reading::InTime,
        Some(lag) if lag <= LAG => Reading::InTime,
        Some(_) if lag_s > FAR_LAG.as_secs_f32() => Reading::FarBehind,
        _ => Reading::Late,
    }
}

/// Whether a control group limits the processor time of this process: then a processor that is free may not be for us.
fn has_quota() -> bool {
    static HAS_QUOTA: OnceLock<bool> = OnceLock::new();
    *HAS_QUOTA.get_or_init(|| {
        // SAFETY: all of its bits may be zero, and the call writes into it at most its size.
        let allowed = unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            let is_known = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0;
            is_known.then(|| libc::CPU_COUNT(&set) as usize)
        };
        // This number heeds quotas.
        available_parallelism().is_ok_and(|usable| allowed.is_none_or(|allowed| usable.get() < allowed))
    })
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

    const WAITS: Seen = Seen { busy: 0.95, waited: 0.3, lanes: 0.9, lag: Some(Duration::ZERO) };

    fn after(spans: usize, mut share: f32, seen: impl Fn(f32) -> Seen) -> f32 {
        for _ in 0..spans {
            share = next_share(share, SPAN, seen(share));
        }
        share
    }

    #[test]
    fn lanes_rest_as_much_as_readers_need_to_follow() {
        let lag = |share: f32| if share < 0.6 { LAG * 8 } else { Duration::ZERO };
        let seen = |share: f32| Seen { lag: Some(lag(share)), ..WAITS };
        assert!((after(1_000, 0.0, seen) - 0.6).abs() < 0.08);
        assert!(after(20, 0.0, seen) > 0.5, "it is quick");
        assert_eq!(after(10_000, 0.0, |_| Seen { lag: Some(LAG * 2), ..WAITS }), SHARE_MAX);
        assert_eq!(after(200, SHARE_MAX, |_| WAITS), 0.0);
        let reads_none = Seen { lag: None, ..WAITS };
        assert_eq!(after(1_000, 0.3, |_| reads_none), 0.3);
        assert_eq!(after(1_000, 0.3, |_| Seen { waited: 0.0, ..reads_none }), 0.0);
    }

    #[test]
    fn slow_callers_readers_with_a_processor_and_other_programs_make_no_lane_rest() {
        let late = Seen { lag: Some(LAG * 100), ..WAITS };
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
    fn reading_is_far_behind_only_if_rests_cannot_help() {
        let late = Seen { lag: Some(LAG * 40), ..WAITS };
        let far_s = 2.0 * FAR_LAG.as_secs_f32();
        for (share, seen, lag_s, expected) in [
            (0.5, late, far_s, Reading::FarBehind),
            (0.5, late, 0.001, Reading::Late),
            (0.1, late, far_s, Reading::InTime),
            (0.0, Seen { waited: 0.0, ..late }, far_s, Reading::FarBehind),
            (0.0, Seen { lanes: 0.1, ..late }, far_s, Reading::FarBehind),
            (0.5, Seen { busy: 0.7, ..late }, far_s, Reading::InTime),
            (0.5, Seen { lag: Some(LAG), ..late }, far_s, Reading::InTime),
            (0.5, Seen { lag: None, ..late }, far_s, Reading::Late),
        ] {
            assert_eq!(reading_of(share, seen, lag_s), expected, "{share} {seen:?} {lag_s}");
        }
    }

    #[test]
    fn requests_that_are_read_late_are_noticed_even_if_none_is_answered_and_slow_callers_count_little() {
        let waits = ReaderWaits::default();
        let until = Instant::now() + Duration::from_secs(60);
        while waits.lock().lag_s == 0.0 {
            waits.note(Duration::from_secs(9));
            assert!(Instant::now() < until, "no look was made");
            std::thread::sleep(SPAN);
        }
        assert!(waits.lock().lag_s <= NOTED_LAG_MAX.as_secs_f32());
        assert!(!waits.is_late() && !waits.refuses_unread(3, 0.1), "no reader works");
    }

    #[test]
    fn times_are_read_as_linux_writes_them_and_nothing_else_is() {
        assert_eq!(times_in("12 34 5\n"), Some(Times { worked: 12, waited: 34 }));
        for text in ["", "12", "12 x 5", "-1 2 3"] {
            assert_eq!(times_in(text), None, "{text}");
        }
    }

    /// Ends threads that spin, even if the test fails.
    #[derive(Default)]
    struct Spinning(AtomicBool);

    impl Spinning {
        fn spin(&self) {
            while !self.0.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    }

    struct Ends<'a>(&'a Spinning);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn rests_follow_a_thread_that_waits_and_end_with_it() {
        if File::open("/proc/self/schedstat").is_err() {
            return; // then there are no rests
        }
        let (waits, spinning) = (ReaderWaits::default(), Spinning::default());
        assert_eq!(waits.share(), 0.0);
        std::thread::scope(|scope| {
            let _ends = Ends(&spinning);
            scope.spawn(|| {
                waits.add_reader();
                spinning.spin();
            });
            let others = 4 * available_parallelism().map_or(10, |usable| usable.get());
            (0..others).for_each(|_| drop(scope.spawn(|| spinning.spin())));
            let until = Instant::now() + Duration::from_secs(60);
            while waits.lock().readers.is_empty() || waits.share() == 0.0 {
                waits.note(LAG * 8);
                assert!(Instant::now() < until, "no lane rests");
                std::thread::sleep(SPAN);
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        while waits.share() > 0.0 {
            assert!(Instant::now() < until, "lanes rest for a thread that has ended");
            std::thread::sleep(SPAN);
        }
        assert!(waits.lock().readers.is_empty());
    }

    #[test]
    fn a_lane_waits_until_its_time_is_over_or_another_has_ended() {
        let (waits, looks) = (ReaderWaits::default(), AtomicU32::new(0));
        let share = 0.9; // a free processor ends no rest
        let mut times = vec![Duration::from_micros(100); 3];
        waits.wait_turn(share, || times.pop());
        assert!(times.is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waits.wait_turn(share, || {
                    (looks.fetch_add(1, Ordering::SeqCst) == 0).then_some(Duration::from_secs(3600))
                });
            });
            while looks.load(Ordering::SeqCst) < 2 {
                waits.end_turn();
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_lane_works_again_when_a_processor_is_free() {
        if has_quota() {
            return;
        }
        // All other threads of this machine would have to want all processors for the whole time.
        let begin = Instant::now();
        let patience = Duration::from_secs(60);
        ReaderWaits::default().wait_turn(FREE_SHARE_MAX, || {
            Some(Duration::from_millis(50)).filter(|_| begin.elapsed() < patience)
        });
        assert!(begin.elapsed() < patience);
    }
}
