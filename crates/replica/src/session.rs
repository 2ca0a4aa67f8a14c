//! At-most-once execution.
//!
//! A command may be ordered twice: a client that got no answer sends it again, a replica proposes it again to a
//! new leader. The session table, which is part of the replicated state, sees to it that it is executed once.
//!
//! There are two kinds of sessions. **Clients** that identify themselves open one through the log; it caches the
//! replies that the client may still ask for. **Replicas** have one for all requests that carry no identity (the
//! etcd API's); it is implied by the replica's id and life, and caches nothing, since a replica sees its own
//! commands executed.
//!
//! Unlike JPaxos' reply cache (Santos 2012, section 7.8), which keeps one reply a client and so wants one
//! outstanding command a client, a session may have many: every command says which is the lowest one that the
//! session still waits for, and everything below is forgotten.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use synod_wire::{DecodeError, Incarnation, Reader, ReplicaId, SessionId, Slot, Writer};

const REPLICA_FLAG: u64 = 1 << 63;
const INCARNATION_BITS: u32 = 48;

/// The largest replica id whose session can be named.
pub const REPLICA_ID_MAX: u64 = (1 << (63 - INCARNATION_BITS)) - 1;

/// The session of one life of a replica.
///
/// # Panics
/// If the id exceeds [`REPLICA_ID_MAX`] or the life 48 bits; both are checked where they are configured.
#[must_use]
pub fn replica_session(replica: ReplicaId, incarnation: Incarnation) -> SessionId {
    assert!(replica.0 <= REPLICA_ID_MAX && incarnation.0 < 1 << INCARNATION_BITS, "{replica} {incarnation}");
    SessionId(REPLICA_FLAG | replica.0 << INCARNATION_BITS | incarnation.0)
}

/// Whether this is a replica's session, which no client may use.
pub(crate) fn is_replica(session: SessionId) -> bool {
    as_replica(session).is_some()
}

fn as_replica(session: SessionId) -> Option<(ReplicaId, Incarnation)> {
    let id = session.0 & !REPLICA_FLAG;
    let parts = (ReplicaId(id >> INCARNATION_BITS), Incarnation(id & ((1 << INCARNATION_BITS) - 1)));
    (session.0 & REPLICA_FLAG != 0).then_some(parts)
}

/// Bounds of the table. All replicas of a group must have the same.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// Sessions of clients; opening one more closes the one that was idle longest.
    pub clients_max: usize,
    /// How far a sequence number of a client may be above its lowest outstanding one: as many replies are cached.
    pub outstanding_max: u64,
    /// The same for a replica, whose replies are not cached.
    pub replica_outstanding_max: u64,
    /// A client's session that is idle for longer is closed.
    pub idle_max: Duration,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            clients_max: 10_000,
            outstanding_max: 1 << 10,
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
    /// It was executed; the reply, if it is cached.
    Repeat(Option<Bytes>),
    /// The session does not wait for it any more.
    Stale,
    /// Too far above the lowest outstanding one.
    TooFarAhead,
    /// There is no such session.
    Unknown,
}

/// Which commands above a floor were executed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window<T> {
    /// Sequence numbers through this one are executed or given up.
    floor: u64,
    /// What is known of `floor + 1`, `floor + 2`, ...
    done: VecDeque<Option<T>>,
}

impl<T> Default for Window<T> {
    fn default() -> Window<T> {
        Window { floor: 0, done: VecDeque::new() }
    }
}

impl<T> Window<T> {
    fn raise(&mut self, floor: u64) {
        while self.floor < floor && self.done.pop_front().is_some() {
            self.floor += 1;
        }
        self.floor = self.floor.max(floor);
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.floor + 1)?).ok()
    }

    fn get(&self, sequence: u64) -> Option<&T> {
        self.done.get(self.index(sequence)?)?.as_ref()
    }

    fn set(&mut self, sequence: u64, value: T) {
        let index = self.index(sequence).expect("only commands above the floor are executed");
        if index >= self.done.len() {
            self.done.resize_with(index + 1, || None);
        }
        self.done[index] = Some(value);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientSession {
    window: Window<Bytes>,
    /// When the last command came, on the replicated clock in milliseconds...
    active_ms: u64,
    /// ...and in which slot, to order sessions of the same instant.
    active_slot: Slot,
}

/// The replicated table of sessions.
#[derive(Clone, Debug)]
pub struct SessionTable {
    limits: SessionLimits,
    replicas: BTreeMap<ReplicaId, (Incarnation, Window<()>)>,
    clients: BTreeMap<SessionId, ClientSession>,
    last_opened: u64,
    /// The replicated clock: it advances when leaders say so, through the log.
    clock_ms: u64,
}

impl SessionTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: SessionLimits) -> SessionTable {
        SessionTable {
            limits,
            replicas: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_opened: 0,
            clock_ms: 0,
        }
    }

    /// Sessions of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Opens a session for a client. A full table closes the session that was idle longest.
    pub fn open(&mut self, slot: Slot) -> SessionId {
        if self.clients.len() >= self.limits.clients_max {
            let idlest =
                self.clients.iter().min_by_key(|(_, session)| (session.active_ms, session.active_slot));
            if let Some(id) = idlest.map(|(&id, _)| id) {
                self.clients.remove(&id);
            }
        }
        self.last_opened += 1;
        let id = SessionId(self.last_opened);
        let session =
            ClientSession { window: Window::default(), active_ms: self.clock_ms, active_slot: slot };
        self.clients.insert(id, session);
        id
    }

    /// Time went by: closes what was idle for too long.
    pub fn advance_clock(&mut self, by: Duration) {
        self.clock_ms = self.clock_ms.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
        let idle_max = u64::try_from(self.limits.idle_max.as_millis()).unwrap_or(u64::MAX);
        let clock_ms = self.clock_ms;
        self.clients.retain(|_, session| clock_ms - session.active_ms <= idle_max);
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
        if let Some((replica, incarnation)) = as_replica(session) {
            let too_far = distance >= self.limits.replica_outstanding_max;
            let (life, window) = self.replicas.entry(replica).or_default();
            if incarnation < *life {
                return Verdict::Stale;
            }
            if incarnation > *life {
                *life = incarnation;
                *window = Window::default();
            }
            window.raise(floor);
            return match () {
                () if sequence <= window.floor => Verdict::Stale,
                () if window.get(sequence).is_some() => Verdict::Repeat(None),
                () if too_far => Verdict::TooFarAhead,
                () => Verdict::Execute,
            };
        }
        let Some(client) = self.clients.get_mut(&session) else { return Verdict::Unknown };
        client.active_ms = self.clock_ms;
        client.active_slot = slot;
        client.window.raise(floor);
        let too_far = distance >= self.limits.outstanding_max;
        if sequence <= client.window.floor {
            return Verdict::Stale;
        }
        match client.window.get(sequence) {
            Some(reply) => Verdict::Repeat(Some(reply.clone())),
            None if too_far => Verdict::TooFarAhead,
            None => Verdict::Execute,
        }
    }

    /// A command that was to be executed was, with this reply.
    pub fn executed(&mut self, session: SessionId, sequence: u64, reply: &Bytes) {
        if let Some((replica, _)) = as_replica(session) {
            let (_, window) = self.replicas.get_mut(&replica).expect("checked just before");
            window.set(sequence, ());
        } else {
            let client = self.clients.get_mut(&session).expect("checked just before");
            client.window.set(sequence, reply.clone());
        }
    }

    /// Writes the table for a snapshot.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u64(self.last_opened);
        writer.u64(self.clock_ms);
        writer.u32(u32::try_from(self.replicas.len()).expect("one a replica"));
        for (replica, (incarnation, window)) in &self.replicas {
            writer.replica(*replica);
            writer.u64(incarnation.0);
            encode_window(writer, window, |_, ()| {});
        }
        writer.u32(u32::try_from(self.clients.len()).expect("the table is bounded"));
        for (id, client) in &self.clients {
            writer.session(*id);
            writer.u64(client.active_ms);
            writer.slot(client.active_slot);
            encode_window(writer, &client.window, |writer, reply| writer.bytes(reply));
        }
    }

    /// Reads what [`SessionTable::encode`] wrote.
    pub fn decode(reader: &mut Reader, limits: SessionLimits) -> Result<SessionTable, DecodeError> {
        let mut table = SessionTable::new(limits);
        table.last_opened = reader.u64("last session opened")?;
        table.clock_ms = reader.u64("clock")?;
        for _ in 0..reader.u32("replica sessions")? {
            let replica = reader.replica("replica")?;
            let incarnation = Incarnation(reader.u64("incarnation")?);
            table.replicas.insert(replica, (incarnation, decode_window(reader, |_| Ok(()))?));
        }
        for _ in 0..reader.u32("client sessions")? {
            let id = reader.session("session")?;
            let active_ms = reader.u64("active")?;
            let active_slot = reader.slot("active slot")?;
            let window = decode_window(reader, |reader| reader.bytes("reply"))?;
            table.clients.insert(id, ClientSession { window, active_ms, active_slot });
        }
        Ok(table)
    }
}

fn encode_window<T>(writer: &mut Writer, window: &Window<T>, value: impl Fn(&mut Writer, &T)) {
    writer.u64(window.floor);
    writer.u32(u32::try_from(window.done.len()).expect("the window is bounded"));
    for done in &window.done {
        writer.bool(done.is_some());
        if let Some(done) = done {
            value(writer, done);
        }
    }
}

fn decode_window<T>(
    reader: &mut Reader,
    value: impl Fn(&mut Reader) -> Result<T, DecodeError>,
) -> Result<Window<T>, DecodeError> {
    let mut window = Window { floor: reader.u64("floor")?, done: VecDeque::new() };
    for _ in 0..reader.u32("window")? {
        let done = if reader.bool("executed")? { Some(value(reader)?) } else { None };
        window.done.push_back(done);
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_new_life_of_a_replica_ends_its_old_session() {
        let mut table = SessionTable::new(SessionLimits::default());
        let old = replica_session(ReplicaId(3), Incarnation(5));
        let new = replica_session(ReplicaId(3), Incarnation(6));
        assert_eq!(run(&mut table, old, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, old, 1, 1), Verdict::Repeat(None));
        assert_eq!(run(&mut table, new, 1, 1), Verdict::Execute);
        assert_eq!(run(&mut table, old, 2, 2), Verdict::Stale);
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
        table.advance_clock(Duration::from_secs(6));
        assert_eq!(run(&mut table, busy, 1, 1), Verdict::Execute);
        table.advance_clock(Duration::from_secs(6));
        assert_eq!(run(&mut table, idle, 1, 1), Verdict::Unknown);
        assert_eq!(run(&mut table, busy, 2, 1), Verdict::Execute);
    }

    #[test]
    fn a_table_survives_a_snapshot() {
        let mut table = SessionTable::new(SessionLimits::default());
        let client = table.open(Slot(1));
        let replica = replica_session(ReplicaId(1), Incarnation(9));
        run(&mut table, client, 2, 1);
        run(&mut table, replica, 7, 3);
        let mut writer = Writer::new();
        table.encode(&mut writer);
        let mut reader = Reader::new(writer.finish().to_bytes());
        let copy = SessionTable::decode(&mut reader, SessionLimits::default()).unwrap();
        reader.finish().unwrap();
        assert_eq!((&copy.clients, &copy.replicas), (&table.clients, &table.replicas));
    }
}
