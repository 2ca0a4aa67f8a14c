//! What replicas say to each other in rounds of gossip; the list of all messages is [`Message`](super::super::Message).

use synod_wire::{Ballot, DecodeError, Reader, ReplicaId, Slot, Writer};

use super::commit_status::{MemberStatus, Merge, Status};
use crate::{
    BatchText, MEMBERS_MAX, TermClaim,
    codec::{Field, fields},
    raft::{
        Entries,
        log::Position,
        messages::{check_slots, entries_text, leads_with, pre, wished},
    },
};

fields! {
    /// A candidate's question for votes, with the votes that are known so far: each replica passes it on when it knows
    /// of more.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct VoteRound {
        /// The replica that wants to lead.
        pub candidate: ReplicaId,
        /// The term in which it wants to.
        pub term: u64,
        /// Grows each time that the candidate asks in a term.
        pub attempt: u64,
        /// Whether it only asks who would vote for it, which changes nothing.
        pub rehearsal: bool,
        /// Whether the leader asked it to take over.
        pub transfer: bool,
        /// The last entry of its log.
        pub last: Slot,
        /// The term of that entry.
        pub last_ballot: Ballot,
        /// The replicas that are known to vote for it, in ascending order.
        pub granted: Vec<ReplicaId>,
    }
}

fields! {
    /// A round of gossip: the leader sends it to a few replicas, and each that sees it for the first time to a few
    /// others.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Round {
        /// The term with its leader, which began the round. Replicas answer the leader, and not the replica that sent
        /// them the round.
        pub ballot: Ballot,
        /// The number of the round, which grows with every round of the term. What is no round has 0: a status that is
        /// told in between, or entries for a replica that asked for them.
        pub number: u64,
        /// The leader's last heartbeat.
        pub beat: u64,
        /// The slot before the first of `entries`.
        pub prev: Slot,
        /// The term of the leader's entry there.
        pub prev_ballot: Ballot,
        /// The leader has committed slots through this one.
        pub commit: Slot,
        /// What the sender, which may have passed the round on, knows of how far all logs go; `None` if replicas answer
        /// the leader instead.
        pub status: Option<Status>,
        /// The entries for the slots after it; empty if the round only says that the leader lives, and what is
        /// committed, or if it was passed on without them and names the last one by `prev`.
        pub entries: Entries,
    }
}

fields! {
    /// The contents of [`Message::RoundConflict`](super::super::Message::RoundConflict).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoundConflict {
        /// The leader's term.
        pub ballot: Ballot,
        /// The number of the round.
        pub number: u64,
        /// The `prev` that does not fit.
        pub prev: Slot,
        /// Where the logs may still agree: the sender's last entry before the conflicting term.
        pub hint: Slot,
        /// The term of that entry.
        pub hint_ballot: Ballot,
    }
}

impl Round {
    /// Checks that every slot that it speaks of has a next one, which is no end of all slots either.
    pub(in crate::raft) fn has_slots(&self) -> Result<(), DecodeError> {
        let status = self.status.iter().flat_map(|status| {
            let held = status.members.iter().map(|known| known.held);
            [status.commit, status.next].into_iter().chain(held)
        });
        let slots = [self.commit].into_iter().chain(status);
        if let Some(slot) = slots.max().filter(|slot| slot.0 >= u64::MAX - 1) {
            return Err(DecodeError::Undefined { field: "slot of a round", value: slot.0 });
        }
        check_slots(self.prev, &self.entries)
    }

    /// The last slot of the leader's log that it tells of, and the term of the entry there.
    pub(in crate::raft) fn end(&self) -> Position {
        let ballot = self.entries.last().map_or(self.prev_ballot, |entry| entry.ballot);
        Position { slot: Slot(self.prev.0 + self.entries.len() as u64), ballot }
    }

    /// The slot before its entries, and the term of the entry there.
    pub(in crate::raft) fn before(&self) -> Position {
        Position { slot: self.prev, ballot: self.prev_ballot }
    }

    /// Whether it tells of entries that may not be committed. A leader's empty round begins after what is.
    pub(in crate::raft) fn says_something(&self) -> bool {
        !self.entries.is_empty() || self.prev > self.commit
    }

    /// Bytes of what it says of replicas.
    pub(in crate::raft) fn other_bytes(&self) -> u64 {
        let known = self.status.as_ref().map_or(0, |status| status.members.len());
        (known * size_of::<MemberStatus>()) as u64
    }

    /// What its leader claims, and what its sender claims of others.
    pub(in crate::raft) fn claims(&self) -> Vec<TermClaim<'_>> {
        let ballot = self.ballot;
        let mut claims = leads_with(ballot, self.commit, self.before(), &self.entries);
        if let Some(status) = &self.status {
            claims.push(TermClaim::Committed { ballot, through: status.commit });
            let holders = status.members.iter().filter(|known| known.held != Slot::ZERO);
            claims.extend(holders.map(|known| TermClaim::Held { ballot, by: known.id, through: known.held }));
        }
        claims
    }

    /// A replica that passes a round on says nothing by that of its own log, and does not lead.
    pub(in crate::raft) fn claims_of(&self, sender: ReplicaId) -> Vec<TermClaim<'_>> {
        let mut claims = self.claims();
        if self.ballot.replica != sender {
            claims.retain(|claim| !matches!(claim, TermClaim::Leads { .. } | TermClaim::Entry { .. }));
        }
        claims
    }

    pub(in crate::raft) fn described(&self, batch: BatchText<'_>) -> String {
        let Round { ballot, number, beat: _, prev, prev_ballot, commit, status, entries } = self;
        if let (0, Some(status), true) = (number, status, entries.is_empty()) {
            return format!("Status in {ballot}{}", status.described());
        }
        let what = entries_text(*ballot, entries, batch);
        let status = status.as_ref().map_or(String::new(), Status::described);
        format!(
            "Round {number} of {ballot} after slot {prev} in {prev_ballot}, commit {commit}{status}: {what}"
        )
    }

    /// What a replica tells of its status between two rounds.
    pub(in crate::raft) fn echo(ballot: Ballot, status: Status) -> Round {
        Round {
            ballot,
            number: 0,
            beat: 0,
            prev: Slot::ZERO,
            prev_ballot: Ballot::ZERO,
            entries: [].into(),
            commit: Slot::ZERO,
            status: Some(status),
        }
    }
}

impl VoteRound {
    /// Each replica claims its own vote.
    pub(in crate::raft) fn claims_of(&self, sender: ReplicaId) -> Vec<TermClaim<'_>> {
        let votes = !self.rehearsal && self.granted.contains(&sender);
        let claim = TermClaim::Votes { term: self.term, candidate: self.candidate };
        votes.then_some(claim).into_iter().collect()
    }

    pub(in crate::raft) fn described(&self) -> String {
        let VoteRound { candidate, term, attempt, rehearsal, transfer, last, last_ballot, granted } = self;
        let granted: String = granted.iter().map(|id| format!(" {id}")).collect();
        format!(
            "{}VoteRound {attempt} of {candidate}, term {term}, log to slot {last} in {last_ballot}{}; votes of{granted}",
            pre(*rehearsal),
            wished(*transfer)
        )
    }

    /// Checks that no more replicas vote than may be members.
    pub(in crate::raft) fn has_few_votes(&self) -> Result<(), DecodeError> {
        if self.granted.len() > 2 * MEMBERS_MAX {
            return Err(DecodeError::Undefined { field: "votes", value: self.granted.len() as u64 });
        }
        Ok(())
    }
}

impl Status {
    fn described(&self) -> String {
        let Status { merge: _, commit, next, members } = self;
        let holders = members.iter().filter(|known| known.held != Slot::ZERO);
        let text = |known: &MemberStatus| match *next {
            Slot::ZERO => format!(" {} {}", known.id, known.held),
            _ => format!(" {}", known.id),
        };
        let holders: String = holders.map(text).collect();
        let next = if *next == Slot::ZERO { String::new() } else { format!(", slot {next} next") };
        format!(" ({commit} known{next}, held by{})", if holders.is_empty() { " nobody" } else { &holders })
    }
}

/// Nothing is said of slots that are committed anyway, so slots are written as distances from there, replicas as
/// distances from the one before, and heartbeats as distances back from the last: most numbers take one byte.
impl Field for Option<Status> {
    fn write(&self, writer: &mut Writer) {
        let Some(status) = self else { return writer.u8(0) };
        let merge =
            Merge::ALL.iter().position(|(_, merge)| *merge == status.merge).expect("it is one of them");
        writer.u8(u8::try_from(merge + 1).expect("a few"));
        writer.slot(status.commit);
        small(writer, status.next.0.saturating_sub(status.commit.0));
        let beat = status.members.iter().map(|known| known.beat).max().unwrap_or(0);
        writer.u64(beat);
        small(writer, status.members.len() as u64);
        let mut before = 0;
        for known in &status.members {
            small(writer, known.id.0.wrapping_sub(before));
            small(writer, known.held.0.saturating_sub(status.commit.0));
            small(writer, beat - known.beat);
            before = known.id.0;
        }
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Option<Status>, DecodeError> {
        let merge = reader.u8(name)?;
        let Some(merge) = merge.checked_sub(1) else { return Ok(None) };
        let undefined = |value: u64| DecodeError::Undefined { field: "commit status", value };
        let (_, merge) = *Merge::ALL.get(usize::from(merge)).ok_or(undefined(merge.into()))?;
        let commit = reader.slot("committed slots")?;
        let after = |distance: u64| match distance {
            0 => Ok(Slot::ZERO),
            _ => commit.0.checked_add(distance).map(Slot).ok_or(undefined(distance)),
        };
        let next = after(read_small(reader)?)?;
        if (merge == Merge::Vector) != (next == Slot::ZERO) {
            return Err(undefined(next.0));
        }
        let beat = reader.u64("heartbeat")?;
        let count = read_small(reader)?;
        if count > 2 * MEMBERS_MAX as u64 {
            return Err(undefined(count));
        }
        let (mut members, mut before) = (Vec::new(), 0u64);
        for _ in 0..count {
            let distance = read_small(reader)?;
            before = before.checked_add(distance).filter(|_| distance > 0).ok_or(undefined(distance))?;
            let held = after(read_small(reader)?)?;
            let back = read_small(reader)?;
            let beat = beat.checked_sub(back).ok_or(undefined(back))?;
            members.push(MemberStatus { id: ReplicaId(before), held, beat });
        }
        Ok(Some(Status { merge, commit, next, members }))
    }
}

/// Writes a number that is mostly small: seven bits a byte, the lowest first.
fn small(writer: &mut Writer, mut value: u64) {
    while value >= 1 << 7 {
        writer.u8(value as u8 | 1 << 7);
        value >>= 7;
    }
    writer.u8(value as u8);
}

fn read_small(reader: &mut Reader) -> Result<u64, DecodeError> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = reader.u8("number")?;
        let bits = u64::from(byte & 0x7f);
        if bits.checked_shl(shift).is_none_or(|shifted| shifted >> shift != bits) {
            break;
        }
        value |= bits << shift;
        if byte < 1 << 7 {
            return Ok(value);
        }
    }
    Err(DecodeError::Undefined { field: "number", value })
}
