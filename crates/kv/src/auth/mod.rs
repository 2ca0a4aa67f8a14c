//! Users, roles and what these may do, as replicated state.
//!
//! Every change is a command of the log, and **what a user may do is checked where the command is executed**, so that a
//! permission that was revoked in an earlier slot is gone in every later one ([docs/auth.md](../../../docs/auth.md)).
//! The store never sees a password: a server hashes it, or compares it with the hash, before it proposes the command.

mod check;
mod costs;
mod ranges;
mod secrets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    authpb::{self, Permission, UserAddOptions, permission::Type},
    etcdserverpb::{
        AuthRoleDeleteRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest, AuthRoleListResponse,
        AuthRoleRevokePermissionRequest, AuthStatusResponse, AuthUserAddRequest,
        AuthUserChangePasswordRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListResponse,
        AuthUserRevokeRoleRequest,
    },
    synod::v1::{
        KvAuthAnswer, KvAuthChange, KvAuthChanged, KvAuthQuery, KvAuthenticate, KvPassword, KvPermitted,
        kv_auth_answer::Answer, kv_auth_change::Change, kv_auth_query::Query,
    },
};

pub use self::secrets::{Shown, shown};
pub(crate) use self::{
    check::{Caller, Holders},
    costs::Costs,
    ranges::Ranges,
};
use crate::{KvBug, KvError, KvStore, planted, range::bounds, store::header};

/// The user that must exist before users count, and the role that permits everything. They are etcd's.
pub const ROOT: &str = "root";

/// A receiver of changes of users and tokens. All calls come from the thread that executes commands, in the order in
/// which the store changes, and must return at once.
pub trait AuthFeed: fmt::Debug + Send + Sync {
    /// Whether users count from here on, the revision of users and roles, and how many tokens were issued.
    fn state(&self, enabled: bool, revision: u64, tokens: u64);

    /// A simple token was issued to a user.
    fn issued(&self, token: &Token<'_>);

    /// The tokens of this user, or of all users, are void.
    fn void(&self, user: Option<&str>);

    /// This user, or any, may have lost a right, a password or the right to be nobody: what was permitted before, and
    /// lasts, has to be judged again. [`AuthFeed::state`] was told before.
    fn changed(&self, user: Option<&str>);
}

/// A simple token, as its server issued it. It is written `SECRET.NUMBER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// How many tokens had been issued with it: no other token has this number.
    pub number: u64,
    /// The part that nobody can guess.
    pub secret: &'a str,
    /// The user.
    pub user: &'a str,
    /// When the server made it, in milliseconds since 1970 by its own clock.
    pub issued_ms: u64,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.secret, self.number)
    }
}

/// Users and roles. A store in which there never were any has the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Auth {
    /// Whether users count.
    pub(crate) enabled: bool,
    /// Grows by one with every change of users, roles or permissions. It begins at 1, as in etcd: 0 stands for no user.
    pub(crate) revision: u64,
    /// How many simple tokens were issued.
    pub(crate) tokens: u64,
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) roles: BTreeMap<String, Role>,
    /// Of the users' hashes, from which they follow.
    pub(crate) costs: Costs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// bcrypt's, in base64; empty if no password is right.
    pub(crate) password_hash: String,
    /// Whether the user cannot have a password.
    pub(crate) no_password: bool,
    pub(crate) roles: BTreeSet<String>,
    /// What the roles permit. It follows from them, and is made again when they change.
    pub(crate) may_read: Ranges,
    pub(crate) may_write: Ranges,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// The kind of each permission, by the first key of its range and the range's end. A kind that is not defined
    /// permits nothing.
    pub(crate) permissions: BTreeMap<(Bytes, Bytes), i32>,
}

impl Role {
    fn messages(&self) -> Vec<Permission> {
        let message = |((key, range_end), kind): (&(Bytes, Bytes), &i32)| Permission {
            perm_type: *kind,
            key: key.clone(),
            range_end: range_end.clone(),
        };
        self.permissions.iter().map(message).collect()
    }
}

impl Auth {
    /// Users and roles as etcd has them in its database: buckets, keys and values.
    pub(crate) fn bucket_entries(&self) -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
        let mut entries = vec![
            ("auth", b"authEnabled".to_vec(), vec![u8::from(self.enabled)]),
            ("auth", b"authRevision".to_vec(), self.revision.to_be_bytes().to_vec()),
        ];
        for (name, user) in &self.users {
            let stored = authpb::User {
                name: name.clone().into(),
                // A hash that is no base64 is right for no password, and neither is an empty one.
                password: STANDARD.decode(&user.password_hash).unwrap_or_default().into(),
                roles: user.roles.iter().cloned().collect(),
                options: Some(UserAddOptions { no_password: user.no_password }),
            };
            entries.push(("authUsers", name.clone().into(), stored.encode_to_vec()));
        }
        for (name, role) in &self.roles {
            let stored = authpb::Role { name: name.clone().into(), key_permission: role.messages() };
            entries.push(("authRoles", name.clone().into(), stored.encode_to_vec()));
        }
        entries
    }
}

impl Default for Auth {
    fn default() -> Auth {
        let (users, roles, costs) = Default::default();
        Auth { enabled: false, revision: 1, tokens: 0, users, roles, costs }
    }
}

impl User {
    fn is_root(&self) -> bool {
        self.roles.contains(ROOT)
    }
}

/// Whether a permission can be for this range.
pub(crate) fn is_range(key: &[u8], range_end: &[u8]) -> bool {
    !key.is_empty() && bounds(key, range_end).is_some()
}

impl Auth {
    /// The users and roles of a snapshot, once it is found out what the users may do.
    pub(crate) fn complete(mut self) -> Auth {
        let names: Vec<String> = self.users.keys().cloned().collect();
        names.iter().for_each(|name| self.refresh(name));
        self.costs = Costs::default();
        self.users.values().for_each(|user| self.costs.add(&user.password_hash));
        self
    }

    /// What users may do as it was before a snapshot replaced it: a planted bug.
    pub(crate) fn keep_rights_of(&mut self, before: &Auth) {
        for (name, user) in &mut self.users {
            if let Some(before) = before.users.get(name) {
                (user.may_read, user.may_write) = (before.may_read.clone(), before.may_write.clone());
            }
        }
    }

    /// Finds out what a user's roles permit.
    fn refresh(&mut self, name: &str) {
        let Some(user) = self.users.get_mut(name) else { return };
        let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
        let permissions = roles.flat_map(|role| &role.permissions);
        let of = |kinds: [Type; 2]| {
            let permitted =
                permissions.clone().filter(|(_, kind)| kinds.iter().any(|of| **kind == *of as i32));
            Ranges::union(permitted.map(|((key, end), _)| (&key[..], &end[..])))
        };
        let (may_read, may_write) = (of([Type::Read, Type::Readwrite]), of([Type::Write, Type::Readwrite]));
        (user.may_read, user.may_write) = (may_read, may_write);
    }

    /// Finds out what the users with a role may do.
    fn refresh_with(&mut self, role: &str) {
        if planted::has(KvBug::RightsOfGrant) {
            return;
        }
        let with = self.users.iter().filter(|(_, user)| user.roles.contains(role));
        let names: Vec<String> = with.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.refresh(name));
    }

    fn user(&mut self, name: &str) -> Result<&mut User, KvError> {
        self.users.get_mut(name).ok_or(KvError::UserNotFound)
    }

    fn role(&mut self, name: &str) -> Result<&mut Role, KvError> {
        self.roles.get_mut(name).ok_or(KvError::RoleNotFound)
    }

    fn enable(&mut self) -> Result<(), KvError> {
        if !self.enabled {
            let root = self.users.get(ROOT).ok_or(KvError::RootUserMissing)?;
            if !root.is_root() {
                return Err(KvError::RootRoleMissing);
            }
            self.enabled = true;
        }
        Ok(())
    }

    fn disable(&mut self) {
        if self.enabled {
            self.enabled = false;
            self.revision += 1;
        }
    }

    fn user_add(&mut self, request: &AuthUserAddRequest) -> Result<(), KvError> {
        if request.name.is_empty() {
            return Err(KvError::UserEmpty);
        }
        if self.users.contains_key(&request.name) {
            return Err(KvError::UserExists);
        }
        let no_password = request.options.is_some_and(|options| options.no_password);
        let password_hash = if no_password { String::new() } else { request.hashed_password.clone() };
        self.costs.add(&password_hash);
        let user = User { password_hash, no_password, ..User::default() };
        self.users.insert(request.name.clone(), user);
        Ok(())
    }

    fn user_delete(&mut self, name: &str) -> Result<(), KvError> {
        if self.enabled && name == ROOT {
            return Err(KvError::InvalidAuthMgmt);
        }
        let user = self.users.remove(name).ok_or(KvError::UserNotFound)?;
        self.costs.remove(&user.password_hash);
        Ok(())
    }

    fn user_change_password(&mut self, request: &AuthUserChangePasswordRequest) -> Result<(), KvError> {
        let user = self.users.get_mut(&request.name).ok_or(KvError::UserNotFound)?;
        if !user.no_password {
            self.costs.remove(&user.password_hash);
            user.password_hash.clone_from(&request.hashed_password);
            self.costs.add(&user.password_hash);
        }
        Ok(())
    }

    /// Returns whether the user did not have the role.
    fn user_grant_role(&mut self, request: &AuthUserGrantRoleRequest) -> Result<bool, KvError> {
        let AuthUserGrantRoleRequest { user, role } = request;
        self.user(user)?;
        if role != ROOT {
            self.role(role)?;
        }
        let is_new = self.user(user)?.roles.insert(role.clone());
        self.refresh(user);
        Ok(is_new)
    }

    fn user_revoke_role(&mut self, request: &AuthUserRevokeRoleRequest) -> Result<(), KvError> {
        let AuthUserRevokeRoleRequest { name, role } = request;
        if self.enabled && name == ROOT && role == ROOT {
            return Err(KvError::InvalidAuthMgmt);
        }
        if !self.user(name)?.roles.remove(role) {
            return Err(KvError::RoleNotGranted);
        }
        if !planted::has(KvBug::KeepRightsOfRevokedRole) {
            self.refresh(name);
        }
        Ok(())
    }

    fn role_add(&mut self, name: &str) -> Result<(), KvError> {
        if name.is_empty() {
            return Err(KvError::RoleEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(KvError::RoleExists);
        }
        self.roles.insert(name.to_owned(), Role::default());
        self.refresh_with(name);
        Ok(())
    }

    fn role_delete(&mut self, request: &AuthRoleDeleteRequest) -> Result<(), KvError> {
        let role = &request.role;
        if self.enabled && role == ROOT {
            return Err(KvError::InvalidAuthMgmt);
        }
        self.roles.remove(role).ok_or(KvError::RoleNotFound)?;
        self.refresh_with(role);
        self.users.values_mut().for_each(|user| _ = user.roles.remove(role));
        Ok(())
    }

    fn role_grant(&mut self, request: &AuthRoleGrantPermissionRequest) -> Result<(), KvError> {
        let Some(permission) = &request.perm else { return Err(KvError::PermissionNotGiven) };
        let Permission { perm_type, key, range_end } = permission;
        if !is_range(key, range_end) {
            return Err(KvError::InvalidAuthMgmt);
        }
        // The command's bytes are not kept.
        let range = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
        self.role(&request.name)?.permissions.insert(range, *perm_type);
        self.refresh_with(&request.name);
        Ok(())
    }

    fn role_revoke(&mut self, request: &AuthRoleRevokePermissionRequest) -> Result<(), KvError> {
        let AuthRoleRevokePermissionRequest { role, key, range_end } = request;
        let revoked = self.role(role)?.permissions.remove(&(key.clone(), range_end.clone()));
        revoked.ok_or(KvError::PermissionNotGranted)?;
        self.refresh_with(role);
        Ok(())
    }

    /// The users that may lose something by a change that is about to be made; `None` stands for all.
    fn concerned(&self, change: &Change) -> Vec<Option<String>> {
        let with = |role: &String| {
            let with = self.users.iter().filter(move |(_, user)| user.roles.contains(role));
            with.map(|(name, _)| Some(name.clone())).collect()
        };
        match change {
            Change::Enable(_) if !self.enabled => vec![None],
            Change::UserDelete(request) => vec![Some(request.name.clone())],
            Change::UserChangePassword(request) => vec![Some(request.name.clone())],
            Change::UserRevokeRole(request) => vec![Some(request.name.clone())],
            Change::RoleDelete(request) => with(&request.role),
            // A permission that is granted again may be a lesser one.
            Change::RoleGrantPermission(request) => with(&request.name),
            Change::RoleRevokePermission(request) => with(&request.role),
            Change::Enable(_) | Change::Disable(_) | Change::Authenticate(_) => Vec::new(),
            Change::UserAdd(_) | Change::UserGrantRole(_) | Change::RoleAdd(_) => Vec::new(),
        }
    }

    /// The password hash of a user, for a server that compares.
    fn password_of(&self, name: &str) -> Result<KvPassword, KvError> {
        if !self.enabled {
            return Err(KvError::AuthNotEnabled);
        }
        let user = self.users.get(name).ok_or(KvError::AuthFailed)?;
        if user.no_password {
            return Err(KvError::NoPasswordUser);
        }
        let (hash, cost) = (user.password_hash.clone(), self.costs.highest());
        Ok(KvPassword { hash, auth_revision: self.revision, cost })
    }

    /// Issues a token to a user whose password is right. Nothing has changed since a server found that out.
    fn authenticate(&mut self, request: &KvAuthenticate) -> Result<Option<u64>, KvError> {
        self.password_of(&request.name).map_err(|error| match error {
            KvError::NoPasswordUser => KvError::AuthFailed,
            error => error,
        })?;
        if request.checked_revision != self.revision {
            return Err(KvError::AuthOldRevision);
        }
        Ok((!request.secret.is_empty()).then(|| {
            self.tokens += 1;
            self.tokens
        }))
    }
}

impl KvStore {
    /// The same store, which tells `feed` of users and tokens.
    #[must_use]
    pub fn authenticating(self, feed: Arc<dyn AuthFeed>) -> KvStore {
        let store = KvStore { auth_feed: Some(feed), ..self };
        store.tell_auth();
        store
    }

    /// Tells what is so now.
    fn tell_auth(&self) {
        if let Some(feed) = &self.auth_feed {
            feed.state(self.auth.enabled, self.auth.revision, self.auth.tokens);
        }
    }

    /// Tells that a snapshot has replaced the state. What it changes, and which tokens it makes void, is not known: it
    /// changes all, if users count.
    pub(crate) fn tell_auth_replaced(&self) {
        if let Some(feed) = &self.auth_feed {
            feed.void(None);
        }
        self.tell_auth();
        if let Some(feed) = self.auth_feed.as_ref().filter(|_| self.auth.enabled) {
            feed.changed(None);
        }
    }

    /// Changes users and roles. The caller may do that.
    pub(crate) fn change_auth(&mut self, change: &KvAuthChange) -> Result<KvAuthChanged, KvError> {
        let Some(change) = &change.change else { return Err(KvError::Malformed("command")) };
        let concerned = self.auth.concerned(change);
        let auth = Arc::make_mut(&mut self.auth);
        let (mut token, mut void) = (String::new(), None);
        let counts = match change {
            Change::Enable(_) => auth.enable().map(|()| false)?,
            Change::Disable(_) => {
                auth.disable();
                void = Some(None);
                false
            }
            Change::Authenticate(request) => {
                if let Some(number) = auth.authenticate(request)? {
                    let KvAuthenticate { name: user, secret, issued_ms, .. } = request;
                    let issued = Token { number, secret, user, issued_ms: *issued_ms };
                    token = issued.to_string();
                    self.auth_feed.iter().for_each(|feed| feed.issued(&issued));
                }
                false
            }
            Change::UserAdd(request) => auth.user_add(request).map(|()| true)?,
            Change::UserDelete(request) => {
                auth.user_delete(&request.name)?;
                void = Some(Some(&request.name));
                true
            }
            Change::UserChangePassword(request) => {
                auth.user_change_password(request)?;
                void = Some(Some(&request.name));
                true
            }
            Change::UserGrantRole(request) => auth.user_grant_role(request)?,
            Change::UserRevokeRole(request) => auth.user_revoke_role(request).map(|()| true)?,
            Change::RoleAdd(request) => auth.role_add(&request.name).map(|()| true)?,
            Change::RoleDelete(request) => auth.role_delete(request).map(|()| true)?,
            Change::RoleGrantPermission(request) => auth.role_grant(request).map(|()| true)?,
            Change::RoleRevokePermission(request) => auth.role_revoke(request).map(|()| true)?,
        };
        if counts {
            auth.revision += 1;
        }
        let auth_revision = auth.revision;
        if let (Some(void), Some(feed)) = (void, &self.auth_feed) {
            feed.void(void.map(String::as_str));
        }
        self.tell_auth();
        if let Some(feed) = &self.auth_feed {
            concerned.iter().for_each(|user| feed.changed(user.as_deref()));
        }
        Ok(KvAuthChanged { revision: self.revision, auth_revision, token })
    }

    /// Answers a question about users and roles.
    pub(crate) fn ask_auth(&self, query: &KvAuthQuery, caller: &Caller<'_>) -> Result<KvAuthAnswer, KvError> {
        let (auth, header) = (&*self.auth, header(self.revision));
        let answer = match query.query.as_ref().ok_or(KvError::Malformed("query"))? {
            Query::Status(_) => {
                let (enabled, auth_revision) = (auth.enabled, auth.revision);
                Answer::Status(AuthStatusResponse { header, enabled, auth_revision })
            }
            Query::UserGet(request) => {
                auth.may_administer(caller)
                    .or_else(|error| if request.name == caller.user { Ok(()) } else { Err(error) })?;
                let user = auth.users.get(&request.name).ok_or(KvError::UserNotFound)?;
                Answer::UserGet(AuthUserGetResponse { header, roles: user.roles.iter().cloned().collect() })
            }
            Query::UserList(_) => {
                auth.may_administer(caller)?;
                Answer::UserList(AuthUserListResponse { header, users: auth.users.keys().cloned().collect() })
            }
            Query::RoleGet(request) => {
                let has =
                    || auth.users.get(caller.user).is_some_and(|user| user.roles.contains(&request.role));
                auth.may_administer(caller).or_else(|error| if has() { Ok(()) } else { Err(error) })?;
                let role = auth.roles.get(&request.role).ok_or(KvError::RoleNotFound)?;
                let perm = if request.role == ROOT {
                    let range_end = Bytes::from_static(b"\0");
                    vec![Permission { perm_type: Type::Readwrite.into(), key: Bytes::new(), range_end }]
                } else {
                    role.messages()
                };
                Answer::RoleGet(AuthRoleGetResponse { header, perm })
            }
            Query::RoleList(_) => {
                auth.may_administer(caller)?;
                Answer::RoleList(AuthRoleListResponse { header, roles: auth.roles.keys().cloned().collect() })
            }
            Query::Permission(asked) => {
                if asked.administer {
                    auth.may_administer(caller)?;
                } else if asked.key.is_empty() {
                    auth.is_known(caller)?;
                } else {
                    auth.may_read(caller, &asked.key, &asked.range_end)?;
                    auth.is_not_before(caller)?;
                }
                Answer::Permitted(KvPermitted {})
            }
            // A server asks for it without a user, and hands it to nobody.
            Query::PasswordOf(request) if caller.of_member => {
                Answer::Password(auth.password_of(&request.name).or_else(|error| match error {
                    KvError::AuthFailed => {
                        let (hash, auth_revision, cost) =
                            (String::new(), auth.revision, auth.costs.highest());
                        Ok(KvPassword { hash, auth_revision, cost })
                    }
                    error => Err(error),
                })?)
            }
            Query::PasswordOf(_) => return Err(KvError::PermissionDenied),
        };
        Ok(KvAuthAnswer { answer: Some(answer) })
    }
}

#[cfg(test)]
mod tests;
