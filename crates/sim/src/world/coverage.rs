//! Counts of what happened in a run: a world in which nothing happens would pass every check.

use std::fmt;

macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// What happened in a run, counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Coverage {
            /// Adds another run.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)+
            }

            /// Every count, with its name.
            #[must_use]
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name),)+]
            }
        }
    };
}

coverage! {
    /// Replicas that began to lead.
    elections = "elections",
    /// Crashes of replicas.
    crashes = "crashes",
    /// Pauses of replicas.
    pauses = "pauses",
    /// Crashes within a burst, when some of what it wanted was done.
    crashes_within = "crashes within a burst",
    /// Batches of which a part was executed in one turn.
    batches_in_parts = "batches executed in parts",
    /// Crashes when a part of a batch was executed.
    crashes_within_batches = "crashes within a batch",
    /// Replicas that were removed and are no peers of a node any more.
    peers_dropped = "removed peers let go of",
    /// Pauses that lasted for many time-outs.
    long_pauses = "long pauses",
    /// Clocks of replicas that jumped forward.
    jumps = "clock jumps",
    /// Partitions of the network.
    partitions = "partitions",
    /// Trials with only some links.
    trials = "trials",
    /// Trials that were not held, since the cluster did not work before.
    trials_skipped = "trials skipped",
    /// Cuts that leave a bridge, each with a leader on its smaller side.
    bridges = "bridges",
    /// Stalls of disks.
    stalls = "stalls",
    /// Logs lost or damaged.
    logs_lost = "logs lost",
    /// Damaged logs of which the rest proved something.
    logs_repaired = "logs repaired",
    /// Slots of damaged logs that were kept.
    slots_kept = "slots kept of damaged logs",
    /// Replicas that ended because their log could not be written.
    logs_failed = "logs that failed",
    /// Starts that a disk or a crash interrupted.
    starts_failed = "starts that failed",
    /// Machines that failed and lost votes for which the disk was not waited for, while promises stayed.
    votes_lost = "votes lost and promises kept",
    /// Replicas without which a group goes on that they may come back to.
    away = "replicas that stay away",
    /// Replicas that ended and must not start again.
    stopped = "replicas stopped for good",
    /// Replicas among these that were removed or replaced.
    stopped_replaced = "stopped replicas replaced",
    /// Newest snapshots lost at a crash.
    snapshots_damaged = "snapshots damaged",
    /// Replicas that lost their log and vote again.
    recoveries = "recoveries",
    /// Disks that were replaced by an older copy.
    copies_restored = "copies restored",
    /// How often a peer noticed such a copy.
    copies_found = "copies found out",
    /// Replicas that lost everything, and began as if they had never run.
    wiped = "replicas wiped",
    /// Groups that began with the state of a backup.
    backups = "groups begun with a backup",
    /// Replicas that joined later and lost everything.
    joiners_wiped = "joiners wiped",
    /// Of these, those that started again since nobody whom they asked knew that they vote.
    joined_unknown = "wiped joiners whose vote nobody knew whom they asked",
    /// Messages lost or dropped with their session.
    messages_lost = "messages lost",
    /// Messages that arrived damaged.
    messages_damaged = "messages damaged",
    /// How often a replica compared its history with another one's.
    histories_compared = "histories compared",
    /// Slots that replicas learned from others.
    slots_fetched = "slots fetched",
    /// Slots that replicas sent unsolicited to joining replicas.
    slots_pushed = "slots pushed",
    /// Snapshots taken.
    snapshots_taken = "snapshots taken",
    /// Snapshots installed from others.
    snapshots_installed = "snapshots installed",
    /// Log trims.
    trims = "trims",
    /// Commands that a session client sent again.
    retries = "session retries",
    /// Sessions that were gone when they were used.
    sessions_expired = "sessions expired",
    /// Commands that were sent again after their reply was gone.
    replies_gone = "replies gone",
    /// Commands of sessions that were refused, and sent again, because an earlier one was unanswered for too long.
    refused_far_ahead = "refused as too far ahead",
    /// Times when a replica accepted nothing, because too much waited for its executor or its disk.
    backlogs = "backlogs",
    /// Messages that were not sent because too much waited for a disk.
    sends_given_up = "sends given up",
    /// Requests that clients gave up right after they had sent them.
    requests_cancelled = "requests cancelled",
    /// Values that are large compared with the bounds on bytes.
    large_values = "large values",
    /// Linearizable reads answered by replicas that do not lead.
    follower_reads = "follower reads",
    /// Stale reads.
    stale_reads = "stale reads",
    /// Leases that the log ended by its clock.
    leases_ended = "leases ended",
    /// Leases among these that took keys with them.
    leases_ended_with_keys = "leases ended with keys",
    /// Leases that got their whole time again, since another replica moved the clock, or the log had stood still.
    leases_restarted = "leases started again",
    /// Renewals that were answered by a replica that did not lead.
    leases_renewed_by_followers = "leases renewed at followers",
    /// Watches that began.
    watches = "watches",
    /// Events that watchers were told.
    events_told = "events told",
    /// Watches that went on at another replica, or in another life, after a crash.
    watches_after_crash = "watches after a crash",
    /// Watches that were told what there had been before they began.
    watches_from_history = "watches of the past",
    /// Watches that were told what came after a snapshot from another replica had replaced the state.
    watches_after_snapshot = "watches over a snapshot",
    /// Watches that ended as compacted.
    watches_compacted = "watches compacted",
    /// Changes that an operator asked for.
    changes_asked = "changes asked",
    /// Answers that refused a change.
    changes_refused = "changes refused",
    /// Changes that were made, including those that replicas asked for themselves.
    changes_made = "changes made",
    /// Changes of a first group, which the simulated one follows.
    first_changes = "changes of a first group",
    /// Member sets of a first group that the simulated one followed.
    sets_followed = "member sets followed",
    /// Epochs begun.
    epochs = "epochs",
    /// Epochs begun with another protocol or election.
    reorderings = "reorderings",
    /// Changes of voters within an epoch.
    revotes = "changes of voters within an epoch",
    /// Changes among these after a replica had lost its log.
    revotes_after_loss = "changes of voters within an epoch after a lost log",
    /// Changes among the former for which both groups had to decide for a while.
    unsettled = "joint changes",
    /// Replicas that were added and started.
    joiners = "joiners",
    /// Learners that were promoted.
    promotions = "promotions",
    /// Voters that were removed or replaced.
    removals = "removals",
    /// Voters readmitted.
    readmissions = "readmissions",
    /// Starts of replicas that were told not to wait for members that had been removed.
    begun_without_all = "starts without all",
    /// Removed replicas that were no longer needed.
    retirements = "retirements",
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.counts().iter().map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&counts.join(", "))
    }
}
