//! Leadership moves to the voter that is nearest to a majority.

use super::*;
use crate::{ElectionKind, election::Message as Of};

/// Nanoseconds of a long and of a short way.
const FAR: u64 = 60_000_000;
const NEAR: u64 = 2_000_000;

fn options() -> Options {
    Options { election: ElectionKind::Latency, ..Options::default() }
}

/// What elections say to a replica.
fn said(effects: &[Effect], whom: ReplicaId) -> Vec<(Of, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::Election(message), after } if to.includes(whom) => {
            Some((message.clone(), *after))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

impl One {
    fn hears(&mut self, from: ReplicaId, message: Of) -> Vec<Effect> {
        self.step(Input::Receive { from, message: message.into() })
    }

    /// Goes on until this leader asks for times again; r2 and r3 answer in time, and r2 is near both.
    fn cycle(&mut self, able: bool) -> Vec<Effect> {
        for _ in 0..20 {
            let effects = self.wait(T / 15);
            for message in said(&effects, R2).into_iter().map(|(message, _)| message) {
                match message {
                    // The leader's answers come late.
                    Of::Ping { number } => {
                        self.now += Duration::from_nanos(FAR);
                        for from in [R2, R3] {
                            self.hears(from, Of::Pong { number });
                        }
                    }
                    Of::AskTimes { number } => {
                        let times = [vec![FAR, 0, NEAR], vec![FAR, NEAR, 0]];
                        for (from, times) in [R2, R3].into_iter().zip(times) {
                            let able = able && from == R2;
                            self.hears(from, Of::Times { number, able, by_wish: false, times });
                        }
                        self.lives();
                        return effects;
                    }
                    _ => {}
                }
            }
            self.lives();
        }
        panic!("it asks every two thirds of a time-out")
    }

    /// Both followers answer this leader.
    fn lives(&mut self) {
        self.matched(R2, 1, 1);
        self.matched(R3, 2, 1);
    }
}

fn transfers(effects: &[Effect]) -> bool {
    sent(effects, R2).iter().any(|(message, _)| matches!(message, Message::TimeoutNow { .. }))
}

#[test]
fn a_leader_hands_over_to_the_voter_that_it_chose_once_that_one_is_ready() {
    let mut one = One::elected_with(&options());
    // The first cycle asks, the next two find that r2 is better, and what it asks then tells so.
    let asked: Vec<_> = (0..5).flat_map(|_| said(&one.cycle(true), R2)).collect();
    let number = asked.iter().find_map(|(message, _)| match message {
        Of::AskReady { number } => Some(*number),
        _ => None,
    });
    let number = number.expect("r2 is asked");
    assert_eq!(one.role(), Role::Leader);
    assert!(one.protocol.room() > 0, "it serves until r2 is ready");
    assert!(!transfers(&one.hears(R3, Of::Ready { number })), "r3 was not asked");
    let last = asked.iter().rev().find_map(|(message, _)| match message {
        Of::AskReady { number } => Some(*number),
        _ => None,
    });
    let number = last.expect("r2 is asked");
    assert!(!transfers(&one.hears(R2, Of::Ready { number: number - 1 })), "of another question");
    assert!(transfers(&one.hears(R2, Of::Ready { number })));
    assert_eq!(one.protocol.room(), 0, "nothing is proposed while r2 takes over");
    assert!(!transfers(&one.hears(R2, Of::Ready { number })), "once");
}

#[test]
fn a_leader_asks_no_voter_that_could_not_lead() {
    let mut one = One::elected_with(&options());
    for _ in 0..5 {
        let asks = said(&one.cycle(false), R2);
        assert!(!asks.iter().any(|(message, _)| matches!(message, Of::AskReady { .. })), "{asks:?}");
    }
}

#[test]
fn without_the_option_nothing_is_measured() {
    let mut one = One::elected();
    for _ in 0..20 {
        let effects = one.wait(T / 10);
        assert_eq!(said(&effects, R2), []);
        one.lives();
    }
}

/// The number of the pings by which a voter tests whether it could take over.
fn test_ping(effects: &[Effect]) -> Option<u64> {
    said(effects, R3).into_iter().find_map(|(message, _)| match message {
        Of::Ping { number } if number >> 63 == 1 => Some(number),
        _ => None,
    })
}

#[test]
fn a_voter_says_that_it_is_ready_once_its_disk_a_quorum_and_its_log_say_so() {
    let leader = ballot(1, R1);
    let ready = |effects: &[Effect]| said(effects, R1).contains(&(Of::Ready { number: 4 }, Lsn::ZERO));
    let one = || {
        let mut one = One::with(R2, &options());
        one.receive(R1, append(leader, 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0));
        one.durable();
        one
    };
    let mut two = one();
    assert_eq!(test_ping(&two.hears(R3, Of::AskReady { number: 4 })), None, "r3 does not lead");
    let asked = two.hears(R1, Of::AskReady { number: 4 });
    let term = appended(&asked, |record| matches!(record, Record::Term { term: 1, .. }));
    let number = test_ping(&asked).expect("it asks who reaches it");
    assert!(!ready(&asked) && !ready(&two.hears(R3, Of::Pong { number })), "its record is not durable");
    assert!(ready(&two.step(Input::Durable(term))));

    let mut two = one();
    let asked = two.hears(R1, Of::AskReady { number: 4 });
    let number = test_ping(&asked).expect("it asks who reaches it");
    assert!(!ready(&two.durable()), "nobody answered it");
    assert!(ready(&two.hears(R1, Of::Pong { number })));
    // It is asked again, since the answer may be lost.
    let again = two.hears(R1, Of::AskReady { number: 5 });
    assert!(said(&again, R1).contains(&(Of::Ready { number: 5 }, Lsn::ZERO)));

    // Another leader does not wait for it.
    let mut two = one();
    two.hears(R1, Of::AskReady { number: 4 });
    two.durable();
    two.receive(R3, append(ballot(2, R3), 1, leader, Vec::new(), 0));
    assert!(!ready(&two.hears(R1, Of::Pong { number })));
}

#[test]
fn the_voters_may_change_meanwhile() {
    let mut one = One::elected_with(&options());
    (0..3).for_each(|_| drop(one.cycle(true)));
    let times = one.protocol.round_trips();
    assert_eq!(times.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [R2, R3]);
    let change = Control::ChangeVoters { voters: VoterSets::simple(vec![R1, R3]), batch: batch("change") };
    one.step(Input::Control(change));
    let left = one.protocol.round_trips();
    assert_eq!(left.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [R3]);
    assert_eq!(left[0].1, times[1].1, "what was measured of r3 counts on");
}

#[test]
fn an_operators_wish_waits_until_the_voter_is_ready_too() {
    let mut one = One::elected_with(&options());
    let effects = one.step(Input::Control(Control::Transfer(R2)));
    let asked = said(&effects, R2);
    let [(Of::AskReady { number }, _)] = asked[..] else { panic!("{asked:?}") };
    assert!(!transfers(&effects) && one.protocol.room() > 0);
    assert!(!transfers(&one.hears(R3, Of::Ready { number })), "it wants r2");
    assert!(transfers(&one.hears(R2, Of::Ready { number })));

    // A node that stops asks one after the other, and takes the first that is ready, also if it asked another
    // meanwhile.
    let mut stopping = One::elected_with(&options());
    for to in [R2, R3] {
        stopping.step(Input::Control(Control::Transfer(to)));
    }
    assert!(transfers(&stopping.hears(R2, Of::Ready { number })), "r3 was asked since");
    assert!(!transfers(&stopping.hears(R2, Of::Ready { number })), "that would not give it more time");
    let effects = stopping.hears(R3, Of::Ready { number });
    let handed = sent(&effects, R3).iter().any(|(message, _)| matches!(message, Message::TimeoutNow { .. }));
    assert!(handed, "r2 has not taken over yet, and r3 is wished, too");

    let mut other = One::elected();
    assert!(transfers(&other.step(Input::Control(Control::Transfer(R2)))), "Raft alone asks nobody");
}
