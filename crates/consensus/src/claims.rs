//! What messages claim and what records remember, in words that checks understand.
//!
//! A check of the simulator knows ballots, promises and votes, or terms and logs; it knows no protocol. Each protocol says
//! here, by two traits that its folder implements, what its own messages and records mean in these words. One that has
//! ballots which are chosen slot by slot, or sequence by sequence, speaks in [`Claim`]s and [`Fact`]s; one that has terms
//! and logs in [`TermClaim`]s and [`TermFact`]s.

use synod_wire::{Ballot, Batch, Incarnation, ReplicaId, Slot};

use crate::{Batches, raft::Entries};

/// What a message claims. Whatever a protocol does not say, it is not held to.
pub trait Claims {
    /// Of promises, proposals and votes.
    fn claims(&self) -> Vec<Claim<'_>> {
        Vec::new()
    }

    /// Of terms and logs.
    fn term_claims(&self) -> Vec<TermClaim<'_>> {
        Vec::new()
    }

    /// Of who remembers what, with a protocol that lets a replica without its log vote again in the same epoch.
    fn recovery(&self) -> Option<Recovery> {
        None
    }

    /// The page of a promise that the message is, with a protocol whose promises come in pages.
    fn promise_page(&self) -> Option<PromisePage> {
        None
    }

    /// The ballot of a candidate that the message answers, with a promise or a vote, be it given or refused.
    fn answers(&self, candidate: ReplicaId) -> Option<Ballot> {
        self.promise_page().map(|page| page.ballot).filter(|ballot| ballot.replica == candidate)
    }
}

/// What a record remembers.
pub trait Facts {
    /// Of promises and votes.
    fn fact(&self) -> Fact {
        Fact::Nothing
    }

    /// Of terms and logs.
    fn term_fact(&self) -> TermFact {
        TermFact::Nothing
    }

    /// Of who remembers what, with a protocol that lets a replica without its log vote again in the same epoch.
    fn recollection(&self) -> Option<Recollection> {
        None
    }
}

/// What a message claims about ballots.
#[derive(Clone, Debug)]
pub enum Claim<'a> {
    /// The sender asks to lead.
    Candidate(Ballot),
    /// The sender will not follow lower ballots, and has accepted nothing but `accepted` in the slots from `from`
    /// on and before `next`, apart from those through `decided`.
    Promise {
        /// What is promised.
        ballot: Ballot,
        /// The first slot that it speaks of.
        from: Slot,
        /// Slots through this one are decided.
        decided: Slot,
        /// The first slot that it does not speak of any more; `None` if it speaks of all.
        next: Option<Slot>,
        /// What was accepted, and in which ballot.
        accepted: Vec<(Slot, Ballot, &'a Batch)>,
    },
    /// The sender will not follow lower ballots, and has accepted no sequence of a higher rank than this one.
    PromiseSequence {
        /// What is promised.
        ballot: Ballot,
        /// What the sender has.
        has: Extent,
    },
    /// The sender leads, and proposes.
    Propose {
        /// In which ballot.
        ballot: Ballot,
        /// Where.
        slot: Slot,
        /// What.
        batch: &'a Batch,
        /// Slots through this one are decided.
        decided: Slot,
    },
    /// The sender has accepted the proposal.
    Vote {
        /// Of this ballot.
        ballot: Ballot,
        /// Where.
        slot: Slot,
    },
    /// The sender has accepted what was proposed in all slots through `last`.
    VoteThrough {
        /// In this ballot.
        ballot: Ballot,
        /// The last slot.
        last: Slot,
    },
    /// The sender leads, and knows the slots through `decided` to be decided.
    Leads {
        /// In which ballot.
        ballot: Ballot,
        /// The last of the decided slots.
        decided: Slot,
    },
}

impl Claim<'_> {
    /// The sender leads, and proposes these batches in consecutive slots.
    pub fn proposals(ballot: Ballot, from: Slot, decided: Slot, batches: &Batches) -> Vec<Claim<'_>> {
        let proposal = |(slot, batch)| Claim::Propose { ballot, slot, batch, decided };
        let mut claims = vec![Claim::Leads { ballot, decided }];
        claims.extend((from.0..).map(Slot).zip(batches.iter()).map(proposal));
        claims
    }
}

/// What a replica has accepted of a sequence, in short (Ng 2020: n_a, |v_a| and l_d).
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
    /// Among those that promised, the one with the highest rank has everything that can have been chosen.
    #[must_use]
    pub fn rank(&self) -> (Ballot, Slot) {
        (self.accepted_in, self.last)
    }
}

/// What a record remembers about ballots.
#[derive(Clone, Debug)]
pub enum Fact {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// These proposals were accepted, in `first` and the slots behind it.
    Accepted {
        /// In which ballot.
        ballot: Ballot,
        /// The slot of the first.
        first: Slot,
        /// What.
        batches: Batches,
    },
    /// A peer told that this was decided.
    Learned {
        /// Where.
        slot: Slot,
        /// What.
        batch: Batch,
    },
    /// The accepted sequence goes on.
    Extended {
        /// The ballot of the sequence.
        ballot: Ballot,
        /// The slot of the first of these; behind it nothing else is held.
        start: Slot,
        /// What.
        batches: Batches,
    },
    /// Elements that may become a part of the accepted sequence.
    Staged {
        /// The ballot of that sequence.
        ballot: Ballot,
        /// As in `Adopted`.
        start: Slot,
        /// The slot of the first of these.
        from: Slot,
        /// What.
        batches: Batches,
    },
    /// What is held before `start`, then staged elements through `from`, then these, are accepted in this ballot.
    Adopted {
        /// The ballot of the sequence from now on.
        ballot: Ballot,
        /// What is held before it stays.
        start: Slot,
        /// The slot of the first of `batches`.
        from: Slot,
        /// Slots through this one are decided.
        decided: Slot,
        /// What.
        batches: Batches,
    },
    /// Nothing that is checked.
    Nothing,
}

/// What a message claims about terms. A term has one leader at most, so a term with its leader is a ballot.
#[derive(Clone, Debug)]
pub enum TermClaim<'a> {
    /// The sender asks for votes, and has given itself its own.
    Candidate {
        /// In this term.
        term: u64,
    },
    /// The sender gives its vote to the receiver.
    Grants {
        /// In this term.
        term: u64,
    },
    /// The sender leads, and knows the slots through `commit` to be committed.
    Leads {
        /// In which term.
        ballot: Ballot,
        /// The last of the committed slots.
        commit: Slot,
    },
    /// The sender's log has this entry.
    Entry {
        /// Where.
        slot: Slot,
        /// The term in which it was proposed.
        ballot: Ballot,
        /// The term of the entry in front of it.
        before: Ballot,
        /// What.
        batch: &'a Batch,
    },
    /// The sender's log equals the leader's through a slot.
    Acknowledges {
        /// The leader's term.
        ballot: Ballot,
        /// The slot.
        through: Slot,
    },
}

/// What a record remembers about terms.
#[derive(Clone, Debug)]
pub enum TermFact {
    /// The current term, and who got this replica's vote in it.
    Term {
        /// No message of a lower one is obeyed.
        term: u64,
        /// Nobody yet if it is absent.
        voted_for: Option<ReplicaId>,
    },
    /// Entries took the place of all from a slot on.
    Entries {
        /// The slot of the first.
        start: Slot,
        /// What.
        entries: Entries,
        /// Slots through this one are decided; if none is behind it, a peer told these entries.
        decided: Slot,
    },
    /// The entries from a slot on were removed.
    Truncated {
        /// The slot.
        from: Slot,
    },
    /// Records before this one were lost: what the log holds may have been replaced by them.
    Lost,
    /// Nothing that is checked.
    Nothing,
}

/// What a record says about who remembers what.
#[derive(Clone, Debug)]
pub enum Recollection {
    /// No lower ballot is followed.
    Promised(Ballot),
    /// The latest lives of others that the replica knows of.
    Lives(Vec<(ReplicaId, Incarnation)>),
    /// Whether the replica knows all that it may have promised and accepted.
    Whole(bool),
}

/// What a message is to a replica that lost its log and wants to vote again, and to a candidate that must not count what
/// such a replica has forgotten.
#[derive(Clone, Copy, Debug)]
pub enum Recovery {
    /// A candidate wants to hear about the slots from `first` on.
    PageWanted {
        /// The slot.
        first: Slot,
    },
    /// A life promises, and tells of the slots from `first` on, and before `next` if there is more.
    Page {
        /// What is promised.
        ballot: Ballot,
        /// The first slot.
        first: Slot,
        /// Where the next page begins.
        next: Option<Slot>,
        /// The life of the sender.
        life: Incarnation,
    },
    /// A replica that lost its log asks others what it must know.
    Asks,
    /// The answer.
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
    /// What is promised.
    pub ballot: Ballot,
    /// The slot from which on it was asked for.
    pub first: Slot,
    /// What its sender has delivered, and need not hold any more.
    pub delivered: Slot,
    /// Whether other pages follow.
    pub more: bool,
}
