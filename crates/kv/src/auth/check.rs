//! Whether the user of a command or a query may do what it asks for.
//!
//! The rules are etcd's: a put takes the right to write its key, and the keys of its lease; what reads, the pair before
//! a put or a deletion among it, takes the right to read; a transaction takes the rights of all its comparisons and of
//! both its branches. Users, compactions and alarms take the role root.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use synod_api::{
    etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op::Request},
    synod::v1::{KvCommand, KvQuery, kv_auth_change::Change, kv_command::Command, kv_query::Query},
};

use super::{Auth, User};
use crate::{KvBug, KvError, KvStore, budget::Budget, planted};

/// For whom a command or a query is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller<'a> {
    /// Empty if the server knew of no user.
    pub(crate) user: &'a str,
    /// The revision of users and roles at which the server found out who the user is; 0 without one.
    pub(crate) revision: u64,
    /// Whether a member asks for itself.
    pub(crate) of_member: bool,
}

impl<'a> From<&'a KvCommand> for Caller<'a> {
    fn from(command: &'a KvCommand) -> Caller<'a> {
        Caller { user: &command.user, revision: command.auth_revision, of_member: command.of_member }
    }
}

impl<'a> From<&'a KvQuery> for Caller<'a> {
    fn from(query: &'a KvQuery) -> Caller<'a> {
        Caller { user: &query.user, revision: query.auth_revision, of_member: query.of_member }
    }
}

impl Auth {
    /// Whether users count for this caller.
    fn counts(&self, caller: &Caller<'_>) -> bool {
        self.enabled && !caller.of_member
    }

    /// The user, if permissions limit what the caller may do.
    ///
    /// # Errors
    /// There is no user, or users and roles have changed since the server found out who the user is.
    fn limited(&self, caller: &Caller<'_>) -> Result<Option<&User>, KvError> {
        if !self.counts(caller) {
            return Ok(None);
        }
        if caller.revision == 0 {
            return Err(KvError::UserEmpty);
        }
        if caller.revision < self.revision && !planted::has(KvBug::AnyAuthRevision) {
            return Err(KvError::AuthOldRevision);
        }
        let user = self.users.get(caller.user).ok_or(KvError::PermissionDenied)?;
        Ok(Some(user).filter(|user| !user.is_root()))
    }

    /// Whether the caller has the role root.
    pub(crate) fn may_administer(&self, caller: &Caller<'_>) -> Result<(), KvError> {
        if !self.counts(caller) {
            return Ok(());
        }
        if caller.user.is_empty() {
            return Err(KvError::UserEmpty);
        }
        let user = self.users.get(caller.user).ok_or(KvError::UserNotFound)?;
        if user.is_root() { Ok(()) } else { Err(KvError::PermissionDenied) }
    }

    /// Whether the caller is a user.
    pub(crate) fn is_known(&self, caller: &Caller<'_>) -> Result<(), KvError> {
        if !self.counts(caller) {
            return Ok(());
        }
        if caller.user.is_empty() {
            return Err(KvError::UserEmpty);
        }
        if self.users.contains_key(caller.user) { Ok(()) } else { Err(KvError::PermissionDenied) }
    }

    pub(crate) fn may_read(&self, caller: &Caller<'_>, key: &[u8], range_end: &[u8]) -> Result<(), KvError> {
        match self.limited(caller)? {
            Some(user) if !user.may_read.cover(key, range_end) => Err(KvError::PermissionDenied),
            _ => Ok(()),
        }
    }

    /// Whether this state is no earlier one than the caller's. A replica that lags does not judge by permissions that
    /// may be gone since.
    pub(super) fn is_not_before(&self, caller: &Caller<'_>) -> Result<(), KvError> {
        if self.counts(caller) && caller.revision > self.revision {
            return Err(KvError::AuthOldRevision);
        }
        Ok(())
    }

    fn may_write(&self, caller: &Caller<'_>, key: &[u8], range_end: &[u8]) -> Result<(), KvError> {
        match self.limited(caller)? {
            Some(user) if !user.may_write.cover(key, range_end) => Err(KvError::PermissionDenied),
            _ => Ok(()),
        }
    }
}

/// A lease of fewer keys is looked through each time.
const KEYS_MIN: usize = 16;

/// The user who was last found to have the right to put all keys of a lease: that user's next put with the lease need
/// not look at each key again. It holds until users or roles change, or somebody else puts a key with the lease.
///
/// It is no part of the replicated state, and changes no outcome: all keys that the lease had were judged for this user
/// at this revision of users and roles, and each key that came since was put by the same user. What is known counts the
/// looks that it saves, so a budget is exceeded as without it.
#[derive(Debug, Default)]
pub(crate) struct Holders(Mutex<BTreeMap<i64, (u64, String)>>);

impl Holders {
    fn known(&self) -> MutexGuard<'_, BTreeMap<i64, (u64, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_known(&self, lease: i64, auth: &Auth, caller: &Caller<'_>) -> bool {
        let known = self.known();
        known.get(&lease).is_some_and(|(revision, user)| *revision == auth.revision && user == caller.user)
    }

    fn found(&self, lease: i64, auth: &Auth, caller: &Caller<'_>) {
        if auth.counts(caller) {
            self.known().insert(lease, (auth.revision, caller.user.to_owned()));
        }
    }

    /// The caller may add a key to the lease.
    fn added_by(&self, lease: i64, auth: &Auth, caller: &Caller<'_>) {
        if lease != 0 && !(auth.counts(caller) && self.is_known(lease, auth, caller)) {
            self.forget(lease);
        }
    }

    pub(crate) fn forget(&self, lease: i64) {
        self.known().remove(&lease);
    }
}

impl KvStore {
    /// Whether the caller may put this key, without anything else.
    pub(crate) fn check_plain_put(&self, caller: &Caller<'_>, key: &[u8]) -> Result<(), KvError> {
        if self.auth.enabled { self.auth.may_write(caller, key, &[]) } else { Ok(()) }
    }

    /// Whether the caller of a command may do what it does.
    pub(crate) fn check_command(&self, command: &KvCommand, budget: &mut Budget) -> Result<(), KvError> {
        if !self.auth.enabled {
            return Ok(());
        }
        let (auth, caller) = (&self.auth, &Caller::from(command));
        match command.command.as_ref() {
            Some(Command::Put(request)) => self.check_put_by(caller, request, budget),
            Some(Command::DeleteRange(request)) => {
                auth.may_write(caller, &request.key, &request.range_end)?;
                if request.prev_kv { auth.may_read(caller, &request.key, &request.range_end) } else { Ok(()) }
            }
            Some(Command::Txn(request)) => self.check_txn(caller, request, budget),
            Some(Command::LeaseGrant(_)) => auth.is_known(caller),
            Some(Command::LeaseRevoke(request)) => {
                auth.is_known(caller)?;
                self.may_write_keys_of(caller, request.id, budget)
            }
            // Each lease of it is checked by itself.
            Some(Command::LeaseRenew(_)) => auth.is_known(caller),
            Some(Command::Compact(_) | Command::Alarm(_) | Command::HashCheck(_)) => {
                auth.may_administer(caller)
            }
            // The password is what shows who it is.
            Some(Command::Auth(change)) if matches!(change.change, Some(Change::Authenticate(_))) => Ok(()),
            Some(Command::Auth(_)) => auth.may_administer(caller),
            None => Ok(()),
        }
    }

    /// Whether the caller of a query may see what it asks for. The answer comes from the same state.
    pub(crate) fn check_query(&self, query: &KvQuery, budget: &mut Budget) -> Result<(), KvError> {
        if !self.auth.enabled {
            return Ok(());
        }
        let (auth, caller) = (&self.auth, &Caller::from(query));
        match query.query.as_ref() {
            Some(Query::Range(request)) => {
                auth.may_read(caller, &request.key, &request.range_end)?;
                auth.is_not_before(caller)
            }
            Some(Query::Txn(request)) => {
                self.check_txn(caller, request, budget)?;
                auth.is_not_before(caller)
            }
            Some(Query::LeaseTimeToLive(request)) => {
                auth.is_known(caller)?;
                if !request.keys {
                    return Ok(());
                }
                auth.is_not_before(caller)?;
                self.may_read_keys_of(caller, request.id, budget)
            }
            Some(Query::LeaseLeases(_)) => {
                auth.is_known(caller)?;
                auth.is_not_before(caller)?;
                if auth.may_administer(caller).is_ok() {
                    return Ok(());
                }
                // A lease costs a look, also one without keys.
                self.leases.iter().try_for_each(|(id, _)| {
                    budget.look()?;
                    self.limited_may_read_keys_of(caller, *id, budget)
                })
            }
            Some(Query::HashKv(_) | Query::EtcdSnapshot(_)) => auth.may_administer(caller),
            // What the pages for operators show is no secret; the others check for themselves.
            Some(Query::Status(_) | Query::Auth(_)) | None => Ok(()),
        }
    }

    fn check_put_by(
        &self,
        caller: &Caller<'_>,
        put: &PutRequest,
        budget: &mut Budget,
    ) -> Result<(), KvError> {
        self.auth.may_write(caller, &put.key, &[])?;
        // A user who could not end the lease must not add keys to it.
        self.may_write_keys_of(caller, put.lease, budget)?;
        self.holders.added_by(put.lease, &self.auth, caller);
        if put.prev_kv { self.auth.may_read(caller, &put.key, &[]) } else { Ok(()) }
    }

    fn check_txn(
        &self,
        caller: &Caller<'_>,
        request: &TxnRequest,
        budget: &mut Budget,
    ) -> Result<(), KvError> {
        for compare in &request.compare {
            self.auth.may_read(caller, &compare.key, &compare.range_end)?;
        }
        request.success.iter().chain(&request.failure).try_for_each(|op| self.check_op(caller, op, budget))
    }

    fn check_op(&self, caller: &Caller<'_>, op: &RequestOp, budget: &mut Budget) -> Result<(), KvError> {
        match &op.request {
            Some(Request::RequestRange(request)) => {
                self.auth.may_read(caller, &request.key, &request.range_end)
            }
            Some(Request::RequestPut(request)) => self.check_put_by(caller, request, budget),
            Some(Request::RequestDeleteRange(request)) => {
                if request.prev_kv {
                    self.auth.may_read(caller, &request.key, &request.range_end)?;
                }
                self.auth.may_write(caller, &request.key, &request.range_end)
            }
            Some(Request::RequestTxn(nested)) => self.check_txn(caller, nested, budget),
            None => Ok(()),
        }
    }

    /// Whether the caller may put all keys of a lease, if it exists.
    pub(crate) fn may_write_keys_of(
        &self,
        caller: &Caller<'_>,
        lease: i64,
        budget: &mut Budget,
    ) -> Result<(), KvError> {
        if lease == 0 || self.auth.may_administer(caller).is_ok() {
            return Ok(());
        }
        let keys = self.leases.key_count(lease);
        if self.holders.is_known(lease, &self.auth, caller) {
            // As each key would.
            self.auth.limited(caller)?;
            return budget.look_at(keys);
        }
        self.leases.keys_of(lease).try_for_each(|key| {
            budget.look()?;
            self.auth.may_write(caller, key, &[])
        })?;
        if keys >= KEYS_MIN {
            self.holders.found(lease, &self.auth, caller);
        }
        Ok(())
    }

    fn may_read_keys_of(&self, caller: &Caller<'_>, lease: i64, budget: &mut Budget) -> Result<(), KvError> {
        if self.auth.may_administer(caller).is_ok() {
            return Ok(());
        }
        self.limited_may_read_keys_of(caller, lease, budget)
    }

    /// The same for a caller without the role root.
    fn limited_may_read_keys_of(
        &self,
        caller: &Caller<'_>,
        lease: i64,
        budget: &mut Budget,
    ) -> Result<(), KvError> {
        self.leases.keys_of(lease).try_for_each(|key| {
            budget.look()?;
            self.auth.may_read(caller, key, &[])
        })
    }
}
