//! A watch of the server's own: what it finds is not sent, but read here.

use std::{future::poll_fn, sync::Arc};

use synod_api::etcdserverpb::WatchCreateRequest;
use synod_grpc::Charge;
use synod_kv::{
    Event,
    watch::{Create, Item, Outgoing, Request, STREAM_BYTES_MIN},
};
use tonic::Status;

use super::{Opened, Watches};
use crate::call;

/// A watch on a stream of its own. Dropping it ends both.
pub(crate) struct Follower<'a> {
    opened: Opened,
    charge: &'a Charge,
    cost: u64,
}

/// What a follower is told.
pub(crate) enum Followed {
    /// What has happened, in order. Everything through the revision is told then.
    Events { revision: i64, events: Vec<Event> },
    /// What the follower asks for has been compacted, and it is told no more.
    Compacted,
}

impl Watches {
    /// Watches from the request's revision on, at the cost of the charge.
    ///
    /// # Errors
    /// The client holds too much already.
    pub(crate) fn follow<'a>(
        &self,
        request: &WatchCreateRequest,
        charge: &'a Charge,
    ) -> Result<Follower<'a>, Status> {
        let create = Create::of(request);
        let cost = create.cost() + STREAM_BYTES_MIN as u64;
        charge.afford(cost)?;
        let opened = self.open();
        opened.ask(Request::Create(Box::new(create)));
        Ok(Follower { opened, charge, cost })
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.charge.give_back(self.cost);
    }
}

impl Follower<'_> {
    /// What waits for the one who follows.
    pub(crate) fn out(&self) -> Arc<Outgoing> {
        Arc::clone(&self.opened.out)
    }

    /// Waits for what is told next.
    ///
    /// # Errors
    /// The server ends, or the watch is refused.
    pub(crate) async fn next(&mut self) -> Result<Followed, Status> {
        loop {
            // What was told before has been dealt with.
            self.opened.out.sent();
            let item = poll_fn(|cx| self.opened.out.poll_next(cx)).await;
            match item.ok_or_else(call::stopped)? {
                Item::Events { revision, events, .. } => {
                    let events = events.iter().map(|told| told.event().clone()).collect();
                    return Ok(Followed::Events { revision, events });
                }
                Item::Compacted { .. } => return Ok(Followed::Compacted),
                Item::Refused { reason, .. } => return Err(Status::unknown(reason)),
                Item::Created { .. } | Item::Progress { .. } | Item::Canceled { .. } => {}
            }
        }
    }
}
