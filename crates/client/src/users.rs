//! Users and roles, and whether they count.

use std::fmt;

use bytes::Bytes;
use synod_api::{
    authpb::{Permission, UserAddOptions, permission::Type},
    etcdserverpb::{
        AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest,
        AuthRoleGetResponse, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
        AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthStatusResponse, AuthUserAddRequest,
        AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest, AuthUserGrantRoleRequest,
        AuthUserListRequest, AuthUserRevokeRoleRequest, auth_client::AuthClient,
    },
};
use tonic::{Response, Status};

use crate::{Client, Error, auth::Line, client::ANSWER_BYTES_MAX, endpoints::Retry};

fn auth(line: Line) -> AuthClient<Line> {
    AuthClient::new(line).max_decoding_message_size(ANSWER_BYTES_MAX)
}

impl Client {
    /// Makes users count. There must be a user `root` with the role `root`, for whom this client then has to ask.
    pub async fn auth_enable(&self) -> Result<(), Error> {
        self.administer(|line| async move { auth(line).auth_enable(AuthEnableRequest {}).await }).await
    }

    /// Makes users count no more. They stay as they are.
    pub async fn auth_disable(&self) -> Result<(), Error> {
        self.administer(|line| async move { auth(line).auth_disable(AuthDisableRequest {}).await }).await
    }

    /// Whether users count, and how often they have changed.
    pub async fn auth_status(&self) -> Result<AuthStatusResponse, Error> {
        let send = |line| async move { auth(line).auth_status(AuthStatusRequest {}).await };
        self.endpoints.call(Retry::Reads, send).await
    }

    /// Adds a user. One without a password shows a certificate with this common name.
    pub async fn user_add(&self, name: &str, password: Option<&str>) -> Result<(), Error> {
        let request = AuthUserAddRequest {
            name: name.to_owned(),
            password: password.unwrap_or_default().to_owned(),
            options: Some(UserAddOptions { no_password: password.is_none() }),
            ..AuthUserAddRequest::default()
        };
        self.administer(|line| {
            let request = request.clone();
            async move { auth(line).user_add(request).await }
        })
        .await
    }

    /// Deletes a user.
    pub async fn user_delete(&self, name: &str) -> Result<(), Error> {
        self.administer(|line| {
            let request = AuthUserDeleteRequest { name: name.to_owned() };
            async move { auth(line).user_delete(request).await }
        })
        .await
    }

    /// The names of all users.
    pub async fn users(&self) -> Result<Vec<String>, Error> {
        let send = |line| async move { auth(line).user_list(AuthUserListRequest {}).await };
        Ok(self.endpoints.call(Retry::Reads, send).await?.users)
    }

    /// The roles of a user.
    pub async fn user_roles(&self, name: &str) -> Result<Vec<String>, Error> {
        let send = |line| {
            let request = AuthUserGetRequest { name: name.to_owned() };
            async move { auth(line).user_get(request).await }
        };
        Ok(self.endpoints.call(Retry::Reads, send).await?.roles)
    }

    /// Gives a user another password. Tokens that were given for the old one are not valid any more.
    pub async fn user_change_password(&self, name: &str, password: &str) -> Result<(), Error> {
        self.administer(|line| {
            let (name, password) = (name.to_owned(), password.to_owned());
            let request =
                AuthUserChangePasswordRequest { name, password, ..AuthUserChangePasswordRequest::default() };
            async move { auth(line).user_change_password(request).await }
        })
        .await
    }

    /// Gives a user a role.
    pub async fn user_grant_role(&self, user: &str, role: &str) -> Result<(), Error> {
        self.administer(|line| {
            let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
            async move { auth(line).user_grant_role(request).await }
        })
        .await
    }

    /// Takes a role away from a user.
    pub async fn user_revoke_role(&self, user: &str, role: &str) -> Result<(), Error> {
        self.administer(|line| {
            let request = AuthUserRevokeRoleRequest { name: user.to_owned(), role: role.to_owned() };
            async move { auth(line).user_revoke_role(request).await }
        })
        .await
    }

    /// Adds a role, without any permission.
    pub async fn role_add(&self, role: &str) -> Result<(), Error> {
        self.administer(|line| {
            let request = AuthRoleAddRequest { name: role.to_owned() };
            async move { auth(line).role_add(request).await }
        })
        .await
    }

    /// Deletes a role, and takes it away from all users.
    pub async fn role_delete(&self, role: &str) -> Result<(), Error> {
        self.administer(|line| {
            let request = AuthRoleDeleteRequest { role: role.to_owned() };
            async move { auth(line).role_delete(request).await }
        })
        .await
    }

    /// The names of all roles.
    pub async fn roles(&self) -> Result<Vec<String>, Error> {
        let send = |line| async move { auth(line).role_list(AuthRoleListRequest {}).await };
        Ok(self.endpoints.call(Retry::Reads, send).await?.roles)
    }

    /// The permissions of a role.
    pub async fn role_get(&self, role: &str) -> Result<AuthRoleGetResponse, Error> {
        let send = |line| {
            let request = AuthRoleGetRequest { role: role.to_owned() };
            async move { auth(line).role_get(request).await }
        };
        self.endpoints.call(Retry::Reads, send).await
    }

    /// Lets the users of a role read, write, or both, a key or the range up to `range_end`, as in a read.
    pub async fn role_grant(
        &self,
        role: &str,
        kind: Type,
        key: impl Into<Bytes>,
        range_end: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let permission = Permission { perm_type: kind.into(), key: key.into(), range_end: range_end.into() };
        self.administer(|line| {
            let perm = Some(permission.clone());
            let request = AuthRoleGrantPermissionRequest { name: role.to_owned(), perm };
            async move { auth(line).role_grant_permission(request).await }
        })
        .await
    }

    /// Takes the permission of exactly this key or range away from a role.
    pub async fn role_revoke(
        &self,
        role: &str,
        key: impl Into<Bytes>,
        range_end: impl Into<Bytes>,
    ) -> Result<(), Error> {
        let (role, key, range_end) = (role.to_owned(), key.into(), range_end.into());
        let request = AuthRoleRevokePermissionRequest { role, key, range_end };
        self.administer(|line| {
            let request = request.clone();
            async move { auth(line).role_revoke_permission(request).await }
        })
        .await
    }

    /// Sends a change, again as [`Client::put`] does. Its answer says nothing.
    async fn administer<T: fmt::Debug, F>(&self, send: impl Fn(Line) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.endpoints.call(self.writes(), send).await.map(drop)
    }
}
