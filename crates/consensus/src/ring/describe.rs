//! Messages and records as people read them.

use std::fmt::Write;

use synod_wire::ReplicaId;

use super::{
    Accept, AcceptedValue, Content, DecisionRun, Delay, Message, Promise, Record, Value, View, VoteRun, Votes,
};
use crate::{
    BatchText, Batches, Describe,
    batches::last_of,
    describe::{amnesia, run},
};

impl Describe for Message {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Message::Prepare { ballot, from } => format!("Prepare {ballot} from slot {from}"),
            Message::PrepareRange { ballot, from, through } => {
                format!("PrepareRange {ballot} {}", run(*from, *through))
            }
            Message::Promise(promise) => describe_promise(promise, batch),
            Message::Values { view, safe, values } => {
                format!("Values {}{}: {}", ring(view), mode(*safe), carried(values, batch))
            }
            Message::Accept(Accept { view, first, decided, safe, values }) => format!(
                "Accept {} {}, decided {decided}{}: {}",
                ring(view),
                run(*first, last_of(*first, values)),
                mode(*safe),
                carried(values, batch)
            ),
            Message::Votes(VoteRun { view, first, last, decided, votes }) => {
                let (ring, slots) = (ring(view), run(*first, *last));
                format!("Votes {ring} {slots}, decided {decided}, {}", voted(view, *votes))
            }
            Message::Decision(DecisionRun { view, first, last, ttl }) => {
                format!("Decision {} {}, ttl {ttl}", ring(view), run(*first, *last))
            }
            Message::View { view } => {
                let order: Vec<String> = view.order.iter().map(ReplicaId::to_string).collect();
                format!("View {}: {}", ring(view), order.join(" "))
            }
            Message::Decided { ballot, through } => format!("Decided {ballot} through slot {through}"),
            Message::Heartbeat { ballot, decided, round } => {
                format!("Heartbeat {ballot} round {round}, decided {decided}")
            }
            Message::HeartbeatAck { ballot, round, minor, decided } => {
                format!("HeartbeatAck {ballot} round {round}, view {minor}, decided {decided}")
            }
            Message::Delays { delays } => {
                let one = |Delay { to, micros }: &Delay| format!("{to} {micros} us");
                let all: Vec<String> = delays.iter().map(one).collect();
                format!("Delays to {}", all.join(", "))
            }
            Message::Reject { promised } => format!("Reject promised {promised}"),
            Message::TakeOver { ballot } => format!("TakeOver from {ballot}"),
        }
    }
}

fn ring(view: &View) -> String {
    if view.is_detour() {
        format!("{} past {}", view.ballot, view.order[view.len() - 1])
    } else {
        format!("{}/{}", view.ballot, view.minor)
    }
}

fn mode(safe: bool) -> &'static str {
    if safe { ", safe" } else { "" }
}

fn voted(view: &View, votes: Votes) -> String {
    let voters = view.order.iter().enumerate().filter(|&(place, _)| votes.has(place));
    let voters: Vec<String> = voters.map(|(_, id)| id.to_string()).collect();
    if voters.is_empty() { "by none".to_owned() } else { format!("by {}", voters.join(" ")) }
}

fn carried(values: &[Value], batch: BatchText<'_>) -> String {
    let one = |Value { hops, content }: &Value| match content {
        Content::Whole(whole) => format!("h{hops} {}", batch(whole)),
        Content::Name(name) => {
            let id = name.id().expect("a reference has a name");
            format!("h{hops} named {id}")
        }
    };
    values.iter().map(one).collect::<Vec<_>>().join(" | ")
}

fn describe_promise(promise: &Promise, batch: BatchText<'_>) -> String {
    let value = |AcceptedValue { slot, ballot, batch: value }: &AcceptedValue| {
        format!("slot {slot} in {ballot}: {}", batch(value))
    };
    let accepted: Vec<String> = promise.accepted.iter().map(value).collect();
    let accepted = if accepted.is_empty() { "nothing accepted".to_owned() } else { accepted.join("; ") };
    let mut text = format!(
        "Promise {} from slot {}, decided {}: {accepted}",
        promise.ballot, promise.from, promise.decided
    );
    if let Some(next) = promise.next {
        write!(text, "; more from slot {next}").expect("a string takes everything");
    }
    text
}

impl Describe for Record {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Record::Promised(ballot) => format!("promised {ballot}"),
            Record::Accepted { ballot, first, decided, batches } => {
                let slots = run(*first, last_of(*first, batches));
                format!("accepted {ballot} {slots}, decided {decided}: {}", joined(batches, batch))
            }
            Record::Learned(value) => format!("learned slot {}: {}", value.slot, batch(&value.batch)),
            Record::Amnesia(lost) => amnesia(*lost),
        }
    }
}

fn joined(batches: &Batches, batch: BatchText<'_>) -> String {
    batches.iter().map(batch).collect::<Vec<_>>().join(" | ")
}
