//! What waits in a replica is bounded in bytes, whatever its threads and its peers do.

use bytes::Bytes;
use synod_consensus::{
    Options, ProtocolKind,
    multipaxos::{Message, Record},
    ring,
};
use synod_replica::{
    Action, Event, Group, LogRecord, PeerMessage, Recovered, Replica, RequestError, RequestId, Routed,
    Settings, SnapshotInfo, Waiting,
};
use synod_wire::{
    Ballot, Batch, BatchBuilder, BatchId, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot,
    Time, replica_session,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const MIB: usize = 1 << 20;

struct Bench {
    replica: Replica,
    now: Time,
    /// The actions that the replica returned since this was last cleared.
    actions: Vec<Action>,
    requests: u64,
}

impl Bench {
    fn start(settings: Settings, me: ReplicaId, members: u64, records: Vec<LogRecord>) -> Bench {
        Bench::of(&Options::default(), settings, me, members, records)
    }

    fn of(
        options: &Options,
        settings: Settings,
        me: ReplicaId,
        members: u64,
        records: Vec<LogRecord>,
    ) -> Bench {
        let recovered = Recovered {
            last_lsn: Lsn(records.len() as u64),
            records,
            snapshot: None,
            amnesia: false,
            birth: 1,
            incarnation: Incarnation(1),
            nonce: 0,
            met_all: true,
        };
        let mut group = Group::of(options, (1..=members).map(ReplicaId));
        if let [alone] = &mut group.members[..] {
            // It would name its own birth first.
            alone.birth = Some(1);
        }
        let now = Time::ZERO + std::time::Duration::from_secs(1);
        let mut actions = Vec::new();
        let replica = Replica::start(settings, me, group, recovered, now, &mut actions);
        Bench { replica, now, actions, requests: 0 }
    }

    fn step(&mut self, event: Event) {
        self.replica.step(self.now, event, &mut self.actions);
        self.replica.flush(self.now, &mut self.actions);
    }

    fn request(&mut self, len: usize) {
        self.requests += 1;
        let request = RequestId(self.requests);
        let payload = Bytes::from(vec![0; len]);
        self.step(Event::Request { request, kind: CommandKind::Apply, session: None, payload });
    }

    /// Tells the replica that everything that it has written is on stable storage.
    fn sync(&mut self) {
        let last = self.actions.iter().filter_map(|action| match action {
            Action::Append { lsn, .. } => Some(*lsn),
            _ => None,
        });
        if let Some(last) = last.max() {
            self.step(Event::Durable(last));
        }
    }

    /// Bytes of the frames that wait for a record after this one.
    fn held(&self, durable: Lsn) -> usize {
        let frames = self.actions.iter().map(|action| match action {
            Action::Send { message, after, .. } if *after > durable => message.encode().len(),
            _ => 0,
        });
        frames.sum()
    }

    /// Orders and executes a command. If a snapshot is due then, takes it and returns its slot.
    fn execute_one(&mut self) -> Option<Slot> {
        self.actions.clear();
        self.request(1);
        self.sync();
        let slot = self.replica.status().protocol.decided;
        self.step(Event::Executed { slot, clock: Default::default() });
        let due = self.actions.iter().any(|action| matches!(action, Action::TakeSnapshot));
        due.then(|| {
            self.step(Event::SnapshotTaken(Some(SnapshotInfo { slot, bytes: 100 })));
            slot
        })
    }
}

#[test]
fn a_slow_executor_pushes_back_by_bytes_before_it_does_by_slots() {
    let mut settings = Settings::default();
    (settings.backlog_bytes_max, settings.queue_bytes_max) = (8 * MIB as u64, 4 * MIB);
    let mut bench = Bench::start(settings, R1, 1, Vec::new());
    bench.sync();
    // The only member decides at once; nothing is executed.
    for _ in 0..100 {
        bench.request(MIB);
        bench.sync();
        let status = bench.replica.status();
        assert!(status.unexecuted_bytes <= 10 * MIB as u64, "{} bytes", status.unexecuted_bytes);
        assert!(status.queued_bytes <= 5 * MIB, "{} bytes", status.queued_bytes);
    }
    assert!(bench.replica.status().backlogged);
    let refused = bench
        .actions
        .iter()
        .filter(|action| matches!(action, Action::RequestFailed { error: RequestError::Overloaded, .. }));
    assert!(refused.count() > 80, "clients feel it");
    let executed = |actions: &[Action]| {
        let slots = actions.iter().filter_map(|action| match action {
            Action::Execute { slot, .. } => Some(*slot),
            _ => None,
        });
        slots.max().unwrap_or_default()
    };

    // The executor catches up, and what waited goes on.
    for _ in 0..20 {
        let slot = executed(&bench.actions);
        bench.step(Event::Executed { slot, clock: Default::default() });
        bench.sync();
    }
    let status = bench.replica.status();
    assert!(!status.backlogged && status.unexecuted_bytes == 0 && status.queued_bytes == 0, "{status:?}");
    assert_eq!(bench.replica.waiting(), Waiting::default());
}

/// Benz 2013 passes a value on before it does anything else with it (B18). What follows from a decision waits in queues
/// of its own, so bytes go on at once however much is decided here and not executed.
#[test]
fn a_ring_passes_bytes_on_at_once_however_much_waits_to_be_executed() {
    let passed_on = |decided: u64| {
        let options = Options::of(ProtocolKind::Ring);
        let mut bench = Bench::of(&options, Settings::default(), R2, 3, Vec::new());
        let ballot = Ballot { round: 256, replica: R1 };
        let order = vec![R1, R2, ReplicaId(3)].into();
        let view = ring::View { ballot, minor: 1, order };
        let says = |message: ring::Message| {
            let message = PeerMessage::Protocol { epoch: Epoch(1), message: message.into() };
            Event::Receive { from: R1, message }
        };
        let accept = |slot: u64| {
            let mut builder = BatchBuilder::identified();
            builder.push(SessionId(1), slot, 1, b"x");
            let origin = replica_session(R1, Incarnation(1), 0);
            let content = ring::Content::Whole(builder.finish_as(BatchId { origin, number: slot }, 1));
            let values = vec![ring::Value { hops: 2, content }];
            let (view, first, decided) = (view.clone(), Slot(slot), Slot::ZERO);
            says(ring::Message::Accept(ring::Accept { view, first, decided, safe: false, values }))
        };
        for slot in 1..=decided {
            bench.step(accept(slot));
            let votes = ring::Votes::default().with(0);
            let (view, at) = (view.clone(), Slot(slot));
            let run = ring::VoteRun { view, first: at, last: at, decided: Slot::ZERO, votes };
            bench.step(says(ring::Message::Votes(run)));
            bench.sync();
        }
        assert_eq!(bench.replica.waiting().unexecuted, usize::try_from(decided).unwrap());
        bench.actions.clear();
        bench.step(accept(decided + 1));
        let bytes = bench.actions.iter().filter_map(|action| match action {
            Action::Send { to, message: PeerMessage::Protocol { message, .. }, after } => {
                Some((to.ids().to_vec(), message.batch_bytes(), *after))
            }
            _ => None,
        });
        bytes.filter(|(_, bytes, _)| *bytes > 0).collect::<Vec<_>>()
    };
    let [(to, _, Lsn::ZERO)] = &passed_on(0)[..] else { panic!("it goes on, and waits for no record") };
    assert_eq!(to[..], [ReplicaId(3)]);
    assert_eq!(passed_on(1_000), passed_on(0));
}

/// A batch of this many bytes.
fn batch(len: usize) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, &vec![7; len]);
    builder.finish()
}

/// An event in which r2 says this to r1 in epoch 1.
fn says(message: Message) -> Event {
    Event::Receive { from: R2, message: PeerMessage::Protocol { epoch: Epoch(1), message: message.into() } }
}

#[test]
fn answers_that_wait_for_a_stalled_disk_are_bounded_and_come_when_it_goes_on() {
    let ballot = Ballot { round: 1, replica: R2 };
    let batches = (0..16).map(|_| batch(64 << 10)).collect();
    let accepted = Record::Accepted { ballot, first: Slot(1), decided: Slot::ZERO, batches };
    let records = vec![LogRecord::Protocol { epoch: Epoch(1), record: accepted.into() }];
    let mut settings = Settings::default();
    settings.held_bytes_max = 4 * MIB as u64;
    let held_bytes_max = settings.held_bytes_max as usize;
    let mut bench = Bench::start(settings, R1, 3, records);
    bench.sync();

    // The disk stalls now. A candidate repeats its question for a promise, and each answer holds a page of a megabyte.
    let candidacy = Ballot { round: 9, replica: R2 };
    let prepare = || says(Message::Prepare { ballot: candidacy, from: Slot(1) });
    (0..1_000).for_each(|_| bench.step(prepare()));
    let held = bench.held(Lsn(1));
    assert!(held > MIB, "{held}: they do wait");
    assert!(held <= held_bytes_max, "{held} bytes wait");
    let status = bench.replica.status();
    assert!(status.held_bytes <= held_bytes_max as u64 && status.sends_given_up > 900, "{status:?}");
    assert!(status.waits_for_disk, "the news that the disk goes on is wanted at once");

    // The disk goes on: what was held leaves, and the next question is answered.
    bench.sync();
    assert_eq!(bench.replica.status().held_bytes, 0);
    bench.actions.clear();
    bench.step(prepare());
    let answers =
        bench.actions.iter().filter(|action| matches!(action, Action::Send { to, .. } if to.includes(R2)));
    assert_eq!(answers.count(), 1);
}

#[test]
fn a_replica_that_does_not_order_answers_reads_of_others_at_once_and_keeps_none() {
    // This replica is not a member, so no protocol runs here.
    let mut bench = Bench::start(Settings::default(), ReplicaId(9), 3, Vec::new());
    bench.actions.clear();
    for token in 1..=2_000 {
        let message = PeerMessage::Direct(Routed::ReadIndex { token });
        bench.step(Event::Receive { from: R2, message });
    }
    assert_eq!(bench.replica.waiting(), Waiting::default());
    let refused = bench.actions.iter().filter(|action| {
        let Action::Send { message, .. } = action else { return false };
        matches!(message, PeerMessage::Direct(Routed::ReadIndexAnswer { slot: None, .. }))
    });
    assert_eq!(refused.count(), 2_000);
}

#[test]
fn a_snapshot_that_a_peer_fetches_is_replaced_later_but_not_never() {
    let mut settings = Settings::default();
    (settings.snapshot_slots, settings.batch_bytes_max) = (10, 1);
    let timeout = settings.consensus.election_timeout;
    let mut bench = Bench::start(settings, R1, 1, Vec::new());
    bench.sync();
    // How many slots until the next snapshot is taken, if a peer asks for a piece of the last one at times.
    let mut until_next = |fetched: Option<Slot>| {
        for slots in 1..100 {
            if let Some(slot) = fetched {
                let message = PeerMessage::FetchChunk { slot, offset: 0 };
                bench.step(Event::Receive { from: R2, message });
            }
            bench.now += timeout / 2;
            if let Some(slot) = bench.execute_one() {
                return (slot, slots);
            }
        }
        panic!("no snapshot is ever due");
    };
    let (first, _) = until_next(None);
    let (second, alone) = until_next(None);
    // The clock takes a slot at times.
    assert!((8..=10).contains(&alone), "after {alone}");
    let (_, fetched) = until_next(Some(second));
    assert!((35..=40).contains(&fetched), "after {fetched}");
    let (_, another) = until_next(Some(first));
    assert!((8..=10).contains(&another), "what is gone already keeps nothing: after {another}");
}

/// A peer that installs the snapshot that it fetched needs the log after it.
#[test]
fn the_log_after_a_snapshot_that_a_peer_fetched_stays_until_the_peer_has_it() {
    let mut settings = Settings::default();
    (settings.snapshot_slots, settings.batch_bytes_max) = (10, 1);
    let timeout = settings.consensus.election_timeout;
    // How many slots until the next snapshot is taken, if a peer asks for slots in the end.
    let until_next = |fetches: bool| {
        let mut bench = Bench::start(settings.clone(), R1, 1, Vec::new());
        bench.sync();
        let mut snapshots = Vec::new();
        for slots in 1..100 {
            snapshots.extend(bench.execute_one().map(|slot| (slots, slot)));
            match snapshots[..] {
                [(taken, slot)] if slots == taken + 3 => {
                    let message = PeerMessage::FetchChunk { slot, offset: 0 };
                    bench.step(Event::Receive { from: R2, message });
                }
                [(taken, slot)] if slots > taken + 3 => {
                    bench.now += timeout * 4;
                    let message = PeerMessage::Fetch { from: slot.next(), through: slot.next() };
                    if fetches {
                        bench.step(Event::Receive { from: R2, message });
                    }
                }
                [(first, _), (second, _)] => return second - first,
                _ => {}
            }
        }
        panic!("no second snapshot is ever due");
    };
    assert!((8..=10).contains(&until_next(false)), "it is gone, or has everything");
    assert!((30..=40).contains(&until_next(true)));
}

/// While slots are decided, a replica that answers is ahead of the one it hears, and would be answered in turn.
#[test]
fn a_lagging_replica_is_told_so_at_most_twice_a_heartbeat() {
    let settings = Settings::default();
    let heartbeat = settings.consensus.heartbeat_interval;
    let mut bench = Bench::start(settings, R1, 1, Vec::new());
    bench.sync();
    bench.request(1);
    bench.sync();
    bench.actions.clear();
    for _ in 0..100 {
        bench.now += heartbeat / 20;
        let view = bench.replica.status().protocol.view;
        let (kept, decided) = (Slot(1), Slot::ZERO);
        let message = PeerMessage::Progress { epoch: Epoch(1), kept, decided, view, sought: false };
        bench.step(Event::Receive { from: R2, message });
    }
    let told = bench.actions.iter().filter(|action| {
        matches!(action, Action::Send { to, message: PeerMessage::Progress { .. }, .. } if to.includes(R2))
    });
    assert!((9..=10).contains(&told.count()), "five heartbeats went by");
}

/// Where deciding takes longer than an interval, ticks of the replicated clock would fill the window, and leave clients
/// no room.
#[test]
fn one_tick_of_the_clock_is_under_way() {
    let clock_interval = std::time::Duration::from_millis(100);
    let mut settings = Settings::default();
    settings.clock_interval = clock_interval;
    let mut bench = Bench::start(settings, R1, 1, Vec::new());
    bench.sync();
    let mut after_interval = || {
        bench.now += clock_interval;
        bench.step(Event::Timer);
        bench.replica.status().queued_bytes
    };
    let proposed = after_interval();
    assert!(0 < proposed, "the disk stalls, so nothing is decided");
    assert!((0..9).all(|_| after_interval() == proposed));
    bench.sync();
    assert_eq!(
        bench.replica.status().queued_bytes,
        proposed,
        "the tick is executed, and the next one is due"
    );
}
