//! Messages, records and commands as people read them.

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, request_op::Request},
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};
use synod_consensus::{LeaderView, Message, Record, election, multipaxos, raft, sequence_paxos};
use synod_replica::{
    Change, ChangeRequest, Decided, Goal, Group, LogRecord, Member, PeerMessage, Routed, Standing,
};
use synod_wire::{Ballot, Batch, CommandKind, Epoch, Incarnation, ReplicaId, Slot};

/// A message between replicas.
#[must_use]
pub fn message(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Protocol { epoch, message } => {
            let text = match message {
                Message::MultiPaxos(message) => multipaxos_message(message),
                Message::SequencePaxos(message) => sequence_paxos_message(message),
                Message::Raft(message) => raft_message(message),
                Message::Election(message) => election_message(message),
            };
            format!("{}{text}", in_epoch(*epoch))
        }
        PeerMessage::Standing { epoch, kept: _, decided, view, sought: _ } => {
            let leader = view.leader.map_or("no leader".to_owned(), |leader| format!("{leader} leads"));
            format!("Standing: epoch {epoch}, decided {decided}, {leader}")
        }
        PeerMessage::History { marks, .. } => match marks.first() {
            Some(mark) => format!("History through slot {}: {:016x}", mark.slot, mark.fingerprint),
            None => "History of nothing".to_owned(),
        },
        PeerMessage::Missed { epoch } => format!("{}Missed", in_epoch(*epoch)),
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

/// What a message is for, in words that serve all protocols: scripts name messages so.
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
    "forward",
    "read",
    "catch-up",
];

/// The class of a message: one of [`CLASSES`].
#[must_use]
pub fn class(message: &PeerMessage) -> &'static str {
    match message {
        PeerMessage::Protocol { message: Message::MultiPaxos(message), .. } => multipaxos_class(message),
        PeerMessage::Protocol { message: Message::SequencePaxos(message), .. } => {
            sequence_paxos_class(message)
        }
        PeerMessage::Protocol { message: Message::Raft(message), .. } => raft_class(message),
        PeerMessage::Protocol { message: Message::Election(_), .. } => "election",
        PeerMessage::Standing { .. } | PeerMessage::SeekLeader => "standing",
        PeerMessage::Missed { .. } => "missed",
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

fn multipaxos_class(message: &multipaxos::Message) -> &'static str {
    use multipaxos::Message;
    match message {
        Message::Prepare { .. } => "prepare",
        Message::Promise(_) => "promise",
        Message::Accept { .. } => "proposal",
        Message::Accepted { .. } => "vote",
        Message::Decided { .. } => "announcement",
        Message::Heartbeat { .. } => "heartbeat",
        Message::HeartbeatAck { .. } => "heartbeat-answer",
        Message::Reject { .. } => "refusal",
        Message::TakeOver { .. } => "transfer",
        Message::Recover { .. } | Message::RecoverAnswer { .. } => "recovery",
    }
}

fn sequence_paxos_class(message: &sequence_paxos::Message) -> &'static str {
    use sequence_paxos::Message;
    match message {
        Message::Prepare(_) => "prepare",
        Message::Promise(_) => "promise",
        Message::AcceptSync(_) | Message::SyncNext { .. } | Message::Behind { .. } => "sync",
        Message::Accept { .. } => "proposal",
        Message::Accepted { .. } => "vote",
        Message::Decide { .. } => "announcement",
        Message::PrepareReq { .. } => "recovery",
        Message::Heartbeat { .. } => "heartbeat",
        Message::HeartbeatAck { .. } => "heartbeat-answer",
        Message::Reject { .. } => "refusal",
        Message::TakeOver { .. } => "transfer",
    }
}

fn raft_class(message: &raft::Message) -> &'static str {
    use raft::Message;
    match message {
        Message::Vote { .. } => "prepare",
        Message::VoteReply { .. } => "promise",
        Message::Append { .. } => "proposal",
        Message::AppendReply { .. } => "vote",
        Message::Commit { .. } => "announcement",
        Message::Heartbeat { .. } => "heartbeat",
        Message::HeartbeatAck { .. } => "heartbeat-answer",
        Message::Conflict { .. } | Message::Stale { .. } => "refusal",
        Message::TimeoutNow { .. } => "transfer",
        Message::Priority { .. } => "election",
        Message::Follow => "recovery",
    }
}

/// Whether a message only says that its sender lives: a script's story can do without it.
#[must_use]
pub fn is_sign_of_life(message: &PeerMessage) -> bool {
    matches!(class(message), "heartbeat" | "heartbeat-answer" | "election" | "standing")
}

/// The number of a question or a round, without the life of the asker in its upper half.
fn question(token: u64) -> u64 {
    token & u64::from(u32::MAX)
}

fn multipaxos_message(message: &multipaxos::Message) -> String {
    use multipaxos::Message;
    match message {
        Message::Prepare { ballot, from } => format!("Prepare {ballot} from slot {from}"),
        Message::Promise(promise) => {
            let accepted = promise.accepted.iter();
            let accepted: Vec<String> = accepted
                .map(|value| format!("slot {} in {}: {}", value.slot, value.ballot, batch(&value.batch)))
                .collect();
            let accepted =
                if accepted.is_empty() { "nothing accepted".to_owned() } else { accepted.join("; ") };
            let next = promise.next.map_or(String::new(), |next| format!("; more from slot {next}"));
            format!(
                "Promise {} from slot {}, decided {}: {accepted}{next}{}",
                promise.ballot,
                promise.from,
                promise.decided,
                lives(&promise.lives)
            )
        }
        Message::Accept { ballot, first, decided, batches } => {
            let slots = run(*first, Slot((first.0 + batches.len() as u64).saturating_sub(1)));
            let proposed: Vec<String> = batches.iter().map(batch).collect();
            format!("Accept {ballot} {slots}, decided {decided}: {}", proposed.join(" | "))
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

fn sequence_paxos_message(message: &sequence_paxos::Message) -> String {
    use sequence_paxos::{AcceptSync, Message, Prepare, Promise};
    match message {
        Message::Prepare(Prepare { ballot, has, page }) => {
            let page = if page.0 == 0 { String::new() } else { format!(", the page from slot {page}") };
            format!("Prepare {ballot}, has {}{page}", extent(has))
        }
        Message::Promise(Promise { ballot, has, start, batches, more, .. }) => {
            format!("Promise {ballot}, has {}{}", extent(has), elements(", with", *start, batches, *more))
        }
        Message::AcceptSync(AcceptSync { ballot, start, from, batches, more, decided }) => {
            let elements = elements("", *from, batches, *more);
            format!("AcceptSync {ballot} from slot {start}, decided {decided}:{elements}")
        }
        Message::SyncNext { ballot, start, from } => {
            format!("SyncNext {ballot} from slot {start}, the page from slot {from}")
        }
        Message::Accept { ballot, start, decided, batches } => {
            format!("Accept {ballot}, decided {decided}:{}", elements("", *start, batches, false))
        }
        Message::Accepted { ballot, last } => format!("Accepted {ballot} through slot {last}"),
        Message::Decide { ballot, through } => format!("Decide {ballot} through slot {through}"),
        Message::PrepareReq { promised } => format!("PrepareReq promised {promised}"),
        Message::Behind { ballot, through } => format!("Behind {ballot}, decided {through}"),
        Message::Heartbeat { ballot, decided, round } => {
            format!("Heartbeat {ballot} round {round}, decided {decided}")
        }
        Message::HeartbeatAck { ballot, round } => format!("HeartbeatAck {ballot} round {round}"),
        Message::Reject { promised } => format!("Reject promised {promised}"),
        Message::TakeOver { ballot } => format!("TakeOver from {ballot}"),
    }
}

/// Consecutive slots.
fn run(first: Slot, last: Slot) -> String {
    if first == last { format!("slot {first}") } else { format!("slots {first} to {last}") }
}

fn extent(has: &sequence_paxos::Extent) -> String {
    format!("{} through slot {}, decided {}", has.accepted_in, has.last, has.decided)
}

/// Elements of a sequence.
fn elements(before: &str, start: Slot, batches: &[Batch], more: bool) -> String {
    let more = if more { ", and more" } else { "" };
    match batches {
        [] if before.is_empty() => format!(" nothing{more}"),
        [] => more.to_owned(),
        [only] => format!("{before} slot {start}: {}{more}", batch(only)),
        _ => {
            let last = Slot(start.0 + batches.len() as u64 - 1);
            let all: Vec<String> = batches.iter().map(batch).collect();
            format!("{before} slots {start} to {last}: {}{more}", all.join(" | "))
        }
    }
}

fn election_message(message: &election::Message) -> String {
    use election::Message;
    match message {
        Message::HeartbeatRequest { round, highest } => {
            format!("HeartbeatRequest round {}, highest {highest}", question(*round))
        }
        Message::Rehearse { ballot } => format!("Rehearse {ballot}"),
        Message::RehearseReply { ballot, willing: true, .. } => format!("RehearseReply {ballot}: willing"),
        Message::RehearseReply { ballot, willing: false, highest } => {
            format!("RehearseReply {ballot}: not willing, highest {highest}")
        }
        Message::HeartbeatReply { round, ballot, leader, happy } => {
            let mood = if *happy { "happy with" } else { "not happy with" };
            format!("HeartbeatReply round {}: {ballot}, {mood} {leader}", question(*round))
        }
    }
}

fn raft_message(message: &raft::Message) -> String {
    use raft::Message;
    match message {
        Message::Vote { term, rehearsal, transfer, last, last_ballot } => {
            let name = if *rehearsal { "PreVote" } else { "Vote" };
            let asked = if *transfer { ", as the leader wishes" } else { "" };
            format!("{name} term {term}, log to slot {last} in {last_ballot}{asked}")
        }
        Message::VoteReply { term, rehearsal, granted } => {
            let name = if *rehearsal { "PreVoteReply" } else { "VoteReply" };
            let answer = if *granted { "yes" } else { "no" };
            format!("{name} term {term}: {answer}")
        }
        Message::Append { ballot, prev, prev_ballot, entries, commit, .. } => {
            let entries =
                if entries.is_empty() { "nothing".to_owned() } else { raft_entries(*ballot, entries) };
            format!("Append {ballot} after slot {prev} in {prev_ballot}, commit {commit}: {entries}")
        }
        Message::AppendReply { ballot, through, .. } => {
            format!("AppendReply {ballot} through slot {through}")
        }
        Message::Conflict { ballot, prev, hint, hint_ballot, .. } => {
            format!("Conflict {ballot} at slot {prev}; perhaps slot {hint} in {hint_ballot}")
        }
        Message::Commit { ballot, through } => format!("Commit {ballot} through slot {through}"),
        Message::Heartbeat { ballot, commit, round, .. } => {
            format!("Heartbeat {ballot} round {round}, commit {commit}")
        }
        Message::HeartbeatAck { ballot, round, .. } => format!("HeartbeatAck {ballot} round {round}"),
        Message::Stale { term } => format!("Stale: term {term} began"),
        Message::TimeoutNow { ballot } => format!("TimeoutNow from {ballot}"),
        Message::Priority { priority } => format!("Priority {priority}"),
        Message::Follow => "Follow".to_owned(),
    }
}

fn raft_entries(of: Ballot, entries: &[raft::Entry]) -> String {
    entries.iter().map(|entry| raft_entry(of, entry)).collect::<Vec<_>>().join(" | ")
}

/// An entry, with its term if that is not the message's.
fn raft_entry(of: Ballot, entry: &raft::Entry) -> String {
    let term = if entry.ballot == of { String::new() } else { format!("(in {}) ", entry.ballot) };
    let change = entry.voters.as_ref().map_or(String::new(), |sets| format!("{} ", voters(sets)));
    format!("{term}{change}{}", batch(&entry.batch))
}

fn voters(sets: &raft::VoterSets) -> String {
    let names = |ids: &[ReplicaId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let before = if sets.is_joint() { format!(" and of {}", names(sets.outgoing())) } else { String::new() };
    format!("[majority of {}{before}]", names(sets.incoming()))
}

fn raft_record(record: &raft::Record) -> String {
    use raft::Record as R;
    match record {
        R::Term { term, voted_for: Some(candidate) } => format!("term {term}, votes for {candidate}"),
        R::Term { term, voted_for: None } => format!("term {term}"),
        R::Entries { start, entries, decided, .. } => {
            let of = entries.first().map_or(Ballot::ZERO, |entry| entry.ballot);
            let slots = run(*start, Slot((start.0 + entries.len() as u64).saturating_sub(1)));
            let what = raft_entries(of, entries);
            if record.is_decision() {
                format!("learned {slots} in {of}: {what}")
            } else {
                format!("entry {of} {slots}, decided {decided}: {what}")
            }
        }
        R::Truncated { from, .. } => format!("slots from {from} on removed"),
        R::Amnesia(true) => "the log before this is lost".to_owned(),
        R::Amnesia(false) => "the log is whole".to_owned(),
    }
}

fn lives(known: &[(ReplicaId, Incarnation)]) -> String {
    let lives: Vec<String> =
        known.iter().map(|(replica, life)| format!("{replica} lives life {life}")).collect();
    if lives.is_empty() { String::new() } else { format!(" ({})", lives.join(", ")) }
}

/// What is put before things of an epoch other than the first.
fn in_epoch(epoch: Epoch) -> String {
    if epoch == Epoch(1) { String::new() } else { format!("{epoch} ") }
}

/// A record of a log.
#[must_use]
pub fn record(record: &LogRecord) -> String {
    match record {
        LogRecord::Protocol { epoch, record } => format!("{}{}", in_epoch(*epoch), protocol_record(record)),
        LogRecord::Entered { group, amnesia } => {
            let memory = if *amnesia { ", remembering nothing of it" } else { "" };
            format!("entered epoch {} from slot {}{memory}", group.epoch, group.first)
        }
        LogRecord::Ended { slot, ballots } => {
            format!("slot {slot} ended the epoch, decided in {}", ballots.decided)
        }
        LogRecord::Trimmed(slot) => format!("the log begins behind slot {slot}"),
        LogRecord::Learned { slot, batch: learned, .. } => format!("learned slot {slot}: {}", batch(learned)),
        LogRecord::Decided { epoch, slot, batch: decided, .. } => {
            format!("{}decided in slot {slot}: {}", in_epoch(*epoch), batch(decided))
        }
    }
}

fn protocol_record(record: &Record) -> String {
    match record {
        Record::MultiPaxos(record) => multipaxos_record(record),
        Record::SequencePaxos(record) => sequence_paxos_record(record),
        Record::Raft(record) => raft_record(record),
    }
}

fn sequence_paxos_record(record: &sequence_paxos::Record) -> String {
    use sequence_paxos::Record as R;
    match record {
        R::Promised(ballot) => format!("promised {ballot}"),
        R::Accepted { ballot, start, decided, batches } => {
            format!("accepted {ballot}, decided {decided}:{}", elements("", *start, batches, false))
        }
        R::Staged { ballot, start, from, batches } => {
            format!("staged {ballot} from slot {start}:{}", elements("", *from, batches, true))
        }
        R::Adopted { ballot, start, from, decided, batches, .. } => {
            let elements = elements("", *from, batches, false);
            format!("adopted {ballot} from slot {start}, decided {decided}:{elements}")
        }
        R::Learned { slot, batch: learned, .. } => format!("learned slot {slot}: {}", batch(learned)),
        R::Amnesia(true) => "the log before this is lost".to_owned(),
        R::Amnesia(false) => "the log is whole".to_owned(),
        R::Trimmed { slot, accepted_in } => {
            format!("a snapshot covers slots through {slot}; accepted {accepted_in}")
        }
    }
}

fn multipaxos_record(record: &multipaxos::Record) -> String {
    use multipaxos::Record as R;
    match record {
        R::Promised(ballot) => format!("promised {ballot}"),
        R::Accepted { ballot, first, decided, batches } => {
            let slots = run(*first, Slot((first.0 + batches.len() as u64).saturating_sub(1)));
            let accepted: Vec<String> = batches.iter().map(batch).collect();
            format!("accepted {ballot} {slots}, decided {decided}: {}", accepted.join(" | "))
        }
        R::Learned(value) => format!("learned slot {}: {}", value.slot, batch(&value.batch)),
        R::Lives(known) => format!("lives:{}", lives(known)),
        R::Amnesia(true) => "the log before this is lost".to_owned(),
        R::Amnesia(false) => "the log is whole".to_owned(),
    }
}

/// Who leads.
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
        Change::Promote(id) => format!("promote {id}"),
        Change::Remove(id) => format!("remove {id}"),
        Change::Update { id, info } => format!("update {id} to {}", info.peer_urls.join(" ")),
        Change::Order { protocol, election, overrides } => {
            let with = if overrides.is_empty() { String::new() } else { format!(", options: {overrides}") };
            format!("order by {protocol}, election {election}{with}")
        }
        Change::Limits(limits) => format!("limits {limits}"),
        Change::Readmit { id, life } => format!("readmit life {life} of {id}"),
    };
    format!("{change} (of version {})", request.expected)
}

fn purpose(goal: Goal) -> String {
    match goal {
        Goal::Learn => String::new(),
        Goal::Vote => ", to vote".to_owned(),
        Goal::Replace(old) => format!(", to replace {old}"),
    }
}

/// Who belongs to a group, and whose majorities decide.
#[must_use]
pub fn group(group: &Group) -> String {
    let member = |member: &Member| match member.standing {
        Standing::Voter => member.id.to_string(),
        Standing::Learner(goal) => format!("{} learns{}", member.id, purpose(goal)),
    };
    let members: Vec<String> = group.members.iter().map(member).collect();
    let outgoing: Vec<String> = group.outgoing.iter().map(ToString::to_string).collect();
    let before =
        if outgoing.is_empty() { String::new() } else { format!("; as before: {}", outgoing.join(" ")) };
    format!("version {}, epoch {}: {}{before}", group.version, group.epoch, members.join(", "))
}

/// The commands of a batch.
#[must_use]
pub fn batch(batch: &Batch) -> String {
    if batch.is_noop() {
        return "no-op".to_owned();
    }
    let commands = batch.commands().map(|entry| {
        let text = match entry.kind {
            CommandKind::Apply => command(&entry.payload),
            CommandKind::OpenSession => "open session".to_owned(),
            CommandKind::AdvanceClock => "clock".to_owned(),
            CommandKind::Reconfigure => match ChangeRequest::decode(entry.payload.clone()) {
                Ok(request) => change(&request),
                Err(_) => "unreadable change".to_owned(),
            },
            CommandKind::Settle => return "the change of voters is complete".to_owned(),
        };
        // The sessions of replicas have large numbers; they say nothing to a reader.
        let of_client = entry.session.0 >> 63 == 0;
        if of_client { format!("s{}#{} {text}", entry.session, entry.sequence) } else { text }
    });
    commands.collect::<Vec<_>>().join(", ")
}

/// A command of the key-value store.
#[must_use]
pub fn command(payload: &Bytes) -> String {
    let Ok(command) = KvCommand::decode(payload.clone()) else { return "unreadable".to_owned() };
    match &command.command {
        Some(Command::Put(request)) => put(request),
        Some(Command::DeleteRange(request)) => delete(request),
        Some(Command::Txn(request)) => txn(request),
        Some(Command::Compact(request)) => format!("compact {}", request.revision),
        Some(Command::Alarm(_)) => "alarm".to_owned(),
        None => "nothing".to_owned(),
    }
}

/// A query of the key-value store.
#[must_use]
pub fn query(payload: &Bytes) -> String {
    match KvQuery::decode(payload.clone()).map(|query| query.query) {
        Ok(Some(Query::Range(request))) => range(&request),
        Ok(_) => "query".to_owned(),
        Err(_) => "unreadable".to_owned(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches(['.', '\0']).to_owned()
}

fn keys(key: &[u8], range_end: &[u8]) -> String {
    if range_end.is_empty() { text(key) } else { format!("{}..{}", text(key), text(range_end)) }
}

fn put(request: &PutRequest) -> String {
    format!("{}={}", text(&request.key), text(&request.value))
}

fn delete(request: &DeleteRangeRequest) -> String {
    format!("delete {}", keys(&request.key, &request.range_end))
}

fn range(request: &RangeRequest) -> String {
    format!("get {}", keys(&request.key, &request.range_end))
}

fn txn(request: &TxnRequest) -> String {
    let ops: Vec<String> = request
        .success
        .iter()
        .map(|op| match &op.request {
            Some(Request::RequestPut(request)) => put(request),
            Some(Request::RequestDeleteRange(request)) => delete(request),
            Some(Request::RequestRange(request)) => range(request),
            Some(Request::RequestTxn(request)) => txn(request),
            None => "nothing".to_owned(),
        })
        .collect();
    let keys: Vec<String> = request.compare.iter().map(|compare| text(&compare.key)).collect();
    format!("if {} then {}", keys.join(" "), ops.join("+"))
}
