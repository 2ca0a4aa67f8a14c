//! Bugs that a test can plant, to see that the simulator finds them.
//!
//! They exist only under the feature `planted-bugs`, which nothing but the simulator's tests enables.

use synod_wire::{Lsn, ReplicaId, Time};

use crate::{
    Effects, Members, Options, ProtocolKind, ReplicaSet, VoterSets, kernel_paxos, multipaxos, paxos::Paxos,
    registry::protocols, ring, rules::Rules,
};

/// The rules of the Paxos family for a replica with these options: a planted bug replaces one.
#[inline]
pub(crate) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    match options.planted_bug() {
        Some(Bug::VoteBeforeDurable) => rules.leaves_after = |_| Lsn::ZERO,
        Some(Bug::ForgetPromise) => rules.promised_before = |known, _| known,
        Some(Bug::VoteWithAmnesia) => rules.may_vote = |_| true,
        Some(Bug::CommitWithMinority) => {
            rules.is_chosen = is_nearly_quorum;
            rules.chosen_through = nearly_quorum_value;
        }
        Some(
            Bug::MultiPaxos(multipaxos::Bug::AdoptLowestBallot)
            | Bug::Ring(ring::Bug::AdoptLowestBallot)
            | Bug::KernelPaxos(kernel_paxos::Bug::AdoptLowestBallot),
        ) => rules.outranks = |told, held| told <= held,
        Some(
            Bug::MultiPaxos(multipaxos::Bug::DropAcceptedValue)
            | Bug::Ring(ring::Bug::DropAcceptedValue)
            | Bug::KernelPaxos(kernel_paxos::Bug::FillWithoutPhase1),
        ) => rules.adopted = |_| None,
        Some(
            Bug::MultiPaxos(multipaxos::Bug::DecideAcrossBallots)
            | Bug::Ring(ring::Bug::DecideAcrossBallots)
            | Bug::KernelPaxos(kernel_paxos::Bug::DecideAcrossBallots),
        ) => rules.holds_decision = |_, _| true,
        _ => {}
    }
    rules
}

/// Goes on in the ballot of an earlier life, if [`Bug::ReuseBallot`] is planted: what a restarted leader never does.
pub(crate) fn reuse_ballot<P: Paxos + ?Sized>(replica: &mut P, now: Time, effects: &mut Effects) {
    let common = replica.common_mut();
    let ballot = common.promised;
    if common.options.has(Bug::ReuseBallot) && ballot.replica == common.members.me() && ballot.round > 0 {
        common.promised.round -= 1;
        replica.become_candidate(now, ballot, effects);
    }
}

/// Whether these members are a quorum, or would be one with one vote more: what [`Bug::CommitWithMinority`] and its
/// like take for a quorum.
pub(crate) fn is_nearly_quorum(members: &Members, set: ReplicaSet) -> bool {
    let with = |&vote: &ReplicaId| members.is_quorum(set.union(members.only(vote)));
    members.is_quorum(set) || members.ids().iter().any(with)
}

/// The largest number that a quorum reaches, where each replica has reached `value`, if one vote more is given.
fn nearly_quorum_value(voters: &VoterSets, value: &dyn Fn(ReplicaId) -> u64) -> u64 {
    let with = |vote| voters.quorum_value(|id| if id == vote { u64::MAX } else { value(id) });
    voters.all().into_iter().map(with).max().unwrap_or(0)
}

macro_rules! bugs {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $tag:literal, $folder:ident;)+) => {
        /// A known way to get consensus wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            /// An acceptor answers before its record is durable.
            VoteBeforeDurable,
            /// Where the disk is waited for with promises only, it is not waited for with them either.
            PromiseUnsynced,
            /// A replica that lost its votes with its machine, and kept its promises, does not know it.
            ForgetLostVotes,
            /// A restarted acceptor forgets what it promised.
            ForgetPromise,
            /// A slot counts as decided with one vote less than a quorum.
            CommitWithMinority,
            /// A command that a client sends again is executed again.
            ExecuteRetryTwice,
            /// A snapshot is written without the sessions, which say what was executed.
            ForgetSessionsInSnapshot,
            /// What an epoch decides after the change that ended it is delivered.
            DeliverAfterEnd,
            /// An epoch is entered without a record of it.
            EnterUnrecorded,
            /// A replica that lost its log forgets that at a restart, if a snapshot is of a later epoch than its
            /// records.
            ForgetAmnesiaAfterSnapshot,
            /// It forgets that at a restart if only its protocol's records say it, and the protocol does not run before
            /// the next epoch.
            ForgetParkedAmnesia,
            /// A restarted replica takes up the epoch of its snapshot, although it had entered a later one.
            RestartInOldEpoch,
            /// A replica that entered an epoch and lacks what was decided before takes part in it all the same.
            EnterTooSoon,
            /// A learner does not write down what it learns.
            LearnUnrecorded,
            /// A replica that installs a snapshot stays in the group that it was in.
            SnapshotOfOldGroup,
            /// A replica that begins with nothing votes before it has met all with whom the group began.
            VoteBeforeAllMet,
            /// A replica whose disk was restored from an older copy is taken for what it was.
            BelieveCopies,
            /// A command is taken in whatever waits.
            AdmitEverything,
            /// A replica that was removed ends its service when the first of its successors has gone on.
            RetireEarly,
            /// A replica that was removed ends its service while the voters before the change still count.
            RetireUnsettled,
            /// What is learned from a peer does not say who votes from its slot on.
            LearnWithoutVoters,
            /// A snapshot says who is to vote, but not that those before still count.
            RestartUnsettled,
            /// A replica that learns what a higher ballot decided goes on in its own.
            LearnWithoutPromise,
            /// A leader that learns from a peer what a higher ballot decided goes on in its own.
            LeaderLearnsWithoutPromise,
            /// Each replica finds decisions in the way that it was started with, not in the group's.
            DecisionOfEachReplica,
            /// The replicated clock adds up what leaders say that went by, however much that is and whichever replica
            /// said so.
            ClockCountsTwice,
            /// A leader answers a read without asking whether it still leads, also after it has slept. (Either alone
            /// would do: a leader that slept gives up before it does anything else.)
            ReadWithoutConfirmation,
            /// Questions of other replicas for their reads stay where the protocol that was to answer them runs no
            /// more.
            LeakRemoteReads,
            /// The replies that a session keeps are bounded in number and not in bytes.
            KeepEveryReply,
            /// Decided batches that wait for the executor are bounded in number and not in bytes.
            QueueForExecutorWithoutBound,
            /// Messages that wait for the disk are not bounded.
            HoldWithoutBound,
            /// A replica whose state came from a snapshot begins its fingerprints of what was decided with that
            /// snapshot.
            ForgetHistoryInSnapshot,
            /// A voter that passes on the answer to a read takes it for the answer to a question of its own.
            KeepRelayedAnswer,
            /// A group that follows another takes on whatever members are proposed, also those of an older version.
            FollowOlder,
            /// In a group that follows another nobody proposes the members but the caretaker, whose node may be the one
            /// that has not heard of them.
            OnlyCaretakerFollows,
            /// A group for which voters are chosen goes on with the members of the cluster that it knew when they were
            /// chosen.
            StalePlacement,
            /// A member comes back to a group within an epoch, in which it has forgotten what it said.
            RejoinWithinEpoch,
            /// A replica that takes no part in a group any more goes on running its protocol.
            RunWhileAway,
            /// A replica that lost its log votes at once.
            VoteWithAmnesia,
            /// A restarted leader goes on proposing in the ballot of its earlier life.
            ReuseBallot,
            /// The log is trimmed to the last executed slot without a snapshot that covers it.
            TrimPastSnapshot,
            /// A ballot leader election asks for one answer more than a majority (Ng 2020, erratum E3).
            ElectionMajorityOffByOne,
            /// Its replies carry the highest ballot known instead of the replier's own (E4).
            ElectionEchoesHighest,
            /// It forgets at a restart which ballots were promised (E8).
            ElectionForgetsPromise,
            /// It does not care whether others are content with the leader that it misses.
            ElectionIgnoresHappiness,
            /// It does not care whether its disk answers, and a replica that gives up abstains no longer than others
            /// need to notice.
            ElectionOfHungDisk,
            /// A rotating election does not ask the others before it tries.
            ElectionWithoutRehearsal,
            /// A replica whose log is damaged goes on with the promises and votes that are left of it.
            RepairKeepsVotes,
            /// Repair takes what was voted for and not decided for decided.
            RepairBelievesVotes,
            /// Repair heeds no gap: what lost records did to what is in front of them is not missed.
            RepairAcrossGaps,
            /// Repair keeps the value that was held first, though a later ballot replaced it.
            RepairKeepsReplaced,
            $(#[doc = concat!("Of ", $name, " alone.")] $kind($crate::$folder::Bug),)+
            /// Of dissemination by all replicas.
            Dissemination($crate::dissemination::Bug),
            /// Of the latency-aware election.
            LatencyElection($crate::election::latency::Bug),
        }

        $(
            impl From<$crate::$folder::Bug> for Bug {
                fn from(bug: $crate::$folder::Bug) -> Bug {
                    Bug::$kind(bug)
                }
            }
        )+
    };
}

protocols!(bugs);

impl Bug {
    /// Those of a group that changes.
    pub const EPOCHS: &'static [Bug] = &[
        Bug::DeliverAfterEnd,
        Bug::EnterUnrecorded,
        Bug::RestartInOldEpoch,
        Bug::EnterTooSoon,
        Bug::LearnUnrecorded,
        Bug::SnapshotOfOldGroup,
        Bug::RetireEarly,
        Bug::ForgetAmnesiaAfterSnapshot,
        Bug::ForgetParkedAmnesia,
        Bug::LeakRemoteReads,
    ];

    /// Those of a group that takes its members from another.
    pub const FOLLOWING: &'static [Bug] = &[
        Bug::FollowOlder,
        Bug::OnlyCaretakerFollows,
        Bug::StalePlacement,
        Bug::RejoinWithinEpoch,
        Bug::RunWhileAway,
    ];

    /// Those of replicas that are not what they were.
    pub const IDENTITY: &'static [Bug] = &[Bug::VoteBeforeAllMet, Bug::BelieveCopies];

    /// Those by which replicas that decided the same take each other for ones that did not.
    pub const HISTORIES: &'static [Bug] = &[Bug::ForgetHistoryInSnapshot];

    /// Those of a group whose protocol changes voters itself.
    pub const VOTERS: &'static [Bug] = &[
        Bug::RetireUnsettled,
        Bug::LearnWithoutVoters,
        Bug::RestartUnsettled,
        Bug::Raft(crate::raft::Bug::ChangeAtOnce),
        Bug::Raft(crate::raft::Bug::UnionMajority),
    ];

    /// Those of what waits, or is kept, without a bound in bytes.
    pub const BOUNDS: &'static [Bug] =
        &[Bug::KeepEveryReply, Bug::QueueForExecutorWithoutBound, Bug::HoldWithoutBound];

    /// Those of a log that waits for the disk with promises and not with votes.
    pub const VIEW: &'static [Bug] = &[Bug::PromiseUnsynced, Bug::ForgetLostVotes];

    /// Those of dissemination by all replicas.
    pub const DISSEMINATION: &'static [Bug] = &[
        Bug::Dissemination(crate::dissemination::Bug::ProposeUnstable),
        Bug::Dissemination(crate::dissemination::Bug::AcknowledgeBeforeDurable),
        Bug::Dissemination(crate::dissemination::Bug::HoldUnrecorded),
        Bug::Dissemination(crate::dissemination::Bug::VoteWithoutBatch),
        Bug::Dissemination(crate::dissemination::Bug::TrimHeld),
        Bug::Dissemination(crate::dissemination::Bug::ForgetReproposed),
        Bug::Dissemination(crate::dissemination::Bug::ReuseNames),
        Bug::Dissemination(crate::dissemination::Bug::FillWithAnother),
    ];

    /// Those of rounds of gossip.
    pub const GOSSIP: &'static [Bug] = &[
        Bug::Raft(crate::raft::Bug::TruncateAlways),
        Bug::Raft(crate::raft::Bug::AckBeforeDurable),
        Bug::Raft(crate::raft::Bug::CountVoteMessages),
        Bug::Raft(crate::raft::Bug::ReplyWithLast),
        Bug::Raft(crate::raft::Bug::MergeOlderTerms),
        Bug::Raft(crate::raft::Bug::KeepStatusOfTerm),
        Bug::Raft(crate::raft::Bug::HoldAnyTerm),
        Bug::Raft(crate::raft::Bug::CommitEverything),
        Bug::Raft(crate::raft::Bug::CommitAnyTerm),
        Bug::Raft(crate::raft::Bug::ServeAnyLog),
        Bug::Raft(crate::raft::Bug::FitByLength),
        Bug::Raft(crate::raft::Bug::ReadAtCommit),
        Bug::Raft(crate::raft::Bug::CountBeyondLog),
    ];

    /// Those of what is kept of a damaged log.
    pub const REPAIR: &'static [Bug] =
        &[Bug::RepairKeepsVotes, Bug::RepairBelievesVotes, Bug::RepairAcrossGaps, Bug::RepairKeepsReplaced];

    /// Those of elections that break no rule of a protocol: with them a group serves too late, or changes its leader
    /// for nothing, when a fault lasts.
    pub const OUTAGES: &'static [Bug] = &[Bug::ElectionOfHungDisk, Bug::ElectionWithoutRehearsal];

    /// Those of a protocol that the simulator finds by running seeds.
    #[must_use]
    pub fn of(protocol: ProtocolKind) -> &'static [Bug] {
        protocol.profile().bugs
    }
}
