//! The key-value store of a replica: puts requests into envelopes, takes answers out of them, and translates
//! errors for gRPC.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::try_join_all;
use prost::Message;
use synod_api::{
    etcdserverpb::ResponseHeader,
    synod::v1::{
        KvAnswer, KvCommand, KvFailure, KvQuery, KvReply, KvStatus, KvStatusRequest, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_grpc::{Admission, GATHERED_BYTES, Remote, Share};
use synod_kv::{
    KvError,
    validate::{self, Limits},
};
use synod_replica::ANSWER_BYTES_MAX;
use tokio::{sync::Semaphore, time::sleep};
use tonic::{Code, Status};

use crate::{
    Auth, Config, Consistency, Replica, RequestError, RequestMetrics, Watches,
    auth::{Identity, Who},
    feeds::Feeds,
    fields::Bounds,
    openings::Openings,
    readers::{Lane, Place, Readers},
    replica,
    services::{concurrency::RELEASES_MAX, lease::Renewals, no_single_revision, translation::failure},
    slow::{self, Slow},
};

/// A gRPC message may be this much larger than the largest command, as with etcd. So a command that is a
/// little too large is refused in etcd's words.
const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// How often it is looked whether there is a leader, and how long there must be none until streams end that need one.
/// etcd waits for three election time-outs.
const LEADER_GLANCE: Duration = Duration::from_millis(500);
const LEADERLESS_MAX: Duration = Duration::from_secs(3);

/// The least time between two notes of a watch's progress, as with etcd.
const WATCH_PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Most bytes of an answer to a command that holds no place for a large one.
pub(crate) const SMALL_ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The key-value store of a replica, or one for each of its groups.
#[derive(Debug)]
pub(crate) struct Store<R> {
    /// By the number of the group. The first one also answers what is asked of the replica as a whole.
    groups: Vec<R>,
    /// Of all groups together.
    quota_bytes: u64,
    cluster_id: u64,
    member_id: u64,
    requests: RequestMetrics,
    slow: Slow,
    readers: Readers,
    admission: Admission,
    feeds: Feeds,
    openings: Arc<Openings>,
    watches: Option<Watches>,
    auth: Option<Auth>,
    watch_progress_interval: Duration,
    strict_reconfig_check: bool,
    renewals: Arc<Mutex<Renewals>>,
    /// Places for keys of locks and elections that are deleted since their clients are gone.
    releases: Arc<Semaphore>,
    /// When it was last looked whether there is a leader, and since when there was none.
    leader: Mutex<Leader>,
}

#[derive(Debug)]
struct Leader {
    looked: Instant,
    gone: Option<Instant>,
}

impl<R: Replica> Store<R> {
    /// Makes the store of these groups, of which there is at least one.
    pub(crate) fn new(
        config: &Config,
        groups: Vec<R>,
        readers: Readers,
        admission: Admission,
        feeds: Feeds,
        openings: Arc<Openings>,
    ) -> Store<R> {
        let status = groups[0].status();
        Store {
            auth: config.auth.clone().filter(|_| groups.len() == 1),
            quota_bytes: config.quota_bytes,
            cluster_id: status.cluster.0,
            member_id: status.replica.0,
            requests: config.requests.clone(),
            slow: Slow::new(config.slow_request),
            groups,
            readers,
            admission,
            feeds,
            openings,
            watches: config.watches.clone(),
            watch_progress_interval: config.watch_progress_interval.max(WATCH_PROGRESS_INTERVAL_MIN),
            strict_reconfig_check: config.strict_reconfig_check,
            renewals: Arc::default(),
            releases: Arc::new(Semaphore::new(RELEASES_MAX)),
            leader: Mutex::new(Leader { looked: Instant::now(), gone: None }),
        }
    }

    /// The watches of the store.
    ///
    /// # Errors
    /// There are several groups, or nobody feeds them.
    pub(crate) fn watches(&self) -> Result<&Watches, Status> {
        self.check_single()?;
        let missing = || Status::unimplemented("synod: watches are not served here: the store feeds none");
        self.watches.as_ref().ok_or_else(missing)
    }

    /// The users of the store, if it tells of them.
    pub(super) fn auth(&self) -> Option<&Auth> {
        self.auth.as_ref()
    }

    /// Whether the state machine is known to be the key-value store: no other has users, watches, or keys that are
    /// spread over groups. Then what clients send it is checked.
    pub(super) fn holds_keys(&self) -> bool {
        self.count() > 1 || self.auth.is_some() || self.watches.is_some()
    }

    /// The renewals of leases that wait to be ordered.
    pub(super) fn renewals(&self) -> &Arc<Mutex<Renewals>> {
        &self.renewals
    }

    pub(super) fn releases(&self) -> Arc<Semaphore> {
        Arc::clone(&self.releases)
    }

    pub(crate) fn watch_progress_interval(&self) -> Duration {
        self.watch_progress_interval
    }

    /// Whether changes of members wait for connected voters as with etcd.
    pub(super) fn strict_reconfig_check(&self) -> bool {
        self.strict_reconfig_check
    }

    /// Whether there is a leader, as far as the replica knows.
    pub(crate) fn knows_leader(&self) -> bool {
        self.replica().status().node.leader.is_some()
    }

    /// Waits until there has been no leader for some seconds. The replica is asked once for all who wait.
    pub(crate) async fn until_leaderless(&self) {
        let look = || {
            let mut leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
            if leader.looked.elapsed() >= LEADER_GLANCE {
                let is_there = self.knows_leader();
                leader.looked = Instant::now();
                leader.gone = if is_there { None } else { leader.gone.or(Some(leader.looked)) };
            }
            leader.gone.is_some_and(|gone| gone.elapsed() >= LEADERLESS_MAX)
        };
        while !look() {
            sleep(LEADER_GLANCE).await;
        }
    }

    /// The replica in the first group.
    pub(crate) fn replica(&self) -> &R {
        &self.groups[0]
    }

    /// The replica in each group.
    pub(crate) fn groups(&self) -> &[R] {
        &self.groups
    }

    /// Refuses a request of etcd's API that needs a single revision, where there are several groups.
    pub(crate) fn check_single(&self) -> Result<(), Status> {
        if self.count() > 1 { Err(no_single_revision(self.count())) } else { Ok(()) }
    }

    /// How many groups there are.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.groups.len()).expect("groups have numbers of 16 bits")
    }

    /// Makes a new connection's share of the threads and places for large answers.
    pub(crate) fn lane(&self, remote: Remote) -> Lane {
        self.readers.lane(remote.origin()).to(remote)
    }

    /// Makes a new connection's share of the memory for requests.
    pub(crate) fn share(&self) -> Share {
        self.admission.share()
    }

    pub(super) fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    /// The sessions that clients opened lately at this server.
    pub(super) fn openings(&self) -> &Openings {
        &self.openings
    }

    pub(crate) fn requests(&self) -> &RequestMetrics {
        &self.requests
    }

    /// The judge of slow requests.
    pub(crate) fn slow(&self) -> &Slow {
        &self.slow
    }

    pub(super) fn limits(&self) -> Limits {
        self.replica().limits()
    }

    /// The bounds on a request before it is decoded.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds::new(&self.limits(), self.message_bytes_max())
    }

    /// Most bytes of a request's message.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.limits().request_bytes_max.saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    pub(crate) fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Gives a client's own command what the server adds to each: the quota, of which each group has an equal part, and
    /// the member for which an alarm would be raised.
    pub(super) fn with_quota(&self, command: KvCommand) -> KvCommand {
        let quota_bytes = match self.quota_bytes {
            0 => 0,
            bytes => (bytes / u64::from(self.count())).max(1),
        };
        KvCommand { quota_bytes, member_id: self.member_id, ..command }
    }

    /// Checks a command, orders it and executes it. `answer` converts the reply.
    ///
    /// This is not an async function, and no request goes through more than one of them: each would add its state
    /// to every outstanding request. The received message is not kept while the command is ordered, either.
    pub(super) fn execute<A>(
        &self,
        who: &Who,
        command: Command,
        answer: impl FnOnce(Reply) -> Result<A, Status> + Send,
    ) -> impl Future<Output = Result<A, Status>> + Send {
        // The answer to a put has one pair at most; without a bound of its own the command is read faster.
        let bytes = if matches!(command, Command::Put(_)) { 0 } else { self.limits().answer_bytes_max };
        let command = self.checked(who, command, bytes);
        async move {
            let command = command?;
            slow::handed_over();
            let done = self.replica().execute_timed(command).await;
            answer(replied(slow::executed(done))?)
        }
    }

    /// Executes a command that may have a large answer. Only execution shows how large the answer is, so the
    /// command gets a small bound first. If the answer is larger, the command had no effect, and is executed
    /// again once there is a place, which the answer then holds until it is sent.
    pub(super) async fn execute_in_place<A>(
        &self,
        who: &Who,
        command: Command,
        lane: &Lane,
        answer: impl FnOnce(Reply) -> Result<A, Status> + Send,
    ) -> Result<(A, Option<Place>), Status> {
        let bytes_max = self.limits().answer_bytes_max;
        let small = SMALL_ANSWER_BYTES_MAX.min(bytes_max);
        let command = self.checked(who, command, small)?;
        slow::handed_over();
        let reply = replied(slow::executed(self.replica().execute_timed(command.clone()).await));
        if small == bytes_max || !is_too_large(&reply, small) {
            return answer(reply?).map(|answer| (answer, None));
        }
        let place = lane.place().await;
        let command = KvCommand::decode(command).map_err(garbled)?;
        let command = KvCommand { answer_bytes_max: bytes_max, ..command }.encode_to_vec().into();
        slow::handed_over();
        let reply = slow::executed(self.replica().execute_timed(command).await);
        let (reply, place) = lane.apart(place, move |_| replied(reply)).await?;
        answer(reply?).map(|answer| (answer, Some(place)))
    }

    /// Checks a command and encodes it.
    pub(super) fn checked(
        &self,
        who: &Who,
        command: Command,
        answer_bytes_max: u64,
    ) -> Result<Bytes, Status> {
        let (quota_bytes, member_id) = (self.quota_bytes, self.member_id);
        let command = KvCommand {
            command: Some(command),
            answer_bytes_max,
            quota_bytes,
            member_id,
            ..KvCommand::default()
        };
        let command = by(who, command);
        validate::command(&command, &self.limits()).map_err(|error| refusal(&error))?;
        Ok(command.encode_to_vec().into())
    }

    /// Asks the store. The query has been checked, and may have been refused; `answer` converts the store's
    /// answer. A large answer comes with a place, which must be kept until the answer is sent.
    pub(super) fn query<A>(
        &self,
        who: &Who,
        query: Result<Query, KvError>,
        consistency: Consistency,
        lane: &Lane,
        answer: impl FnOnce(Answer) -> Result<A, Status> + Send,
    ) -> impl Future<Output = Result<(A, Option<Place>), Status>> + Send {
        let found = self.asked(who, query, consistency);
        async move {
            let (found, place) = gathered(found.await?, lane).await?;
            let Some(place) = place else { return Ok((answer(decoded(found)?)?, None)) };
            let (found, place) = lane.apart(place, move |_| decoded(found)).await?;
            Ok((answer(found?)?, Some(place)))
        }
    }

    /// Asks the store, and returns its answer unconverted.
    pub(super) fn asked(
        &self,
        who: &Who,
        query: Result<Query, KvError>,
        consistency: Consistency,
    ) -> impl Future<Output = Result<replica::Answer, Status>> + Send {
        let query = query.map(|query| {
            let query = asked_by(who, KvQuery { query: Some(query), ..KvQuery::default() });
            Bytes::from(query.encode_to_vec())
        });
        async move {
            let query = query.map_err(|error| refusal(&error))?;
            slow::handed_over();
            let found = self.replica().query_timed(query, consistency).await;
            slow::read(found).map_err(failure)
        }
    }

    /// The status of the store: revision, size, alarms. That of several groups has no revision, and the sizes and
    /// alarms of all.
    pub(crate) async fn status(&self, consistency: Consistency) -> Result<KvStatus, Status> {
        Ok(summed(self.status_by_group(consistency).await?))
    }

    /// The status of the store of each group.
    pub(super) async fn status_by_group(&self, consistency: Consistency) -> Result<Vec<KvStatus>, Status> {
        // This replica has nothing of a group in which it takes no part.
        let status = async |group: &R| match group.elsewhere() {
            Some(_) => Ok(KvStatus::default()),
            None => status_of(group, consistency).await,
        };
        try_join_all(self.groups.iter().map(status)).await
    }

    /// The header of an answer. The store's own header tells only the revision.
    pub(crate) fn header(&self, from_store: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision: from_store.map_or(0, |header| header.revision),
            raft_term: self.replica().term(),
        })
    }
}

/// A command of this user.
pub(super) fn by(who: &Who, command: KvCommand) -> KvCommand {
    slow::note(|account| account.commands(who, &command));
    match who.as_deref() {
        None => command,
        Some(Identity { user, revision }) => {
            KvCommand { user: user.clone(), auth_revision: *revision, ..command }
        }
    }
}

/// A query of this user.
pub(super) fn asked_by(who: &Who, query: KvQuery) -> KvQuery {
    slow::note(|account| account.asks(who, &query));
    match who.as_deref() {
        None => query,
        Some(Identity { user, revision }) => {
            KvQuery { user: user.clone(), auth_revision: *revision, ..query }
        }
    }
}

/// The status of the store, from those of all groups.
pub(super) fn summed(mut all: Vec<KvStatus>) -> KvStatus {
    if let [only] = &mut all[..] {
        return std::mem::take(only);
    }
    let mut sum = KvStatus::default();
    for status in all {
        sum.size_bytes += status.size_bytes;
        sum.keys += status.keys;
        sum.versions += status.versions;
        sum.puts += status.puts;
        sum.deletions += status.deletions;
        sum.alarms.extend(status.alarms);
    }
    sum
}

async fn status_of<R: Replica>(group: &R, consistency: Consistency) -> Result<KvStatus, Status> {
    let query =
        KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() }.encode_to_vec();
    let found = group.query(query.into(), consistency).await.map_err(failure)?;
    match decoded(found.whole())? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn replied(reply: Result<Bytes, RequestError>) -> Result<Reply, Status> {
    match KvReply::decode(reply.map_err(failure)?).map_err(garbled)?.reply {
        Some(Reply::Error(error)) => Err(failed(error)),
        Some(reply) => Ok(reply),
        None => Err(unexpected("no reply")),
    }
}

/// Whether a command had no effect because its answer would have more than `bytes` bytes.
fn is_too_large(reply: &Result<Reply, Status>, bytes: u64) -> bool {
    let too_large = refusal(&KvError::AnswerTooLarge(bytes));
    let is = |status: &Status| (status.code(), status.message()) == (too_large.code(), too_large.message());
    reply.as_ref().is_err_and(is)
}

/// Decodes the store's answer.
pub(crate) fn decoded(answer: Bytes) -> Result<Answer, Status> {
    match KvAnswer::decode(answer).map_err(garbled)?.answer {
        Some(Answer::Error(error)) => Err(failed(error)),
        Some(found) => Ok(found),
        None => Err(unexpected("no answer")),
    }
}

/// Gathers an answer as a whole, up to the size that the answer to a command may have. An answer in pieces
/// holds a place.
pub(super) async fn gathered(answer: replica::Answer, lane: &Lane) -> Result<(Bytes, Option<Place>), Status> {
    let pieces = match answer {
        replica::Answer::Pieces(pieces) => pieces,
        answer => return Ok((answer.whole(), None)),
    };
    let place = lane.place().await;
    let mut source = Some(place.kept_by(pieces));
    let place = Some(place);
    let mut gathered = BytesMut::new();
    while source.is_some() {
        let pieces = lane.next(&mut source, GATHERED_BYTES).await?;
        if let [only] = &pieces[..]
            && gathered.is_empty()
            && source.is_none()
        {
            return Ok((only.clone(), place));
        }
        pieces.into_iter().for_each(|piece| gathered.put(piece));
        if gathered.len() as u64 > ANSWER_BYTES_MAX {
            return Err(refusal(&KvError::AnswerTooLarge(ANSWER_BYTES_MAX)));
        }
    }
    Ok((gathered.freeze(), place))
}

/// The status for a request that fails validation.
pub(crate) fn refusal(error: &KvError) -> Status {
    failed(KvFailure::from(error))
}

pub(super) fn failed(error: KvFailure) -> Status {
    Status::new(Code::from_i32(error.code), error.message)
}

pub(super) fn garbled(error: prost::DecodeError) -> Status {
    Status::internal(format!("synod: the state machine's answer does not decode: {error}"))
}

/// The status for an answer that does not match its question.
pub(super) fn unexpected(answer: impl std::fmt::Debug) -> Status {
    Status::internal(format!("synod: the state machine answered something else: {answer:?}"))
}
