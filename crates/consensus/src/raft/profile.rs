//! What is known of Raft before it runs, and its options.

use std::time::Duration;

use super::Raft;
use super::driftwood::{INTERVAL_MIN, Merge};
use super::planted::Bug as Own;
use crate::{
    Bug, Dissemination, ElectionKind, Threshold,
    options::choice,
    overrides::{Key, ON_OFF, Serves, chosen, on_off},
    registry::{Profile, Survives},
};

choice! {
    /// How a leader's entries reach the other voters, and how it is found out that they did (`docs/driftwood.md`). All
    /// replicas of an epoch do it in the same way.
    #[derive(Default)]
    Replication, "replication" {
        #[default]
        /// The leader sends each follower what it lacks, and each answers the leader.
        Direct = "direct",
        /// The same, with a message for each entry and follower: Raft as Driftwood 2023 compares itself with it.
        Unbatched = "unbatched",
        /// The leader begins rounds of gossip, and each follower answers the leader: version 1 of Driftwood 2023.
        GossipReplies = "gossip-replies",
        /// The leader begins rounds of gossip, which carry what each replica knows of how far all logs go. Nobody
        /// answers, and every replica finds out by itself what is committed: version 2.
        GossipStatus = "gossip-status",
    }
}

impl Replication {
    /// Whether the leader begins rounds of gossip.
    #[must_use]
    pub fn gossips(self) -> bool {
        matches!(self, Replication::GossipReplies | Replication::GossipStatus)
    }
}

/// The options of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// How many messages with entries one follower may have unanswered; at least 1. Entries that wait for an
    /// answer leave together.
    pub inflight_max: usize,
    /// Bytes of batches in these messages; one message may always leave.
    pub inflight_bytes_max: usize,
    /// Bytes of batches in one message; one entry may always leave.
    pub append_bytes_max: usize,
    /// How entries reach the voters.
    pub replication: Replication,
    /// To how many replicas each replica sends a round of gossip; `None` for the logarithm of the number of voters, and
    /// at least 2.
    pub round_fan_out: Option<u8>,
    /// The time from one round of gossip to the next, which should be longer than a round takes to reach all; `None`
    /// if the leader finds it out by the time that rounds take.
    pub round_interval: Option<Duration>,
    /// How commit statuses are merged.
    pub status_merge: Merge,
    /// How often a replica tells others of its commit status between two rounds, when it has learned something.
    pub status_echoes: u8,
    /// Whether a leader gives up if it hears no quorum of voters for an election time-out, or decides nothing although
    /// it should (CheckQuorum). Without that a leader whose followers hear it, and which does not hear them, leads for
    /// as long as that lasts; it is there to be measured.
    pub check_quorum: bool,
    /// Whether votes are asked for, and gathered, by gossip as well: then a candidate needs no link to a majority.
    pub vote_gossip: bool,
    /// Whether a replica whose log a round does not fit asks the replica that passed the round on, and not the leader.
    pub peer_repair: bool,
    /// A round whose entries have more bytes than this is passed on without them: it names the last one, and a replica
    /// that lacks them asks the replica that passed it on. `None` if entries travel with rounds.
    pub lazy_push: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            inflight_max: 64,
            inflight_bytes_max: 8 << 20,
            append_bytes_max: 1 << 20,
            replication: Replication::default(),
            round_fan_out: None,
            round_interval: Some(Duration::from_millis(1)),
            status_merge: Merge::default(),
            status_echoes: 1,
            check_quorum: true,
            vote_gossip: false,
            peer_repair: false,
            lazy_push: None,
        }
    }
}

/// The shortest and the longest time from one round to the next.
const INTERVALS: std::ops::RangeInclusive<Duration> = INTERVAL_MIN..=Duration::from_secs(1);

/// `auto`, or a time such as `300us` or `2ms`.
fn interval(text: &str) -> Option<Option<Duration>> {
    if text == "auto" {
        return Some(None);
    }
    let number = |unit| text.strip_suffix(unit)?.parse().ok();
    let time = number("us").map(Duration::from_micros).or_else(|| number("ms").map(Duration::from_millis));
    time.filter(|time| INTERVALS.contains(time)).map(Some)
}

/// `auto`, or a number from 1 on.
fn fan_out(text: &str) -> Option<Option<u8>> {
    match text {
        "auto" => Some(None),
        _ => {
            text.parse().ok().filter(|count| (1..crate::MEMBERS_MAX).contains(&usize::from(*count))).map(Some)
        }
    }
}

/// `off`, or a number of bytes.
fn lazy_push(text: &str) -> Option<Option<u32>> {
    match text {
        "off" => Some(None),
        _ => text.parse().ok().filter(|bytes| *bytes <= 1 << 20).map(Some),
    }
}

const KEYS: &[Key] = &[
    chosen!(
        "replication",
        "direct, unbatched, gossip-replies, gossip-status",
        raft.replication,
        Serves::Only {
            values: &["direct", "gossip-replies", "gossip-status"],
            why: "it is the document's baseline, with a message for each entry and follower",
        }
    ),
    chosen!(
        "status-merge",
        "vec, lownew, print",
        raft.status_merge,
        Serves::Only {
            values: &["vec"],
            why: "lownew and print are the document's merges with bitmaps, and print stalls where one replica is the only \
                  link between others",
        }
    ),
    Key {
        name: "round-interval",
        accepted: "auto, or 50us to 1000ms",
        set: |options, value| interval(value).map(|time| options.raft.round_interval = time).is_some(),
        shared: None,
        serves: Serves::All,
    },
    Key {
        name: "round-fan-out",
        accepted: "auto, or 1 to 126 replicas",
        set: |options, value| fan_out(value).map(|count| options.raft.round_fan_out = count).is_some(),
        shared: None,
        serves: Serves::Only {
            values: &["auto"],
            why: "the number of voters says to how many replicas a round has to go",
        },
    },
    Key {
        name: "status-echoes",
        accepted: "0 to 3",
        set: |options, value| {
            let count = value.parse().ok().filter(|count| *count <= ECHOES_MAX);
            count.map(|count| options.raft.status_echoes = count).is_some()
        },
        shared: None,
        serves: Serves::Only {
            values: &["1"],
            why: "one echo a round was measured to be the best (docs/decisions/0024-one-echo.md)",
        },
    },
    Key {
        name: "check-quorum",
        accepted: ON_OFF,
        set: |options, value| on_off(&mut options.raft.check_quorum, value),
        shared: None,
        serves: Serves::Only {
            values: &["on"],
            why: "without it a leader that others hear, and that hears nobody, leads on and decides nothing",
        },
    },
    Key {
        name: "vote-gossip",
        accepted: ON_OFF,
        set: |options, value| on_off(&mut options.raft.vote_gossip, value),
        shared: None,
        serves: Serves::All,
    },
    Key {
        name: "peer-repair",
        accepted: ON_OFF,
        set: |options, value| on_off(&mut options.raft.peer_repair, value),
        shared: None,
        serves: Serves::All,
    },
    Key {
        name: "lazy-push",
        accepted: "off, or 0 to 1048576 bytes",
        set: |options, value| lazy_push(value).map(|bytes| options.raft.lazy_push = bytes).is_some(),
        shared: None,
        serves: Serves::All,
    },
];

const ECHOES_MAX: u8 = 3;

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Randomized, ElectionKind::Latency],
    disseminations: Dissemination::EVERY,
    changes_voters_itself: true,
    has_leader: true,
    every_replica_proposes: false,
    recovers_itself: false,
    has_terms: true,
    fills_slots_alone: false,
    promises_sequence: false,
    times_answers: |_| false,
    survives: Survives::ALL,
    page_bytes_max: |options| options.raft.append_bytes_max,
    threshold: |_| Threshold::Majority,
    keys: KEYS,
    options_to_try: &[
        "window-max=2",
        "replication=gossip-replies",
        "replication=gossip-status,vote-gossip=on,status-echoes=1,peer-repair=on",
    ],
    laboratory: None,
    bugs: &[
        Bug::Raft(Own::VoteTwice),
        Bug::Raft(Own::VoteByLength),
        Bug::Raft(Own::VoteBeforeDurable),
        Bug::Raft(Own::ForgetVote),
        Bug::Raft(Own::AckBeforeDurable),
        Bug::Raft(Own::TruncateAlways),
        Bug::Raft(Own::CountOldTerms),
    ],
    start: |options, members, restart, now, effects| {
        Box::new(Raft::start(options, members, restart, now, effects))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Overrides, ProtocolKind};

    #[test]
    fn a_group_fixes_how_entries_reach_its_voters() {
        let mut options = Options::of(ProtocolKind::Raft);
        let given: Overrides = "replication=gossip-status,round-interval=300us,round-fan-out=3"
            .parse()
            .expect("they are options");
        given.apply(&mut options);
        let raft = options.raft;
        assert_eq!((raft.replication, raft.round_fan_out), (Replication::GossipStatus, Some(3)));
        assert_eq!(raft.round_interval, Some(Duration::from_micros(300)));
        let other: Overrides = "round-interval=auto,lazy-push=256".parse().expect("they are options");
        other.apply(&mut options);
        assert_eq!((options.raft.round_interval, options.raft.lazy_push), (None, Some(256)));
        assert_eq!(Overrides::shared(&options).to_string(), "replication=gossip-status");
        let why = given.check(ProtocolKind::MultiPaxos).expect_err("it has leaders that send").to_string();
        assert!(why.contains("does not go with multipaxos"), "{why}");
        for wrong in [
            "replication=gossip",
            "round-interval=1us",
            "round-interval=7",
            "round-fan-out=0",
            "lazy-push=on",
        ] {
            let why = wrong.parse::<Overrides>().expect_err("no value").to_string();
            assert!(why.contains("accepted: "), "{why}");
        }
    }
}
