//! A protocol that names no leader: commands are routed, and what one replica has to do for all is done, all the same.

#[path = "../examples/fixed_leader/protocol.rs"]
#[allow(dead_code, reason = "its registration is for others")]
mod fixed_leader;

use fixed_leader::{FIXED_LEADER, FixedLeader, Message};
use synod_consensus::{
    Combination, Dissemination, Effect, Effects, ElectionKind, Input, LeaderView, Members, Options, Outside,
    Protocol, ProtocolKind, Restart, Role, Route, SlotRecord, Status, Survives,
};
use synod_sim::{
    Coverage,
    plan::{Family, Plan},
    scenario,
};
use synod_wire::{Ballot, Batch, Durability, ReplicaId, Time};

static LEADERLESS: Outside = Outside::new::<Message, SlotRecord>(
    "leaderless",
    &[ElectionKind::None],
    Survives::NOTHING_ELSE,
    |options, members, restart, now, effects| {
        Box::new(Leaderless::start(options, members, restart, now, effects))
    },
)
.without_leader();

/// The fixed leader without its name: nobody says that it leads, but commands go to it.
#[derive(Clone, Debug)]
struct Leaderless {
    inner: Box<dyn Protocol>,
    lowest: ReplicaId,
}

impl Leaderless {
    fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Leaderless {
        let lowest = members.ids()[0];
        let said: Vec<Effect> = effects.drain().collect();
        let inner = FixedLeader::start(options, members, restart, now, effects);
        let begun = Leaderless { inner, lowest };
        hide_leader(said, effects);
        // Nothing else would tell where commands go.
        effects.push(Effect::Leader(begun.status().view));
        begun
    }
}

/// Puts the effects that were there before in front, and takes the leader out of the new ones.
fn hide_leader(said: Vec<Effect>, effects: &mut Effects) {
    let new: Vec<Effect> = effects.drain().collect();
    said.into_iter().for_each(|effect| effects.push(effect));
    for effect in new {
        effects.push(match effect {
            Effect::Leader(view) => Effect::Leader(LeaderView { leader: None, ..view }),
            effect => effect,
        });
    }
}

impl Protocol for Leaderless {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let said = effects.drain().collect();
        self.inner.handle(now, input, effects);
        hide_leader(said, effects);
    }

    fn promised(&self) -> Ballot {
        self.inner.promised()
    }

    fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.inner.promise(now, ballot, effects);
    }

    fn options(&self) -> &Options {
        self.inner.options()
    }

    fn flush(&mut self, now: Time, effects: &mut Effects) {
        self.inner.flush(now, effects);
    }

    fn room(&self) -> usize {
        self.inner.room()
    }

    fn route(&self) -> Route {
        Route::To(self.lowest)
    }

    fn caretaker(&self) -> Option<ReplicaId> {
        Some(self.lowest)
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        self.inner.for_each_proposal(see);
    }

    fn is_congested(&self) -> bool {
        self.inner.is_congested()
    }

    fn status(&self) -> Status {
        let status = self.inner.status();
        let role = if status.role == Role::Leader { Role::Follower } else { status.role };
        Status { role, view: LeaderView { leader: None, ..status.view }, ..status }
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        self.inner.answers(now, voter)
    }
}

fn registered() -> ProtocolKind {
    FIXED_LEADER.register().expect("its messages go under its name");
    LEADERLESS.register().expect("no other protocol has the name")
}

#[test]
fn without_a_leader_the_clock_advances_and_learners_are_promoted() {
    let kind = registered();
    let (mut coverage, mut operations) = (Coverage::default(), 0);
    for seed in 0..50 {
        let plan = Plan::draw_general(seed, kind, ElectionKind::None).of_family(Family::Change);
        let outcome =
            synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(kind, None)));
        operations += outcome.operations;
        coverage.add(&outcome.coverage);
    }
    assert!(operations > 25 * 50, "{operations}");
    assert!(coverage.sessions_expired > 0, "the clock stands still: {coverage}");
    assert!(coverage.promotions >= 50, "{coverage}");
    assert!(coverage.leases_ended_with_keys > 0 && coverage.leases_restarted > 0, "{coverage}");
    assert!(coverage.events_told > 100 && coverage.watches_from_history > 0, "{coverage}");
}

/// Where every replica disseminates, a leader has to say in which order.
#[test]
fn a_protocol_without_a_leader_goes_with_no_dissemination_that_needs_one() {
    let (protocol, election) = (registered(), ElectionKind::None);
    let check = |dissemination| Combination::of(protocol, election, dissemination, Durability::Sync).check();
    let error = check(Dissemination::Balanced).unwrap_err().to_string();
    assert!(
        error.contains("does not go with leaderless") && error.contains("accepted: leader, references"),
        "{error}"
    );
    assert!(check(Dissemination::Leader).is_ok() && check(Dissemination::References).is_ok());
    for seed in 0..40 {
        let dissemination = Plan::draw(seed, protocol).settings.consensus.dissemination;
        assert_ne!(dissemination, Dissemination::Balanced);
    }
}

/// A change of the group, a read and a command, each at a replica that has to pass it on.
#[test]
fn whatever_a_replica_is_asked_goes_to_the_one_that_the_protocol_names() {
    let kind = registered();
    let cast = scenario::CASTS.iter().find(|cast| cast.protocol == kind).expect("it is registered");
    let story = "for: leaderless\n\n> cluster 3 clock-interval=1s\n> run 100ms\n> put 3 k1=7\n> run 100ms\n> get 2 k1\n\
                 > run 100ms\n> member 2 add\n> run 5s\n> group 3\n> peek 4\n";
    let played = scenario::play(story, cast).unwrap_or_else(|error| panic!("{error}"));
    let ends = "> group 3\n    version 3, epoch e2: r1, r2, r3, r4\n> peek 4\n    k1=7, revision 2\n";
    assert!(played.ends_with(ends) && played.contains("r4        delivers slot 7: clock"), "{played}");
    assert!(!played.contains("leads"), "{played}");
}
