//! Commands, queries and replies as types of your own, in place of bytes.

use std::{
    fmt,
    io::{self, Read, Write},
    marker::PhantomData,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use synod_node::{Endpoint, Handle, Session, SessionError};
use synod_replica::{Context, Frozen, RequestError, SessionCommand, StateMachine};
use synod_wire::SessionId;

/// How values of a type become bytes, and bytes values again. Every replica, and every client, must understand what any
/// other one encodes, also one of an earlier version of your program: the log and the snapshots hold it.
pub trait Codec<T>: 'static {
    /// The bytes of a value. Equal states must have equal bytes if replicas are compared by
    /// [`Handle::digest`](crate::Handle::digest).
    fn encode(value: &T) -> Bytes;

    /// The value of bytes; `None` if they are not those of one.
    fn decode(bytes: &[u8]) -> Option<T>;
}

/// JSON, for all that serde can write and read.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Codec<T> for Json {
    /// # Panics
    /// If the type cannot be written as JSON, such as a map whose keys are not strings.
    fn encode(value: &T) -> Bytes {
        serde_json::to_vec(value).expect("a type that JSON can hold").into()
    }

    fn decode(bytes: &[u8]) -> Option<T> {
        serde_json::from_slice(bytes).ok()
    }
}

/// A deterministic state machine with commands, queries and answers of its own types; [`Typed`] makes a
/// [`StateMachine`] of it, under the same rules. A snapshot is a clone of it, which its codec encodes: a machine whose
/// state is too large to be cloned between two commands should share it copy on write, or implement [`StateMachine`]
/// itself.
pub trait Machine: Clone + Send + Sized + 'static {
    /// What changes the state.
    type Command;
    /// What a command is answered with.
    type Reply;
    /// What asks for a part of the state.
    type Query;
    /// What a query is answered with.
    type Answer;
    /// How all of these, and the state, become bytes.
    type Codec: Codec<Self::Command>
        + Codec<Self::Reply>
        + Codec<Self::Query>
        + Codec<Self::Answer>
        + Codec<Self>;

    /// Applies a command and answers it. Errors of its own are replies; it must not panic, since every replica would.
    fn apply(&mut self, command: Self::Command, context: &Context) -> Self::Reply;

    /// Answers a query from the present state.
    fn query(&self, query: Self::Query) -> Self::Answer;

    /// The replicated clock has moved; see [`StateMachine::clock_moved`].
    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        let _ = (context, mover);
    }

    /// The time for which the machine waits; see [`StateMachine::waits_for`].
    fn waits_for(&self) -> Option<Duration> {
        None
    }
}

/// Leads an answer to a command or a query that was understood, which follows.
const UNDERSTOOD: u8 = 0;
/// The whole answer to one that was not.
const NOT_UNDERSTOOD: u8 = 1;

/// A [`Machine`] as a [`StateMachine`].
#[derive(Clone, Debug, Default)]
pub struct Typed<M>(pub M);

impl<M: Machine> StateMachine for Typed<M> {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        let Some(command) = decode::<M, M::Command>(command) else { return answer(None) };
        let reply = self.0.apply(command, context);
        if context.reply_wanted { answer(Some(encode::<M, M::Reply>(&reply))) } else { Bytes::new() }
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        self.0.clock_moved(context, mover);
    }

    fn waits_for(&self) -> Option<Duration> {
        self.0.waits_for()
    }

    fn query(&self, query: &Bytes) -> Bytes {
        answer(decode::<M, M::Query>(query).map(|query| encode::<M, M::Answer>(&self.0.query(query))))
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(FrozenMachine(self.0.clone()))
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        self.0 = decode::<M, M>(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok(())
    }
}

struct FrozenMachine<M>(M);

impl<M: Machine> Frozen for FrozenMachine<M> {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&encode::<M, M>(&self.0))
    }
}

fn encode<M: Machine, T>(value: &T) -> Bytes
where
    M::Codec: Codec<T>,
{
    <M::Codec as Codec<T>>::encode(value)
}

fn decode<M: Machine, T>(bytes: &[u8]) -> Option<T>
where
    M::Codec: Codec<T>,
{
    <M::Codec as Codec<T>>::decode(bytes)
}

fn answer(encoded: Option<Bytes>) -> Bytes {
    let Some(encoded) = encoded else { return Bytes::from_static(&[NOT_UNDERSTOOD]) };
    let mut answer = BytesMut::with_capacity(1 + encoded.len());
    answer.put_u8(UNDERSTOOD);
    answer.extend_from_slice(&encoded);
    answer.freeze()
}

/// Why a typed command or query failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypedError {
    /// It met what any request can meet.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It met what a command of a session can meet.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The replica does not understand it: it runs another version of the state machine. Nothing was executed.
    #[error("the replica does not understand the request")]
    NotUnderstood,
    /// It was executed, and this process does not understand the answer.
    #[error("the answer cannot be decoded")]
    Answer,
}

impl TypedError {
    /// Whether the command may have been executed, or may still be; see [`RequestError::may_have_executed`].
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            TypedError::Request(error) => error.may_have_executed(),
            TypedError::Session(error) => error.may_have_executed(),
            TypedError::NotUnderstood => false,
            TypedError::Answer => true,
        }
    }
}

/// A [`Handle`] on a replica of a [`Typed`] machine.
pub struct TypedHandle<M> {
    handle: Handle,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine> TypedHandle<M> {
    /// Of a replica that runs a [`Typed`] `M`.
    #[must_use]
    pub fn new(handle: Handle) -> TypedHandle<M> {
        TypedHandle { handle, machine: PhantomData }
    }

    /// The handle for all that has no types of its own: sessions, changes of the group, status.
    #[must_use]
    pub fn untyped(&self) -> &Handle {
        &self.handle
    }

    /// Orders a command and executes it, at most once; see [`Handle::execute`].
    ///
    /// # Errors
    /// See [`TypedError`].
    pub async fn execute(&self, command: &M::Command) -> Result<M::Reply, TypedError> {
        answered::<M, M::Reply>(&self.handle.execute(encode::<M, M::Command>(command)).await?)
    }

    /// The same for a client that numbers its commands; see [`Handle::execute_in_session`].
    ///
    /// # Errors
    /// See [`TypedError`].
    pub async fn execute_in_session(
        &self,
        place: SessionCommand,
        command: &M::Command,
    ) -> Result<M::Reply, TypedError> {
        let command = encode::<M, M::Command>(command);
        answered::<M, M::Reply>(&self.handle.execute_in_session(place, command).await?)
    }

    /// Asks the state machine, linearizably; see [`Handle::query`].
    ///
    /// # Errors
    /// See [`TypedError`].
    pub async fn query(&self, query: &M::Query) -> Result<M::Answer, TypedError> {
        answered::<M, M::Answer>(&self.handle.query(encode::<M, M::Query>(query)).await?)
    }

    /// Asks the state machine as this replica has it; see [`Handle::query_stale`].
    ///
    /// # Errors
    /// See [`TypedError`].
    pub async fn query_stale(&self, query: &M::Query) -> Result<M::Answer, TypedError> {
        answered::<M, M::Answer>(&self.handle.query_stale(encode::<M, M::Query>(query)).await?)
    }
}

/// A [`Session`] whose commands are those of a [`Typed`] machine.
pub struct TypedSession<M, E = Handle> {
    session: Session<E>,
    machine: PhantomData<fn() -> M>,
}

impl<M: Machine, E: Endpoint> TypedSession<M, E> {
    /// Of a group that replicates a [`Typed`] `M`.
    #[must_use]
    pub fn new(session: Session<E>) -> TypedSession<M, E> {
        TypedSession { session, machine: PhantomData }
    }

    /// The session for all that has no types of its own.
    #[must_use]
    pub fn untyped(&self) -> &Session<E> {
        &self.session
    }

    /// Orders a command and executes it, once; see [`Session::execute`].
    ///
    /// # Errors
    /// See [`TypedError`].
    pub async fn execute(&self, command: &M::Command) -> Result<M::Reply, TypedError> {
        answered::<M, M::Reply>(&self.session.execute(encode::<M, M::Command>(command)).await?)
    }
}

impl<M, E> Clone for TypedSession<M, E> {
    fn clone(&self) -> TypedSession<M, E> {
        TypedSession { session: self.session.clone(), machine: PhantomData }
    }
}

impl<M, E: fmt::Debug> fmt::Debug for TypedSession<M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedSession").field(&self.session).finish()
    }
}

fn answered<M: Machine, T>(answer: &[u8]) -> Result<T, TypedError>
where
    M::Codec: Codec<T>,
{
    match answer.split_first() {
        Some((&UNDERSTOOD, encoded)) => decode::<M, T>(encoded).ok_or(TypedError::Answer),
        Some((&NOT_UNDERSTOOD, _)) => Err(TypedError::NotUnderstood),
        _ => Err(TypedError::Answer),
    }
}

impl<M> Clone for TypedHandle<M> {
    fn clone(&self) -> TypedHandle<M> {
        TypedHandle { handle: self.handle.clone(), machine: PhantomData }
    }
}

impl<M> fmt::Debug for TypedHandle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedHandle").field(&self.handle).finish()
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::Slot;

    use super::*;

    /// Waits until the clock moves.
    #[derive(Clone, Debug)]
    struct Timer {
        waits: bool,
    }

    /// Nothing but a timer is ever encoded here.
    #[derive(Debug)]
    struct OneByte;

    impl Codec<Timer> for OneByte {
        fn encode(timer: &Timer) -> Bytes {
            Bytes::copy_from_slice(&[timer.waits.into()])
        }

        fn decode(bytes: &[u8]) -> Option<Timer> {
            Some(Timer { waits: bytes == [1] })
        }
    }

    impl Machine for Timer {
        type Command = Timer;
        type Reply = Timer;
        type Query = Timer;
        type Answer = Timer;
        type Codec = OneByte;

        fn apply(&mut self, command: Timer, _: &Context) -> Timer {
            command
        }

        fn query(&self, query: Timer) -> Timer {
            query
        }

        fn clock_moved(&mut self, _: &Context, _: SessionId) {
            self.waits = false;
        }

        fn waits_for(&self) -> Option<Duration> {
            self.waits.then_some(Duration::ZERO)
        }
    }

    #[test]
    fn a_typed_machine_can_wait_for_the_clock() {
        let mut machine = Typed(Timer { waits: true });
        assert_eq!(StateMachine::waits_for(&machine), Some(Duration::ZERO));
        StateMachine::clock_moved(&mut machine, &Context::new(Slot(1)), SessionId(1));
        assert_eq!(StateMachine::waits_for(&machine), None);
    }
}
