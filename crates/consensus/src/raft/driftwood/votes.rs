//! Votes by gossip (Driftwood 2023, section 6.2): a candidate asks a few voters, and each replica that knows of more
//! votes than before passes them on. So a candidate needs no link to a majority.

use synod_wire::{ReplicaId, Time};

use super::{VoteRound, gossip::fan_out_of};
use crate::{
    Effects,
    raft::{Message, Raft, State, election::Candidate},
};

/// To at least this many replicas each passes on votes: elections are rare, and a round of votes is not repeated as
/// others are.
const VOTE_FAN_OUT_MIN: usize = 6;

impl Raft {
    /// Asks a few voters, which pass the question on with their votes (Driftwood 2023, section 6.2): so those hear it
    /// that this replica does not reach.
    pub(in crate::raft) fn ask_by_gossip(&mut self, effects: &mut Effects) {
        let (last, last_ballot) = (self.log.last(), self.log.last_ballot());
        let me = self.members.me();
        let State::Candidate(candidate) = &mut self.state else { return };
        // Answers to what an earlier life, or an earlier campaign, asked in this term are not mixed with these.
        self.gossip.attempts += 1;
        candidate.attempt = self.gossip.attempts;
        let &mut Candidate { term, rehearsal, transfer, attempt, .. } = candidate;
        let granted = vec![me];
        let round =
            VoteRound { candidate: me, term, attempt, rehearsal, transfer, last, last_ballot, granted };
        self.pass_votes_on(round, effects);
    }

    fn pass_votes_on(&mut self, round: VoteRound, effects: &mut Effects) {
        let (me, candidate) = (self.members.me(), round.candidate);
        let others = self.others();
        let fan_out = fan_out_of(&self.options, others.len() + 1).max(VOTE_FAN_OUT_MIN);
        let others = self.gossip.within_reach(others);
        let mut targets = self.gossip.targets(&others, fan_out, Some(candidate));
        targets.extend(Some(candidate).filter(|&id| id != me));
        effects.send_each(targets, Message::VoteRound(Box::new(round)), self.vote_lsn());
    }

    /// Takes in a candidate's question with the votes that others have given, adds this replica's own, and passes that
    /// on if it knows of more votes than before.
    pub(super) fn handle_vote_round(&mut self, now: Time, round: VoteRound, effects: &mut Effects) {
        let VoteRound { candidate, term, attempt, rehearsal, transfer, last, last_ballot, ref granted } =
            round;
        let me = self.members.me();
        if candidate == me {
            for &from in granted.iter().filter(|&&from| from != me) {
                // A real vote counts for the whole term, in which this replica stands for election once.
                if matches!(&self.state, State::Candidate(mine) if !rehearsal || mine.attempt == attempt) {
                    self.handle_vote_reply(now, from, term, rehearsal, true, effects);
                }
            }
            return;
        }
        if term < self.term {
            return effects.send(candidate, Message::Stale { term: self.term }, self.term_lsn);
        }
        let question = Message::Vote { term, rehearsal, transfer, last, last_ballot };
        let votes =
            self.voters().contains(me) && self.decide_vote(now, candidate, &question, effects) == Some(true);
        // Replicas that pass a round on name voters by their ids alone. So a replica adds itself only as a voter of a
        // change that is decided, of which there is one for each id; as one of a change that may be lost it tells the
        // candidate itself, which knows from which data directory it hears that.
        let settled = self.log.configuration_at(self.decided).voters.contains(me);
        if votes && !settled {
            let reply = Message::VoteReply { term, rehearsal, granted: true };
            effects.send(candidate, reply, self.vote_lsn());
        }
        let votes = votes && settled;
        let known = self.gossip.votes.get(&candidate).filter(|known| known.term >= term);
        // A real question is the last one of its term, and what it has gathered stays true: votes are not taken back.
        let is_late = |known: &VoteRound| {
            known.term > term || rehearsal && (!known.rehearsal || known.attempt > attempt)
        };
        if known.is_some_and(is_late) {
            return;
        }
        let goes_on =
            |known: &&VoteRound| known.rehearsal == rehearsal && (!rehearsal || known.attempt == attempt);
        let known = known.filter(goes_on).cloned();
        let before = known.as_ref().map_or(Vec::new(), |known| known.granted.clone());
        let asks_again = known.as_ref().is_none_or(|known| attempt > known.attempt);
        let mut all: Vec<ReplicaId> = before.iter().chain(granted).copied().collect();
        all.extend(votes.then_some(me));
        all.retain(|id| *id == candidate || *id == me || self.voters().contains(*id));
        all.sort_unstable();
        all.dedup();
        if all.len() > before.len() || asks_again {
            let latest = known.filter(|_| !asks_again).unwrap_or(round);
            let round = VoteRound { granted: all, ..latest };
            self.gossip.votes.insert(candidate, round.clone());
            self.pass_votes_on(round, effects);
        }
    }
}
