//! What elections say to each other. Protocols carry these messages.

use synod_wire::{Ballot, DecodeError};

use super::latency::TEST;

// Safety does not rest on elections, so their messages claim nothing that is checked.
crate::messages! {
    /// A message of a ballot leader election ([`super::BallotLeaderElection`]), of a rotating one
    /// ([`super::Rotating`]), or of a latency-aware one ([`super::LatencyAware`]), which has those of a rotating one,
    /// too.
    #[derive(PartialEq, Eq)]
    pub enum Message, "election message" {
        /// Ballot leader election: "Do you hear me, and which leader do you follow?"
        1, Election, text ("HeartbeatRequest round {}, highest {highest}", in_this_life(*round)):
        HeartbeatRequest {
            /// The asker's round.
            round: u64,
            /// The highest ballot that the asker knows to be led or promised.
            highest: Ballot,
        },
        /// Answers `HeartbeatRequest`. (Ng 2020, Algorithm 3, has only the first two fields.)
        2, Election,
        text (
            "HeartbeatReply round {}: {ballot}, {} {leader}",
            in_this_life(*round), if *happy { "happy with" } else { "not happy with" }
        ):
        HeartbeatReply {
            /// The round of the request.
            round: u64,
            /// The ballot in which the replier leads, tries to lead, or wants to lead; or the last such ballot.
            /// It is the replier's **own** ballot, not one that it knows of: otherwise a dead leader would be
            /// reported alive forever (E4).
            ballot: Ballot,
            /// The highest ballot that the replier has promised or believes to be led: it follows no lower one.
            leader: Ballot,
            /// Whether the replier knows a leader that it hears and that has a quorum; see
            /// [`super::BallotLeaderElection`].
            happy: bool,
        },
        /// Rotating election: "Would you let me try to lead?" The receiver changes nothing because of it.
        3, Election, text "Rehearse {ballot}":
        Rehearse {
            /// The ballot in which the asker would try.
            ballot: Ballot,
        },
        /// Answers `Rehearse`, for the moment.
        4, Election,
        text {
            match willing {
                true => format!("RehearseReply {ballot}: willing"),
                false => format!("RehearseReply {ballot}: not willing, highest {highest}"),
            }
        }:
        RehearseReply {
            /// The ballot of the question.
            ballot: Ballot,
            /// Whether the replier knows of no replica that should lead instead.
            willing: bool,
            /// The highest ballot that the replier has promised or heard of: an asker whose ballot is not above
            /// it asks again with a higher one.
            highest: Ballot,
        },
        /// Latency-aware election: asks for an answer at once.
        5, Election, text ("Ping {}", ping_in_words(*number)):
        Ping {
            /// The number of the asker's ping.
            number: u64,
        },
        /// Answers `Ping`.
        6, Election, text ("Pong {}", ping_in_words(*number)):
        Pong {
            /// The number of the ping.
            number: u64,
        },
        /// Latency-aware election: the leader asks how long it takes the receiver to each member and back. (Santos
        /// 2012: `ALIVE`.)
        7, Election, text "AskTimes {number}":
        AskTimes {
            /// The number of the question.
            number: u64,
        },
        /// Answers `AskTimes`. (Santos 2012: `REPORT`.)
        8, Election,
        text (
            "Times {number}: {}{}",
            times.iter().map(|&nanos| time_in_words(nanos)).collect::<Vec<_>>().join(" "),
            match (able, by_wish) {
                (true, _) => "",
                (false, false) => ", could not lead",
                (false, true) => ", was moved by an operator",
            }
        ):
        Times {
            /// The number of the question.
            number: u64,
            /// Whether the replier could lead: its disk answers, it does not lag, and it did not fail lately.
            able: bool,
            /// Whether an operator moved leadership away from the replier lately: then it should stay where it is.
            by_wish: bool,
            /// Nanoseconds to each member and back, in the order of their ids; `u64::MAX` for one that does not answer.
            times: Vec<u64>,
        },
        /// Latency-aware election above a protocol's own: the leader asks whether the receiver could take over now.
        9, Transfer, text "AskReady {number}":
        AskReady {
            /// The number of the question by which the receiver was chosen.
            number: u64,
        },
        /// Answers `AskReady` once the disk, a quorum and the log of the replier say so.
        10, Election, text "Ready {number}":
        Ready {
            /// The number of the question.
            number: u64,
        },
    }
    checked by Message::is_in_reach;
}

impl Message {
    /// Refuses a ballot that no group gets to: an election that counted on from there would run out of numbers.
    fn is_in_reach(&self) -> Result<(), DecodeError> {
        let named = match *self {
            Message::HeartbeatRequest { highest, .. } => highest,
            Message::HeartbeatReply { ballot, leader, .. } => ballot.max(leader),
            Message::Rehearse { ballot } => ballot,
            Message::RehearseReply { ballot, highest, .. } => ballot.max(highest),
            Message::Ping { .. }
            | Message::Pong { .. }
            | Message::AskTimes { .. }
            | Message::Times { .. }
            | Message::AskReady { .. }
            | Message::Ready { .. } => {
                return Ok(());
            }
        };
        named.reachable("ballot").map(drop)
    }
}

/// The number of a round, without the life of the asker in its upper half.
fn in_this_life(round: u64) -> u64 {
    round & u64::from(u32::MAX)
}

/// The number of a ping, which tests a link or whether its sender could take over.
fn ping_in_words(number: u64) -> String {
    if number & TEST == 0 { number.to_string() } else { format!("test {}", number & !TEST) }
}

/// Nanoseconds of a round trip, in milliseconds.
fn time_in_words(nanos: u64) -> String {
    if nanos == u64::MAX { "-".to_owned() } else { format!("{}ms", nanos / 1_000_000) }
}

#[cfg(test)]
mod tests {
    use synod_wire::{Reader, ReplicaId, Writer};

    use super::*;

    fn messages() -> [Message; 10] {
        let ballot = |round, replica| Ballot { round, replica: ReplicaId(replica) };
        [
            Message::HeartbeatRequest { round: 7, highest: ballot(3, 2) },
            Message::HeartbeatReply { round: 7, ballot: ballot(4, 1), leader: ballot(3, 2), happy: true },
            Message::Rehearse { ballot: ballot(4, 1) },
            Message::RehearseReply { ballot: ballot(4, 1), willing: true, highest: ballot(3, 2) },
            Message::Ping { number: 7 },
            Message::Pong { number: 7 },
            Message::AskTimes { number: 8 },
            Message::Times { number: 8, able: true, by_wish: false, times: vec![0, 5, u64::MAX] },
            Message::AskReady { number: 8 },
            Message::Ready { number: 8 },
        ]
    }

    #[test]
    fn every_byte_is_where_earlier_versions_look_for_it() {
        let records: &[crate::Record] = &[];
        crate::message::fixed::check(include_str!("encoding.txt"), &messages(), records);
    }

    #[test]
    fn a_ballot_that_no_group_gets_to_is_refused() {
        let read = |round| {
            let (ballot, low) =
                (Ballot { round, replica: ReplicaId(1) }, Ballot { round: 1, replica: ReplicaId(2) });
            let naming = [
                Message::HeartbeatRequest { round: 7, highest: ballot },
                Message::HeartbeatReply { round: 7, ballot, leader: low, happy: true },
                Message::HeartbeatReply { round: 7, ballot: low, leader: ballot, happy: true },
                Message::Rehearse { ballot },
                Message::RehearseReply { ballot, willing: true, highest: low },
                Message::RehearseReply { ballot: low, willing: true, highest: ballot },
            ];
            naming.map(|message| {
                let mut writer = Writer::new();
                crate::Message::Election(message).encode(&mut writer);
                crate::Message::decode(&mut Reader::new(writer.finish().to_bytes())).is_ok()
            })
        };
        assert_eq!(read(Ballot::ROUND_MAX), [true; 6]);
        assert_eq!((read(Ballot::ROUND_MAX + 1), read(u64::MAX)), ([false; 6], [false; 6]));
    }

    #[test]
    fn messages_round_trip() {
        for message in messages() {
            let mut writer = Writer::new();
            crate::Message::Election(message.clone()).encode(&mut writer);
            let mut reader = Reader::new(writer.finish().to_bytes());
            assert_eq!(crate::Message::decode(&mut reader), Ok(crate::Message::Election(message)));
            assert_eq!(reader.remaining(), 0);
        }
    }
}
