//! The generator's host: a precise alarm, its own CPU time, and a description for the report.

use std::{
    fs, io,
    net::{IpAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use super::report::ClientHost;

/// CPU time that the calling thread has used so far.
pub(super) fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel never gives negative CPU times.
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Describes this machine; `addresses` are the servers'.
pub(super) fn describe(addresses: &[String]) -> ClientHost {
    let system = rustix::system::uname();
    ClientHost {
        host: system.nodename().to_string_lossy().into_owned(),
        system: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        loopback: addresses.iter().all(|address| is_loopback(address)),
        // Only Linux has this file; it shows whether other programs used the machine.
        load_average: fs::read_to_string("/proc/loadavg")
            .ok()
            .and_then(|text| text.split(' ').next()?.parse().ok()),
    }
}

fn is_loopback(address: &str) -> bool {
    let Ok(mut addresses) = address.to_socket_addrs() else { return false };
    addresses.all(|address| match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    })
}

/// Wakes a task at a time, within tens of microseconds where the system can.
///
/// The runtime's own timers have a resolution of a millisecond, as long as a whole request may take. An open
/// loop that slept with them would charge the server for the generator's own oversleeping.
#[derive(Debug)]
pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Alarm {
    /// An alarm on the current runtime.
    pub(super) fn new() -> io::Result<Alarm> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "it trusts descriptors that may be closed behind its back; an OwnedFd never is"
        )]
        let timer = tokio::io::unix::AsyncFd::with_interest(timer, tokio::io::Interest::READABLE)?;
        Ok(Alarm { timer })
    }

    /// Returns at `due`, or at once if that has passed. One task at a time may wait.
    pub(super) async fn wait_until(&self, due: Instant) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let wait = due.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut guard = self.timer.readable().await?;
            let mut expirations = [0; 8];
            // `WouldBlock` means that the readiness was left over from an earlier wait; `try_io` clears it.
            if let Ok(read) = guard.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?)) {
                return read.map(|_| ());
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    /// An alarm on the current runtime.
    pub(super) fn new() -> io::Result<Alarm> {
        Ok(Alarm {})
    }

    /// Returns at most some milliseconds after `due`, or at once if that has passed.
    pub(super) async fn wait_until(&self, due: Instant) -> io::Result<()> {
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn an_alarm_never_rings_early_and_rings_again() {
        let alarm = Alarm::new().unwrap();
        for wait in [300, 0, 700, 50].map(Duration::from_micros) {
            let due = Instant::now() + wait;
            alarm.wait_until(due).await.unwrap();
            assert!(Instant::now() >= due);
        }
    }

    #[test]
    fn work_takes_cpu_time() {
        let before = thread_cpu();
        let began = Instant::now();
        while thread_cpu() < before + Duration::from_millis(2) {
            assert!(began.elapsed() < Duration::from_secs(30), "CPU time stands still");
        }
    }

    #[test]
    fn loopback_is_told_from_elsewhere() {
        assert!(describe(&["127.0.0.1:1".into(), "[::1]:1".into()]).loopback);
        assert!(!describe(&["127.0.0.1:1".into(), "192.0.2.1:1".into()]).loopback);
    }
}
