//! Which peers this replica meets, and whether it recognises them; and what it does when others do not recognise it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use synod_replica::Fork;
use synod_storage::{Lives, PeerBook, StorageError};
use synod_sync::{
    Mutex, PoisonError,
    channel::{Receiver, RecvTimeoutError},
};
use synod_transport::{Meeting, Repeats, Unrecognised};
use synod_wire::{BIRTHS_SINCE, GroupId, Introduction, ReplicaId, Stranger};

use crate::{inputs::Queue, protocol::Input, status::Shared};

/// How often it is written how far peers have told. A peer that crashes forgets at most so much of it, and
/// only its own next life judges by what was written; see `docs/identity.md`.
const HEARD_INTERVAL: Duration = Duration::from_secs(5);

/// What the threads of the transport ask about peers.
pub(crate) struct Meetings {
    pub(crate) book: Arc<PeerBook>,
    /// The other members with which the group began.
    pub(crate) first: Vec<ReplicaId>,
    /// Whether some of them were not met yet, and the replica waits for that.
    pub(crate) waits: AtomicBool,
    /// Lines of the log that nothing can be written.
    pub(crate) complaints: Mutex<Repeats>,
    pub(crate) inputs: Queue,
    pub(crate) shared: Arc<Shared>,
}

impl Meetings {
    /// Whether a peer is the replica that it says it is; blocks for the disk.
    pub(crate) fn recognise(
        &self,
        id: ReplicaId,
        who: &Introduction,
        meeting: Meeting,
    ) -> Result<(), Unrecognised> {
        if meeting.version < BIRTHS_SINCE && self.book.expects_births() {
            return Err(Unrecognised::Outdated(BIRTHS_SINCE));
        }
        let recognised = self.book.meet(id, who, meeting.heard, meeting.welcomed).and_then(|met| match met {
            Ok(()) => self.tell_if_all_are_met().map(|()| Ok(())),
            Err(stranger) => Ok(Err(stranger)),
        });
        match recognised {
            Ok(met) => met.map_err(Unrecognised::from),
            Err(error) => {
                self.complain(id, &error);
                Err(Unrecognised::Unwritten)
            }
        }
    }

    /// Writes a line at intervals, since peers call repeatedly.
    fn complain(&self, id: ReplicaId, error: &StorageError) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = complaints.admit(&id.to_string()) {
            tracing::error!(
                %id, %error,
                "this life of a peer is not recognised, since that cannot be written down now{left_out}"
            );
        }
    }

    fn tell_if_all_are_met(&self) -> Result<(), StorageError> {
        if !self.waits.load(SeqCst) {
            return Ok(());
        }
        let all = self.book.has_met(&self.first)?;
        let missing = self.publish_missing();
        if !all {
            tracing::info!(waits_for = ?missing, "this replica votes once it has met all members of the new group");
        } else if self.waits.swap(false, SeqCst) {
            tracing::info!("all members of the new group were met: this replica takes part");
            // A failed send means that the protocol's thread has ended; the stop follows.
            let _ = self.inputs.send(Input::MetAll);
        }
        Ok(())
    }

    /// Publishes which members this replica waits for. What the book said later is not overwritten by what it
    /// said before.
    pub(crate) fn publish_missing(&self) -> Vec<ReplicaId> {
        let missing = || {
            let welcomed = self.book.welcomed();
            self.first.iter().copied().filter(|id| !welcomed.contains(id)).collect::<Vec<_>>()
        };
        self.shared.waits_for.rcu(|_| Arc::new(missing()));
        self.shared.waits_for.load().to_vec()
    }
}

/// Records that a peer knows a later life of this replica, or another one of the same number, so that this
/// life must not go on. Returns the reason, for people. The next start begins without memory; but not that of the
/// only voter (`alone`), whose log is the only copy of what it decided, and which has no other to learn from.
pub(crate) fn outlived(lives: &Lives, by: ReplicaId, stranger: &Stranger, alone: bool) -> String {
    let next = if alone {
        "It is the only voter, so nobody can tell it what it forgot, and its log is kept. If what it holds is to count, \
         make a new cluster of it: synod recover --force-new-cluster"
            .to_owned()
    } else {
        match lives.outlived_by(stranger.known.incarnation) {
            Ok(()) => "At the next start its log is set aside, and it learns from the others before it votes"
                .to_owned(),
            Err(error) => format!("That could not be written down ({error}): replace this replica"),
        }
    };
    format!(
        "{by} does not recognise this replica: {stranger}. Its data directory was restored from a copy, or another \
         process uses a copy of it. {next}. Make sure that no other process runs as this replica before you start it \
         again"
    )
}

/// What this replica does because another one has decided something else, as text for people.
pub(crate) fn forked(me: &ReplicaId, fork: &Fork) -> String {
    let Fork { with, agreed, slot, ours, theirs, alone } = fork;
    let then = if *alone {
        "No majority of the voters may still agree with this replica, so it stops, and does so again after each start. \
         Acknowledged writes are in one of the histories only: keep its data directory, compare what both hold, and then \
         replace this replica (`synod member replace`), or make a new cluster of what it has \
         (`synod recover --force-new-cluster`)"
    } else {
        "Nothing that the other one says counts here any more"
    };
    let with = if with == me { "an earlier life of it".to_owned() } else { with.to_string() };
    format!(
        "this replica, {me}, and {with} have different histories: another command was decided somewhere in slots {} to \
         {slot} (fingerprint {ours:016x} here, {theirs:016x} there). {then}. See 'Forks' in docs/identity.md (`synod docs \
         identity`)",
        agreed.next()
    )
}

/// Writes how far peers have told, and how far this replica knows each group's log to be decided, until the other end
/// of `stop` is gone.
pub(crate) fn write_what_is_heard(
    book: &PeerBook,
    transport: &dyn synod_transport::Sender,
    groups: &[Arc<Shared>],
    stop: &Receiver<()>,
) {
    let mut warnings = Repeats::default();
    loop {
        let over = stop.recv_timeout(HEARD_INTERVAL) != Err(RecvTimeoutError::Timeout);
        let reached = (0..).map(GroupId).zip(groups);
        let reached = reached.filter_map(|(group, of)| Some((group, of.reached.load().as_deref().cloned()?)));
        let written = book.heard(&transport.heard()).and_then(|()| book.reach(reached));
        if let Err(error) = written
            && let Some(left_out) = warnings.admit(&error.to_string())
        {
            tracing::warn!(
                %error,
                "how far peers have told, and what is decided, cannot be written down now{left_out}"
            );
        }
        if over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_storage::{DataDir, Durability, Loss, Options, Wal};
    use synod_wire::{Acquaintance, ClusterId, Incarnation, Lsn, Mismatch};

    use super::*;

    #[test]
    fn the_only_voter_keeps_its_log_when_a_learner_outlived_it() {
        for alone in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let open = || {
                let (cluster, me) = (ClusterId(7), ReplicaId(1));
                DataDir::open(folder.path(), cluster, me, "n1", Durability::Sync).unwrap()
            };
            let dir = open();
            drop(Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap());
            let lives = Lives::begin(&dir).unwrap();
            let known = Acquaintance { birth: 1, incarnation: Incarnation(4), nonce: 2, told: Lsn(9) };
            let why =
                outlived(&lives, ReplicaId(2), &Stranger { mismatch: Mismatch::Superseded, known }, alone);
            assert_eq!(why.contains("--force-new-cluster"), alone);
            drop((dir, lives));
            let dir = open();
            let (_, found) = Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap();
            assert_eq!(found.loss, (!alone).then_some(Loss::LogMissing));
        }
    }
}
