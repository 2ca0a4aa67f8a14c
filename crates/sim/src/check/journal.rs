//! What a log says beyond its replies: what each revision changed, and what became of leases.
//!
//! It is found by reads of the one store that nothing happens to, before and after each command. So those who watch
//! are compared with what a client reads, and not with the code that makes events.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::RangeInclusive,
};

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{LeaseLeasesRequest, LeaseTimeToLiveRequest, RangeRequest},
    mvccpb::{Event, KeyValue, event::EventType},
    synod::v1::{
        KvCommand, KvQuery, KvReply, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_kv::KvStore;

use super::leases::LeaseAct;

/// What a store went through.
#[derive(Debug)]
pub(crate) struct Journal {
    revision: i64,
    contents: BTreeMap<Bytes, KeyValue>,
    /// The changes of each revision, in the order of keys, which is also that in which clients change them.
    changes: BTreeMap<i64, Vec<Event>>,
    /// The revisions at which the store was compacted.
    compactions: BTreeSet<i64>,
    /// The leases that exist, each with the seconds that it has left.
    leases: BTreeMap<i64, i64>,
    acts: Vec<LeaseAct>,
    wrong: Option<String>,
}

impl Default for Journal {
    fn default() -> Journal {
        Journal {
            // Stores begin with revision 1.
            revision: 1,
            contents: BTreeMap::new(),
            changes: BTreeMap::new(),
            compactions: BTreeSet::new(),
            leases: BTreeMap::new(),
            acts: Vec::new(),
            wrong: None,
        }
    }
}

impl Journal {
    /// The revision of the store.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether the store was compacted at this revision.
    pub(crate) fn is_compacted_at(&self, revision: i64) -> bool {
        self.compactions.contains(&revision)
    }

    /// What these revisions changed.
    pub(crate) fn changes(&self, revisions: RangeInclusive<i64>) -> impl Iterator<Item = &Event> {
        let revisions = (!revisions.is_empty()).then(|| self.changes.range(revisions));
        revisions.into_iter().flatten().flat_map(|(_, events)| events)
    }

    /// Whether leases exist.
    pub(crate) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// What became of leases since the last call.
    ///
    /// # Errors
    /// Keys of a lease did not go with it, or not at one revision.
    pub(crate) fn take_acts(&mut self) -> Result<Vec<LeaseAct>, String> {
        self.wrong.take().map_or_else(|| Ok(mem::take(&mut self.acts)), Err)
    }

    /// The store has executed a command, and replied this.
    pub(crate) fn executed(&mut self, store: &KvStore, command: &Bytes, reply: &Bytes) {
        if store.compact_revision() > 0 {
            self.compactions.insert(store.compact_revision());
        }
        let before = self.revision;
        self.read(store);
        let asked = KvCommand::decode(command.clone()).ok().and_then(|command| command.command);
        let replied = KvReply::decode(reply.clone()).ok().and_then(|reply| reply.reply);
        match (asked, replied) {
            (_, Some(Reply::LeaseGrant(granted))) => {
                self.acts.push(LeaseAct::Lives { lease: granted.id, seconds: granted.ttl });
                self.leases = leases(store);
            }
            (Some(Command::LeaseRenew(renew)), Some(Reply::LeaseRenew(renewed))) => {
                let lives = renew.ids.into_iter().zip(renewed.ttls).filter(|(_, ttl)| *ttl > 0);
                self.acts.extend(lives.map(|(lease, seconds)| LeaseAct::Lives { lease, seconds }));
                self.leases = leases(store);
            }
            (Some(Command::LeaseRevoke(revoke)), Some(Reply::LeaseRevoke(_))) => {
                self.acts.push(LeaseAct::Revoked { lease: revoke.id });
                self.leases.remove(&revoke.id);
                self.takes_its_keys(&[revoke.id], before);
            }
            _ => {}
        }
    }

    /// The replicated clock has moved.
    pub(crate) fn clock_moved(&mut self, store: &KvStore) {
        if self.leases.is_empty() {
            return;
        }
        let before = self.revision;
        let had_keys: BTreeSet<i64> = self.contents.values().map(|pair| pair.lease).collect();
        self.read(store);
        let left = leases(store);
        let mut ended = Vec::new();
        for (&lease, seconds) in &self.leases {
            match left.get(&lease) {
                None => {
                    ended.push(lease);
                    self.acts.push(LeaseAct::Ended { lease, had_keys: had_keys.contains(&lease) });
                }
                Some(left) if left > seconds => self.acts.push(LeaseAct::StartsAgain { lease }),
                Some(_) => {}
            }
        }
        self.leases = left;
        self.takes_its_keys(&ended, before);
    }

    /// Leases that do not exist any more have taken their keys with them, each at one revision since this one.
    fn takes_its_keys(&mut self, gone: &[i64], before: i64) {
        if let Some(pair) = self.contents.values().find(|pair| gone.contains(&pair.lease)) {
            self.wrong = Some(format!("lease {} is gone, and its key {:?} is not", pair.lease, pair.key));
        }
        let mut of_leases = BTreeSet::new();
        for (revision, events) in self.changes.range(before + 1..) {
            let leases: BTreeSet<_> =
                events.iter().map(|event| event.prev_kv.as_ref().map_or(0, |pair| pair.lease)).collect();
            let once = leases.len() == 1 && leases.iter().all(|lease| of_leases.insert(*lease));
            if !once || !leases.iter().all(|lease| gone.contains(lease)) {
                self.wrong = Some(format!(
                    "leases {gone:?} are gone, and revision {revision} takes keys of {leases:?}"
                ));
            }
        }
    }

    /// Reads what the revisions since the last one changed.
    fn read(&mut self, store: &KvStore) {
        for revision in self.revision + 1..=store.revision() {
            let contents = contents(store, revision);
            let mut events = BTreeMap::new();
            for (key, pair) in contents.iter().filter(|(_, pair)| pair.mod_revision == revision) {
                let prev_kv = self.contents.get(key).cloned();
                let r#type = EventType::Put.into();
                events.insert(key.clone(), Event { r#type, kv: Some(pair.clone()), prev_kv });
            }
            for (key, pair) in self.contents.iter().filter(|(key, _)| !contents.contains_key(*key)) {
                let gone = KeyValue { key: key.clone(), mod_revision: revision, ..KeyValue::default() };
                let (r#type, prev_kv) = (EventType::Delete.into(), Some(pair.clone()));
                events.insert(key.clone(), Event { r#type, kv: Some(gone), prev_kv });
            }
            self.changes.insert(revision, events.into_values().collect());
            (self.contents, self.revision) = (contents, revision);
        }
    }
}

fn ask(store: &KvStore, query: Query) -> Answer {
    let query = KvQuery { query: Some(query), ..KvQuery::default() };
    store.query(&query).unwrap_or_else(|error| unreachable!("it is always answered: {error}"))
}

/// The pairs that there are at a revision.
fn contents(store: &KvStore, revision: i64) -> BTreeMap<Bytes, KeyValue> {
    let (key, range_end) = (Bytes::from_static(&[0]), Bytes::from_static(&[0]));
    let all = RangeRequest { key, range_end, revision, ..RangeRequest::default() };
    match ask(store, Query::Range(all)) {
        Answer::Range(found) => found.kvs.into_iter().map(|pair| (pair.key.clone(), pair)).collect(),
        other => unreachable!("{other:?}"),
    }
}

/// The leases that there are, each with the seconds that it has left.
fn leases(store: &KvStore) -> BTreeMap<i64, i64> {
    let Answer::LeaseLeases(found) = ask(store, Query::LeaseLeases(LeaseLeasesRequest {})) else {
        unreachable!("leases are always listed")
    };
    let left = |id| match ask(store, Query::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: false })) {
        Answer::LeaseTimeToLive(found) => found.ttl,
        other => unreachable!("{other:?}"),
    };
    found.leases.iter().map(|lease| (lease.id, left(lease.id))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use synod_replica::{Context, StateMachine as _};
    use synod_wire::{SessionId, Slot};

    use super::*;
    use crate::ops::{Op, Other};

    /// A store with its journal.
    #[derive(Default)]
    struct Told {
        store: KvStore,
        journal: Journal,
        slot: u64,
        clock: Duration,
    }

    impl Told {
        fn context(&mut self) -> Context {
            self.slot += 1;
            let mut context = Context::new(Slot(self.slot));
            (context.time, context.reply_wanted) = (self.clock, true);
            context
        }

        fn execute(&mut self, op: &Op) {
            let (command, context) = (op.encode(self.slot, 0), self.context());
            let reply = self.store.apply(&command, &context);
            self.journal.executed(&self.store, &command, &reply);
        }

        fn tick(&mut self, by: Duration, mover: u64) {
            self.clock += by;
            let context = self.context();
            self.store.clock_moved(&context, SessionId(mover));
            self.journal.clock_moved(&self.store);
        }

        fn changes(&self, revision: i64) -> Vec<(bool, String, i64, Option<i64>)> {
            let told = |event: &Event| {
                let kv = event.kv.as_ref().unwrap();
                let key = String::from_utf8(kv.key.to_vec()).unwrap();
                let is_put = event.r#type == i32::from(EventType::Put);
                (is_put, key, kv.version, event.prev_kv.as_ref().map(|pair| pair.mod_revision))
            };
            self.journal.changes(revision..=revision).map(told).collect()
        }
    }

    #[test]
    fn each_revision_says_what_it_changed() {
        let mut told = Told::default();
        told.execute(&Op::Put { key: 1, value: 7 });
        told.execute(&Op::Swap { key: 1, expected: 2, value: 8, other: Other::Put(2) });
        told.execute(&Op::Compact { revision: 3 });
        told.execute(&Op::Swap { key: 1, expected: 9, value: 8, other: Other::Nothing });
        told.execute(&Op::Delete { first: 1, last: 2 });
        let key = |number: u8| format!("k{number}");
        assert_eq!(told.changes(2), [(true, key(1), 1, None)]);
        assert_eq!(told.changes(3), [(true, key(1), 2, Some(2)), (true, key(2), 1, None)]);
        assert_eq!(told.changes(4), [(false, key(1), 0, Some(3)), (false, key(2), 0, Some(3))]);
        assert_eq!(told.journal.revision(), 4);
        assert!(told.journal.is_compacted_at(3) && !told.journal.is_compacted_at(4));
        let last = told.journal.revision();
        assert_eq!(told.journal.changes(last + 1..=last).count(), 0, "none");
    }

    #[test]
    fn leases_end_start_again_and_are_revoked() {
        let second = Duration::from_secs(1);
        let mut told = Told::default();
        told.execute(&Op::Grant { lease: 1, seconds: 2 });
        told.execute(&Op::Grant { lease: 2, seconds: 2 });
        told.execute(&Op::Attach { key: 1, value: 3, lease: 1 });
        told.execute(&Op::Attach { key: 2, value: 4, lease: 2 });
        told.execute(&Op::Revoke { lease: 2 });
        for (by, mover) in [(second / 10, 5), (second / 10, 5), (second, 5), (second / 10, 6)] {
            told.tick(by, mover);
        }
        assert_eq!(
            told.journal.take_acts().unwrap(),
            [
                LeaseAct::Lives { lease: 1, seconds: 2 },
                LeaseAct::Lives { lease: 2, seconds: 2 },
                LeaseAct::Revoked { lease: 2 },
                LeaseAct::StartsAgain { lease: 1 },
            ]
        );
        assert!(told.journal.has_leases());
        told.tick(2 * second, 6);
        let ended = LeaseAct::Ended { lease: 1, had_keys: true };
        assert_eq!(told.journal.take_acts().unwrap(), [ended]);
        assert!(!told.journal.has_leases());
        assert_eq!(told.changes(told.store.revision()).len(), 1);
    }

    #[test]
    fn a_key_that_stays_is_noticed() {
        let mut told = Told::default();
        told.execute(&Op::Grant { lease: 1, seconds: 2 });
        told.execute(&Op::Attach { key: 1, value: 3, lease: 1 });
        told.journal.takes_its_keys(&[1], told.store.revision());
        assert!(told.journal.take_acts().unwrap_err().contains("its key"));
        told.execute(&Op::Put { key: 1, value: 5 });
        told.journal.takes_its_keys(&[1], told.store.revision() - 1);
        assert!(told.journal.take_acts().is_ok(), "the key was of that lease");
        told.execute(&Op::Put { key: 2, value: 6 });
        told.journal.takes_its_keys(&[1], told.store.revision() - 1);
        assert!(told.journal.take_acts().unwrap_err().contains("takes keys"));
    }
}
