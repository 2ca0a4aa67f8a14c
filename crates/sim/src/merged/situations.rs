//! What a run came to, counted: the situations in which a merge goes wrong if it does.

use std::fmt;

macro_rules! situations {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        /// A situation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Situation {
            $($(#[$doc])* $name,)+
        }

        impl Situation {
            /// All of them, with their names.
            pub const ALL: &'static [(Situation, &'static str)] = &[$((Situation::$name, $text),)+];
        }
    };
}

situations! {
    /// Batches waited for a group in which nobody led.
    LeaderlessGroup = "the merge waits for a group without a leader";
    /// A skip was decided that moved nothing, since its group was there already.
    SkipWithoutWeight = "a skip comes late or a second time";
    /// Two nodes proposed skips for one group to the same position.
    TwoCaretakers = "two caretakers skip for one group";
    /// A batch held a skip beside commands.
    SkipAmongCommands = "a skip and commands share a batch";
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
    /// A keeper had the store of all groups compacted.
    Compacts = "a caretaker compacts the store of merged groups";
    /// A keeper found all members to have the same contents.
    MembersCompared = "all members are compared, and are the same";
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
    /// The time of a lease was over.
    LeaseEnds = "a lease ends";
    /// It took keys with it.
    LeaseEndsWithKeys = "a lease ends with keys";
    /// A lease got its whole time again, since another node moved the clock, or the log had stood still.
    LeaseStartsAgain = "a lease starts again";
    /// A lease was renewed in another group than it was granted in.
    RenewedElsewhere = "a lease is renewed in another group";
    /// A watch went on at another node, or in another life, after a crash.
    WatchAfterCrash = "a watch goes on after a crash";
    /// A watch was told what there had been before it began.
    WatchFromHistory = "a watch is told the past";
    /// A watch was told what came after a snapshot had replaced the state.
    WatchOverSnapshot = "a watch goes on over a snapshot";
    /// A watch ended as compacted.
    WatchCompacted = "a watch is compacted";
}

/// How often each situation occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts([u64; Situation::ALL.len()]);

impl Default for Counts {
    fn default() -> Counts {
        Counts([0; Situation::ALL.len()])
    }
}

impl Counts {
    pub(super) fn see(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }

    /// How often it occurred.
    #[must_use]
    pub fn of(&self, situation: Situation) -> u64 {
        self.0[situation as usize]
    }

    /// Records the situations of a run, each once.
    pub fn add_run(&mut self, run: &Counts) {
        self.0.iter_mut().zip(run.0).for_each(|(all, of)| *all += u64::from(of > 0));
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>8}  situation", "runs")?;
        for &(situation, name) in Situation::ALL {
            writeln!(f, "{:>8}  {name}", self.of(situation))?;
        }
        Ok(())
    }
}
