//! A state machine of your own in the simulator: the replicas run it under all faults, and clients of its own send it
//! commands and queries. With the feature `kv` they run the store beside it, which the simulator's clients use.
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
//! [`StateMachine::restore`], and the time that passes before a frozen state is written: it is written at once, so a
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

#[cfg(not(feature = "kv"))]
mod alone;
#[cfg(feature = "kv")]
mod hosting;

use std::{any::Any, fmt::Debug, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use fastrand::Rng;
use synod_replica::{Context, StateMachine};
use synod_wire::SessionId;

#[cfg(not(feature = "kv"))]
pub(crate) use alone::Hosting;
#[cfg(feature = "kv")]
pub(crate) use hosting::Hosting;

/// What is simulated: a state machine, the commands that clients send to it, and what must hold.
pub trait Guest: Debug + 'static {
    /// The state machine.
    type Machine: StateMachine + Debug;

    /// One in its initial state.
    fn machine(&self) -> Self::Machine;

    /// One with the state of a backup, with which the group begins in one of eight runs, as after a restore. All such
    /// machines are equal. The default is the initial state, so that a history needs no other check in these runs.
    fn backup(&self) -> Self::Machine {
        self.machine()
    }

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
    fn backup(&self) -> Box<dyn AnyMachine>;
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

    fn backup(&self) -> Box<dyn AnyMachine> {
        Box::new(Guest::backup(self))
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
