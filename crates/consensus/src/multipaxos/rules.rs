//! The rules of MultiPaxos that are its own. Those that the whole family has are in `../rules.rs`: what a replica may
//! answer, what a quorum is, which value a new leader adopts, what an announcement decides.

use synod_wire::{Ballots, Batch, Incarnation, ReplicaId, Slot};

use crate::{acceptor::Acceptor, rules::rules};

rules! {
    // Lives. Santos 2012 leaves recovery open; the steps are those of docs/recovery-without-a-log.md.

    /// The pages of a promise are of one life: a later life of a member may have forgotten what the pages of an earlier
    /// one told, so its promise begins again ("What the argument needs of the code").
    fn begins_again(begun_in: Incarnation, now_in: Incarnation) -> bool {
        now_in > begun_in
    }

    /// A replica that recovers records the life in which a member speaks to it (step 2).
    fn life_heard(from: ReplicaId, life: Incarnation) -> Option<(ReplicaId, Incarnation)> {
        Some((from, life))
    }

    /// What a member answered in a life before the latest that is known does not count (step 2: "dropped").
    fn is_outlived(answered_in: Incarnation, latest: Incarnation) -> bool {
        answered_in < latest
    }

    // Delivering.

    /// Decided slots are delivered in order, without gaps (Santos 2012, section 7.2.1: "strictly in instance order").
    fn next_delivered(acceptor: &mut Acceptor) -> Option<(Slot, Ballots, Batch)> {
        acceptor.deliver()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Options,
        multipaxos::{Bug, planted},
    };

    #[test]
    fn of_two_lives_the_later_one_counts() {
        let lives = || (0..4).map(Incarnation);
        for (one, other) in lives().flat_map(|one| lives().map(move |other| (one, other))) {
            assert_eq!(
                (begins_again(one, other), is_outlived(one, other)),
                (one.0 < other.0, one.0 < other.0)
            );
            assert_eq!(life_heard(ReplicaId(2), one), Some((ReplicaId(2), one)));
        }
    }

    /// A planted bug that changed nothing would never be found.
    #[test]
    fn a_planted_bug_replaces_its_rule() {
        let with = |bug: Bug| planted::rules(&Options { planted: Some(bug.into()), ..Options::default() });
        let (old, new) = (Incarnation(1), Incarnation(2));
        assert!(!with(Bug::MixLivesOfPromise).begins_again(old, new) && begins_again(old, new));
        let forgets = with(Bug::CountOutlivedAnswer);
        assert!(!forgets.is_outlived(old, new) && forgets.life_heard(ReplicaId(2), new).is_none());
        let (ballot, batches) = (synod_wire::Ballot::ZERO, [Batch::noop(), Batch::noop()]);
        let mut acceptor = Acceptor::new(Slot::ZERO);
        acceptor.accept(ballot, Slot(1), &batches.into(), synod_wire::Lsn(1));
        acceptor.decide_run(Slot(2), Slot(2), |_| true);
        assert!(next_delivered(&mut acceptor).is_none(), "slot 1 is not decided");
        assert!(with(Bug::DeliverOutOfOrder).next_delivered(&mut acceptor).is_some());
    }
}
