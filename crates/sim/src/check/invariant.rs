//! The invariants, each with a name and a source.

use std::fmt;

macro_rules! invariants {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $source:literal;)+) => {
        /// A condition that must hold after every event, or at the end of a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant {
            $($(#[$doc])* $name,)+
        }

        impl Invariant {
            /// All invariants.
            pub const ALL: &'static [Invariant] = &[$(Invariant::$name,)+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Invariant::$name => $text,)+ }
            }

            /// The document that it comes from.
            #[must_use]
            pub fn source(self) -> &'static str {
                match self { $(Invariant::$name => $source,)+ }
            }
        }
    };
}

invariants! {
    /// What a guest demands of its state machine.
    Guest = "guest", "crates/sim/src/guest.rs: the author of the state machine says what holds";
    /// One batch a slot: on all replicas, in all their lives, also across restarts.
    Agreement = "agreement", "Santos 2012, section 7.4: a DECIDED value never changes";
    /// A replica delivers slots in order, each once a life, without gaps but for those a snapshot fills.
    DeliveryOrder = "delivery-order", "Santos 2012, section 7.4: instances are executed in order without gaps";
    /// A delivered command was submitted by a client, or is a tick of the replicated clock.
    Validity = "validity", "Santos 2012, section 2.4: a delivered message was broadcast by somebody";
    /// A command `(session, sequence)` is executed at most once, and has the same outcome on every replica.
    Integrity = "integrity", "Santos 2012, section 7.8: the reply cache";
    /// Replicas that have executed the same slots have the same state.
    SameState = "same-state", "ARCHITECTURE.md: same seed, same run; Schneider 1990: replicas of a deterministic state machine";
    /// Every promise and vote that leaves a replica is covered by durable records of that replica.
    DurableBeforePromise = "durable-before-promise", "ARCHITECTURE.md: nothing is promised before it is durable";
    /// No later life contradicts what an earlier one promised or voted for, unless it lost its log and said so.
    PromiseKept = "promise-kept", "Santos 2012, section 7.4: no PHASE2B for a view lower than one promised";
    /// States on which a message rested (promises, terms, epochs) are there in the next life, with a durability that
    /// keeps them over such an end.
    StatesKept = "states-kept", "docs/operating.md: what survives with each durability";
    /// A replica that lost its log sends nothing in an epoch in which it may have voted, also after further restarts,
    /// until it knows everything that it may have said.
    SilentAmnesia = "silent-amnesia", "docs/recovery-without-a-log.md: after the loss of a log a replica does not vote until it is safe";
    /// A replica that lost its log votes again only with answers of enough others, each from the latest life that it
    /// knows of.
    LatestLifeAnswers = "latest-life-answers", "docs/recovery-without-a-log.md: step 2 of the protocol";
    /// Each promise that made a candidate lead was given in full and in one life, and binds its replica as long as that
    /// votes, also if it loses its log.
    PromiseBinds = "promise-binds", "docs/recovery-without-a-log.md: promises bind; Michael et al. 2017";
    /// When a replica that lost its log votes again, enough others know the life in which it does, and keep knowing it.
    LivesRemembered = "lives-remembered", "docs/recovery-without-a-log.md: lives are remembered";
    /// Only its owner leads in a ballot, and only in one life.
    OneLeader = "one-leader-a-ballot", "Santos 2012, section 7.2: k comes from a private pool of the proposer";
    /// At most one batch is proposed for a slot in one ballot.
    OneProposal = "one-proposal-a-ballot", "Santos 2012, section 7.4: at most one value per (view, i)";
    /// Once a batch is chosen, every proposal for that slot in a higher ballot has that batch.
    ChosenStays = "chosen-stays", "Santos 2012, section 7.2: propose the one with the highest k'";
    /// A replica that gives up its estimate of a slot after a round in which a quorum said the same adopts that.
    EstimateFollows = "estimate-follows-quorum", "Santos 2012, Algorithm 3.1, line 8: the most frequent value of those heard";
    /// Every letter of a round, also an empty one, is covered by a durable promise of its phase.
    LetterPromised = "letter-is-promised", "docs/rounds.md: nothing of a phase is said before the phase is promised";
    /// A replica says one thing to another in a round, in all its lives.
    OneLetter = "one-letter-a-round", "Santos 2012, section 3.1: in a round a process sends what its sending function says";
    /// The estimate of a replica goes to one coordinator in a phase.
    OneCoordinator = "one-coordinator-a-phase", "Santos 2012, section 4.3: an estimate goes to the coordinator alone";
    /// Every delivered batch, and so every acknowledged command, was durably accepted by a quorum in one ballot.
    QuorumDurable = "quorum-durable", "docs/operating.md: what survives with each durability; Benz 2013, corrected";
    /// Every record that refers to a batch comes after a record of the same log that holds the batch.
    BatchesHeld = "batches-held", "docs/dissemination.md: an inner protocol never sees a reference whose batch is not here";
    /// A replica says that it holds a batch only once it does so durably, and that it has delivered a slot only once it
    /// has.
    HeldIsDurable = "held-is-durable", "Santos 2012, section 10.3.2: a replica acknowledges what it has stored";
    /// A leader proposes a reference only once a quorum of the voters has held its batch durably.
    StableBeforeProposed = "stable-before-proposed", "Santos 2012, section 10.3.2: a stable id is held by f+1";
    /// A leader proposes a reference in one slot, unless it repeats what earlier ballots proposed in several.
    ProposedOnce = "proposed-once", "Santos 2012, section 10.3.2: each stable id is proposed exactly once in a view";
    /// A batch that is ordered by reference counts once. A reference that does not count is to a batch that was ordered
    /// before, or that its origin has given up.
    OrderedOnce = "ordered-once", "docs/dissemination.md: a reference that is decided twice counts once";
    /// A prefix that a replica announces as decided is decided.
    AnnouncedDecided = "announced-is-decided", "Santos 2012, section 7.2: the decision message";
    /// In a slot for which its own ballot proposed a batch, a leader announces only that batch as decided.
    AnnouncedIsProposed = "announced-is-what-the-ballot-proposed", "synod_consensus::Protocol: what a replica says in ballot b is true of ballot b";
    /// A decision that a leader announces, or a promise reports, in a ballot was made in that ballot or in a lower one.
    NothingFromAbove = "nothing-from-above", "synod_consensus::Protocol: a replica that learns what ballot c decided promises c first";
    /// A replica that delivers a slot names no lower ballot than the first that decided it, since others promise that
    /// ballot.
    DecidedBallot = "decided-ballot", "synod_consensus::Protocol: the ballot of a decision travels with it";
    /// Once a follower has adopted its leader's sequence, both hold the same elements.
    SyncedPrefix = "synced-prefix", "Ng 2020, section 2.4.2: after AcceptSync the follower's sequence is the leader's";
    /// A leader never removes an entry from its log.
    LeaderAppendOnly = "leader-append-only", "Ongaro 2014, figure 3.2: Leader Append-Only";
    /// Entries of one slot and one term are equal, and so are the logs before them.
    LogMatching = "log-matching", "Ongaro 2014, figure 3.2: Log Matching";
    /// A leader holds every entry that was committed before.
    LeaderCompleteness = "leader-completeness", "Ongaro 2014, figure 3.2: Leader Completeness";
    /// All replicas execute the batches of merged groups in the order of their keys, which the decided logs determine.
    CommonOrder = "common-order", "Benz 2013, section 2.4: a deterministic merge";
    /// The place of a merged group that a replica knows is the one that its log says.
    PlaceOfLog = "place-of-the-log", "Benz 2013, corrected: issued slots are a function of the decided log";
    /// A message leaves once its own record is durable, and not later; those whose records become durable together
    /// leave in the order in which they were sent.
    GateOrder = "gate-order", "docs/decisions/0028-a-host-without-threads.md: a message waits for its own record and for no other's";
    /// A replica takes part in an epoch only once its node has written down who the members are.
    MembersFirst = "members-first", "crates/host/src/lib.rs, duty 2: members are written down before anything that follows them leaves";
    /// Within a life the ballot, the decided prefix and the executed prefix never go back.
    Monotone = "monotone", "Santos 2012, section 7.4: view never decreases";
    /// Queues, windows and logs in memory stay within the limits that their settings document.
    Bounded = "bounded-memory", "ARCHITECTURE.md: every queue is bounded in bytes";
    /// A snapshot holds executed slots only, and the log forgets only what a durable snapshot holds.
    SnapshotCovers = "snapshot-covers", "Santos 2012, section 7.6: only instances not executed stay in the log";
    /// The slot that stands for the backup with which a group begins is in no log, and nobody delivers it.
    BackupUnordered = "backup-unordered", "crates/node/src/restore.rs: nobody orders that slot";
    /// All replicas that delivered the same slots are in the same group; there is one group a version and an epoch.
    OneGroup = "one-group-a-version", "Ng 2020, section 2.4.3: every replica sees the same stop-sign in the same slot";
    /// Nothing that an epoch decides after its end is delivered.
    VoidAfterTheEnd = "void-after-the-end", "ARCHITECTURE.md: nothing that an epoch decides after its stop-sign is delivered";
    /// Once a replica has written that it entered an epoch, it sends nothing in an older one.
    NoWayBack = "no-way-back", "Ng 2020, section 4.4: a stopped configuration decides nothing any more";
    /// A replica that promises, votes or leads in an epoch has durably entered it.
    EnteredFirst = "entered-first", "ARCHITECTURE.md: a replica sends nothing in an epoch before it has written that it entered it";
    /// A replica that sends messages in an epoch holds everything that was decided before it.
    WholePrefix = "whole-prefix", "Ng 2020, section 4.4.2: a server starts once it has the log of the earlier ones";
    /// Only the voters of an epoch promise and vote in it.
    VotersOnly = "voters-only", "Ng 2020, section 2.4.3: a configuration is a set of servers of its own";
    /// No two members ever have the same id.
    IdsOnce = "ids-once", "ARCHITECTURE.md: an id is given once";
    /// A group that follows another never goes back to an older member set.
    FollowsForward = "follows-forward", "docs/epochs.md: no group goes back to an older member set";
    /// A group that follows has the members that the other group had in the version that it follows, and voters that
    /// leave once a learner has taken their place.
    MembersOfVersion = "members-of-a-version", "docs/epochs.md: members of several groups";
    /// A replica that takes no part in a group, although it is a member of the cluster, runs nothing of its protocol.
    AwayIsSilent = "away-is-silent", "docs/epochs.md: groups with voters of their own";
    /// All messages under an id that other replicas accept come from replicas with one birth.
    OneBirth = "one-birth-an-id", "docs/identity.md: a replica is its id and its birth";
    /// The replicated clock advances at most as fast as the fastest clock of a replica, plus one bounded step for every
    /// jump of such a clock.
    ClockNotFast = "clock-not-fast", "crates/replica/src/clock.rs: a tick measures from when its instant was seen";
    /// No replica ends a lease before its time to live has gone by, as the fastest clock of a replica measures it,
    /// since the first replica executed its grant or its last renewal.
    LeaseNotEarly = "lease-not-early", "docs/leases.md: no replica ends a lease early";
    /// A lease takes its keys with it, all at one revision, and no others.
    LeaseTakesItsKeys = "lease-takes-its-keys", "docs/leases.md: the keys that were put with it are deleted, all at one revision";
    /// Once faults have stopped, a lease that nobody renews ends soon after its time.
    LeaseEnds = "lease-ends", "docs/leases.md: a lease ends soon after its time";
    /// Those who watch are told what the log says of their keys: each revision once, as a whole, in order, and nothing
    /// else, also if they go on at another replica.
    WatchTold = "watch-told", "docs/watches.md: what a client can rely on";
    /// A watch of what is compacted is told that, and nothing else; no other watch is.
    WatchCompacted = "watch-compacted", "docs/watches.md: a watch of revisions that are compacted ends";
    /// A caretaker compacts only revisions that are as old as the policy says, and that are not to be kept.
    CompactsWhatIsOld = "compacts-what-is-old", "docs/etcd-flags.md: --auto-compaction-mode and --auto-compaction-retention as etcd's";
    /// No member is called corrupt that has the state of the log.
    SoundMembers = "sound-members", "docs/operating.md: upkeep";
    /// No message is refused for its size: every message fits the frame that the replicas' settings demand.
    FitsAFrame = "fits-a-frame", "crates/replica/src/settings.rs: the largest message";
    /// A replica that was removed ends its service only once a quorum of its successors has durably gone on.
    RetiredLast = "retired-last", "ARCHITECTURE.md: a removed replica ends its service only when a quorum of its successors has entered the epoch";
    /// The clients' history is linearizable.
    Linearizable = "linearizable", "Herlihy and Wing 1990: linearizability";
    /// While only some links work and some replica reaches a quorum, one such replica leads and serves within four
    /// election time-outs, and goes on. This is checked for elections that promise it.
    ServesWhenConnected = "serves-when-connected", "Driftwood 2023, section 2.3.5: partial partitions leave no stable leader";
    /// Once faults stop, a leader that is chosen by latency is within twelve tolerances of the best majority time, each
    /// hand-over is to a better member, and leadership comes to rest.
    LeadsNearby = "leads-nearby", "Santos 2012, section 6.4: Proposition 6.2 and Corollary 6.1";
    /// Once faults stop, a write and a read succeed at every replica within a bound, and replicas converge.
    Liveness = "liveness", "docs/elections.md: some replica serves soon";
    /// In each stretch of five seconds after the last fault in which at least sixteen commands were executed, at
    /// least half of them were answered before their clients had given up.
    Goodput = "goodput", "docs/dissemination.md: more than can be ordered";
    /// While nobody asks for anything, merged groups order nothing but ticks of the clock, and skip no more for these
    /// than they must.
    Idle = "idle", "Benz 2013, section 5.8 of the extract: follow and demand send nothing when all groups are idle";
    /// Nothing waits forever: once clients send no more requests, no replica keeps a read, a command, a change, a batch
    /// to execute or a message that waits for its disk.
    NothingWaits = "nothing-waits", "ARCHITECTURE.md: every queue is bounded; a request keeps its place until it is done or given up";
    /// A start finds everything that was durable in the files, and a prefix of the rest, each record as it was written.
    /// Otherwise it reports a loss, and the files were harmed.
    FilesKeep = "files-keep", "crates/storage/src/lib.rs: guarantees";
    /// Everything that a replica sends and writes can be decoded, and no replica panics.
    Sound = "sound", "crates/transport/src/lib.rs: bad input costs its connection and nothing else";
}

impl Invariant {
    /// Whether a violation shows at the event that caused it, and not only over the whole run.
    #[must_use]
    pub fn is_seen_at_once(self) -> bool {
        use Invariant::{
            Goodput, Idle, LeadsNearby, LeaseEnds, Linearizable, Liveness, NothingWaits, ServesWhenConnected,
        };
        !matches!(
            self,
            Goodput
                | Idle
                | LeadsNearby
                | LeaseEnds
                | Linearizable
                | Liveness
                | NothingWaits
                | ServesWhenConnected
        )
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A violation of an invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.invariant, self.detail, self.invariant.source())
    }
}

impl std::error::Error for Violation {}

/// What a check says.
pub type Checked = Result<(), Violation>;

/// Demands something; `detail` is only made if it does not hold.
pub(crate) fn demand(holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Violation { invariant, detail: detail() }) }
}
