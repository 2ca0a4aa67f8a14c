//! Raft (Ongaro 2014; Ng 2020, sections 2.5 and 10) with PreVote, CheckQuorum, priorities, leadership transfer and
//! joint consensus. docs/raft.md tells what happens, message by message, and has the argument why it is safe, and what
//! differs from the papers.
//!
//! A **term** is a ballot's round, so the term together with its leader is a [`Ballot`].
//!
//! | file | contents |
//! | --- | --- |
//! | `election.rs` | finding a leader: time-outs, rehearsed and real votes, transfer |
//! | `leader.rs` | replication, commitment, heartbeats, reads |
//! | `progress.rs` | what the leader knows of one follower |
//! | `follower.rs` | appending what the leader sends |
//! | `membership.rs` | which replicas vote, and changing that |
//! | `recovery.rs` | starting; what came by catch-up and snapshots |
//! | `log.rs` | the log in memory |
//! | `rules.rs` | who may vote, what elects, what is committed, replaced: the rules that safety rests on |
//! | `moving.rs` | above the election: leadership moves to the voter that is nearest to a majority |
//! | `driftwood/` | what rounds of gossip add (Driftwood 2023), and where they meet Raft |

mod driftwood;
mod election;
mod follower;
mod leader;
mod log;
mod membership;
mod messages;
mod moving;
mod planted;
mod profile;
mod progress;
mod recovery;
mod rules;
#[cfg(test)]
mod tests;

pub use driftwood::{MemberStatus, Merge, Round, RoundConflict, Status as CommitStatus, VoteRound};
pub use messages::{Configuration, Conflict, Entries, Entry, HeartbeatAck, Message, Record};
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{Replication, Tuning};

use driftwood::Gossip;
use election::{Candidate, ElectionTimer};
use leader::Leader;
use log::Log;
use moving::Mover;
use rules::Rules;
use std::sync::Arc;
use synod_wire::{Ballot, Ballots, Batch, Lsn, ReplicaId, Slot, Time};

use crate::{
    Control, Effect, Effects, Input, Members, Options, Protocol, Role, Status,
    disk_watch::DiskWatch,
    election::Memory,
    leadership::{Leads, Reported},
    progress_watch::ProgressWatch,
};

/// A prefix of the log that is decided.
#[derive(Clone, Copy, Debug)]
struct DecidedPrefix {
    through: Slot,
    /// No ballot above this one decided it.
    decided_in: Ballot,
}

/// One Raft replica.
#[derive(Clone, Debug)]
pub struct Raft {
    /// The voters when this life began; the log has the present ones.
    members: Members,
    options: Options,
    /// The current term: messages of a lower one are not obeyed.
    term: u64,
    /// The replica that this one voted for in `term`.
    voted_for: Option<ReplicaId>,
    /// The number of the record that holds both.
    term_lsn: Lsn,
    reported: Reported,
    state: State,
    election_timer: ElectionTimer,
    log: Log,
    /// The last delivered slot.
    decided: Slot,
    /// The slots through it were decided in this ballot or in lower ones.
    decided_in: Ballot,
    /// Slots through this one are known to be decided by some replica.
    decided_elsewhere: Slot,
    /// The log is known to equal that of the leader of `term` through this slot.
    verified: Slot,
    /// This replica's own entries through this slot are on stable storage.
    stable: Slot,
    /// Records through this one are on stable storage.
    durable: Lsn,
    disk: DiskWatch,
    /// The progress of this replica as a leader, or else that of its leader.
    progress: ProgressWatch,
    /// Whether the executor lags, so that nothing is accepted.
    backlogged: bool,
    /// What is remembered of rounds of gossip.
    gossip: Gossip,
    /// Where leadership should be.
    mover: Mover,
}

#[derive(Clone, Debug)]
enum State {
    Follower,
    Candidate(Candidate),
    Leader(Box<Leader>),
    /// It lost (part of) its log: it learns, and does nothing else.
    Recovering,
}

impl Protocol for Raft {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_after_sleep(now, effects);
        match input {
            Input::Receive { from, message: crate::Message::Raft(message) } => {
                self.receive(now, from, message, effects);
            }
            Input::Receive { from, message: crate::Message::Election(message) } => {
                self.receive_of_election(now, from, &message, effects);
            }
            // This message is of another protocol.
            Input::Receive { .. } => {}
            // The flush sends the batch, and does the checks at the end of a step, so this returns early.
            Input::Propose { batch, awaited } => return self.propose(batch, awaited),
            Input::Durable(lsn) => self.on_durable(now, lsn, effects),
            Input::Link { peer, link } => {
                self.gossip.link(peer, link, &self.log.configuration().voters);
                self.link(now, peer, link, effects);
                if link.begins_again() {
                    self.tell_priority(&[peer], effects);
                    self.resend_to(peer, effects);
                }
            }
            Input::Timer => self.on_timer(now, effects),
            Input::Control(control) => self.control(now, control, effects),
        }
        self.move_on(now, effects);
        self.disk.appended(before, effects.last_lsn(), now);
        self.report_leader(effects);
    }

    /// A term has at most one leader, and a replica that stays in the term obeys that one.
    fn promised(&self) -> Ballot {
        Ballot { round: self.term, replica: ReplicaId(u64::MAX) }
    }

    fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.enter_term(now, ballot.round, None, effects);
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn flush(&mut self, now: Time, effects: &mut Effects) {
        let before = effects.last_lsn();
        self.yield_after_sleep(now, effects);
        self.write(effects);
        self.disk.appended(before, effects.last_lsn(), now);
        self.replicate(now, effects);
        self.announce(now, effects);
        self.gossip(now, effects);
        self.ask_for_timer(effects);
    }

    fn room(&self) -> usize {
        match &self.state {
            State::Leader(leader) if !self.is_congested() && !leader.is_transferring() => {
                let span = self.log.last().0 - self.decided.0;
                let bound = (self.options.window_max as u64).min(self.options.accept_ahead_max());
                usize::try_from(bound.saturating_sub(span)).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    // Where others decide without this replica, its decided prefix grows, so the window alone would not bound
    // what it has to write.
    fn is_congested(&self) -> bool {
        self.backlogged
            || self.log.last().0.saturating_sub(self.stable.0) > 2 * self.options.accept_ahead_max()
    }

    fn status(&self) -> Status {
        Status {
            role: match self.state {
                State::Follower if !self.votes() => Role::Learner,
                State::Follower => Role::Follower,
                State::Candidate(_) => Role::Candidate,
                State::Leader(_) => Role::Leader,
                State::Recovering => Role::Recovering,
            },
            view: self.reported.view,
            decided: self.decided,
            decided_elsewhere: self.decided_elsewhere.max(self.decided),
            in_flight: match self.state {
                State::Leader(_) => usize::try_from(self.log.last().0 - self.decided.0).unwrap_or(usize::MAX),
                _ => 0,
            },
            waits_for_disk: matches!(self.state, State::Leader(_) | State::Candidate(_)),
        }
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        leader.is_answered_by(voter, now, self.options.election_timeout)
    }

    fn election_memory(&self) -> Memory {
        self.mover.as_ref().map(|mover| mover.memory()).unwrap_or_default()
    }

    fn round_trips(&self) -> Vec<(ReplicaId, std::time::Duration)> {
        let Some(mover) = &self.mover else { return Vec::new() };
        let time_to = |peer| Some((peer, mover.round_trip(peer)?));
        mover.members().peers().filter_map(time_to).collect()
    }

    fn ordered(&mut self, origin: ReplicaId, commands: u64) {
        if let Some(mover) = &mut self.mover {
            mover.ordered(origin, commands);
        }
    }

    fn origins(&self) -> Vec<(ReplicaId, u64)> {
        self.mover.as_ref().map_or_else(Vec::new, |mover| mover.origins())
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        if matches!(self.state, State::Leader(_)) {
            let written = self.log.from(self.decided.next());
            written.chain(self.log.unwritten()).map(|entry| &entry.batch).for_each(see);
        }
    }
}

impl Raft {
    fn receive(&mut self, now: Time, from: ReplicaId, message: Message, effects: &mut Effects) {
        if from == self.members.me() {
            return;
        }
        if matches!(self.state, State::Recovering) {
            return self.receive_while_recovering(from, &message, effects);
        }
        match message {
            Message::Vote { .. } => self.handle_vote(now, from, &message, effects),
            Message::VoteReply { term, rehearsal, granted } => {
                self.handle_vote_reply(now, from, term, rehearsal, granted, effects);
            }
            Message::Append { ballot, session, prev, prev_ballot, entries, commit } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_append(session, prev, prev_ballot, entries, effects);
                    self.handle_commit(commit, effects);
                }
            }
            Message::AppendReply { ballot, session, through } => {
                self.handle_append_reply(now, from, ballot, session, through, effects);
            }
            Message::Conflict(conflict) => self.handle_conflict(now, from, conflict),
            Message::Commit { ballot, through } => {
                if self.follow(now, from, ballot, effects) {
                    self.handle_commit(through, effects);
                }
            }
            Message::Heartbeat { ballot, commit, round, priority_max } => {
                if self.follow(now, from, ballot, effects) {
                    self.election_timer.set_priority_max(priority_max);
                    self.handle_commit(commit, effects);
                    self.handle_heartbeat(from, ballot, round, effects);
                }
            }
            Message::HeartbeatAck(ack) => self.handle_heartbeat_ack(now, from, ack, effects),
            Message::Stale { term } => {
                if term > self.term && self.voters().contains(from) {
                    self.enter_term(now, term, None, effects);
                } else if let State::Leader(leader) = &mut self.state {
                    // A replica that does not vote cannot end a leader's term. Its term counts once it has to vote.
                    leader.note_term(from, term);
                }
            }
            Message::TimeoutNow { ballot } => self.handle_timeout_now(now, from, ballot, effects),
            Message::Priority { priority } => self.handle_priority(now, from, priority),
            Message::Follow => self.handle_follow(now, from, effects),
            Message::Round(_)
            | Message::RoundReply { .. }
            | Message::RoundConflict(_)
            | Message::Pull { .. }
            | Message::VoteRound(_) => self.receive_gossip(now, from, message, effects),
        }
    }

    fn control(&mut self, now: Time, control: Control, effects: &mut Effects) {
        match control {
            Control::ReadIndex(token) => self.read_index(token, effects),
            Control::Learn { slot, ballots, batch, voters } => {
                self.heed_winner(now, ballots.decided, effects);
                let entry = Entry { ballot: ballots.proposed, batch, voters };
                self.learn(slot, entry, ballots.decided, effects);
                // Others may find out what this leader's ballot decided before it does.
                self.advance_change(now, effects);
            }
            Control::Installed { slot, ballots, voters, .. } => {
                self.heed_winner(now, ballots.decided, effects);
                let base = Configuration { slot, ballot: ballots.proposed, voters };
                self.installed(base, ballots.decided, effects);
                self.advance_change(now, effects);
            }
            // What an installed snapshot covers is forgotten once its term is told, which follows.
            Control::Trim(slot) if slot > self.decided => {}
            Control::Trim(slot) => self.log.forget_before(slot),
            Control::Backlogged(backlogged) => self.backlogged = backlogged,
            Control::Transfer(to) => self.transfer_as_wished(now, to, effects),
            Control::ChangeVoters { voters, batch } => self.change_voters(now, voters, batch, effects),
        }
    }

    /// The rules that this replica follows.
    fn rules(&self) -> Rules {
        planted::rules(&self.options)
    }

    /// The rules that rounds of gossip add.
    fn gossip_rules(&self) -> driftwood::Rules {
        driftwood::rules(&self.options)
    }

    /// Goes on in a higher term, or votes in the present one; nothing may leave that speaks of it before it is durable.
    fn set_term(&mut self, term: u64, voted_for: Option<ReplicaId>, effects: &mut Effects) {
        debug_assert!(
            term > self.term
                || term == self.term && self.voted_for.is_none_or(|id| Some(id) == voted_for)
                || self.options.has(crate::Bug::Raft(Bug::VoteTwice)),
            "one vote a term"
        );
        (self.term, self.voted_for) = (term, voted_for);
        self.term_lsn = effects.append(Record::Term { term, voted_for }.into());
    }

    /// Begins a higher term: whatever this replica did in the present one ends.
    fn enter_term(&mut self, now: Time, term: u64, voted_for: Option<ReplicaId>, effects: &mut Effects) {
        debug_assert!(term > self.term, "terms only grow");
        self.step_down(now, effects);
        self.set_term(term, voted_for, effects);
        self.verified = self.decided;
        self.gossip.enter_term();
        self.election_timer.leader_is_gone();
    }

    /// Gives up leading, or trying to. What was proposed and waits for its record is written before what comes now.
    fn step_down(&mut self, now: Time, effects: &mut Effects) {
        self.write(effects);
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
            self.election_timer.leader_is_gone();
            if let Some(mover) = &mut self.mover {
                mover.steps_down();
            }
        }
        self.progress = Default::default();
        if !matches!(self.state, State::Recovering | State::Follower) {
            self.state = State::Follower;
            self.election_timer.begin(now, self.options.priority);
        }
    }

    /// Gives a record to what this leader proposed since it last did: what waits goes to disk as one.
    fn write(&mut self, effects: &mut Effects) {
        let (decided, decided_in) = (self.decided, self.decided_in);
        self.log.write(self.options.raft.append_bytes_max, |first, entries| {
            effects.append(Record::Entries { first, entries, decided, decided_in }.into())
        });
    }

    /// Adds entries at the end of the log, on disk and in memory. With them a prefix of the log is decided.
    fn append(&mut self, entries: Entries, prefix: DecidedPrefix, effects: &mut Effects) {
        self.write(effects);
        let DecidedPrefix { through: decided, decided_in } = prefix;
        let (first, entries_of_record) = (self.log.last().next(), Arc::clone(&entries));
        let record = Record::Entries { first, entries: entries_of_record, decided, decided_in };
        let lsn = effects.append(record.into());
        self.log.append(entries, lsn);
    }

    /// Removes the entries from a slot on.
    fn truncate(&mut self, from: Slot, effects: &mut Effects) {
        debug_assert!(from > self.decided || self.options.planted.is_some(), "what is decided stays");
        self.write(effects);
        if from <= self.log.last() {
            effects.append(Record::Truncated { from, last: self.log.recorded() }.into());
            self.log.truncate(from);
            self.stable = self.stable.min(from.prev());
            self.verified = self.verified.min(from.prev());
        }
    }

    /// Delivers the entries through a slot; they are in the log. No ballot above `decided_in` decided them.
    fn deliver_through(&mut self, through: Slot, decided_in: Ballot, effects: &mut Effects) {
        if through > self.decided {
            let more = usize::try_from(through.0 - self.decided.0).unwrap_or(usize::MAX);
            for entry in self.log.from(self.decided.next()).take(more) {
                self.decided = self.decided.next();
                let ballots = Ballots { proposed: entry.ballot, decided: decided_in };
                effects.push(Effect::Deliver { slot: self.decided, ballots, batch: entry.batch.clone() });
            }
            self.decided_in = self.decided_in.max(decided_in);
            assert_eq!(self.decided, through, "what is decided is in the log");
        }
        self.log.forget_configurations_before(self.decided);
        self.decided_elsewhere = self.decided_elsewhere.max(self.decided);
        self.verified = self.verified.max(self.decided);
        // A tail stays for followers that lag a little; the next leader may need it as well.
        let tail = self.decided.0.saturating_sub(self.options.accept_ahead_max());
        self.log.release(Slot(tail).next());
    }

    fn on_durable(&mut self, now: Time, lsn: Lsn, effects: &mut Effects) {
        self.durable = self.durable.max(lsn);
        self.disk.durable(lsn, now);
        if let Some(mover) = &mut self.mover {
            mover.durable(lsn);
        }
        if let Some(stable) = self.log.stable(self.durable) {
            self.stable = self.stable.max(stable);
        }
        match self.state {
            State::Leader(_) => self.commit(now, effects),
            State::Candidate(_) => self.count_votes(now, effects),
            State::Follower => self.settle(now, effects),
            State::Recovering => {}
        }
    }

    fn on_timer(&mut self, now: Time, effects: &mut Effects) {
        self.reported.woken();
        self.measure(now, effects);
        match &self.state {
            State::Follower | State::Candidate(_) => {
                if now >= self.election_timer.ends_at() {
                    self.time_out(now, effects);
                } else {
                    self.resend_votes(now, effects);
                }
            }
            State::Leader(_) => self.lead_on(now, effects),
            State::Recovering => {}
        }
    }

    fn ask_for_timer(&mut self, effects: &mut Effects) {
        let deadline = match &self.state {
            State::Follower => self.election_timer.ends_at(),
            State::Candidate(candidate) => self.election_timer.ends_at().min(candidate.resend_at()),
            State::Leader(leader) => leader.tick_at().min(self.round_at()),
            State::Recovering => Time::NEVER,
        };
        let deadline = self.mover.as_ref().map_or(deadline, |mover| mover.tick_at().min(deadline));
        self.reported.deadline(deadline, effects);
    }

    fn send_to(&self, whom: Vec<ReplicaId>, message: Message, after: Lsn, effects: &mut Effects) {
        let others = whom.into_iter().filter(|&id| id != self.members.me());
        effects.send_each(others, message, after);
    }

    /// The replicas other than this one that may lead: the voters as far as its log goes, and the voters as
    /// far as it is decided. The voters of the time when this life began do not count: one that was removed
    /// since is not a peer.
    fn acquaintances(&self) -> Vec<ReplicaId> {
        let decided = self.log.configuration_at(self.decided).voters.all();
        let mut all: Vec<_> = decided.into_iter().chain(self.voters().all()).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|&id| id != self.members.me());
        all
    }
}
