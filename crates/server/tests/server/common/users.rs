//! A server whose store has users, and those who manage them.

use synod_api::{
    authpb::{Permission, permission::Type},
    etcdserverpb::{
        AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
        AuthUserGrantRoleRequest, AuthenticateRequest, PutRequest, RangeRequest, auth_client::AuthClient,
    },
};
use synod_kv::KvStore;
use synod_server::{Auth, Config, Server, TokenKind, Watches};
use tonic::{Request, Status, transport::Channel};

use crate::common::{config, connect};

/// The least cost: these tests are not about guessing passwords.
pub const COST: u32 = 4;

/// A store whose server has users and watches.
pub fn with_users(tokens: TokenKind) -> (KvStore, Config) {
    let (auth, watches) = (Auth::new(tokens, COST), Watches::new());
    let store = KvStore::new().feeding(watches.feed()).authenticating(auth.feed());
    (store, Config { auth: Some(auth), watches: Some(watches), ..config() })
}

/// A request with this token.
pub fn with<T>(token: &str, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> String {
    let status = outcome.unwrap_err();
    format!("{:?}: {}", status.code(), status.message())
}

pub const EMPTY: &str = "InvalidArgument: etcdserver: user name is empty";
pub const DENIED: &str = "PermissionDenied: etcdserver: permission denied";
pub const INVALID: &str = "Unauthenticated: etcdserver: invalid auth token";
pub const OLD: &str = "InvalidArgument: etcdserver: revision of auth store is old";
pub const FAILED: &str = "InvalidArgument: etcdserver: authentication failed, invalid user ID or password";

pub struct Users {
    pub auth: AuthClient<Channel>,
    /// The token of the user who manages users.
    pub token: String,
}

impl Users {
    pub async fn new(server: &Server) -> Users {
        Users { auth: AuthClient::new(connect(server).await), token: String::new() }
    }

    pub async fn add(&mut self, name: &str, password: &str) {
        let request =
            AuthUserAddRequest { name: name.into(), password: password.into(), ..Default::default() };
        self.auth.user_add(with(&self.token, request)).await.unwrap();
    }

    pub async fn role(&mut self, name: &str) {
        self.auth.role_add(with(&self.token, AuthRoleAddRequest { name: name.into() })).await.unwrap();
    }

    pub async fn grant(&mut self, user: &str, role: &str) {
        let request = AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        self.auth.user_grant_role(with(&self.token, request)).await.unwrap();
    }

    pub async fn permit(&mut self, role: &str, kind: Type, key: &str, end: &str) {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        let perm = Some(Permission { perm_type: kind.into(), key, range_end });
        let request = AuthRoleGrantPermissionRequest { name: role.into(), perm };
        self.auth.role_grant_permission(with(&self.token, request)).await.unwrap();
    }

    pub async fn authenticate(&mut self, name: &str, password: &str) -> Result<String, Status> {
        let request = AuthenticateRequest { name: name.into(), password: password.into() };
        self.auth.authenticate(request).await.map(|answer| answer.into_inner().token)
    }

    /// The user root, and a user `u` who may do everything with keys that begin with `u`. Users do not count yet.
    pub async fn prepared(server: &Server) -> Users {
        let mut users = Users::new(server).await;
        users.add("root", "rootpw").await;
        users.add("u", "upw").await;
        users.role("root").await;
        users.role("editor").await;
        users.permit("editor", Type::Readwrite, "u", "v").await;
        users.grant("root", "root").await;
        users.grant("u", "editor").await;
        users
    }

    /// From here on users count.
    pub async fn enable(&mut self) {
        self.auth.auth_enable(AuthEnableRequest {}).await.unwrap();
        self.token = self.authenticate("root", "rootpw").await.unwrap();
    }

    /// The same, and users count. Returns them and the token of `u`.
    pub async fn enabled(server: &Server) -> (Users, String) {
        let mut users = Users::new(server).await;
        assert_eq!(
            refused(users.authenticate("root", "rootpw").await),
            "FailedPrecondition: etcdserver: authentication is not enabled"
        );
        let enable = users.auth.auth_enable(AuthEnableRequest {}).await;
        assert_eq!(refused(enable), "FailedPrecondition: etcdserver: root user does not exist");
        let mut users = Users::prepared(server).await;
        users.enable().await;
        let token = users.authenticate("u", "upw").await.unwrap();
        (users, token)
    }
}

pub fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

pub fn get(key: &str, end: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), range_end: end.to_owned().into(), ..Default::default() }
}
