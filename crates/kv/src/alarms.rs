//! The space quota, and the alarms that the quota and others raise.

use synod_api::{
    etcdserverpb::{
        AlarmMember, AlarmRequest, AlarmResponse, AlarmType, RequestOp, TxnRequest,
        alarm_request::AlarmAction, request_op::Request,
    },
    synod::v1::kv_command::Command,
};

use crate::{
    KvError, KvStore,
    lease::LEASE_BYTES,
    store::{charge, header},
};

/// Most alarms that can be raised at once: two kinds for each of many more members than a cluster has.
pub const ALARMS_MAX: usize = 1024;

/// The part of the quota by which a store may exceed it while a compaction clears away.
const QUOTA_MARGIN: u64 = 16;

impl KvStore {
    /// Refuses a command that costs more space than the member's quota leaves, and raises the alarm of that member.
    pub(crate) fn claim_space(&mut self, cost: u64, quota: u64, member: u64) -> Result<(), KvError> {
        if cost == 0 {
            return Ok(());
        }
        if self.has_alarm(AlarmType::Nospace) {
            return Err(KvError::NoSpace);
        }
        let exceeds = |store: &KvStore, most| quota > 0 && store.size_bytes.saturating_add(cost) >= most;
        if exceeds(self, quota) {
            self.clear_much();
        }
        // While a compaction still clears away, it is not known how much room there is. Until it is, the store may be
        // larger by a small part.
        let most = if self.is_cleared() { quota } else { quota.saturating_add(quota / QUOTA_MARGIN) };
        if exceeds(self, most) {
            self.alarms.insert((member, AlarmType::Nospace));
            return Err(KvError::NoSpace);
        }
        Ok(())
    }

    pub(crate) fn alarm(&mut self, request: &AlarmRequest) -> Result<AlarmResponse, KvError> {
        let (member, kind) = (request.member_id, request.alarm());
        let alarms = match request.action() {
            AlarmAction::Get => self.list_alarms(kind),
            AlarmAction::Activate if kind == AlarmType::None => Vec::new(),
            AlarmAction::Activate => {
                if self.alarms.len() >= ALARMS_MAX && !self.alarms.contains(&(member, kind)) {
                    return Err(KvError::BadAlarm("too many alarms are raised"));
                }
                self.alarms.insert((member, kind));
                vec![AlarmMember { member_id: member, alarm: kind.into() }]
            }
            AlarmAction::Deactivate => {
                // As with etcd a kind is that of one member, and member 0 is one like the others. Without a kind, which
                // clears nothing in etcd, all of the member go; and without either, all that there are.
                let matches = |&(raised_by, raised): &(u64, AlarmType)| match kind {
                    AlarmType::None => member == 0 || raised_by == member,
                    kind => (raised_by, raised) == (member, kind),
                };
                let cleared = self.alarms.iter().copied().filter(matches).map(alarm_member).collect();
                let was_corrupt = self.has_alarm(AlarmType::Corrupt);
                self.alarms.retain(|alarm| !matches(alarm));
                if was_corrupt && !self.has_alarm(AlarmType::Corrupt) {
                    self.leases.restart();
                }
                cleared
            }
        };
        Ok(AlarmResponse { header: header(self.revision), alarms })
    }

    pub(crate) fn list_alarms(&self, kind: AlarmType) -> Vec<AlarmMember> {
        let wanted = |(_, raised): &(u64, AlarmType)| kind == AlarmType::None || *raised == kind;
        self.alarms.iter().copied().filter(wanted).map(alarm_member).collect()
    }

    pub(crate) fn has_alarm(&self, kind: AlarmType) -> bool {
        self.alarms.iter().any(|(_, raised)| *raised == kind)
    }
}

fn alarm_member((member_id, kind): (u64, AlarmType)) -> AlarmMember {
    AlarmMember { member_id, alarm: kind.into() }
}

/// The space that a command claims from the quota, as etcd reckons it; 0 for a command that needs none.
/// Deletions claim nothing although they leave tombstones, so that a full store can be emptied.
pub(crate) fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(request) => charge(&request.key, &request.value),
        Command::Txn(request) => txn_cost(request),
        Command::LeaseGrant(_) => LEASE_BYTES,
        Command::DeleteRange(_)
        | Command::Compact(_)
        | Command::Alarm(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseRenew(_)
        | Command::HashCheck(_)
        | Command::Auth(_) => 0,
    }
}

fn txn_cost(request: &TxnRequest) -> u64 {
    let branch = |ops: &[RequestOp]| -> u64 {
        ops.iter()
            .map(|op| match &op.request {
                Some(Request::RequestPut(put)) => charge(&put.key, &put.value),
                Some(Request::RequestTxn(nested)) => txn_cost(nested),
                Some(Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => 0,
            })
            .sum()
    };
    branch(&request.success).max(branch(&request.failure))
}

#[cfg(test)]
mod tests {
    use synod_api::synod::v1::{KvCommand, kv_query::Query};

    use super::*;
    use crate::testing::{self, Execute, all, op_delete, op_put, op_range, op_txn};

    fn with_quota(quota_bytes: u64, request: Command) -> KvCommand {
        KvCommand { quota_bytes, member_id: 9, ..testing::command(request) }
    }

    #[test]
    fn a_full_store_refuses_writes_until_it_is_compacted_and_disarmed() {
        let mut store = KvStore::new();
        let put = || Command::Put(testing::put("k", "v"));
        let quota = 10 * charge(b"k", b"v");
        for _ in 0..9 {
            store.execute(&with_quota(quota, put())).unwrap();
        }
        let revision = store.revision();
        assert_eq!(store.execute(&with_quota(quota, put())), Err(KvError::NoSpace));
        let raised = AlarmMember { member_id: 9, alarm: AlarmType::Nospace.into() };
        assert_eq!(store.status().alarms, [raised]);
        // While the alarm is raised, the command's quota no longer matters, but only whether the command needs space.
        assert_eq!(store.set_with(testing::put("k", "v")), Err(KvError::NoSpace));
        assert_eq!(store.transact(all(vec![op_put("k", "v")])), Err(KvError::NoSpace));
        assert!(store.transact(all(vec![op_range("k", ""), op_delete("none", "")])).is_ok());
        assert_eq!(store.revision(), revision);
        assert_eq!(store.del("k", ""), 1);
        assert!(store.compact_at(revision + 1, false).is_ok());
        // While the alarm is raised, a compaction frees space at once.
        assert_eq!(store.size_bytes(), charge(b"k", b""));
        assert_eq!(store.set_with(testing::put("k", "v")), Err(KvError::NoSpace));
        assert_eq!(store.ask_alarm(AlarmAction::Deactivate, 9, AlarmType::Nospace), [raised]);
        assert!(store.execute(&with_quota(quota, put())).is_ok());
    }

    #[test]
    fn while_a_compaction_clears_away_the_quota_is_exceeded_by_a_small_part_at_most() {
        let quota = 2500 * charge(b"0000", b"v");
        let full = |keys: usize| {
            let mut store = KvStore::new();
            for n in 0..2499 {
                store.set(&format!("{:04}", n % keys), "v");
            }
            store.compact_at(store.revision(), false).unwrap();
            assert!(!store.is_cleared());
            store
        };
        let fill = |store: &mut KvStore| {
            let put = |n| with_quota(quota, Command::Put(testing::put(&format!("{n}"), "v")));
            (5000..9000).find(|n| store.execute(&put(*n)).is_err()).map(|n| (n - 5000, store.size_bytes()))
        };
        // Nothing is superfluous: the compaction frees no room, and no more is written once that is known.
        let (written, bytes) = fill(&mut full(2499)).unwrap();
        assert!((1..=3).contains(&written) && bytes < quota + quota / QUOTA_MARGIN, "{written}, {bytes}");
        // Half of it is.
        let (written, bytes) = fill(&mut full(1250)).unwrap();
        assert!(
            (1240..=1255).contains(&written) && bytes < quota + quota / QUOTA_MARGIN,
            "{written}, {bytes}"
        );
    }

    #[test]
    fn the_quota_counts_the_dearer_branch_with_its_nested_transactions() {
        let mut store = KvStore::new();
        let nested = TxnRequest {
            failure: vec![op_put("a", "12345678"), testing::op_txn(all(vec![op_put("b", "12345678")]))],
            ..all(vec![op_put("a", "")])
        };
        let request = || Command::Txn(nested.clone());
        let cost = 2 * charge(b"a", b"12345678");
        assert_eq!(store.execute(&with_quota(cost, request())), Err(KvError::NoSpace));
        store.ask_alarm(AlarmAction::Deactivate, 0, AlarmType::None);
        assert!(store.execute(&with_quota(cost + 1, request())).is_ok());
    }

    #[test]
    fn a_write_meets_the_quota_only_once_pending_space_is_given_back() {
        let mut store = KvStore::new();
        for n in 0..1000 {
            store.set(&format!("{n}"), "x");
        }
        store.del("\0", "\0");
        let full = store.size_bytes();
        store.compact_at(store.revision(), false).unwrap();
        assert!(store.size_bytes() > full / 2);
        assert!(store.execute(&with_quota(full * 2 / 3, Command::Put(testing::put("k", "v")))).is_ok());
        assert_eq!(store.status().alarms, []);
    }

    #[test]
    fn alarms_are_raised_listed_and_cleared() {
        use AlarmAction::{Activate, Deactivate, Get};
        use AlarmType::{Corrupt, None, Nospace};
        let mut store = KvStore::new();
        let alarm = |member_id, alarm: AlarmType| AlarmMember { member_id, alarm: alarm.into() };
        assert_eq!(store.ask_alarm(Activate, 1, None), []);
        assert_eq!(store.ask_alarm(Activate, 1, Nospace), [alarm(1, Nospace)]);
        assert_eq!(store.ask_alarm(Activate, 1, Nospace), [alarm(1, Nospace)]);
        assert_eq!(store.ask_alarm(Activate, 2, Corrupt), [alarm(2, Corrupt)]);
        assert_eq!(store.ask_alarm(Get, 0, None), [alarm(1, Nospace), alarm(2, Corrupt)]);
        assert_eq!(store.ask_alarm(Get, 0, Corrupt), [alarm(2, Corrupt)]);
        let corrupt = Err(KvError::Corrupt);
        assert_eq!(store.send(Command::DeleteRange(testing::delete("a", ""))), corrupt);
        assert_eq!(store.send(Command::Txn(all(vec![]))), corrupt);
        assert_eq!(store.compact_at(1, false), corrupt);
        assert!(store.read_at("a", "", 0).is_ok());
        let reads = || all(vec![op_range("a", "")]);
        assert!(store.ask(Query::Txn(reads())).is_ok());
        // Etcd orders a transaction with another one in it, though both only read.
        let nested = all(vec![op_txn(reads())]);
        assert_eq!(store.ask(Query::Txn(nested)), Err(KvError::Corrupt));
        assert_eq!(store.ask_alarm(Deactivate, 1, Corrupt), []);
        assert_eq!(store.ask_alarm(Deactivate, 2, Corrupt), [alarm(2, Corrupt)]);
        assert_eq!(store.set_with(testing::put("a", "")), Err(KvError::NoSpace));
        assert_eq!(store.ask_alarm(Activate, 0, Nospace), [alarm(0, Nospace)]);
        assert_eq!(store.ask_alarm(Deactivate, 0, Nospace), [alarm(0, Nospace)], "not that of the other");
        assert_eq!(store.ask_alarm(Deactivate, 0, Nospace), []);
        assert_eq!(store.ask_alarm(Deactivate, 0, None), [alarm(1, Nospace)]);
        assert!(store.set_with(testing::put("a", "")).is_ok());
        for member in 0..ALARMS_MAX as u64 {
            store.ask_alarm(Activate, member, Nospace);
        }
        let one_more = AlarmRequest { action: Activate.into(), member_id: u64::MAX, alarm: Nospace.into() };
        assert!(matches!(store.send(Command::Alarm(one_more)), Err(KvError::BadAlarm(_))));
        assert_eq!(store.ask_alarm(Get, 0, None).len(), ALARMS_MAX);
    }
}
