//! A state machine of your own in the simulator: the replicas run it beside the store that the simulator's clients use,
//! under the same faults, and clients of its own send it commands and queries.
//!
//! Replicas crash and restart from torn logs, exchange snapshots of your state, execute commands that clients send
//! twice, and change members and protocols meanwhile. A reference executes every slot once, and neither restarts nor
//! restores anything. What is demanded of each replica:
//!
//! | what | when |
//! | --- | --- |
//! | its replies are those of the reference | in every second slot, and wherever a client waits |
//! | its [digest](StateMachine::digest) and its whole [state](Guest::state) are those of the reference after the same slot | at each start, after every eighth slot, each snapshot that it writes or gets, and at the end |
//! | what it answers to a [query](Guest::query) is what the reference answers after some slot, and no acknowledged command or earlier read is missing there | at every read, at any replica; the answer of [`StateMachine::answer`] is that of [`StateMachine::query`] |
//! | [`Guest::check`], [`Guest::check_in_time`] | after every slot and every snapshot that it gets |
//! | [`Guest::check_history`] | at the end |
//!
//! So code that is not deterministic, forgets a field in its snapshot, restores it wrongly, or answers queries from
//! something that it did not restore is found, if commands and queries come to it and [`Guest::state`] does not leave
//! the field out. Not simulated are [`StateMachine::reader`], since replicas here restore by
//! [`StateMachine::restore`], and the time that passes before a [`Frozen`] state is written: it is written at once, so a
//! state that goes on changing with the machine is not noticed.
//!
//! A failure shows the last events before it was noticed and the command that [replays](crate::REPLAY) the run.
//!
//! ```
//! use std::io;
//! use bytes::Bytes;
//! use fastrand::Rng;
//! use synod_replica::{Context, Frozen, StateMachine};
//! use synod_sim::{Guest, Told};
//!
//! #[derive(Debug)]
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     fn apply(&mut self, _: &Bytes, _: &Context) -> Bytes {
//!         self.0 += 1;
//!         self.query(&Bytes::new())
//!     }
//!     fn query(&self, _: &Bytes) -> Bytes {
//!         Bytes::copy_from_slice(&self.0.to_le_bytes())
//!     }
//!     fn freeze(&self) -> Box<dyn Frozen> {
//!         Box::new(self.query(&Bytes::new()))
//!     }
//!     fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
//!         let mut bytes = [0; 8];
//!         snapshot.read_exact(&mut bytes)?;
//!         self.0 = u64::from_le_bytes(bytes);
//!         Ok(())
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Counting;
//!
//! impl Guest for Counting {
//!     type Machine = Counter;
//!
//!     fn machine(&self) -> Counter {
//!         Counter(0)
//!     }
//!     fn command(&self, _: &mut Rng) -> Bytes {
//!         Bytes::new()
//!     }
//!     fn query(&self, _: &mut Rng) -> Option<Bytes> {
//!         Some(Bytes::new())
//!     }
//!     fn check_history(&self, counter: &Counter, history: &[Told]) -> Result<(), String> {
//!         let answered = history.iter().filter(|told| told.answer.is_some()).count() as u64;
//!         if (answered..=history.len() as u64).contains(&counter.0) { Ok(()) } else { Err(format!("{counter:?}")) }
//!     }
//! }
//!
//! // One seed for each protocol; a test of a machine runs some hundred.
//! for plan in synod_sim::plans(0..1) {
//!     synod_sim::run_guest(&plan, Counting).unwrap_or_else(|failure| panic!("{failure}"));
//! }
//! ```

use std::{
    any::Any,
    cell::RefCell,
    fmt::Debug,
    io::{self, Read, Write},
    rc::Rc,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use fastrand::Rng;
use synod_api::{
    etcdserverpb::LeaseLeasesRequest,
    synod::v1::{KvQuery, kv_answer::Answer as QueryAnswer, kv_query::Query},
};
use synod_kv::KvStore;
use synod_replica::{Answer, Context, Frozen, StateMachine};
use synod_wire::SessionId;

use crate::check::Journal;

/// What is simulated: a state machine, the commands that clients send to it, and what must hold.
pub trait Guest: Debug + 'static {
    /// The state machine.
    type Machine: StateMachine + Debug;

    /// One in its initial state.
    fn machine(&self) -> Self::Machine;

    /// The next command of a client. All that is random about it comes from `rng`, so that a seed repeats it.
    fn command(&self, rng: &mut Rng) -> Bytes;

    /// What a client asks in between, at any replica, if it asks: the answer must be that of the reference at a slot
    /// after which everything is executed that was acknowledged, or seen by another read, before this one began. With
    /// `None`, the default, nobody asks, and nothing is known of [`StateMachine::query`].
    fn query(&self, rng: &mut Rng) -> Option<Bytes> {
        let _ = rng;
        None
    }

    /// The whole state of a machine, as replicas and the reference compare it: equal states give equal texts, and what
    /// is left out here may differ. The default is how the machine is shown for debugging. One that contains a randomly
    /// hashed map, or what is a replica's own, such as a cache, has another text.
    fn state(&self, machine: &Self::Machine) -> String {
        format!("{machine:?}")
    }

    /// The text of a command, for traces. The default shows text as it is, and other bytes with escapes.
    fn describe(&self, command: &Bytes) -> String {
        text_of(command)
    }

    /// How often each replica [looks](Guest::look) at its own state machine; it never does without it.
    fn looks_each(&self) -> Option<Duration> {
        None
    }

    /// A replica looks at its own state machine, and may order a command itself, in no session. It does not look again
    /// before [`Guest::looked`] was told what became of that.
    fn look(&self, machine: &Self::Machine, place: &Place) -> Option<Bytes> {
        let _ = (machine, place);
        None
    }

    /// What became of the command that this replica ordered itself: the reply, or nothing, if it was refused or nobody
    /// knows whether it was or will be executed.
    fn looked(&self, machine: &Self::Machine, place: &Place, reply: Option<Bytes>) {
        let _ = (machine, place, reply);
    }

    /// What must hold of the state of every replica at every moment.
    ///
    /// # Errors
    /// What does not hold, for people.
    fn check(&self, machine: &Self::Machine) -> Result<(), String> {
        let _ = machine;
        Ok(())
    }

    /// The same, for what depends on the time that has gone by.
    ///
    /// # Errors
    /// What does not hold, for people.
    fn check_in_time(&self, machine: &Self::Machine, time: InTime) -> Result<(), String> {
        let _ = time;
        self.check(machine)
    }

    /// What must hold at the end, of the state and of what the clients were told, in the order in which they asked. It
    /// is asked of the reference, which executes every slot once and restores nothing, and of each replica that has
    /// executed all commands.
    ///
    /// # Errors
    /// What does not hold, for people.
    fn check_history(&self, machine: &Self::Machine, history: &[Told]) -> Result<(), String> {
        let _ = (machine, history);
        Ok(())
    }
}

/// Where a state machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The replica.
    pub replica: u64,
    /// The number of its life.
    pub life: u64,
    /// What went by since the world began.
    pub elapsed: Duration,
    /// Whether the replica does what one replica has to do for all.
    pub takes_care: bool,
    /// The members of its group.
    pub members: Vec<u64>,
}

/// The time of the simulated world, which no replica knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InTime {
    /// What went by since the world began.
    pub elapsed: Duration,
    /// By so much more, at most, the clocks of replicas may have measured: they drift, and jump.
    pub error: Duration,
}

/// A command of a client, and what it was told. Each client numbers its commands in a session, so none is executed
/// twice.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Told {
    /// The client.
    pub client: usize,
    /// The command.
    pub command: Bytes,
    /// When the client sent it first, by a clock that counts what all clients do.
    pub asked_at: u64,
    /// When it was answered, by the same clock, and what. `None`: the client does not know what became of it; it may
    /// have been executed, or be executed later.
    pub answer: Option<(u64, Bytes)>,
}

/// A [`StateMachine`] whose type is not known.
pub(crate) trait AnyMachine: StateMachine + Debug {
    fn as_any(&self) -> &dyn Any;
}

impl<M: StateMachine + Debug> AnyMachine for M {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A [`Guest`] whose type is not known.
pub(crate) trait AnyGuest: Debug {
    fn machine(&self) -> Box<dyn AnyMachine>;
    fn command(&self, rng: &mut Rng) -> Bytes;
    fn query(&self, rng: &mut Rng) -> Option<Bytes>;
    fn state(&self, machine: &dyn AnyMachine) -> String;
    fn describe(&self, command: &Bytes) -> String;
    fn looks_each(&self) -> Option<Duration>;
    fn look(&self, machine: &dyn AnyMachine, place: &Place) -> Option<Bytes>;
    fn looked(&self, machine: &dyn AnyMachine, place: &Place, reply: Option<Bytes>);
    fn check_in_time(&self, machine: &dyn AnyMachine, time: InTime) -> Result<(), String>;
    fn check_history(&self, machine: &dyn AnyMachine, history: &[Told]) -> Result<(), String>;
}

impl<G: Guest> AnyGuest for G {
    fn machine(&self) -> Box<dyn AnyMachine> {
        Box::new(Guest::machine(self))
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        Guest::command(self, rng)
    }

    fn query(&self, rng: &mut Rng) -> Option<Bytes> {
        Guest::query(self, rng)
    }

    fn state(&self, machine: &dyn AnyMachine) -> String {
        Guest::state(self, own::<G>(machine))
    }

    fn describe(&self, command: &Bytes) -> String {
        Guest::describe(self, command)
    }

    fn looks_each(&self) -> Option<Duration> {
        Guest::looks_each(self)
    }

    fn look(&self, machine: &dyn AnyMachine, place: &Place) -> Option<Bytes> {
        Guest::look(self, own::<G>(machine), place)
    }

    fn looked(&self, machine: &dyn AnyMachine, place: &Place, reply: Option<Bytes>) {
        Guest::looked(self, own::<G>(machine), place, reply);
    }

    fn check_in_time(&self, machine: &dyn AnyMachine, time: InTime) -> Result<(), String> {
        Guest::check_in_time(self, own::<G>(machine), time)
    }

    fn check_history(&self, machine: &dyn AnyMachine, history: &[Told]) -> Result<(), String> {
        Guest::check_history(self, own::<G>(machine), history)
    }
}

fn own<G: Guest>(machine: &dyn AnyMachine) -> &G::Machine {
    machine.as_any().downcast_ref().expect("the guest made this machine")
}

/// Bytes for people: text as it is, and other bytes with escapes.
pub(crate) fn text_of(bytes: &Bytes) -> String {
    match str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && !text.contains(char::is_control) => text.to_owned(),
        _ => format!("{bytes:?}"),
    }
}

/// Leads the payload of a command or a query for the guest; none of the store begins so. In a command a number follows
/// that no other command has, then the command.
const GUEST: u8 = 0;
const NUMBER_BYTES: usize = 8;

/// The payload of a guest's command.
pub(crate) fn payload(number: u64, command: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(1 + NUMBER_BYTES + command.len());
    payload.put_u8(GUEST);
    payload.put_u64_le(number);
    payload.extend_from_slice(command);
    payload.freeze()
}

/// The command in the payload of a guest's command.
pub(crate) fn command_in(payload: &Bytes) -> Option<Bytes> {
    let is_guest = payload.first() == Some(&GUEST) && payload.len() > NUMBER_BYTES;
    is_guest.then(|| payload.slice(1 + NUMBER_BYTES..))
}

/// The payload of a guest's query.
pub(crate) fn query_payload(query: &[u8]) -> Bytes {
    [&[GUEST][..], query].concat().into()
}

/// The query in the payload of a guest's query.
fn query_in(payload: &Bytes) -> Option<Bytes> {
    (payload.first() == Some(&GUEST)).then(|| payload.slice(1..))
}

/// What a guest's machine was given.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Command(Bytes, Context),
    Clock(SessionId, Context),
}

impl Input {
    /// The slot; of merged groups, the batch of the common order.
    pub(crate) fn at(&self) -> u64 {
        let (Input::Command(_, context) | Input::Clock(_, context)) = self;
        context.slot.0
    }

    /// Gives the same to another machine.
    pub(crate) fn give(&self, machine: &mut dyn AnyMachine) {
        match self {
            Input::Command(command, context) => _ = machine.apply(command, context),
            Input::Clock(mover, context) => machine.clock_moved(context, *mover),
        }
    }
}

/// The state machine of the simulated replicas: the store, and beside it the one of a guest if there is one.
#[derive(Debug)]
pub(crate) struct Hosting {
    store: KvStore,
    guest: Option<Box<dyn AnyMachine>>,
    /// The leases that the clock has ended, each with the store's revision after that, since they were last taken.
    ended: RefCell<Vec<(i64, i64)>>,
    /// What the store goes through, if somebody wants to know.
    journal: Option<Box<RefCell<Journal>>>,
    /// What the guest's machine was given since it was last taken, at the reference.
    inputs: Option<RefCell<Vec<Input>>>,
}

impl Hosting {
    /// That of the reference, which keeps what the guest's machine is given.
    pub(crate) fn of_reference(guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        Hosting { inputs: guest.map(|_| RefCell::default()), ..Hosting::of(KvStore::new(), guest) }
    }

    /// That of a replica, with a store that is still in its initial state.
    pub(crate) fn of(store: KvStore, guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        let guest = guest.map(|guest| guest.machine());
        Hosting { store, guest, ended: RefCell::default(), journal: None, inputs: None }
    }

    /// The same, which keeps a journal of the store.
    pub(crate) fn with_journal(self) -> Hosting {
        Hosting { journal: Some(Box::default()), ..self }
    }

    pub(crate) fn store(&self) -> &KvStore {
        &self.store
    }

    /// The journal, if one is kept.
    pub(crate) fn journal(&self) -> Option<&RefCell<Journal>> {
        self.journal.as_deref()
    }

    /// The leases that the clock has ended since the last call, each with the store's revision after that.
    pub(crate) fn take_ended(&self) -> Vec<(i64, i64)> {
        self.ended.take()
    }

    /// What the guest's machine was given since the last call.
    pub(crate) fn take_inputs(&self) -> Vec<Input> {
        self.inputs.as_ref().map(RefCell::take).unwrap_or_default()
    }

    fn leases(&self) -> Vec<i64> {
        if self.store.waits_for().is_none() {
            return Vec::new();
        }
        let query = KvQuery { query: Some(Query::LeaseLeases(LeaseLeasesRequest {})), ..KvQuery::default() };
        match self.store.query(&query) {
            Ok(QueryAnswer::LeaseLeases(found)) => found.leases.iter().map(|lease| lease.id).collect(),
            other => unreachable!("leases are always listed: {other:?}"),
        }
    }

    pub(crate) fn guest(&self) -> Option<&dyn AnyMachine> {
        self.guest.as_deref()
    }
}

impl StateMachine for Hosting {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        match (&mut self.guest, command_in(command)) {
            (Some(guest), Some(command)) => {
                let reply = guest.apply(&command, context);
                if let Some(inputs) = &mut self.inputs {
                    inputs.get_mut().push(Input::Command(command, *context));
                }
                reply
            }
            _ => {
                let reply = self.store.apply(command, context);
                if let Some(journal) = &mut self.journal {
                    journal.get_mut().executed(&self.store, command, &reply);
                }
                reply
            }
        }
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        if let Some(guest) = &mut self.guest {
            guest.clock_moved(context, mover);
            if let Some(inputs) = &mut self.inputs {
                inputs.get_mut().push(Input::Clock(mover, *context));
            }
        }
        let before = self.leases();
        StateMachine::clock_moved(&mut self.store, context, mover);
        if let Some(journal) = &mut self.journal {
            journal.get_mut().clock_moved(&self.store);
        }
        if !before.is_empty() {
            let (left, revision) = (self.leases(), self.store.revision());
            self.ended
                .get_mut()
                .extend(before.into_iter().filter(|id| !left.contains(id)).map(|id| (id, revision)));
        }
    }

    fn waits_for(&self) -> Option<Duration> {
        let guest = self.guest.as_ref().and_then(|guest| guest.waits_for());
        guest.into_iter().chain(self.store.waits_for()).min()
    }

    fn query(&self, query: &Bytes) -> Bytes {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.query(&query),
            _ => StateMachine::query(&self.store, query),
        }
    }

    fn answer(&self, query: &Bytes) -> Answer {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.answer(&query),
            _ => self.store.answer(query),
        }
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let store = StateMachine::freeze(&self.store);
        match &self.guest {
            Some(guest) => Box::new(Both { guest: guest.freeze(), store }),
            None => store,
        }
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        if let Some(guest) = &mut self.guest {
            let mut len = [0; 8];
            snapshot.read_exact(&mut len)?;
            let len = u64::from_le_bytes(len);
            let mut own = Vec::new();
            (&mut *snapshot).take(len).read_to_end(&mut own)?;
            guest.restore(&mut &own[..])?;
        }
        self.store.restore(snapshot)
    }

    fn digest(&self) -> u64 {
        let guest = self.guest.as_ref().map_or(0, |guest| guest.digest());
        StateMachine::digest(&self.store) ^ guest.rotate_left(17)
    }
}

/// The guest's state, after its length, and the store's.
struct Both {
    guest: Box<dyn Frozen>,
    store: Box<dyn Frozen>,
}

impl Frozen for Both {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut own = Vec::new();
        self.guest.write_to(&mut own)?;
        out.write_all(&(own.len() as u64).to_le_bytes())?;
        out.write_all(&own)?;
        self.store.write_to(out)
    }
}
