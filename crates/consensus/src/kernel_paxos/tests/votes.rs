//! The acceptor as the protocol sees it.

use synod_wire::{BatchBuilder, SessionId};

use super::*;

fn members() -> Members {
    Members::new([2, 5, 9].map(ReplicaId), ReplicaId(5))
}

fn ballots() -> Vec<Ballot> {
    let rounds = [0, 1, 2, 255, 256, 257, Ballot::ROUND_MAX - 1, Ballot::ROUND_MAX];
    let owners = [2, 5, 9].map(ReplicaId);
    rounds.iter().flat_map(|&round| owners.map(|replica| Ballot { round, replica })).collect()
}

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

/// The round is in the high bits (E5), and 0 is no ballot.
#[test]
fn ballots_have_numbers_in_their_order() {
    let voter = Voter::new(&members(), 8, Slot::ZERO);
    let numbers: Vec<u64> = ballots().iter().map(|&ballot| voter.number(ballot)).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other) && numbers[0] > 0, "{numbers:?}");
    assert!(ballots().into_iter().all(|ballot| voter.ballot(voter.number(ballot)) == ballot));
    assert_eq!(voter.number(Ballot::ZERO), 0);
}

#[test]
fn batches_have_names_and_the_one_that_fills_a_gap_is_a_value() {
    let (a, b) = (batch("a"), batch("b"));
    assert_eq!(name(&a), name(&batch("a")));
    assert_ne!(name(&a), name(&b));
    assert_eq!(name(&Batch::noop()), Value::NoOp);
    assert!(matches!(name(&a), Value::Name { length: 12, .. }));
}

#[test]
fn a_promise_of_all_slots_tells_how_far_to_read_and_each_slot_tells_its_value() {
    let mut voter = Voter::new(&members(), 8, Slot(3));
    let [_, low, _, middle, .., high] = ballots()[..] else { panic!("there are more") };
    assert_eq!(voter.prepare_all(low), Slot::ZERO);
    assert_eq!(voter.accept(Slot(4), low, &batch("a"), None), (true, None));
    assert_eq!(voter.accept(Slot(6), low, &Batch::noop(), Some(Slot(7))), (true, Some(Slot(7))));
    assert_eq!(voter.prepare_all(middle), Slot(7), "slot 7 was promised by itself");
    assert_eq!(voter.accept(Slot(5), low, &batch("b"), None), (false, None), "it promised a higher ballot");
    let told = |voter: &mut Voter, slot| voter.prepare(Slot(slot), middle, &Rules::SOUND);
    let promises = |accepted| Said::Promises { accepted };
    assert_eq!(told(&mut voter, 4), promises(Some((low, name(&batch("a"))))));
    assert_eq!(told(&mut voter, 5), promises(None));
    assert_eq!(told(&mut voter, 6), promises(Some((low, Value::NoOp))), "a filled gap is a value (E13)");
    assert_eq!(voter.repeat(Slot(6)), Some((middle, low, Value::NoOp)), "with the ballot of the value (E12)");
    assert_eq!(voter.prepare(Slot(4), low, &Rules::SOUND), Said::Nothing, "it promised a higher ballot");
    assert_eq!(voter.repeat(Slot(5)), None);
    // A slot is used again only once it is forgotten (E11).
    assert!(voter.has_room(Slot(11)) && !voter.has_room(Slot(12)));
    assert_eq!(voter.accept(Slot(12), high, &batch("c"), None), (false, None));
    assert_eq!(told(&mut voter, 4), promises(Some((low, name(&batch("a"))))));
    voter.trim(Slot(4));
    assert_eq!(voter.accept(Slot(12), high, &batch("c"), None), (true, None));
    assert_eq!((told(&mut voter, 4), voter.repeat(Slot(4))), (Said::Nothing, None));
    assert_eq!(voter.touched(), Slot(12));
}
