//! Dangerous situations. The number of runs that reached each of them measures what running seeds has shown.
//!
//! Seeds by themselves prove little: an error that takes five voters, a learner that bridges a cut, and a
//! change of leadership within one time-out is not found by runs that never reach this. So each situation
//! from which protocols, ours or others, are known to go wrong has a row here, and `synod sim run` tells how
//! many runs reached it. A row is covered by [`MARK`] runs.
//!
//! | file | which |
//! | --- | --- |
//! | `scene.rs` | what is seen of a world: replicas, links, and what happens to them |
//! | `knowledge.rs` | what comes to a replica from outside its ballot |
//! | `links.rs` | cuts that leave some links |
//! | `leaders.rs` | several leaders and candidates at once |
//! | `lives.rs` | crashes, restarts, lost logs |
//! | `order.rs` | messages that overtake others, come late, or do not fit |
//! | `batches.rs` | batches that travel apart from their order |
//! | `rounds.rs` | rounds of gossip |
//! | `ways.rs` | rings along which messages go |
//! | `backups.rs` | what becomes of the backup that a group begins with |
//! | `users.rs` | what becomes of leases and watches meanwhile |
//! | `merging.rs` | the merge of groups into one order |
//! | `epochs.rs` | changes of the group in the midst of all that |
//! | `table.rs` | the rows of many runs, for people |
//!
//! Situations are recognised from outside, by effects, messages and what a replica shows of itself, as far as
//! that is possible. So a protocol that is added has them too. Each but those of merged groups has a
//! story, a script that reaches it with its last command and not before:
//! `scenarios/situations/FILE-NAME.txt` (`stories.rs` plays them).

/// An enumeration of situations, each with a name.
macro_rules! situations {
    ($(#[$of:meta])* $type:ident; $($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$doc])* $name,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: &'static [$type] = &[$($type::$name,)+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($type::$name => $text,)+ }
            }
        }
    };
}

mod backups;
mod batches;
mod epochs;
mod knowledge;
mod leaders;
mod links;
mod lives;
mod merging;
#[cfg(test)]
mod near_misses;
mod order;
mod rounds;
mod scene;
#[cfg(test)]
mod stories;
mod table;
mod users;
mod ways;

use std::fmt;

use synod_consensus::ProtocolKind;
use synod_replica::Group;

pub use merging::{MergeCounts, MergeSituation};
use scene::Scene;
pub(crate) use scene::{Face, Sight, is_long};
pub use table::Table;

/// A row with fewer runs is not covered.
pub const MARK: u64 = 20;

situations! {
    /// A situation from which protocols are known to go wrong.
    Situation;
    /// A replica reaches two others in both directions that do not reach each other without it.
    Bridge = "a partial cut with a bridge";
    /// That replica is a learner.
    LearnerBridge = "the bridge is a learner";
    /// A replica begins to lead while another leads on the other side of a bridge.
    BridgedLeaders = "a leader on each side of a bridge";
    /// A leader is asked to hand over while some links of its voters are cut and some are not.
    TransferWhileCut = "a transfer of leadership under a partial cut";
    /// A replica whose disk is stalled is asked to take over from the leader.
    HeirStalls = "a replica with a stalled disk is asked to take over";
    /// A replica that reaches no quorum is asked to take over from the leader.
    HeirCutOff = "a replica that reaches no quorum is asked to take over";
    /// A replica that led before in its present life is asked to take over from the leader.
    FormerLeaderAsked = "a former leader is asked to take over";
    /// A leader with proposals that are not decided asks another replica to take over.
    BusyHandOver = "a leader with undecided proposals asks another to take over";
    /// A leader is heard by a quorum and hears none.
    DeafLeader = "a leader that is heard and does not hear";
    /// A leader gets a command that its origin could not bring itself.
    CommandRelayed = "a command reaches the leader by way of another voter";
    /// A learner has delivered a slot that a leader has not.
    LearnerAhead = "a learner ahead of a leader";
    /// A leader writes a slot that it learned from a peer.
    LeaderLearns = "learned while leading";
    /// A leader learns what a ballot above its own decided.
    LeaderLearnsHigher = "a leader learns what a higher ballot decided";
    /// A leader learns for a slot another batch than it proposed there.
    LeaderLearnsOther = "a leader learns another value than it proposed";
    /// A candidate writes a slot that it learned from a peer.
    CandidateLearns = "learned while candidate";
    /// A candidate learns what a ballot above its own decided.
    CandidateLearnsHigher = "a candidate learns what a higher ballot decided";
    /// A candidate learns what another replica decided as the leader of its own term.
    CandidateLearnsWinner = "a candidate learns who won its own term";
    /// A follower learns what a ballot above the one that it follows decided.
    FollowerLearnsHigher = "learned while following a lower ballot";
    /// A leader installs a snapshot.
    LeaderInstalls = "installed while leading";
    /// A leader installs a snapshot that holds slots in which it proposed something that it has not delivered.
    LeaderInstallsOverOwn = "a leader installs over its own proposals";
    /// A candidate installs a snapshot.
    CandidateInstalls = "installed while candidate";
    /// A follower installs a snapshot whose last slot was decided in a ballot above the one that it follows.
    FollowerInstallsHigher = "installed while following a lower ballot";
    /// A replica delivers a slot for the first time, in a ballot that it leads, while another leads in a lower one.
    DeposedUnknowing = "a leader that does not know that a higher ballot decides";
    /// A leader proposes in a slot where a leader of another ballot has a proposal that it has not delivered.
    TwoLeadersOneSlot = "two leaders with proposals for one slot";
    /// A leader is asked for a linearizable read after a higher ballot has decided more than it knows of.
    DeposedRead = "a read at a leader that others have replaced";
    /// A leader continues after a pause beyond the election time-out, and a higher ballot has a leader.
    PausedLeaderReturns = "a leader that slept while others elected another";
    /// A replica whose disk is stalled leads while another leads in a higher ballot.
    StalledLeader = "a leader with a stalled disk while another leads";
    /// A leader reaches a quorum of voters and no more, the disk of one of them is stalled, and something
    /// waits for them.
    HungQuorum = "a hung follower in the leader's only quorum";
    /// The clock of a leader jumps by more than the election time-out.
    ClockJump = "the clock of a leader jumps";
    /// Two replicas are candidates in different ballots.
    Duel = "two candidates at once";
    /// Two replicas that run have lost records that they have not made good.
    RecoveriesOverlap = "two recoveries at once";
    /// A replica becomes a candidate while another that runs has not made good what it lost.
    CandidacyDuringRecovery = "a candidacy during a recovery";
    /// A replica that has not made good what it lost crashes.
    RecoveryInterrupted = "a crash in the midst of a recovery";
    /// A replica starts with proposals in its log that it has not delivered, and hears of a leader of a higher ballot
    /// before it has delivered them.
    RestartWithTail = "a restart with an undecided tail under a new leader";
    /// A replica starts without its log, and with a snapshot.
    AmnesiaWithSnapshot = "a log lost and a snapshot left";
    /// A replica starts with its promises, and knows that it lost votes.
    VotesLost = "a promise survives whose votes were lost";
    /// One of those votes was for a slot that no replica knows to be decided.
    VotesLostUndecided = "a replica lost its vote for a slot that is undecided";
    /// A learner starts without its log.
    LearnerAmnesia = "a learner without its log";
    /// Every replica is down.
    AllDown = "everybody down at once";
    /// A message that waits for no record leaves before another to the same peer that waits for one.
    Overtaken = "a gated message overtaken by an ungated one";
    /// The message that overtakes hands out decided slots.
    OvertakenByDecided = "a gated message overtaken by decided slots";
    /// An answer to an earlier candidacy reaches a candidate.
    LateAnswer = "an answer to a candidacy that is over";
    /// A page of a promise after the first was sent in another life than the page before it.
    PagesOfTwoLives = "promise pages of two lives";
    /// A page of a promise after the first begins with a slot that its sender has delivered since the page before it.
    DropsBetweenPages = "a teller drops elements between two pages";
    /// A request is refused for its size.
    RefusedForSize = "a request refused for its size";
    /// A command is refused since too much waits already, or has waited for too long to be ordered at all.
    Overload = "more was asked for than could be ordered";
    /// Decided slots arrive that were asked for in an earlier epoch.
    LateCatchUp = "decided slots asked for in an earlier epoch";
    /// An epoch ends while there is a bridge.
    EpochUnderBridge = "an epoch ends under a bridge";
    /// An epoch ends while two replicas lead.
    EpochWithTwoLeaders = "an epoch ends while two lead";
    /// An epoch ends while a replica is a candidate.
    EpochDuringCandidacy = "an epoch ends during a candidacy";
    /// An epoch ends while a replica that runs has not made good what it lost.
    EpochDuringRecovery = "an epoch ends during a recovery";
    /// An epoch ends while a replica receives a snapshot.
    EpochDuringSnapshot = "an epoch ends while a snapshot is received";
    /// A leader or candidate learns from a peer that its epoch is over.
    EndLearned = "the end of an epoch learned while leading or candidate";
    /// A replica installs a snapshot of a later epoch.
    EndInstalled = "the end of an epoch behind a snapshot";
    /// A replica hands out a slot of an epoch that was over before its present life began.
    OldSlotOfLaterLife = "a slot of an ended epoch told by a later life";
    /// The leading replica is removed from the group.
    LeaderRemoved = "the leader is removed";
    /// A learner is promoted before it has delivered everything.
    LaggingVoter = "a learner that lags gets a vote";
    /// A replica begins to lead while two groups of voters must agree.
    JointLeader = "a new leader during a joint configuration";
    /// A member set is decided in a group that follows a later one.
    OlderMembersRefused = "an older member set is refused by replicated state";
    /// A group changes what orders it, while it follows another and members that are to vote still learn.
    ReorderedWhileFollowing = "the protocol changes while a group takes on members";
    /// The leading replica is removed from a group that follows another.
    LeaderLeftBehind = "a leader that the first group had removed leaves";
    /// The voters of a group are chosen, and the leading replica is not among them.
    LeaderNotChosen = "a leader is not chosen to vote any more";
    /// A replica that took no part in a group is a member of it again, or for the first time.
    ComesBack = "a replica that took no part in a group becomes a member";
    /// A message refers to a batch that its receiver lacks.
    ReferenceFirst = "a reference comes before its batch";
    /// A batch comes to a replica that took in a later message of the one that told it of a reference to the batch.
    ParkedTakenLate = "a message that waits for its batch is overtaken by a later one";
    /// A batch that was ordered by reference is delivered for the first time, and a voter that runs lacks it.
    DecidedBeforeHeld = "a batch is decided before every voter has it";
    /// A quorum has a batch that a leader lacks.
    LeaderWithoutBatch = "a leader lacks a batch that a quorum has";
    /// A replica begins to lead, and its log refers to batches that no replica has delivered.
    LeaderInheritsReferences = "a leader begins with references in its log";
    /// A reference is delivered whose batch was delivered before.
    DecidedTwice = "a batch is decided twice";
    /// A batch will not be delivered, since its origin does not wait for it any more, and a replica has it.
    BatchGivenUp = "a batch is given up that others have";
    /// A replica loses its log, and with it batches that no replica has delivered.
    HeldLost = "a log is lost with batches that are under way";
    /// An epoch ends, and a replica has batches that no replica has delivered.
    EpochWithBatches = "an epoch ends while batches are under way";
    /// A replica passes on a round of gossip that another one began.
    RoundPassedOn = "a round of gossip is passed on";
    /// A round comes to a replica that has seen it, or a later one.
    RoundTwice = "a round of gossip comes twice, or late";
    /// A leader sends entries directly to a replica whose log a round did not fit.
    RoundRepaired = "a log that a round does not fit is repaired";
    /// A replica sends another one entries of its leader that this one asked for.
    RoundPulled = "entries are sent to a replica that asked for them";
    /// It did not have them when it was asked, and sends them when they have come.
    PullWaits = "a replica is asked for entries that it lacks itself";
    /// A replica passes on a round whose entries, or earlier ones, are not durable there, and does not say that it
    /// holds them.
    HeldLater = "a replica does not say yet what is not durable";
    /// A follower is the first replica to know that a slot is committed, while its leader leads.
    FollowerCommitsFirst = "a follower commits before its leader";
    /// It counts the voters of its log, and the leader has an entry that changes them, which has not come there.
    CommitsByOldVoters = "a follower commits by older voters than its leader's";
    /// A leader chooses a ring without a replica that the ring before had.
    RingShrinks = "a ring leaves a replica out";
    /// A leader chooses a ring with a replica that the ring before had not.
    RingGrows = "a ring takes a replica in";
    /// A leader chooses a ring with the same replicas in another order.
    RingTurns = "a ring is tried in another order";
    /// A proposal goes past the ring, to one replica and back.
    Detour = "a proposal goes past the ring";
    /// A leader has no ring any more: proposals go to each replica by themselves, until an order carries again.
    RingIsLeft = "a leader leaves its ring";
    /// The votes for a proposal leave the leader without its own, since its disk is slow.
    VotesWithoutLeader = "votes begin without the leader's";
    /// A replica that votes sends votes on without its own, most often since its disk is slow.
    VotesPass = "votes pass a replica without its own";
    /// A message of a ring comes to a replica that has heard of a later one of the same ballot.
    OldRing = "a message of an earlier ring comes late";
    /// A replica that does not vote sends votes of others on.
    LearnerOnRing = "a learner has a place in a ring";
    /// A candidate asks what was accepted in a range of slots, having been told of an earlier range.
    SecondRange = "a candidate asks about a second range";
    /// A leader asks what was accepted in the slots after those in which it may propose.
    MoreReserved = "a leader asks about more slots";
    /// A voter starts without the backup that its group began with.
    BackupLost = "a voter starts without the backup that its group began with";
    /// A replica that does not vote starts without that backup, most often since it joins.
    BackupLacking = "a joining replica starts without the backup that the group began with";
    /// A replica asks for decided slots from the one on that stands for the backup.
    BackupAsked = "the slot is asked for that stands for a backup";
    /// A replica gets the snapshot of the backup itself from another one.
    BackupFetched = "the snapshot of a backup comes from another replica";
    /// An epoch ends while a replica that runs lacks the backup.
    EpochWithoutBackup = "an epoch ends while a replica lacks the backup";
    /// The time of a lease is over, and it takes keys with it.
    LeaseEndsWithKeys = "a lease ends with keys";
    /// The time of a lease is over while two replicas take themselves for the leader, one of them perhaps paused; each
    /// may have moved the clock, or move it when it goes on.
    LeaseEndsWhileTwoLead = "a lease ends while two lead";
    /// A lease gets its whole time again, since another replica moves the clock, or the log stood still.
    LeaseStartsAgain = "a lease starts again";
    /// A replica that does not lead answers that a lease is renewed.
    RenewedByFollower = "a lease is renewed at a replica that does not lead";
    /// A watch goes on at another replica, or in another life, after a crash.
    WatchAfterCrash = "a watch goes on after a crash";
    /// A watcher is told what there was before it asked.
    WatchFromHistory = "a watch is told the past";
    /// A watcher is told what came after a snapshot of another replica had replaced the state.
    WatchOverSnapshot = "a watch goes on over a snapshot";
    /// A watch ends as compacted.
    WatchCompacted = "a watch is compacted";
}

impl Situation {
    /// Whether it can occur with a protocol.
    ///
    /// # Errors
    /// It cannot, for this reason.
    pub fn applies(self, protocol: ProtocolKind) -> Result<(), &'static str> {
        match self {
            Situation::PagesOfTwoLives | Situation::DropsBetweenPages if protocol.has_terms() => {
                Err("a vote is one message")
            }
            Situation::CandidateLearnsWinner if !protocol.has_terms() => {
                Err("a ballot has one owner, who alone can win it")
            }
            Situation::RingShrinks
            | Situation::RingGrows
            | Situation::RingTurns
            | Situation::Detour
            | Situation::RingIsLeft
            | Situation::VotesWithoutLeader
            | Situation::VotesPass
            | Situation::OldRing
            | Situation::LearnerOnRing
                if !protocol.heeds("ring-order") =>
            {
                Err("no message goes from replica to replica")
            }
            Situation::SecondRange | Situation::MoreReserved if !protocol.heeds("ring-reserve") => {
                Err("a candidate asks about all later slots")
            }
            Situation::JointLeader if !protocol.changes_voters_itself() => {
                Err("it does not change voters within an epoch")
            }
            Situation::RoundPassedOn
            | Situation::RoundTwice
            | Situation::RoundRepaired
            | Situation::RoundPulled
            | Situation::PullWaits
            | Situation::HeldLater
            | Situation::FollowerCommitsFirst
            | Situation::CommitsByOldVoters
                if !protocol.heeds("replication") =>
            {
                Err("its leader sends to all, or round a ring")
            }
            Situation::DecidedTwice if !protocol.fills_slots_alone() => {
                Err("a new leader's log has every reference that may be decided, and none twice")
            }
            _ => Ok(()),
        }
    }

    /// Whether a chart of a run best shows this one: two replicas lead or try to, or a leader or a restarted replica
    /// does not know what others have decided.
    pub(crate) fn is_of_leaders(self) -> bool {
        matches!(
            self,
            Situation::BridgedLeaders
                | Situation::TransferWhileCut
                | Situation::HeirStalls
                | Situation::HeirCutOff
                | Situation::DeafLeader
                | Situation::LeaderLearnsHigher
                | Situation::LeaderLearnsOther
                | Situation::DeposedUnknowing
                | Situation::TwoLeadersOneSlot
                | Situation::DeposedRead
                | Situation::PausedLeaderReturns
                | Situation::StalledLeader
                | Situation::Duel
                | Situation::RestartWithTail
                | Situation::EpochWithTwoLeaders
                | Situation::LeaderRemoved
        )
    }

    fn bit(self) -> u128 {
        const { assert!(Situation::ALL.len() <= 128, "a bit for each") };
        1 << self as u32
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The situations that a run reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached(u128);

impl Reached {
    /// Whether this one was reached.
    #[must_use]
    pub fn has(self, situation: Situation) -> bool {
        self.0 & situation.bit() != 0
    }

    /// Those that were reached.
    pub fn iter(self) -> impl Iterator<Item = Situation> {
        Situation::ALL.iter().copied().filter(move |situation| self.has(*situation))
    }

    /// Those that either has reached.
    pub(crate) fn or(self, other: Reached) -> Reached {
        Reached(self.0 | other.0)
    }

    fn mark(&mut self, situation: Situation, holds: bool) {
        if holds {
            self.0 |= situation.bit();
        }
    }
}

/// Watches a run, and records the situations that it reaches while the run's protocol is the present one.
#[derive(Debug)]
pub(crate) struct Situations {
    protocol: ProtocolKind,
    scene: Scene,
    reached: Reached,
    knowledge: knowledge::Watcher,
    lives: lives::Watcher,
    order: order::Watcher,
    epochs: epochs::Watcher,
    batches: batches::Watcher,
    rounds: rounds::Watcher,
    ways: ways::Watcher,
}

impl Situations {
    /// The beginning of a run with this group, and at most this many replicas.
    pub(crate) fn new(group: &Group, capacity: usize) -> Situations {
        let protocol = group.protocol;
        Situations {
            protocol,
            scene: Scene::new(group, capacity),
            reached: Reached::default(),
            knowledge: knowledge::Watcher::new(capacity),
            lives: lives::Watcher::new(capacity),
            order: order::Watcher::new(capacity),
            epochs: epochs::Watcher::new(group, capacity),
            batches: batches::Watcher::new(capacity),
            rounds: rounds::Watcher::new(capacity),
            ways: ways::Watcher::new(capacity),
        }
    }

    /// The situations that were reached so far.
    pub(crate) fn reached(&self) -> Reached {
        self.reached
    }

    /// Something happens.
    pub(crate) fn see(&mut self, sight: &Sight<'_>) {
        // The end of an epoch belongs to the epoch that ends.
        let counts = self.scene.orders == self.protocol;
        self.scene.take_in(sight);
        let (scene, mut now) = (&self.scene, self.reached);
        backups::see(scene, sight, &mut now);
        links::see(scene, sight, &mut now);
        leaders::see(scene, sight, &mut now);
        // These watchers remember what they saw, also while another protocol is the present one.
        self.knowledge.see(scene, sight, &mut now);
        self.lives.see(scene, sight, &mut now);
        self.order.see(scene, sight, &mut now);
        self.epochs.see(scene, sight, &mut now);
        self.batches.see(scene, sight, &mut now);
        self.rounds.see(scene, sight, &mut now);
        self.ways.see(scene, sight, &mut now);
        users::see(scene, sight, &mut now);
        if counts {
            self.reached = now;
        }
        self.scene.done(sight);
    }
}
