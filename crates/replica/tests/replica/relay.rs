//! What a replica passes on between another replica and the leader, and what it does not pass on.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::{LeaderView, Options, multipaxos::Message};
use synod_replica::{
    Action, Event, Group, PeerMessage, ReadId, Recovered, Replica, RequestId, Routed, Settings,
};
use synod_wire::{
    Ballot, Batch, BatchBuilder, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);
const R4: ReplicaId = ReplicaId(4);
const R5: ReplicaId = ReplicaId(5);
/// The ballot of r1.
const BALLOT: Ballot = Ballot { round: 256, replica: R1 };

/// A replica of a group of four, which no longer waits for a first leader.
struct Bench {
    replica: Replica,
    now: Time,
}

impl Bench {
    fn start(me: ReplicaId) -> Bench {
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            birth: 1,
            incarnation: Incarnation(1),
            nonce: 0,
            met_all: true,
        };
        let group = Group::of(&Options::default(), (1..=4).map(ReplicaId));
        let now = Time::ZERO + Duration::from_secs(1);
        let replica = Replica::start(Settings::default(), me, group, recovered, now, &mut Vec::new());
        Bench { replica, now }
    }

    /// What the replica sends because of an event.
    fn step(&mut self, event: Event) -> Vec<(ReplicaId, PeerMessage)> {
        let mut actions = Vec::new();
        self.replica.step(self.now, event, &mut actions);
        self.replica.flush(self.now, &mut actions);
        let sent = actions.into_iter().flat_map(|action| match action {
            Action::Send { to, message, .. } => {
                to.ids().iter().map(|&to| (to, message.clone())).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        });
        sent.filter(|(_, message)| !matches!(message, PeerMessage::Protocol { .. })).collect()
    }

    fn receive(&mut self, from: ReplicaId, message: PeerMessage) -> Vec<(ReplicaId, PeerMessage)> {
        self.step(Event::Receive { from, message })
    }

    /// Lets so much time pass.
    fn pass(&mut self, millis: u64) -> Vec<(ReplicaId, PeerMessage)> {
        self.now += Duration::from_millis(millis);
        self.step(Event::Timer)
    }

    /// r1 shows that it leads.
    fn hear_leader(&mut self) {
        let message = Message::Heartbeat { ballot: BALLOT, decided: Slot::ZERO, round: 1 };
        self.receive(R1, PeerMessage::Protocol { epoch: Epoch(1), message: message.into() });
    }

    fn put(&mut self) -> Vec<(ReplicaId, PeerMessage)> {
        let payload = Bytes::from_static(b"command");
        self.step(Event::Request { request: RequestId(1), kind: CommandKind::Apply, session: None, payload })
    }
}

fn batch() -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, &[7; 20]);
    builder.finish()
}

/// A voter says that it hears r1.
fn hears_leader() -> PeerMessage {
    let view = LeaderView { ballot: BALLOT, leader: Some(R1) };
    PeerMessage::Progress { epoch: Epoch(1), kept: Slot(1), decided: Slot::ZERO, view, sought: true }
}

fn envelope(origin: ReplicaId, to: ReplicaId) -> PeerMessage {
    PeerMessage::Relayed { origin, to, message: Routed::Forward(batch()) }
}

#[test]
fn an_envelope_goes_one_hop_and_no_further() {
    let mut bench = Bench::start(R2);
    bench.hear_leader();
    assert_eq!(bench.receive(R3, envelope(R3, R1)), [(R1, envelope(R3, R1))], "as it is");
    assert_eq!(bench.receive(R4, envelope(R3, R1)), [], "it was passed on before");
    assert_eq!(bench.receive(R3, envelope(R3, R5)), [], "there is no such member");
    assert_eq!(bench.receive(R5, envelope(R5, R1)), [], "nor this one");
    assert_eq!(bench.receive(R3, envelope(R2, R1)), [], "it names this replica itself");
}

#[test]
fn the_answer_to_a_relayed_question_goes_back_by_the_way_that_it_came_with_the_askers_own_token() {
    let mut bench = Bench::start(R2);
    let message = Routed::ReadIndex { token: 77 };
    let answers = bench.receive(R4, PeerMessage::Relayed { origin: R3, to: R2, message });
    // The replica does not lead.
    let message = Routed::ReadIndexAnswer { token: 77, slot: None };
    assert_eq!(answers, [(R4, PeerMessage::Relayed { origin: R2, to: R3, message })]);
}

#[test]
fn only_a_replica_that_hears_the_leader_offers_itself_and_only_to_members() {
    let mut bench = Bench::start(R2);
    let offers = |sent: Vec<(ReplicaId, PeerMessage)>| {
        sent.iter()
            .filter(|(_, message)| matches!(message, PeerMessage::Progress { sought: true, .. }))
            .count()
    };
    assert_eq!(offers(bench.receive(R3, PeerMessage::SeekLeader)), 0, "it knows of none");
    bench.hear_leader();
    assert_eq!(offers(bench.receive(R3, PeerMessage::SeekLeader)), 1);
    assert_eq!(offers(bench.receive(R5, PeerMessage::SeekLeader)), 0);
    bench.pass(1_000);
    assert_eq!(offers(bench.receive(R3, PeerMessage::SeekLeader)), 0, "not for an election time-out");
}

#[test]
fn a_replica_that_misses_its_leader_goes_by_another_way_until_it_hears_it_again() {
    let mut bench = Bench::start(R3);
    bench.hear_leader();
    let sought = bench.pass(1_000);
    let seeks: Vec<_> = [R1, R2, R4].map(|to| (to, PeerMessage::SeekLeader)).into();
    assert_eq!(sought, seeks);
    assert!(
        matches!(bench.put()[..], [(R1, PeerMessage::Direct(Routed::Forward(_)))]),
        "no other way is known"
    );
    let sent = bench.receive(R2, hears_leader());
    let [(R2, PeerMessage::Relayed { origin: R3, to: R1, message: Routed::Forward(_) })] = &sent[..] else {
        panic!("what was sent before is sent by way of r2: {sent:?}")
    };
    assert_eq!(bench.receive(R4, hears_leader()), [], "one way is enough");

    // Its question stays unanswered, so it asks the other voter.
    let asks = |sent: &[(ReplicaId, PeerMessage)]| -> Vec<ReplicaId> {
        let asked = sent.iter().filter(|(_, message)| {
            matches!(
                message,
                PeerMessage::Relayed { message: Routed::ReadIndex { .. }, .. }
                    | PeerMessage::Direct(Routed::ReadIndex { .. })
            )
        });
        asked.map(|(to, _)| *to).collect()
    };
    assert_eq!(asks(&bench.step(Event::Read(ReadId(1)))), [R2]);
    bench.pass(500);
    bench.receive(R2, hears_leader());
    bench.receive(R4, hears_leader());
    assert_eq!(asks(&bench.pass(500)), [R4]);

    bench.hear_leader();
    assert_eq!(asks(&bench.step(Event::Read(ReadId(2)))), [R1], "directly again");
}
