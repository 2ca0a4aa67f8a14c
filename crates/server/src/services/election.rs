//! etcd's service Election.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{RangeResponse, ResponseHeader, WatchCreateRequest},
    mvccpb::KeyValue,
    v3electionpb::{
        CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
        ProclaimResponse, ResignRequest, ResignResponse,
    },
};
use synod_grpc::{Charge, Sender, framed};
use tonic::Status;

use super::{
    concurrency::{Queue, Ticket, relayed},
    envelope::Store,
};
use crate::{
    Replica,
    auth::{Caller, Judgement, Who, until_marked},
    fields::RequestBody,
    readers::{Lane, Place},
    watch::{Followed, until_slow},
};

impl<R: Replica> Store<R> {
    pub(super) async fn campaign(
        &self,
        who: &Who,
        request: CampaignRequest,
        lane: &Lane,
        charge: &Charge,
        caller: &Caller,
    ) -> Result<CampaignResponse, Status> {
        let CampaignRequest { name, lease, value } = request;
        let lease = self.session(who, lease).await?;
        let queue = Queue::new(&name);
        let queued = self.enqueue(who, &queue, lease, value.clone()).await?;
        let ticket = &queued.ticket;
        if queued.found.is_some_and(|found| found != value)
            && let Err(status) = self.set_value(who, ticket, value, lease).await
        {
            self.withdraw(ticket).await;
            return Err(status);
        }
        self.until_first(caller, &queue, ticket, lane, charge).await?.0.stays();
        let leader = LeaderKey { name, key: ticket.key.clone(), rev: ticket.created, lease };
        Ok(CampaignResponse { header: queued.response.header, leader: Some(leader) })
    }

    pub(super) async fn proclaim(
        &self,
        who: &Who,
        request: ProclaimRequest,
    ) -> Result<ProclaimResponse, Status> {
        let leader = of(request.leader)?;
        let lease = self.session(who, leader.lease).await?;
        let header = self.set_value(who, &ticket(&leader), request.value, lease).await?;
        Ok(ProclaimResponse { header })
    }

    /// Changes the value of a key that stands.
    async fn set_value(
        &self,
        who: &Who,
        ticket: &Ticket,
        value: Bytes,
        lease: i64,
    ) -> Result<Option<ResponseHeader>, Status> {
        let changed = self.transact(who, ticket.put(value, lease)).await?;
        if changed.succeeded { Ok(changed.header) } else { Err(Status::unknown("election: not leader")) }
    }

    /// A candidate that does not lead any more has resigned already.
    pub(super) async fn resign(&self, who: &Who, request: ResignRequest) -> Result<ResignResponse, Status> {
        let released = self.transact(who, ticket(&of(request.leader)?).release()).await?;
        Ok(ResignResponse { header: released.header })
    }

    pub(super) async fn leader(
        &self,
        who: &Who,
        request: LeaderRequest,
        lane: &Lane,
    ) -> Result<(LeaderResponse, Option<Place>), Status> {
        let (RangeResponse { header, mut kvs, .. }, place) =
            self.found_in_place(who, Queue::new(&request.name).head(), lane).await?;
        match kvs.pop() {
            Some(kv) => Ok((LeaderResponse { header, kv: Some(kv) }, place)),
            None => Err(Status::unknown("election: no leader")),
        }
    }

    /// Tells each leader, and each value that it proclaims, until the client leaves.
    pub(crate) async fn observe(
        &self,
        body: RequestBody<'_>,
        sender: &mut Sender,
        lane: &Lane,
        charge: &Charge,
        caller: &Caller,
    ) -> Result<(), Status> {
        let request: LeaderRequest = body.message().await?;
        let queue = Queue::new(&request.name);
        loop {
            // Registered before it is judged, in each turn.
            let judgement = &self.judgement();
            let judgement = judgement.as_ref();
            let who = &self.named(caller, judgement).await.map_err(relayed)?;
            let RangeResponse { header, mut kvs, .. } = self.found(who, queue.head(), lane).await?;
            let mut revision = header.unwrap_or_default().revision;
            let leader = match kvs.pop() {
                Some(leader) => leader,
                None => match self.first_put(&queue, revision, sender, charge, judgement).await? {
                    Some(leader) => {
                        revision = leader.mod_revision;
                        leader
                    }
                    None => continue,
                },
            };
            let key = leader.key.clone();
            self.tell(sender, leader, revision, charge, &AtomicU64::new(0)).await?;
            let watch =
                WatchCreateRequest { key, start_revision: revision + 1, ..WatchCreateRequest::default() };
            self.tell_values(&watch, sender, charge, judgement).await?;
        }
    }

    /// Waits for the first key of an empty queue. `None`: it has to be looked for, as by a user who may have lost the
    /// right to see it.
    async fn first_put(
        &self,
        queue: &Queue,
        revision: i64,
        sender: &mut Sender,
        charge: &Charge,
        judgement: Option<&Judgement>,
    ) -> Result<Option<KeyValue>, Status> {
        let mut follower = self.follow(&queue.watch(revision), charge)?;
        loop {
            let followed = unless_marked(judgement, sender.unless_gone(follower.next())).await;
            let Some(Followed::Events { events, .. }) = followed.transpose()?.transpose()? else {
                return Ok(None);
            };
            if let Some(put) = events.iter().find(|event| !event.is_deletion()) {
                return Ok(put.to_message(false).kv);
            }
        }
    }

    /// Tells the values of a leader until it leads no more, or must be looked for, as by a user who may have lost the
    /// right to see them.
    async fn tell_values(
        &self,
        watch: &WatchCreateRequest,
        sender: &mut Sender,
        charge: &Charge,
        judgement: Option<&Judgement>,
    ) -> Result<(), Status> {
        let mut follower = self.follow(watch, charge)?;
        let (out, taken) = (follower.out(), AtomicU64::new(0));
        let told = async {
            loop {
                let followed = unless_marked(judgement, sender.unless_gone(follower.next())).await;
                let Some(Followed::Events { revision, events }) = followed.transpose()?.transpose()? else {
                    return Ok(());
                };
                for event in events {
                    match event.to_message(false).kv {
                        Some(kv) if !event.is_deletion() => {
                            self.tell(sender, kv, revision, charge, &taken).await?;
                        }
                        _ => return Ok(()),
                    }
                }
            }
        };
        tokio::select! {
            told = told => told,
            slow = until_slow(&out, &taken) => Err(slow),
        }
    }

    async fn tell(
        &self,
        sender: &mut Sender,
        leader: KeyValue,
        revision: i64,
        charge: &Charge,
        taken: &AtomicU64,
    ) -> Result<(), Status> {
        let header = self.header(Some(ResponseHeader { revision, ..ResponseHeader::default() }));
        sender.send_charged(framed(&LeaderResponse { header, kv: Some(leader) }), charge, taken).await
    }
}

/// What happens before the call has to be judged again; `None` if that comes first.
async fn unless_marked<T>(judgement: Option<&Judgement>, work: impl Future<Output = T>) -> Option<T> {
    let done = tokio::select! {
        done = work => done,
        () = until_marked(judgement) => return None,
    };
    // What happened in a later slot than the mark is found after it.
    Some(done).filter(|_| !judgement.is_some_and(Judgement::is_marked))
}

fn of(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

fn ticket(leader: &LeaderKey) -> Ticket {
    Ticket { key: leader.key.clone(), created: leader.rev }
}
