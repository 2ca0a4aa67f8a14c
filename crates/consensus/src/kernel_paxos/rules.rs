//! The rules of Kernel Paxos that are its own. Those that the whole family has are in `../rules.rs`, and those of the
//! acceptor, which the C has, in kernel/README.md. The sections and errata are those of Kernel Paxos 2019.

use synod_wire::{Ballot, Lsn, Slot};

use crate::rules::rules;

rules! {
    // Ballots.

    /// The first `PrepareAll` of a ballot leaves once the record of that ballot is durable (section 5.1, "before the
    /// first PREPARE of an incarnation"; E5): a later life then begins above it, so no ballot is used twice.
    fn prepares_after(record: Lsn) -> Lsn {
        record
    }

    // What was accepted.

    /// A slot has an accepted value if there is a ballot of it (E13). The value that fills a gap has no bytes.
    fn has_accepted(value_ballot: u64, _value_bytes: u16) -> bool {
        value_ballot > 0
    }

    /// A vote that is told again counts in the ballot of its value, whatever its acceptor has promised since (E12).
    fn counts_in(_promised: Ballot, value_ballot: Ballot) -> Ballot {
        value_ballot
    }

    // Taking over.

    /// A member that promised has told everything once it was asked about each slot through the last one that it was
    /// touched in, and none of the answers is missing (section 4.6, K13).
    fn has_told_all(missing: usize, next: Slot, touched: Slot) -> bool {
        missing == 0 && next > touched
    }

    // Bounds.

    /// A candidate that has delivered slots through `delivered` reads slots through this one, and so holds no more than
    /// a value for each. An acceptor has touched nothing beyond its ring, of twice `ahead_max` slots after what its
    /// replica has delivered; of a candidate that lagged and adopted more, the ring is so much larger. A candidate lags
    /// no more than `ahead_max` slots, so each of `members` that did so one after the other added no more than that.
    fn reads_through(delivered: Slot, ahead_max: u64, members: usize) -> Slot {
        Slot(delivered.0.saturating_add((members as u64 + 2).saturating_mul(ahead_max + 1)))
    }

    // Forgetting.

    /// An acceptor forgets what its replica has delivered, and nothing else; `touched` is the highest slot of which it
    /// knows anything (section 5.4, E11: a slot is used again only once it is trimmed).
    fn forgets_through(delivered: Slot, _touched: Slot) -> Slot {
        delivered
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::ReplicaId;

    use super::*;
    use crate::{
        Options,
        kernel_paxos::{Bug, planted},
    };

    fn with(bug: Bug) -> Rules {
        planted::rules(&Options { planted: Some(bug.into()), ..Options::default() })
    }

    fn ballots() -> impl Iterator<Item = Ballot> {
        (0..3).flat_map(|round| (1..=3).map(move |owner| Ballot { round, replica: ReplicaId(owner) }))
    }

    /// The twin asks which values a history has put there, and the planted bug takes the one of no bytes for none.
    #[test]
    fn a_value_without_bytes_is_a_value() {
        for (value_ballot, bytes) in (0..4).flat_map(|ballot| (0..4).map(move |bytes| (ballot, bytes))) {
            let history: Vec<u16> = if value_ballot == 0 { vec![] } else { vec![bytes] };
            assert_eq!(has_accepted(value_ballot, bytes), !history.is_empty());
            let by_length = with(Bug::EmptyIsNothing).has_accepted(value_ballot, bytes);
            assert_eq!(by_length, value_ballot > 0 && bytes > 0);
        }
        assert!(has_accepted(5, 0) && !with(Bug::EmptyIsNothing).has_accepted(5, 0));
    }

    /// Two acceptors that voted in different ballots are no quorum of one, though both promised the same since.
    #[test]
    fn votes_of_different_ballots_are_never_counted_together() {
        let mut together = 0;
        for promised in ballots() {
            for (one, other) in ballots().flat_map(|one| ballots().map(move |other| (one, other))) {
                let same = counts_in(promised, one) == counts_in(promised, other);
                assert_eq!(same, one == other);
                let bug = with(Bug::CountByPromise);
                let bugs = bug.counts_in(promised, one) == bug.counts_in(promised, other);
                together += u32::from(bugs && !same);
            }
        }
        assert!(together > 0, "the planted bug counts them together");
    }

    #[test]
    fn nothing_that_is_not_delivered_is_forgotten() {
        let slots = || (0..4).map(Slot);
        for (delivered, touched) in slots().flat_map(|one| slots().map(move |other| (one, other))) {
            let kept = slots().filter(|slot| *slot > forgets_through(delivered, touched));
            assert!(kept.eq(slots().filter(|slot| *slot > delivered)));
        }
        let forgets = with(Bug::ForgetUndelivered);
        assert_eq!(forgets.forgets_through(Slot(1), Slot(3)), Slot(3));
    }

    /// The twin looks for a slot that was touched and not told.
    #[test]
    fn a_member_has_told_all_when_every_touched_slot_is_told() {
        for (next, touched, bits) in (1..5).flat_map(|next| {
            (0..5).flat_map(move |touched| (0..1 << 4).map(move |bits| (next, touched, bits)))
        }) {
            let told = |slot: u64| slot < next && bits >> (slot - 1) & 1 == 1;
            let missing = (1..next).filter(|&slot| !told(slot)).count();
            let all = (1..next.max(touched + 1)).all(told);
            assert_eq!(has_told_all(missing, Slot(next), Slot(touched)), all, "{next} {touched} {bits:b}");
        }
        assert!(with(Bug::LeadBeforeRead).has_told_all(1, Slot(2), Slot(7)));
    }

    /// The twin lets replicas lag and adopt one after the other, as far as each may.
    #[test]
    fn a_candidate_reads_whatever_others_can_have_touched() {
        for (ahead_max, members) in [(64, 1), (64, 3), (100, 5), (260, 127)] {
            // A follower accepts so far ahead; each candidate lags behind the one before, and takes over all of it.
            let mut furthest = ahead_max;
            (1..members as u64).for_each(|_| furthest += ahead_max + 1);
            // What has room in a ring of that size may be prepared; and the last candidate lags behind its owner.
            let touched = furthest.max(2 * ahead_max) + ahead_max + 1;
            let read = reads_through(Slot(7), ahead_max, members);
            assert!(
                Slot(7 + touched) <= read && read <= Slot(7 + 2 * touched),
                "{ahead_max} {members}: {read}"
            );
        }
        assert_eq!(reads_through(Slot(u64::MAX - 1), 64, 3), Slot(u64::MAX));
    }

    #[test]
    fn a_ballot_is_written_down_before_it_is_used() {
        assert!((0..4).map(Lsn).all(|record| prepares_after(record) == record));
        assert_eq!(with(Bug::PrepareBeforeDurable).prepares_after(Lsn(3)), Lsn::ZERO);
    }
}
