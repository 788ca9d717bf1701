//! A pacer: waits until a request is due, in the runtime that sends it. It knows no schedule.
//!
//! The runtime's own timers are good to a millisecond, and a thread that sleeps has to wake another one for each request.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How far apart it wakes up at least: to wake up costs nearly what a request costs, so what is due meanwhile goes together.
const APART: Duration = Duration::from_micros(250);

/// A timer of the kernel.
#[derive(Debug)]
pub struct Pacer {
    timer: AsyncFd<OwnedFd>,
    woke: Instant,
}

impl Pacer {
    /// A timer; in a runtime.
    ///
    /// # Errors
    /// The system gives no more files.
    pub fn new() -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is this timer's alone and open until the runtime has let go of it.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? };
        Ok(Self { timer, woke: Instant::now() })
    }

    /// Wait so long, or a little longer after one has just waited.
    ///
    /// # Errors
    /// The timer cannot be set or read, which only a system that lacks memory does.
    pub async fn wait(&mut self, left: Duration) -> io::Result<()> {
        let left = left.max(APART.saturating_sub(self.woke.elapsed())).max(Duration::from_nanos(1));
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        let mut times = [0; 8];
        loop {
            let mut ready = self.timer.readable().await?;
            let read = ready.try_io(|timer| rustix::io::read(timer, &mut times).map_err(io::Error::from));
            // Without a result it had not passed yet.
            if let Ok(read) = read {
                self.woke = Instant::now();
                return read.map(drop);
            }
        }
    }
}
