//! The side that makes connections.

use std::{path::PathBuf, sync::Arc};

use rustls::{ClientConfig, client::Resumption};

use crate::{
    Identity, Policy, TlsError, Trust,
    reload::Reloaded,
    verify::{Anybody, Lists},
};

/// Makes connections with TLS. Clones share the files.
#[derive(Clone, Debug)]
pub struct Connector(Arc<Reloaded<ClientConfig>>);

impl Connector {
    /// Checks the certificate of the other side as `trust` says; without one, none is checked, and the connection is
    /// only encrypted. A `trust` without a file of authorities means those that the system trusts. `identity` is shown
    /// if the other side asks for it. `protocols` are those that are offered (ALPN).
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(
        identity: Option<Identity>,
        trust: Option<Trust>,
        policy: Policy,
        protocols: &[&str],
    ) -> Result<Connector, TlsError> {
        let protocols: Vec<_> = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let shown = identity.iter().flat_map(Identity::files);
        let files = shown.chain(trust.iter().flat_map(Trust::files)).map(PathBuf::from).collect();
        let lists = Lists::default();
        let make = move || {
            let provider = &policy.provider;
            let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
                .with_protocol_versions(&policy.versions)
                .map_err(|error| TlsError::Settings(error.to_string()))?
                .dangerous();
            let builder = builder.with_custom_certificate_verifier(match &trust {
                Some(trust) => trust.of_servers(provider, &lists)?,
                None => Arc::new(Anybody(Arc::clone(provider))),
            });
            let mut config = match &identity {
                Some(identity) => {
                    let (chain, key) = identity.load()?;
                    let config = builder.with_client_auth_cert(chain, key);
                    config.map_err(|error| identity.refused(&error))?
                }
                None => builder.with_no_client_auth(),
            };
            config.alpn_protocols.clone_from(&protocols);
            config.resumption = Resumption::disabled();
            Ok(config)
        };
        Ok(Connector(Reloaded::start(files, make)?))
    }

    /// What a connection that begins now uses.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.current()
    }
}
