//! A pacer: waits until a request is due, in the runtime that sends it. Knows no schedule.
//!
//! The runtime's own timers are only accurate to a millisecond, and a sleeping thread would have to wake
//! another one for each request.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The minimum interval between wake-ups: waking up costs about as much as a request, so requests due
/// meanwhile are sent together.
const APART: Duration = Duration::from_micros(250);

/// A kernel timer.
#[derive(Debug)]
pub struct Pacer {
    timer: AsyncFd<OwnedFd>,
    woke_at: Instant,
}

impl Pacer {
    /// Creates a timer; call it within a runtime.
    ///
    /// # Errors
    /// If the system is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor belongs to this timer alone, and is open until the runtime has
        // released it.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? };
        Ok(Self { timer, woke_at: Instant::now() })
    }

    /// Waits for `left`; longer, if it has just woken up before.
    ///
    /// # Errors
    /// If the timer cannot be set or read, which only happens without memory.
    pub async fn wait(&mut self, left: Duration) -> io::Result<()> {
        let left = left.max(APART.saturating_sub(self.woke_at.elapsed())).max(Duration::from_nanos(1));
        let timer_spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer_spec)?;
        let mut times = [0; 8];
        loop {
            let mut ready = self.timer.readable().await?;
            let read = ready.try_io(|timer| rustix::io::read(timer, &mut times).map_err(io::Error::from));
            // Without a result the time has not passed yet.
            if let Ok(read) = read {
                self.woke_at = Instant::now();
                return read.map(drop);
            }
        }
    }
}
