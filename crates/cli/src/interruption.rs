//! The signals that ask a command to end, for commands that leave something behind unless they end in good order.

use std::{fs, future, io, process, thread};

use futures_util::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{client::block_on, failure::Failure};

/// The exit code of a program that an interruption has ended, as shells show it.
const INTERRUPTED: i32 = 130;

/// Ctrl-C, and what else asks for an end. Such a signal does not end the program any more once this was made. One that
/// was ignored, as `nohup` and shells have it, stays so.
pub struct Interruption(Vec<Signal>);

impl Interruption {
    /// Listens from now on.
    pub fn listen() -> io::Result<Interruption> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let all =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let heard = all.into_iter().filter(|kind| ignored >> (kind.as_raw_value() - 1) & 1 == 0);
        Ok(Interruption(heard.map(signal).collect::<io::Result<_>>()?))
    }

    /// Waits for one.
    pub async fn comes(&mut self) {
        if self.0.is_empty() {
            return future::pending().await;
        }
        select_all(self.0.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    }
}

/// The signals that a process ignores, the first in the lowest bit.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Has an interruption end the program again, which it did before somebody listened.
pub fn ends_the_program() {
    thread::spawn(|| {
        block_on::<()>(async {
            Interruption::listen().map_err(Failure::failed)?.comes().await;
            process::exit(INTERRUPTED)
        })
    });
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn what_a_process_ignores_is_read_of_its_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert_eq!((ignored(status), ignored("")), (1 << 12 | 1, 0));
    }
}
