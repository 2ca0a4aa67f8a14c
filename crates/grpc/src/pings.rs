//! Cuts off clients that ask too often whether the server is still there, as grpc does it.
//!
//! The crate `h2` answers pings by itself and tells nobody, so the frames of a connection are counted on their way:
//! only their heads are looked at. The rules are those of grpc's server: a ping less than the least time after the last
//! one is a strike, and without a request the least time is two hours. Answers that left since the last ping clear the
//! strikes: a client measures the link by pings while it is sent data. The third strike ends the connection.

use std::{
    mem,
    time::{Duration, Instant},
};

use bytes::{BufMut, BytesMut};

/// Strikes that a client may have.
const STRIKES_MAX: u32 = 2;
/// The least time between two pings of a client without a request.
const IDLE_TIME: Duration = Duration::from_secs(2 * 3600);

/// A ping may come so much too soon, as a part of the least time: on a stream without events strikes are never cleared.
const JITTER: u32 = 10;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const ACK: u8 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;
/// Clients look for this text, and ask less often then.
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";

/// Finds the heads of frames in bytes that come in any pieces.
#[derive(Debug)]
struct Frames {
    /// Bytes to pass over until the next head.
    skip: usize,
    head: [u8; HEAD_BYTES],
    /// How many bytes of the head have come.
    have: usize,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frames {
    fn after(skip: usize) -> Frames {
        Frames { skip, head: [0; HEAD_BYTES], have: 0 }
    }

    /// Whether the last frame has come whole.
    fn at_boundary(&self) -> bool {
        self.skip == 0 && self.have == 0
    }

    fn pass(&mut self, mut bytes: &[u8], mut see: impl FnMut(Head)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (HEAD_BYTES - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have < HEAD_BYTES {
                return;
            }
            let [a, b, c, kind, flags, stream @ ..] = self.head;
            self.have = 0;
            self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
            see(Head { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff });
        }
    }
}

/// The pings of a client.
#[derive(Debug)]
pub(crate) struct Pings {
    least: Duration,
    incoming: Frames,
    outgoing: Frames,
    last_at: Option<Instant>,
    strikes: u32,
    /// Whether an answer has left since the last ping.
    answered: bool,
    /// Whether a request is outstanding.
    busy: bool,
    /// The last request's stream.
    last_stream: u32,
}

impl Pings {
    /// The pings on a new connection; a least time of zero allows any number.
    pub(crate) fn new(least: Duration) -> Pings {
        Pings {
            least: least - least / JITTER,
            incoming: Frames::after(PREFACE_BYTES),
            outgoing: Frames::after(0),
            last_at: None,
            strikes: 0,
            answered: false,
            busy: false,
            last_stream: 0,
        }
    }

    /// Whether requests are outstanding, as the connection knows.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Looks at bytes that the client has sent.
    pub(crate) fn came(&mut self, bytes: &[u8]) {
        if self.least.is_zero() {
            return;
        }
        let Pings { least, incoming, last_at, strikes, answered, busy, last_stream, .. } = self;
        incoming.pass(bytes, |head| match head.kind {
            HEADERS => {
                *last_stream = head.stream.max(*last_stream);
                // The connection sees the request only when all of these bytes are here.
                *busy = true;
            }
            PING if head.flags & ACK == 0 => {
                let now = Instant::now();
                let least = if *busy { *least } else { IDLE_TIME.max(*least) };
                let too_soon = last_at.replace(now).is_some_and(|last| now.duration_since(last) < least);
                *strikes = if mem::take(answered) { 0 } else { *strikes + u32::from(too_soon) };
            }
            _ => {}
        });
    }

    /// Looks at bytes that are sent to the client.
    pub(crate) fn leave(&mut self, bytes: &[u8]) {
        if self.least.is_zero() {
            return;
        }
        let answered = &mut self.answered;
        self.outgoing.pass(bytes, |head| *answered |= matches!(head.kind, DATA | HEADERS));
    }

    /// Whether there were too many.
    pub(crate) fn are_too_many(&self) -> bool {
        self.strikes > STRIKES_MAX
    }

    /// Adds the last frame to what is sent, if it would not come in the middle of another.
    pub(crate) fn say_goodbye(&self, bytes: &mut BytesMut) {
        if !self.outgoing.at_boundary() {
            return;
        }
        bytes.put_uint(8 + TOO_MANY_PINGS.len() as u64, 3);
        bytes.put_u8(GO_AWAY);
        bytes.put_u8(0);
        bytes.put_u32(0);
        bytes.put_u32(self.last_stream);
        bytes.put_u32(ENHANCE_YOUR_CALM);
        bytes.put_slice(TOO_MANY_PINGS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(5);
    const A_PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0abcdefgh";
    const A_PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0abcdefgh";
    const A_REQUEST: &[u8] = b"\0\0\x02\x01\x04\0\0\0\x07xy";
    const AN_ANSWER: &[u8] = b"\0\0\x01\0\0\0\0\0\x01x";

    fn begun(least: Duration) -> Pings {
        let mut pings = Pings::new(least);
        pings.came(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        pings
    }

    /// After this many pings there are too many.
    fn too_many_after(pings: &mut Pings, between: impl Fn(&mut Pings)) -> Option<usize> {
        (1..=20).find(|_| {
            pings.came(A_PING);
            between(pings);
            pings.are_too_many()
        })
    }

    #[test]
    fn the_third_ping_that_comes_too_soon_is_one_too_many() {
        assert_eq!(too_many_after(&mut begun(LEAST), |_| {}), Some(4));
        // Answers to the server's own pings are none, and neither is what comes a byte at a time.
        assert_eq!(too_many_after(&mut begun(LEAST), |pings| pings.came(A_PONG)), Some(4));
        let mut pings = begun(LEAST);
        let mut ping = || {
            A_PING.iter().for_each(|byte| pings.came(&[*byte]));
            pings.are_too_many()
        };
        assert_eq!([ping(), ping(), ping(), ping()], [false, false, false, true]);
    }

    #[test]
    fn answers_clear_the_strikes() {
        assert_eq!(too_many_after(&mut begun(LEAST), |pings| pings.leave(AN_ANSWER)), None);
        assert_eq!(too_many_after(&mut begun(LEAST), |pings| pings.leave(A_PONG)), Some(4));
    }

    #[test]
    fn with_a_request_the_least_time_counts_and_without_one_two_hours() {
        let between = |pings: &mut Pings| pings.last_at = Instant::now().checked_sub(LEAST * 19 / 20);
        let mut pings = begun(LEAST);
        pings.came(A_REQUEST);
        assert_eq!(too_many_after(&mut pings, between), None);
        pings.set_busy(false);
        assert_eq!(too_many_after(&mut pings, between), Some(3));
        assert_eq!(too_many_after(&mut begun(Duration::ZERO), |_| {}), None);
    }

    #[test]
    fn the_last_frame_names_the_last_request_and_the_reason() {
        let mut pings = begun(LEAST);
        pings.came(A_REQUEST);
        let mut bytes = BytesMut::new();
        pings.say_goodbye(&mut bytes);
        assert_eq!(&bytes[..], b"\0\0\x16\x07\0\0\0\0\0\0\0\0\x07\0\0\0\x0btoo_many_pings");
        pings.leave(&AN_ANSWER[..5]);
        bytes.clear();
        pings.say_goodbye(&mut bytes);
        assert!(bytes.is_empty(), "it would come in the middle of another frame");
    }
}
