//! Users of the store under every fault that the simulator knows: what a user may do is judged by what was decided
//! before, whatever the server knew that proposed the command, on every replica, after restarts and snapshots.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
};

use bytes::Bytes;
use fastrand::Rng;
use prost::Message as _;
use synod_api::{
    authpb::{Permission, permission::Type},
    etcdserverpb::{
        AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest,
        AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
        AuthUserRevokeRoleRequest, PutRequest,
    },
    synod::v1::{
        KvAuthChange, KvCommand, KvFailure, KvReply, kv_auth_change::Change, kv_command::Command,
        kv_reply::Reply,
    },
};
use synod_consensus::ProtocolKind;
use synod_kv::{KvBug, KvStore, plant};
use synod_replica::{Context, Frozen, StateMachine};
use synod_sim::{Guest, plan::Plan};

/// Users, each with a role of the same name, and keys.
const USERS: u64 = 3;
const KEYS: u64 = 4;

/// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;

/// What a second, simpler reckoning says that users may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Twin {
    enabled: bool,
    revision: u64,
    /// Which users have their role.
    members: BTreeSet<u64>,
    /// Which role permits to write which key.
    permitted: BTreeSet<(u64, u64)>,
}

impl Twin {
    /// What becomes of a put: the code of its refusal, if it is refused.
    fn judges(&self, user: u64, revision: u64, key: u64) -> Option<i32> {
        if !self.enabled {
            return None;
        }
        if revision < self.revision {
            return Some(INVALID_ARGUMENT);
        }
        let may = self.members.contains(&user) && self.permitted.contains(&(user, key));
        (!may).then_some(PERMISSION_DENIED)
    }

    /// Takes a change that the store has made.
    fn change(&mut self, change: &Change, forgets: bool) {
        let number = |name: &str| name[1..].parse::<u64>().unwrap();
        let key = |key: &Bytes| u64::from(key[0] - b'a');
        let changes = match change {
            Change::Enable(_) => {
                self.enabled = true;
                false
            }
            Change::Disable(_) => std::mem::replace(&mut self.enabled, false),
            Change::UserGrantRole(request) => self.members.insert(number(&request.user)),
            Change::UserRevokeRole(request) => self.members.remove(&number(&request.name)),
            Change::RoleGrantPermission(request) => {
                let range = &request.perm.as_ref().unwrap().key;
                self.permitted.insert((number(&request.name), key(range)));
                true
            }
            Change::RoleRevokePermission(request) => {
                if !forgets {
                    self.permitted.remove(&(number(&request.role), key(&request.key)));
                }
                true
            }
            other => panic!("{other:?}"),
        };
        self.revision += u64::from(changes);
    }
}

/// A store with users, and the twin.
#[derive(Debug)]
struct Judged {
    store: KvStore,
    twin: Twin,
    /// Whether the twin forgets revocations, so that a test can see that differences are found out.
    forgets: bool,
    wrong: Option<String>,
}

fn role(number: u64) -> String {
    format!("u{number}")
}

fn of_root(change: Change) -> KvCommand {
    let command = Some(Command::Auth(KvAuthChange { change: Some(change) }));
    // What takes the role root does not look at the revision.
    KvCommand { command, user: "root".into(), auth_revision: 1, ..KvCommand::default() }
}

impl Judged {
    fn new(forgets: bool) -> Judged {
        let mut store = KvStore::new();
        let add = |name: String| Change::UserAdd(AuthUserAddRequest { name, ..Default::default() });
        let mut setup = vec![add("root".into())];
        for number in 0..USERS {
            setup.push(add(role(number)));
            setup.push(Change::RoleAdd(AuthRoleAddRequest { name: role(number) }));
        }
        let (user, role) = ("root".to_owned(), "root".to_owned());
        setup.push(Change::UserGrantRole(AuthUserGrantRoleRequest { user, role }));
        let twin = Twin { revision: 1 + setup.len() as u64, ..Twin::default() };
        for change in setup {
            store.execute(&of_root(change)).unwrap();
        }
        Judged { store, twin, forgets, wrong: None }
    }
}

impl StateMachine for Judged {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        let mut wanted = *context;
        wanted.reply_wanted = true;
        let reply = self.store.apply(command, &wanted);
        let asked = KvCommand::decode(command.clone()).unwrap();
        match (asked.command.unwrap(), KvReply::decode(reply.clone()).unwrap().reply.unwrap()) {
            (Command::Put(put), outcome) => {
                let user = asked.user[1..].parse().unwrap();
                let expected = self.twin.judges(user, asked.auth_revision, u64::from(put.key[0] - b'a'));
                let code = match outcome {
                    Reply::Error(KvFailure { code, .. }) => Some(code),
                    _ => None,
                };
                if code != expected {
                    self.wrong = Some(format!("{put:?} of {user}: {code:?} in place of {expected:?}"));
                }
            }
            (Command::Auth(change), Reply::Auth(changed)) => {
                self.twin.change(&change.change.unwrap(), self.forgets);
                if changed.auth_revision != self.twin.revision {
                    self.wrong = Some(format!("{changed:?} in place of {}", self.twin.revision));
                }
            }
            _ => {}
        }
        reply
    }

    fn query(&self, query: &Bytes) -> Bytes {
        StateMachine::query(&self.store, query)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let Twin { enabled, revision, members, permitted } = &self.twin;
        let mut own = vec![u64::from(*enabled), *revision, members.len() as u64, permitted.len() as u64];
        own.extend(members);
        own.extend(permitted.iter().flat_map(|(user, key)| [*user, *key]));
        Box::new(FrozenJudged { own, store: self.store.freeze() })
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut number = || {
            let mut bytes = [0; 8];
            snapshot.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let (enabled, revision, members, permitted) = (number()? == 1, number()?, number()?, number()?);
        let mut twin = Twin { enabled, revision, ..Twin::default() };
        for _ in 0..members {
            twin.members.insert(number()?);
        }
        for _ in 0..permitted {
            twin.permitted.insert((number()?, number()?));
        }
        self.store.restore(snapshot)?;
        self.twin = twin;
        Ok(())
    }
}

#[derive(Debug)]
struct FrozenJudged {
    own: Vec<u64>,
    store: Box<dyn Frozen>,
}

impl Frozen for FrozenJudged {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        for number in &self.own {
            out.write_all(&number.to_le_bytes())?;
        }
        self.store.write_to(out)
    }
}

/// Clients that put what they may and what they may not, while root changes that. Their servers know users and roles as
/// they are, or as they were some changes ago.
#[derive(Debug, Default)]
struct Judging {
    forgets: bool,
    /// Servers judge by what they know themselves, and order what they permit as if it was their own: a mistake.
    judge: bool,
    /// Users and roles as they were at each revision that any replica has reached.
    known: RefCell<BTreeMap<u64, Twin>>,
}

impl Guest for Judging {
    type Machine = Judged;

    fn machine(&self) -> Judged {
        Judged::new(self.forgets)
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        let (number, letter) = (rng.u64(..USERS), rng.u64(..KEYS));
        let key: Bytes = vec![b'a' + letter as u8].into();
        let (name, range_end) = (role(number), Bytes::new());
        let command = match rng.u8(0..16) {
            0 if rng.bool() => of_root(Change::Disable(AuthDisableRequest {})),
            0 | 1 => of_root(Change::Enable(AuthEnableRequest {})),
            2 | 3 => {
                let (user, role) = (name.clone(), name);
                of_root(Change::UserGrantRole(AuthUserGrantRoleRequest { user, role }))
            }
            4 => of_root(Change::UserRevokeRole(AuthUserRevokeRoleRequest { role: name.clone(), name })),
            5..8 => {
                let perm = Some(Permission { perm_type: Type::Write.into(), key, range_end });
                of_root(Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name, perm }))
            }
            8 => {
                let revoke = AuthRoleRevokePermissionRequest { role: name, key, range_end };
                of_root(Change::RoleRevokePermission(revoke))
            }
            _ => {
                let put = PutRequest { key, value: name.clone().into(), ..PutRequest::default() };
                let lag = if rng.bool() { 0 } else { rng.u64(..3) };
                let known = self.known.borrow();
                let latest = known.last_key_value().map_or(0, |(revision, _)| *revision);
                let auth_revision = latest.saturating_sub(lag).max(1);
                let permits = |twin: &Twin| twin.judges(number, auth_revision, letter).is_none();
                let of_member = self.judge && known.get(&auth_revision).is_some_and(permits);
                KvCommand {
                    command: Some(Command::Put(put)),
                    user: name,
                    auth_revision,
                    of_member,
                    ..KvCommand::default()
                }
            }
        };
        command.encode_to_vec().into()
    }

    /// The store has a digest, and what was found wrong is told at once.
    fn state(&self, machine: &Judged) -> String {
        format!("{:?}", machine.twin)
    }

    fn check(&self, machine: &Judged) -> Result<(), String> {
        self.known.borrow_mut().insert(machine.twin.revision, machine.twin.clone());
        machine.wrong.clone().map_or(Ok(()), Err)
    }
}

fn run(forgets: bool, judge: bool, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        for protocol in [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft] {
            let guest = Judging { forgets, judge, ..Judging::default() };
            let run = synod_sim::run_guest(&Plan::draw(seed, protocol), guest);
            run.map_err(|failure| format!("seed {seed} {protocol:?}: {}", failure.violation))?;
        }
    }
    Ok(())
}

/// The same in groups that are merged into one order, so that users and roles change in any of them.
fn run_merged(forgets: bool, judge: bool, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let guest = Judging { forgets, judge, ..Judging::default() };
        let run = synod_sim::run_guest(&Plan::draw_merging(seed), guest);
        run.map_err(|failure| failure.to_string())?;
    }
    Ok(())
}

#[test]
fn users_of_merged_groups_are_judged_by_what_was_decided_before() {
    run_merged(false, false, 0..20).unwrap();
}

#[test]
fn a_wrong_judgement_of_merged_groups_would_be_found_out() {
    for (forgets, judge) in [(true, false), (false, true)] {
        let found = run_merged(forgets, judge, 0..50).unwrap_err();
        assert!(found.contains("in place of"), "{found}");
    }
}

#[test]
fn users_are_judged_by_what_was_decided_before() {
    run(false, false, 0..5).unwrap();
}

#[test]
fn a_revocation_that_does_not_count_would_be_found_out() {
    let found = run(true, false, 0..25).unwrap_err();
    assert!(found.contains("in place of"), "{found}");
}

#[test]
fn a_right_that_is_judged_by_what_the_proposer_knows_would_be_found_out() {
    let found = run(false, true, 0..25).unwrap_err();
    assert!(found.contains("in place of"), "{found}");
}

#[test]
fn each_planted_bug_of_users_is_found() {
    for &bug in KvBug::AUTH {
        plant(Some(bug));
        let found = (0..100).find_map(|seed| run(false, false, seed..seed + 1).err());
        plant(None);
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} is not found")));
    }
}
