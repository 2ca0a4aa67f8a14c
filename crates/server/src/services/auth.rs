//! etcd's service Auth, and who may make which requests.
//!
//! Where the store judges, in the slot of a command or in the state from which a query is answered, nothing is judged
//! here. What no command or query of the store is, such as a change of members, is judged by a query that is made for
//! it.

use std::mem;

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        AuthDisableResponse, AuthEnableResponse, AuthRoleAddResponse, AuthRoleDeleteResponse,
        AuthRoleGetResponse, AuthRoleGrantPermissionResponse, AuthRoleListResponse,
        AuthRoleRevokePermissionResponse, AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse,
        AuthUserChangePasswordRequest, AuthUserChangePasswordResponse, AuthUserDeleteResponse,
        AuthUserGetResponse, AuthUserGrantRoleResponse, AuthUserListResponse, AuthUserRevokeRoleResponse,
        AuthenticateRequest, AuthenticateResponse, ResponseHeader, WatchCreateRequest,
    },
    synod::v1::{
        KvAuthAnswer, KvAuthChange, KvAuthChanged, KvAuthQuery, KvAuthenticate, KvPassword, KvPasswordOf,
        KvPermission, KvQuery, kv_answer::Answer, kv_auth_answer::Answer as AuthAnswer,
        kv_auth_change::Change, kv_auth_query::Query as AuthQuery, kv_command::Command, kv_query::Query,
        kv_reply::Reply,
    },
};
use synod_grpc::{Mark, framed};
use synod_kv::KvError;
use tonic::Status;

use super::{
    concurrency::relayed,
    envelope::{Store, decoded, refusal, unexpected},
    translation::failure,
};
use crate::{
    Auth, Consistency, Replica,
    auth::{Attempt, Caller, Found, Judgement, Who, now_ms},
    feeds::{Feed, UsersChange},
    fields::RequestBody,
    methods::{Handler, Method, Requires, Waits},
    readers::Lane,
};

/// How often a token is asked for when users or roles change again and again meanwhile.
const ATTEMPTS_MAX: usize = 8;

impl<R: Replica> Store<R> {
    /// Whether users count, as far as this replica knows. If it lags, the store refuses what has no user.
    pub(crate) fn users_count(&self) -> bool {
        self.auth().is_some_and(Auth::is_enabled)
    }

    /// [`Store::admit`], where users count or may do so. It is boxed, since thousands of requests may wait.
    pub(super) async fn admitted(&self, method: &Method, caller: &Caller) -> Result<Who, Status> {
        let may_count = self.users_count() || self.auth().is_some() && method.waits == Waits::Always;
        if may_count { Box::pin(self.admit(method, caller)).await } else { Ok(None) }
    }

    /// Finds out whose request it is, and refuses it if it takes more.
    async fn admit(&self, method: &Method, caller: &Caller) -> Result<Who, Status> {
        if !self.users_count() {
            // A replica that lags may not know yet that they count, and nobody judges this later.
            self.status(Consistency::Linearizable).await?;
            if !self.users_count() {
                return Ok(None);
            }
        }
        if method.requires == Requires::Nothing {
            return Ok(None);
        }
        let is_simple = caller.token.is_some() && self.auth().is_some_and(Auth::has_simple_tokens);
        if is_simple && method.waits == Waits::ForTokens {
            self.status(Consistency::Linearizable).await?;
        }
        if method.requires == Requires::NoUser {
            return self.identify(caller).await;
        }
        let who = self.user_of(caller).await?;
        let administer = match method.requires {
            Requires::Nothing | Requires::NoUser | Requires::StoreDecides => return Ok(who),
            Requires::AnyUser => false,
            Requires::Root => true,
        };
        self.permitted(&who, KvPermission { administer, ..KvPermission::default() }).await?;
        Ok(who)
    }

    /// Refuses a call of which it shows before its message comes that it has no user, and takes one. Returns whether
    /// anybody may make it where users count.
    pub(crate) async fn is_known(&self, method: &Method, caller: &Caller) -> Result<bool, Status> {
        let is_open = matches!(method.requires, Requires::Nothing | Requires::NoUser);
        if is_open || !self.users_count() {
            return Ok(is_open && self.users_count());
        }
        let found = Box::pin(self.user_of(caller)).await;
        found.map(|_| false).map_err(|failure| if method.is_relayed() { relayed(failure) } else { failure })
    }

    /// The user of a call that lasts, at this moment: users and roles may have changed since it began.
    pub(crate) async fn user_now(&self, caller: &Caller) -> Result<Who, Status> {
        if self.users_count() { self.user_of(caller).await } else { Ok(None) }
    }

    /// The user of a request where users count. Who has neither a token nor a certificate is refused here: the store
    /// would refuse the command as well, but only in its slot, and strangers could fill the log.
    async fn user_of(&self, caller: &Caller) -> Result<Who, Status> {
        let who = self.identify(caller).await?;
        if who.is_some() { Ok(who) } else { Err(refusal(&KvError::UserEmpty)) }
    }

    /// The user of a request. Without a token and a certificate it has none.
    async fn identify(&self, caller: &Caller) -> Result<Who, Status> {
        let Some(auth) = self.auth() else { return Ok(None) };
        let works = || caller.mark.iter().for_each(Mark::works);
        let Some(token) = &caller.token else {
            let name = caller.common_name.as_ref();
            return Ok(name.map(|name| Box::new(auth.named(name))).inspect(|_| works()));
        };
        let found = match auth.find(token) {
            Found::Later => {
                // Another replica may have issued it, and this one lag. A linearizable read waits for what was decided.
                self.status(Consistency::Linearizable).await?;
                auth.find(token)
            }
            found => found,
        };
        match found {
            Found::User(identity) => {
                works();
                Ok(Some(Box::new(identity)))
            }
            Found::Later | Found::Nobody => Err(refusal(&KvError::InvalidAuthToken)),
        }
    }

    /// Registers a call that lasts. It must be before the call is judged, and before it is asked whether users count.
    pub(crate) fn judgement(&self) -> Option<Judgement> {
        self.auth().map(Auth::judgement)
    }

    /// The same for a call that can be judged again at any time.
    pub(super) fn judgement_of_any(&self) -> Option<Judgement> {
        self.auth().map(Auth::judgement_of_any)
    }

    /// The user of a call that lasts, whose judgement is that of this user from here on.
    pub(super) async fn named(&self, caller: &Caller, judgement: Option<&Judgement>) -> Result<Who, Status> {
        let who = self.user_now(caller).await?;
        if let (Some(auth), Some(judgement), Some(user)) = (self.auth(), judgement, &who) {
            auth.name(judgement, user);
        }
        Ok(who)
    }

    /// Whether a new watch may read its range. Its stream ends when its user may have lost that.
    pub(crate) async fn may_watch(
        &self,
        caller: &Caller,
        request: &WatchCreateRequest,
        judgement: Option<&Judgement>,
    ) -> Result<(), Status> {
        if !self.users_count() {
            return Ok(());
        }
        let who = self.named(caller, judgement).await?;
        let smallest = Bytes::from_static(&[0]);
        let key = if request.key.is_empty() { smallest } else { request.key.clone() };
        let asked = KvPermission { administer: false, key, range_end: request.range_end.clone() };
        match self.permitted(&who, asked.clone()).await {
            Err(status) if status.message() == KvError::AuthOldRevision.to_string() => {
                // This replica may lag behind the token. A linearizable read waits for what was decided.
                self.status(Consistency::Linearizable).await?;
                self.permitted(&who, asked).await
            }
            judged => judged,
        }
    }

    /// Judges a subscription again, if users have changed where its client is in the log, or anybody has lost something
    /// since it was judged.
    pub(crate) async fn may_go_on(
        &self,
        feed: &mut Feed,
        caller: &Caller,
        users_change: Option<UsersChange>,
    ) -> Result<(), Status> {
        if users_change.is_some_and(|change| !change.is_executed(&self.replica().status())) {
            // It may be this client's own right that goes there. A linearizable read waits for what was decided.
            self.status(Consistency::Linearizable).await?;
        }
        if feed.is_marked() {
            feed.judge_by(self.judgement_of_any());
            self.admitted(Handler::Subscribe.method(), caller).await?;
        }
        Ok(())
    }

    async fn permitted(&self, who: &Who, asked: KvPermission) -> Result<(), Status> {
        let consistency = Consistency::Serializable;
        self.ask_auth(who, AuthQuery::Permission(asked), consistency).await.map(drop)
    }

    async fn ask_auth(&self, who: &Who, query: AuthQuery, of: Consistency) -> Result<AuthAnswer, Status> {
        let query = Query::Auth(KvAuthQuery { query: Some(query) });
        auth_answer(self.asked(who, Ok(query), of).await?.whole())
    }

    /// Answers a request of etcd's service Auth.
    pub(super) async fn answer_auth(
        &self,
        handler: Handler,
        body: RequestBody<'_>,
        lane: &Lane,
        who: &Who,
    ) -> Result<Bytes, Status> {
        let Some(auth) = self.auth() else {
            return Err(Status::unimplemented("synod: users are not served here: the store tells of none"));
        };
        macro_rules! change {
            ($change:ident, $response:ident) => {{
                let change = Change::$change(body.message().await?);
                let changed = self.change_users(who, change).await?;
                Ok(framed(&$response { header: self.header_of(&changed) }))
            }};
        }
        macro_rules! query {
            ($query:ident, $response:ident) => {{
                let query = AuthQuery::$query(body.message().await?);
                match self.ask_auth(who, query, Consistency::Linearizable).await? {
                    AuthAnswer::$query(found) => {
                        Ok(framed(&$response { header: self.header(found.header), ..found }))
                    }
                    other => Err(unexpected(other)),
                }
            }};
        }
        match handler {
            Handler::AuthEnable => change!(Enable, AuthEnableResponse),
            Handler::AuthDisable => change!(Disable, AuthDisableResponse),
            Handler::AuthStatus => query!(Status, AuthStatusResponse),
            Handler::Authenticate => {
                let response = self.authenticate(auth, body.message().await?, lane).await?;
                Ok(framed(&response))
            }
            Handler::UserAdd => {
                let request: AuthUserAddRequest = body.message().await?;
                let change = self.with_hash(auth, request, lane, who).await?;
                let changed = self.change_users(who, Change::UserAdd(change)).await?;
                Ok(framed(&AuthUserAddResponse { header: self.header_of(&changed) }))
            }
            Handler::UserGet => query!(UserGet, AuthUserGetResponse),
            Handler::UserList => query!(UserList, AuthUserListResponse),
            Handler::UserDelete => change!(UserDelete, AuthUserDeleteResponse),
            Handler::UserChangePassword => {
                let request: AuthUserChangePasswordRequest = body.message().await?;
                let change = self.with_new_hash(auth, request, lane, who).await?;
                let changed = self.change_users(who, Change::UserChangePassword(change)).await?;
                Ok(framed(&AuthUserChangePasswordResponse { header: self.header_of(&changed) }))
            }
            Handler::UserGrantRole => change!(UserGrantRole, AuthUserGrantRoleResponse),
            Handler::UserRevokeRole => change!(UserRevokeRole, AuthUserRevokeRoleResponse),
            Handler::RoleAdd => change!(RoleAdd, AuthRoleAddResponse),
            Handler::RoleGet => query!(RoleGet, AuthRoleGetResponse),
            Handler::RoleList => query!(RoleList, AuthRoleListResponse),
            Handler::RoleDelete => change!(RoleDelete, AuthRoleDeleteResponse),
            Handler::RoleGrantPermission => change!(RoleGrantPermission, AuthRoleGrantPermissionResponse),
            Handler::RoleRevokePermission => change!(RoleRevokePermission, AuthRoleRevokePermissionResponse),
            other => Err(super::unknown(other.method().path)),
        }
    }

    fn header_of(&self, changed: &KvAuthChanged) -> Option<ResponseHeader> {
        self.header(Some(ResponseHeader { revision: changed.revision, ..ResponseHeader::default() }))
    }

    async fn change_users(&self, who: &Who, change: Change) -> Result<KvAuthChanged, Status> {
        let change = Command::Auth(KvAuthChange { change: Some(change) });
        let changed = self.execute(who, change, |reply| match reply {
            Reply::Auth(changed) => Ok(changed),
            other => Err(unexpected(other)),
        });
        changed.await
    }

    /// The request with the hash of its password in place of that. Only those who may add users make the server work.
    async fn with_hash(
        &self,
        auth: &Auth,
        mut request: AuthUserAddRequest,
        lane: &Lane,
        who: &Who,
    ) -> Result<AuthUserAddRequest, Status> {
        self.permitted(who, KvPermission { administer: true, ..KvPermission::default() }).await?;
        let password = mem::take(&mut request.password);
        // As in etcd, a hash of the client's own counts for nothing here.
        request.hashed_password = match request.options {
            Some(options) if options.no_password => String::new(),
            _ => auth.passwords().hash(password, lane).await?,
        };
        Ok(request)
    }

    /// The same for a new password, in whose place etcd takes a hash, too.
    async fn with_new_hash(
        &self,
        auth: &Auth,
        mut request: AuthUserChangePasswordRequest,
        lane: &Lane,
        who: &Who,
    ) -> Result<AuthUserChangePasswordRequest, Status> {
        self.permitted(who, KvPermission { administer: true, ..KvPermission::default() }).await?;
        let password = mem::take(&mut request.password);
        if !password.is_empty() {
            request.hashed_password = auth.passwords().hash(password, lane).await?;
        } else {
            auth.passwords().check(&request.hashed_password)?;
        }
        Ok(request)
    }

    /// Issues a token. The command that does it is refused if users or roles have changed since the password was right.
    async fn authenticate(
        &self,
        auth: &Auth,
        request: AuthenticateRequest,
        lane: &Lane,
    ) -> Result<AuthenticateResponse, Status> {
        let AuthenticateRequest { name, password } = request;
        let attempt = Attempt { user: name.clone(), password };
        let old = refusal(&KvError::AuthOldRevision);
        for _ in 0..ATTEMPTS_MAX {
            let KvPassword { hash, auth_revision, cost } = self.password_of(&name).await?;
            if !auth.passwords().is(&attempt, hash, cost, lane).await? {
                return Err(refusal(&KvError::AuthFailed));
            }
            let change = Change::Authenticate(KvAuthenticate {
                name: name.clone(),
                checked_revision: auth_revision,
                secret: auth.secret(),
                issued_ms: now_ms(),
            });
            match self.change_users(&None, change).await {
                Err(status) if status.message() == old.message() => {}
                changed => {
                    let changed = changed?;
                    let signed = auth.sign(&name, changed.auth_revision).transpose();
                    let token = signed.map_err(Status::unknown)?.unwrap_or(changed.token.clone());
                    return Ok(AuthenticateResponse { header: self.header_of(&changed), token });
                }
            }
        }
        Err(old)
    }

    /// The hash of a user's password, which is empty if there is no such user. No request of a client becomes this
    /// query.
    async fn password_of(&self, name: &str) -> Result<KvPassword, Status> {
        let query = AuthQuery::PasswordOf(KvPasswordOf { name: name.to_owned() });
        let query = Query::Auth(KvAuthQuery { query: Some(query) });
        let query = KvQuery { query: Some(query), of_member: true, ..KvQuery::default() }.encode_to_vec();
        let found = self.replica().query(query.into(), Consistency::Linearizable).await.map_err(failure)?;
        match auth_answer(found.whole())? {
            AuthAnswer::Password(found) => Ok(found),
            _ => Err(unexpected("something else than a hash")),
        }
    }
}

fn auth_answer(answer: Bytes) -> Result<AuthAnswer, Status> {
    match decoded(answer)? {
        Answer::Auth(KvAuthAnswer { answer: Some(answer) }) => Ok(answer),
        other => Err(unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use synod_api::synod::v1::KvFailure;

    use super::*;

    #[test]
    fn etcds_words_and_codes() {
        let told = |error: KvError| {
            let KvFailure { code, message } = KvFailure::from(&error);
            format!("{code} {message}")
        };
        assert_eq!(told(KvError::InvalidAuthToken), "16 etcdserver: invalid auth token");
        assert_eq!(told(KvError::PermissionDenied), "7 etcdserver: permission denied");
        assert_eq!(told(KvError::AuthNotEnabled), "9 etcdserver: authentication is not enabled");
        assert_eq!(told(KvError::AuthOldRevision), "3 etcdserver: revision of auth store is old");
    }
}
