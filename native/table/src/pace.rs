//! Pace: pauses background work when others want its processor.
//!
//! A thread with a higher nice value than its process keeps a processor for milliseconds once it has it, and
//! all threads that wake up meanwhile wait. So it works in short stretches and then rests longer than it had
//! to wait for a processor itself; without contention it never rests. It must hold nothing that others wait
//! for while it rests.
//!
//! Since Linux 6.12 a thread that wakes up gets the processor at once from a thread with longer time slices,
//! whatever their nice values. So background work takes long ones, and threads that answer take short ones.

use std::time::{Duration, Instant};

/// The work between two checks.
const LOOK: Duration = Duration::from_micros(100);
/// A thread rests this many times the time it had to wait.
const REST_TIMES: u32 = 3;
/// A thread rests at most this many times the time it worked, so it keeps at least a ninth of its speed.
const REST_WORK_MAX: u32 = 8;
/// The time slices of background work: longer than Linux's own (0.7 to 2.8 ms), and short enough for whoever
/// waits behind it on a Linux that lets a thread use up its slice.
const LONG_SLICE: Duration = Duration::from_millis(4);

/// The pace of one thread's work; without rests if the thread is as nice as its process.
pub struct Pace(Option<Stretch>);

/// The time since the last check.
struct Stretch {
    worked: Duration,
    began: Instant,
}

impl Pace {
    /// Starts the pace of the current thread.
    pub fn begin() -> Self {
        if nice_of(0) <= nice_of(std::process::id()) {
            return Self(None);
        }
        take_slices(LONG_SLICE);
        Self(Some(Stretch { worked: worked(), began: Instant::now() }))
    }

    /// Rests if necessary. Call it between two pieces of work, while holding nothing that others wait for.
    pub fn rest(&mut self) {
        let Some(stretch) = &mut self.0 else { return };
        let (worked, now) = (worked(), Instant::now());
        let work = worked.saturating_sub(stretch.worked);
        if work < LOOK {
            return;
        }
        let rest = rest_after(work, (now - stretch.began).saturating_sub(work));
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        // A late wake-up counts as waiting too.
        *stretch = Stretch { worked, began: now + rest };
    }
}

/// The rest after `work`, for which the thread waited `waited` for a processor.
fn rest_after(work: Duration, waited: Duration) -> Duration {
    (waited * REST_TIMES).min(work * REST_WORK_MAX)
}

/// Sets the time slices of this thread, and of threads that it starts later: the time for which it keeps a
/// processor that others want. Linux before 6.12 has its own, and nothing changes there.
pub fn take_slices(slice: Duration) {
    let Some(mut attributes) = attributes() else { return };
    if attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = slice.as_nanos() as u64;
        // SAFETY: it only reads. A refusal changes nothing.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// What Linux knows of how it runs this thread; `None` if it does not say.
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: it writes no more than `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

/// The nice value of a thread, 0 for the current one; a process has that of its first thread.
fn nice_of(thread: u32) -> i32 {
    // SAFETY: it only reads.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) }
}

/// The processor time of this thread.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`, and every Linux has that clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_micros(100);

    #[test]
    fn who_was_not_kept_waiting_does_not_rest() {
        assert_eq!(rest_after(WORK, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn the_longer_others_work_the_longer_it_rests_up_to_a_bound() {
        assert_eq!(rest_after(WORK, WORK / 2), WORK * 3 / 2);
        assert_eq!(rest_after(WORK, WORK), WORK * 3);
        assert_eq!(rest_after(WORK, Duration::from_secs(1)), WORK * 8);
    }

    /// The rest of a thread that waited long, with a nice value higher than its process by `nicer`.
    fn rested(nicer: i32) -> Duration {
        std::thread::spawn(move || {
            let nice = nice_of(std::process::id()) + nicer;
            // SAFETY: it changes only this thread.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0);
            let (mut pace, begin) = (Pace::begin(), worked());
            while worked() - begin < LOOK {
                std::hint::spin_loop();
            }
            // A sleeping thread has no processor either.
            std::thread::sleep(Duration::from_millis(20));
            let worked_before = worked();
            let since = Instant::now();
            pace.rest();
            since.elapsed().saturating_sub(worked() - worked_before)
        })
        .join()
        .expect("it ends")
    }

    #[test]
    fn a_nicer_thread_rests_after_it_waited() {
        if nice_of(std::process::id()) < 19 {
            assert!(rested(1) >= LOOK * REST_WORK_MAX);
        }
    }

    /// The time slices of this thread.
    fn slice() -> Duration {
        Duration::from_nanos(attributes().expect("Linux says them").sched_runtime)
    }

    #[test]
    fn threads_that_a_thread_starts_have_its_slices_where_linux_has_slices() {
        std::thread::spawn(|| {
            let before = slice();
            take_slices(Duration::from_micros(300));
            // A Linux without slices of threads says nothing of them.
            let expected = if before.is_zero() { before } else { Duration::from_micros(300) };
            assert_eq!(slice(), expected);
            assert_eq!(std::thread::spawn(slice).join().expect("it ends"), expected);
        })
        .join()
        .expect("it ends");
    }

    #[test]
    fn a_thread_as_nice_as_its_process_has_no_pace() {
        assert!(Pace::begin().0.is_none());
    }
}
