//! The servers: their addresses, connections and status.

use std::{error::Error, time::Duration};

use synod_api::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient};
use synod_client::internal::Dial;
use synod_tls::Connector;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{BenchError, report::EndpointStatus};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's address.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `host:port`, or the path of a unix socket.
    pub(crate) address: String,
    /// The beginning of the URIs of requests.
    pub(super) uri: String,
    endpoint: Endpoint,
    /// If it is reached otherwise than by TCP without TLS.
    pub(super) dial: Option<Dial>,
}

/// Reads `host:port`, or a URL with a scheme, given with `flag`; `tls` is for those that ask for it.
pub(super) fn parse(flag: &'static str, text: &str, tls: Option<&Connector>) -> Result<Target, BenchError> {
    let refuse =
        |accepted: &str| BenchError::Argument { flag, value: text.into(), accepted: accepted.into() };
    let accepted = "host:port, http://host:port, https://host:port or unix://path is";
    let (scheme, address) = text.split_once("://").unwrap_or(("http", text));
    let dial = Dial::to(&format!("{scheme}://{address}"), tls)
        .map_err(|why| refuse(&format!("{accepted} ({why})")))?;
    let address = address.strip_suffix('/').unwrap_or(address);
    let text = dial.as_ref().map_or_else(|| format!("http://{address}"), Dial::uri);
    let uri: Uri = text.parse().map_err(|_| refuse(accepted))?;
    if uri.host().is_none_or(str::is_empty)
        || uri.port_u16().is_none() && !scheme.starts_with("unix")
        || uri.path() != "/"
        || uri.query().is_some()
    {
        return Err(refuse(accepted));
    }
    let endpoint = Channel::builder(uri).connect_timeout(CONNECT_TIMEOUT);
    Ok(Target { address: address.into(), uri: text, endpoint, dial })
}

impl Target {
    /// Connects to it.
    pub(crate) async fn connect(&self) -> Result<Channel, BenchError> {
        let channel = match &self.dial {
            None => self.endpoint.connect().await,
            Some(dial) => self.endpoint.connect_with_connector(dial.clone()).await,
        };
        channel.map_err(|error| self.unreachable(&error))
    }

    /// Asks the server for its status.
    pub(super) async fn status(&self) -> Result<EndpointStatus, BenchError> {
        let mut client = MaintenanceClient::new(self.connect().await?);
        let answer = tokio::time::timeout(CONNECT_TIMEOUT, client.status(StatusRequest::default()));
        let status = match answer.await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(error)) => {
                let reason = format!("Maintenance.Status: {:?}: {}", error.code(), error.message());
                return Err(BenchError::Unreachable { endpoint: self.address.clone(), reason });
            }
            Err(_) => {
                let reason = format!("no answer to Maintenance.Status within {CONNECT_TIMEOUT:?}");
                return Err(BenchError::Unreachable { endpoint: self.address.clone(), reason });
            }
        };
        let member = status.header.as_ref().map_or(0, |header| header.member_id);
        Ok(EndpointStatus {
            endpoint: self.address.clone(),
            connections: 0,
            version: status.version,
            member: format!("{member:x}"),
            leads: member != 0 && member == status.leader,
            leader: format!("{:x}", status.leader),
            term: status.raft_term,
            database_bytes: status.db_size,
        })
    }

    /// Asks the server something that needs no other one.
    pub(crate) async fn ping(address: &str, channel: Channel) -> Result<(), BenchError> {
        let answer = MaintenanceClient::new(channel).status(StatusRequest::default()).await;
        answer.map(drop).map_err(|status| {
            let reason = format!("Maintenance.Status: {:?}: {}", status.code(), status.message());
            BenchError::Unreachable { endpoint: address.to_owned(), reason }
        })
    }

    fn unreachable(&self, error: &dyn Error) -> BenchError {
        // The outer error says only that there was one; the innermost says which.
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        BenchError::Unreachable { endpoint: self.address.clone(), reason: innermost.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_scheme() {
        for text in ["127.0.0.1:2379", "http://127.0.0.1:2379", "http://127.0.0.1:2379/"] {
            assert_eq!(parse("--endpoints", text, None).unwrap().address, "127.0.0.1:2379");
        }
        assert_eq!(parse("--endpoints", "[::1]:2379", None).unwrap().address, "[::1]:2379");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "localhost", "http://", "ftp://a:1", "a:1/path", "a:99999", "unix://", ":1"] {
            let error = parse("--endpoints", text, None).unwrap_err().to_string();
            assert!(error.contains("--endpoints") && error.contains("host:port"), "{text}: {error}");
        }
        assert!(parse("--endpoints", "https://a:1", None).unwrap_err().to_string().contains("--cacert"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_server_that_is_not_there_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = parse("--endpoints", &address, None).unwrap().status().await.unwrap_err().to_string();
        assert!(error.contains(&address) && error.to_lowercase().contains("refused"), "{error}");
    }
}
