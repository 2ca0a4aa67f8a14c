//! What carries messages between replicas, as the flags ask for it.

use std::sync::Arc;

use synod_node::{MTU_DEFAULT, Network, Tcp, Udp};

use super::{
    config::{ConfigError, wrong},
    flags::{TransportKind, Tuning},
    tls::TlsPlan,
};

/// What carries messages between replicas.
pub fn network(
    tuning: &Tuning,
    tls: &TlsPlan,
    warnings: &mut Vec<String>,
) -> Result<Arc<dyn Network>, ConfigError> {
    match (tuning.transport, tuning.mtu) {
        (TransportKind::Tcp, None) => Ok(Arc::new(Tcp)),
        (TransportKind::Tcp, Some(mtu)) => {
            wrong("mtu", mtu, "does nothing with --transport tcp; accepted: none, or --transport udp")
        }
        (TransportKind::Udp, _) if tls.is_between_replicas() => {
            let why = "datagrams are not encrypted, and this replica speaks TLS with others (--peer-cert-file, \
                       --peer-auto-tls, or a peer URL with https://); accepted: tcp, or peer URLs with http:// and no \
                       --peer-... of TLS, on a segment that you trust";
            wrong("transport", "udp", why)
        }
        (TransportKind::Udp, mtu) => {
            warnings.push(
                "--transport udp: datagrams between replicas are neither encrypted nor authenticated; a host that can send \
                 packets to their ports can be taken for a replica"
                    .to_owned(),
            );
            Ok(Arc::new(Udp { mtu: mtu.unwrap_or(MTU_DEFAULT) }))
        }
    }
}
