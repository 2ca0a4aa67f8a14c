//! Leases: keys that go away together when their client is not heard of for some time.
//!
//! A lease ends by the replicated clock, which the log moves, so all replicas end it in the same slot. It never ends
//! early: from the moment at which the first replica executes a grant or a renewal, at least the lease's time to live
//! passes, as the fastest clock of a replica measures it, before any replica ends the lease. The clock alone does not
//! say so, since it lags: it may show a lease's time to live more than at the grant although less went by since.
//!
//! So the time to live is counted from what the clock shows after it has moved **twice** since the grant. The argument,
//! with the ticks a, b, c as they move the clock after the grant is executed (`synod_replica::clock` has what a tick
//! is):
//!
//! - Tick b moves a clock that tick a has moved, so the proposer of b has seen the clock after a, which means that it
//!   had executed the grant before; let p be the moment of that proposal, which is not before the first execution of
//!   the grant.
//! - The proposer of c counts what went by since it saw the clock after b, or since it proposed b itself: since p or
//!   later. The same holds, from then on, of each further tick. So what ticks add to the clock after b went by after p.
//! - The lease ends when they have added its time to live.
//!
//! When very many leases are granted or renewed at once, some have their turns with later ticks than a and b, since a
//! tick counts only this many: they end later.
//!
//! There is one exception: the proposer of c may have proposed another tick before p, to the very instant to which b
//! moved the clock. It counts from that proposal then (`ClockView::shows`). But b is the tick of another replica, or of
//! an earlier life, so all leases start again with c, as the next paragraph says, and the argument holds with c in the
//! place of b.
//!
//! When the log has stood still, clients could not renew: all leases start again with their whole time to live, as in
//! etcd after an election. That is so when another life of a replica moves the clock than the one before, when one tick
//! is longer than ticks are while there are leases ([`STANDSTILL_MS`]), and when the last alarm CORRUPT is cleared,
//! which refuses renewals. All of that is in the log, so all replicas agree, and a lease only becomes longer.
//!
//! Without leases there is nothing to remember here, and stores that were restored from a snapshot are as the others.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::RangeBounds,
};

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use synod_api::{
    etcdserverpb::{
        AlarmType, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesResponse, LeaseRevokeResponse,
        LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    },
    synod::v1::{KvLeaseRenew, KvLeasesRenewed},
};

use crate::{KvBug, KvError, KvStore, auth::Caller, budget::Budget, key::Key, planted, store::header};

/// What a lease counts against the quota.
pub(crate) const LEASE_BYTES: u64 = 256;

/// The shortest time to live, in seconds; a shorter one is raised to it. It is etcd's, and some election time-outs.
const TTL_SECONDS_MIN: i64 = 2;
/// The longest time to live, in seconds, as with etcd.
pub(crate) const TTL_SECONDS_MAX: i64 = 9_000_000_000;

/// While there are leases the clock is to move at least this often, so that clients see how long a lease has left.
const SHOWN_MS: u64 = 1_000;
/// A tick that is longer tells that the log has stood still.
const STANDSTILL_MS: u64 = 3 * SHOWN_MS;

/// Leases that end with one tick. The others follow with the next ticks.
const ENDED_MAX: usize = 256;
/// No further lease ends with a tick that has deleted this many keys. All keys of a lease go at one revision.
const ENDED_KEYS_MAX: usize = 512;
/// Leases whose time one tick begins to count, and leases to which it gives a later end. The executor works for about
/// 1 µs for each. The others follow with the next ticks, so they end later.
const COUNTED_MAX: usize = 2_500;

/// How many times the clock must move, with a turn for the lease, until what it shows counts for a lease that was
/// granted or renewed.
pub(crate) const TICKS: u8 = 2;

/// All leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leases {
    /// What the replicated clock shows; 0 without leases.
    pub(crate) clock_ms: u64,
    /// The session of the replica that moved the clock last; 0 if it has not moved since the first lease was granted,
    /// or since an alarm was cleared under which clients could not renew.
    pub(crate) mover: u64,
    /// What the clock showed when all leases last started again.
    pub(crate) restarted_ms: u64,
    all: OrdMap<i64, Lease>,
    /// The leases whose time is not counted yet, each at a place that says nothing of its id.
    fresh: OrdSet<(u64, i64)>,
    /// The others, by the time at which they end unless they have started again since.
    by_end: OrdSet<(u64, i64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Seconds.
    pub(crate) ttl: i64,
    pub(crate) end: End,
    pub(crate) keys: OrdSet<Key>,
}

/// When a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its time counts once the clock has moved this many times.
    After(u8),
    /// It ends when the clock shows this.
    At(u64),
}

/// Spreads numbers over all that there are, whether they are close to each other or not: successive multiples of the
/// golden ratio fall far from each other.
fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Lease {
    fn ttl_ms(&self) -> u64 {
        self.ttl.unsigned_abs().saturating_mul(1_000)
    }
}

impl Leases {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn contains(&self, id: i64) -> bool {
        self.all.contains_key(&id)
    }

    /// The leases in a range of ids.
    pub(crate) fn range(&self, ids: impl RangeBounds<i64>) -> impl Iterator<Item = (&i64, &Lease)> {
        self.all.range(ids)
    }

    /// The keys of a lease; none if it does not exist.
    pub(crate) fn keys_of(&self, id: i64) -> impl Iterator<Item = &Key> {
        self.all.get(&id).into_iter().flat_map(|lease| &lease.keys)
    }

    /// How many keys a lease has.
    pub(crate) fn key_count(&self, id: i64) -> usize {
        self.all.get(&id).map_or(0, |lease| lease.keys.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&i64, &Lease)> {
        self.all.iter()
    }

    /// Adds a lease without keys, of a snapshot or a new one.
    pub(crate) fn insert(&mut self, id: i64, ttl: i64, end: End) {
        match end {
            End::After(_) => _ = self.fresh.insert((mixed(id.cast_unsigned()), id)),
            End::At(at) => _ = self.by_end.insert((at, id)),
        }
        self.all.insert(id, Lease { ttl, end, keys: OrdSet::new() });
    }

    fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.all.remove(&id)?;
        self.forget_end(id, lease.end);
        if self.all.is_empty() {
            *self = Leases::default();
        }
        Some(lease)
    }

    fn forget_end(&mut self, id: i64, end: End) {
        match end {
            End::After(_) => _ = self.fresh.remove(&(mixed(id.cast_unsigned()), id)),
            End::At(at) => _ = self.by_end.remove(&(at, id)),
        }
    }

    fn set_end(&mut self, id: i64, end: End) {
        let Some(lease) = self.all.get_mut(&id) else { return };
        let before = std::mem::replace(&mut lease.end, end);
        if let (End::After(_), End::After(_)) = (before, end) {
            return;
        }
        self.forget_end(id, before);
        match end {
            End::After(_) => _ = self.fresh.insert((mixed(id.cast_unsigned()), id)),
            End::At(at) => _ = self.by_end.insert((at, id)),
        }
    }

    /// A key has another lease than before, or is gone. 0 stands for no lease. The new lease exists.
    pub(crate) fn attach(&mut self, key: &Key, before: i64, after: i64) {
        if before == after {
            return;
        }
        if let Some(lease) = self.all.get_mut(&before) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.all.get_mut(&after) {
            lease.keys.insert(key.clone());
        }
    }

    /// Lets all leases start again when the clock moves next.
    pub(crate) fn restart(&mut self) {
        self.mover = 0;
    }

    /// The clock has moved.
    fn advance(&mut self, clock_ms: u64, mover: u64) {
        if self.all.is_empty() {
            return;
        }
        let by = clock_ms.saturating_sub(self.clock_ms);
        self.clock_ms = clock_ms;
        let at_once = planted::has(KvBug::LeaseCountsAtOnce);
        if self.mover != mover && !at_once || by > STANDSTILL_MS {
            self.mover = mover;
            self.restarted_ms = clock_ms;
        }
        let counts_from = if at_once { clock_ms - by } else { clock_ms };
        for id in self.in_turn() {
            let lease = &self.all[&id];
            let end = match lease.end {
                End::After(ticks) if ticks > 1 && !at_once => End::After(ticks - 1),
                _ => End::At(counts_from.saturating_add(lease.ttl_ms())),
            };
            self.set_end(id, end);
        }
    }

    /// The leases that this tick brings closer to their end. If not all can have their turn, each tick begins at
    /// another place, so that none is passed over forever. The clock says where, so all replicas begin at the same.
    fn in_turn(&self) -> Vec<i64> {
        let place = (mixed(self.clock_ms), i64::MIN);
        let from_there = self.fresh.range(place..).chain(self.fresh.range(..place));
        from_there.take(COUNTED_MAX).map(|(_, id)| *id).collect()
    }

    /// A lease that is due, and when it ends: later, if it has started again since its end was set.
    fn next_due(&self) -> Option<(i64, u64)> {
        let &(at, id) = self.by_end.get_min().filter(|(at, _)| *at <= self.clock_ms)?;
        Some((id, self.end_of(at, &self.all[&id])))
    }

    /// When a lease ends whose end was set to this.
    fn end_of(&self, at: u64, lease: &Lease) -> u64 {
        at.max(self.restarted_ms.saturating_add(lease.ttl_ms()))
    }

    /// Seconds that a lease has left.
    fn seconds_left(&self, lease: &Lease) -> i64 {
        match lease.end {
            End::After(_) => lease.ttl,
            End::At(at) => {
                let left = self.end_of(at, lease).saturating_sub(self.clock_ms) / 1_000;
                i64::try_from(left).unwrap_or(i64::MAX)
            }
        }
    }

    /// What the clock shows when something is due here, or a client would see that it lags.
    pub(crate) fn waits_for(&self) -> Option<u64> {
        if self.all.is_empty() {
            return None;
        }
        if !self.fresh.is_empty() {
            return Some(self.clock_ms);
        }
        let shown = self.clock_ms.saturating_add(SHOWN_MS);
        Some(self.by_end.get_min().map_or(shown, |(at, _)| shown.min(*at)))
    }
}

impl KvStore {
    pub(crate) fn lease_grant(&mut self, request: &LeaseGrantRequest) -> Result<LeaseGrantResponse, KvError> {
        let LeaseGrantRequest { ttl, id } = *request;
        if id == 0 {
            return Err(KvError::LeaseNotFound);
        }
        if ttl > TTL_SECONDS_MAX {
            return Err(KvError::LeaseTtlTooLarge);
        }
        if self.leases.contains(id) {
            return Err(KvError::LeaseExists);
        }
        let ttl = ttl.max(TTL_SECONDS_MIN);
        if self.leases.is_empty() {
            self.leases.clock_ms = self.now_ms;
        }
        self.leases.insert(id, ttl, End::After(TICKS));
        self.size_bytes += LEASE_BYTES;
        Ok(LeaseGrantResponse { header: header(self.revision), id, ttl, error: String::new() })
    }

    pub(crate) fn lease_revoke(&mut self, id: i64) -> Result<LeaseRevokeResponse, KvError> {
        if !self.leases.contains(id) {
            return Err(KvError::LeaseNotFound);
        }
        self.end_lease(id);
        Ok(LeaseRevokeResponse { header: header(self.revision) })
    }

    /// Renews leases, and says for how many seconds each; 0 for one that does not exist, -1 for one with a key that the
    /// caller may not put.
    pub(crate) fn lease_renew(
        &mut self,
        request: &KvLeaseRenew,
        caller: &Caller<'_>,
        budget: &mut Budget,
    ) -> Result<KvLeasesRenewed, KvError> {
        // A client may renew a lease again and again: it is judged once, and all are judged before any is renewed.
        let mut permitted = BTreeMap::new();
        for &id in &request.ids {
            if let Entry::Vacant(vacant) = permitted.entry(id) {
                match self.may_write_keys_of(caller, id, budget) {
                    Ok(()) => _ = vacant.insert(true),
                    Err(KvError::PermissionDenied) => _ = vacant.insert(false),
                    Err(error) => return Err(error),
                }
            }
        }
        // Then no lease ends, and all start again later: there is nothing to renew.
        let none_ends = self.has_alarm(AlarmType::Corrupt);
        let renewed = request.ids.iter().map(|&id| {
            if !permitted[&id] {
                return -1;
            }
            if !none_ends {
                self.leases.set_end(id, End::After(TICKS));
            }
            self.leases.all.get(&id).map_or(0, |lease| lease.ttl)
        });
        let ttls = renewed.collect();
        Ok(KvLeasesRenewed { revision: self.revision, ttls })
    }

    pub(crate) fn lease_time_to_live(
        &self,
        request: &LeaseTimeToLiveRequest,
        budget: &mut Budget,
    ) -> Result<LeaseTimeToLiveResponse, KvError> {
        let (header, id) = (header(self.revision), request.id);
        let Some(lease) = self.leases.all.get(&id) else {
            return Ok(LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() });
        };
        let mut keys = Vec::new();
        let wanted = request.keys.then_some(&lease.keys);
        for key in wanted.into_iter().flatten() {
            budget.look()?;
            budget.answer(key, &[])?;
            keys.push(Bytes::copy_from_slice(key));
        }
        let ttl = self.leases.seconds_left(lease);
        Ok(LeaseTimeToLiveResponse { header, id, ttl, granted_ttl: lease.ttl, keys })
    }

    pub(crate) fn lease_leases(&self) -> LeaseLeasesResponse {
        let leases = self.leases.all.keys().map(|&id| LeaseStatus { id }).collect();
        LeaseLeasesResponse { header: header(self.revision), leases }
    }

    /// The replicated clock has moved: leases end whose time is up. While replicas are known to differ, time stands
    /// still for leases, since clients cannot renew.
    pub(crate) fn clock_moved(&mut self, clock_ms: u64, mover: u64) {
        self.now_ms = clock_ms;
        if self.has_alarm(AlarmType::Corrupt) {
            return;
        }
        self.leases.advance(clock_ms, mover);
        let (mut ended, mut keys, mut put_off) = (0, 0, 0);
        while ended < ENDED_MAX && keys < ENDED_KEYS_MAX && put_off < COUNTED_MAX {
            let Some((id, end)) = self.leases.next_due() else { break };
            if end <= clock_ms {
                keys += self.end_lease(id);
                ended += 1;
            } else {
                self.leases.set_end(id, End::At(end));
                put_off += 1;
            }
        }
    }

    /// Ends a lease, and deletes its keys at one revision. Says how many these are.
    fn end_lease(&mut self, id: i64) -> usize {
        let Some(mut lease) = self.leases.remove(id) else { return 0 };
        self.size_bytes -= LEASE_BYTES;
        self.holders.forget(id);
        let mut writes = self.begin();
        if planted::has(KvBug::LeaseLeavesAKey) {
            lease.keys.remove_max();
        }
        let keys = lease.keys.len();
        self.counted.deletions += keys as u64;
        for key in lease.keys {
            self.write_tombstone(&mut writes, key);
        }
        self.commit(writes);
        keys
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use synod_api::synod::v1::{
        KvQuery, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply,
    };
    use synod_replica::StateMachine as _;

    use super::*;
    use crate::testing::{Execute, all, keys, op, op_delete, put};
    use synod_api::etcdserverpb::{
        LeaseLeasesRequest, LeaseRevokeRequest, PutRequest, alarm_request::AlarmAction, request_op::Request,
    };

    const MOVER: u64 = 7;

    fn grant(store: &mut KvStore, id: i64, ttl: i64) -> Result<Reply, KvError> {
        store.send(Command::LeaseGrant(LeaseGrantRequest { ttl, id }))
    }

    fn set(store: &mut KvStore, key: &str, lease: i64) -> Result<(), KvError> {
        store.set_with(PutRequest { lease, ..put(key, "v") }).map(drop)
    }

    fn left(store: &KvStore, id: i64) -> (i64, Vec<String>) {
        let request = LeaseTimeToLiveRequest { id, keys: true };
        let Ok(Answer::LeaseTimeToLive(found)) = store.ask(Query::LeaseTimeToLive(request)) else { panic!() };
        let text = |key: &bytes::Bytes| String::from_utf8(key.to_vec()).unwrap();
        (found.ttl, found.keys.iter().map(text).collect())
    }

    fn all_keys(store: &KvStore) -> Vec<String> {
        let found = store.read_at("\0", "\0", 0).unwrap();
        keys(&found).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_lease_takes_its_keys_with_it_at_one_revision() {
        let mut store = KvStore::new();
        grant(&mut store, 1, 10).unwrap();
        for key in ["b", "a", "c", "d"] {
            set(&mut store, key, 1).unwrap();
        }
        set(&mut store, "x", 0).unwrap();
        // A put without the lease detaches, as does a deletion; one that keeps the lease does not.
        set(&mut store, "c", 0).unwrap();
        store.del("d", "");
        store.set_with(PutRequest { ignore_lease: true, ..put("a", "again") }).unwrap();
        assert_eq!(left(&store, 1), (10, vec!["a".into(), "b".into()]));
        let revision = store.revision();
        store.send(Command::LeaseRevoke(LeaseRevokeRequest { id: 1 })).unwrap();
        assert_eq!((store.revision(), all_keys(&store)), (revision + 1, vec!["c".into(), "x".into()]));
        assert_eq!(left(&store, 1), (-1, vec![]));
        // Without keys it changes no revision.
        grant(&mut store, 2, 10).unwrap();
        store.send(Command::LeaseRevoke(LeaseRevokeRequest { id: 2 })).unwrap();
        assert_eq!(store.revision(), revision + 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_etcds_words() {
        let mut store = KvStore::new();
        let text = |refused: Result<Reply, KvError>| {
            let error = refused.unwrap_err();
            (error.code(), error.to_string())
        };
        let not_found = (5, "etcdserver: requested lease not found".to_owned());
        assert_eq!(text(store.send(Command::LeaseRevoke(LeaseRevokeRequest { id: 1 }))), not_found);
        assert_eq!(set(&mut store, "k", 1), Err(KvError::LeaseNotFound));
        assert_eq!(
            text(grant(&mut store, 1, 9_000_000_001)),
            (11, "etcdserver: too large lease TTL".to_owned())
        );
        grant(&mut store, 1, 1).unwrap();
        assert_eq!(left(&store, 1).0, 2, "the least there is");
        assert_eq!(text(grant(&mut store, 1, 5)), (9, "etcdserver: lease already exists".to_owned()));
        let renew = KvLeaseRenew { ids: vec![1, 2] };
        let Ok(Reply::LeaseRenew(renewed)) = store.send(Command::LeaseRenew(renew)) else { panic!() };
        assert_eq!(renewed.ttls, [2, 0]);
        let Ok(Answer::LeaseLeases(found)) = store.ask(Query::LeaseLeases(LeaseLeasesRequest {})) else {
            panic!()
        };
        assert_eq!(found.leases, [LeaseStatus { id: 1 }]);
    }

    #[test]
    fn a_transaction_that_is_undone_leaves_leases_as_they_were() {
        let mut store = KvStore::new();
        grant(&mut store, 1, 10).unwrap();
        grant(&mut store, 2, 10).unwrap();
        set(&mut store, "k", 1).unwrap();
        set(&mut store, "l", 2).unwrap();
        let digest = store.digest();
        let moved = op(Request::RequestPut(PutRequest { lease: 2, ..put("k", "v") }));
        let txn = crate::testing::command(Command::Txn(all(vec![moved, op_delete("l", "z")])));
        store.execute(&synod_api::synod::v1::KvCommand { answer_bytes_max: 1, ..txn }).unwrap_err();
        assert_eq!(store.digest(), digest);
        assert_eq!((left(&store, 1).1, left(&store, 2).1), (vec!["k".into()], vec!["l".into()]));
    }

    #[test]
    fn a_lease_that_is_renewed_again_before_its_time_counts_starts_again() {
        let mut store = KvStore::new();
        store.clock_moved(5_000, MOVER);
        grant(&mut store, 1, 3).unwrap();
        store.clock_moved(6_000, MOVER);
        let renew = || Command::LeaseRenew(KvLeaseRenew { ids: vec![1] });
        store.send(renew()).unwrap();
        store.clock_moved(6_100, MOVER);
        assert_eq!(store.leases.waits_for(), Some(6_100), "it waits for one more tick");
        store.clock_moved(6_200, MOVER);
        assert_eq!(store.leases.next_due(), None);
        store.clock_moved(9_199, MOVER);
        assert!(store.leases.contains(1));
        store.clock_moved(9_200, MOVER);
        assert!(!store.leases.contains(1) && store.leases == Leases::default());
    }

    #[test]
    fn time_counts_from_the_second_tick_after_a_grant_or_a_renewal() {
        let mut store = KvStore::new();
        store.clock_moved(5_000, MOVER);
        grant(&mut store, 1, 3).unwrap();
        set(&mut store, "k", 1).unwrap();
        assert_eq!(store.leases.waits_for(), Some(5_000), "as soon as possible");
        for clock in [6_000, 6_100] {
            store.clock_moved(clock, MOVER);
        }
        assert_eq!((store.leases.waits_for(), left(&store, 1).0), (Some(7_100), 3));
        store.clock_moved(8_000, MOVER);
        assert_eq!(left(&store, 1).0, 1);
        store.send(Command::LeaseRenew(KvLeaseRenew { ids: vec![1] })).unwrap();
        for clock in [8_900, 9_000, 10_500, 11_999] {
            store.clock_moved(clock, MOVER);
            assert_eq!(all_keys(&store), ["k"], "{clock}");
        }
        assert_eq!(store.leases.waits_for(), Some(12_000));
        store.clock_moved(12_000, MOVER);
        assert_eq!((all_keys(&store), left(&store, 1).0), (vec![], -1));
        assert_eq!((store.leases.clone(), store.leases.waits_for()), (Leases::default(), None));
    }

    #[test]
    fn leases_start_again_when_the_log_has_stood_still() {
        let ends_at = |ticks: &[(u64, u64)]| {
            let mut store = KvStore::new();
            grant(&mut store, 1, 4).unwrap();
            for &(clock, mover) in ticks {
                store.clock_moved(clock, mover);
            }
            let (mut clock, mover) = *ticks.last().unwrap();
            while store.leases.contains(1) {
                clock += 100;
                store.clock_moved(clock, mover);
            }
            clock
        };
        assert_eq!(ends_at(&[(100, 1), (200, 1), (1_000, 1)]), 4_200);
        assert_eq!(ends_at(&[(100, 1), (200, 1), (1_000, 2)]), 5_000, "another replica moves the clock");
        assert_eq!(ends_at(&[(100, 1), (200, 1), (3_200, 1)]), 4_200);
        assert_eq!(ends_at(&[(100, 1), (200, 1), (3_201, 1)]), 7_201, "the tick is long");
    }

    #[test]
    fn no_lease_ends_while_replicas_are_known_to_differ() {
        let mut store = KvStore::new();
        grant(&mut store, 1, 2).unwrap();
        set(&mut store, "k", 1).unwrap();
        [100, 200].into_iter().for_each(|clock| store.clock_moved(clock, MOVER));
        for member in [1, 2] {
            store.ask_alarm(AlarmAction::Activate, member, AlarmType::Corrupt);
        }
        assert_eq!(store.waits_for(), None);
        let renew = Command::LeaseRenew(KvLeaseRenew { ids: vec![1, 7] });
        let Ok(Reply::LeaseRenew(renewed)) = store.send(renew) else { panic!("it is refused") };
        assert_eq!(renewed.ttls, [2, 0]);
        assert_eq!(store.waits_for(), None);
        store.clock_moved(2_500, MOVER);
        store.ask_alarm(AlarmAction::Deactivate, 1, AlarmType::Corrupt);
        store.clock_moved(3_000, MOVER);
        store.ask_alarm(AlarmAction::Deactivate, 2, AlarmType::Corrupt);
        assert_eq!(store.waits_for(), Some(Duration::from_millis(1_200)), "it is due");
        for (clock, keys) in [(3_100, &["k"][..]), (5_099, &["k"]), (5_100, &[])] {
            store.clock_moved(clock, MOVER);
            assert_eq!(all_keys(&store), keys, "{clock}");
        }
        store.ask_alarm(AlarmAction::Activate, 1, AlarmType::Corrupt);
        store.clock_moved(6_000, MOVER);
        store.ask_alarm(AlarmAction::Deactivate, 1, AlarmType::Corrupt);
        assert_eq!(store.leases, Leases::default(), "without leases there is nothing to remember");
    }

    #[test]
    fn the_keys_of_a_lease_are_counted_before_they_are_answered() {
        let mut store = KvStore::new();
        grant(&mut store, 1, 10).unwrap();
        (0..3_000).for_each(|key| set(&mut store, &format!("{key:04}"), 1).unwrap());
        let query = |keys| KvQuery {
            query: Some(Query::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 1, keys })),
            ..KvQuery::default()
        };
        let many = store.query_within(&query(true), Budget::page());
        assert!(matches!(many, Err(KvError::AnswerTooLarge(_))), "it is not made between two commands");
        assert!(store.query_within(&query(false), Budget::page()).is_ok());
        assert_eq!(left(&store, 1).1.len(), 3_000);
    }

    #[test]
    fn many_leases_end_in_turns() {
        let mut store = KvStore::new();
        for id in 1..=600 {
            grant(&mut store, id, 2).unwrap();
            set(&mut store, &format!("{id}"), id).unwrap();
        }
        for clock in [100, 200, 2_100] {
            store.clock_moved(clock, MOVER);
        }
        let revision = store.revision();
        for left in [344, 88, 0] {
            store.clock_moved(store.leases.waits_for().unwrap().max(2_200), MOVER);
            assert_eq!((store.leases.len(), all_keys(&store).len()), (left, left));
        }
        assert_eq!(store.revision(), revision + 600, "a revision for each");
        assert_eq!(store.leases, Leases::default());
    }

    #[test]
    fn leases_with_many_keys_end_with_fewer_others() {
        let mut store = KvStore::new();
        for id in 1..=300 {
            grant(&mut store, id, 2).unwrap();
            let keys = if id == 200 { 1_000 } else { 4 };
            (0..keys).for_each(|key| set(&mut store, &format!("{id} {key}"), id).unwrap());
        }
        let revision = store.revision();
        for clock in [100, 200, 2_200] {
            store.clock_moved(clock, MOVER);
        }
        let mut left = vec![store.leases.len()];
        while !store.leases.is_empty() {
            store.clock_moved(store.leases.waits_for().unwrap(), MOVER);
            left.push(store.leases.len());
        }
        // 128 of 4 keys, 71 of these and one of 1,000, and the last 100.
        assert_eq!(left, [172, 100, 0]);
        assert_eq!((store.revision(), all_keys(&store).len()), (revision + 300, 0), "a revision for each");
    }

    /// What a tick does is bounded, and the leases that have to wait only end later.
    #[test]
    fn many_renewals_are_counted_in_turns() {
        let many = 3 * COUNTED_MAX as i64;
        let mut store = KvStore::new();
        let grown = |store: &mut KvStore| {
            (1..=many).for_each(|id| drop(grant(store, id, 2).unwrap()));
            let counted = |store: &KvStore| (store.leases.fresh.len(), store.leases.by_end.len());
            counted(store)
        };
        assert_eq!(grown(&mut store), (3 * COUNTED_MAX, 0));
        let mut other = restored(&written(&store)).unwrap();
        let (mut ticks, mut clock) = (0, 0);
        let is_after = |lease: &Lease, ticks| lease.end == End::After(ticks);
        let still = |store: &KvStore| -> usize {
            let of = |ticks| store.leases.iter().filter(|(_, lease)| is_after(lease, ticks)).count();
            2 * of(2) + of(1)
        };
        while !store.leases.fresh.is_empty() {
            let before = still(&store);
            clock += 100;
            ticks += 1;
            store.clock_moved(clock, MOVER);
            assert_eq!(before - still(&store), COUNTED_MAX, "as many as can be, and no more");
            // A replica that was restored from a snapshot does the same.
            other.clock_moved(clock, MOVER);
            assert_eq!(other.digest(), store.digest(), "{clock}");
            other = restored(&written(&other)).unwrap();
            other.now_ms = store.now_ms;
        }
        assert_eq!(ticks, 6, "each lease is looked at twice");
        // All start again, since another replica moves the clock, and each is put off once it is due.
        store.clock_moved(2_150, MOVER + 1);
        clock = 2_800;
        for left in [many - COUNTED_MAX as i64, many - 2 * COUNTED_MAX as i64] {
            store.clock_moved(clock, MOVER + 1);
            let due = store.leases.by_end.iter().filter(|(at, _)| *at <= clock).count();
            assert_eq!((store.leases.len(), due as i64), (many as usize, left));
        }
    }

    /// A lease that is not renewed ends, however many others are renewed again and again.
    #[test]
    fn no_lease_is_passed_over_forever() {
        let many = 4 * COUNTED_MAX as i64;
        // In two heaps, far from each other.
        let ids: Vec<i64> =
            (0..many).map(|n| if n < many / 2 { n + 1 } else { i64::MAX - many + n }).collect();
        for forgotten in [0, 2 * COUNTED_MAX - 1, 3 * COUNTED_MAX, ids.len() - 1] {
            let mut store = KvStore::new();
            ids.iter().for_each(|id| drop(grant(&mut store, *id, 2).unwrap()));
            let mut clock = 0;
            let others: Vec<i64> = ids.iter().copied().filter(|id| *id != ids[forgotten]).collect();
            while store.leases.contains(ids[forgotten]) {
                clock += 100;
                assert!(clock < 60_000, "{forgotten}");
                store.clock_moved(clock, MOVER);
                store.send(Command::LeaseRenew(KvLeaseRenew { ids: others.clone() })).unwrap();
            }
            assert_eq!(store.leases.len(), others.len());
        }
    }

    fn written(store: &KvStore) -> Vec<u8> {
        let mut bytes = Vec::new();
        store.freeze().write_to(&mut bytes).unwrap();
        bytes
    }

    fn restored(mut bytes: &[u8]) -> io::Result<KvStore> {
        let mut store = KvStore::new();
        store.restore(&mut bytes).map(|()| store)
    }

    /// Lives of two stores, one of which is restored from its snapshot from time to time, agree in all that follows.
    #[test]
    fn a_snapshot_has_all_that_counts() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut store, mut other) = (KvStore::new(), KvStore::new());
        let (mut clock, mut most) = (0, 0);
        for step in 0..3_000 {
            let id = random.i64(1..20);
            let key = format!("{}", random.u8(0..30));
            let mover = 1 + u64::from(random.u8(0..30) == 0);
            clock += random.u64(0..400);
            let chosen = random.u8(0..12);
            let lease = if random.bool() { id } else { 0 };
            for store in [&mut store, &mut other] {
                match chosen {
                    0 => drop(grant(store, id, id % 7)),
                    1 => drop(store.send(Command::LeaseRenew(KvLeaseRenew { ids: vec![id, id + 1] }))),
                    2 if id < 4 => drop(store.send(Command::LeaseRevoke(LeaseRevokeRequest { id }))),
                    3..6 => drop(set(store, &key, lease)),
                    6 => drop(store.del(&key, "")),
                    _ => store.clock_moved(clock, mover),
                }
            }
            most = most.max(store.leases.len());
            if step % 50 == 0 {
                other = restored(&written(&other)).unwrap();
                other.now_ms = store.now_ms;
            }
            assert_eq!(other.digest(), store.digest(), "step {step}");
            assert_eq!(
                (other.leases.waits_for(), other.size_bytes()),
                (store.leases.waits_for(), store.size_bytes())
            );
        }
        assert!(most > 5, "{most}");
        assert_eq!(written(&other), written(&store));
    }
}
