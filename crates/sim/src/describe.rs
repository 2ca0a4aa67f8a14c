//! Texts of messages, records and commands for people.

use std::{cell::RefCell, rc::Rc};

use bytes::Bytes;
use synod_consensus::{LeaderView, Message, dissemination};
pub use synod_replica::describe::{change, group};
use synod_replica::{
    Decided, LogRecord, PeerMessage, Routed,
    describe::{self, in_epoch, named},
};
use synod_wire::Batch;

#[cfg(not(feature = "kv"))]
use crate::guest::text_of as other_command;
use crate::guest::{AnyGuest, command_in};
#[cfg(feature = "kv")]
use synod_kv::describe::command as other_command;
#[cfg(feature = "kv")]
pub use synod_kv::describe::query;

thread_local! {
    /// The guest whose commands are in the messages and records of the run that this thread is in. These texts are made
    /// far down, where nobody knows of a guest.
    static GUEST: RefCell<Option<Rc<dyn AnyGuest>>> = const { RefCell::new(None) };
}

/// As long as this lives, commands of the guest's are described by it.
#[derive(Debug)]
pub(crate) struct GuestSpeaks(());

impl GuestSpeaks {
    pub(crate) fn begin(guest: &Rc<dyn AnyGuest>) -> GuestSpeaks {
        GUEST.set(Some(Rc::clone(guest)));
        GuestSpeaks(())
    }
}

impl Drop for GuestSpeaks {
    fn drop(&mut self) {
        GUEST.set(None);
    }
}

/// The text of a guest's command, if there is a guest and the command is for it.
fn guests_command(payload: &Bytes) -> Option<String> {
    GUEST.with_borrow(|guest| Some(guest.as_ref()?.describe(&command_in(payload)?)))
}

/// The text of a message between replicas.
#[must_use]
pub fn message(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Protocol { epoch, message } => {
            format!("{}{}", in_epoch(*epoch), message.body().describe(&batch))
        }
        PeerMessage::Progress { epoch, kept: _, decided, view, sought: _ } => {
            let leader = view.leader.map_or("no leader".to_owned(), |leader| format!("{leader} leads"));
            format!("Progress: epoch {epoch}, decided {decided}, {leader}")
        }
        PeerMessage::History { marks, .. } => match marks.first() {
            Some(mark) => format!("History through slot {}: {:016x}", mark.slot, mark.fingerprint),
            None => "History of nothing".to_owned(),
        },
        PeerMessage::Births(births) => format!("Births {}", named(births)),
        PeerMessage::Missed { epoch } => format!("{}Missed", in_epoch(*epoch)),
        PeerMessage::Rejoin { kept, decided } => format!("Rejoin kept={kept} decided={decided}"),
        PeerMessage::SeekLeader => "SeekLeader".to_owned(),
        PeerMessage::Direct(message) => routed(message),
        PeerMessage::Relayed { origin, to, message } => {
            format!("Relayed from {origin} to {to}: {}", routed(message))
        }
        PeerMessage::Fetch { from, through } if from == through => format!("Fetch slot {from}"),
        PeerMessage::Fetch { from, through } => format!("Fetch slots {from} to {through}"),
        PeerMessage::Fetched { from, batches, .. } if batches.is_empty() => {
            format!("Fetched nothing from slot {from}")
        }
        PeerMessage::Fetched { from, batches, .. } => {
            format!("Fetched from slot {from}: {}", decided_batches(batches))
        }
        PeerMessage::Pushed { from, batches, .. } => {
            format!("Pushed from slot {from}: {}", decided_batches(batches))
        }
        PeerMessage::SnapshotOffer { slot, .. } => format!("SnapshotOffer to slot {slot}"),
        PeerMessage::FetchChunk { slot, offset } => format!("FetchChunk of snapshot {slot} at byte {offset}"),
        PeerMessage::Chunk { slot, total: 0, .. } => format!("Chunk of snapshot {slot}: gone"),
        PeerMessage::Chunk { slot, offset, total, bytes } => {
            let end = offset + bytes.len() as u64;
            let last = if end == *total { ", the last" } else { "" };
            format!("Chunk of snapshot {slot}, bytes {offset} to {end}{last}")
        }
    }
}

fn routed(message: &Routed) -> String {
    match message {
        Routed::Forward(forwarded) => format!("Forward {}", batch(forwarded)),
        Routed::TurnedDown { .. } => "TurnedDown: too few would answer".to_owned(),
        Routed::ReadIndex { token } => format!("ReadIndex question {}", question(*token)),
        Routed::ReadIndexAnswer { token, slot: Some(slot) } => {
            format!("ReadIndexAnswer question {}: slot {slot}", question(*token))
        }
        Routed::ReadIndexAnswer { token, slot: None } => {
            format!("ReadIndexAnswer question {}: no leader", question(*token))
        }
    }
}

fn decided_batches(batches: &[Decided]) -> String {
    let batches: Vec<String> = batches.iter().map(|decided| batch(&decided.batch)).collect();
    batches.join(" | ")
}

/// Classes of messages, in words that serve all protocols: scripts name messages by them.
pub const CLASSES: &[&str] = &[
    "prepare",
    "promise",
    "sync",
    "proposal",
    "vote",
    "announcement",
    "heartbeat",
    "heartbeat-answer",
    "refusal",
    "transfer",
    "recovery",
    "election",
    "dissemination",
    "forward",
    "read",
    "catch-up",
];

/// The class of a message: one of [`CLASSES`].
#[must_use]
pub fn class(message: &PeerMessage) -> &'static str {
    match message {
        PeerMessage::Protocol { message, .. } => message.body().class().name(),
        PeerMessage::Progress { .. } | PeerMessage::SeekLeader => "progress",
        PeerMessage::Births(_) => "births",
        PeerMessage::Missed { .. } => "missed",
        PeerMessage::Rejoin { .. } => "rejoin",
        PeerMessage::History { .. } => "history",
        PeerMessage::Direct(message) | PeerMessage::Relayed { message, .. } => match message {
            Routed::Forward(_) | Routed::TurnedDown { .. } => "forward",
            Routed::ReadIndex { .. } | Routed::ReadIndexAnswer { .. } => "read",
        },
        PeerMessage::Fetch { .. }
        | PeerMessage::Fetched { .. }
        | PeerMessage::Pushed { .. }
        | PeerMessage::SnapshotOffer { .. }
        | PeerMessage::FetchChunk { .. }
        | PeerMessage::Chunk { .. } => "catch-up",
    }
}

/// Whether a message only says that its sender is alive. The story of a script omits such messages.
#[must_use]
pub fn is_sign_of_life(message: &PeerMessage) -> bool {
    // What is held is said again as long as it is not delivered.
    let held = matches!(
        message,
        PeerMessage::Protocol { message: Message::Dissemination(dissemination::Message::Held { .. }), .. }
    );
    held || matches!(class(message), "heartbeat" | "heartbeat-answer" | "election" | "progress")
}

/// The number of a question, without the life of the asker in its upper half.
fn question(token: u64) -> u64 {
    token & u64::from(u32::MAX)
}

/// The text of a leader's view.
#[must_use]
pub fn view(view: LeaderView) -> String {
    match view.leader {
        Some(leader) => format!("takes {leader} for the leader of ballot {}", view.ballot),
        None => format!("knows no leader of ballot {}", view.ballot),
    }
}

/// The text of a record.
#[must_use]
pub fn record(record: &LogRecord) -> String {
    describe::record(record, &command)
}

/// The commands of a batch.
#[must_use]
pub fn batch(batch: &Batch) -> String {
    describe::batch(batch, &command)
}

/// A command of the key-value store, or of a guest.
#[must_use]
pub fn command(payload: &Bytes) -> String {
    guests_command(payload).unwrap_or_else(|| other_command(payload))
}

#[cfg(test)]
mod tests {
    use synod_consensus::Class;

    use super::*;

    #[test]
    fn scripts_can_name_the_messages_of_every_protocol() {
        for class in Class::ALL {
            assert!(CLASSES.contains(&class.name()), "{class:?}");
        }
    }
}
