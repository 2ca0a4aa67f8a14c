//! A lease that is kept alive.

use std::{sync::Arc, time::Duration};

use futures_util::stream;
use synod_api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, lease_client::LeaseClient,
};
use tokio::{
    runtime::Handle,
    sync::watch::{self, Receiver, Sender},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};
use tonic::{Code, Response, Status};

use crate::{
    Client, Error,
    endpoints::{Endpoints, Retry},
};

/// A lease is renewed when this part of its time to live has gone by.
const RENEWALS_PER_TTL: u32 = 3;
/// An endpoint that does not answer a renewal for this part of the time to live is left.
const ATTEMPTS_PER_TTL: u32 = 6;
/// The pause after a failed renewal.
const PAUSES_PER_TTL: u32 = 20;

impl Client {
    /// Grants a lease of this time to live and keeps it alive: a task renews it each third of that time, at whichever
    /// endpoint answers. The time is rounded up to whole seconds; the server grants at least two.
    ///
    /// ```no_run
    /// # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
    /// use std::time::Duration;
    /// use synod_client::api::PutRequest;
    ///
    /// let lease = client.lease(Duration::from_secs(10)).await?;
    /// let (key, value) = ("workers/7".into(), "10.0.0.7:80".into());
    /// client.put(PutRequest { key, value, lease: lease.id(), ..Default::default() }).await?;
    /// tokio::select! {
    ///     () = lease.lost() => eprintln!("the key may be gone"),
    ///     () = tokio::time::sleep(Duration::from_secs(60)) => lease.revoke().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As those of any request. If the answer is lost, what may have been granted ends by itself, since nobody renews
    /// it. So does a lease whose grant is given up by dropping the call.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn lease(&self, ttl: Duration) -> Result<Lease, Error> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds.max(1)).unwrap_or(i64::MAX), id: 0 };
        // The server counts from when it grants, which is after this.
        let sent = Instant::now();
        // The server chooses the id, so a grant that is sent twice leaves a lease that ends by itself.
        let send = |channel| async move { LeaseClient::new(channel).lease_grant(request).await };
        let granted = self.endpoints.call(Retry::Freely, send).await?;
        let life = Life { until: sent + seconds_of(granted.ttl), ended: false };
        let (told, life) = watch::channel(life);
        let keeper = tokio::spawn(keep(Arc::clone(&self.endpoints), granted.id, told));
        let (client, runtime) = (self.clone(), Handle::current());
        Ok(Lease { client, id: granted.id, life, keeper, runtime, is_over: false })
    }
}

/// A lease that is kept alive for as long as this exists; see [`Client::lease`].
///
/// It counts as lost when the server says that there is no such lease any more, or when its time to live has gone by
/// since the last renewal that was answered was **sent**. The server counts from a later moment and never ends a lease
/// early, so as long as [`is_alive`](Lease::is_alive) says so, the lease exists. That takes for granted that the clocks
/// of this machine and of the servers run equally fast, and that nothing stands still between the look at the clock and
/// what is done then. Where that is not enough, compare in a transaction what must still hold
/// ([`Held::fence`](crate::Held::fence)).
///
/// When it is dropped, a task revokes it in the background. If that fails, or the runtime ends, it runs out by itself.
#[derive(Debug)]
pub struct Lease {
    client: Client,
    id: i64,
    life: Receiver<Life>,
    keeper: JoinHandle<()>,
    runtime: Handle,
    /// The server has answered that it is revoked.
    is_over: bool,
}

/// What is known of a lease.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// It lives at least until then.
    until: Instant,
    /// The server has said that there is no such lease.
    ended: bool,
}

impl Lease {
    /// The server's number of the lease, for [`PutRequest::lease`](crate::api::PutRequest).
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Until when the lease lives if no more renewal is answered.
    #[must_use]
    pub fn alive_until(&self) -> Instant {
        let life = *self.life.borrow();
        if life.ended { life.until.min(Instant::now()) } else { life.until }
    }

    /// Whether the lease lives, by the clock of this machine and what the server has answered.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let life = *self.life.borrow();
        !life.ended && Instant::now() < life.until
    }

    /// Waits until the lease counts as lost. It never lives again then.
    pub async fn lost(&self) {
        let mut life = self.life.clone();
        loop {
            let Life { until, ended } = *life.borrow_and_update();
            if ended || Instant::now() >= until {
                return;
            }
            tokio::select! {
                // The keeper ends when the lease is lost; if it was ended otherwise, the time goes by.
                changed = life.changed() => if changed.is_err() { sleep_until(until).await },
                () = sleep_until(until) => {}
            }
        }
    }

    /// Ends the lease, and deletes its keys. It is no error if the lease has ended already.
    ///
    /// # Errors
    /// No answer came. Another attempt is then made in the background, and if that fails too, the lease runs out. The
    /// same happens if the call is dropped.
    pub async fn revoke(mut self) -> Result<(), Error> {
        self.keeper.abort();
        revoke(&self.client, self.id).await?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keeper.abort();
        if !self.is_over && !self.life.borrow().ended {
            let (client, id) = (self.client.clone(), self.id);
            // The task must not hold a `Lease`: a runtime that ends drops it at once.
            self.runtime.spawn(async move {
                let _ = revoke(&client, id).await;
            });
        }
    }
}

async fn revoke(client: &Client, id: i64) -> Result<(), Error> {
    let request = LeaseRevokeRequest { id };
    let send = |channel| async move { LeaseClient::new(channel).lease_revoke(request).await };
    match client.endpoints.call(Retry::Freely, send).await {
        Ok(_) | Err(Error::Refused { code: Code::NotFound, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Renews a lease until it is lost.
async fn keep(endpoints: Arc<Endpoints>, id: i64, told: Sender<Life>) {
    let mut until = told.borrow().until;
    let mut ttl = until.saturating_duration_since(Instant::now());
    let mut due = Instant::now() + ttl / RENEWALS_PER_TTL;
    loop {
        sleep_until(due).await;
        let sent = Instant::now();
        let left = until.saturating_duration_since(sent);
        let renewal = timeout_at(until, renew(&endpoints, id, ttl / ATTEMPTS_PER_TTL, left)).await;
        match renewal {
            Ok(Ok(0)) | Err(_) => break,
            Ok(Ok(seconds)) => {
                ttl = seconds_of(seconds);
                until = sent + ttl;
                due = sent + ttl / RENEWALS_PER_TTL;
                told.send_modify(|life| life.until = until);
            }
            Ok(Err(error)) => {
                tracing::debug!(lease = id, %error, "a renewal failed");
                due = Instant::now() + ttl / PAUSES_PER_TTL;
            }
        }
    }
    told.send_modify(|life| life.ended = true);
}

/// Renews once, and returns the time to live in seconds: 0 if there is no such lease.
async fn renew(endpoints: &Endpoints, id: i64, attempt: Duration, whole: Duration) -> Result<i64, Error> {
    let request = LeaseKeepAliveRequest { id };
    let send = |channel| async move {
        let mut renewed =
            LeaseClient::new(channel).lease_keep_alive(stream::iter([request])).await?.into_inner();
        let renewed = renewed.message().await?;
        renewed.map(Response::new).ok_or_else(|| Status::unavailable("the server has answered nothing"))
    };
    let attempt = attempt.min(endpoints.config().attempt_timeout);
    Ok(endpoints.call_within(Retry::Freely, attempt, whole, send).await?.ttl)
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(ttl.unsigned_abs())
}
