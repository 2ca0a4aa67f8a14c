//! The rules of Sequence Paxos that are its own (Ng 2020, Algorithm 4, of which E-n in docs/errata.md are corrections).
//! Those that the whole family has are in `../rules.rs`: what a replica may answer, what a quorum is, through which slot a
//! sequence is chosen.

use synod_wire::{Ballot, Slot};

use super::{Extent, Record, follower::Phase};
use crate::rules::rules;

rules! {
    // Promising.

    /// A follower answers a `Prepare` of the ballot that it promised as well: the owner asks again, since something may
    /// be lost (acceptor line 2, E16).
    fn answers_prepare(promised: Ballot, ballot: Ballot) -> bool {
        ballot >= promised
    }

    /// A sequence may hold something chosen that another one lacks if it is of a higher ballot, or longer in the same
    /// (acceptor line 5, E15; absolute lengths: E22). So a promise tells it, and a candidate adopts the best of a quorum.
    fn is_better(one: Extent, other: Extent) -> bool {
        one.rank() > other.rank()
    }

    /// What a promise says to a candidate that has `asked`, and whether it tells elements: those of a better sequence. It
    /// names how far its sender knows decisions, not how far the candidate does (acceptor lines 5 and 6, E2).
    fn promises(has: Extent, asked: Extent) -> (Extent, bool) {
        (has, is_better(has, asked))
    }

    // Adopting.

    /// A leader adopts a sequence in its own ballot, whichever it was accepted in (leader box 1, lines 12 to 25, E1).
    fn adopted_in(own: Ballot, before: Ballot) -> Ballot {
        own.max(before)
    }

    /// One record changes the accepted ballot together with the sequence, which is held through `held` (E20).
    #[allow(unused_variables, reason = "a planted bug writes two records")]
    fn adoption(record: Record, held: Slot) -> Vec<Record> {
        vec![record]
    }

    /// A follower's sequence is a prefix of its leader's if it is of the leader's ballot, or of that of the adopted
    /// sequence and not longer (section 4.4.3, "Max AcceptSync"; E22).
    fn is_prefix(has: Extent, adopted: Extent, leads_in: Ballot) -> bool {
        has.accepted_in == leads_in || has.accepted_in == adopted.accepted_in && has.last <= adopted.last
    }

    // Accepting.

    /// How many elements of an `Accept` that begins with `first` are held already, `next` being the first slot that is
    /// not. One that leaves a gap is refused (E17).
    fn held_already(first: Slot, next: Slot) -> Option<u64> {
        next.0.checked_sub(first.0)
    }

    // Deciding.

    /// A follower holds what its leader announces if it accepts in that ballot: before the `AcceptSync`, or in an older
    /// ballot, it may hold another sequence (acceptor line 17, E18).
    fn holds_decision(phase: Phase, accepted_in: Ballot, announced_in: Ballot) -> bool {
        phase == Phase::Accept && accepted_in == announced_in
    }

    /// A follower is told of a decision once it was sent what that names (E21).
    fn may_hear(takes_accepts: bool, sent: Slot, through: Slot) -> bool {
        takes_accepts && sent >= through
    }

    /// What is learned from another replica is written down, if it was decided in a higher ballot than the accepted one,
    /// although the same value is held: a restart would take it for decided in the lower ballot.
    fn raises_ballot(decided_in: Ballot, accepted_in: Ballot) -> bool {
        decided_in > accepted_in
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::ReplicaId;

    use super::*;
    use crate::{
        Batches, Options,
        sequence_paxos::{Bug, planted},
    };

    fn with(bug: Bug) -> Rules {
        planted::rules(&Options { planted: Some(bug.into()), ..Options::default() })
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    fn extent(round: u64, last: u64) -> Extent {
        Extent { accepted_in: ballot(round), last: Slot(last), decided: Slot(0) }
    }

    fn extents() -> impl Iterator<Item = (u64, u64)> + Clone {
        (0..3).flat_map(|round| (0..4).map(move |last| (round, last)))
    }

    fn pairs() -> impl Iterator<Item = ((u64, u64), (u64, u64))> {
        extents().flat_map(|one| extents().map(move |other| (one, other)))
    }

    #[test]
    fn the_ballot_counts_first_and_then_the_length() {
        for (one, other) in pairs() {
            let better = one.0 > other.0 || one.0 == other.0 && one.1 > other.1;
            let (has, asked) =
                (extent(one.0, one.1), Extent { decided: Slot(3), ..extent(other.0, other.1) });
            assert_eq!(is_better(has, asked), better, "{one:?} {other:?}");
            assert_eq!(promises(has, asked), (has, better));
            assert_eq!(with(Bug::PromiseOnlyNewer).is_better(has, asked), one.0 > other.0);
            assert_eq!(with(Bug::PromiseOnlyNewer).promises(has, asked), (has, one.0 > other.0));
            assert_eq!(with(Bug::PromiseOthersDecided).promises(has, asked).0.decided, Slot(3));
        }
    }

    /// Three replicas, in all states that a history with these rules can leave: a slot that a quorum has accepted in one
    /// ballot is in every sequence of a higher one (I5). The best sequence of whichever quorum promises has it.
    #[test]
    fn the_best_of_a_quorum_has_what_was_chosen() {
        let quorums = [[0, 1], [0, 2], [1, 2]];
        let mut histories = 0;
        for states in extents().flat_map(|a| extents().flat_map(move |b| extents().map(move |c| [a, b, c]))) {
            for (round, slot) in (0..3).flat_map(|round| (1..4).map(move |slot| (round, slot))) {
                let accepted = |of: usize| states[of].0 == round && states[of].1 >= slot;
                let is_chosen = quorums.iter().any(|quorum| quorum.iter().all(|&of| accepted(of)));
                let stays = states.iter().all(|&(of_round, last)| of_round <= round || last >= slot);
                if !is_chosen || !stays {
                    continue;
                }
                histories += 1;
                for [one, other] in quorums.map(|quorum| quorum.map(|of| extent(states[of].0, states[of].1)))
                {
                    let best = if is_better(one, other) { one } else { other };
                    assert!(best.accepted_in >= ballot(round) && best.last >= Slot(slot), "{states:?}");
                }
            }
        }
        assert!(histories > 100, "{histories}");
    }

    /// The twin compares elements, each of which is of its ballot and place: a sequence of a ballot other than those of
    /// the leader and of what it adopted shares nothing with the leader's.
    #[test]
    fn a_prefix_is_one() {
        const OWN: u64 = 9;
        let sequence = |round: u64, last: u64| (0..last).map(move |place| (round, place)).collect::<Vec<_>>();
        let mut differs = false;
        for ((round, last), adopted) in pairs() {
            let mut leaders = sequence(adopted.0, adopted.1);
            leaders.extend(sequence(OWN, 2));
            let [has, adopted] = [extent(round, last), extent(adopted.0, adopted.1)];
            let is_one = leaders.starts_with(&sequence(round, last));
            if last > 0 {
                assert_eq!(is_prefix(has, adopted, ballot(OWN)), is_one, "{has:?} {adopted:?}");
            }
            assert!(is_prefix(extent(OWN, last), adopted, ballot(OWN)));
            differs |= with(Bug::KeepLongerSequence).is_prefix(has, adopted, ballot(OWN)) && !is_one;
        }
        assert!(differs, "the planted bug keeps what is none");
    }

    #[test]
    fn an_accept_continues_what_is_held_or_is_refused() {
        for (first, next) in (0..5).flat_map(|first| (0..5).map(move |next| (first, next))) {
            let held = (first..10).take_while(|slot| *slot < next).count() as u64;
            let expected = (first <= next).then_some(held);
            assert_eq!(held_already(Slot(first), Slot(next)), expected);
            assert_eq!(with(Bug::AcceptGap).held_already(Slot(first), Slot(next)), Some(0));
        }
    }

    #[test]
    fn a_decision_is_of_the_sequence_that_is_held() {
        for (own, other) in (0..3).flat_map(|own| (0..3).map(move |other| (ballot(own), ballot(other)))) {
            for phase in [Phase::Recover, Phase::Prepare, Phase::Accept] {
                let accepts = matches!(phase, Phase::Accept) && own == other;
                assert_eq!(holds_decision(phase, own, other), accepts);
                assert!(with(Bug::DecideInAnyPhase).holds_decision(phase, own, other));
            }
            assert_eq!(answers_prepare(own, other), own.round <= other.round);
            assert_eq!(with(Bug::RefusePrepareAgain).answers_prepare(own, other), own.round < other.round);
            assert_eq!(adopted_in(own, other).round, own.round.max(other.round));
            assert_eq!(with(Bug::AdoptWithoutBallot).adopted_in(own, other), other);
            assert_eq!(raises_ballot(own, other), own.round > other.round);
            assert!(!with(Bug::ForgetLearnedBallot).raises_ballot(own, other));
        }
        for (sent, through) in (0..3).flat_map(|sent| (0..3).map(move |through| (Slot(sent), Slot(through))))
        {
            assert_eq!(may_hear(true, sent, through), sent.0 >= through.0);
            assert!(
                !may_hear(false, sent, through) && with(Bug::DecideToUnsynced).may_hear(false, sent, through)
            );
        }
    }

    #[test]
    fn an_adoption_is_one_record() {
        let (first, decided, batches) = (Slot(1), Slot(0), Batches::default());
        let record =
            Record::Adopted { ballot: ballot(1), first, from: first, decided, covers: first, batches };
        assert_eq!(adoption(record.clone(), Slot(4)).as_slice(), std::slice::from_ref(&record));
        let torn = with(Bug::TornAdoption).adoption(record.clone(), Slot(4));
        assert_eq!(torn.len(), 2);
        assert!(matches!(torn[0], Record::Adopted { first: Slot(5), .. }) && torn[1] == record);
    }
}
