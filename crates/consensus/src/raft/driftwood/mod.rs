//! What Driftwood (Gonçalves 2023) adds to Raft: entries, votes, and the knowledge of how far all logs go travel in
//! **rounds of gossip**, which voters pass on to each other. Elections, changes of voters, heartbeats, learners and the
//! log are those of Raft; with `replication=direct` and `vote-gossip=off` nothing here runs. `docs/driftwood.md` says
//! why it is safe.
//!
//! | file | contents |
//! | --- | --- |
//! | `messages.rs` | what rounds carry |
//! | `gossip.rs` | rounds: beginning them, passing them on, taking them in |
//! | `pace.rs` | how soon one round follows another |
//! | `repair.rs` | voters that are sent directly what rounds do not bring |
//! | `commit_status.rs` | what a replica knows of how far all logs go (version 2) |
//! | `commitment.rs` | what follows from that for its own log |
//! | `rules.rs` | what may be said, counted, merged and delivered: the rules that safety rests on |
//! | `pulls.rs` | entries that a replica asks another one for |
//! | `votes.rs` | votes that are gathered by gossip |
//!
//! # Where the two meet
//!
//! Raft's files call these, and nothing else of the folder:
//!
//! | Raft | calls |
//! | --- | --- |
//! | a replica starts, enters a term, hears of a session | `Gossip::new`, `Gossip::enter_term`, `Gossip::link` |
//! | a message of the gossip arrives | `Raft::receive_gossip` |
//! | a step ends; a deadline is asked for | `Raft::gossip`; `Raft::round_at` |
//! | a candidate asks for votes | `Raft::ask_by_gossip` |
//! | a leader begins; tracks a replica; says that it lives | `Raft::begin_rounds`; `ByGossip`; `Raft::gossips` |
//! | a leader has something to tell at once | `Raft::want_round` |
//! | a leader replicates: to whom directly | `Progress::is_direct`, `Progress::begin_repair`, `Progress::repaired` |
//! | what is durable, or acknowledged, may commit a slot | `Raft::has_status`, `Raft::holds_directly`, `Raft::settle` |
//! | a leader is asked for a read | `Raft::any_may_commit`, `Rules::reads_wait_for_all` |
//! | options; messages | `INTERVAL_MIN`, `Merge`; the methods of `Round` and `VoteRound` |
//!
//! The other way round, a round is an append like any other (`Raft::take_in`) and a sign of life (`Raft::obey`), and
//! an answer to it counts as one to an append (`Raft::holds_through`).

mod commit_status;
mod commitment;
mod gossip;
mod messages;
mod pace;
mod planted;
mod pulls;
mod repair;
mod rules;
mod votes;

pub use commit_status::{MemberStatus, Merge, Status};
pub use messages::{Round, RoundConflict, VoteRound};

pub(super) use gossip::{Gossip, Rounds};
pub(super) use pace::INTERVAL_MIN;
pub(super) use planted::rules;
pub(super) use repair::ByGossip;
pub(super) use rules::Rules;

use synod_wire::{Ballot, ReplicaId, Time};

use super::{Message, Raft, Replication, State, log::Position};
use crate::Effects;

impl Raft {
    /// Whether this leader's entries reach the voters by rounds of gossip.
    pub(super) fn gossips(&self) -> bool {
        self.options.raft.replication.gossips()
    }

    /// Whether any replica may find out that a slot is committed, before the leader does.
    pub(super) fn any_may_commit(&self) -> bool {
        self.options.raft.replication == Replication::GossipStatus
    }

    /// Takes in a message that only rounds of gossip have.
    pub(super) fn receive_gossip(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: Message,
        effects: &mut Effects,
    ) {
        match message {
            Message::Round(round) => self.handle_round(now, from, round, effects),
            Message::RoundReply { ballot, number, through } => {
                self.handle_round_reply(now, from, ballot, number, through, effects);
            }
            Message::RoundConflict(conflict) => self.handle_round_conflict(now, from, conflict),
            Message::Pull { ballot, hint, hint_ballot } => {
                self.handle_pull(from, ballot, Position { slot: hint, ballot: hint_ballot }, effects);
            }
            Message::VoteRound(round) => self.handle_vote_round(now, *round, effects),
            _ => debug_assert!(false, "{message:?} is no message of the gossip"),
        }
    }

    /// What a step ends with: a round if one is due, what this replica has learned since it passed the last one on, and
    /// answers to other replicas that wait for what it now has.
    pub(super) fn gossip(&mut self, now: Time, effects: &mut Effects) {
        self.begin_round(now, effects);
        self.echo(effects);
        self.serve_waiting(effects);
    }

    /// When this leader's next round is due.
    #[inline]
    pub(super) fn round_at(&self) -> Time {
        let State::Leader(leader) = &self.state else { return Time::NEVER };
        let Some(rounds) = &leader.rounds else { return Time::NEVER };
        let last = self.log.last();
        rounds.due(self.options.raft.replication, last, last > self.decided)
    }

    /// Begins to lead: the rounds of this leader, if it begins any, are numbered from 1 on.
    pub(super) fn begin_rounds(&mut self, now: Time, ballot: Ballot) -> Option<Rounds> {
        if self.any_may_commit() {
            self.begin_status(ballot, self.options.raft.status_merge);
        }
        self.gossips().then(|| Rounds::new(now, &self.options))
    }

    /// Begins a round as soon as one may begin, even an empty one.
    pub(super) fn want_round(&mut self) {
        if let State::Leader(leader) = &mut self.state
            && let Some(rounds) = &mut leader.rounds
        {
            rounds.want();
        }
    }
}
