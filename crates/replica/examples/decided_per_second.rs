//! How many 16-byte commands three replica cores decide per second, on one CPU core: in one thread, with
//! memory in the place of disks and queues in the place of a network. Nothing is executed; batches are
//! encoded, messages are not.
//!
//! `cargo run --release -p synod-replica --example decided_per_second [SECONDS] [PROTOCOL] [plain]`
//!
//! `plain` switches the optimisations of `sequence-paxos` off.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_consensus::{Options, ProtocolKind};
use synod_replica::{Action, Event, Group, Recovered, Replica, RequestId, Settings, SnapshotInfo};
use synod_wire::{CommandKind, Incarnation, Lsn, ReplicaId, Slot, Time};

struct Cluster {
    replicas: Vec<Replica>,
    inboxes: Vec<VecDeque<Event>>,
    deadlines: Vec<Time>,
    actions: Vec<Action>,
    decided: Vec<u64>,
    began: Instant,
}

impl Cluster {
    fn new(settings: &Settings) -> Cluster {
        let ids = [1, 2, 3].map(ReplicaId);
        let mut cluster = Cluster {
            replicas: Vec::new(),
            inboxes: vec![VecDeque::new(); 3],
            deadlines: vec![Time::NEVER; 3],
            actions: Vec::new(),
            decided: vec![0; 3],
            began: Instant::now(),
        };
        for (index, &me) in ids.iter().enumerate() {
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
            let group = Group::of(&settings.consensus, ids);
            let mut actions = Vec::new();
            let replica = Replica::start(settings.clone(), me, group, recovered, Time::ZERO, &mut actions);
            cluster.replicas.push(replica);
            cluster.actions = actions;
            cluster.carry_out(index);
        }
        cluster
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    fn carry_out(&mut self, index: usize) {
        let mut durable = None;
        let mut executed = None;
        for action in self.actions.drain(..) {
            match action {
                Action::Append { lsn, .. } => durable = Some(lsn),
                Action::Send { to, message, .. } => {
                    let from = ReplicaId(index as u64 + 1);
                    for to in to.ids() {
                        let message = message.clone();
                        self.inboxes[to.0 as usize - 1].push_back(Event::Receive { from, message });
                    }
                }
                Action::Execute { slot, batch, .. } => {
                    self.decided[index] += batch.commands().count() as u64;
                    executed = Some(slot);
                }
                Action::Deadline(at) => self.deadlines[index] = at,
                Action::TakeSnapshot => {
                    // Nothing is executed, so there is no snapshot to write; only the log is trimmed.
                    let slot = self.replicas[index].status().protocol.decided;
                    self.inboxes[index]
                        .push_back(Event::SnapshotTaken(Some(SnapshotInfo { slot, bytes: 1 })));
                }
                _ => {}
            }
        }
        self.inboxes[index].extend(durable.map(Event::Durable));
        self.inboxes[index].extend(executed.map(|slot| Event::Executed { slot, clock: Default::default() }));
    }

    /// Lets each replica handle one burst of messages.
    fn round(&mut self) {
        let now = self.now();
        for index in 0..3 {
            if self.deadlines[index] <= now {
                self.inboxes[index].push_back(Event::Timer);
            }
            while let Some(event) = self.inboxes[index].pop_front() {
                self.replicas[index].step(now, event, &mut self.actions);
            }
            self.replicas[index].flush(now, &mut self.actions);
            self.carry_out(index);
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(5.0, |text| text.parse().expect("SECONDS is a number"));
    let protocol = std::env::args()
        .nth(2)
        .map_or(ProtocolKind::MultiPaxos, |name| name.parse().unwrap_or_else(|error| panic!("{error}")));
    let mut consensus = Options::of(protocol);
    if std::env::args().nth(3).is_some_and(|word| word == "plain") {
        let tuning = &mut consensus.sequence_paxos;
        tuning.batched_accepts = false;
        tuning.latest_decide = false;
        tuning.latest_accepted = false;
        tuning.max_accept_sync = false;
        tuning.head_start = false;
        tuning.decide_on_accept = false;
    }
    let mut settings = Settings::default();
    settings.consensus = consensus;
    (settings.snapshot_log_bytes, settings.keep_slots) = (16 << 20, 100);
    let mut cluster = Cluster::new(&settings);
    let leader = loop {
        cluster.round();
        if let Some(leader) = cluster.replicas[0].status().protocol.view.leader {
            break leader.0 as usize - 1;
        }
    };
    println!("replica {} leads; batches of at most {} bytes", leader + 1, settings.batch_bytes_max);
    let payload = Bytes::from_static(b"sixteen bytes !!");
    let began = Instant::now();
    let before = cluster.decided.clone();
    let mut last = Slot::ZERO;
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        let now = cluster.now();
        for request in 0..2048 {
            let event = Event::Request {
                request: RequestId(request),
                kind: CommandKind::Apply,
                session: None,
                payload: payload.clone(),
            };
            cluster.replicas[leader].step(now, event, &mut cluster.actions);
        }
        // The round ends when the leader has decided them; the others learn it with the next proposals.
        let mine = cluster.decided[leader] + 2048;
        while cluster.decided[leader] < mine {
            cluster.round();
        }
        last = cluster.replicas[leader].status().protocol.decided;
    }
    while cluster.decided.iter().any(|&decided| decided < cluster.decided[leader]) {
        cluster.round();
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = |index: usize| (cluster.decided[index] - before[index]) as f64 / seconds;
    println!("{:.0} commands a second decided on each of three replicas, {} slots", rate(leader), last);
}
