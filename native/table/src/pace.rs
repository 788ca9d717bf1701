//! Pace: how work that nobody waits for rests where others want its processor.
//!
//! A thread that is nicer than its process keeps a processor that it has for milliseconds, and all who wake up meanwhile
//! wait. So it works a little at a time, and then rests for longer than others kept it waiting; where nobody does, it
//! never rests. Who holds nothing while it rests keeps nobody from anything, however full the machine is.

use std::time::{Duration, Instant};

/// How long is worked between two looks.
const LOOK: Duration = Duration::from_micros(100);
/// How many times as long as it was kept waiting a thread rests.
const REST_TIMES: u32 = 3;
/// How many times as long as it worked a thread rests at most: it goes on at a ninth of its speed at least.
const REST_WORK_MAX: u32 = 8;

/// The pace of one thread's work: without rests where the thread is as nice as its process.
pub struct Pace(Option<Stretch>);

/// What went on since it was last looked.
struct Stretch {
    worked: Duration,
    began: Instant,
}

impl Pace {
    /// Of this thread, from now on.
    pub fn begin() -> Self {
        Self(
            (nice_of(0) > nice_of(std::process::id()))
                .then(|| Stretch { worked: worked(), began: Instant::now() }),
        )
    }

    /// Rest, if it is time to. To be called between two pieces of work, holding nothing that others wait for.
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
        // That it got its processor back late is a wait as well.
        *stretch = Stretch { worked, began: now + rest };
    }
}

/// How long to rest after so much work, for which a processor was waited for so long.
fn rest_after(work: Duration, waited: Duration) -> Duration {
    (waited * REST_TIMES).min(work * REST_WORK_MAX)
}

/// How nice a thread is, this one where none is named; that of a process is its first.
fn nice_of(thread: u32) -> i32 {
    // SAFETY: it only asks.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, thread) }
}

/// How long this thread had a processor.
fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes there, and every Linux has that clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(all(test, not(model)))]
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

    /// How long a thread rests that waited for long, so much nicer than its process.
    fn rested(nicer: i32) -> Duration {
        std::thread::spawn(move || {
            let nice = nice_of(std::process::id()) + nicer;
            // SAFETY: it changes this thread alone.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0);
            let (mut pace, begin) = (Pace::begin(), worked());
            while worked() - begin < LOOK {
                std::hint::spin_loop();
            }
            // Who sleeps has no processor either.
            std::thread::sleep(Duration::from_millis(20));
            let before = worked();
            let since = Instant::now();
            pace.rest();
            since.elapsed().saturating_sub(worked() - before)
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

    #[test]
    fn a_thread_as_nice_as_its_process_has_no_pace() {
        assert!(Pace::begin().0.is_none());
    }
}
