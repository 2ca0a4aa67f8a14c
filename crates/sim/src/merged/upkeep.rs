//! The upkeep of the store of merged groups: the keeper that a server has, at each node.
//!
//! What it orders travels in any of the groups, so questions and answers of comparisons, and compactions, meet commands
//! of clients in the common order alone.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::AlarmType,
    synod::v1::{
        KvHashCheck, KvQuery, KvReply, KvStatus, KvStatusRequest, kv_answer::Answer, kv_command::Command,
        kv_query::Query, kv_reply::Reply,
    },
};
use synod_host::Input;
use synod_kv::{
    Comparer, KvError, KvStore,
    upkeep::{Comparisons, Done, Keeper, Known, Task, Verdict, of_member},
};
use synod_wire::{CommandKind, GroupId};

use super::{
    Happening, Situation, World,
    machine::{Waiter, id},
};
use crate::{
    check::{Checked, Invariant, demand},
    clock::Moment,
    guest::Hosting,
    network::between,
    watching::Service,
};

/// Keepers have times of their own: so much faster than that of the world, whose runs last seconds.
pub(super) const FASTER: u32 = 100;

/// How often a keeper looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(10));

/// The keeper of a life.
#[derive(Debug)]
pub(super) struct Kept {
    keeper: Keeper,
    seen: Arc<Seen>,
    /// What the keeper waits for.
    under_way: Option<Task>,
}

/// What the log says of comparisons.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Comparisons>);

impl Seen {
    fn comparisons(&self) -> MutexGuard<'_, Comparisons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Comparer for Seen {
    fn seen(&self, member: u64, check: &KvHashCheck, executed_at: i64) {
        self.comparisons().seen(member, check, executed_at);
    }
}

impl World {
    /// A store for a new life, and its keeper, if the plan has one.
    pub(super) fn kept_store(
        &self,
        of: usize,
        life: u64,
        service: Option<&Service>,
    ) -> (Hosting, Option<Kept>) {
        let store = match service {
            Some(service) => KvStore::new().feeding(service.feed()),
            None => KvStore::new(),
        };
        let guest = self.guests.as_ref().map(|guests| &guests.guest);
        let Some(config) = self.plan.upkeep else { return (Hosting::of(store, guest), None) };
        let seen = Arc::new(Seen::default());
        // No other life of any node uses rounds near this one.
        let round = id(of).0 << 48 | life << 32;
        let keeper = Keeper::new(config, id(of).0, round, self.keepers_now());
        let store = store.compared_by(Arc::clone(&seen) as Arc<dyn Comparer>);
        (Hosting::of(store, guest), Some(Kept { keeper, seen, under_way: None }))
    }

    fn keepers_now(&self) -> Duration {
        self.now.since(Moment::START) * FASTER
    }

    /// The keeper of a node looks after a while.
    pub(super) fn look_later(&mut self, of: usize) {
        let machine = &self.machines[of];
        if machine.life.as_ref().is_some_and(|life| life.kept.is_some()) && !self.clients.closing {
            let (life, wait) = (machine.lives, between(&mut self.operator, LOOKS.0, LOOKS.1));
            self.queue.push(self.now + wait, Happening::Look { of, life });
        }
    }

    /// The keeper of a node looks.
    pub(super) fn look(&mut self, of: usize, number: u64) -> Checked {
        if self.machines[of].in_life(number).is_none() {
            return Ok(());
        }
        self.look_later(of);
        let now = self.keepers_now();
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let Some(kept) = life.kept.as_mut().filter(|kept| kept.under_way.is_none()) else { return Ok(()) };
        let executor = life.merged.executor();
        let status = status(executor.machine().store());
        let corrupt = status.alarms.iter().any(|raised| raised.alarm() == AlarmType::Corrupt);
        demand(!corrupt, Invariant::SoundMembers, || {
            format!("r{} knows of corrupt members: {:?}", of + 1, status.alarms)
        })?;
        let members = executor.group_of(GroupId::FIRST).members.len();
        let known = Known {
            revision: status.revision,
            compact_revision: status.compact_revision,
            corrupt,
            takes_care: life.host.replica(GroupId::FIRST).status().takes_care,
            members,
            forked_with: BTreeSet::new(),
        };
        let mut comparisons = kept.seen.comparisons();
        let command = loop {
            let Some(task) = kept.keeper.next(now, &known, &mut comparisons) else { return Ok(()) };
            let command = match &task {
                Task::Heed(judged) => {
                    if judged.verdict == Some(Verdict::Same(members)) {
                        self.counts.see(Situation::MembersCompared);
                    }
                    kept.keeper.done(now, &task, Done::Executed);
                    continue;
                }
                Task::Answer(question) => {
                    let found = executor.machine().store().hash_kv(question.hashed_at());
                    Some(Command::HashCheck(question.answer(found.ok().as_ref())))
                }
                task => task.command(),
            };
            kept.under_way = Some(task);
            break command;
        };
        drop(comparisons);
        let Some(command) = command else { return Ok(()) };
        let payload: Bytes = of_member(id(of).0, command).encode_to_vec().into();
        let group = GroupId(self.operator.u16(0..self.plan.groups.len() as u16));
        let (kind, client) = (CommandKind::Apply, Waiter::Keeper);
        self.give(of, Input::Command { group, kind, session: None, payload, client });
        self.end_burst(of)
    }

    /// A keeper hears what became of what it wanted.
    pub(super) fn kept(&mut self, of: usize, reply: Option<&Bytes>) {
        let now = self.keepers_now();
        let Some(kept) = self.machines[of].life.as_mut().and_then(|life| life.kept.as_mut()) else { return };
        let Some(task) = kept.under_way.take() else { return };
        let reply = reply.and_then(|reply| KvReply::decode(reply.clone()).ok()?.reply);
        let done = match reply {
            Some(Reply::Error(refused)) if refused.message == KvError::Compacted.to_string() => {
                Done::Compacted
            }
            Some(Reply::Error(_)) | None => Done::Failed,
            Some(_) => Done::Executed,
        };
        kept.keeper.done(now, &task, done);
        if let (Task::Compact(_), Done::Executed) = (task, done) {
            self.counts.see(Situation::Compacts);
        }
    }

    /// A store is compacted where the policy permits that, and nowhere else.
    pub(super) fn check_compaction(&mut self, of: usize) -> Checked {
        let (Some(config), Some(life)) = (self.plan.upkeep, &self.machines[of].life) else { return Ok(()) };
        let store = life.merged.executor().machine().store();
        let (now, revision, compacted) = (self.keepers_now(), store.revision(), store.compact_revision());
        let seen = self.compactions.seen(now, revision, compacted, config.compaction);
        demand(seen.is_ok(), Invariant::CompactsWhatIsOld, || {
            format!("r{}: {}", of + 1, seen.clone().err().unwrap_or_default())
        })
    }
}

fn status(store: &KvStore) -> KvStatus {
    let query = KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() };
    match store.query(&query) {
        Ok(Answer::Status(status)) => status,
        other => unreachable!("a status is always told: {other:?}"),
    }
}
