//! The groups of a node, and the bursts in which their replicas are stepped: inputs first, then
//! deadlines that have passed and news of the other groups, then one flush of each group that was touched.
//!
//! ```text
//! step, step, ...   what came         turn   the rest of the burst         carry_out   what all of it causes
//! ```
//!
//! With merged groups a burst goes on after that: [`Host::skip`] lets idle groups follow busy ones.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use synod_replica::{
    Action, Clocked, Event, Follower, Group, Membership, MergedReads, Pace, Replica, RequestError, RequestId,
    SessionCommand,
};
use synod_wire::{Ballots, Batch, CommandKind, GroupId, Lsn, ReplicaId, Slot, Time};

use crate::{
    clients::{Commands, Queries},
    planted::{HostBug, has},
};

/// What a caller steps at most before what it caused leaves: it bounds the delay of the first input.
pub const BURST_MAX: usize = 512;

/// All groups are looked at that often, whether or not something touches them.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The part of a heartbeat's interval to whole multiples of which several groups round their timers, so that one
/// wake-up serves many.
const TIMERS_SHARE: u32 = 8;

/// The groups of a node, by their numbers. `C` stands for a client that waits for the outcome of a command, `Q` for a
/// query and its client.
#[derive(Debug)]
pub struct Host<C, Q> {
    me: ReplicaId,
    groups: Vec<Hosted<C, Q>>,
    /// When each of them wants to be stepped at the latest; apart, since all are looked at each time.
    deadlines: Vec<Time>,
    /// Those that the present burst has touched.
    touched: Vec<GroupId>,
    /// When all groups are looked at next.
    glance_at: Time,
    /// The version of the members that the groups which follow the first one were told of last.
    members_told: Option<u64>,
    /// The groups have one order, if they have.
    merged: Option<Merged<Q>>,
    /// Deadlines that are further away are rounded up to multiples of this, so that groups wake the node together.
    grid: Duration,
}

/// A replica as it begins, with what it wants done, and the last slot that is executed.
#[derive(Debug)]
pub struct Started {
    /// The replica.
    pub replica: Replica,
    /// What its start wants done.
    pub actions: Vec<Action>,
    /// The last record that is durable.
    pub durable: Lsn,
    /// The last slot that is executed.
    pub executed: Slot,
}

#[derive(Debug)]
struct Hosted<C, Q> {
    replica: Replica,
    actions: Vec<Action>,
    is_touched: bool,
    durable: Lsn,
    executed: Slot,
    /// What the replica was last told of the replicated clock.
    clock: Option<Clocked>,
    commands: Commands<C>,
    queries: Queries<Q>,
}

#[derive(Debug)]
struct Merged<Q> {
    pace: Pace,
    reads: MergedReads<Q>,
}

/// How far a group is on the disk and in execution, and what its replicated clock shows.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The last durable record.
    pub durable: Lsn,
    /// The last slot that is executed.
    pub executed: Slot,
    /// What the clock shows, read no later than the instant of the step.
    pub clock: Clocked,
}

/// What comes to a node.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are events, and a box each would cost more")]
pub enum Input<C, Q> {
    /// A peer, or another part of the node, has something for a group.
    Event(GroupId, Event),
    /// A client wants a command ordered.
    Command {
        /// Where.
        group: GroupId,
        /// What it is.
        kind: CommandKind,
        /// Its place in the client's session, if it has one.
        session: Option<SessionCommand>,
        /// The command.
        payload: Bytes,
        /// The client that waits for the outcome.
        client: C,
    },
    /// The program wants a command of upkeep ordered ([`Event::Upkeep`]).
    Upkeep {
        /// Where.
        group: GroupId,
        /// The command.
        payload: Bytes,
        /// The client that waits for the outcome.
        client: C,
    },
    /// A client asks. Queries of one burst share a confirmation, which is asked for when the burst ends.
    Query(GroupId, Q),
    /// The disk and the executor may be further than before.
    Progress(GroupId, Progress),
}

/// The state that a query must see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// It includes this slot of the group.
    Slot(Slot),
    /// It includes these slots of all groups.
    Slots(Vec<Slot>),
}

/// Something that a group wants done, with the clients whom it concerns.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are actions, and a box each would cost more")]
pub enum Effect<C, Q> {
    /// Execute a decided batch, and answer these of its commands, in the order of their places.
    Execute {
        /// Its slot.
        slot: Slot,
        /// The ballots with which it was delivered.
        ballots: Ballots,
        /// The batch.
        batch: Batch,
        /// Those who wait, each with the place of the command in the batch.
        clients: Vec<(usize, C)>,
    },
    /// Answer queries.
    Read(ReadAt, Vec<Q>),
    /// Queries cannot be answered.
    ReadFailed(Vec<Q>, RequestError),
    /// A command has failed, or its outcome will not be known here.
    CommandFailed(C, RequestError),
    /// Anything else that a replica wants done. Never what the other variants are for, and never a deadline.
    Action(Action),
}

impl<C, Q> Host<C, Q> {
    /// The groups of a node, whose leaders are heard of every `heartbeat`. `pace`: of groups that
    /// are merged into one order, when idle ones skip. All of them count as touched.
    #[must_use]
    pub fn new(me: ReplicaId, groups: Vec<Started>, pace: Option<Pace>, heartbeat: Duration) -> Host<C, Q> {
        let grid = if groups.len() > 1 { heartbeat / TIMERS_SHARE } else { Duration::ZERO };
        let host = |Started { replica, actions, durable, executed }| Hosted {
            replica,
            actions,
            is_touched: false,
            durable,
            executed,
            clock: None,
            commands: Commands::default(),
            queries: Queries::default(),
        };
        let groups: Vec<_> = groups.into_iter().map(host).collect();
        let mut host = Host {
            me,
            deadlines: vec![Time::ZERO; groups.len()],
            groups,
            touched: Vec::new(),
            glance_at: Time::ZERO,
            members_told: None,
            merged: pace.map(|pace| Merged { pace, reads: MergedReads::default() }),
            grid,
        };
        host.touch_all();
        host
    }

    /// The replica of a group.
    #[must_use]
    pub fn replica(&self, group: GroupId) -> &Replica {
        &self.groups[usize::from(group.0)].replica
    }

    /// The replicas, by the numbers of their groups.
    pub fn replicas(&self) -> impl ExactSizeIterator<Item = &Replica> + Clone {
        self.groups.iter().map(|hosted| &hosted.replica)
    }

    /// When [`Host::turn`] is due, whatever comes.
    #[must_use]
    pub fn due(&self) -> Time {
        let merge = self.merged.as_ref().map_or(Time::NEVER, |merged| merged.pace.due());
        self.deadlines.iter().copied().fold(merge.min(self.glance_at), Time::min)
    }

    /// When the replica of a group wants to be stepped at the latest.
    #[must_use]
    pub fn deadline(&self, group: GroupId) -> Time {
        self.deadlines[usize::from(group.0)]
    }

    /// A group wants a turn now.
    pub fn wake(&mut self, group: GroupId, now: Time) {
        self.deadlines[usize::from(group.0)] = now;
    }

    /// Takes in what has come.
    pub fn step(&mut self, now: Time, input: Input<C, Q>) {
        match input {
            Input::Event(group, event) => self.touch(group).step(now, event),
            Input::Command { group, kind, session, payload, client } => {
                let hosted = self.touch(group);
                let request = hosted.commands.insert(client);
                hosted.step(now, Event::Request { request, kind, session, payload });
            }
            Input::Upkeep { group, payload, client } => {
                let hosted = self.touch(group);
                let request = hosted.commands.insert(client);
                hosted.step(now, Event::Upkeep { request, payload });
            }
            Input::Query(group, query) => match &mut self.merged {
                // Of the common order, whichever group was asked.
                Some(merged) => merged.reads.query(query),
                None => self.touch(group).queries.push(query),
            },
            Input::Progress(group, progress) => self.touch(group).progress(now, progress),
        }
    }

    /// Something concerns every group.
    pub fn step_all(&mut self, now: Time, event: impl Fn() -> Event) {
        self.touch_all();
        self.groups.iter_mut().for_each(|hosted| hosted.step(now, event()));
    }

    /// Ends a burst of steps: lets deadlines pass, lets the groups know of each other, asks for the reads that have
    /// come, and flushes every group that was touched.
    pub fn turn(&mut self, now: Time) {
        if now >= self.glance_at {
            self.glance_at = now + GLANCE_INTERVAL;
            self.touch_all();
            self.tell_followers(now);
        }
        self.fire(now);
        self.tell_members(now);
        let count = self.groups.len();
        if let Some(read) = self.merged.as_mut().and_then(|merged| merged.reads.read(count)) {
            self.step_all(now, || Event::Read(read));
        }
        self.flush(now);
    }

    /// Flushes every group that was touched.
    pub fn flush(&mut self, now: Time) {
        for group in &self.touched {
            let hosted = &mut self.groups[usize::from(group.0)];
            if let Some(read) = hosted.queries.read() {
                hosted.step(now, Event::Read(read));
            }
            hosted.replica.flush(now, &mut hosted.actions);
        }
    }

    /// Has groups skip positions of the common order, if this replica takes care of them and others wait, or will. It
    /// comes after all that the burst wanted was carried out, and is carried out itself. Returns which groups skip, and
    /// to which positions.
    pub fn skip(&mut self, now: Time) -> Vec<(GroupId, u64)> {
        let Some(merged) = &mut self.merged else { return Vec::new() };
        let skips = merged.pace.skips(now, self.groups.iter().map(|hosted| &hosted.replica));
        for &(group, target) in &skips {
            self.touch(group).step(now, Event::Skip(target));
        }
        if !skips.is_empty() {
            self.flush(now);
        }
        skips
    }

    /// Hands out what the touched groups want done, each in its order. `now` is what deadlines are measured from.
    pub fn carry_out(&mut self, now: Time, mut effect: impl FnMut(GroupId, &Replica, Effect<C, Q>)) {
        for &group in &self.touched {
            let at = usize::from(group.0);
            let Hosted { replica, actions, commands, queries, .. } = &mut self.groups[at];
            if has(HostBug::MembersLast) {
                actions.sort_by_key(|action| matches!(action, Action::Group(_)));
            }
            for action in actions.drain(..) {
                let out = match action {
                    Action::Deadline(deadline) => {
                        self.deadlines[at] = rounded(now, deadline, self.grid);
                        continue;
                    }
                    Action::Execute { slot, ballots, batch, requests } => {
                        let clients = clients(commands, requests);
                        Some(Effect::Execute { slot, ballots, batch, clients })
                    }
                    Action::ReadAt { read, slot } => match &mut self.merged {
                        Some(merged) => {
                            let all = merged.reads.confirmed(group, read, slot);
                            all.map(|(slots, queries)| Effect::Read(ReadAt::Slots(slots), queries))
                        }
                        None => queries.remove(read).map(|queries| Effect::Read(ReadAt::Slot(slot), queries)),
                    },
                    Action::ReadFailed { read, error } => {
                        let failed = match &mut self.merged {
                            Some(merged) => merged.reads.failed(read),
                            None => queries.remove(read).unwrap_or_default(),
                        };
                        (!failed.is_empty()).then_some(Effect::ReadFailed(failed, error))
                    }
                    Action::RequestFailed { request, error } => {
                        commands.remove(request).map(|client| Effect::CommandFailed(client, error))
                    }
                    action => Some(Effect::Action(action)),
                };
                if let Some(out) = out {
                    effect(group, replica, out);
                }
            }
        }
    }

    /// The groups that the present burst has touched so far.
    #[must_use]
    pub fn touched(&self) -> &[GroupId] {
        &self.touched
    }

    /// The burst is over. Returns the groups that it has touched; [`Host::reuse`] takes the memory back.
    pub fn end(&mut self) -> Vec<GroupId> {
        let touched = std::mem::take(&mut self.touched);
        touched.iter().for_each(|group| self.groups[usize::from(group.0)].is_touched = false);
        touched
    }

    /// Takes back the memory of what [`Host::end`] returned.
    pub fn reuse(&mut self, mut touched: Vec<GroupId>) {
        if self.touched.is_empty() {
            touched.clear();
            self.touched = touched;
        }
    }

    /// The node stops: all clients that still wait for commands, and all queries.
    pub fn stop(&mut self) -> (Vec<C>, Vec<Q>) {
        let commands = self.groups.iter_mut().flat_map(|hosted| hosted.commands.take_all()).collect();
        let merged = self.merged.as_mut().map(|merged| std::mem::take(&mut merged.reads));
        let queries = self.groups.iter_mut().flat_map(|hosted| hosted.queries.take_all());
        (commands, queries.chain(merged.into_iter().flat_map(MergedReads::into_queries)).collect())
    }

    /// The group, which is flushed at the end of the burst.
    fn touch(&mut self, group: GroupId) -> &mut Hosted<C, Q> {
        let hosted = &mut self.groups[usize::from(group.0)];
        if !hosted.is_touched {
            hosted.is_touched = true;
            self.touched.push(group);
        }
        hosted
    }

    fn touch_all(&mut self) {
        for group in 0..self.groups.len() {
            self.touch(GroupId(group as u16));
        }
    }

    /// Steps the groups whose deadline has passed.
    fn fire(&mut self, now: Time) {
        for group in 0..self.groups.len() {
            if now >= self.deadlines[group] && !has(HostBug::SkipDeadlines) {
                self.deadlines[group] = Time::NEVER;
                self.touch(GroupId(group as u16)).step(now, Event::Timer);
            }
        }
    }

    /// Tells the groups that follow the first one, if its members have changed.
    fn tell_members(&mut self, now: Time) {
        let first = self.groups[0].replica.group();
        let Membership::Followed(version) = first.membership else { return };
        if self.members_told.replace(version) == Some(version) {
            return;
        }
        let Some(set) = first.member_set().map(Arc::new) else { return };
        for group in 1..self.groups.len() {
            self.touch(GroupId(group as u16)).step(now, Event::Members(Arc::clone(&set)));
        }
    }

    /// Tells the first group who votes in those that follow it.
    fn tell_followers(&mut self, now: Time) {
        if self.groups.len() > 1 {
            // What this node knows of a group in which it takes no part is old.
            let groups = self.groups[1..].iter().map(|hosted| hosted.replica.group());
            let followers = groups.filter(|group| !group.is_away(self.me)).map(Group::follower);
            let mut followers: Vec<Follower> = followers.collect();
            // Most are equal.
            followers.dedup();
            self.touch(GroupId::FIRST).step(now, Event::Followers(followers));
        }
    }
}

impl<C, Q> Hosted<C, Q> {
    fn step(&mut self, now: Time, event: Event) {
        self.replica.step(now, event, &mut self.actions);
    }

    fn progress(&mut self, now: Time, Progress { durable, executed, clock }: Progress) {
        if durable > self.durable {
            self.durable = durable;
            self.step(now, Event::Durable(durable));
        }
        // Of merged groups, another one may have executed what the state machine of all waits for now.
        if executed > self.executed || self.clock != Some(clock) {
            self.executed = self.executed.max(executed);
            self.clock = Some(clock);
            self.step(now, Event::Executed { slot: self.executed, clock });
        }
    }
}

/// The clients whose commands are in a batch, with their places.
fn clients<C>(commands: &mut Commands<C>, requests: Vec<(usize, RequestId)>) -> Vec<(usize, C)> {
    let client = |(place, request)| Some((place, commands.remove(request)?));
    requests.into_iter().filter_map(client).collect()
}

/// When to wake a group that wants to be stepped at `deadline`.
fn rounded(now: Time, deadline: Time, grid: Duration) -> Time {
    if grid.is_zero() || deadline == Time::NEVER || deadline.since(now) < grid {
        return deadline;
    }
    deadline.rounded_up(grid)
}

#[cfg(test)]
mod tests {
    use synod_replica::{Recovered, Settings, Skips, Take};
    use synod_wire::Incarnation;

    use super::*;

    const ME: ReplicaId = ReplicaId(1);
    const FIRST: GroupId = GroupId::FIRST;
    const SECOND: GroupId = GroupId(1);

    type Told = Effect<&'static str, &'static str>;

    /// A node that is the only member of its groups, with a disk and an executor that take no time.
    struct Lone {
        host: Host<&'static str, &'static str>,
        now: Time,
        durable: Vec<Lsn>,
        executed: Vec<Slot>,
    }

    impl Lone {
        fn new(groups: usize, merged: bool) -> Lone {
            let now = Time::ZERO + Duration::from_secs(3600);
            let start = |_| {
                let mut settings = Settings::default();
                settings.merged = merged;
                let recovered = Recovered {
                    records: Vec::new(),
                    last_lsn: Lsn::ZERO,
                    snapshot: None,
                    amnesia: false,
                    birth: 1,
                    incarnation: Incarnation(1),
                    nonce: 0,
                    met_all: true,
                };
                let (group, mut actions) = (Group::of(&settings.consensus, [ME]), Vec::new());
                let replica = Replica::start(settings, ME, group, recovered, now, &mut actions);
                Started { replica, actions, durable: Lsn::ZERO, executed: Slot::ZERO }
            };
            let pace = merged.then(|| Pace::new(Skips::Follow, Take::MIN, groups, now));
            let host = Host::new(ME, (0..groups).map(start).collect(), pace, Duration::ZERO);
            let (durable, executed) = (vec![Lsn::ZERO; groups], vec![Slot::ZERO; groups]);
            let mut lone = Lone { host, now, durable, executed };
            for _ in 0..100 {
                lone.burst();
            }
            lone
        }

        /// Time passes until something is due, and the burst ends; what it causes, but records and messages.
        fn burst(&mut self) -> Vec<(GroupId, Told)> {
            for at in 0..self.durable.len() {
                let (durable, executed, clock) = (self.durable[at], self.executed[at], Clocked::default());
                let progress = Progress { durable, executed, clock };
                self.host.step(self.now, Input::Progress(GroupId(at as u16), progress));
            }
            self.host.turn(self.now);
            let mut told = self.carry_out();
            self.host.skip(self.now);
            told.extend(self.carry_out());
            let touched = self.host.end();
            self.host.reuse(touched);
            self.pass(Duration::from_millis(20));
            told
        }

        /// Time passes until something is due, or this long.
        fn pass(&mut self, longest: Duration) {
            let soonest = self.now + Duration::from_micros(1);
            self.now = self.host.due().clamp(soonest, self.now + longest);
        }

        fn carry_out(&mut self) -> Vec<(GroupId, Told)> {
            let mut told = Vec::new();
            self.host.carry_out(self.now, |group, _, effect| match effect {
                Effect::Action(Action::Append { lsn, .. }) => self.durable[usize::from(group.0)] = lsn,
                Effect::Action(_) => {}
                Effect::Execute { slot, ref clients, .. } => {
                    self.executed[usize::from(group.0)] = slot;
                    if !clients.is_empty() {
                        told.push((group, effect));
                    }
                }
                effect => told.push((group, effect)),
            });
            told
        }

        fn bursts(&mut self) -> Vec<(GroupId, Told)> {
            (0..20).flat_map(|_| self.burst()).collect()
        }

        fn command(&mut self, group: GroupId, client: &'static str) {
            let (kind, payload) = (CommandKind::Apply, Bytes::from_static(b"x"));
            let command = Input::Command { group, kind, session: None, payload, client };
            self.host.step(self.now, command);
        }
    }

    #[test]
    fn a_client_comes_back_with_the_batch_that_has_its_command() {
        let mut lone = Lone::new(2, false);
        lone.command(SECOND, "a");
        lone.command(SECOND, "b");
        let told = lone.bursts();
        let [(SECOND, Effect::Execute { clients, batch, .. })] = &told[..] else { panic!("{told:?}") };
        assert_eq!((clients.as_slice(), batch.commands().count()), (&[(0, "a"), (1, "b")][..], 2));
        assert_eq!(lone.host.stop(), (vec![], vec![]));
    }

    #[test]
    fn the_queries_of_a_burst_are_answered_together_after_what_was_executed_before_them() {
        let mut lone = Lone::new(2, false);
        lone.command(FIRST, "writes");
        lone.bursts();
        let executed = lone.executed[0];
        ["a", "b"].into_iter().for_each(|query| lone.host.step(lone.now, Input::Query(FIRST, query)));
        let told = lone.bursts();
        let [(FIRST, Effect::Read(ReadAt::Slot(slot), queries))] = &told[..] else { panic!("{told:?}") };
        assert!(*slot >= executed && queries == &["a", "b"], "{told:?}");
    }

    #[test]
    fn a_query_of_merged_groups_asks_all_of_them_and_idle_ones_skip() {
        let mut lone = Lone::new(2, true);
        (0..5).for_each(|_| lone.command(SECOND, "writes"));
        let before = lone.executed[0];
        lone.bursts();
        assert!(lone.executed[0] > before, "the first group skips, since the other one waits for it");
        lone.host.step(lone.now, Input::Query(SECOND, "reads"));
        let told = lone.bursts();
        let [(_, Effect::Read(ReadAt::Slots(slots), queries))] = &told[..] else { panic!("{told:?}") };
        assert_eq!((slots.len(), queries.as_slice()), (2, &["reads"][..]));
    }

    #[test]
    fn those_who_wait_when_the_node_stops_are_known() {
        for merged in [false, true] {
            let mut lone = Lone::new(2, merged);
            lone.command(FIRST, "a");
            lone.command(SECOND, "b");
            lone.host.step(lone.now, Input::Query(SECOND, "c"));
            assert_eq!(lone.host.stop(), (vec!["a", "b"], vec!["c"]));
            assert_eq!(lone.host.stop(), (vec![], vec![]));
        }
    }

    #[test]
    fn only_what_was_touched_is_handed_out_and_all_groups_are_glanced_at() {
        let mut lone = Lone::new(3, false);
        let mut bursts = Vec::new();
        while bursts.iter().filter(|&&touched| touched == 3).count() < 3 {
            lone.host.turn(lone.now);
            lone.carry_out();
            let touched = lone.host.end();
            bursts.push(touched.len());
            lone.host.reuse(touched);
            assert!(lone.host.touched().is_empty());
            assert!(lone.host.due() <= lone.now + GLANCE_INTERVAL);
            lone.pass(GLANCE_INTERVAL);
        }
        lone.command(SECOND, "a");
        assert_eq!(lone.host.touched(), [SECOND]);
    }

    #[test]
    fn deadlines_that_are_far_away_come_together() {
        let (second, grid) = (Duration::from_secs(1), Duration::from_millis(100));
        let now = Time::ZERO + second * 10;
        let at = |millis| now + Duration::from_millis(millis);
        for (deadline, expected) in [(at(30), at(30)), (at(130), at(200)), (at(200), at(200))] {
            assert_eq!(rounded(now, deadline, grid), expected);
            assert_eq!(rounded(now, deadline, Duration::ZERO), deadline);
        }
        assert_eq!(rounded(now, Time::NEVER, grid), Time::NEVER);
    }
}
