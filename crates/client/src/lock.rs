//! Locks.

use std::{ops::Deref, time::Duration};

use bytes::Bytes;

use crate::{
    Client, Error,
    queue::{Held, Queue},
};

impl Client {
    /// Waits until a lock is held. At most one client holds the lock of a name at a time; those that wait get it in the
    /// order in which they came. The names and keys are those of etcd's clients, of `etcdctl lock`, and of the service
    /// Lock, so all of them exclude each other.
    ///
    /// The lock belongs to a lease of this time to live, which is renewed as long as the [`Lock`] exists. If this
    /// process ends or is cut off, others get the lock when that time has gone by. It is rounded up to whole seconds;
    /// the server grants at least two.
    ///
    /// ```no_run
    /// # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
    /// use std::{ops::Deref, time::Duration};
    ///
    /// let lock = client.lock("jobs/17", Duration::from_secs(10)).await?;
    /// tokio::select! {
    ///     () = lock.lost() => eprintln!("somebody else may work on it now"),
    ///     () = work() => {}
    /// }
    /// lock.unlock().await?;
    /// # Ok(())
    /// # }
    /// # async fn work() {}
    /// ```
    ///
    /// # Time-outs and cancellation
    /// It waits until it holds the lock or its lease is lost, also while servers fail: it finds its key again at the
    /// next one. To wait for some time only, use [`tokio::time::timeout`], or [`try_lock`](Client::try_lock) for not
    /// waiting at all. If the call is dropped, its key is deleted in the background; if that fails, the key goes with
    /// the lease.
    ///
    /// # Errors
    /// - [`Error::LeaseLost`]: it could not renew its lease while it waited, or somebody has deleted its key.
    /// - [`Error::Unavailable`], [`Error::Unknown`]: nobody answered the request for the lease or for a place in the
    ///   queue within the configured [`request_timeout`](crate::Config::request_timeout).
    /// - [`Error::Refused`]: for example, the user may not write the keys that begin with the name and a slash.
    ///
    /// After any error the lock is not held, and what may have been queued is deleted in the background, or goes with
    /// its lease.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn lock(&self, name: impl AsRef<[u8]>, ttl: Duration) -> Result<Lock, Error> {
        let entry = Queue::new(name.as_ref()).enter(self, Bytes::new(), ttl).await?;
        entry.until_first().await?;
        Ok(Lock { entry })
    }

    /// Takes a lock if it is free; `None` if somebody else holds it or waits for it.
    ///
    /// # Errors
    /// As those of [`lock`](Client::lock).
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn try_lock(&self, name: impl AsRef<[u8]>, ttl: Duration) -> Result<Option<Lock>, Error> {
        let entry = Queue::new(name.as_ref()).enter(self, Bytes::new(), ttl).await?;
        match entry.key_before().await? {
            None if entry.lease.is_alive() => Ok(Some(Lock { entry })),
            None => Err(Error::LeaseLost),
            Some(_) => {
                entry.lease.revoke().await?;
                Ok(None)
            }
        }
    }
}

/// A lock that is held; see [`Client::lock`].
///
/// **Who holds a lock can lose it** without noticing in time: the process or the machine stood still, or its network
/// did. What must never be done by two at once needs a fence, which is checked where the effect takes place:
///
/// - An effect in the same store is a transaction that compares the lock with [`fence`](Held::fence). It has no effect
///   if the lock is lost.
/// - Another system gets [`revision`](Held::revision) with each request, as a token. It refuses a request whose token
///   is lower than one that it has seen. A later holder of the lock has a higher one.
///
/// ```no_run
/// # async fn example(client: synod_client::Client, lock: synod_client::Lock) -> Result<(), synod_client::Error> {
/// use synod_client::api::{PutRequest, RequestOp, TxnRequest, request_op::Request};
///
/// let put = PutRequest { key: "jobs/17/state".into(), value: "done".into(), ..Default::default() };
/// let request = TxnRequest {
///     compare: vec![lock.fence()],
///     success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
///     ..Default::default()
/// };
/// if !client.txn(request).await?.succeeded {
///     eprintln!("the lock is lost, and nothing was written");
/// }
/// # Ok(())
/// # }
/// ```
///
/// When it is dropped, a task lets go of the lock in the background. If that fails, or the runtime ends, the lock is
/// free when its lease has run out.
#[derive(Debug)]
pub struct Lock {
    entry: Held,
}

impl Deref for Lock {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.entry
    }
}

impl Lock {
    /// Lets go of the lock. It is no error if the lock was lost before.
    ///
    /// # Errors
    /// No answer came. Another attempt is then made in the background, and if that fails too, the lock is free when its
    /// lease has run out. The same happens if the call is dropped.
    pub async fn unlock(self) -> Result<(), Error> {
        self.entry.lease.revoke().await
    }
}
