//! At-most-once execution over Synod's own protocol.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use prost::Message;
use synod_api::{
    shards,
    synod::v1::{ExecuteRequest, KvCommand, OpenSessionRequest, QueryRequest, native_client::NativeClient},
};
use tokio::sync::{OnceCell, Semaphore};
use tonic::Code;

use crate::{
    Config, Error,
    auth::Line,
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
/// on. Commands that are outstanding at the same time are executed in any order. While one command stays without an
/// answer, commands whose numbers are 1,024 or more above its own are refused; the session sends them again.
///
/// In a cluster of several groups, over which the keys of a key-value store are spread, it is a session in each of
/// them: it is opened there when the first command for a key of that group comes, and numbers the commands of each
/// group by themselves. So a command that is sent again comes to the group that knows it, whichever replica receives
/// it.
///
/// Clones are the same session.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoints: Arc<Endpoints>,
    /// Bounds the outstanding commands, and with them the replies that the cluster keeps for this session.
    room: Semaphore,
    /// By the number of the group.
    groups: Vec<InGroup>,
}

/// The session in one group.
#[derive(Debug, Default)]
struct InGroup {
    /// Its number there, once it is open.
    id: OnceCell<u64>,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    last: u64,
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
        let (id, count) = open_in(&endpoints, 0).await?;
        let mut groups: Vec<InGroup> = (0..count).map(|_| InGroup::default()).collect();
        groups[0].id = OnceCell::new_with(Some(id));
        Ok(Session { shared: Arc::new(Shared { endpoints, room: Semaphore::new(outstanding_max), groups }) })
    }

    /// The session's number in the cluster; in one of several groups, that in the first of them.
    #[must_use]
    pub fn id(&self) -> u64 {
        *self.shared.groups[0].id.get().expect("it was opened there first")
    }

    /// Orders and executes a command, in the state machine's encoding, and returns the state machine's reply.
    ///
    /// If the configured time is over and any attempt may have arrived, it fails with [`Error::Unknown`]. A
    /// call that is dropped before it ends may or may not take effect.
    pub async fn execute(&self, payload: Bytes) -> Result<Bytes, Error> {
        let _room = self.shared.room.acquire().await.expect("the semaphore is never closed");
        let group = self.shared.group_of(&payload);
        let here = &self.shared.groups[usize::from(group)];
        let open = || async { Ok::<_, Error>(open_in(&self.shared.endpoints, group).await?.0) };
        let session = *here.id.get_or_try_init(open).await?;
        let number = Number::take(here);
        let send = |channel| {
            let request = ExecuteRequest {
                session,
                sequence: number.sequence,
                lowest_outstanding: number.lowest_outstanding(),
                payload: payload.clone(),
                group: Some(group.into()),
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
            let request = QueryRequest { payload: payload.clone(), serializable, group: None };
            async move { native(channel).query(request).await }
        };
        Ok(self.shared.endpoints.call(Retry::Reads, send).await?.reply)
    }
}

/// Opens a session in a group: its number there, and how many groups there are.
async fn open_in(endpoints: &Endpoints, group: u16) -> Result<(u64, u16), Error> {
    // If a repeated request opens two sessions, one of them is never used and expires.
    let send = |channel| async move {
        native(channel).open_session(OpenSessionRequest { group: group.into() }).await
    };
    let opened = endpoints.call(Retry::Freely, send).await?;
    // A replica that knows one group only does not say so.
    Ok((opened.session, u16::try_from(opened.groups).unwrap_or(u16::MAX).max(1)))
}

impl Shared {
    /// The group that executes a command. One that belongs to no group goes to the first one, which refuses it and says
    /// why.
    fn group_of(&self, payload: &Bytes) -> u16 {
        let count = u16::try_from(self.groups.len()).expect("counted in 16 bits");
        if count == 1 {
            return 0;
        }
        let command = KvCommand::decode(payload.clone());
        let of_keys = command.ok().and_then(|command| shards::of_command(&command, count).ok());
        of_keys.flatten().unwrap_or(0)
    }
}

impl InGroup {
    /// No code that can panic runs under this lock, so its contents are sound even if it is poisoned.
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sequence number in use. Dropping it means that the command is answered or given up.
struct Number<'a> {
    group: &'a InGroup,
    sequence: u64,
}

impl Number<'_> {
    fn take(group: &InGroup) -> Number<'_> {
        let mut numbers = group.numbers();
        numbers.last += 1;
        let sequence = numbers.last;
        numbers.outstanding.insert(sequence);
        Number { group, sequence }
    }

    fn lowest_outstanding(&self) -> u64 {
        *self.group.numbers().outstanding.first().expect("this number is outstanding")
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.group.numbers().outstanding.remove(&self.sequence);
    }
}

fn native(channel: Line) -> NativeClient<Line> {
    NativeClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}
