//! The situations in which a merge of groups goes wrong if it does. They are those of a node, and not of one group.

use std::fmt;

use super::MARK;

situations! {
    /// A situation of merged groups.
    MergeSituation;
    /// Batches waited for a group in which nobody led.
    LeaderlessGroup = "the merge waits for a group without a leader";
    /// A skip was decided that moved nothing, since its group was there already.
    SkipWithoutWeight = "a skip comes late or a second time";
    /// Two nodes proposed skips for one group to the same position.
    TwoCaretakers = "two caretakers skip for one group";
    /// A batch held a skip beside commands.
    SkipAmongCommands = "a skip and commands share a batch";
    /// A turn of execution ended before all batches were executed that had theirs.
    TurnEnds = "a turn of execution ends before that of a batch";
    /// A snapshot that one group asked for brought others on.
    MovedOthers = "an installed snapshot moves groups that did not ask";
    /// A group was executed further than the snapshot that was installed.
    HeadKept = "a group is further than the installed snapshot";
    /// An earlier point of the common order came with a snapshot that was further in the group that asked.
    OlderInstalled = "an installed snapshot is of an earlier point of the order";
    /// A batch that waited for its turn came with a snapshot.
    GoneWithSnapshot = "a snapshot brings batches that wait for their turn";
    /// A life began with a snapshot of all groups.
    RestartFromSnapshot = "a restart from a snapshot of all groups";
    /// A life began with heads of several files.
    RestartFromSeveral = "a restart from several files";
    /// A read waited, once all groups had confirmed it, until a group had skipped.
    ReadWaitsForSkip = "a read waits for a skip";
    /// Batches waited for their turn when their node crashed.
    WaitingAtCrash = "batches wait for their turn at a crash";
    /// A group went on with another protocol.
    ProtocolChanges = "a group changes its protocol";
    /// A group chose its voters.
    VotersChosen = "a group chooses its voters";
    /// A replica took no more, since its batches waited for another group.
    Backlogged = "a group waits for room behind the merge";
    /// A command of a session was executed in a group, and asked for again in another.
    RetriedElsewhere = "a retry goes to another group";
    /// A subscriber went on at another node.
    SubscriberMoves = "a subscriber goes on at another node";
    /// What a subscriber wanted next was not kept any more.
    SubscriberTooSlow = "a subscriber is slower than the logs are trimmed";
    /// A group joined those that a subscriber follows.
    SubscriberJoins = "a group joins a subscription";
    /// A group left those that a subscriber follows.
    SubscriberLeaves = "a group leaves a subscription";
    /// A node that joined has executed something.
    Joins = "a node joins, and executes what the others do";
    /// A node that joined, and had executed nothing, went on from a snapshot.
    JoinsBySnapshot = "a node joins by a snapshot of all groups";
    /// A node that joined crashed before it had executed what was ordered.
    JoinerCrashes = "a node that joins crashes before it has caught up";
    /// Every group let a node go, and it ended.
    Leaves = "a node leaves for good";
    /// A node that a group had removed started again.
    RemovedRestarts = "a removed node starts again";
    /// The first group removed the node that led another group.
    LeaderRemoved = "the leader of another group is removed";
    /// The first group had removed a voter that another group still had.
    StillVotes = "a group needs a voter that the first group has removed";
    /// The first group removed a member while batches waited for another group.
    RemovedWhileWaiting = "a member is removed while the merge waits for a group";
    /// A removal was refused, since a group that lags would have too few voters left.
    RemovalRefused = "a removal has to wait for a group that lags";
    /// A snapshot of all groups was installed that had other members than the node knew.
    MembersBySnapshot = "a snapshot brings other members";
    /// A snapshot of a group that was not asked for took the place of its log.
    SharedTrims = "a snapshot of another group trims the log";
    /// The groups began with the state of a backup.
    BeginsWithBackup = "the groups begin with a backup";
    /// The clock of a leader of a group jumped while batches waited for another group.
    JumpWhileWaiting = "a clock jumps while the merge waits for a group";
    /// A lease was renewed in another group than it was granted in.
    RenewedElsewhere = "a lease is renewed in another group";
}

/// In how many runs each situation of merged groups occurred, or how often it did in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeCounts([u64; MergeSituation::ALL.len()]);

impl Default for MergeCounts {
    fn default() -> MergeCounts {
        MergeCounts([0; MergeSituation::ALL.len()])
    }
}

impl MergeCounts {
    pub(crate) fn see(&mut self, situation: MergeSituation) {
        self.mark(situation, true);
    }

    pub(crate) fn mark(&mut self, situation: MergeSituation, holds: bool) {
        self.0[situation as usize] += u64::from(holds);
    }

    /// How often it occurred.
    #[must_use]
    pub fn of(&self, situation: MergeSituation) -> u64 {
        self.0[situation as usize]
    }

    /// The rows that too few runs reached.
    pub fn uncovered(&self) -> impl Iterator<Item = MergeSituation> {
        MergeSituation::ALL.iter().copied().filter(|row| self.of(*row) < MARK)
    }

    /// Records the situations of a run, each once.
    pub fn add_run(&mut self, run: &MergeCounts) {
        self.0.iter_mut().zip(run.0).for_each(|(all, of)| *all += u64::from(of > 0));
    }
}

impl fmt::Display for MergeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>8}  situation of merged groups", "runs")?;
        for &situation in MergeSituation::ALL {
            let mark = if self.of(situation) < MARK { "  NOT COVERED" } else { "" };
            writeln!(f, "{:>8}  {}{mark}", self.of(situation), situation.name())?;
        }
        Ok(())
    }
}
