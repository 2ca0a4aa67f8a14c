//! The signals that ask a command to end, for commands that leave something behind unless they end in good order.

use std::{io, process, thread};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{client::block_on, failure::Failure};

/// The exit code of a program that an interruption has ended, as shells show it.
const INTERRUPTED: i32 = 130;

/// Ctrl-C, and what else asks for an end. Such a signal does not end the program any more once this was made.
pub struct Interruption([Signal; 4]);

impl Interruption {
    /// Listens from now on.
    pub fn listen() -> io::Result<Interruption> {
        let [interrupt, terminate, hang_up, quit] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()]
                .map(signal);
        Ok(Interruption([interrupt?, terminate?, hang_up?, quit?]))
    }

    /// Waits for one.
    pub async fn comes(&mut self) {
        let [interrupt, terminate, hang_up, quit] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            _ = quit.recv() => {}
        }
    }
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
