//! A group that begins with the state of a backup, as `synod snapshot restore` makes its members: one slot stands for
//! that state, every first member has a snapshot through it, and nobody orders it (`crates/node/src/restore.rs`).

use std::rc::Rc;

use bytes::Bytes;
#[cfg(feature = "kv")]
use fastrand::Rng;
#[cfg(feature = "kv")]
use prost::Message as _;
#[cfg(feature = "kv")]
use synod_api::{
    etcdserverpb::{AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest},
    synod::v1::{KvAuthChange, KvCommand, kv_auth_change::Change, kv_command::Command},
};
use synod_replica::Executor;
use synod_wire::Slot;

use crate::{
    check::{Checked, Invariant, demand},
    guest::{AnyGuest, Hosting},
    plan::Plan,
};
#[cfg(feature = "kv")]
use crate::{
    check::{Model, linear::Sequential as _},
    ops::{Key, Op, draw_lease_op},
};

/// The slot for which a backup stands.
pub(crate) const SLOT: Slot = Slot(1);

/// Sessions through this one count as opened where the backup was made. No restore counts more.
pub(crate) const LAST_SESSION: u64 = (1 << 40) - 1;

/// Values from this one on are those of a backup; clients number theirs from 0.
#[cfg(feature = "kv")]
const VALUES: u64 = 1_000_000_000;

/// The state of a backup.
#[derive(Debug)]
pub(crate) struct Backup {
    /// What the store did before the backup was made.
    #[cfg(feature = "kv")]
    ops: Vec<Op>,
    guest: Option<Rc<dyn AnyGuest>>,
    snapshot: Bytes,
}

/// A session was opened, which is none of those of the cluster that was backed up: a client of that one would be told
/// the replies of another.
pub(crate) fn opened(backup: Option<&Backup>, session: u64) -> Checked {
    demand(backup.is_none() || session > LAST_SESSION, Invariant::Sound, || {
        format!("session {session} is opened, which may be one of the cluster that was backed up")
    })
}

impl Backup {
    /// The backup with which the group of a plan begins, if it begins with one.
    pub(crate) fn of(
        plan: &Plan,
        executor: impl FnOnce(Hosting) -> Executor<Hosting>,
        guest: Option<&Rc<dyn AnyGuest>>,
    ) -> Option<Backup> {
        plan.begins_with_backup.then(|| {
            let clients = &plan.clients;
            let drawn = Backup::drawn(plan.seed, clients.keys, clients.leases > 0, guest);
            drawn.written_by(executor)
        })
    }

    /// A backup of a store whose clients use this many keys, and perhaps leases; and of a guest's machine. It is not
    /// written yet.
    #[cfg(feature = "kv")]
    fn drawn(seed: u64, keys: Key, leases: bool, guest: Option<&Rc<dyn AnyGuest>>) -> Backup {
        Backup { ops: ops(seed, keys, leases), guest: guest.cloned(), snapshot: Bytes::new() }
    }

    #[cfg(not(feature = "kv"))]
    fn drawn(_: u64, _: u8, _: bool, guest: Option<&Rc<dyn AnyGuest>>) -> Backup {
        Backup { guest: guest.cloned(), snapshot: Bytes::new() }
    }

    /// Writes the snapshot, by an executor that has executed nothing.
    fn written_by(self, executor: impl FnOnce(Hosting) -> Executor<Hosting>) -> Backup {
        let mut executor = executor(self.load(Hosting::of_reference(self.guest.as_ref())));
        executor.begin_with_backup(LAST_SESSION);
        let mut file = Vec::new();
        executor.freeze().write_to(&mut file).expect("memory takes everything");
        Backup { snapshot: file.into(), ..self }
    }

    /// The snapshot with which each first member begins.
    pub(crate) fn snapshot(&self) -> Bytes {
        self.snapshot.clone()
    }

    /// Gives a state machine in its initial state that of the backup.
    pub(crate) fn load(&self, machine: Hosting) -> Hosting {
        #[cfg(feature = "kv")]
        let commands = self.commands();
        #[cfg(not(feature = "kv"))]
        let commands: [Bytes; 0] = [];
        machine.with_backup(&commands, self.guest.as_ref())
    }

    /// The store as the first clients find it.
    #[cfg(feature = "kv")]
    pub(crate) fn model(&self) -> Model {
        let mut model = Model::default();
        self.ops.iter().for_each(|op| _ = model.apply(op));
        model
    }

    /// The commands with which the store came to its state; none of them is in a log.
    #[cfg(feature = "kv")]
    fn commands(&self) -> Vec<Bytes> {
        let numbered = (0..).zip(&self.ops).map(|(number, op)| op.encode(number, 0));
        users().into_iter().chain(numbered).collect()
    }
}

/// Commands that make a user with a role. Users do not count, since nobody says so.
#[cfg(feature = "kv")]
fn users() -> [Bytes; 3] {
    let name = || "root".to_owned();
    let user = AuthUserAddRequest {
        name: name(),
        hashed_password: "a hash".to_owned(),
        ..AuthUserAddRequest::default()
    };
    let changes = [
        Change::UserAdd(user),
        Change::RoleAdd(AuthRoleAddRequest { name: name() }),
        Change::UserGrantRole(AuthUserGrantRoleRequest { user: name(), role: name() }),
    ];
    changes.map(|change| {
        let command = Command::Auth(KvAuthChange { change: Some(change) });
        KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec().into()
    })
}

/// What a store did before a backup of it was made: keys that clients use were written, deleted and compacted, and a
/// lease has a key if clients use leases.
#[cfg(feature = "kv")]
fn ops(seed: u64, keys: Key, leases: bool) -> Vec<Op> {
    let rng = &mut Rng::with_seed(seed ^ 0xba_c4_09);
    let mut ops = vec![Op::Put { key: 1, value: VALUES }];
    let last = VALUES + rng.u64(2..12);
    for value in VALUES + 1..last {
        let key = rng.u8(1..=keys);
        ops.push(match rng.u8(0..8) {
            0 => Op::Delete { first: key, last: key },
            1 => Op::Compact { revision: 2 },
            2..5 if leases => draw_lease_op(rng, key, value),
            _ => Op::Put { key, value },
        });
    }
    ops.push(Op::Put { key: 1, value: last });
    if leases {
        // One that there is already is not granted again.
        ops.push(Op::Grant { lease: 1, seconds: rng.i64(2..5) });
        ops.push(Op::Attach { key: keys, value: last + 1, lease: 1 });
    }
    ops
}

#[cfg(test)]
mod tests {
    use synod_consensus::ProtocolKind;
    use synod_replica::Group;
    use synod_wire::ReplicaId;

    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan { begins_with_backup: true, ..Plan::draw(seed, ProtocolKind::MultiPaxos) }
    }

    fn group(plan: &Plan) -> Group {
        Group::of(&plan.settings.consensus, (1..=3).map(ReplicaId)).after_backup()
    }

    #[test]
    fn a_snapshot_of_a_backup_is_slot_1_with_its_state_and_sessions() {
        let plan = plan(3);
        let group = group(&plan);
        let unused = |machine| Executor::new(machine, group.clone());
        let backup = Backup::of(&plan, unused, None).expect("it begins with one");
        let mut executor = Executor::new(Hosting::of_reference(None), group.clone());
        let empty = executor.digest();
        executor.restore(&mut &backup.snapshot()[..]).unwrap();
        assert_eq!((executor.applied(), executor.group()), (SLOT, &group));
        assert_eq!(executor.cut().slots, [SLOT]);
        assert_ne!(executor.digest(), empty);
        assert!(Backup::of(&Plan { begins_with_backup: false, ..plan }, unused, None).is_none());
    }

    #[cfg(feature = "kv")]
    #[test]
    fn the_store_of_a_backup_is_the_model_and_never_empty() {
        use crate::ops::Answer;
        use synod_replica::StateMachine as _;

        let (mut compacted, mut with_lease) = (0, 0);
        for seed in 0..200 {
            let plan = plan(seed);
            let unused = |machine| Executor::new(machine, group(&plan));
            let backup = Backup::of(&plan, unused, None).expect("it begins with one");
            let machine = backup.load(Hosting::of_reference(None));
            let mut model = backup.model();
            let all = Op::Get { first: 1, last: plan.clients.keys };
            let found = Answer::decode(&all, &machine.query(&all.encode(0, 0))).expect("an answer");
            assert_eq!(found, model.apply(&all), "seed {seed}");
            assert!(found.entries().count() > 0, "seed {seed}");
            let of_lease = found.entries().filter(|entry| entry.lease > 0).count();
            assert_eq!(of_lease > 0, plan.clients.leases > 0, "seed {seed}");
            with_lease += u64::from(of_lease > 0);
            let first = Op::Compact { revision: 2 };
            compacted += u64::from(backup.ops.contains(&first));
        }
        assert!(compacted > 20 && with_lease > 10, "{compacted} {with_lease}");
    }
}
