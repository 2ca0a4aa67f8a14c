//! What the server does for its clients, by the path of a request.

mod cluster;
mod envelope;
mod kv;
mod maintenance;
mod native;

use bytes::Bytes;
use prost::Message;
use synod_api::etcdserverpb::{DeleteRangeRequest, PutRequest};
use synod_kv::{PAGE_BYTES, validate};
use tonic::Status;

pub(crate) use self::{
    envelope::{Store, refusal},
    kv::Pieces,
};
use crate::{
    Replica,
    admission::Charge,
    message::{RequestBody, framed, too_many},
    readers::{Lane, Place},
};

/// The version of etcd whose API is spoken. Clients read it to see which requests they may send, so it is etcd's
/// number and not Synod's.
pub const API_VERSION: &str = "3.6.0";

/// What is sent for a request that is not refused.
pub(crate) enum Answer<'a, R> {
    /// One message.
    Message(Bytes),
    /// One message that may be large, and has a place for that until it is sent.
    Large(Bytes, Place),
    /// One message or several, made as they are sent.
    Pieces(Box<Pieces<'a, R>>),
}

impl<R: Replica> Store<R> {
    /// Finds out what a request wants, and does it.
    pub(crate) async fn answer(
        &self,
        path: &str,
        body: RequestBody<'_>,
        lane: &Lane,
        charge: &Charge,
    ) -> Result<Answer<'_, R>, Status> {
        match path {
            "/etcdserverpb.KV/Put" => {
                let request: PutRequest = body.message().await?;
                let place = self.room_for_pairs(u64::from(request.prev_kv), lane, charge).await;
                Ok(in_place(framed(&self.put(request).await?), place))
            }
            "/etcdserverpb.KV/Range" => {
                let request = body.message().await?;
                page(charge)?;
                self.range(request).await
            }
            "/synod.v1.Native/Execute" => unary(body, |request| self.execute_in_session(request)).await,
            "/synod.v1.Native/Query" => {
                let request = body.message().await?;
                page(charge)?;
                let (response, place) = self.query_natively(request, lane).await?;
                Ok(in_place(framed(&response), place))
            }
            // Boxed, so that a request of those above, of which there may be thousands, has no room for these.
            _ => Box::pin(self.answer_rarer(path, body, lane, charge)).await,
        }
    }

    /// Makes sure of room for an answer of so many pairs, of which a command does not know how large they are: charges the
    /// request for it, or has it wait for a place of those that are in memory as a whole.
    fn room_for_pairs<'a>(
        &self,
        pairs: u64,
        lane: &'a Lane,
        charge: &Charge,
    ) -> impl Future<Output = Option<Place>> + use<'a, R> {
        let limits = self.limits();
        let bytes = pairs.saturating_mul(limits.request_bytes_max as u64).min(limits.answer_bytes_max);
        let lane = Some(lane).filter(|_| !charge.grow(bytes));
        // Boxed, since it is rare.
        async move { if let Some(lane) = lane { Some(Box::pin(lane.place()).await) } else { None } }
    }

    async fn answer_rarer(
        &self,
        path: &str,
        body: RequestBody<'_>,
        lane: &Lane,
        charge: &Charge,
    ) -> Result<Answer<'_, R>, Status> {
        match path {
            "/etcdserverpb.KV/Txn" => {
                let request = body.message().await?;
                let (response, place) = if validate::is_read_only(&request) {
                    self.read_only_txn(request, lane).await?
                } else {
                    // How large its answer is, only its execution shows.
                    let place = match validate::pairs_answered(&request) {
                        Some(pairs) => self.room_for_pairs(pairs, lane, charge).await,
                        None => Some(lane.place().await),
                    };
                    (self.txn(request).await?, place)
                };
                Ok(in_place(framed(&response), place))
            }
            "/etcdserverpb.KV/DeleteRange" => {
                let request: DeleteRangeRequest = body.message().await?;
                let place = if request.range_end.is_empty() {
                    self.room_for_pairs(u64::from(request.prev_kv), lane, charge).await
                } else if request.prev_kv {
                    Some(lane.place().await)
                } else {
                    None
                };
                Ok(in_place(framed(&self.delete_range(request).await?), place))
            }
            "/etcdserverpb.KV/RangeStream" => {
                let request = body.message().await?;
                page(charge)?;
                self.range_stream(request).await
            }
            "/etcdserverpb.KV/Compact" => unary(body, |request| self.compact(request)).await,
            "/etcdserverpb.Cluster/MemberList" => unary(body, |request| self.member_list(request)).await,
            "/etcdserverpb.Cluster/MemberAdd" => unary(body, |request| self.member_add(request)).await,
            "/etcdserverpb.Cluster/MemberRemove" => unary(body, |request| self.member_remove(request)).await,
            "/etcdserverpb.Cluster/MemberUpdate" => unary(body, |request| self.member_update(request)).await,
            "/etcdserverpb.Cluster/MemberPromote" => {
                unary(body, |request| self.member_promote(request)).await
            }
            "/etcdserverpb.Maintenance/MoveLeader" => unary(body, |request| self.move_leader(request)).await,
            "/etcdserverpb.Maintenance/Alarm" => unary(body, |request| self.alarm(request)).await,
            "/etcdserverpb.Maintenance/Status" => unary(body, |request| self.member_status(request)).await,
            "/etcdserverpb.Maintenance/Defragment" => unary(body, |request| self.defragment(request)).await,
            "/etcdserverpb.Maintenance/Hash" => unary(body, |request| self.hash(request, lane)).await,
            "/etcdserverpb.Maintenance/HashKV" => unary(body, |request| self.hash_kv(request, lane)).await,
            "/synod.v1.Native/OpenSession" => unary(body, |request| self.open_session(request)).await,
            "/synod.v1.Native/Status" => unary(body, |request| self.replica_status(request)).await,
            "/synod.v1.Native/Change" => unary(body, |request| self.change_natively(request)).await,
            _ => Err(Status::unimplemented(why_not_served(path))),
        }
    }
}

/// Charges a request for what is answered at once, without pieces.
fn page(charge: &Charge) -> Result<(), Status> {
    if charge.grow(PAGE_BYTES) { Ok(()) } else { Err(too_many()) }
}

fn in_place<'a, R>(message: Bytes, place: Option<Place>) -> Answer<'a, R> {
    match place {
        Some(place) => Answer::Large(message, place),
        None => Answer::Message(message),
    }
}

/// Answers one message with one message.
async fn unary<'a, R: 'a, Q, A, F>(
    body: RequestBody<'_>,
    serve: impl FnOnce(Q) -> F,
) -> Result<Answer<'a, R>, Status>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A, Status>>,
{
    let request = body.message().await?;
    serve(request).await.map(|answer| Answer::Message(framed(&answer)))
}

fn why_not_served(path: &str) -> String {
    let why = match path {
        "/etcdserverpb.Maintenance/Snapshot" => {
            "snapshots in etcd's file format are not served; copy a stopped member's data directory instead"
        }
        "/etcdserverpb.Maintenance/Downgrade" => "a cluster can not be downgraded to a version of etcd",
        _ => return format!("synod: {path} is not served"),
    };
    format!("synod: {why}")
}
