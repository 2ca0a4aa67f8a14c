//! Members, by etcd's calls. [`Client::change`] is Synod's own, which can do more.

use synod_api::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse, cluster_client::ClusterClient,
};

use crate::{Client, Error, auth::Line, client::ANSWER_BYTES_MAX, endpoints::Retry};

fn cluster(line: Line) -> ClusterClient<Line> {
    ClusterClient::new(line).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// Changes are sent again only while no earlier attempt can have been executed.
impl Client {
    /// The members of the cluster.
    pub async fn member_list(&self, linearizable: bool) -> Result<MemberListResponse, Error> {
        let send = |line| async move { cluster(line).member_list(MemberListRequest { linearizable }).await };
        self.endpoints.call(Retry::Reads, send).await
    }

    /// Adds a member with these addresses for the others, which then has to be started. A learner does not vote until
    /// it is promoted. (In Synod any member begins as a learner, and one that is not added as such votes once it has
    /// caught up.)
    pub async fn member_add(
        &self,
        peer_urls: Vec<String>,
        is_learner: bool,
    ) -> Result<MemberAddResponse, Error> {
        let send = |line| {
            let request = MemberAddRequest { peer_ur_ls: peer_urls.clone(), is_learner };
            async move { cluster(line).member_add(request).await }
        };
        self.endpoints.call(Retry::IfNotExecuted, send).await
    }

    /// Removes a member.
    pub async fn member_remove(&self, id: u64) -> Result<MemberRemoveResponse, Error> {
        let send = |line| async move { cluster(line).member_remove(MemberRemoveRequest { id }).await };
        self.endpoints.call(Retry::IfNotExecuted, send).await
    }

    /// Gives a member other addresses for the others.
    pub async fn member_update(
        &self,
        id: u64,
        peer_urls: Vec<String>,
    ) -> Result<MemberUpdateResponse, Error> {
        let send = |line| {
            let request = MemberUpdateRequest { id, peer_ur_ls: peer_urls.clone() };
            async move { cluster(line).member_update(request).await }
        };
        self.endpoints.call(Retry::IfNotExecuted, send).await
    }

    /// Lets a learner that has caught up vote.
    pub async fn member_promote(&self, id: u64) -> Result<MemberPromoteResponse, Error> {
        let send = |line| async move { cluster(line).member_promote(MemberPromoteRequest { id }).await };
        self.endpoints.call(Retry::IfNotExecuted, send).await
    }
}
