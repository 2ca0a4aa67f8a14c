//! Texts of messages, records and commands for people.

#[cfg(feature = "kv")]
mod store;

use std::{cell::RefCell, rc::Rc};

use bytes::Bytes;
use synod_consensus::{LeaderView, Message, dissemination};
use synod_replica::{
    Change, ChangeRequest, Decided, Goal, Group, LogRecord, Member, Named, PeerMessage, Routed, Standing,
};
use synod_wire::{Batch, CommandKind, Epoch};

#[cfg(not(feature = "kv"))]
use crate::guest::text_of as other_command;
use crate::guest::{AnyGuest, command_in};
#[cfg(feature = "kv")]
use store::command as other_command;
#[cfg(feature = "kv")]
pub use store::query;

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

/// The prefix for things of an epoch other than the first.
fn in_epoch(epoch: Epoch) -> String {
    if epoch == Epoch(1) { String::new() } else { format!("{epoch} ") }
}

/// The text of a record.
#[must_use]
pub fn record(record: &LogRecord) -> String {
    match record {
        LogRecord::Protocol { epoch, record } => {
            format!("{}{}", in_epoch(*epoch), record.body().describe(&batch))
        }
        LogRecord::Entered { group, amnesia } => {
            let memory = if *amnesia { ", remembering nothing of it" } else { "" };
            format!("entered epoch {} from slot {}{memory}", group.epoch, group.first)
        }
        LogRecord::Ended { slot, ballots } => {
            format!("slot {slot} ended the epoch, decided in {}", ballots.decided)
        }
        LogRecord::Trimmed(slot) => format!("the log begins after slot {slot}"),
        LogRecord::Learned { slot, batch: learned, .. } => format!("learned slot {slot}: {}", batch(learned)),
        LogRecord::Decided { epoch, slot, batch: decided, .. } => {
            format!("{}decided in slot {slot}: {}", in_epoch(*epoch), batch(decided))
        }
    }
}

/// The text of a leader's view.
#[must_use]
pub fn view(view: LeaderView) -> String {
    match view.leader {
        Some(leader) => format!("takes {leader} for the leader of ballot {}", view.ballot),
        None => format!("knows no leader of ballot {}", view.ballot),
    }
}

/// A change, and the version of the group that it is made for.
#[must_use]
pub fn change(request: &ChangeRequest) -> String {
    let change = match &request.change {
        Change::Add { info, goal } => format!("add {}{}", info.name, purpose(*goal)),
        Change::Promote { id, birth } => format!("promote {id}{}", of_birth(*birth)),
        Change::Remove(id) => format!("remove {id}"),
        Change::Update { id, info } => format!("update {id} to {}", info.peer_urls.join(" ")),
        Change::Order { protocol, election, overrides } => {
            let with = if overrides.is_empty() { String::new() } else { format!(", options: {overrides}") };
            format!("order by {protocol}, election {election}{with}")
        }
        Change::Limits(limits) => format!("limits {limits}"),
        Change::Readmit { id, life, birth } => format!("readmit life {life} of {id}{}", of_birth(*birth)),
        Change::NameBirths(births) => format!("name births {}", named(births)),
        Change::Follow(set) => {
            let members: Vec<String> = set.members.iter().map(member).collect();
            format!("follow version {} of group 0: {}", set.version, members.join(", "))
        }
        Change::Place(None) => "have the voters of group 0".to_owned(),
        Change::Place(Some(choice)) => {
            let voters: Vec<_> = choice.voters.iter().map(ToString::to_string).collect();
            format!("have {} vote, the others {}", voters.join(" "), choice.others)
        }
        other => format!("{other:?}"),
    };
    format!("{change} (of version {})", request.expected)
}

fn named(births: &[Named]) -> String {
    let births: Vec<_> = births.iter().map(|(id, birth)| format!("{id} {birth:x}")).collect();
    births.join(", ")
}

fn of_birth(birth: Option<u64>) -> String {
    birth.map_or(String::new(), |birth| format!(" of birth {birth:x}"))
}

fn purpose(goal: Goal) -> String {
    match goal {
        Goal::Learn => String::new(),
        Goal::Vote => ", to vote".to_owned(),
        Goal::Replace(old) => format!(", to replace {old}"),
        other => format!(", to {other:?}"),
    }
}

fn member(member: &Member) -> String {
    match member.standing {
        Standing::Voter => member.id.to_string(),
        Standing::Learner(goal) => format!("{} learns{}", member.id, purpose(goal)),
        other => format!("{} {other:?}", member.id),
    }
}

/// The members of a group, and the majorities that decide.
#[must_use]
pub fn group(group: &Group) -> String {
    let members: Vec<String> = group.members.iter().map(member).collect();
    let outgoing: Vec<String> = group.outgoing.iter().map(ToString::to_string).collect();
    let before =
        if outgoing.is_empty() { String::new() } else { format!("; as before: {}", outgoing.join(" ")) };
    let placed = group.placement.as_ref().map(|placement| {
        let chosen: Vec<_> = placement.choice.voters.iter().map(ToString::to_string).collect();
        format!("; {} chosen, the others {}", chosen.join(" "), placement.choice.others)
    });
    let placed = placed.unwrap_or_default();
    format!("version {}, epoch {}: {}{before}{placed}", group.version, group.epoch, members.join(", "))
}

/// The commands of a batch.
#[must_use]
pub fn batch(batch: &Batch) -> String {
    if batch.is_noop() {
        return "no-op".to_owned();
    }
    if let Some(id) = batch.id().filter(|_| batch.is_reference()) {
        return format!("[{id}]");
    }
    let commands = batch.commands().map(|entry| {
        let text = match entry.kind {
            CommandKind::Apply => command(&entry.payload),
            CommandKind::OpenSession => "open session".to_owned(),
            CommandKind::AdvanceClock => "clock".to_owned(),
            kind if kind.is_change() => match ChangeRequest::decode(entry.payload.clone()) {
                Ok(request) => change(&request),
                Err(_) => "unreadable change".to_owned(),
            },
            CommandKind::Settle => return "the change of voters is complete".to_owned(),
            CommandKind::Identity | CommandKind::Reference => {
                unreachable!("what names a batch is none of its commands")
            }
            kind => format!("{kind:?}"),
        };
        // The sessions of replicas have large numbers, which tell a reader nothing.
        let of_client = entry.session.0 >> 63 == 0;
        if of_client { format!("s{}#{} {text}", entry.session, entry.sequence) } else { text }
    });
    commands.collect::<Vec<_>>().join(", ")
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
