//! A reliable channel on a network that loses messages: each is acknowledged, and sent again until it is (Santos 2012,
//! section 5.6). For comparisons: what is not acknowledged is kept, however much it is.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::Time;

/// One end of a channel between two replicas, in both directions.
#[derive(Clone, Debug)]
pub struct Channel<M> {
    again_after: Duration,
    sent: u64,
    unacknowledged: BTreeMap<u64, (M, Time)>,
    /// All messages through this number have been received, and those in `ahead`.
    received: u64,
    ahead: BTreeMap<u64, M>,
}

/// What travels on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<M> {
    /// A message, with its number from 1.
    Message(u64, M),
    /// The message of this number was received.
    Acknowledgement(u64),
}

impl<M: Clone> Channel<M> {
    /// A channel that sends a message again when it was not acknowledged for so long.
    #[must_use]
    pub fn new(again_after: Duration) -> Channel<M> {
        Channel { again_after, sent: 0, unacknowledged: BTreeMap::new(), received: 0, ahead: BTreeMap::new() }
    }

    /// Sends a message.
    pub fn send(&mut self, message: M, now: Time) -> Frame<M> {
        self.sent += 1;
        self.unacknowledged.insert(self.sent, (message.clone(), now));
        Frame::Message(self.sent, message)
    }

    /// The messages that are to be sent again now.
    pub fn again(&mut self, now: Time) -> Vec<Frame<M>> {
        let again_after = self.again_after;
        let late = self.unacknowledged.iter_mut().filter(|(_, (_, at))| now.since(*at) >= again_after);
        late.map(|(&number, (message, at))| {
            *at = now;
            Frame::Message(number, message.clone())
        })
        .collect()
    }

    /// Takes a frame in. Returns the messages that are received now, in the order in which they were sent, and the
    /// acknowledgement to send.
    pub fn receive(&mut self, frame: Frame<M>) -> (Vec<M>, Option<Frame<M>>) {
        let (number, message) = match frame {
            Frame::Acknowledgement(number) => {
                self.unacknowledged.remove(&number);
                return (Vec::new(), None);
            }
            Frame::Message(number, message) => (number, message),
        };
        if number > self.received {
            self.ahead.insert(number, message);
        }
        let mut next = Vec::new();
        while let Some(message) = self.ahead.remove(&(self.received + 1)) {
            self.received += 1;
            next.push(message);
        }
        (next, Some(Frame::Acknowledgement(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames are lost, repeated and change places; all messages come, once and in order.
    #[test]
    fn everything_comes_once_and_in_order() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut one, mut other) = (Channel::new(Duration::from_nanos(5)), Channel::new(Duration::ZERO));
            let (mut wire, mut back, mut came) = (Vec::new(), Vec::new(), Vec::new());
            for tick in 0..600 {
                let now = Time::from_nanos(tick);
                if tick < 40 {
                    wire.push(one.send(tick, now));
                }
                wire.extend(one.again(now));
                if !wire.is_empty() && random.bool() {
                    let frame: Frame<u64> = wire.swap_remove(random.usize(..wire.len()));
                    for _ in 0..random.usize(..3) {
                        let (messages, acknowledgement) = other.receive(frame.clone());
                        came.extend(messages);
                        back.extend(acknowledgement);
                    }
                }
                if !back.is_empty() && random.bool() {
                    one.receive(back.swap_remove(random.usize(..back.len())));
                }
                wire.truncate(60);
            }
            assert_eq!(came, (0..40).collect::<Vec<_>>());
        }
    }
}
