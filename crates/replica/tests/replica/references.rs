//! References in proposals to the replica that a batch came from.

use synod_consensus::{Dissemination, Options, multipaxos::Message};
use synod_replica::{Action, Event, Group, PeerMessage, Recovered, Replica, Settings};
use synod_wire::{
    Ballot, Batch, BatchBuilder, BatchId, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time,
    replica_session,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);

/// A batch that r1 did not make.
fn batch() -> Batch {
    let origin = replica_session(R3, Incarnation(1), 0);
    let mut builder = BatchBuilder::identified();
    builder.push(SessionId(1), 1, 1, &[7; 100]);
    builder.finish_as(BatchId { origin, number: 1 }, 1)
}

/// What r1 does when r2 proposes this to it, in a group of three that begins.
fn proposed(how: Dissemination, batch: Batch) -> Vec<Action> {
    let mut options = Options::default();
    options.dissemination = how;
    let recovered = Recovered {
        last_lsn: Lsn(0),
        records: Vec::new(),
        snapshot: None,
        amnesia: false,
        birth: 1,
        incarnation: Incarnation(1),
        nonce: 0,
        met_all: true,
    };
    let (group, now, mut actions) = (Group::of(&options, [R1, R2, R3]), Time::ZERO, Vec::new());
    let mut replica = Replica::start(Settings::default(), R1, group, recovered, now, &mut actions);
    let ballot = Ballot { round: 256, replica: R2 };
    let accept = Message::Accept { ballot, first: Slot(1), decided: Slot::ZERO, batches: [batch].into() };
    let heartbeat = Message::Heartbeat { ballot, decided: Slot::ZERO, round: 1 };
    for message in [heartbeat, accept] {
        let message = PeerMessage::Protocol { epoch: Epoch(1), message: message.into() };
        actions.clear();
        replica.step(now, Event::Receive { from: R2, message }, &mut actions);
        replica.flush(now, &mut actions);
    }
    actions
}

fn accepts(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Append { .. }))
}

fn tells_that_it_missed_something(actions: &[Action]) -> bool {
    actions.iter().any(|action| {
        matches!(action, Action::Send { to, message: PeerMessage::Missed { .. }, .. } if to.includes(R2))
    })
}

#[test]
fn no_protocol_takes_a_reference_for_a_batch() {
    for how in [Dissemination::Leader, Dissemination::References] {
        let actions = proposed(how, batch());
        assert!(accepts(&actions) && !tells_that_it_missed_something(&actions), "{how}");
        let actions = proposed(how, batch().reference().unwrap());
        assert!(!accepts(&actions) && tells_that_it_missed_something(&actions), "{how}");
    }
}
