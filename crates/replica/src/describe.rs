//! Texts of changes, groups, records and batches for people: those of `synod tail`, `synod wal` and the simulator.
//!
//! What a command says is the state machine's, so who asks brings a function for its payload.

use bytes::Bytes;
use synod_wire::{Batch, CommandKind, Epoch};

use crate::{Change, ChangeRequest, Goal, Group, LogRecord, Member, Named, Standing};

/// The text of a command's payload.
pub type CommandText<'a> = &'a dyn Fn(&Bytes) -> String;

/// The prefix for things of an epoch other than the first.
#[must_use]
pub fn in_epoch(epoch: Epoch) -> String {
    if epoch == Epoch(1) { String::new() } else { format!("{epoch} ") }
}

/// The text of a record. `command` has that of a payload, which is the state machine's.
#[must_use]
pub fn record(record: &LogRecord, command: CommandText<'_>) -> String {
    let batch = |it: &Batch| batch(it, command);
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

/// The commands of a batch.
#[must_use]
pub fn batch(batch: &Batch, command: CommandText<'_>) -> String {
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
    };
    format!("{change} (of version {})", request.expected)
}

/// Births of replicas.
#[must_use]
pub fn named(births: &[Named]) -> String {
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
    }
}

fn member(member: &Member) -> String {
    match member.standing {
        Standing::Voter => member.id.to_string(),
        Standing::Learner(goal) => format!("{} learns{}", member.id, purpose(goal)),
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
