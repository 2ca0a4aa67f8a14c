//! At-most-once execution over Synod's own protocol.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use synod_api::synod::v1::{ExecuteRequest, OpenSessionRequest, QueryRequest, native_client::NativeClient};
use tokio::sync::Semaphore;
use tonic::{Code, transport::Channel};

use crate::{
    Config, Error,
    endpoints::{Endpoints, Retry},
};

const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

/// A session with a replicated state machine (Santos 2012, sections 7.2.3 and 7.2.4).
///
/// Its commands are numbered. The session sends a command that gets no answer again, under the same number,
/// to the next endpoint; a replica that has executed that number answers from the reply cache, which is part
/// of the replicated state. So each command takes effect at most once, and exactly once if it is answered.
///
/// Unlike Santos's client, which waits for each answer, a session may have several commands outstanding. Each
/// request tells the lowest number that is still outstanding, and the replicas keep the replies from there
/// on. Commands that are outstanding at the same time are executed in any order.
///
/// Clones are the same session.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoints: Arc<Endpoints>,
    id: u64,
    /// Bounds the outstanding commands, and with them the replies that the cluster keeps for this session.
    room: Semaphore,
    numbers: Mutex<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u64,
    /// Numbers in use.
    outstanding: BTreeSet<u64>,
}

impl Session {
    /// Opens a session, which is itself a command in the replicated log. At most `outstanding_max` commands
    /// are outstanding at any time; further calls of [`execute`](Session::execute) wait.
    pub async fn open(config: Config, outstanding_max: usize) -> Result<Session, Error> {
        if outstanding_max == 0 || outstanding_max > Semaphore::MAX_PERMITS {
            return Err(Error::Config {
                what: format!("outstanding_max is {outstanding_max}"),
                why: format!("give 1 to {}", Semaphore::MAX_PERMITS),
            });
        }
        let endpoints = Endpoints::new(config)?;
        // If a repeated request opens two sessions, one of them is never used and expires.
        let send = |channel| async move { native(channel).open_session(OpenSessionRequest {}).await };
        let id = endpoints.call(Retry::Freely, send).await?.session;
        let numbers = Mutex::new(Numbers { next: 1, outstanding: BTreeSet::new() });
        Ok(Session {
            shared: Arc::new(Shared { endpoints, id, room: Semaphore::new(outstanding_max), numbers }),
        })
    }

    /// The session's number in the cluster.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Orders and executes a command, in the state machine's encoding, and returns the state machine's reply.
    ///
    /// If the configured time is over and any attempt may have arrived, it fails with [`Error::Unknown`]. A
    /// call that is dropped before it ends may or may not take effect.
    pub async fn execute(&self, payload: Bytes) -> Result<Bytes, Error> {
        let _room = self.shared.room.acquire().await.expect("the semaphore is never closed");
        let number = Number::take(&self.shared);
        let send = |channel| {
            let request = ExecuteRequest {
                session: self.shared.id,
                sequence: number.sequence,
                lowest_outstanding: number.lowest_outstanding(),
                payload: payload.clone(),
            };
            async move { native(channel).execute(request).await }
        };
        match self.shared.endpoints.call(Retry::Freely, send).await {
            Ok(response) => Ok(response.reply),
            // The server uses these two codes for sessions only.
            Err(Error::Refused { code: Code::NotFound, .. }) => Err(Error::SessionExpired),
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => Err(Error::ReplyGone),
            Err(error) => Err(error),
        }
    }

    /// Asks the state machine, in its own encoding, without changing it. Linearizable, unless `serializable` allows
    /// the answer to come from a state that is not the newest.
    pub async fn query(&self, payload: Bytes, serializable: bool) -> Result<Bytes, Error> {
        let send = |channel| {
            let request = QueryRequest { payload: payload.clone(), serializable };
            async move { native(channel).query(request).await }
        };
        Ok(self.shared.endpoints.call(Retry::Reads, send).await?.reply)
    }
}

impl Shared {
    /// No code that can panic runs under this lock, so its contents are sound even if it is poisoned.
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sequence number in use. Dropping it means that the command is answered or given up.
struct Number<'a> {
    shared: &'a Shared,
    sequence: u64,
}

impl Number<'_> {
    fn take(shared: &Shared) -> Number<'_> {
        let mut numbers = shared.numbers();
        let sequence = numbers.next;
        numbers.next += 1;
        numbers.outstanding.insert(sequence);
        Number { shared, sequence }
    }

    fn lowest_outstanding(&self) -> u64 {
        *self.shared.numbers().outstanding.first().expect("this number is outstanding")
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.shared.numbers().outstanding.remove(&self.sequence);
    }
}

fn native(channel: Channel) -> NativeClient<Channel> {
    NativeClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}
