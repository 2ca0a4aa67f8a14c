//! What a replica does for its store without being asked: it compacts old revisions away, compares its contents with
//! those of the other members, and logs alarms.
//!
//! One thread does it for all stores of a replica. What it changes goes through the log, as commands of clients do.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use prost::Message;
use synod_api::{
    etcdserverpb::{AlarmMember, AlarmType, HashKvRequest, HashKvResponse},
    synod::v1::{
        KvHashCheck, KvQuery, KvStatus, KvStatusRequest, kv_answer::Answer, kv_command::Command,
        kv_query::Query, kv_reply::Reply,
    },
};
pub use synod_kv::upkeep::{Compaction, UpkeepConfig};
use synod_kv::{
    Comparer, KvError,
    upkeep::{Comparisons, Done, Judged, Keeper, Known, Question, Task, Verdict, of_member},
};
use synod_transport::Repeats;
use synod_wire::ReplicaId;
use tokio::{
    runtime::Builder,
    select,
    sync::{Notify, mpsc, oneshot},
    time::{sleep_until, timeout},
};
use tonic::Status;
use tracing::{error, info, warn};

use crate::{
    Consistency, Replica,
    services::{decoded, refusal, replied},
};

/// How long an operator waits at most until a replica at its start has compared itself.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// What the log says of comparisons. Clones share it; the store tells it ([`synod_kv::KvStore::compared_by`]).
#[derive(Clone, Debug, Default)]
pub struct Hashes {
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    comparisons: Mutex<Comparisons>,
    changed: Notify,
}

impl Comparer for Seen {
    fn seen(&self, member: u64, check: &KvHashCheck, executed_at: i64) {
        if self.comparisons().seen(member, check, executed_at) {
            self.changed.notify_one();
        }
    }
}

impl Seen {
    fn comparisons(&self) -> MutexGuard<'_, Comparisons> {
        self.comparisons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hashes {
    /// What a store tells of comparisons.
    #[must_use]
    pub fn comparer(&self) -> Arc<dyn Comparer> {
        Arc::clone(&self.seen) as Arc<dyn Comparer>
    }

    /// Waits until something was said since the last call.
    async fn changed(&self) {
        self.seen.changed.notified().await;
    }
}

/// The thread that looks after the stores of a replica. It ends when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    stop: Arc<Notify>,
    checks: Vec<mpsc::Sender<WantsVerdict>>,
}

/// Tells a verdict, with the replica's own id, to the caller that waits for it.
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
        let several = stores.len() > 1;
        for (group, (replica, hashes)) in stores.into_iter().enumerate() {
            let (wanted, want) = mpsc::channel(1);
            checks.push(wanted);
            let group = several.then_some(group);
            runtime.spawn(Caretaking::new(config, replica, hashes, group).run(want));
        }
        let stopped = Arc::clone(&stop);
        thread::Builder::new().name("upkeep".into()).spawn(move || {
            runtime.block_on(stopped.notified());
            runtime.shutdown_background();
        })?;
        Ok(Upkeep { stop, checks })
    }

    /// Compares this replica with the others, before it serves clients. As with etcd, it may serve if no other answers
    /// in time. It blocks. The result is how many members have the same contents, this one included, in the store in
    /// which these are fewest; 0 if nothing could be compared.
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

/// What an operator is told of an alarm of a member: what it does, and how it ends. If there are several groups, it is
/// that of one.
pub(crate) fn told_of_alarm(raised: &AlarmMember, member: &str, group: Option<usize>) -> String {
    let (of_group, compact, disarm) = match group {
        Some(group) => {
            let of_group = format!("--group {group} --disarm");
            (
                format!(" in group {group}"),
                format!("synod compact REVISION {of_group}"),
                format!("synod compact {of_group}"),
            )
        }
        None => {
            (String::new(), "synod compact REVISION --disarm".to_owned(), "synod alarm disarm".to_owned())
        }
    };
    match raised.alarm() {
        AlarmType::Nospace => format!(
            "the alarm NOSPACE of {member} is raised{of_group}: the store is full, and puts are refused; delete keys, then \
             `{compact}` forgets old revisions and clears the alarm"
        ),
        kind => format!(
            "the alarm {} of {member} is raised{of_group}: writes are refused until it is cleared (`{disarm}`), once \
             its cause is mended",
            kind.as_str_name()
        ),
    }
}

/// A replica's contents differ from those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found data inconsistency with peers")]
pub struct Differs;

/// Looks after one store: does what its keeper decides.
struct Caretaking<R> {
    config: UpkeepConfig,
    replica: R,
    member: u64,
    hashes: Hashes,
    /// Times are since then.
    began: Instant,
    keeper: Keeper,
    /// The caller that waits for this replica to compare itself at its start, and until when.
    at_start: Option<(WantsVerdict, Instant)>,
    /// The alarms that were raised when this thread last looked.
    alarms: Vec<AlarmMember>,
    /// Which of several stores it is.
    group: Option<usize>,
    /// What fails is tried again.
    warnings: Repeats,
}

/// How often this thread looks for alarms, to write down which are raised and cleared.
const ALARMS_INTERVAL: Duration = Duration::from_secs(1);

impl<R: Replica> Caretaking<R> {
    fn new(config: UpkeepConfig, replica: R, hashes: Hashes, group: Option<usize>) -> Caretaking<R> {
        let member = replica.status().replica.0;
        // A round must not be that of an earlier life.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let round = u64::try_from(since.as_nanos()).unwrap_or(0) ^ (member << 56);
        let keeper = Keeper::new(config, member, round, Duration::ZERO);
        let (began, alarms, warnings) = (Instant::now(), Vec::new(), Repeats::default());
        Caretaking { config, replica, member, hashes, began, keeper, at_start: None, alarms, group, warnings }
    }

    async fn run(mut self, mut wanted: mpsc::Receiver<WantsVerdict>) {
        loop {
            let far = Instant::now() + ALARMS_INTERVAL;
            let due = self.keeper.due().map_or(far, |due| self.began + due);
            let gives_up = self.at_start.as_ref().map_or(far, |(_, until)| *until);
            select! {
                () = self.hashes.changed() => {}
                () = sleep_until(due.min(gives_up).into()) => {}
                Some(tell) = wanted.recv(), if self.at_start.is_none() => self.compare_at_start(tell).await,
            }
            if self.at_start.as_ref().is_some_and(|(_, until)| Instant::now() >= *until) {
                self.tell(Verdict::default());
            }
            self.look().await;
        }
    }

    /// Does what is to be done now.
    async fn look(&mut self) {
        loop {
            let known = self.known().await;
            // Only now: no later revision than this one had been executed.
            let now = self.began.elapsed();
            let Some(task) = self.keeper.next(now, &known, &mut self.hashes.seen.comparisons()) else {
                return;
            };
            let done = self.carry_out(&task).await;
            if let Some(judged) = self.keeper.done(self.began.elapsed(), &task, done) {
                self.heed(judged);
            }
        }
    }

    async fn known(&mut self) -> Known {
        let status = status(&self.replica).await;
        if let Ok(status) = &status {
            self.log_alarms(&status.alarms);
        }
        let status = status.unwrap_or_default();
        Known {
            revision: status.revision,
            compact_revision: status.compact_revision,
            corrupt: status.alarms.iter().any(|raised| raised.alarm() == AlarmType::Corrupt),
            takes_care: self.replica.takes_care(),
            members: self.replica.group().members.len(),
            forked_with: self.replica.status().node.forked_with.into_iter().map(|id| id.0).collect(),
        }
    }

    /// Writes down which alarms were raised or cleared since the last look.
    fn log_alarms(&mut self, raised: &[AlarmMember]) {
        let members = self.replica.group();
        let name = |of: &AlarmMember| members.name_of(ReplicaId(of.member_id));
        for alarm in raised.iter().filter(|alarm| !self.alarms.contains(alarm)) {
            error!("{}", told_of_alarm(alarm, &name(alarm), self.group));
        }
        for alarm in self.alarms.iter().filter(|alarm| !raised.contains(alarm)) {
            let of_group = self.group.map_or_else(String::new, |group| format!(" in group {group}"));
            info!("the alarm {} of {} is cleared{of_group}", alarm.alarm().as_str_name(), name(alarm));
        }
        self.alarms = raised.to_vec();
    }

    async fn carry_out(&mut self, task: &Task) -> Done {
        match task {
            Task::Answer(question) => return self.answer(*question).await,
            Task::Heed(judged) => {
                self.heed(judged.clone());
                return Done::Executed;
            }
            Task::Compact(revision) => return self.compact(*revision, task).await,
            Task::Raise(member) => error!(member, "the contents or the history of a member differ"),
            Task::Ask(..) => {}
        }
        let Some(command) = task.command() else { return Done::Failed };
        match (execute(&self.replica, self.member, command).await, task) {
            (Ok(_), _) => Done::Executed,
            (Err(status), Task::Raise(member)) => {
                if let Some(left_out) = self.warnings.admit("raise") {
                    warn!(
                        member,
                        error = status.message(),
                        "the alarm CORRUPT could not be raised{left_out}"
                    );
                }
                Done::Failed
            }
            (Err(status), _) => {
                if let Some(left_out) = self.warnings.admit("compare") {
                    warn!(error = status.message(), "contents could not be compared{left_out}");
                }
                Done::Failed
            }
        }
    }

    async fn compact(&mut self, revision: i64, task: &Task) -> Done {
        let Some(command) = task.command() else { return Done::Failed };
        let (mode, retention) = match self.config.compaction {
            Some(Compaction::Revision(kept)) => ("revision", kept.to_string()),
            Some(Compaction::Periodic(period)) => ("periodic", format!("{period:?}")),
            None => return Done::Failed,
        };
        info!(revision, retention, "starting auto {mode} compaction");
        let began = Instant::now();
        let compacted = refusal(&KvError::Compacted);
        let done = match execute(&self.replica, self.member, command).await {
            Ok(_) => Done::Executed,
            Err(status) if status.message() == compacted.message() => Done::Compacted,
            Err(status) => {
                if let Some(left_out) = self.warnings.admit("compact") {
                    let error = status.message();
                    warn!(revision, retention, error, "failed auto {mode} compaction{left_out}");
                }
                return Done::Failed;
            }
        };
        info!(revision, retention, took = ?began.elapsed(), "completed auto {mode} compaction");
        done
    }

    /// Tells this replica's own hash.
    async fn answer(&mut self, question: Question) -> Done {
        let revision = question.revision;
        let query = Query::HashKv(HashKvRequest { revision: question.hashed_at() });
        let found = match ask(&self.replica, query, Consistency::Present).await {
            Ok(Answer::HashKv(found)) => Some(found),
            Ok(_) => None,
            Err(status) => {
                info!(revision, error = status.message(), "there is no hash of this replica");
                None
            }
        };
        let found: Option<&HashKvResponse> = found.as_ref();
        match execute(&self.replica, self.member, Command::HashCheck(question.answer(found))).await {
            Ok(_) => Done::Executed,
            Err(status) => {
                if let Some(left_out) = self.warnings.admit("answer") {
                    let error = status.message();
                    warn!(revision, error, "this replica's hash could not be told{left_out}");
                }
                Done::Failed
            }
        }
    }

    /// Has this replica compared with the others once it has executed what they have. There may be no leader yet.
    async fn compare_at_start(&mut self, tell: WantsVerdict) {
        let until = Instant::now() + INITIAL_TIMEOUT;
        self.at_start = Some((tell, until));
        let status = || ask(&self.replica, Query::Status(KvStatusRequest {}), Consistency::Linearizable);
        let caught_up = async {
            while status().await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if timeout(INITIAL_TIMEOUT, caught_up).await.is_ok() {
            self.keeper.compare_at_start();
        }
    }

    fn heed(&mut self, judged: Judged) {
        let Judged { revision, verdict, at_start } = judged;
        if at_start {
            return self.tell(verdict.unwrap_or_default());
        }
        match verdict {
            Some(Verdict::Same(members)) => info!(revision, members, "finished peer corruption check"),
            Some(Verdict::Differ { differ, .. }) => {
                error!(revision, ?differ, "the contents of members differ from those of most");
            }
            Some(Verdict::Unclear) => {
                error!(revision, "the contents of members differ, and no majority has the same");
            }
            None => {}
        }
    }

    fn tell(&mut self, verdict: Verdict) {
        if let Some((tell, _)) = self.at_start.take() {
            // Nobody waits any more if the replica has been stopped.
            let _ = tell.send((verdict, self.member));
        }
    }
}

/// Orders a command that no client sent.
async fn execute<R: Replica>(replica: &R, member_id: u64, command: Command) -> Result<Reply, Status> {
    replied(replica.execute(of_member(member_id, command).encode_to_vec().into()).await)
}

async fn ask<R: Replica>(replica: &R, query: Query, consistency: Consistency) -> Result<Answer, Status> {
    let query = KvQuery { query: Some(query), of_member: true, ..KvQuery::default() }.encode_to_vec();
    let found = replica.query(query.into(), consistency).await;
    decoded(found.map_err(crate::services::failure)?.whole())
}

async fn status<R: Replica>(replica: &R) -> Result<KvStatus, Status> {
    match ask(replica, Query::Status(KvStatusRequest {}), Consistency::Present).await? {
        Answer::Status(status) => Ok(status),
        other => Err(Status::internal(format!("not a status: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a cluster has several groups, only the command that names one clears its alarms.
    #[test]
    fn an_alarm_of_a_group_is_cleared_by_a_command_that_names_it() {
        for kind in [AlarmType::Nospace, AlarmType::Corrupt] {
            let raised = AlarmMember { member_id: 1, alarm: kind.into() };
            let told = told_of_alarm(&raised, "n1", Some(2));
            assert!(
                told.contains("of n1 is raised in group 2") && told.contains("--group 2 --disarm`"),
                "{told}"
            );
            assert!(!told_of_alarm(&raised, "n1", None).contains("group"));
        }
    }
}
