//! The user for whom a client's requests are made: its token, which every request carries.

use std::sync::{Arc, PoisonError, RwLock};

use synod_api::etcdserverpb::{AuthenticateRequest, auth_client::AuthClient};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use crate::Config;

/// etcd's key for a token.
const TOKEN: &str = "token";
/// The answers after which a new token helps, and that of a server whose users do not count. They are etcd's.
const TOKEN_IS_OLD: [&str; 3] = [
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
];
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";
/// How often a request is sent again with a new token.
pub(crate) const RENEWALS_MAX: u32 = 3;

/// A connection whose requests carry the client's token.
pub(crate) type Line = InterceptedService<Channel, Token>;

/// The token of a client, once it has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Token(Arc<RwLock<Option<MetadataValue<Ascii>>>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = self.present() {
            request.metadata_mut().insert(TOKEN, token);
        }
        Ok(request)
    }
}

impl Token {
    fn present(&self) -> Option<MetadataValue<Ascii>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, token: Option<MetadataValue<Ascii>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Gets a token at this endpoint, if the client is that of a user and has none.
    pub(crate) async fn obtain(&self, config: &Config, channel: Channel) -> Result<(), Status> {
        let Some((name, password)) = &config.user else { return Ok(()) };
        if self.present().is_some() {
            return Ok(());
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        match AuthClient::new(channel).authenticate(request).await {
            Ok(answer) => {
                let mut token: MetadataValue<Ascii> = answer
                    .into_inner()
                    .token
                    .parse()
                    .map_err(|_| Status::internal("the server's token is no text"))?;
                token.set_sensitive(true);
                self.set(Some(token));
                Ok(())
            }
            // Users do not count there.
            Err(status) if status.message() == NOT_ENABLED => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// Whether a request was refused for its token, which is forgotten then. Such a request was not executed. The
    /// reason is the message of a status, or ends with it.
    pub(crate) fn is_refused(&self, config: &Config, reason: &str) -> bool {
        let is_old = config.user.is_some() && TOKEN_IS_OLD.iter().any(|text| reason.ends_with(text));
        if is_old {
            self.set(None);
        }
        is_old
    }
}
