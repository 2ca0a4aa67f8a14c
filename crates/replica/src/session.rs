//! At-most-once execution.
//!
//! A command may be ordered twice: a client that got no answer sends it again, or a replica proposes it again to
//! a new leader. The session table, which is part of the replicated state, sees to it that it is executed once.
//!
//! There are two kinds of sessions. **Clients** that identify themselves open one through the log; it caches
//! the replies that the client may still ask for. **Replicas** have one for all requests that carry no
//! identity (those of the etcd API); it is implied by the replica's id and life, and caches nothing, since a
//! replica sees its own commands executed.
//!
//! Unlike JPaxos' reply cache (Santos 2012, section 7.8), which keeps one reply per client and so requires
//! one outstanding command per client, a session may have many: every command names the lowest one that the
//! session still waits for, and everything below is forgotten.
//!
//! Which commands were executed is remembered apart from their replies. That takes one bit per command, and
//! is kept as long as the session: without it a command would be executed twice. Replies may be of any size,
//! so they are bounded in bytes, those of a session and those of the whole table: the oldest reply goes
//! first, and a client that asks again for a reply that is gone is told that its command was executed and
//! that the reply is gone. The bounds belong to the group, and replies are dropped when commands are
//! executed, so all replicas forget the same replies in the same slots.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use synod_wire::{Life, ReplicaId, SessionId, Slot};

use crate::Tick;

/// Whether this is a replica's session, which no client may use.
pub(crate) fn is_replica(session: SessionId) -> bool {
    session.of_replica().is_some()
}

/// The limits of the table: a part of the [`Limits`](crate::Limits) that belong to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLimits {
    /// How many sessions of clients there may be; opening one more closes the one that was idle longest.
    pub clients_max: usize,
    /// How far a sequence number of a client may be above its lowest outstanding one: at most this many
    /// replies are cached.
    pub outstanding_max: u64,
    /// Bytes of cached replies of one session, each counted with [`REPLY_OVERHEAD_BYTES`] more than it has. A
    /// reply that is larger by itself is not cached.
    pub session_reply_bytes_max: u64,
    /// The same for the replies of all sessions together.
    pub reply_bytes_max: u64,
    /// As `outstanding_max`, for a replica, whose replies are not cached.
    pub replica_outstanding_max: u64,
    /// A client's session that is idle for longer is closed.
    pub idle_max: Duration,
}

/// What a cached reply costs in memory besides its own bytes: its entries in two maps and its allocation.
pub const REPLY_OVERHEAD_BYTES: u64 = 128;

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            clients_max: 10_000,
            outstanding_max: 1 << 10,
            session_reply_bytes_max: 8 << 20,
            reply_bytes_max: 256 << 20,
            replica_outstanding_max: 1 << 18,
            idle_max: Duration::from_secs(600),
        }
    }
}

/// What to do with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Execute it, and tell the table with [`SessionTable::executed`].
    Execute,
    /// The command was executed before; the reply, if it is cached (still: see [`SessionLimits`]; a replica's
    /// never is).
    Repeat(Option<Bytes>),
    /// The session does not wait for it any more.
    Stale,
    /// The number is too far above the lowest outstanding one.
    TooFarAhead,
    /// There is no such session.
    Unknown,
}

/// Which commands above a floor were executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Window {
    /// Sequence numbers through this one are executed or given up.
    floor: u64,
    /// Whether `floor + 1`, `floor + 2`, ... were executed.
    done: VecDeque<bool>,
}

impl Window {
    fn raise(&mut self, floor: u64) {
        while self.floor < floor && self.done.pop_front().is_some() {
            self.floor += 1;
        }
        self.floor = self.floor.max(floor);
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.floor + 1)?).ok()
    }

    fn contains(&self, sequence: u64) -> bool {
        self.index(sequence).and_then(|index| self.done.get(index)).copied().unwrap_or(false)
    }

    fn insert(&mut self, sequence: u64) {
        let index = self.index(sequence).expect("only commands above the floor are executed");
        if index >= self.done.len() {
            self.done.resize(index + 1, false);
        }
        self.done[index] = true;
    }

    /// What to do with a command; `reply` finds the cached one if the command was executed, and `too_far` says that
    /// its number is too far above the lowest outstanding one.
    fn verdict(&self, sequence: u64, too_far: bool, reply: impl FnOnce() -> Option<Bytes>) -> Verdict {
        if sequence <= self.floor {
            Verdict::Stale
        } else if self.contains(sequence) {
            Verdict::Repeat(reply())
        } else if too_far {
            Verdict::TooFarAhead
        } else {
            Verdict::Execute
        }
    }
}

/// A reply that its client may still ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cached {
    /// The number of the reply; replies are numbered in the order in which they were made.
    age: u64,
    reply: Bytes,
}

/// How many bytes a reply counts against the bounds.
fn cost(reply: &Bytes) -> u64 {
    reply.len() as u64 + REPLY_OVERHEAD_BYTES
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientSession {
    window: Window,
    /// The replies by sequence number; those of some commands in the window are gone.
    replies: BTreeMap<u64, Cached>,
    /// The sum of their costs.
    reply_bytes: u64,
    /// When the last command came, on the replicated clock in milliseconds.
    active_ms: u64,
    /// The slot of that command, which orders sessions of the same instant.
    active_slot: Slot,
}

/// The sessions as they are after one command. A clone takes a reference to each session and copies none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    /// The latest life of each replica, as its session names it.
    replicas: BTreeMap<ReplicaId, Arc<(Life, Window)>>,
    clients: BTreeMap<SessionId, Arc<ClientSession>>,
    last_opened: u64,
    /// The replicated clock: it advances when leaders say so, through the log.
    clock_ms: u64,
    /// The age of the last reply that was cached.
    last_age: u64,
}

/// The replicated table of sessions.
#[derive(Clone, Debug)]
pub struct SessionTable {
    limits: SessionLimits,
    sessions: Sessions,
    /// The session and the number of each cached reply, the oldest first.
    by_age: BTreeMap<u64, (SessionId, u64)>,
    /// The cost of all cached replies.
    reply_bytes: u64,
}

impl SessionTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: SessionLimits) -> SessionTable {
        SessionTable { limits, sessions: Sessions::default(), by_age: BTreeMap::new(), reply_bytes: 0 }
    }

    /// Sets other limits. What exceeds them is dropped at once, so at every replica in the same slot.
    pub(crate) fn set_limits(&mut self, limits: SessionLimits) {
        self.close_idlest(limits.clients_max);
        // Each session is bounded by itself first: what it has to forget anyway makes room for the others.
        self.limits = SessionLimits { reply_bytes_max: u64::MAX, ..limits };
        let ids: Vec<SessionId> = self.sessions.clients.keys().copied().collect();
        ids.iter().for_each(|&id| self.forget_too_many(id));
        self.limits = limits;
        if let Some(&id) = ids.first() {
            self.forget_too_many(id);
        }
    }

    /// How many sessions of clients there are.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.sessions.clients.len()
    }

    /// How many bytes all cached replies count against [`SessionLimits::reply_bytes_max`].
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.reply_bytes
    }

    /// How many bytes the replies of the session that caches most count against
    /// [`SessionLimits::session_reply_bytes_max`].
    #[must_use]
    pub fn largest_session_bytes(&self) -> u64 {
        self.sessions.clients.values().map(|client| client.reply_bytes).max().unwrap_or(0)
    }

    /// The sessions as they are now, for a snapshot.
    #[must_use]
    pub fn freeze(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Opens a session for a client. A full table closes the session that was idle longest.
    pub fn open(&mut self, slot: Slot) -> SessionId {
        self.close_idlest(self.limits.clients_max - 1);
        self.sessions.last_opened += 1;
        let id = SessionId(self.sessions.last_opened);
        let session = ClientSession {
            window: Window::default(),
            replies: BTreeMap::new(),
            reply_bytes: 0,
            active_ms: self.sessions.clock_ms,
            active_slot: slot,
        };
        self.sessions.clients.insert(id, Arc::new(session));
        id
    }

    /// Counts sessions of clients as opened, through this number.
    pub fn skip(&mut self, through: u64) {
        self.sessions.last_opened = self.sessions.last_opened.max(through);
    }

    /// Closes the sessions that were idle longest, until this many are left.
    fn close_idlest(&mut self, clients_max: usize) {
        while self.sessions.clients.len() > clients_max {
            let clients = self.sessions.clients.iter();
            let idlest = clients.min_by_key(|(_, session)| (session.active_ms, session.active_slot));
            let idlest = idlest.map(|(&id, _)| id).expect("there is one");
            self.close(idlest);
        }
    }

    fn close(&mut self, id: SessionId) {
        let Some(client) = self.sessions.clients.remove(&id) else { return };
        self.reply_bytes -= client.reply_bytes;
        for cached in client.replies.values() {
            self.by_age.remove(&cached.age);
        }
    }

    /// What the replicated clock shows, in milliseconds.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.sessions.clock_ms
    }

    /// Advances the clock, and closes what was idle for too long. A tick that was made for another instant
    /// does nothing.
    pub fn advance_clock(&mut self, tick: Tick) {
        if tick.from != self.sessions.clock_ms {
            return;
        }
        let clock_ms = tick.from.saturating_add(tick.by);
        self.sessions.clock_ms = clock_ms;
        let idle_max = u64::try_from(self.limits.idle_max.as_millis()).unwrap_or(u64::MAX);
        let clients = self.sessions.clients.iter();
        let idle = clients.filter(|(_, session)| clock_ms - session.active_ms > idle_max);
        let idle: Vec<SessionId> = idle.map(|(&id, _)| id).collect();
        idle.into_iter().for_each(|id| self.close(id));
    }

    /// Decides what to do with a command, and forgets what its session does not wait for any more.
    pub fn check(
        &mut self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        slot: Slot,
    ) -> Verdict {
        let floor = lowest_outstanding.saturating_sub(1);
        let distance = sequence.saturating_sub(lowest_outstanding);
        if let Some((replica, life)) = session.of_replica() {
            let too_far = distance >= self.limits.replica_outstanding_max;
            let (latest, window) = Arc::make_mut(self.sessions.replicas.entry(replica).or_default());
            if life < *latest {
                return Verdict::Stale;
            }
            if life > *latest {
                *latest = life;
                *window = Window::default();
            }
            window.raise(floor);
            return window.verdict(sequence, too_far, || None);
        }
        let Some(client) = self.sessions.clients.get_mut(&session) else { return Verdict::Unknown };
        let client = Arc::make_mut(client);
        client.active_ms = self.sessions.clock_ms;
        client.active_slot = slot;
        client.window.raise(floor);
        while let Some(answered) = client.replies.first_entry().filter(|entry| *entry.key() <= floor) {
            let Cached { age, reply } = answered.remove();
            self.by_age.remove(&age);
            client.reply_bytes -= cost(&reply);
            self.reply_bytes -= cost(&reply);
        }
        let too_far = distance >= self.limits.outstanding_max;
        let reply = || client.replies.get(&sequence).map(|cached| cached.reply.clone());
        client.window.verdict(sequence, too_far, reply)
    }

    /// Records that a command was executed, with this reply.
    pub fn executed(&mut self, session: SessionId, sequence: u64, reply: &Bytes) {
        if let Some((replica, _)) = session.of_replica() {
            let entry = self.sessions.replicas.get_mut(&replica).expect("checked just before");
            Arc::make_mut(entry).1.insert(sequence);
            return;
        }
        // No program makes a command that ends its own session, as one of the clock's can. If one is decided all the
        // same, no replica may end because of it.
        let Some(client) = self.sessions.clients.get_mut(&session) else { return };
        let client = Arc::make_mut(client);
        client.window.insert(sequence);
        let (bytes, limits) = (cost(reply), self.limits);
        if bytes > limits.session_reply_bytes_max.min(limits.reply_bytes_max) {
            // All other replies would have to go, and this one as well.
            return;
        }
        self.sessions.last_age += 1;
        let age = self.sessions.last_age;
        client.replies.insert(sequence, Cached { age, reply: reply.clone() });
        client.reply_bytes += bytes;
        self.by_age.insert(age, (session, sequence));
        self.reply_bytes += bytes;
        self.forget_too_many(session);
    }

    fn forget_too_many(&mut self, session: SessionId) {
        while let Some(oldest) = self.oldest_too_many(session) {
            self.forget(oldest);
        }
    }

    /// The age of the reply that has to go next: the oldest of this session if that caches too much, or the
    /// oldest of all.
    fn oldest_too_many(&self, session: SessionId) -> Option<u64> {
        let client = &self.sessions.clients[&session];
        if client.reply_bytes > self.limits.session_reply_bytes_max {
            return client.replies.values().map(|cached| cached.age).min();
        }
        let too_many = self.reply_bytes > self.limits.reply_bytes_max;
        self.by_age.keys().next().copied().filter(|_| too_many)
    }

    fn forget(&mut self, age: u64) {
        let (session, sequence) = self.by_age.remove(&age).expect("it is cached");
        let client = self.sessions.clients.get_mut(&session).expect("whose replies are cached has a session");
        let client = Arc::make_mut(client);
        let Cached { reply, .. } = client.replies.remove(&sequence).expect("it is cached");
        client.reply_bytes -= cost(&reply);
        self.reply_bytes -= cost(&reply);
    }

    /// A table that goes on from these sessions.
    #[must_use]
    pub fn of(sessions: Sessions, limits: SessionLimits) -> SessionTable {
        let mut by_age = BTreeMap::new();
        for (&id, client) in &sessions.clients {
            by_age.extend(client.replies.iter().map(|(&sequence, cached)| (cached.age, (id, sequence))));
        }
        let reply_bytes = sessions.clients.values().map(|client| client.reply_bytes).sum();
        SessionTable { limits, sessions, by_age, reply_bytes }
    }
}

impl Sessions {
    /// The same without what any session has executed, which only a planted bug wants.
    pub(crate) fn forgetful(self) -> Sessions {
        Sessions { replicas: BTreeMap::new(), clients: BTreeMap::new(), ..self }
    }

    /// Writes the sessions, one after the other.
    ///
    /// ```text
    /// sessions := last_opened u64 | clock_ms u64 | last_age u64 | count u32 replica* | count u32 client*
    /// replica  := id u64 | incarnation u64 | window
    /// client   := id u64 | active_ms u64 | active_slot u64 | window | count u32 reply*
    /// reply    := sequence u64 | age u64 | length u32 | bytes
    /// window   := floor u64 | count u32 | bool u8 *
    /// ```
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        put_u64(out, self.last_opened)?;
        put_u64(out, self.clock_ms)?;
        put_u64(out, self.last_age)?;
        put_count(out, self.replicas.len())?;
        for (replica, session) in &self.replicas {
            let (life, window) = &**session;
            put_u64(out, replica.0)?;
            put_u64(out, life.0)?;
            window.write_to(out)?;
        }
        put_count(out, self.clients.len())?;
        for (id, client) in &self.clients {
            put_u64(out, id.0)?;
            put_u64(out, client.active_ms)?;
            put_u64(out, client.active_slot.0)?;
            client.window.write_to(out)?;
            put_count(out, client.replies.len())?;
            for (sequence, Cached { age, reply }) in &client.replies {
                put_u64(out, *sequence)?;
                put_u64(out, *age)?;
                put_count(out, reply.len())?;
                out.write_all(reply)?;
            }
        }
        Ok(())
    }

    /// Reads what [`Sessions::write_to`] wrote, and nothing after it.
    ///
    /// # Errors
    /// Those of `input`; [`io::ErrorKind::InvalidData`] for what no table writes.
    pub fn read_from(input: &mut dyn Read) -> io::Result<Sessions> {
        let mut sessions = Sessions {
            last_opened: take_u64(input)?,
            clock_ms: take_u64(input)?,
            last_age: take_u64(input)?,
            ..Sessions::default()
        };
        for _ in 0..take_u32(input)? {
            let replica = ReplicaId(take_u64(input)?);
            let life = Life(take_u64(input)?);
            sessions.replicas.insert(replica, Arc::new((life, Window::read_from(input)?)));
        }
        for _ in 0..take_u32(input)? {
            let id = SessionId(take_u64(input)?);
            let (active_ms, active_slot) = (take_u64(input)?, Slot(take_u64(input)?));
            let window = Window::read_from(input)?;
            let (replies, reply_bytes) = (BTreeMap::new(), 0);
            let mut client = ClientSession { window, replies, reply_bytes, active_ms, active_slot };
            for _ in 0..take_u32(input)? {
                let (sequence, age) = (take_u64(input)?, take_u64(input)?);
                if !client.window.contains(sequence) || age > sessions.last_age {
                    return Err(invalid("a reply of a command that was not executed"));
                }
                let reply = take_bytes(input)?;
                client.reply_bytes += cost(&reply);
                client.replies.insert(sequence, Cached { age, reply });
            }
            sessions.clients.insert(id, Arc::new(client));
        }
        Ok(sessions)
    }
}

impl Window {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        put_u64(out, self.floor)?;
        put_count(out, self.done.len())?;
        let done: Vec<u8> = self.done.iter().map(|&done| u8::from(done)).collect();
        out.write_all(&done)
    }

    fn read_from(input: &mut dyn Read) -> io::Result<Window> {
        let mut window = Window { floor: take_u64(input)?, done: VecDeque::new() };
        for _ in 0..take_u32(input)? {
            let [done] = take(input)?;
            window.done.push_back(done == 1);
            if done > 1 {
                return Err(invalid("whether a command was executed is neither 0 nor 1"));
            }
        }
        Ok(window)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("session table: {what}"))
}

fn put_u64(out: &mut dyn Write, value: u64) -> io::Result<()> {
    out.write_all(&value.to_le_bytes())
}

fn put_count(out: &mut dyn Write, count: usize) -> io::Result<()> {
    let count = u32::try_from(count).map_err(|_| invalid("more than 4 G of something"))?;
    out.write_all(&count.to_le_bytes())
}

fn take<const N: usize>(input: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_u32(input: &mut dyn Read) -> io::Result<u32> {
    take(input).map(u32::from_le_bytes)
}

fn take_u64(input: &mut dyn Read) -> io::Result<u64> {
    take(input).map(u64::from_le_bytes)
}

/// Memory is allocated for bytes that are there, not for a length that claims so.
fn take_bytes(input: &mut dyn Read) -> io::Result<Bytes> {
    let len = take_u32(input)?;
    let mut bytes = Vec::new();
    input.take(len.into()).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == u64::from(len) {
        Ok(bytes.into())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{Incarnation, replica_session};

    fn run(table: &mut SessionTable, session: SessionId, sequence: u64, lowest: u64) -> Verdict {
        let verdict = table.check(session, sequence, lowest, Slot(1));
        if verdict == Verdict::Execute {
            table.executed(session, sequence, &Bytes::from(format!("reply {sequence}")));
        }
        verdict
    }

    #[test]
    fn a_client_gets_its_cached_reply_once_executed() {
        let mut table = SessionTable::new(SessionLimits::default());
        let session = table.open(Slot(1));
        assert_eq!(run(&mut table, session, 2, 1), Verdict::Execute, "commands may overtake each other");
        assert_eq!(run(&mut table, session, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, session, 2, 1), Verdict::Repeat(Some(Bytes::from("reply 2"))));
        assert_eq!(run(&mut table, session, 3, 3), Verdict::Execute);
        assert_eq!(run(&mut table, session, 2, 1), Verdict::Stale, "the client has that answer");
    }

    #[test]
    fn a_session_may_end_by_its_own_command() {
        let mut table = SessionTable::new(SessionLimits::default());
        let session = table.open(Slot(1));
        assert_eq!(table.check(session, 1, 1, Slot(2)), Verdict::Execute);
        table.advance_clock(Tick { from: 0, by: u64::MAX });
        table.executed(session, 1, &Bytes::from("reply"));
        assert_eq!(table.check(session, 2, 1, Slot(3)), Verdict::Unknown);
    }

    #[test]
    fn a_new_life_of_a_replica_ends_its_old_session() {
        let mut table = SessionTable::new(SessionLimits::default());
        let old = replica_session(ReplicaId(3), Incarnation(5), 7);
        let new = replica_session(ReplicaId(3), Incarnation(6), 7);
        assert_eq!(run(&mut table, old, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, old, 1, 1), Verdict::Repeat(None));
        assert_eq!(run(&mut table, new, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, old, 2, 2), Verdict::Stale);
    }

    #[test]
    fn a_life_on_a_copy_has_a_session_of_its_own() {
        let mut table = SessionTable::new(SessionLimits::default());
        let original = replica_session(ReplicaId(3), Incarnation(5), 7);
        let copy = replica_session(ReplicaId(3), Incarnation(5), 8);
        assert_eq!(run(&mut table, original, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, copy, 1, 1), Verdict::Execute, "it was never executed");
        // The one that is not the life that the table holds for the later one executes nothing, and is told so.
        assert_eq!(run(&mut table, original, 2, 1), Verdict::Stale);
        assert_eq!(run(&mut table, replica_session(ReplicaId(3), Incarnation(6), 0), 1, 1), Verdict::Execute);
    }

    #[test]
    fn the_table_and_each_window_are_bounded() {
        let limits = SessionLimits { clients_max: 2, outstanding_max: 4, ..SessionLimits::default() };
        let mut table = SessionTable::new(limits);
        let first = table.open(Slot(1));
        let second = table.open(Slot(2));
        assert_eq!(table.check(first, 1, 1, Slot(3)), Verdict::Execute);
        let third = table.open(Slot(4));
        assert_eq!(table.clients(), 2);
        assert_eq!(table.check(second, 1, 1, Slot(5)), Verdict::Unknown, "the idlest one had to go");
        assert_eq!(table.check(third, 4, 1, Slot(5)), Verdict::Execute);
        assert_eq!(table.check(third, 5, 1, Slot(5)), Verdict::TooFarAhead);
    }

    #[test]
    fn idle_sessions_expire_by_the_replicated_clock() {
        let mut table =
            SessionTable::new(SessionLimits { idle_max: Duration::from_secs(10), ..Default::default() });
        let idle = table.open(Slot(1));
        let busy = table.open(Slot(1));
        let tick = |from| Tick { from, by: 6_000 };
        table.advance_clock(tick(0));
        assert_eq!(run(&mut table, busy, 1, 1), Verdict::Execute);
        // Other leaders measured the same six seconds, or their ticks come late.
        [tick(0), tick(1), tick(6_001)].into_iter().for_each(|tick| table.advance_clock(tick));
        assert_eq!((table.clock_ms(), table.clients()), (6_000, 2));
        table.advance_clock(tick(6_000));
        assert_eq!(run(&mut table, idle, 1, 1), Verdict::Unknown);
        assert_eq!(run(&mut table, busy, 2, 1), Verdict::Execute);
    }

    #[test]
    fn lower_limits_hold_at_once() {
        let mut table = SessionTable::new(SessionLimits::default());
        let sessions: Vec<_> = (1..=3).map(|slot| table.open(Slot(slot))).collect();
        for &session in &sessions {
            (1..=4).for_each(|sequence| reply_of(&mut table, session, sequence, 1_000));
        }
        let each = 1_000 + REPLY_OVERHEAD_BYTES;
        let limits = SessionLimits {
            clients_max: 2,
            session_reply_bytes_max: 2 * each,
            reply_bytes_max: 3 * each,
            ..SessionLimits::default()
        };
        table.set_limits(limits);
        assert_eq!((table.clients(), table.reply_bytes()), (2, 3 * each));
        assert_eq!(table.largest_session_bytes(), 2 * each);
        assert_eq!(table.check(sessions[2], 4, 1, Slot(9)), Verdict::Repeat(Some(vec![7; 1_000].into())));
        assert_eq!(
            table.check(sessions[2], 1, 1, Slot(9)),
            Verdict::Repeat(None),
            "executed, and the reply gone"
        );
    }

    #[test]
    fn a_table_survives_a_snapshot() {
        let mut table = SessionTable::new(SessionLimits::default());
        let client = table.open(Slot(1));
        let replica = replica_session(ReplicaId(1), Incarnation(9), 7);
        run(&mut table, client, 2, 1);
        run(&mut table, replica, 7, 3);
        let mut bytes = Vec::new();
        table.freeze().write_to(&mut bytes).unwrap();
        let mut input = bytes.as_slice();
        let copy = SessionTable::of(Sessions::read_from(&mut input).unwrap(), SessionLimits::default());
        assert!(input.is_empty(), "it reads what it wrote and nothing after it");
        assert_eq!((&copy.sessions, &copy.by_age), (&table.sessions, &table.by_age));
        assert_eq!(copy.reply_bytes(), table.reply_bytes());
        for len in 0..bytes.len() {
            assert!(Sessions::read_from(&mut &bytes[..len]).is_err(), "{len} bytes of {}", bytes.len());
        }
    }

    const MIB: usize = 1 << 20;

    /// Executes a command whose reply is of this size.
    fn reply_of(table: &mut SessionTable, session: SessionId, sequence: u64, len: usize) {
        assert_eq!(table.check(session, sequence, 1, Slot(1)), Verdict::Execute);
        table.executed(session, sequence, &Bytes::from(vec![7; len]));
    }

    #[test]
    fn a_careless_client_with_large_replies_loses_its_oldest_ones_and_executes_nothing_twice() {
        let limits = SessionLimits::default();
        let mut table = SessionTable::new(limits);
        let careful = table.open(Slot(1));
        run(&mut table, careful, 1, 1);
        let careless = table.open(Slot(1));
        // The client never says that it has an answer.
        for sequence in 1..=1000 {
            reply_of(&mut table, careless, sequence, MIB);
            assert!(table.reply_bytes() <= limits.session_reply_bytes_max + cost(&Bytes::from("reply 1")));
        }
        let kept = limits.session_reply_bytes_max / (MIB as u64 + REPLY_OVERHEAD_BYTES);
        for sequence in 1..=1000 {
            let verdict = table.check(careless, sequence, 1, Slot(2));
            let Verdict::Repeat(reply) = verdict else {
                panic!("{sequence} would be executed again: {verdict:?}")
            };
            assert_eq!(reply.is_some(), sequence > 1000 - kept, "{sequence}");
        }
        assert_eq!(run(&mut table, careful, 1, 1), Verdict::Repeat(Some(Bytes::from("reply 1"))));
        assert_eq!(table.check(careless, 1001, 1001, Slot(3)), Verdict::Execute);
        assert_eq!(table.largest_session_bytes(), cost(&Bytes::from("reply 1")), "it has all those answers");
    }

    #[test]
    fn a_reply_too_large_for_the_table_does_not_drive_out_the_others() {
        let mut table = SessionTable::new(SessionLimits::default());
        let session = table.open(Slot(1));
        run(&mut table, session, 1, 1);
        reply_of(&mut table, session, 2, 9 * MIB);
        assert_eq!(table.check(session, 2, 1, Slot(1)), Verdict::Repeat(None));
        assert_eq!(run(&mut table, session, 1, 1), Verdict::Repeat(Some(Bytes::from("reply 1"))));
    }

    #[test]
    fn many_sessions_together_are_bounded_and_the_oldest_reply_of_all_goes_first() {
        let size = 1000 + REPLY_OVERHEAD_BYTES;
        let limits = SessionLimits { reply_bytes_max: 10 * size, ..SessionLimits::default() };
        let mut table = SessionTable::new(limits);
        let sessions: Vec<SessionId> = (0..6).map(|_| table.open(Slot(1))).collect();
        for sequence in 1..=3 {
            for &session in &sessions {
                reply_of(&mut table, session, sequence, 1000);
                assert!(table.reply_bytes() <= limits.reply_bytes_max);
            }
        }
        let cached = |table: &mut SessionTable, session, sequence| {
            matches!(table.check(session, sequence, 1, Slot(2)), Verdict::Repeat(Some(_)))
        };
        let of_each: Vec<usize> = sessions
            .iter()
            .map(|&session| (1..=3).filter(|&sequence| cached(&mut table, session, sequence)).count())
            .collect();
        assert_eq!(of_each, [1, 1, 2, 2, 2, 2]);

        // A closed session takes its replies along, and there is room for others.
        table.close(sessions[5]);
        assert_eq!(table.reply_bytes(), 8 * size);
        assert_eq!(table.by_age.len(), 8);
    }

    #[test]
    fn a_table_that_came_by_snapshot_forgets_the_same_replies_as_the_one_that_it_is_a_copy_of() {
        let limits = SessionLimits {
            session_reply_bytes_max: 3_000,
            reply_bytes_max: 7_000,
            clients_max: 4,
            outstanding_max: 16,
            ..SessionLimits::default()
        };
        let mut rng = fastrand::Rng::with_seed(7);
        let mut one = SessionTable::new(limits);
        let mut other = one.clone();
        for step in 0..5_000_u64 {
            if rng.u8(0..50) == 0 {
                assert_eq!(one.open(Slot(step)), other.open(Slot(step)));
            }
            if rng.u8(0..20) == 0 {
                let mut bytes = Vec::new();
                one.freeze().write_to(&mut bytes).unwrap();
                other = SessionTable::of(Sessions::read_from(&mut bytes.as_slice()).unwrap(), limits);
            }
            let session = SessionId(one.sessions.last_opened.saturating_sub(rng.u64(0..6)));
            let sequence = rng.u64(1..=step / 40 + 10);
            let lowest = sequence.saturating_sub(rng.u64(0..20)).max(1);
            let verdict = one.check(session, sequence, lowest, Slot(step));
            assert_eq!(other.check(session, sequence, lowest, Slot(step)), verdict, "step {step}");
            if verdict == Verdict::Execute {
                let reply = Bytes::from(vec![1; rng.usize(0..2_000)]);
                one.executed(session, sequence, &reply);
                other.executed(session, sequence, &reply);
            }
            assert_eq!(one.sessions, other.sessions, "step {step}");
            assert_eq!((&one.by_age, one.reply_bytes), (&other.by_age, other.reply_bytes), "step {step}");
            assert!(one.reply_bytes <= limits.reply_bytes_max);
            assert!(one.largest_session_bytes() <= limits.session_reply_bytes_max);
            let counted: u64 = one
                .sessions
                .clients
                .values()
                .flat_map(|client| client.replies.values().map(|cached| cost(&cached.reply)))
                .sum();
            assert_eq!(one.reply_bytes, counted, "step {step}");
        }
    }

    #[test]
    fn a_frozen_table_shares_its_sessions_and_stays_as_it_was() {
        let mut table = SessionTable::new(SessionLimits::default());
        let session = table.open(Slot(1));
        reply_of(&mut table, session, 1, MIB);
        let frozen = table.freeze();
        assert!(
            Arc::ptr_eq(&frozen.clients[&session], &table.sessions.clients[&session]),
            "nothing is copied"
        );
        let mut before = Vec::new();
        frozen.write_to(&mut before).unwrap();
        table.check(session, 2, 2, Slot(2));
        table.open(Slot(3));
        let mut after = Vec::new();
        frozen.write_to(&mut after).unwrap();
        assert!(before == after);
    }
}
