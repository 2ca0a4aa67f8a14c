//! The side that accepts connections.

use std::{path::PathBuf, sync::Arc};

use rustls::{ServerConfig, server::NoServerSessionStorage};

use crate::{Identity, Policy, TlsError, Trust, reload::Reloaded, verify::Lists};

/// Accepts connections with TLS. Clones share the files.
#[derive(Clone, Debug)]
pub struct Acceptor(Arc<Reloaded<ServerConfig>>);

impl Acceptor {
    /// Shows `identity`. Callers have to show a certificate that `trust` allows, if there is one. `protocols` are those
    /// that are negotiated (ALPN), the preferred one first; a caller that names none is taken as well.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(
        identity: Identity,
        trust: Option<Trust>,
        policy: Policy,
        protocols: &[&str],
    ) -> Result<Acceptor, TlsError> {
        let protocols: Vec<_> = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let files = identity.files().chain(trust.iter().flat_map(Trust::files));
        let files = files.map(PathBuf::from).collect();
        let lists = Lists::default();
        let make = move || {
            let builder = ServerConfig::builder_with_provider(Arc::clone(&policy.provider))
                .with_protocol_versions(&policy.versions)
                .map_err(|error| TlsError::Settings(error.to_string()))?;
            let builder = match &trust {
                Some(trust) => builder.with_client_cert_verifier(trust.of_clients(&policy.provider, &lists)?),
                None => builder.with_no_client_auth(),
            };
            let (chain, key) = identity.load()?;
            let config = builder.with_single_cert(chain, key);
            let mut config = config.map_err(|error| identity.refused(&error))?;
            config.alpn_protocols.clone_from(&protocols);
            // A session that is taken up again would not look at the certificate, which may have been revoked.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(config)
        };
        Ok(Acceptor(Reloaded::start(files, make)?))
    }

    /// What a connection that begins now uses.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.current()
    }
}
