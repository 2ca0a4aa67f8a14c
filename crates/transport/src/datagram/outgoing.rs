//! Datagrams to one peer, in one session.
//!
//! **A path has to show that it works.** A wall of packets may let TCP through and nothing else, and a link on the way
//! may be narrower than the MTU says. So a session begins with a probe, padded to the largest packet, and the peer says
//! over TCP that it has come ([`crate::probe::Probe::Arrived`]). Before that, and from [`UNANSWERED_MAX`] probes in a
//! row without an answer until the next answer, everything goes over TCP.

use std::{
    io::{self, ErrorKind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use synod_sync::{
    net::{TcpStream, UdpSocket},
    time::Instant,
};
use synod_wire::{Encoded, GroupId, Lsn};

use super::{Ends, Packer, Unpacked, bytes_max, probe};
use crate::socket;

/// After the first probe without an answer the next one follows this soon, and each later one after twice the time.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// After this many probes in a row without an answer no message is sent as a datagram.
const UNANSWERED_MAX: u32 = 3;

/// Totals since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Datagrams that the system took, but for probes.
    pub(crate) datagrams: AtomicU64,
    /// Bytes of these datagrams.
    pub(crate) bytes: AtomicU64,
    /// Messages in datagrams, also in those that the system did not take.
    pub(crate) messages: AtomicU64,
    /// Datagrams that the system did not take.
    pub(crate) unsent: AtomicU64,
}

/// The way of datagrams to one peer.
#[derive(Debug)]
pub(crate) struct Path {
    socket: UdpSocket,
    ends: Ends,
    /// The version of messages in the session.
    version: u16,
    bytes_max: usize,
    packer: Packer,
    probing: Probing,
}

/// Whether the path works, as far as probes tell.
#[derive(Debug)]
struct Probing {
    works: bool,
    /// The number of the last probe before this session.
    before: u64,
    /// The number of the last probe.
    asked: u64,
    /// How many probes were sent since the last answer.
    unanswered: u32,
    /// When to ask next.
    due: Instant,
    /// Time between probes while they are answered.
    interval: Duration,
}

impl Path {
    /// A path from the host of a connection to the address at the other end of it, for messages of this version. `mtu`
    /// is the smaller one of both replicas. `serial` is another one in each session to the peer.
    ///
    /// # Errors
    /// No link has such an MTU, or the system gives no socket.
    pub(crate) fn open(
        stream: &TcpStream,
        ends: Ends,
        version: u16,
        mtu: usize,
        serial: u32,
        interval: Duration,
    ) -> io::Result<Path> {
        let (mut local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        local.set_port(0);
        let max = bytes_max(mtu, peer.is_ipv6());
        let max = max.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("an MTU of {mtu}")))?;
        let socket = socket::packets_to(local, peer)?;
        Ok(Path {
            socket,
            ends,
            version,
            bytes_max: max,
            packer: Packer::new(max, &ends, version),
            probing: Probing::new(u64::from(serial) << 32, interval),
        })
    }

    /// Takes a message that fits, if the path works; says whether it did. It leaves at the latest at the next
    /// [`Path::flush`]. The sender's log is durable through `durable`.
    pub(crate) fn put(
        &mut self,
        version: u16,
        group: GroupId,
        body: &Encoded,
        durable: Lsn,
        counters: &Counters,
    ) -> bool {
        if !self.probing.works || version != self.version {
            return false;
        }
        let mut pushed = self.packer.push(group, body.parts());
        if pushed == Err(Unpacked::Full) {
            self.flush(durable, counters);
            if !self.probing.works {
                return false;
            }
            pushed = self.packer.push(group, body.parts());
        }
        let is_taken = pushed.is_ok();
        counters.messages.fetch_add(is_taken.into(), Relaxed);
        is_taken
    }

    /// Has everything leave that waits. What the system does not take is lost, as it may be on its way.
    pub(crate) fn flush(&mut self, durable: Lsn, counters: &Counters) {
        let Path { socket, packer, .. } = self;
        match packer.leave(durable, |datagram| socket.send(datagram)) {
            None => {}
            Some(Ok(bytes)) => {
                counters.datagrams.fetch_add(1, Relaxed);
                counters.bytes.fetch_add(bytes as u64, Relaxed);
            }
            Some(Err(error)) => {
                counters.unsent.fetch_add(1, Relaxed);
                self.failed(&error);
            }
        }
    }

    /// The system did not take a packet. There may be room for the next one; anything else means that nothing gets
    /// through at present.
    fn failed(&mut self, error: &io::Error) {
        let is_passing = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        if !is_passing && self.probing.works {
            (self.probing.works, self.probing.due) = (false, Instant::now());
        }
    }

    /// Asks the peer whether datagrams arrive, if it is time; returns how long it is until the next time.
    pub(crate) fn probe(&mut self, now: Instant) -> Duration {
        if let Some(number) = self.probing.ask(now) {
            let probe = probe(self.bytes_max, &self.ends, self.version, number);
            if let Err(error) = self.socket.send(&probe) {
                self.failed(&error);
            }
        }
        self.probing.due.saturating_duration_since(now)
    }

    /// The peer says that the probe with this number has come.
    pub(crate) fn arrived(&mut self, number: u64) {
        self.probing.answered(number, Instant::now());
    }

    /// Whether messages that fit go this way.
    pub(crate) fn works(&self) -> bool {
        self.probing.works
    }
}

impl Probing {
    fn new(before: u64, interval: Duration) -> Probing {
        Probing { works: false, before, asked: before, unanswered: 0, due: Instant::now(), interval }
    }

    /// The number of the probe that is due, if one is.
    fn ask(&mut self, now: Instant) -> Option<u64> {
        if now < self.due {
            return None;
        }
        if self.unanswered >= UNANSWERED_MAX {
            self.works = false;
        }
        let wait = ASK_AGAIN.saturating_mul(1 << self.unanswered.min(16));
        self.due = now + wait.min(self.interval);
        self.unanswered = self.unanswered.saturating_add(1);
        self.asked += 1;
        Some(self.asked)
    }

    /// Takes the answer to a probe. An answer to one of an earlier session, or to one that was given up, says nothing
    /// of the present.
    fn answered(&mut self, number: u64, now: Instant) {
        let oldest = self.asked.saturating_sub(UNANSWERED_MAX.into()).max(self.before);
        if oldest < number && number <= self.asked {
            (self.works, self.unanswered, self.due) = (true, 0, now + self.interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(4);

    #[test]
    fn a_path_works_once_a_probe_was_answered_and_until_three_in_a_row_are_not() {
        let mut now = Instant::now();
        let mut probing = Probing::new(7 << 32, INTERVAL);
        let first = probing.ask(now + ASK_AGAIN).expect("a session begins with a probe");
        now += ASK_AGAIN;
        assert_eq!((first, probing.ask(now)), ((7 << 32) + 1, None));
        // One of the session before, one that was never asked.
        for other in [7 << 32, first + 1, 1] {
            probing.answered(other, now);
            assert!(!probing.works, "{other}");
        }
        probing.answered(first, now);
        assert!(probing.works);
        assert_eq!(probing.ask(now + INTERVAL / 2), None);
        now += INTERVAL;
        let mut asked = 0;
        while probing.works {
            asked += u32::from(probing.ask(now).is_some());
            now += ASK_AGAIN;
        }
        assert_eq!(asked, UNANSWERED_MAX + 1);
        // A late answer counts, and an answer to one that was given up does not.
        probing.answered(first, now);
        assert!(!probing.works);
        probing.answered(probing.asked - 1, now);
        assert!(probing.works);
    }

    #[test]
    fn a_path_that_does_not_work_is_asked_about_ever_more_rarely() {
        let mut now = Instant::now();
        let mut probing = Probing::new(0, INTERVAL);
        now += ASK_AGAIN;
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert!(probing.ask(now).is_some());
            waits.push(probing.due - now);
            now = probing.due;
        }
        assert_eq!((waits[0], waits[1], waits[9]), (ASK_AGAIN, ASK_AGAIN * 2, INTERVAL));
    }
}
