//! etcd's service Lock.

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{DeleteRangeRequest, RangeRequest},
    synod::v1::{kv_command::Command, kv_reply::Reply},
    v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse},
};
use synod_grpc::Charge;
use tonic::Status;

use super::{
    concurrency::{Queue, relayed},
    envelope::{Store, unexpected},
};
use crate::{
    Replica,
    auth::{Caller, Who},
    readers::Lane,
};

impl<R: Replica> Store<R> {
    pub(super) async fn lock(
        &self,
        who: &Who,
        request: LockRequest,
        lane: &Lane,
        charge: &Charge,
        caller: &Caller,
    ) -> Result<LockResponse, Status> {
        let lease = self.session(who, request.lease).await?;
        let queue = Queue::new(&request.name);
        let queued = self.enqueue(who, &queue, lease, Bytes::new()).await?;
        let key = queued.ticket.key.clone();
        let (waiting, waited) = self.until_first(caller, &queue, &queued.ticket, lane, charge).await?;
        if !waited {
            waiting.stays();
            return Ok(LockResponse { header: queued.response.header, key });
        }
        let who = &self.user_now(caller).await?;
        // The lease may have ended meanwhile, and with it the key; it may stand at another place since.
        let own = self.found(who, RangeRequest { key: key.clone(), ..RangeRequest::default() }, lane).await?;
        if own.kvs.first().is_none_or(|own| own.create_revision != queued.ticket.created) {
            return Err(Status::unknown("mutex: session is expired"));
        }
        waiting.stays();
        Ok(LockResponse { header: own.header, key })
    }

    pub(super) async fn unlock(&self, who: &Who, request: UnlockRequest) -> Result<UnlockResponse, Status> {
        let delete = DeleteRangeRequest { key: request.key, ..DeleteRangeRequest::default() };
        let deleted = self.execute(who, Command::DeleteRange(delete), |reply| match reply {
            Reply::DeleteRange(done) => Ok(UnlockResponse { header: self.header(done.header) }),
            other => Err(unexpected(other)),
        });
        deleted.await.map_err(relayed)
    }
}
