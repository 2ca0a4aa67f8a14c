//! etcd's service Cluster, as far as it can be served with members that never change.

use synod_api::etcdserverpb::{self, MemberListRequest, MemberListResponse};
use tonic::Status;

use super::envelope::Store;
use crate::{Consistency, Member, Replica};

impl<R: Replica> Store<R> {
    /// A linearizable list is one given after a linearizable read, which proves that this replica is in touch.
    pub(super) async fn member_list(&self, request: MemberListRequest) -> Result<MemberListResponse, Status> {
        if request.linearizable {
            self.status(Consistency::Linearizable).await?;
        }
        let members = self.replica().members().into_iter().map(etcdserverpb::Member::from).collect();
        Ok(MemberListResponse { header: self.header(None), members })
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
