//! Which endpoint to use: one that answers, best one that knows a leader.
//!
//! A replica that hangs takes connections all the same, and one that is cut off from the others takes requests and
//! refuses them after seconds. So before the first request all endpoints are asked for their status at once.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use synod_api::synod::v1::{StatusRequest, native_client::NativeClient};
use tokio::{
    sync::{Mutex, OnceCell},
    time::{Instant, timeout_at},
};
use tonic::transport::Channel;

use crate::{endpoints::Endpoints, error::Failure};

/// How long the endpoint to begin with may take before another one that has answered is used.
const HEAD_START: Duration = Duration::from_millis(100);

/// How long others may take once a replica has answered that knows no leader.
const GRACE: Duration = Duration::from_millis(300);

/// For how long nobody looks again for an endpoint with a leader where none was found.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

/// The part of a request's time that the first look for an endpoint may take.
const PART_OF_REQUEST: u32 = 4;

/// What was looked for. Requests that come meanwhile wait for what is found.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// An endpoint to begin with.
    first: OnceCell<()>,
    /// One that knows a leader: when none was found last.
    leaderless: Mutex<Option<Instant>>,
}

/// An endpoint that answers.
#[derive(Debug)]
struct Greeting {
    index: usize,
    channel: Channel,
    /// Whether it knows a leader, as far as it says.
    knows_leader: bool,
}

impl Endpoints {
    /// Uses an endpoint that answers, if there are several and no request has been sent.
    pub(crate) async fn greeted(&self) {
        let choose = || async {
            let within = self.config().request_timeout / PART_OF_REQUEST;
            if let Some(found) = self.choose(None, within).await {
                self.use_next(found.index, found.channel);
            }
        };
        if self.count() > 1 {
            self.search.first.get_or_init(choose).await;
        }
    }

    /// Uses another endpoint than this one, which knows no leader, if one of the others does. Many requests may fail at
    /// once: one of them looks, and the others heed what it finds.
    pub(crate) async fn use_one_with_a_leader(&self, but: usize) -> bool {
        if self.count() == 1 {
            return false;
        }
        let mut leaderless = self.search.leaderless.lock().await;
        if self.current() != but {
            return true;
        }
        if leaderless.is_some_and(|at| at.elapsed() < SEARCH_PAUSE) {
            return false;
        }
        let found = self.choose(Some(but), self.config().connect_timeout).await;
        let found = found.filter(|found| found.knows_leader);
        *leaderless = found.is_none().then(Instant::now);
        let is_found = found.is_some();
        if let Some(found) = found {
            self.use_next(found.index, found.channel);
        }
        is_found
    }

    /// The first endpoint that answers and knows a leader; if none does in time, one that answers.
    async fn choose(&self, but: Option<usize>, within: Duration) -> Option<Greeting> {
        let (began, preferred) = (Instant::now(), self.current());
        let others = (0..self.count()).filter(|index| Some(*index) != but);
        let mut asked: FuturesUnordered<_> =
            others.map(|index| async move { (index, self.greeting(index).await) }).collect();
        let mut until = began + within.min(self.config().connect_timeout);
        let mut best: Option<Greeting> = None;
        // Whether the one to begin with has said what it is, or is not asked.
        let mut is_told = but == Some(preferred);
        while let Ok(Some((index, greeting))) = timeout_at(until, asked.next()).await {
            is_told |= index == preferred;
            let rank = |greeting: &Greeting| (greeting.knows_leader, greeting.index == preferred);
            if greeting.as_ref().map(rank) > best.as_ref().map(rank) {
                best = greeting;
            }
            let waits = match &best {
                Some(best) if best.knows_leader && is_told => break,
                Some(best) if best.knows_leader => HEAD_START.saturating_sub(began.elapsed()),
                Some(_) => GRACE,
                None => continue,
            };
            until = until.min(Instant::now() + waits);
        }
        best
    }

    /// The answer of an endpoint; `None` if it cannot be reached, or breaks off.
    async fn greeting(&self, index: usize) -> Option<Greeting> {
        // Connections that are not used are closed. That to the endpoint to begin with is kept, so that after a request
        // that is given up early the next one does not begin from nothing.
        let channel = if index == self.current() { self.channel(index) } else { self.new_channel(index) };
        let knows_leader =
            match NativeClient::new(channel.clone()).status(StatusRequest { brief: true }).await {
                Ok(status) => status.get_ref().leader != 0,
                Err(status) => match Failure::of(&status) {
                    // It is etcd's, or wants to know a user.
                    Failure::Refused => true,
                    Failure::NotExecuted | Failure::Elsewhere => false,
                    Failure::NotReached | Failure::InDoubt => return None,
                },
            };
        Some(Greeting { index, channel, knows_leader })
    }
}
