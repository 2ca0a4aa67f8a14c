//! The server's services, by the path of a request.

mod auth;
mod cluster;
mod concurrency;
mod election;
mod envelope;
mod kv;
mod lease;
mod lock;
mod maintenance;
mod native;
mod snapshot;
mod standard;
mod translation;

use bytes::Bytes;
use prost::Message;
use synod_api::{etcdserverpb::PutRequest, shards::NO_SINGLE_REVISION, synod::v1::ExecuteRequest};
use synod_grpc::{Charge, REQUEST_BYTES, framed};
use synod_kv::{PAGE_BYTES, validate};
use tonic::Status;

use self::concurrency::relayed;
pub(crate) use self::{
    envelope::{SMALL_ANSWER_BYTES_MAX, Store, decoded, refusal, replied},
    kv::Pieces,
    translation::failure,
};
use crate::{
    Replica,
    auth::{Caller, Who},
    feeds::Feed,
    fields::RequestBody,
    methods::{Groups, Handler, Method, POOL},
    readers::{Lane, Place},
};

/// The version of etcd whose API is served. Clients read it to decide which requests they may send, so it is
/// etcd's number and not Synod's.
pub const API_VERSION: &str = "3.7.3";
/// The same without the patch, as etcd's members agree on it.
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";
/// The version of etcd that first had the format of the snapshots that are given: it and later ones start on them.
pub(crate) const STORAGE_VERSION: &str = "3.6.0";

/// The answer to a request that is not refused.
pub(crate) enum Answer<'a, R> {
    /// One message.
    Message(Bytes),
    /// One message that may be large, and holds a place until it is sent.
    Large(Bytes, Place),
    /// One message or several, made as they are sent.
    Pieces(Box<Pieces<'a, R>>),
    /// Messages without an end.
    Feed(Box<Feed>),
}

impl<R: Replica> Store<R> {
    /// Decodes a request and answers it.
    pub(crate) async fn answer(
        &self,
        method: &'static Method,
        body: RequestBody<'_>,
        lane: &Lane,
        charge: &Charge,
        caller: &Caller,
    ) -> Result<Answer<'_, R>, Status> {
        if method.groups == Groups::One {
            self.check_single()?;
        }
        let admitted = self.admitted(method, caller).await;
        let who =
            &admitted.map_err(|failure| if method.is_relayed() { relayed(failure) } else { failure })?;
        match method.handler {
            Handler::Put => {
                let request: PutRequest = body.message().await?;
                if request.prev_kv {
                    charge.afford(SMALL_ANSWER_BYTES_MAX)?;
                    let (response, place) = Box::pin(self.replace(who, request, lane)).await?;
                    return in_place(response, lane, place).await;
                }
                self.put(who, request).await.map(|answer| Answer::Message(framed(&answer)))
            }
            Handler::Range => {
                let request = body.message().await?;
                charge.afford(PAGE_BYTES)?;
                self.range(who, request).await
            }
            Handler::Execute => {
                let request: ExecuteRequest = body.message().await?;
                let in_session = request.session != 0;
                if !in_session {
                    charge.afford(SMALL_ANSWER_BYTES_MAX)?;
                }
                let response = self.execute_natively(who, request, charge).await?;
                if in_session {
                    // A client that is refused here can ask again for the reply, which its session keeps.
                    charge.afford(response.reply.len() as u64)?;
                }
                Ok(Answer::Message(framed(&response)))
            }
            Handler::Query => {
                let request = body.message().await?;
                charge.afford(PAGE_BYTES)?;
                let (response, place) = self.query_natively(who, request, lane, charge).await?;
                match place {
                    None => Ok(Answer::Message(framed(&response))),
                    Some(place) => Box::pin(large(response, lane, place)).await,
                }
            }
            // Boxed, so that the frequent requests above, of which there may be thousands, do not carry the
            // state of these.
            rarer => Box::pin(self.answer_rarer(rarer, body, lane, charge, (caller, who))).await,
        }
    }

    async fn answer_rarer(
        &self,
        handler: Handler,
        body: RequestBody<'_>,
        lane: &Lane,
        charge: &Charge,
        (caller, who): (&Caller, &Who),
    ) -> Result<Answer<'_, R>, Status> {
        use Handler as H;
        match handler {
            H::Txn => {
                let request = body.message().await?;
                if validate::is_read_only(&request) {
                    return found(charge, lane, self.read_only_txn(who, request, lane).await?).await;
                }
                charge.afford(SMALL_ANSWER_BYTES_MAX)?;
                let (response, place) = self.txn(who, request, lane).await?;
                in_place(response, lane, place).await
            }
            H::DeleteRange => {
                let request = body.message().await?;
                charge.afford(SMALL_ANSWER_BYTES_MAX)?;
                let (response, place) = self.delete_range(who, request, lane).await?;
                in_place(response, lane, place).await
            }
            H::RangeStream => {
                let request = body.message().await?;
                charge.afford(PAGE_BYTES)?;
                self.range_stream(who, request).await
            }
            H::Compact => unary(body, |request| self.compact(who, request)).await,
            H::LeaseGrant => unary(body, |request| self.lease_grant(who, request)).await,
            H::LeaseRevoke => unary(body, |request| self.lease_revoke(who, request)).await,
            H::LeaseTimeToLive => {
                found(charge, lane, self.lease_time_to_live(who, body.message().await?, lane).await?).await
            }
            H::LeaseLeases => {
                found(charge, lane, self.lease_leases(who, body.message().await?, lane).await?).await
            }
            H::Lock => unary(body, |request| self.lock(who, request, lane, charge, caller)).await,
            H::Unlock => unary(body, |request| self.unlock(who, request)).await,
            H::Campaign => unary(body, |request| self.campaign(who, request, lane, charge, caller)).await,
            H::Proclaim => unary(body, |request| self.proclaim(who, request)).await,
            H::Leader => found(charge, lane, self.leader(who, body.message().await?, lane).await?).await,
            H::Resign => unary(body, |request| self.resign(who, request)).await,
            H::MemberList => unary(body, |request| self.member_list(request)).await,
            H::MemberAdd => unary(body, |request| self.member_add(request)).await,
            H::MemberRemove => unary(body, |request| self.member_remove(request)).await,
            H::MemberUpdate => unary(body, |request| self.member_update(request)).await,
            H::MemberPromote => unary(body, |request| self.member_promote(request)).await,
            H::MoveLeader => unary(body, |request| self.move_leader(request)).await,
            H::Alarm => unary(body, |request| self.alarm(who, request)).await,
            H::MemberStatus => unary(body, |request| self.member_status(request)).await,
            H::Snapshot => self.snapshot(who, body.message().await?).await,
            H::Downgrade => unary(body, |request| self.downgrade(request)).await,
            H::Defragment => unary(body, |request| self.defragment(request)).await,
            H::Hash => unary(body, |request| self.hash(who, request, lane)).await,
            H::HashKv => unary(body, |request| self.hash_kv(who, request, lane)).await,
            H::Health => unary(body, |request| self.health(request)).await,
            H::AllHealths => unary(body, |request| self.all_healths(request)).await,
            H::OpenSession => unary(body, |request| self.open_session(request, lane)).await,
            H::ReplicaStatus => unary(body, |request| self.replica_status(request)).await,
            H::Subscribe => {
                // It was judged before it could be registered.
                let judgement = self.judgement_of_any();
                self.admitted(handler.method(), caller).await?;
                let feed = self.subscribe(body.message().await?, judgement).await?;
                Ok(Answer::Feed(Box::new(feed)))
            }
            H::MoveGroupLeader => unary(body, |request| self.move_leader_natively(request)).await,
            H::Change => unary(body, |request| self.change_natively(request)).await,
            H::UserGet | H::UserList | H::RoleGet | H::RoleList => {
                let message = self.answer_auth(handler, body, lane, who).await?;
                owe(charge, message.len())?;
                Ok(Answer::Message(message))
            }
            H::AuthEnable | H::AuthDisable | H::AuthStatus | H::Authenticate | H::UserAdd | H::UserDelete => {
                self.answer_auth(handler, body, lane, who).await.map(Answer::Message)
            }
            H::UserChangePassword | H::UserGrantRole | H::UserRevokeRole | H::RoleAdd | H::RoleDelete => {
                self.answer_auth(handler, body, lane, who).await.map(Answer::Message)
            }
            H::RoleGrantPermission | H::RoleRevokePermission => {
                self.answer_auth(handler, body, lane, who).await.map(Answer::Message)
            }
            // The frequent ones, and those that last, are answered elsewhere.
            H::Put | H::Range | H::Execute | H::Query => Err(unknown(handler.method().path)),
            H::Watch | H::LeaseKeepAlive | H::Observe | H::WatchHealth | H::Reflect | H::ReflectAlpha => {
                Err(unknown(handler.method().path))
            }
        }
    }

    /// The refusal of a path that nothing is served at.
    pub(crate) fn unserved(&self, path: &str) -> Status {
        let of_etcd = ["/etcdserverpb.", "/v3lockpb.", "/v3electionpb."];
        let is_of_etcd = of_etcd.iter().any(|package| path.starts_with(package));
        match self.check_single() {
            Err(refused) if is_of_etcd => refused,
            // A stranger learns it, too: a client that is newer than the server goes another way then.
            _ => unknown(path),
        }
    }
}

fn no_single_revision(groups: u16) -> Status {
    Status::failed_precondition(format!(
        "{NO_SINGLE_REVISION} ({groups}, --groups shard:{groups}), each with revisions of its own, and etcd's API knows one \
         revision only: use Synod's own API (synod.v1.Native), as `synod put`, `get`, `del`, `txn` and `move-leader --group` do"
    ))
}

/// The refusal of a path that nothing is served at, in gRPC's words.
fn unknown(path: &str) -> Status {
    let Some((service, method)) = path.strip_prefix('/').and_then(|name| name.rsplit_once('/')) else {
        return Status::unimplemented(format!("malformed method name: {path:?}"));
    };
    Status::unimplemented(match POOL.get_service_by_name(service) {
        Some(_) => format!("unknown method {method} for service {service}"),
        None => format!("unknown service {service}"),
    })
}

/// Answers with a message, which is large if it has a place.
async fn in_place<'a, R: 'a>(
    response: impl Message + 'static,
    lane: &Lane,
    place: Option<Place>,
) -> Result<Answer<'a, R>, Status> {
    match place {
        Some(place) => large(response, lane, place).await,
        None => Ok(Answer::Message(framed(&response))),
    }
}

/// Charges a question for its answer, of which it is known only now how large it is. What each request takes covers a
/// small one. (A command that may have another answer is charged before it is executed: it must not be refused
/// afterwards.)
fn owe(charge: &Charge, bytes: usize) -> Result<(), Status> {
    let bytes = bytes as u64;
    if bytes <= REQUEST_BYTES { Ok(()) } else { charge.afford_to(REQUEST_BYTES + bytes) }
}

/// Answers a question with a message, which is large if it has a place.
async fn found<'a, R: 'a>(
    charge: &Charge,
    lane: &Lane,
    (response, place): (impl Message + 'static, Option<Place>),
) -> Result<Answer<'a, R>, Status> {
    if place.is_none() {
        owe(charge, response.encoded_len())?;
    }
    in_place(response, lane, place).await
}

/// Writes a large answer.
async fn large<'a, R: 'a>(
    response: impl Message + 'static,
    lane: &Lane,
    place: Place,
) -> Result<Answer<'a, R>, Status> {
    let (message, place) = lane.apart(place, move |_| framed(&response)).await?;
    Ok(Answer::Large(message, place))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_refused_in_the_words_of_grpc() {
        let told = |path| unknown(path).message().to_owned();
        assert_eq!(told("/etcdserverpb.KV/Guess"), "unknown method Guess for service etcdserverpb.KV");
        assert_eq!(told("/no.such.Service/Guess"), "unknown service no.such.Service");
        assert_eq!(told("/etcdserverpb.KV/Put/Guess"), "unknown service etcdserverpb.KV/Put");
        assert_eq!(told("/guess"), "malformed method name: \"/guess\"");
    }
}
