//! The session table and the state machine: executes decided batches, each command once; those of one group, or those
//! of several groups in their common order ([`crate::Merge`]).

mod snapshot;

use std::{
    io::{self, Write},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::Bug;
use synod_wire::{Ballots, Batch, BatchBuilder, Command, CommandKind, GroupId, SessionId, Slot, Writer};

pub use self::snapshot::{Cut, ReadSnapshot, ReadSnapshotFrom, SNAPSHOT_FORMATS};
use crate::{
    Answer, Context, Group, History, Installed, Place, Refusal, RequestError, SnapshotInfo, StateMachine,
    Take, Tick, encode_reply,
    session::{SessionTable, Verdict, is_replica},
};

/// What the replicated clock shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocked {
    /// How much time went by since the log began, or less.
    pub shows: Duration,
    /// The time for which the state machine waits ([`StateMachine::waits_for`]).
    pub waits_for: Option<Duration>,
}

/// What became of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The state machine's reply, perhaps from the cache.
    Reply(Bytes),
    /// It was executed, and there is no reply, since nobody waits for one and none is kept.
    Unanswered,
    /// The command was not executed (now).
    Error(RequestError),
}

/// Applies decided batches to a state machine, in slot order.
#[derive(Debug)]
pub struct Executor<S> {
    machine: S,
    sessions: SessionTable,
    /// How far each group is, by its number.
    heads: Vec<Head>,
    /// Of several groups: how many batches of each come in a row.
    take: Option<Take>,
    /// Batches with something to execute that were executed, if there are several groups.
    order: u64,
    /// A batch was begun and has commands left.
    is_within_batch: bool,
    execute_repeats: bool,
    count_twice: bool,
    forgets_sessions: bool,
    changes_wrongly: Option<Bug>,
}

/// A batch that is being executed, in parts: a batch may hold thousands of commands, and a thread that also has other
/// things to do stops within it.
///
/// Between the parts the state is that of no slot: it has the effects of some commands of a slot and not of the others.
/// So nobody may look at it then. A snapshot of it would say that it holds the whole slot, whose other commands would
/// be lost; a query that waits for the slot would miss what was acknowledged there. The executor refuses both by a
/// panic, and who executes in parts does nothing else with it until [`Executor::go_on`] says that the batch is done.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    group: GroupId,
    at: Slot,
    /// Commands that are executed.
    done: usize,
    /// What became of them; of all, if nothing is left to execute.
    outcomes: Vec<Outcome>,
    is_done: bool,
}

impl Begun {
    /// What became of each command, in order, once all are executed.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes
    }
}

/// How far a group is executed.
#[derive(Debug)]
struct Head {
    /// Everything of the group through this slot is executed.
    applied: Slot,
    /// Of the slots through `applied`, as far as they are of the group's epoch.
    ballots: Ballots,
    /// The group after that slot.
    group: Group,
    /// What was decided through that slot.
    history: History,
    /// Of several groups: the sessions of replicas, which number what they propose in each group by itself. A single
    /// group has them in one table with those of clients.
    replicas: SessionTable,
}

impl Head {
    fn new(group: Group, history: History) -> Head {
        let replicas = SessionTable::new(group.limits.sessions);
        Head { applied: Slot::ZERO, ballots: Ballots::ZERO, group, history, replicas }
    }
}

impl<S: StateMachine> Executor<S> {
    /// An executor in the initial state of a group that began as `group`.
    #[must_use]
    pub fn new(machine: S, group: Group) -> Executor<S> {
        Executor::of(machine, vec![Head::new(group, History::beginning())], None)
    }

    /// The same for several groups in one order. The sessions of clients and the replicated clock are common to them,
    /// with the limits of the first group.
    ///
    /// # Panics
    /// If there is no group.
    #[must_use]
    pub fn merged(machine: S, groups: impl IntoIterator<Item = Group>, take: Take) -> Executor<S> {
        let heads = groups.into_iter().map(|group| Head::new(group, History::merged()));
        Executor::of(machine, heads.collect(), Some(take))
    }

    fn of(machine: S, heads: Vec<Head>, take: Option<Take>) -> Executor<S> {
        let sessions = SessionTable::new(heads[0].group.limits.sessions);
        Executor {
            machine,
            sessions,
            heads,
            take,
            order: 0,
            is_within_batch: false,
            execute_repeats: false,
            count_twice: false,
            forgets_sessions: false,
            changes_wrongly: None,
        }
    }

    /// How many groups it executes.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.heads.len()
    }

    /// How many batches of each group come in a row, if there are several.
    #[must_use]
    pub fn take(&self) -> Option<Take> {
        self.take
    }

    /// How far the groups are, if there are several.
    #[must_use]
    pub fn cut(&self) -> Cut {
        Cut { order: self.order, slots: self.heads.iter().map(|head| head.applied).collect() }
    }

    /// Where each of several groups is in the common order.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.heads.iter().map(|head| head.history.place().unwrap_or_default())
    }

    /// Where one of several groups is in the common order.
    #[must_use]
    pub fn place_of(&self, group: GroupId) -> Option<Place> {
        self.head(group).history.place()
    }

    fn head(&self, group: GroupId) -> &Head {
        &self.heads[usize::from(group.0)]
    }

    /// Everything of this group through this slot is executed.
    #[must_use]
    pub fn applied_of(&self, group: GroupId) -> Slot {
        self.head(group).applied
    }

    /// A group of several, as far as it is executed.
    #[must_use]
    pub fn group_of(&self, group: GroupId) -> &Group {
        &self.head(group).group
    }

    /// What a replica of this group is told of a snapshot that holds what this executor has executed.
    #[must_use]
    pub fn installed(&self, group: GroupId, bytes: u64) -> Installed {
        let Head { applied, ballots, group, history, .. } = self.head(group);
        let info = SnapshotInfo { slot: *applied, bytes };
        Installed { info, ballots: *ballots, group: group.clone(), history: history.clone() }
    }

    /// Plants [`synod_consensus::Bug::ExecuteRetryTwice`].
    #[cfg(feature = "planted-bugs")]
    pub fn execute_repeats(&mut self) {
        self.execute_repeats = true;
    }

    /// Plants [`synod_consensus::Bug::KeepEveryReply`], until the group's limits change.
    #[cfg(feature = "planted-bugs")]
    pub fn keep_every_reply(&mut self) {
        let (session_reply_bytes_max, reply_bytes_max) = (u64::MAX, u64::MAX);
        let limits = self.heads[0].group.limits.sessions;
        let unbounded = crate::SessionLimits { session_reply_bytes_max, reply_bytes_max, ..limits };
        self.sessions.set_limits(unbounded);
    }

    /// Plants [`synod_consensus::Bug::ClockCountsTwice`].
    #[cfg(feature = "planted-bugs")]
    pub fn count_twice(&mut self) {
        self.count_twice = true;
    }

    /// Plants [`synod_consensus::Bug::ForgetSessionsInSnapshot`].
    #[cfg(feature = "planted-bugs")]
    pub fn forget_sessions(&mut self) {
        self.forgets_sessions = true;
    }

    /// Plants a bug of groups that follow another.
    #[cfg(feature = "planted-bugs")]
    pub fn change_wrongly(&mut self, bug: Bug) {
        self.changes_wrongly = Some(bug);
    }

    /// What the replicated clock shows: how much time went by since the log began, or less.
    #[must_use]
    pub fn clock(&self) -> Duration {
        Duration::from_millis(self.sessions.clock_ms())
    }

    /// What a replica of this group is told of the replicated clock. Of several groups only the first one moves it.
    #[must_use]
    pub fn clocked(&self, group: GroupId) -> Clocked {
        let waits_for = if group == GroupId::FIRST { self.machine.waits_for() } else { None };
        Clocked { shows: self.clock(), waits_for }
    }

    /// Everything through this slot is executed; of several groups, of the first one, as in the next three.
    #[must_use]
    pub fn applied(&self) -> Slot {
        self.heads[0].applied
    }

    /// Of the slots through [`Executor::applied`], as far as they are of the epoch of [`Executor::group`].
    #[must_use]
    pub fn ballots(&self) -> Ballots {
        self.heads[0].ballots
    }

    /// The group as it is after [`Executor::applied`].
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.heads[0].group
    }

    /// What was decided through [`Executor::applied`].
    #[must_use]
    pub fn history(&self) -> &History {
        &self.heads[0].history
    }

    /// The state machine.
    #[must_use]
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// Open sessions of clients.
    #[must_use]
    pub fn client_sessions(&self) -> usize {
        self.sessions.clients()
    }

    /// What the cached replies of all sessions count, and those of the session that caches most: at most
    /// [`reply_bytes_max`](crate::SessionLimits::reply_bytes_max) and
    /// [`session_reply_bytes_max`](crate::SessionLimits::session_reply_bytes_max).
    #[must_use]
    pub fn cached_reply_bytes(&self) -> (u64, u64) {
        (self.sessions.reply_bytes(), self.sessions.largest_session_bytes())
    }

    /// Executes the batch of a slot; one outcome for each command, in order. Somebody waits for the replies to the
    /// commands at the places of which `awaited` says so; where nobody does, there may be none. A slot that a snapshot
    /// has brought already is not executed again, and its results are not known here.
    ///
    /// # Panics
    /// If a slot was left out.
    pub fn execute(
        &mut self,
        slot: Slot,
        ballots: Ballots,
        batch: &Batch,
        awaited: impl Fn(usize) -> bool,
    ) -> Vec<Outcome> {
        self.execute_of(GroupId::FIRST, slot, ballots, batch, awaited)
    }

    /// The same for the batch of one of several groups, whose turn it must be.
    ///
    /// # Panics
    /// If a slot of the group was left out.
    pub fn execute_of(
        &mut self,
        group: GroupId,
        slot: Slot,
        ballots: Ballots,
        batch: &Batch,
        awaited: impl Fn(usize) -> bool,
    ) -> Vec<Outcome> {
        let mut begun = self.begin_of(group, slot, ballots, batch);
        let is_done = self.go_on(&mut begun, batch, awaited, || false);
        assert!(is_done, "nothing breaks it off");
        begun.into_outcomes()
    }

    /// Begins the batch of a slot, of which nothing is executed yet.
    ///
    /// # Panics
    /// If a slot of the group was left out, or another batch is begun and not done.
    pub fn begin_of(&mut self, group: GroupId, slot: Slot, ballots: Ballots, batch: &Batch) -> Begun {
        self.assert_whole();
        let bug = self.changes_wrongly;
        let head = &mut self.heads[usize::from(group.0)];
        let done = |outcomes| Begun { group, at: slot, done: 0, outcomes, is_done: true };
        if slot <= head.applied {
            return done(batch.commands().map(|_| Outcome::Error(RequestError::OutcomeUnknown)).collect());
        }
        assert_eq!(slot, head.applied.next(), "slots are executed in order, without gaps");
        head.applied = slot;
        let before = head.history.place();
        head.history.push(slot, batch);
        head.ballots = head.ballots.followed_by(ballots);
        let changed = head.group.after_with(slot, batch, bug);
        // What is numbered by slots of one group is numbered by batches of the common order.
        let mut at = slot;
        if let (Some(before), Some(after)) = (before, head.history.place()) {
            self.order += after.batches - before.batches;
            at = Slot(self.order);
        }
        if let Some(changed) = changed {
            return done(vec![Outcome::Reply(self.reconfigure(group, changed))]);
        }
        self.is_within_batch = true;
        Begun { group, at, done: 0, outcomes: Vec::new(), is_done: false }
    }

    /// Executes further commands of a batch that was begun, at least one, until `is_over` says that it is time for
    /// something else. Returns whether the batch is done.
    pub fn go_on(
        &mut self,
        begun: &mut Begun,
        batch: &Batch,
        awaited: impl Fn(usize) -> bool,
        mut is_over: impl FnMut() -> bool,
    ) -> bool {
        if begun.is_done {
            return true;
        }
        for (place, command) in batch.commands().enumerate().skip(begun.done) {
            if place > begun.done && is_over() {
                begun.done = place;
                return false;
            }
            begun.outcomes.push(self.execute_command(begun.group, begun.at, &command, awaited(place)));
        }
        begun.is_done = true;
        self.is_within_batch = false;
        true
    }

    /// The state is that of whole slots.
    fn assert_whole(&self) {
        assert!(
            !self.is_within_batch,
            "a batch is executed whole before anything else is done with the state"
        );
    }

    /// Changes the group, as the replica around the protocol did when it delivered this slot. The session table is
    /// not asked: a change that is ordered twice is refused the second time, since the group is not the one that it
    /// was made for any more.
    fn reconfigure(&mut self, of: GroupId, changed: Result<Group, Refusal>) -> Bytes {
        let reply = encode_reply(&changed);
        if let Ok(group) = changed {
            self.set_group(of, group);
        }
        reply
    }

    /// The table that has a session of those who ask in a group.
    fn table(&mut self, group: GroupId, session: SessionId) -> &mut SessionTable {
        if self.take.is_some() && is_replica(session) {
            &mut self.heads[usize::from(group.0)].replicas
        } else {
            &mut self.sessions
        }
    }

    fn execute_command(&mut self, group: GroupId, slot: Slot, command: &Command, awaited: bool) -> Outcome {
        let Command { session, sequence, lowest_outstanding, .. } = *command;
        match self.table(group, session).check(session, sequence, lowest_outstanding, slot) {
            // A replica's session caches no replies.
            Verdict::Execute if !awaited && command.kind == CommandKind::Apply && is_replica(session) => {
                let context = self.context(slot, session, false);
                self.machine.apply(&command.payload, &context);
                self.table(group, session).executed(session, sequence, &Bytes::new());
                Outcome::Unanswered
            }
            Verdict::Execute => {
                let reply = self.run(slot, command);
                self.table(group, session).executed(session, sequence, &reply);
                Outcome::Reply(reply)
            }
            Verdict::Repeat(_) | Verdict::Stale if self.execute_repeats => {
                Outcome::Reply(self.run(slot, command))
            }
            Verdict::Repeat(Some(reply)) => Outcome::Reply(reply),
            // What a replica's session asked for was answered when it was executed.
            Verdict::Repeat(None) if is_replica(session) => Outcome::Error(RequestError::OutcomeUnknown),
            Verdict::Repeat(None) => Outcome::Error(RequestError::ReplyGone),
            Verdict::Stale => Outcome::Error(RequestError::Stale),
            Verdict::TooFarAhead => Outcome::Error(RequestError::TooFarAhead),
            Verdict::Unknown => Outcome::Error(RequestError::SessionExpired),
        }
    }

    fn context(&self, slot: Slot, session: SessionId, reply_wanted: bool) -> Context {
        let session = Some(session).filter(|session| !is_replica(*session));
        Context { slot, time: self.clock(), session, reply_wanted }
    }

    fn run(&mut self, slot: Slot, command: &Command) -> Bytes {
        match command.kind {
            CommandKind::Apply => {
                let context = self.context(slot, command.session, true);
                self.machine.apply(&command.payload, &context)
            }
            CommandKind::OpenSession => Bytes::copy_from_slice(&self.sessions.open(slot).0.to_le_bytes()),
            CommandKind::AdvanceClock => {
                // One that this program did not write advances nothing.
                if let Some(tick) = Tick::decode(&command.payload) {
                    let from = if self.count_twice { self.sessions.clock_ms() } else { tick.from };
                    let before = self.sessions.clock_ms();
                    self.sessions.advance_clock(Tick { from, ..tick });
                    if self.sessions.clock_ms() != before {
                        let context = self.context(slot, command.session, false);
                        self.machine.clock_moved(&context, command.session);
                    }
                }
                Bytes::new()
            }
            // The merge has heeded it; a single group has no other.
            CommandKind::Skip => Bytes::new(),
            // One that is not alone in its batch was not made by this program.
            CommandKind::Reconfigure | CommandKind::ReconfigureNamed | CommandKind::Settle => {
                encode_reply(&Err(Refusal::Malformed))
            }
            CommandKind::Identity | CommandKind::Reference => {
                unreachable!("what names a batch is none of its commands")
            }
            kind => unreachable!("no batch has a command of kind {kind:?}"),
        }
    }

    /// Puts another group in place of the present one, for an operator who makes a new cluster of what one replica
    /// has: nobody else may go on from this state.
    pub fn begin_again(&mut self, group: Group) {
        self.set_group(GroupId::FIRST, group);
    }

    /// Counts slot 1, of the first group, as executed: the state machine has the state of a backup, which is what that
    /// slot did. Sessions of clients through `last_session` count as opened, so that no client takes one for a session
    /// that it had where the backup was made.
    ///
    /// # Panics
    /// If something was executed already.
    pub fn begin_with_backup(&mut self, last_session: u64) {
        // Nobody executes this batch. It has a place in the common order of several groups, and names the state, so
        // that replicas which begin with different ones are found to differ.
        let mut loading = BatchBuilder::new();
        loading.push(SessionId(1), 1, 1, &self.machine.digest().to_le_bytes());
        let begun = self.begin_of(GroupId::FIRST, Slot(1), Ballots::ZERO, &loading.finish());
        assert_eq!((begun.at, begun.done), (Slot(1), 0), "nothing was executed before");
        self.is_within_batch = false;
        self.sessions.skip(last_session);
    }

    /// Ballots of different epochs cannot be compared, and what is before an epoch counts as lower than anything in it.
    fn set_group(&mut self, of: GroupId, group: Group) {
        let head = &mut self.heads[usize::from(of.0)];
        if group.epoch != head.group.epoch {
            head.ballots = Ballots::ZERO;
        }
        head.replicas.set_limits(group.limits.sessions);
        if of == GroupId::FIRST {
            self.sessions.set_limits(group.limits.sessions);
        }
        head.group = group;
    }

    /// Answers a query from the present state.
    #[must_use]
    pub fn query(&self, query: &Bytes) -> Bytes {
        self.assert_whole();
        self.machine.query(query)
    }

    /// The same; where the answer may be large, it is only begun here.
    #[must_use]
    pub fn answer(&self, query: &Bytes) -> Answer {
        self.assert_whole();
        self.machine.answer(query)
    }

    /// A fingerprint of the state machine, the sessions, the group and the names of delivered batches; of several
    /// groups without these names, since a batch that says nothing may be known here and not elsewhere.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.assert_whole();
        let mut sum = Sum(crc32fast::Hasher::new());
        let machine = self.machine.digest();
        sum.0.update(&machine.to_le_bytes());
        for head in &self.heads {
            sum.0.update(&head.group.encode().to_bytes());
        }
        if self.take.is_none() {
            let mut names = Writer::new();
            self.heads[0].history.delivered().encode(&mut names);
            sum.0.update(&names.finish().to_bytes());
        }
        self.sessions.freeze().write_to(&mut sum).expect("a sum takes everything");
        // Two 32-bit halves: the checksum of everything, and the machine's own digest folded.
        u64::from(sum.0.finalize()) << 32 | (machine ^ machine >> 32) & 0xffff_ffff
    }
}

/// A checksum of what is written to it.
struct Sum(crc32fast::Hasher);

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{collections::BTreeSet, io::Read};

    use super::{snapshot::WITHOUT_HISTORY, *};
    use crate::{Frozen, Limits, SessionLimits};
    use synod_consensus::Options;
    use synod_wire::{Format, Incarnation, ReplicaId, replica_session};

    /// Appends what it is told; the reply is the length.
    #[derive(Debug, Default, PartialEq)]
    pub(crate) struct Tape(pub(crate) Vec<u8>);

    struct FrozenTape(Vec<u8>);

    impl Frozen for FrozenTape {
        fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(&self.0)
        }
    }

    impl StateMachine for Tape {
        fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
            self.0.extend_from_slice(command);
            Bytes::from(vec![self.0.len() as u8])
        }

        fn query(&self, _query: &Bytes) -> Bytes {
            Bytes::copy_from_slice(&self.0)
        }

        fn freeze(&self) -> Box<dyn Frozen> {
            Box::new(FrozenTape(self.0.clone()))
        }

        fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
            let mut tape = Vec::new();
            snapshot.read_to_end(&mut tape)?;
            self.0 = tape;
            Ok(())
        }

        fn digest(&self) -> u64 {
            self.0.iter().fold(7, |digest: u64, &byte| digest.wrapping_mul(31) + u64::from(byte))
        }
    }

    fn executor() -> Executor<Tape> {
        let group = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        Executor::new(Tape::default(), group)
    }

    fn batch(commands: &[(SessionId, u64, &[u8])]) -> Batch {
        let mut builder = BatchBuilder::new();
        for &(session, sequence, payload) in commands {
            builder.push(session, sequence, 1, payload);
        }
        builder.finish()
    }

    const MINE: fn() -> SessionId = || replica_session(ReplicaId(1), Incarnation(1), 1);

    #[test]
    fn a_command_that_is_ordered_twice_is_executed_once() {
        let mut executor = executor();
        let twice = batch(&[(MINE(), 1, b"a"), (MINE(), 2, b"b")]);
        assert_eq!(
            executor.execute(Slot(1), Ballots::ZERO, &twice, |_| true),
            [1, 2].map(|len| Outcome::Reply(Bytes::from(vec![len])))
        );
        assert_eq!(
            executor.execute(Slot(2), Ballots::ZERO, &twice, |_| true),
            [(); 2].map(|()| Outcome::Error(RequestError::OutcomeUnknown))
        );
        assert_eq!(executor.query(&Bytes::new()), "ab");
        assert_eq!(executor.applied(), Slot(2));
    }

    #[test]
    fn a_batch_in_parts_is_the_batch_as_a_whole() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            let (mut whole, mut in_parts) = (executor(), executor());
            for slot in 1..5 {
                // Some commands come twice.
                let count = random.usize(1..9);
                let commands: Vec<_> = (0..count).map(|_| (MINE(), random.u64(1..30), &b"c"[..])).collect();
                let batch = batch(&commands);
                let awaited = |place: usize| place.is_multiple_of(2);
                let expected = whole.execute(Slot(slot), Ballots::ZERO, &batch, awaited);
                let mut begun = in_parts.begin_of(GroupId::FIRST, Slot(slot), Ballots::ZERO, &batch);
                let mut parts = 1;
                while !in_parts.go_on(&mut begun, &batch, awaited, || random.bool()) {
                    parts += 1;
                }
                assert!(parts <= commands.len());
                assert_eq!(begun.into_outcomes(), expected);
                assert_eq!(in_parts.digest(), whole.digest());
            }
        }
    }

    #[test]
    fn nobody_sees_a_part_of_a_batch() {
        let batch = batch(&[(MINE(), 1, b"a"), (MINE(), 2, b"b")]);
        let looks: [fn(&Executor<Tape>); 4] = [
            |executor| drop(executor.freeze()),
            |executor| drop(executor.query(&Bytes::new())),
            |executor| drop(executor.answer(&Bytes::new())),
            |executor| _ = executor.digest(),
        ];
        for look in looks {
            let mut executor = executor();
            let mut begun = executor.begin_of(GroupId::FIRST, Slot(1), Ballots::ZERO, &batch);
            assert!(!executor.go_on(&mut begun, &batch, |_| true, || true));
            let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(&executor)));
            assert!(seen.is_err());
            assert!(executor.go_on(&mut begun, &batch, |_| true, || true));
            look(&executor);
        }
    }

    #[test]
    fn a_client_opens_a_session_and_repeats_a_command() {
        let mut executor = executor();
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::OpenSession, MINE(), 1, 1, b"");
        let outcomes = executor.execute(Slot(1), Ballots::ZERO, &builder.finish(), |_| true);
        let [Outcome::Reply(reply)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        let session = SessionId(u64::from_le_bytes(reply[..].try_into().unwrap()));
        let command = batch(&[(session, 1, b"x")]);
        let first = executor.execute(Slot(2), Ballots::ZERO, &command, |_| true);
        assert_eq!(executor.execute(Slot(3), Ballots::ZERO, &command, |_| true), first, "the cached reply");
        assert_eq!(executor.query(&Bytes::new()), "x");
    }

    #[test]
    fn a_snapshot_without_fingerprints_is_read_and_what_it_covers_is_unknown() {
        let mut executor = executor();
        for slot in 1..=3 {
            executor.execute(Slot(slot), Ballots::ZERO, &batch(&[(MINE(), slot, b"x")]), |_| true);
        }
        let mut bytes = Vec::new();
        executor.freeze().write_to(&mut bytes).unwrap();
        let mut history = Writer::new();
        executor.history().encode(&mut history);
        let history = history.finish().len();
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let head = word(&bytes, 4) as usize;
        bytes.drain(8 + head - history..8 + head);
        bytes[..4].copy_from_slice(&Format::first(WITHOUT_HISTORY).written.packed().to_le_bytes());
        bytes[4..8].copy_from_slice(&((head - history) as u32).to_le_bytes());

        let mut restored = self::executor();
        restored.restore(&mut &bytes[..]).unwrap();
        assert_eq!(restored.digest(), executor.digest());
        assert_eq!(*restored.history(), History::unknown(Slot(3)));
        restored.execute(Slot(4), Ballots::ZERO, &batch(&[(MINE(), 4, b"y")]), |_| true);
        assert_eq!(restored.applied(), Slot(4));
    }

    #[test]
    fn machines_sessions_and_groups_are_told_apart_by_their_digest() {
        let theirs = replica_session(ReplicaId(2), Incarnation(1), 7);
        let other_group = Group::of(&Options::default(), [1, 2].map(ReplicaId));
        let digests: BTreeSet<u64> = [
            (executor(), MINE(), b"a"),
            (executor(), MINE(), b"b"),
            (executor(), theirs, b"a"),
            (Executor::new(Tape::default(), other_group), MINE(), b"a"),
        ]
        .into_iter()
        .map(|(mut one, session, payload)| {
            one.execute(Slot(1), Ballots::ZERO, &batch(&[(session, 1, payload)]), |_| true);
            one.digest()
        })
        .collect();
        assert_eq!(digests.len(), 4);
    }

    #[test]
    fn a_snapshot_carries_sessions_too() {
        let mut one = executor();
        let command = batch(&[(MINE(), 1, b"a")]);
        one.execute(Slot(1), Ballots::ZERO, &command, |_| true);
        let mut bytes = Vec::new();
        one.freeze().write_to(&mut bytes).unwrap();
        let mut other = executor();
        other.restore(&mut bytes.as_slice()).unwrap();
        assert_eq!((other.applied(), other.digest()), (Slot(1), one.digest()));
        other.execute(Slot(2), Ballots::ZERO, &command, |_| true);
        assert_eq!(other.query(&Bytes::new()), "a", "the repeat is known after the snapshot");
        assert!(executor().restore(&mut &bytes[..10]).is_err());
    }

    /// A client's session and a command in it whose reply is as long as the tape.
    fn with_session(executor: &mut Executor<Tape>, slot: u64) -> SessionId {
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::OpenSession, MINE(), slot, slot, b"");
        let outcomes = executor.execute(Slot(slot), Ballots::ZERO, &builder.finish(), |_| true);
        let [Outcome::Reply(reply)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        SessionId(u64::from_le_bytes(reply[..].try_into().unwrap()))
    }

    #[test]
    fn a_backup_is_slot_1_which_names_its_state_and_no_session_of_it_is_given_again() {
        let begun = |state: &str| {
            let group = executor().group().clone().after_backup();
            let mut executor = Executor::new(Tape(state.into()), group);
            executor.begin_with_backup(41);
            executor
        };
        let (mut one, same, other) = (begun("old"), begun("old"), begun("other"));
        assert_eq!((one.applied(), one.history().end()), (Slot(1), same.history().end()));
        // Members that begin with different backups are found to have decided different things.
        assert_eq!(other.history().end().slot, Slot(1));
        assert_ne!(one.history().end(), other.history().end());
        let mut bytes = Vec::new();
        one.freeze().write_to(&mut bytes).unwrap();
        let mut joined = Executor::new(Tape::default(), one.group().clone());
        joined.restore(&mut bytes.as_slice()).unwrap();
        assert_eq!((joined.digest(), joined.history().end()), (one.digest(), same.history().end()));
        assert_eq!([&mut one, &mut joined].map(|executor| with_session(executor, 2)), [SessionId(42); 2]);
    }

    #[test]
    fn a_command_whose_reply_is_gone_is_not_executed_again() {
        let sessions = SessionLimits { session_reply_bytes_max: 200, ..SessionLimits::default() };
        let group = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        let group = group.limited(Limits { sessions, ..Limits::default() });
        let mut executor = Executor::new(Tape::default(), group);
        let session = with_session(&mut executor, 1);
        for slot in 2..=4 {
            executor.execute(Slot(slot), Ballots::ZERO, &batch(&[(session, slot - 1, b"x")]), |_| true);
        }
        let again = executor.execute(
            Slot(5),
            Ballots::ZERO,
            &batch(&[(session, 1, b"x"), (session, 3, b"x")]),
            |_| true,
        );
        assert_eq!(
            again,
            [Outcome::Error(RequestError::ReplyGone), Outcome::Reply(Bytes::from_static(&[3]))]
        );
        assert_eq!(executor.query(&Bytes::new()), "xxx");
    }

    /// Takes what is written and notes the largest piece.
    #[derive(Default)]
    struct Pieces {
        bytes: Vec<u8>,
        largest: usize,
    }

    impl Write for Pieces {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.largest = self.largest.max(piece.len());
            self.bytes.extend_from_slice(piece);
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_large_table_is_written_and_read_in_pieces_no_larger_than_a_reply() {
        const REPLY_BYTES: usize = 1 << 20;
        let mut one = executor();
        for slot in 1..=40 {
            let session = with_session(&mut one, slot);
            assert_eq!(one.sessions.check(session, 1, 1, Slot(slot)), Verdict::Execute);
            one.sessions.executed(session, 1, &Bytes::from(vec![slot as u8; REPLY_BYTES]));
        }
        let mut pieces = Pieces::default();
        one.freeze().write_to(&mut pieces).unwrap();
        let (all, largest) = one.cached_reply_bytes();
        assert!(all >= 40 * REPLY_BYTES as u64 && all == 40 * largest, "{all}, {largest}");
        assert!(pieces.bytes.len() > 40 * REPLY_BYTES && pieces.largest <= REPLY_BYTES, "{}", pieces.largest);
        let mut other = executor();
        other.restore(&mut pieces.bytes.as_slice()).unwrap();
        assert_eq!((other.digest(), other.cached_reply_bytes()), (one.digest(), one.cached_reply_bytes()));
    }
}
