//! What a replica does for its store without being asked: it compacts old revisions away, and compares its contents with
//! those of the other members.
//!
//! One thread does it for all stores of a replica. What it changes goes through the log, as commands of clients do.

mod compactor;
mod hashes;

use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, AlarmType, CompactionRequest, HashKvRequest, HashKvResponse, alarm_request::AlarmAction,
    },
    synod::v1::{
        KvCommand, KvHash, KvHashCheck, KvQuery, KvStatus, KvStatusRequest, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_kv::KvError;
use synod_wire::ReplicaId;
use tokio::{
    runtime::Builder,
    select,
    sync::{Notify, mpsc, oneshot},
    time::{sleep_until, timeout},
};
use tonic::Status;
use tracing::{error, info, warn};

use self::hashes::{NO_HASH, Question, Verdict, judge};
pub use self::{
    compactor::{Compaction, Compactor},
    hashes::Hashes,
};
use crate::{
    Consistency, Replica,
    services::{decoded, refusal, replied},
};

/// How long members have to tell their hashes.
const ROUND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an operator waits at most until a replica at its start has compared itself.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Stands for the revision that members have when they execute the question.
const PRESENT: i64 = 0;

/// What is done, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpkeepConfig {
    /// Which revisions are compacted by the caretaker; none without it.
    pub compaction: Option<Compaction>,
    /// How often the caretaker has the contents of all members compared, as they are then.
    pub check_interval: Option<Duration>,
    /// How often it has them compared as they were at the last compaction, if they have not been.
    pub compact_check_interval: Option<Duration>,
}

/// The thread that looks after the stores of a replica. It ends when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    stop: Arc<Notify>,
    checks: Vec<mpsc::Sender<WantsVerdict>>,
}

/// Who waits for a verdict; it is told with the replica's own id.
type WantsVerdict = oneshot::Sender<(Verdict, u64)>;

impl Upkeep {
    /// Begins to look after stores, each with what the log says of comparisons.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<R: Replica>(config: UpkeepConfig, stores: Vec<(R, Hashes)>) -> io::Result<Upkeep> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let stop = Arc::new(Notify::new());
        let mut checks = Vec::new();
        for (replica, hashes) in stores {
            let (wanted, want) = mpsc::channel(1);
            checks.push(wanted);
            runtime.spawn(Keeper::new(config, replica, hashes).run(want));
        }
        let stopped = Arc::clone(&stop);
        thread::Builder::new().name("upkeep".into()).spawn(move || {
            runtime.block_on(stopped.notified());
            runtime.shutdown_background();
        })?;
        Ok(Upkeep { stop, checks })
    }

    /// Compares this replica with the others, before it serves clients. As with etcd, it may serve if no other answers in
    /// time. It blocks. The result is how many members have the same contents, this one included, in the store in which
    /// these are fewest; 0 if nothing could be compared.
    ///
    /// # Errors
    /// Its contents differ from those of the others.
    pub fn check_at_start(&self) -> Result<usize, Differs> {
        info!("starting initial corruption check");
        let mut fewest = usize::MAX;
        for store in &self.checks {
            let (tell, told) = oneshot::channel();
            let asked = store.blocking_send(tell).is_ok();
            let (verdict, member) = asked.then(|| told.blocking_recv().ok()).flatten().unwrap_or_default();
            let same = match verdict {
                Verdict::Same(members) => members,
                Verdict::Differ { differ, same } if !differ.contains(&member) => same,
                Verdict::Differ { .. } | Verdict::Unclear => return Err(Differs),
            };
            fewest = fewest.min(same);
        }
        if fewest > 1 {
            info!(members = fewest, "initial corruption checking passed; no corruption");
        } else {
            warn!("no other member told its hash: this replica serves without having been compared");
        }
        Ok(fewest)
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}

/// A replica's contents differ from those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found data inconsistency with peers")]
pub struct Differs;

/// Looks after one store.
struct Keeper<R> {
    config: UpkeepConfig,
    replica: R,
    member: u64,
    hashes: Hashes,
    /// Times are since then.
    began: Instant,
    compactor: Option<Compactor>,
    /// When contents are compared next.
    check: Option<Instant>,
    compact_check: Option<Instant>,
    /// The last compaction at which all members were found to be the same.
    checked: i64,
    /// Members whose histories were told to differ, so that an alarm that an operator clears is not raised again.
    forked: BTreeSet<ReplicaId>,
    rounds: u64,
}

impl<R: Replica> Keeper<R> {
    fn new(config: UpkeepConfig, replica: R, hashes: Hashes) -> Keeper<R> {
        let now = Instant::now();
        let member = replica.status().replica.0;
        // A round must not be that of an earlier life.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Keeper {
            config,
            replica,
            member,
            hashes,
            began: now,
            compactor: config.compaction.map(|mode| Compactor::new(mode, Duration::ZERO)),
            check: config.check_interval.map(|interval| now + interval),
            compact_check: config.compact_check_interval.map(|interval| now + interval),
            checked: 0,
            forked: BTreeSet::new(),
            rounds: u64::try_from(since.as_nanos()).unwrap_or(0) ^ (member << 56),
        }
    }

    async fn run(mut self, mut wanted: mpsc::Receiver<WantsVerdict>) {
        loop {
            let far = Instant::now() + Duration::from_secs(3600);
            let compaction = self.compactor.as_ref().map(|compactor| self.began + compactor.due());
            let due =
                [compaction, self.check, self.compact_check].into_iter().flatten().fold(far, Instant::min);
            select! {
                () = self.hashes.changed() => {}
                () = sleep_until(due.into()) => {}
                Some(tell) = wanted.recv() => {
                    // A replica that starts may have no leader yet.
                    let verdict = timeout(INITIAL_TIMEOUT, self.compare_at_present()).await;
                    // Nobody waits any more if the replica has been stopped.
                    let _ = tell.send((verdict.ok().and_then(Result::ok).unwrap_or_default(), self.member));
                }
            }
            self.answer().await;
            let now = Instant::now();
            if self.compactor.as_ref().is_some_and(|compactor| now >= self.began + compactor.due()) {
                self.compact().await;
            }
            self.check(now).await;
        }
    }

    /// Notes the revision, and compacts if that is due here.
    async fn compact(&mut self) {
        let Some(compactor) = &mut self.compactor else { return };
        // Without a revision there is nothing to note. The next look is a note's time away.
        let revision = status(&self.replica).await.map_or(0, |status| status.revision);
        // Only now: no later revision than this one had been executed.
        let now = self.began.elapsed();
        let Some(revision) = compactor.look(now, revision, self.replica.takes_care()) else { return };
        let (mode, retention) = match self.config.compaction {
            Some(Compaction::Revision(kept)) => ("revision", kept.to_string()),
            Some(Compaction::Periodic(period)) => ("periodic", format!("{period:?}")),
            None => return,
        };
        info!(revision, retention, "starting auto {mode} compaction");
        let began = Instant::now();
        let request = CompactionRequest { revision, physical: false };
        let compacted = refusal(&KvError::Compacted);
        match execute(&self.replica, self.member, Command::Compact(request)).await {
            Err(status) if status.message() != compacted.message() => {
                warn!(revision, retention, error = status.message(), "failed auto {mode} compaction");
            }
            _ => {
                compactor.compacted(now, revision);
                info!(revision, retention, took = ?began.elapsed(), "completed auto {mode} compaction");
            }
        }
    }

    /// Tells this replica's own hash, if it was asked.
    async fn answer(&self) {
        let Some(Question { round, revision, executed_at }) = self.hashes.take_question() else { return };
        let query = Query::HashKv(HashKvRequest { revision });
        let mut told = KvHash { hash: 0, compact_revision: NO_HASH, revision: executed_at };
        match ask(&self.replica, query, Consistency::Serializable).await {
            Ok(Answer::HashKv(HashKvResponse { hash, compact_revision, .. })) => {
                (told.hash, told.compact_revision) = (hash, compact_revision);
            }
            Ok(_) => {}
            // A later compaction has passed the revision, or this replica never had it.
            Err(status) => info!(revision, error = status.message(), "there is no hash of this replica"),
        }
        let check = Command::HashCheck(KvHashCheck { round, revision, hash: Some(told) });
        if let Err(status) = execute(&self.replica, self.member, check).await {
            warn!(revision, error = status.message(), "this replica's hash could not be told");
        }
    }

    /// Has contents compared if that is due.
    async fn check(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let (present, compacted) = (is_due(self.check), is_due(self.compact_check));
        if present {
            self.check = self.config.check_interval.map(|interval| now + interval);
        }
        if compacted {
            self.compact_check = self.config.compact_check_interval.map(|interval| now + interval);
        }
        if !(present || compacted) || !self.replica.takes_care() {
            return;
        }
        self.tell_of_forks().await;
        let Ok(status) = status(&self.replica).await else { return };
        if status.alarms.iter().any(|raised| raised.alarm() == AlarmType::Corrupt) {
            return;
        }
        if present {
            let verdict = self.compare(PRESENT).await;
            self.follow(status.revision, verdict).await;
        }
        let revision = status.compact_revision;
        if compacted && revision > self.checked {
            let verdict = self.compare(revision).await;
            if verdict
                .as_ref()
                .is_ok_and(|verdict| *verdict == Verdict::Same(self.replica.group().members.len()))
            {
                self.checked = revision;
            }
            self.follow(revision, verdict).await;
        }
    }

    async fn compare_at_present(&mut self) -> Result<Verdict, Status> {
        // Until it executes what the others have, this replica has nothing to compare. There may be no leader yet.
        let query = || ask(&self.replica, Query::Status(KvStatusRequest {}), Consistency::Linearizable);
        while query().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.compare(PRESENT).await
    }

    /// Asks all members for their hashes at a revision that all have executed, and waits for these.
    async fn compare(&mut self, revision: i64) -> Result<Verdict, Status> {
        self.rounds = self.rounds.wrapping_add(1);
        let round = self.rounds;
        self.hashes.begin(round);
        let question = Command::HashCheck(KvHashCheck { round, revision, hash: None });
        execute(&self.replica, self.member, question).await?;
        let members = self.replica.group().members.len();
        let all = async {
            while self.hashes.answers().len() < members {
                self.answer().await;
                if self.hashes.answers().len() < members {
                    self.hashes.changed().await;
                }
            }
        };
        // Those that are down do not answer.
        let _ = timeout(ROUND_TIMEOUT, all).await;
        Ok(judge(members, self.member, &self.hashes.answers()))
    }

    /// Does what a comparison calls for.
    async fn follow(&self, revision: i64, verdict: Result<Verdict, Status>) {
        match verdict {
            Ok(Verdict::Same(members)) => info!(revision, members, "finished peer corruption check"),
            Ok(Verdict::Differ { differ, .. }) => {
                for member in differ {
                    error!(revision, member, "the contents of a member differ from those of most");
                    self.raise(member).await;
                }
            }
            Ok(Verdict::Unclear) => {
                // As with etcd, 0 stands for the cluster as a whole.
                error!(revision, "the contents of members differ, and no majority has the same");
                self.raise(0).await;
            }
            Err(status) => warn!(revision, error = status.message(), "contents could not be compared"),
        }
    }

    /// Raises the alarm for members that have decided something else than this replica.
    async fn tell_of_forks(&mut self) {
        let forked: BTreeSet<_> = self.replica.status().forked_with.into_iter().collect();
        for member in forked.difference(&self.forked) {
            error!(%member, "the history of a member differs");
            self.raise(member.0).await;
        }
        self.forked = forked;
    }

    async fn raise(&self, member_id: u64) {
        let action = AlarmAction::Activate.into();
        let alarm = AlarmRequest { action, member_id, alarm: AlarmType::Corrupt.into() };
        if let Err(status) = execute(&self.replica, self.member, Command::Alarm(alarm)).await {
            warn!(member_id, error = status.message(), "the alarm CORRUPT could not be raised");
        }
    }
}

/// Orders a command that no client sent.
async fn execute<R: Replica>(replica: &R, member_id: u64, command: Command) -> Result<Reply, Status> {
    let command = KvCommand { command: Some(command), member_id, of_member: true, ..KvCommand::default() };
    replied(replica.execute(command.encode_to_vec().into()).await)
}

async fn ask<R: Replica>(replica: &R, query: Query, consistency: Consistency) -> Result<Answer, Status> {
    let query = KvQuery { query: Some(query), of_member: true, ..KvQuery::default() }.encode_to_vec();
    let found = replica.query(query.into(), consistency).await;
    decoded(found.map_err(crate::services::failure)?.whole())
}

async fn status<R: Replica>(replica: &R) -> Result<KvStatus, Status> {
    match ask(replica, Query::Status(KvStatusRequest {}), Consistency::Serializable).await? {
        Answer::Status(status) => Ok(status),
        other => Err(Status::internal(format!("not a status: {other:?}"))),
    }
}
