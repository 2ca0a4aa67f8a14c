//! What messages claim and what records remember, in terms that checks understand.
//!
//! A check of the simulator knows ballots, promises and votes, or terms and logs; it does not know any
//! protocol. Each protocol implements two traits in its folder that say what its own messages and records
//! mean in these terms. A protocol whose ballots are chosen slot by slot, or sequence by sequence, uses
//! [`Claim`]s and [`Fact`]s; one that has terms and logs uses [`TermClaim`]s and [`TermFact`]s.

use synod_wire::{Ballot, Batch, Incarnation, ReplicaId, Slot};

use crate::{Batches, acceptor::AcceptedValue, raft::Entries};

/// What a message claims. A check does not expect a protocol to keep what it does not claim.
pub trait Claims {
    /// Claims about promises, proposals and votes.
    fn claims(&self) -> Vec<Claim<'_>> {
        Vec::new()
    }

    /// The same, of the replica that sends it: a message that goes from replica to replica claims the vote of the one
    /// that sends it on, and a proposal only where its owner sends it.
    fn claims_of(&self, _sender: ReplicaId) -> Vec<Claim<'_>> {
        self.claims()
    }

    /// The ring along which the message goes, for a protocol that has one.
    fn ring_path(&self) -> Option<RingPath<'_>> {
        None
    }

    /// The ballot of a candidate or leader that asks what was accepted in a range of slots, and the last of these.
    fn range_asked(&self) -> Option<(Ballot, Slot)> {
        None
    }

    /// Which letter of a round the message is, for a protocol in rounds.
    fn letter(&self) -> Option<Letter> {
        None
    }

    /// Claims about terms and logs.
    fn term_claims(&self) -> Vec<TermClaim<'_>> {
        Vec::new()
    }

    /// The same, of the replica that sends it: a message that goes from replica to replica claims only of its maker
    /// that it leads.
    fn term_claims_of(&self, _sender: ReplicaId) -> Vec<TermClaim<'_>> {
        self.term_claims()
    }

    /// Claims about what replicas remember, for a protocol in which a replica that lost its log may vote
    /// again in the same epoch.
    fn recovery(&self) -> Option<Recovery> {
        None
    }

    /// The page of a promise that the message is, for a protocol whose promises come in pages.
    fn promise_page(&self) -> Option<PromisePage> {
        None
    }

    /// The ballot of a candidate that the message answers, with a promise or a vote, whether given or refused.
    fn answers(&self, candidate: ReplicaId) -> Option<Ballot> {
        self.promise_page().map(|page| page.ballot).filter(|ballot| ballot.replica == candidate)
    }
}

/// A field of a message as a claim has it, for the code that [`crate::messages!`] writes.
#[doc(hidden)]
pub trait Claimed<'a> {
    /// Its type in the claim.
    type As;

    /// The field in the claim.
    fn claimed(&'a self) -> Self::As;
}

impl Claimed<'_> for Ballot {
    type As = Ballot;

    fn claimed(&self) -> Ballot {
        *self
    }
}

impl Claimed<'_> for Slot {
    type As = Slot;

    fn claimed(&self) -> Slot {
        *self
    }
}

impl<'a> Claimed<'a> for Batch {
    type As = &'a Batch;

    fn claimed(&'a self) -> &'a Batch {
        self
    }
}

/// The ring of a message that goes from replica to replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPath<'a> {
    /// The ballot of the leader that chose it.
    pub ballot: Ballot,
    /// Its number among those of that ballot; 0 if it goes past the ring, to one replica and back, or as a probe.
    pub number: u64,
    /// The replicas that it passes, the leader first.
    pub order: &'a [ReplicaId],
    /// If it carries votes, the places in the order of those that voted.
    pub votes: Option<crate::ring::Votes>,
}

/// A letter of a round. In a round a replica says one thing, in all its lives, and its estimate goes to one replica of
/// a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The phase. The promise of a ballot of that phase, or of a later one, is durable.
    pub phase: u64,
    /// The place of the round in its phase, from 1.
    pub place: u8,
    /// If it has an estimate, the coordinator for which that is.
    pub estimates_to: Option<ReplicaId>,
}

/// What a record remembers.
pub trait Facts {
    /// What it remembers of promises and votes.
    fn fact(&self) -> Fact {
        Fact::Nothing
    }

    /// What it remembers of terms and logs.
    fn term_fact(&self) -> TermFact {
        TermFact::Nothing
    }

    /// What it says about what replicas remember, for a protocol in which a replica that lost its log may
    /// vote again in the same epoch.
    fn recollection(&self) -> Option<Recollection> {
        None
    }
}

/// What a message claims about ballots.
#[derive(Clone, Debug)]
pub enum Claim<'a> {
    /// The sender asks to lead.
    Candidate(Ballot),
    /// The sender will not follow lower ballots. Of the slots from `from` on and before `next`, except those
    /// through `decided`, it has accepted nothing but `accepted`.
    Promise {
        /// The promised ballot.
        ballot: Ballot,
        /// The first slot that the promise speaks of.
        from: Slot,
        /// Slots through this one are decided.
        decided: Slot,
        /// The first slot that the promise does not speak of any more; `None` if it speaks of all.
        next: Option<Slot>,
        /// What the sender accepted: each slot with the ballot and the batch.
        accepted: Vec<(Slot, Ballot, &'a Batch)>,
    },
    /// The sender will not follow lower ballots, and has accepted no sequence of a higher rank than this one.
    PromiseSequence {
        /// The promised ballot.
        ballot: Ballot,
        /// What the sender has.
        has: Extent,
    },
    /// The sender leads, and proposes.
    Propose {
        /// The ballot of the proposal.
        ballot: Ballot,
        /// The slot of the proposal.
        slot: Slot,
        /// The proposed batch.
        batch: &'a Batch,
        /// Slots through this one are decided.
        decided: Slot,
    },
    /// The sender has accepted the proposal.
    Vote {
        /// The ballot of the proposal.
        ballot: Ballot,
        /// The slot of the proposal.
        slot: Slot,
    },
    /// The sender accepted a batch in a ballot, whatever it has promised since: a vote that is told again, or the
    /// decision that the sender learned in its place.
    Told {
        /// What the sender has promised since.
        promised: Ballot,
        /// The ballot of the proposal.
        ballot: Ballot,
        /// The slot of the proposal.
        slot: Slot,
        /// What was proposed.
        batch: &'a Batch,
    },
    /// In a round in which there is no proposal, and each member says what it would have decided: the sender's
    /// estimate, which it accepted in this ballot, and has kept since.
    Estimate {
        /// The ballot of the round, which the sender has promised.
        promised: Ballot,
        /// The ballot in which the sender accepted it.
        ballot: Ballot,
        /// The slot.
        slot: Slot,
        /// What the sender accepted.
        batch: &'a Batch,
    },
    /// The sender has accepted what was proposed in all slots through `last`.
    VoteThrough {
        /// The ballot of the proposals.
        ballot: Ballot,
        /// The last slot.
        last: Slot,
    },
    /// The sender leads, and knows the slots through `decided` to be decided.
    Leads {
        /// The ballot in which it leads.
        ballot: Ballot,
        /// The last of the decided slots.
        decided: Slot,
    },
    /// These slots are decided, with what was proposed in the ballot. The sender may be any replica.
    Decided {
        /// The ballot of the proposals.
        ballot: Ballot,
        /// The first of the slots.
        first: Slot,
        /// The last of the slots.
        last: Slot,
    },
}

impl Claim<'_> {
    /// The promise of an acceptor that tells of these values.
    pub(crate) fn promise(
        ballot: Ballot,
        from: Slot,
        decided: Slot,
        next: Option<Slot>,
        accepted: &[AcceptedValue],
    ) -> Claim<'_> {
        let accepted = accepted.iter().map(|value| (value.slot, value.ballot, &value.batch)).collect();
        Claim::Promise { ballot, from, decided, next, accepted }
    }

    /// The claims of a leader that proposes these batches in consecutive slots.
    pub fn proposals(ballot: Ballot, from: Slot, decided: Slot, batches: &Batches) -> Vec<Claim<'_>> {
        let proposal = |(slot, batch)| Claim::Propose { ballot, slot, batch, decided };
        let mut claims = vec![Claim::Leads { ballot, decided }];
        claims.extend((from.0..).map(Slot).zip(batches.iter()).map(proposal));
        claims
    }
}

/// A summary of the sequence that a replica has accepted (Ng 2020: n_a, |v_a| and l_d).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The ballot of the sequence that it accepted last.
    pub accepted_in: Ballot,
    /// The last slot of that sequence.
    pub last: Slot,
    /// The last slot that it knows to be decided.
    pub decided: Slot,
}

impl Extent {
    /// The rank of the sequence: of the replicas that promised, the one with the highest rank has everything
    /// that can have been chosen.
    #[must_use]
    pub fn rank(&self) -> (Ballot, Slot) {
        (self.accepted_in, self.last)
    }
}

/// What a record remembers about ballots.
#[derive(Clone, Debug)]
pub enum Fact {
    /// The replica follows no lower ballot.
    Promised(Ballot),
    /// These proposals were accepted, in `first` and the slots after it.
    Accepted {
        /// The ballot of the proposals.
        ballot: Ballot,
        /// The slot of the first batch.
        first: Slot,
        /// The accepted batches.
        batches: Batches,
    },
    /// A peer told that this was decided.
    Learned {
        /// The decided slot.
        slot: Slot,
        /// The decided batch.
        batch: Batch,
    },
    /// The accepted sequence goes on.
    Extended {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// The slot of the first of these batches; nothing else is held after them.
        first: Slot,
        /// The batches.
        batches: Batches,
    },
    /// Elements that may become a part of the accepted sequence.
    Staged {
        /// The ballot of that sequence.
        ballot: Ballot,
        /// The same as in `Adopted`.
        first: Slot,
        /// The slot of the first of these batches.
        from: Slot,
        /// The batches.
        batches: Batches,
    },
    /// What is held before `first`, then the staged elements up to `from`, then these batches are accepted in
    /// this ballot.
    Adopted {
        /// The ballot of the sequence from now on.
        ballot: Ballot,
        /// The first slot whose content is replaced; what is held before it stays.
        first: Slot,
        /// The slot of the first of `batches`.
        from: Slot,
        /// Slots through this one are decided.
        decided: Slot,
        /// The batches.
        batches: Batches,
    },
    /// The record remembers nothing that is checked.
    Nothing,
}

/// What a message claims about terms. A term has at most one leader, so a term with its leader is a ballot.
#[derive(Clone, Debug)]
pub enum TermClaim<'a> {
    /// The sender asks for votes, and has voted for itself.
    Candidate {
        /// The term of the election.
        term: u64,
    },
    /// The sender gives its vote to the receiver.
    Grants {
        /// The term of the election.
        term: u64,
    },
    /// The sender gives its vote to a replica, which may be another than the receiver, or the sender itself.
    Votes {
        /// The term of the election.
        term: u64,
        /// The replica.
        candidate: ReplicaId,
    },
    /// The sender leads, and knows the slots through `commit` to be committed.
    Leads {
        /// The leader's term.
        ballot: Ballot,
        /// The last of the committed slots.
        commit: Slot,
    },
    /// The sender's log has this entry.
    Entry {
        /// The slot of the entry.
        slot: Slot,
        /// The term in which it was proposed.
        ballot: Ballot,
        /// The term of the entry before it.
        before: Ballot,
        /// The batch of the entry.
        batch: &'a Batch,
    },
    /// The sender's log equals the leader's through a slot.
    Acknowledges {
        /// The leader's term.
        ballot: Ballot,
        /// The slot.
        through: Slot,
    },
    /// A replica, which may be another than the sender, had durably the log of a term's leader through a slot, with an
    /// entry of that term there or after it.
    Held {
        /// The leader's term.
        ballot: Ballot,
        /// The replica.
        by: ReplicaId,
        /// The slot.
        through: Slot,
    },
    /// Slots through this one are committed, in no higher term.
    Committed {
        /// The term in which the sender says so.
        ballot: Ballot,
        /// The slot.
        through: Slot,
    },
}

/// What a record remembers about terms.
#[derive(Clone, Debug)]
pub enum TermFact {
    /// The current term, and the replica that this one voted for in it.
    Term {
        /// The term: messages of a lower one are not obeyed.
        term: u64,
        /// The replica that this one voted for; `None` if it has not voted yet.
        voted_for: Option<ReplicaId>,
    },
    /// Entries replaced everything from a slot on.
    Entries {
        /// The slot of the first entry.
        first: Slot,
        /// The entries.
        entries: Entries,
        /// Slots through this one are decided. If no entry is after it, a peer told these entries.
        decided: Slot,
    },
    /// The entries from a slot on were removed.
    Truncated {
        /// The first slot whose entry was removed.
        from: Slot,
    },
    /// Records before this one were lost: what the log holds may have been replaced by them.
    Lost,
    /// The record remembers nothing that is checked.
    Nothing,
}

/// What a record says about what replicas remember.
#[derive(Clone, Debug)]
pub enum Recollection {
    /// The replica follows no lower ballot.
    Promised(Ballot),
    /// The latest lives of other replicas that the replica knows of.
    Lives(Vec<(ReplicaId, Incarnation)>),
    /// Whether the replica knows all that it may have promised and accepted.
    Whole(bool),
}

/// What a message means for a replica that lost its log and wants to vote again, and for a candidate that
/// must not count what such a replica has forgotten.
#[derive(Clone, Copy, Debug)]
pub enum Recovery {
    /// A candidate asks about the slots from `first` on.
    PageWanted {
        /// The first slot that it asks about.
        first: Slot,
    },
    /// A life promises, and tells of the slots from `first` on, and before `next` if there are more.
    Page {
        /// The promised ballot.
        ballot: Ballot,
        /// The first slot of the page.
        first: Slot,
        /// The slot with which the next page begins; `None` if this is the last page.
        next: Option<Slot>,
        /// The life of the sender.
        life: Incarnation,
    },
    /// A replica that lost its log asks others what it must know.
    Asks,
    /// The sender answers such a question.
    Answers {
        /// The life that asked.
        asker: Incarnation,
        /// The life that answers.
        life: Incarnation,
    },
}

/// A page of a promise.
#[derive(Clone, Copy, Debug)]
pub struct PromisePage {
    /// The promised ballot.
    pub ballot: Ballot,
    /// The slot from which on the candidate asked.
    pub first: Slot,
    /// The last slot that the sender has delivered, and so need not hold any more.
    pub delivered: Slot,
    /// Whether other pages follow.
    pub more: bool,
}
