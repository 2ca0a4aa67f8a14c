//! Messages and records on the wire and on disk, and what is refused there.

use synod_wire::{Batch, BatchBuilder, Incarnation, Reader, ReplicaId, SessionId, Writer};

use super::*;
use crate::{Body, Claims, message::fixed, rounds::Record};

const BALLOT: Ballot = Ballot { round: 7, replica: ReplicaId(2) };

fn batch() -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, &[7; 8]);
    builder.finish()
}

fn messages() -> Vec<Message> {
    let (ballot, decided, first) = (BALLOT, Slot(7), Slot(8));
    let accepted = vec![AcceptedValue { slot: first, ballot, batch: batch() }];
    let offers = || [batch(), Batch::noop()].into();
    vec![
        Message::Estimate {
            ballot,
            decided,
            next: Some(Slot(10)),
            accepted: accepted.clone(),
            offers: offers(),
            busy: true,
            delay_micros: 5,
        },
        Message::Vote { ballot, first, decided, batches: offers(), delay_micros: 1 },
        Message::Acknowledgement { ballot, first, last: Slot(9), decided, busy: false, delay_micros: 0 },
        Message::Here { phase: 7, place: 3, decided, busy: true, delay_micros: 5 },
        Message::Ask { life: Incarnation(4), number: 3 },
        Message::Told { life: Incarnation(4), number: 3, last: Slot(9) },
        Message::Values {
            ballot,
            decided,
            next: None,
            accepted,
            offers: offers(),
            busy: false,
            delay_micros: 5,
        },
    ]
}

fn records() -> Vec<Record> {
    let (ballot, decided, slot) = (BALLOT, Slot(7), Slot(8));
    vec![
        Record::Promised(ballot),
        Record::Accepted { ballot, slot, decided, batch: batch() },
        Record::Learned { ballot, slot, batch: batch() },
        Record::Amnesia(true),
    ]
}

#[test]
fn messages_and_records_come_back() {
    fixed::survive_the_wire_and_no_truncation_decodes(&messages());
    fixed::survive_the_disk(records());
}

#[test]
fn every_byte_is_where_earlier_versions_look_for_it() {
    fixed::check(include_str!("encoding.txt"), &messages(), &records());
}

#[test]
fn what_no_replica_says_is_refused() {
    let (decided, first, ballot) = (Slot(7), Slot(8), BALLOT);
    let here = |phase, place| Message::Here { phase, place, decided, busy: false, delay_micros: 0 };
    let run = |first: u64, last: u64| Message::Acknowledgement {
        ballot,
        first: Slot(first),
        last: Slot(last),
        decided,
        busy: false,
        delay_micros: 0,
    };
    let read = |message: &Message| {
        let mut writer = Writer::new();
        message.encode(&mut writer);
        Message::decode(&mut Reader::new(writer.finish().to_bytes()))
    };
    for message in [here(1, 1), here(PHASE_MAX, PLACES_MAX), run(8, 8)] {
        assert_eq!(read(&message), Ok(message));
    }
    let far = Ballot { round: u64::MAX, ..BALLOT };
    let values = |ballot, slot| Message::Values {
        ballot: BALLOT,
        decided,
        next: None,
        accepted: vec![AcceptedValue { slot, ballot, batch: batch() }],
        offers: [].into(),
        busy: false,
        delay_micros: 0,
    };
    assert_eq!(read(&values(BALLOT, first)), Ok(values(BALLOT, first)));
    for message in [
        here(0, 1),
        here(PHASE_MAX + 1, 1),
        here(1, 0),
        here(1, PLACES_MAX + 1),
        run(9, 8),
        Message::Vote { ballot, first, decided, batches: [].into(), delay_micros: 0 },
        Message::Vote { ballot: far, first, decided, batches: [batch()].into(), delay_micros: 0 },
        values(far, first),
        values(BALLOT, Slot::ZERO),
        values(BALLOT, Slot(u64::MAX)),
    ] {
        assert!(read(&message).is_err(), "{message:?}");
    }
}

#[test]
fn letters_name_their_round_and_estimates_their_coordinator() {
    let letters: Vec<_> = messages().iter().map(Claims::letter).collect();
    let of = |place, estimates_to| Some(Letter { phase: 7, place, estimates_to });
    assert_eq!(
        letters,
        [of(1, Some(ReplicaId(2))), of(2, None), of(3, None), of(3, None), None, None, of(1, None)]
    );
    let rounds = |of| messages().iter().map(|message| message.round(of)).collect::<Vec<_>>();
    assert_eq!(rounds(3)[..4], [19, 20, 21, 21].map(|round| Some(Round(round))));
    assert_eq!(rounds(4)[..4], [25, 26, 27, 27].map(|round| Some(Round(round))));
    assert_eq!(messages()[6].round(1), Some(Round(7)), "of one round");
    let last = Message::Here { phase: 1, place: 4, decided: Slot(0), busy: false, delay_micros: 0 };
    assert_eq!((last.round(3), last.round(4)), (None, Some(Round(4))), "three rounds have no fourth");
}
