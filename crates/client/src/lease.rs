//! Leases.

use futures_util::stream;
use synod_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, lease_client::LeaseClient,
};
use tonic::{Response, Status};

use crate::{Client, Error, endpoints::Retry};

impl Client {
    /// Grants a lease of this many seconds, or of the least that the server grants. The server chooses an id for 0.
    pub async fn lease_grant(&self, ttl: i64, id: i64) -> Result<LeaseGrantResponse, Error> {
        let request = LeaseGrantRequest { ttl, id };
        // With an id of the server's choice a grant that is sent twice leaves a lease that ends by itself.
        let send = |channel| async move { LeaseClient::new(channel).lease_grant(request).await };
        self.endpoints_used().call(self.writes(), send).await
    }

    /// Ends a lease, and deletes its keys.
    pub async fn lease_revoke(&self, id: i64) -> Result<LeaseRevokeResponse, Error> {
        let request = LeaseRevokeRequest { id };
        let send = |channel| async move { LeaseClient::new(channel).lease_revoke(request).await };
        self.endpoints_used().call(self.writes(), send).await
    }

    /// Renews a lease once. The answer's time to live is 0 if there is no such lease.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<LeaseKeepAliveResponse, Error> {
        let request = LeaseKeepAliveRequest { id };
        let send = |channel| async move {
            let mut client = LeaseClient::new(channel);
            let mut renewed = client.lease_keep_alive(stream::iter([request])).await?.into_inner();
            let renewed = renewed.message().await?;
            renewed.map(Response::new).ok_or_else(|| Status::unavailable("the server has answered nothing"))
        };
        self.endpoints_used().call(Retry::Freely, send).await
    }

    /// For how long a lease lives, and with `keys` which keys it has. The time to live is -1 if there is no such lease.
    pub async fn lease_time_to_live(&self, id: i64, keys: bool) -> Result<LeaseTimeToLiveResponse, Error> {
        let request = LeaseTimeToLiveRequest { id, keys };
        let send = |channel| async move { LeaseClient::new(channel).lease_time_to_live(request).await };
        self.endpoints_used().call(Retry::Reads, send).await
    }

    /// The ids of all leases.
    pub async fn leases(&self) -> Result<LeaseLeasesResponse, Error> {
        let send =
            |channel| async move { LeaseClient::new(channel).lease_leases(LeaseLeasesRequest {}).await };
        self.endpoints_used().call(Retry::Reads, send).await
    }
}
