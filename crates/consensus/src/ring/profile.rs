//! What is known of the ring before it runs, and its options.

use super::{Ring, RingLearners, RingOrder, RingVoters, planted::Bug as Own};
use crate::{
    Bug, Dissemination, ElectionKind, Options, Overrides, Threshold,
    options::choice,
    overrides::{Key, Serves, Shared, chosen},
    registry::{Profile, Survives},
};

choice! {
    /// Which member makes a decision of the votes.
    #[derive(Default)]
    RingDecision, "member that decides" {
        #[default]
        /// The first at which they are a quorum.
        Quorum = "quorum",
        /// The last of the ring, before the coordinator, as in Benz 2013, section 2.3.
        Last = "last",
    }
}

/// The options of the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Which member makes a decision of the votes.
    pub decision: RingDecision,
    /// In which order the members stand.
    pub order: RingOrder,
    /// What the voters do in the ring.
    pub voters: RingVoters,
    /// What the learners do in the ring.
    pub learners: RingLearners,
    /// How many slots a coordinator asks about at a time before it proposes in them (Benz 2013:
    /// `p1_preexecution_number`); none to ask about all later slots at once.
    pub reserve: Option<u16>,
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot, ElectionKind::Latency],
    disseminations: Dissemination::EVERY,
    changes_voters_itself: false,
    has_leader: true,
    every_replica_proposes: true,
    recovers_itself: false,
    has_terms: false,
    fills_slots_alone: true,
    promises_sequence: false,
    times_answers: |options| options.ring.order == RingOrder::Measured,
    survives: Survives::ALL,
    page_bytes_max: |options| options.page_bytes_max,
    threshold: |_| Threshold::Majority,
    keys: &[
        chosen!(
            "ring-decision",
            "quorum, last",
            ring.decision,
            Serves::Only {
                values: &["quorum"],
                why: "where the document's last acceptor decides, each decision waits for more hops and for the slowest disk",
            }
        ),
        chosen!("ring-order", "role, measured", ring.order),
        chosen!("ring-voters", "propose, accept", ring.voters),
        chosen!("ring-learners", "catch-up, learn, propose", ring.learners),
        Key {
            name: "ring-reserve",
            accepted: "off, or 1 to 65535 slots",
            set: |options, value| {
                let reserve = match value {
                    "off" => Some(None),
                    _ => value.parse().ok().filter(|&slots| slots > 0).map(Some),
                };
                reserve.map(|reserve| options.ring.reserve = reserve).is_some()
            },
            shared: Some(Shared {
                value: |options| options.ring.reserve.map(|slots| slots.to_string()),
                unset: |options| options.ring.reserve = None,
            }),
            serves: Serves::Only {
                values: &["off"],
                why: "the document reserves slots in ranges, and one question for all slots does the same with fewer",
            },
        },
    ],
    options_to_try: &[
        "window-max=1",
        "ring-decision=last",
        "ring-order=measured",
        "ring-reserve=1",
        "ring-learners=propose",
        "ring-voters=accept,ring-learners=learn",
    ],
    laboratory: None,
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::ExecuteRetryTwice,
        Bug::ReadWithoutConfirmation,
        Bug::VoteWithAmnesia,
        Bug::ReuseBallot,
        Bug::TrimPastSnapshot,
        Bug::ForgetSessionsInSnapshot,
        Bug::Ring(Own::CountVotes),
        Bug::Ring(Own::DecideEarly),
        Bug::Ring(Own::PassWithOwn),
        Bug::Ring(Own::VoteWithoutBytes),
        Bug::Ring(Own::AdoptLowestBallot),
        Bug::Ring(Own::DropAcceptedValue),
        Bug::Ring(Own::DecideAcrossBallots),
        Bug::Ring(Own::TakeRangeForAll),
        Bug::Ring(Own::LearnerVotes),
        Bug::Ring(Own::KeepAcceptedValue),
        Bug::Ring(Own::ProposeBelowPrefix),
    ],
    start: |options, members, restart, now, effects| {
        Box::new(Ring::start(options, members, restart, now, effects))
    },
};

impl Overrides {
    /// Whether learners run the ring, too: they have a place in it, and no vote.
    #[must_use]
    pub fn put_learners_on_ring(&self) -> bool {
        let mut options = Options::default();
        self.apply(&mut options);
        options.ring.learners != RingLearners::CatchUp
    }
}
