//! How long a new member takes to get what was decided, in virtual time: from one follower, from all of them,
//! and sent without being asked. The replicas are without faults, memory takes the place of disks, and in the
//! network all that a replica sends goes through one line of a certain rate.
//!
//! `cargo test -p synod-replica --test replica state_transfer -- --nocapture` prints the figures. They are the same
//! in every run and on every machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::Role;
use synod_replica::{
    Action, Change, ChangeRequest, Event, Goal, Group, MemberInfo, PeerMessage, Recovered, Replica,
    RequestId, Settings, StateTransfer,
};
use synod_wire::{CommandKind, Incarnation, Lsn, ReplicaId, Slot, Time};

/// What a replica can send per second, to all others together: 100 Mbit/s.
const RATE: f64 = 100e6 / 8.0;
/// The latency from one replica to another.
const DELAY: Duration = Duration::from_millis(1);
/// Slots that the new member lacks, with one command each.
const SLOTS: u64 = 4000;

/// Which replicas the new member reaches.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    All,
    /// It reaches the leader and one follower.
    One,
    /// It reaches all, but one follower neither hears nor answers it, and no replica can tell.
    NotOne,
}

struct World {
    settings: Settings,
    now: Time,
    queue: BTreeMap<(Time, u64), (ReplicaId, Event)>,
    number: u64,
    replicas: BTreeMap<ReplicaId, Replica>,
    deadlines: BTreeMap<ReplicaId, Time>,
    /// When the last byte that a replica has sent so far is through its line; while this is `None`,
    /// everything arrives at once.
    lines: Option<BTreeMap<ReplicaId, Time>>,
    /// Bytes of decided slots that each replica sent.
    sent: BTreeMap<ReplicaId, usize>,
    cut: BTreeSet<(ReplicaId, ReplicaId)>,
}

impl World {
    /// Makes a world of replicas that have decided this many slots.
    fn new(voters: u64, slots: u64, command_bytes: usize, state_transfer: StateTransfer) -> World {
        let mut settings = Settings::default();
        settings.state_transfer = state_transfer;
        settings.batch_bytes_max = 1;
        (settings.snapshot_slots, settings.snapshot_log_bytes) = (u64::MAX, u64::MAX);
        let mut world = World {
            settings,
            now: Time::ZERO + Duration::from_secs(3600),
            queue: BTreeMap::new(),
            number: 0,
            replicas: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            lines: None,
            sent: BTreeMap::new(),
            cut: BTreeSet::new(),
        };
        let ids: Vec<ReplicaId> = (1..=voters).map(ReplicaId).collect();
        let group = Group::of(&world.settings.consensus, ids.iter().copied());
        ids.iter().for_each(|&id| world.start(id, &group));
        let leader = world.leader();
        for command in 0..slots {
            let payload = vec![0; command_bytes].into();
            world.ask(leader, command, CommandKind::Apply, payload);
        }
        world.run_until(|world| world.replicas.values().all(|replica| decided(replica) >= Slot(slots)));
        world
    }

    fn start(&mut self, id: ReplicaId, group: &Group) {
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
        let mut actions = Vec::new();
        let replica =
            Replica::start(self.settings.clone(), id, group.clone(), recovered, self.now, &mut actions);
        let peers: Vec<ReplicaId> = self.replicas.keys().copied().collect();
        self.replicas.insert(id, replica);
        self.carry_out(id, actions);
        for peer in peers {
            for (of, to) in [(id, peer), (peer, id)] {
                let link = if self.cut.contains(&(of, to)) {
                    synod_consensus::Link::Down
                } else {
                    synod_consensus::Link::Up
                };
                self.at(self.now, of, Event::Link { peer: to, link });
            }
        }
    }

    /// The leader, once there is one.
    fn leader(&mut self) -> ReplicaId {
        let leads = |replica: &Replica| replica.status().protocol.role == Role::Leader;
        self.run_until(|world| world.replicas.values().any(leads));
        *self.replicas.iter().find(|(_, replica)| leads(replica)).expect("found above").0
    }

    fn ask(&mut self, of: ReplicaId, request: u64, kind: CommandKind, payload: Bytes) {
        let request = RequestId(request);
        self.at(self.now, of, Event::Request { request, kind, session: None, payload });
    }

    fn at(&mut self, time: Time, of: ReplicaId, event: Event) {
        self.number += 1;
        self.queue.insert((time, self.number), (of, event));
    }

    fn run_until(&mut self, done: impl Fn(&World) -> bool) {
        let end = self.now + Duration::from_secs(600);
        while !done(self) {
            let ((time, _), (of, event)) =
                self.queue.pop_first().expect("a replica always waits for something");
            assert!(time < end, "nothing comes of it");
            self.now = self.now.max(time);
            if matches!(event, Event::Timer) && self.deadlines.get(&of) != Some(&time) {
                continue;
            }
            let mut actions = Vec::new();
            let replica = self.replicas.get_mut(&of).expect("it was started");
            replica.step(self.now, event, &mut actions);
            replica.flush(self.now, &mut actions);
            self.carry_out(of, actions);
        }
    }

    fn carry_out(&mut self, of: ReplicaId, actions: Vec<Action>) {
        let mut written = None;
        for action in actions {
            match action {
                Action::Append { lsn, .. } => written = Some(lsn),
                Action::Send { to, message, .. } => {
                    to.ids().iter().for_each(|&to| self.send(of, to, message.clone()));
                }
                Action::Execute { slot, .. } => {
                    self.at(self.now, of, Event::Executed { slot, clock: Default::default() });
                }
                Action::Deadline(time) => {
                    let time = time.max(self.now);
                    self.deadlines.insert(of, time);
                    if time != Time::NEVER {
                        self.at(time, of, Event::Timer);
                    }
                }
                Action::RequestFailed { error, .. } => panic!("a request failed: {error}"),
                _ => {}
            }
        }
        if let Some(lsn) = written {
            self.at(self.now, of, Event::Durable(lsn));
        }
    }

    fn send(&mut self, from: ReplicaId, to: ReplicaId, message: PeerMessage) {
        if self.cut.contains(&(from, to)) || !self.replicas.contains_key(&to) {
            return;
        }
        let bytes = message.encode().to_bytes().len();
        if let PeerMessage::Fetched { .. } | PeerMessage::Pushed { .. } = message {
            *self.sent.entry(from).or_default() += bytes;
        }
        let arrives = match &mut self.lines {
            Some(lines) => {
                let free_at = lines.entry(from).or_insert(self.now);
                *free_at = (*free_at).max(self.now) + Duration::from_secs_f64(bytes as f64 / RATE);
                *free_at + DELAY
            }
            None => self.now,
        };
        self.at(arrives, to, Event::Receive { from, message });
    }

    /// Lets a new member join; returns how long it takes until it has everything.
    fn join(&mut self, reach: Reach) -> Duration {
        let leader = self.leader();
        let group = self.replicas[&leader].group().clone();
        let newcomer = group.next_id;
        let followers = group.voters().filter(|&id| id != leader);
        let cut: Vec<ReplicaId> = match reach {
            Reach::All => Vec::new(),
            Reach::One => followers.skip(1).collect(),
            Reach::NotOne => followers.take(1).collect(),
        };
        let cut = cut.into_iter().flat_map(|id| [(id, newcomer), (newcomer, id)]).collect();
        if reach == Reach::One {
            self.cut.clone_from(&cut);
        }
        let change = Change::Add { info: MemberInfo::default(), goal: Goal::Learn };
        let request = ChangeRequest { expected: group.version, change };
        self.ask(leader, u64::MAX, CommandKind::Reconfigure, request.encode().to_bytes());
        let added = |replica: &Replica| replica.group().member(newcomer).is_some();
        self.run_until(|world| world.replicas.values().all(added));
        self.lines = Some(BTreeMap::new());
        let began = self.now;
        self.start(newcomer, &group);
        self.cut = cut;
        let target = decided(&self.replicas[&leader]);
        self.run_until(|world| decided(&world.replicas[&newcomer]) >= target);
        self.now.since(began)
    }

    /// The share of the leader in what was sent.
    fn leaders_share(&mut self) -> f64 {
        let leader = self.leader();
        let all: usize = self.sent.values().sum();
        self.sent.get(&leader).copied().unwrap_or(0) as f64 / all as f64
    }
}

fn decided(replica: &Replica) -> Slot {
    replica.status().protocol.decided
}

/// Several followers together send faster than one, and the leader sends hardly anything.
#[test]
fn several_followers_are_faster_than_one_and_spare_the_leader() {
    for command_bytes in [100, 1000, 16_000] {
        let bytes = SLOTS as f64 * (command_bytes + 60) as f64;
        println!(
            "{SLOTS} slots of {command_bytes} bytes; on one line they take {:.0} ms",
            bytes / RATE * 1e3
        );
        for voters in [3, 5] {
            let time = |transfer, reach| {
                let mut world = World::new(voters, SLOTS, command_bytes, transfer);
                let time = world.join(reach);
                let share = world.leaders_share();
                assert!(share < 0.2, "the leader sent {:.0} %", share * 100.0);
                time
            };
            let one = time(StateTransfer::Pull, Reach::One);
            let [pull, eager] = [StateTransfer::Pull, StateTransfer::Eager].map(|transfer| {
                let all = time(transfer, Reach::All);
                let not_one = time(transfer, Reach::NotOne);
                println!(
                    "  {voters} voters, {transfer}: {} ms, {} ms if one is silent; from one follower {} ms",
                    all.as_millis(),
                    not_one.as_millis(),
                    one.as_millis()
                );
                all
            });
            let followers = (voters - 1) as u32;
            // It is not quite that many times as fast: the new member first finds out which replica has what,
            // and one replica alone sends the last piece.
            if command_bytes >= 1000 {
                for several in [pull, eager] {
                    assert!(
                        several * followers * 3 < one * 4,
                        "{several:?} from {followers}, {one:?} from one"
                    );
                }
            }
        }
    }
}
