//! etcd's service Cluster.

use std::sync::Arc;

use synod_api::etcdserverpb::{
    self, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse, cluster_server::Cluster,
};
use tonic::{Request, Response, Status};

use super::envelope::Store;
use crate::{Consistency, Member, Replica};

#[derive(Debug)]
pub(crate) struct ClusterService<R> {
    store: Arc<Store<R>>,
}

impl<R> ClusterService<R> {
    pub(super) fn new(store: Arc<Store<R>>) -> ClusterService<R> {
        ClusterService { store }
    }
}

fn fixed_members() -> Status {
    Status::unimplemented(
        "synod: the members of a cluster are fixed by --initial-cluster; they can not be changed while it runs",
    )
}

#[tonic::async_trait]
impl<R: Replica> Cluster for ClusterService<R> {
    /// A linearizable list is one given after a linearizable read, which proves that this replica is in touch.
    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.into_inner().linearizable {
            self.store.status(Consistency::Linearizable).await?;
        }
        let members = self.store.replica().members().into_iter().map(etcdserverpb::Member::from).collect();
        Ok(Response::new(MemberListResponse { header: self.store.header(None), members }))
    }

    async fn member_add(&self, _: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        Err(fixed_members())
    }

    async fn member_remove(
        &self,
        _: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        Err(fixed_members())
    }

    async fn member_update(
        &self,
        _: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        Err(fixed_members())
    }

    async fn member_promote(
        &self,
        _: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        Err(fixed_members())
    }
}

impl From<Member> for etcdserverpb::Member {
    fn from(member: Member) -> etcdserverpb::Member {
        etcdserverpb::Member {
            id: member.id.0,
            name: member.name,
            peer_ur_ls: member.peer_urls,
            client_ur_ls: member.client_urls,
            is_learner: member.is_learner,
        }
    }
}
