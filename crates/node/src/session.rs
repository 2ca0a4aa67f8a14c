//! A client's session: commands that take effect once, however often they have to be sent.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use synod_replica::{RequestError, SessionCommand, SessionLimits};
use synod_sync::{thread, time::Instant};
use synod_wire::SessionId;
use tokio::sync::{self, Semaphore};

use crate::{Handle, blocking::blocking};

/// How long a session waits before it sends a request again that failed at once. Each further time it waits twice as
/// long, up to the longest pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where a [`Session`] sends its commands: a replica in this process, whose [`Handle`] is an endpoint, or a way of your
/// own to replicas elsewhere.
///
/// An endpoint sends a request once; the session sends it again, and then the endpoint may choose another replica,
/// since all of them know the session. It returns what the replica returned, but where that replica cannot answer and
/// another one may: [`RequestError::TakesNoPart`] becomes [`RequestError::NoLeader`], and so does a request that was
/// certainly not sent; [`RequestError::Stopping`] becomes [`RequestError::Timeout`], and so does a request whose answer
/// does not come.
pub trait Endpoint: Send + Sync {
    /// Opens a session; see [`Handle::open_session`].
    fn open_session(&self) -> impl Future<Output = Result<SessionId, RequestError>> + Send;

    /// Executes a command at its place in a session; see [`Handle::execute_in_session`].
    fn execute_in_session(
        &self,
        place: SessionCommand,
        command: Bytes,
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// How long a session may be idle before the group closes it ([`SessionLimits::idle_max`], whose default this is
    /// unless the endpoint knows better).
    fn idle_max(&self) -> Duration {
        SessionLimits::default().idle_max
    }
}

impl Endpoint for Handle {
    async fn open_session(&self) -> Result<SessionId, RequestError> {
        Handle::open_session(self).await
    }

    async fn execute_in_session(&self, place: SessionCommand, command: Bytes) -> Result<Bytes, RequestError> {
        Handle::execute_in_session(self, place, command).await
    }

    fn idle_max(&self) -> Duration {
        self.limits().sessions.idle_max
    }
}

/// Why a command of a [`Session`] was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The group closed the session before the command was answered: it may have been executed, once, and nobody can
    /// tell any more. It is not sent again. The next command opens the session again.
    #[error("the session has expired, and whether the command was executed can no longer be told")]
    Expired,
    /// The session could not be opened, at first or again, so the command was not sent.
    #[error("the session could not be opened, and the command was not sent: {0}")]
    Unopened(RequestError),
    /// The command failed for good, or the time in which it is sent again was over.
    #[error("{error}{}", if *in_doubt { "; it was sent before, and may have been executed then" } else { "" })]
    #[non_exhaustive]
    Request {
        /// Why it failed when it was sent last.
        error: RequestError,
        /// Whether it was sent before that, so that it may have been executed, or may still be.
        in_doubt: bool,
    },
}

impl SessionError {
    /// Whether the command may have been executed, or may still be. `false` is certain.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self {
            SessionError::Expired => true,
            SessionError::Unopened(_) => false,
            SessionError::Request { error, in_doubt } => *in_doubt || error.may_have_executed(),
        }
    }
}

/// A session with the state machine, whose commands are executed exactly once if they are answered, and at most once
/// otherwise.
///
/// The session numbers its commands, and sends one that gets no answer again under its number, so that nobody has to
/// ask whether it was executed ([`RequestError::may_have_executed`]). Several commands may be outstanding, and these
/// are executed in any order. The lowest number that is outstanding goes with each command, and the group keeps the
/// replies from there on ([`SessionLimits`]).
///
/// The group closes sessions that are idle for too long ([`SessionLimits::idle_max`]), and the idlest one where there
/// are too many. So a session that has been idle for half of that time is opened again, under another number
/// ([`Session::id`]), before its next command is sent. If the group closes it all the same, the commands that are
/// outstanding fail with [`SessionError::Expired`]: for them, and for no others, it can no longer be told whether they
/// were executed.
///
/// Clones are the same session. The future of a command may be dropped at any time, and the command be executed all the
/// same, at most once.
#[derive(Debug)]
pub struct Session<E = Handle> {
    shared: Arc<Shared<E>>,
}

#[derive(Debug)]
struct Shared<E> {
    endpoint: E,
    retry_for: Duration,
    /// Bounds the outstanding commands, and with them the replies that the group keeps for this session.
    room: Semaphore,
    present: Mutex<Arc<Opened>>,
    /// Held while the session is opened again.
    opening: sync::Mutex<()>,
    pauses: Pauses,
}

/// The session as it was opened once.
#[derive(Debug)]
struct Opened {
    id: SessionId,
    commands: Mutex<Commands>,
}

#[derive(Debug)]
struct Commands {
    /// The last number that was given to one.
    last: u64,
    /// The numbers of those that are outstanding.
    outstanding: BTreeSet<u64>,
    /// When one was answered last, or the session was opened; `None` if the group does not know the session any more.
    answered: Option<Instant>,
}

/// No code that can panic runs under the locks of this file, so what they guard is sound even if they are poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Endpoint> Session<E> {
    /// Opens a session, which is itself a command in the replicated log. At most `outstanding_max` of its commands are
    /// outstanding at a time, and further ones wait; the group bounds them as well
    /// ([`SessionLimits::outstanding_max`]). After `retry_for` a command that has failed is not sent again. Each
    /// attempt takes the time that the endpoint gives it, with a [`Handle`] the request time-out, after a place in its
    /// queue, for which it waits while that is full.
    ///
    /// # Errors
    /// [`SessionError::Unopened`].
    ///
    /// # Panics
    /// If `outstanding_max` is 0.
    pub async fn open(
        endpoint: E,
        outstanding_max: usize,
        retry_for: Duration,
    ) -> Result<Session<E>, SessionError> {
        assert!(outstanding_max > 0, "outstanding_max is 0, so that no command could ever be sent");
        let pauses = Pauses::default();
        let opened = open(&endpoint, &mut Attempts::begin(retry_for, &pauses)).await?;
        let room = Semaphore::new(outstanding_max.min(Semaphore::MAX_PERMITS));
        let (present, opening) = (Mutex::new(Arc::new(opened)), sync::Mutex::new(()));
        Ok(Session { shared: Arc::new(Shared { endpoint, retry_for, room, present, opening, pauses }) })
    }

    /// Orders a command and executes it, once. Returns the state machine's reply.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub async fn execute(&self, command: Bytes) -> Result<Bytes, SessionError> {
        let shared = &*self.shared;
        let _room = shared.room.acquire().await.expect("the semaphore is never closed");
        let (mut attempts, mut in_doubt) = (Attempts::begin(shared.retry_for, &shared.pauses), false);
        let opened = shared.fresh(&mut attempts).await?;
        let number = Number::take(&opened);
        loop {
            let sent = shared.endpoint.execute_in_session(number.place(), command.clone()).await;
            match sent {
                Ok(reply) => {
                    opened.answered();
                    return Ok(reply);
                }
                // Also of a command that was sent once: a replica orders it again where a leader may have lost it.
                Err(RequestError::SessionExpired) => {
                    opened.commands().answered = None;
                    return Err(SessionError::Expired);
                }
                Err(error) if !recovers(error) => return Err(SessionError::Request { error, in_doubt }),
                Err(error) => {
                    if !attempts.again().await {
                        return Err(SessionError::Request { error, in_doubt });
                    }
                    in_doubt |= error.may_have_executed();
                }
            }
        }
    }

    /// The session's number, which the state machine is told with its commands
    /// ([`Context::session`](synod_replica::Context)). It is another one once the session was opened again.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.shared.present().id
    }

    /// Where the commands go.
    #[must_use]
    pub fn endpoint(&self) -> &E {
        &self.shared.endpoint
    }
}

impl<E> Clone for Session<E> {
    fn clone(&self) -> Session<E> {
        Session { shared: Arc::clone(&self.shared) }
    }
}

impl<E> Shared<E> {
    fn present(&self) -> Arc<Opened> {
        Arc::clone(&lock(&self.present))
    }
}

impl<E: Endpoint> Shared<E> {
    /// The session, which is opened again if it has expired, or may have.
    async fn fresh(&self, attempts: &mut Attempts<'_>) -> Result<Arc<Opened>, SessionError> {
        let is_fresh = |opened: &Opened| {
            let answered = opened.commands().answered;
            answered.is_some_and(|answered| answered.elapsed() < self.endpoint.idle_max() / 2)
        };
        let present = self.present();
        if is_fresh(&present) {
            return Ok(present);
        }
        let (_opening, others_tried) = match self.opening.try_lock() {
            Ok(opening) => (opening, false),
            Err(_) => (self.opening.lock().await, true),
        };
        // Another command may have opened it meanwhile.
        let present = self.present();
        if is_fresh(&present) {
            return Ok(present);
        }
        // Or has tried to for as long as this one has time.
        if others_tried && attempts.is_over() {
            return Err(SessionError::Unopened(RequestError::NoLeader));
        }
        let opened = Arc::new(open(&self.endpoint, attempts).await?);
        // Without its number: with that anybody could execute commands in it.
        tracing::debug!("a session is opened again");
        *lock(&self.present) = Arc::clone(&opened);
        Ok(opened)
    }
}

impl Opened {
    fn commands(&self) -> MutexGuard<'_, Commands> {
        lock(&self.commands)
    }

    /// The group has answered a command.
    fn answered(&self) {
        // An answer that comes late does not open what has expired.
        if let Some(answered) = &mut self.commands().answered {
            *answered = Instant::now();
        }
    }
}

async fn open(endpoint: &impl Endpoint, attempts: &mut Attempts<'_>) -> Result<Opened, SessionError> {
    loop {
        // If two attempts open sessions, one of them is never used and expires.
        let error = match endpoint.open_session().await {
            Ok(id) => {
                let answered = Some(Instant::now());
                let commands = Commands { last: 0, outstanding: BTreeSet::new(), answered };
                return Ok(Opened { id, commands: Mutex::new(commands) });
            }
            Err(error) => error,
        };
        if !recovers(error) || !attempts.again().await {
            return Err(SessionError::Unopened(error));
        }
    }
}

/// Whether a request that failed so may be answered when it is sent again.
fn recovers(error: RequestError) -> bool {
    matches!(
        error,
        RequestError::NoLeader
            | RequestError::Timeout
            | RequestError::OutcomeUnknown
            | RequestError::Overloaded
            | RequestError::TooFarAhead
            // An earlier request of the command came after this one, and brings its reply.
            | RequestError::Superseded
    )
}

/// Where commands wait that have failed at once. Futures of this crate belong to no runtime, and so have no timer: one
/// thread sleeps, for all of them.
#[derive(Debug, Default)]
struct Pauses {
    turn: sync::Mutex<()>,
}

impl Pauses {
    /// Waits until so long after `since`, or a little longer if others wait too; false if the system gives no thread.
    async fn wait(&self, since: Instant, pause: Duration) -> bool {
        let _turn = self.turn.lock().await;
        let left = pause.saturating_sub(since.elapsed());
        left.is_zero() || blocking("pause", move || thread::sleep(left)).await.is_ok()
    }
}

/// The attempts of one command.
struct Attempts<'a> {
    began: Instant,
    retry_for: Duration,
    /// When the last attempt began.
    last: Instant,
    pause: Duration,
    pauses: &'a Pauses,
}

impl Attempts<'_> {
    fn begin(retry_for: Duration, pauses: &Pauses) -> Attempts<'_> {
        let now = Instant::now();
        Attempts { began: now, retry_for, last: now, pause: PAUSE_MIN, pauses }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.retry_for
    }

    /// Waits until the request may be sent again; false if it may not.
    async fn again(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if self.last.elapsed() < self.pause {
            if !self.pauses.wait(Instant::now(), self.pause).await {
                return false;
            }
            self.pause = PAUSE_MAX.min(self.pause * 2);
        }
        self.last = Instant::now();
        true
    }
}

/// The number of an outstanding command. Dropping it says that the command is answered, or not waited for any more.
#[derive(Debug)]
struct Number<'a> {
    opened: &'a Opened,
    sequence: u64,
}

impl Number<'_> {
    fn take(opened: &Opened) -> Number<'_> {
        let mut commands = opened.commands();
        commands.last += 1;
        let sequence = commands.last;
        commands.outstanding.insert(sequence);
        Number { opened, sequence }
    }

    /// The place of the command, as it is to be told now.
    fn place(&self) -> SessionCommand {
        let commands = self.opened.commands();
        let lowest_outstanding = *commands.outstanding.first().expect("this number is outstanding");
        SessionCommand { session: self.opened.id, sequence: self.sequence, lowest_outstanding }
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.opened.commands().outstanding.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const PERMITS: usize = 100;

    /// Answers commands, or fails as it is told to, and remembers where in the session they were.
    #[derive(Debug)]
    struct Script {
        answers: Mutex<VecDeque<Option<RequestError>>>,
        places: Mutex<Vec<SessionCommand>>,
        opened: AtomicU64,
        /// Sessions are not opened.
        refuses: AtomicBool,
        /// A command takes a permit before it is answered.
        gate: Semaphore,
        idle_max: Duration,
    }

    impl Default for Script {
        fn default() -> Script {
            Script {
                answers: Mutex::default(),
                places: Mutex::default(),
                opened: AtomicU64::new(0),
                refuses: AtomicBool::new(false),
                gate: Semaphore::new(PERMITS),
                idle_max: LONG,
            }
        }
    }

    impl Endpoint for Script {
        async fn open_session(&self) -> Result<SessionId, RequestError> {
            tokio::task::yield_now().await;
            if self.refuses.load(SeqCst) {
                return Err(RequestError::Timeout);
            }
            Ok(SessionId(self.opened.fetch_add(1, SeqCst) + 1))
        }

        async fn execute_in_session(&self, place: SessionCommand, _: Bytes) -> Result<Bytes, RequestError> {
            lock(&self.places).push(place);
            self.gate.acquire().await.expect("it is never closed").forget();
            lock(&self.answers).pop_front().flatten().map_or(Ok(Bytes::new()), Err)
        }

        fn idle_max(&self) -> Duration {
            self.idle_max
        }
    }

    /// A session with three commands outstanding at most, at an endpoint that answers so.
    async fn session<const N: usize>(
        answers: [Option<RequestError>; N],
        retry_for: Duration,
    ) -> Session<Script> {
        let script = Script { answers: Mutex::new(answers.into()), ..Script::default() };
        Session::open(script, 3, retry_for).await.unwrap()
    }

    /// Session, number and lowest outstanding number of each command that was sent.
    fn sent(session: &Session<Script>) -> Vec<(u64, u64, u64)> {
        let places = lock(&session.endpoint().places);
        places.iter().map(|place| (place.session.0, place.sequence, place.lowest_outstanding)).collect()
    }

    #[tokio::test]
    async fn a_command_is_sent_under_its_number_until_it_is_answered() {
        use RequestError::*;
        let failures = [Timeout, NoLeader, OutcomeUnknown, Overloaded, TooFarAhead, Superseded];
        let session = session(failures.map(Some), LONG).await;
        for _ in 0..2 {
            session.execute(Bytes::new()).await.unwrap();
        }
        assert_eq!(sent(&session), [vec![(1, 1, 1); 7], vec![(1, 2, 2)]].concat());
    }

    #[tokio::test]
    async fn what_cannot_be_answered_is_given_up_with_what_is_known_of_it() {
        use RequestError::*;
        let error = |error, in_doubt| Err(SessionError::Request { error, in_doubt });
        let session = session([TooLarge, Timeout, TooLarge, Timeout, Stopping].map(Some), LONG).await;
        let execute = async || session.execute(Bytes::new()).await;
        assert_eq!(execute().await, error(TooLarge, false));
        let doubtful = execute().await;
        assert_eq!(doubtful, error(TooLarge, true));
        assert!(doubtful.unwrap_err().may_have_executed());
        assert_eq!(execute().await, error(Stopping, true));
        assert_eq!(sent(&session).len(), 5);

        let session = self::session([Some(NoLeader)], Duration::ZERO).await;
        let given_up = session.execute(Bytes::new()).await;
        assert_eq!(given_up, error(NoLeader, false));
        assert!(!given_up.unwrap_err().may_have_executed());
        session.execute(Bytes::new()).await.unwrap();
        assert_eq!(sent(&session), [(1, 1, 1), (1, 2, 2)]);
    }

    #[tokio::test]
    async fn a_session_that_has_expired_says_so_to_what_was_sent_and_is_opened_again() {
        use RequestError::*;
        let expired = Some(SessionExpired);
        let session = session([Some(Timeout), expired, None, expired, expired], LONG).await;
        let execute = async || session.execute(Bytes::new()).await;
        assert_eq!(execute().await, Err(SessionError::Expired));
        execute().await.unwrap();
        assert_eq!(session.id(), SessionId(2));
        let gate = &session.endpoint().gate;
        gate.forget_permits(PERMITS);
        let both = async { tokio::join!(execute(), execute()) };
        let (both, ()) = tokio::join!(both, async { gate.add_permits(PERMITS) });
        assert_eq!(both, (Err(SessionError::Expired), Err(SessionError::Expired)));
        // Of several, one opens it again.
        let both = tokio::join!(execute(), execute());
        assert!(both.0.is_ok() && both.1.is_ok());
        let places = [(1, 1, 1), (1, 1, 1), (2, 1, 1), (2, 2, 2), (2, 3, 2), (3, 1, 1), (3, 2, 2)];
        assert_eq!(sent(&session), places);
    }

    #[tokio::test]
    async fn a_session_that_was_idle_is_opened_again_before_it_is_used() {
        let answers = Mutex::new([None, Some(RequestError::Timeout)].into());
        let script = Script { answers, idle_max: Duration::ZERO, ..Script::default() };
        let session = Session::open(script, 3, LONG).await.unwrap();
        for _ in 0..2 {
            session.execute(Bytes::new()).await.unwrap();
        }
        assert_eq!(sent(&session), [(2, 1, 1), (3, 1, 1), (3, 1, 1)]);
    }

    #[tokio::test]
    async fn commands_of_a_session_that_cannot_be_opened_again_were_not_sent() {
        for retry_for in [Duration::ZERO, Duration::from_millis(50)] {
            let script = Script { idle_max: Duration::ZERO, ..Script::default() };
            let session = Session::open(script, 3, retry_for).await.unwrap();
            let execute = || session.execute(Bytes::new());
            session.endpoint().refuses.store(true, SeqCst);
            let (one, two, three) = tokio::join!(execute(), execute(), execute());
            for refused in [one, two, three].map(Result::unwrap_err) {
                assert!(matches!(refused, SessionError::Unopened(_)) && !refused.may_have_executed());
            }
            assert!(sent(&session).is_empty());
            session.endpoint().refuses.store(false, SeqCst);
            execute().await.unwrap();
        }
    }

    #[tokio::test]
    async fn outstanding_commands_are_bounded_and_the_lowest_one_is_told() {
        let session = session([], LONG).await;
        let gate = &session.endpoint().gate;
        gate.forget_permits(PERMITS);
        let execute = || session.execute(Bytes::new());
        let four = async { tokio::join!(execute(), execute(), execute(), execute()) };
        let ((one, two, three, four), ()) = tokio::join!(four, async {
            // All commands that may be sent have been by then.
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(sent(&session), [(1, 1, 1), (1, 2, 1), (1, 3, 1)]);
            gate.add_permits(1);
            while sent(&session).len() < 4 {
                tokio::task::yield_now().await;
            }
            gate.add_permits(3);
        });
        assert!([one, two, three, four].iter().all(Result::is_ok));
        assert_eq!(sent(&session)[3], (1, 4, 2));
    }

    #[tokio::test]
    async fn a_command_that_is_dropped_is_not_waited_for_any_more() {
        let session = session([], LONG).await;
        session.endpoint().gate.forget_permits(PERMITS);
        let dropped = tokio::time::timeout(Duration::from_millis(1), session.execute(Bytes::new())).await;
        assert!(dropped.is_err());
        session.endpoint().gate.add_permits(1);
        session.execute(Bytes::new()).await.unwrap();
        assert_eq!(sent(&session), [(1, 1, 1), (1, 2, 2)]);
    }
}
