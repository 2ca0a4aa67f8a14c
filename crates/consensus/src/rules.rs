//! The rules of the Paxos family: each is a pure function of plain data, with its place in the documents. What
//! protocols of the family share is here; each protocol's folder has a `rules.rs` for its own.
//!
//! A planted bug replaces one of these functions in a replica's table of rules ([`Rules`]; `planted.rs`). So the text
//! of a protocol names a rule, and has no second way through it.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot};

use crate::{Members, ReplicaSet, VoterSets};

/// Writes rules as functions, and a table of them in which a planted bug replaces one.
macro_rules! rules {
    ($($(#[$doc:meta])* fn $rule:ident($($name:ident: $type:ty),+ $(,)?) -> $result:ty $body:block)+) => {
        $($(#[$doc])* pub(crate) fn $rule($($name: $type),+) -> $result $body)+

        /// The rules that a replica follows: those of this file, unless a bug is planted.
        pub(crate) struct Rules {
            $(pub(crate) $rule: fn($($type),+) -> $result,)+
        }

        impl Rules {
            /// The rules of this file.
            pub(crate) const SOUND: Rules = Rules { $($rule,)+ };

            $($(#[$doc])* #[inline] pub(crate) fn $rule(&self, $($name: $type),+) -> $result {
                (self.$rule)($($name),+)
            })+
        }
    };
}
pub(crate) use rules;

rules! {
    // Promising.

    /// A replica answers a ballot that is no lower than the one that it promised, and refuses a lower one (Santos 2012,
    /// section 7.1.2, PHASE1B and PHASE2B: "only if no number > k seen"; Ng 2020, Algorithm 4, acceptor line 2, with
    /// E16 of docs/errata.md: the owner of the promised ballot may ask again).
    fn may_obey(promised: Ballot, ballot: Ballot) -> bool {
        ballot >= promised
    }

    /// A promise outlives a restart (Ng 2020, section 2.4.2, with E19; Benz 2013, section 3.1.3, with ERR-4). Records
    /// are read in their order, and may be of lower ballots than what is known.
    fn promised_before(known: Ballot, recorded: Ballot) -> Ballot {
        known.max(recorded)
    }

    /// A replica that lost records must not vote: it may have forgotten a promise or a vote (Santos 2012 leaves
    /// recovery open; docs/recovery-without-a-log.md).
    fn may_vote(lost_records: bool) -> bool {
        !lost_records
    }

    /// A promise or a vote leaves once the record that holds it is durable (Ng 2020, section 2.4.2, with P1, P3 and P4
    /// of docs/errata.md; Benz 2013, section 3.1.3, with ERR-1).
    fn leaves_after(record: Lsn) -> Lsn {
        record
    }

    // Quorums.

    /// A candidate may propose once a majority of the members has promised, or a majority of both groups while they
    /// change (Santos 2012, Algorithm 4.1, round 4φ-3: "received > n/2"; Ng 2020, Algorithm 4, leader box 1, lines 9 to
    /// 11, with E12).
    fn is_promised(members: &Members, by: ReplicaSet) -> bool {
        members.is_quorum(by)
    }

    /// A value is chosen once as many accepted it in one ballot (Santos 2012, Algorithm 4.1, round 4φ-1: "#<ack>
    /// received > n/2"; Benz 2013, section 2.3, with ERR-19).
    fn is_chosen(members: &Members, by: ReplicaSet) -> bool {
        members.is_quorum(by)
    }

    /// A sequence is chosen through the last slot that a quorum has accepted (Ng 2020, Algorithm 4, leader box 2:
    /// `|{r : las[r] >= l}| >= majority`).
    fn chosen_through(voters: &VoterSets, accepted: &dyn Fn(ReplicaId) -> u64) -> u64 {
        voters.quorum_value(accepted)
    }

    // The value to adopt.

    /// Of what the members of a quorum accepted in a slot, the value of the highest ballot is the only one that can
    /// have been chosen (Santos 2012, Algorithm 4.1, round 4φ-3: "θmax"; Benz 2013, section 3.1.2, with ERR-2).
    fn outranks(told: Ballot, held: Ballot) -> bool {
        told > held
    }

    /// A new leader proposes in each slot the value that was told of it, and is free where none was (Santos 2012,
    /// section 7.1.2: "if any carried a value, propose the one with the highest k′, else free choice").
    fn adopted(told: Option<Batch>) -> Option<Batch> {
        told
    }

    // Accepting.

    /// An acceptor takes slots that are not too far beyond its decided prefix, which bounds its memory: through this
    /// one. Not answering is always safe.
    fn takes_through(decided: Slot, ahead_max: u64) -> Slot {
        Slot(decided.0 + ahead_max)
    }

    // Deciding.

    /// A leader announces what was decided in its ballot. A replica that accepted another ballot's value in the slot
    /// may hold another one (Santos 2012, section 7.1.2, is silent: docs/multipaxos.md, "An announced decision names a
    /// ballot").
    fn holds_decision(accepted_in: Ballot, announced_in: Ballot) -> bool {
        accepted_in == announced_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballots() -> Vec<Ballot> {
        (0..3)
            .flat_map(|round| (1..=3).map(move |owner| Ballot { round, replica: ReplicaId(owner) }))
            .collect()
    }

    /// All functions from so many places to the numbers below `below`.
    fn all(places: u32, below: u64) -> impl Iterator<Item = Vec<u64>> {
        let digit = move |number: u64, place| number / below.pow(place) % below;
        (0..below.pow(places)).map(move |number| (0..places).map(|place| digit(number, place)).collect())
    }

    /// Rounds are compared first, then owners: of two ballots a replica that promised one answers the other, or the
    /// other way round, and both only if they are the same.
    #[test]
    fn of_two_ballots_one_gives_way() {
        for (one, other) in
            ballots().iter().flat_map(|&one| ballots().into_iter().map(move |other| (one, other)))
        {
            let later =
                one.round < other.round || one.round == other.round && one.replica.0 <= other.replica.0;
            assert_eq!(may_obey(one, other), later, "{one} {other}");
            assert_eq!(outranks(other, one), later && one != other, "{one} {other}");
            assert_eq!(promised_before(one, other), if later { other } else { one });
            assert_eq!(holds_decision(one, other), may_obey(one, other) && may_obey(other, one));
        }
    }

    #[test]
    fn a_quorum_is_more_than_half_and_meets_every_other() {
        for n in 1..=5u64 {
            let members = Members::new((1..=n).map(ReplicaId), ReplicaId(1));
            let set = |bits: u64| members.those(|id| bits >> (id.0 - 1) & 1 == 1);
            let quorum = |bits: &u64| is_chosen(&members, set(*bits));
            for bits in 0..1 << n {
                assert_eq!(quorum(&bits), u64::from(bits.count_ones()) * 2 > n, "{n} members, {bits:b}");
                assert_eq!(quorum(&bits), is_promised(&members, set(bits)));
            }
            let quorums: Vec<u64> = (0..1 << n).filter(quorum).collect();
            assert!(quorums.iter().all(|one| quorums.iter().all(|other| one & other != 0)), "{n} members");
        }
    }

    /// The twin counts the members that have each length.
    #[test]
    fn a_sequence_is_chosen_through_what_more_than_half_have() {
        for n in 1..=4u32 {
            let voters = VoterSets::simple((1..=n.into()).map(ReplicaId).collect());
            for lengths in all(n, 4) {
                let has = |through: u64| lengths.iter().filter(|&&length| length >= through).count();
                let twin = (0..4).rev().find(|&through| 2 * has(through) > lengths.len());
                let chosen = chosen_through(&voters, &|id| lengths[id.0 as usize - 1]);
                assert_eq!(Some(chosen), twin, "{lengths:?}");
            }
        }
    }

    /// Three acceptors accepted nothing (0) or the value of a ballot in a slot, as a history can leave them: in each
    /// ballot the value is that of the lower ballot which a quorum may still choose. Whichever quorum then tells, the
    /// value of the highest ballot that it tells is the one that a quorum chose.
    #[test]
    fn whatever_was_chosen_is_adopted() {
        let quorums = [[0, 1], [0, 2], [1, 2]];
        let ballot = |round| Ballot { round, replica: ReplicaId(1) };
        let mut chosen_sometimes = 0;
        // `votes[b]` says which acceptors accepted in ballot b + 1, whose value is `values[b]`.
        for (votes, values) in
            all(3, 8).flat_map(|votes| all(3, 2).map(move |values| (votes.clone(), values)))
        {
            let voted = |round: usize, of: usize| votes[round] >> of & 1 == 1;
            let chosen =
                |round: usize| quorums.iter().any(|quorum| quorum.iter().all(|&of| voted(round, of)));
            let keeps = |round: usize| {
                (round + 1..3).all(|later| votes[later] == 0 || values[later] == values[round])
            };
            if !(0..3).all(|round| !chosen(round) || keeps(round)) {
                continue; // No history with this rule leaves them so.
            }
            let Some(round) = (0..3).find(|&round| chosen(round)) else { continue };
            chosen_sometimes += 1;
            for quorum in quorums {
                let held = |of: usize| (0..3).rev().find(|&round| voted(round, of));
                let mut best: Option<usize> = None;
                for told in quorum.iter().filter_map(|&of| held(of)) {
                    if best.is_none_or(|best| outranks(ballot(told as u64), ballot(best as u64))) {
                        best = Some(told);
                    }
                }
                assert_eq!(
                    values[best.expect("a quorum meets another")],
                    values[round],
                    "{votes:?} {values:?}"
                );
            }
        }
        assert!(chosen_sometimes > 100);
    }

    #[test]
    fn what_is_adopted_is_what_was_told() {
        let told = Batch::noop();
        assert_eq!((adopted(Some(told.clone())), adopted(None)), (Some(told), None));
    }

    #[test]
    fn room_ends_so_many_slots_after_the_prefix() {
        for (decided, ahead_max) in
            (0..4).flat_map(|decided| (0..4).map(move |ahead_max| (decided, ahead_max)))
        {
            let taken =
                (decided + 1..20).filter(|&slot| Slot(slot) <= takes_through(Slot(decided), ahead_max));
            assert_eq!(taken.count() as u64, ahead_max);
        }
    }

    #[test]
    fn a_replica_that_lost_records_does_not_vote_and_a_vote_waits_for_its_record() {
        assert!(may_vote(false) && !may_vote(true));
        assert!((0..4).map(Lsn).all(|record| leaves_after(record) == record));
    }
}
