//! Messages as people read them.

use super::Message;
use crate::{BatchText, Describe};

impl Describe for Message {
    fn describe(&self, _: BatchText<'_>) -> String {
        match self {
            Message::HeartbeatRequest { round, highest } => {
                format!("HeartbeatRequest round {}, highest {highest}", in_this_life(*round))
            }
            Message::Rehearse { ballot } => format!("Rehearse {ballot}"),
            Message::RehearseReply { ballot, willing: true, .. } => {
                format!("RehearseReply {ballot}: willing")
            }
            Message::RehearseReply { ballot, willing: false, highest } => {
                format!("RehearseReply {ballot}: not willing, highest {highest}")
            }
            Message::HeartbeatReply { round, ballot, leader, happy } => {
                let mood = if *happy { "happy with" } else { "not happy with" };
                format!("HeartbeatReply round {}: {ballot}, {mood} {leader}", in_this_life(*round))
            }
            Message::Ping { number } => format!("Ping {number}"),
            Message::Pong { number } => format!("Pong {number}"),
            Message::AskTimes { number } => format!("AskTimes {number}"),
            Message::Times { number, able, times } => {
                let times: Vec<_> = times.iter().map(|&nanos| time_in_words(nanos)).collect();
                let able = if *able { "" } else { ", could not lead" };
                format!("Times {number}: {}{able}", times.join(" "))
            }
        }
    }
}

/// The number of a round, without the life of the asker in its upper half.
fn in_this_life(round: u64) -> u64 {
    round & u64::from(u32::MAX)
}

/// Nanoseconds of a round trip, in milliseconds.
fn time_in_words(nanos: u64) -> String {
    if nanos == u64::MAX { "-".to_owned() } else { format!("{}ms", nanos / 1_000_000) }
}
