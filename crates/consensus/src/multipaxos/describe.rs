//! Messages and records as people read them.

use synod_wire::{Incarnation, ReplicaId};

use super::{AcceptedValue, Message, Promise, Record};
use crate::{
    BatchText, Batches, Describe,
    batches::last_of,
    describe::{amnesia, run},
};

impl Describe for Message {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Message::Prepare { ballot, from } => format!("Prepare {ballot} from slot {from}"),
            Message::Promise(promise) => describe_promise(promise, batch),
            Message::Accept { ballot, first, decided, batches } => {
                let slots = run(*first, last_of(*first, batches));
                format!("Accept {ballot} {slots}, decided {decided}: {}", joined(batches, batch))
            }
            Message::Accepted { ballot, first, last } => format!("Accepted {ballot} {}", run(*first, *last)),
            Message::Decided { ballot, through } => format!("Decided {ballot} through slot {through}"),
            Message::Heartbeat { ballot, decided, round } => {
                format!("Heartbeat {ballot} round {round}, decided {decided}")
            }
            Message::HeartbeatAck { ballot, round } => format!("HeartbeatAck {ballot} round {round}"),
            Message::Reject { promised } => format!("Reject promised {promised}"),
            Message::TakeOver { ballot } => format!("TakeOver from {ballot}"),
            Message::Recover { incarnation } => format!("Recover life {incarnation}"),
            Message::RecoverAnswer { asker, incarnation, promised, next_slot, lives: known } => {
                let leads = next_slot.map_or(String::new(), |slot| format!(", leads, next slot {slot}"));
                format!(
                    "RecoverAnswer of life {incarnation} to life {asker}: promised {promised}{leads}{}",
                    lives(known)
                )
            }
        }
    }
}

fn describe_promise(promise: &Promise, batch: BatchText<'_>) -> String {
    let value = |AcceptedValue { slot, ballot, batch: value }: &AcceptedValue| {
        format!("slot {slot} in {ballot}: {}", batch(value))
    };
    let accepted: Vec<String> = promise.accepted.iter().map(value).collect();
    let accepted = if accepted.is_empty() { "nothing accepted".to_owned() } else { accepted.join("; ") };
    let next = promise.next.map_or(String::new(), |next| format!("; more from slot {next}"));
    format!(
        "Promise {} from slot {}, decided {}: {accepted}{next}{}",
        promise.ballot,
        promise.from,
        promise.decided,
        lives(&promise.lives)
    )
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
            Record::Lives(known) => format!("lives:{}", lives(known)),
            Record::Amnesia(lost) => amnesia(*lost),
        }
    }
}

fn joined(batches: &Batches, batch: BatchText<'_>) -> String {
    batches.iter().map(batch).collect::<Vec<_>>().join(" | ")
}

fn lives(known: &[(ReplicaId, Incarnation)]) -> String {
    let life = |(replica, life): &(ReplicaId, Incarnation)| format!("{replica} lives life {life}");
    let lives: Vec<String> = known.iter().map(life).collect();
    if lives.is_empty() { String::new() } else { format!(" ({})", lives.join(", ")) }
}
